//! Evicts keys when memory is short, and chooses them as Redis does.
//!
//! A few keys are drawn at random. The policy ranks keys: the worse a key, the earlier the policy
//! wants it evicted. The worst of the drawn keys join a pool, which keeps the worst keys found so
//! far. Then the worst key of the pool is evicted. A draw picks one of the buckets, which are all
//! equally likely, and takes all keys of this bucket. So all keys are equally likely, too, and a
//! draw reads only one place in memory. A policy that evicts only keys with an expiry draws from
//! the buckets that hold such keys.

use slimio_planted::is_planted;

use crate::access::{Access, Rules};
use crate::effects::{Effects, Part};
use crate::events::EVICTED;
use crate::keyspace::{DbIndex, EntryView, Keyspace};
use crate::table::{BucketSlot, Spot};

/// Limit of the candidates that are kept from one eviction to the next (`EVPOOL_SIZE`).
const POOL_LEN_MAX: usize = 16;

/// Limit of the keys that are drawn in one database for one eviction, whatever is configured.
const SAMPLES_MAX: usize = 1000;

/// Limit of the keys of one bucket that a draw looks at. In practice, no bucket has that many keys.
const BUCKET_SAMPLES_MAX: usize = 64;

/// Limit of the buckets that are drawn in one database for one eviction.
const DRAWS_MAX: usize = 1000;

/// Which keys are evicted when memory is short (`maxmemory-policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// No keys. Commands that need memory are refused instead.
    #[default]
    NoEviction,
    /// The keys whose last use was longest ago.
    AllKeysLru,
    /// The keys that are used least often.
    AllKeysLfu,
    /// Any keys.
    AllKeysRandom,
    /// Keys with an expiry: those whose last use was longest ago.
    VolatileLru,
    /// Keys with an expiry: those that are used least often.
    VolatileLfu,
    /// Any keys with an expiry.
    VolatileRandom,
    /// The keys that will expire first.
    VolatileTtl,
}

impl EvictionPolicy {
    /// All policies, with their names in `maxmemory-policy`.
    pub const ALL: [(EvictionPolicy, &'static str); 8] = [
        (EvictionPolicy::NoEviction, "noeviction"),
        (EvictionPolicy::AllKeysLru, "allkeys-lru"),
        (EvictionPolicy::AllKeysLfu, "allkeys-lfu"),
        (EvictionPolicy::AllKeysRandom, "allkeys-random"),
        (EvictionPolicy::VolatileLru, "volatile-lru"),
        (EvictionPolicy::VolatileLfu, "volatile-lfu"),
        (EvictionPolicy::VolatileRandom, "volatile-random"),
        (EvictionPolicy::VolatileTtl, "volatile-ttl"),
    ];

    /// The policy with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(policy, _)| *policy)
    }

    /// Whether keys are ranked by how often they are used.
    pub fn is_lfu(self) -> bool {
        matches!(self, Self::AllKeysLfu | Self::VolatileLfu)
    }

    /// Whether keys are ranked by when they were used last.
    pub fn is_lru(self) -> bool {
        matches!(self, Self::AllKeysLru | Self::VolatileLru)
    }

    /// Whether only keys with an expiry may be evicted.
    fn is_volatile(self) -> bool {
        use EvictionPolicy as P;
        matches!(self, P::VolatileLru | P::VolatileLfu | P::VolatileRandom | P::VolatileTtl)
    }

    fn is_random(self) -> bool {
        matches!(self, Self::AllKeysRandom | Self::VolatileRandom)
    }

    /// The rank of an entry. The entry with the highest rank is evicted first.
    fn rank(self, slot: &BucketSlot, now_ms: i64, rules: Rules) -> u64 {
        match self {
            Self::AllKeysLfu | Self::VolatileLfu => {
                u64::from(u8::MAX - slot.access().count(now_ms, rules))
            }
            Self::VolatileTtl => {
                let at_ms = slot.expires_at_ms().unwrap_or(i64::MAX);
                u64::MAX - (at_ms as u64 ^ 1 << 63)
            }
            _ => u64::from(slot.access().idle_seconds(now_ms)),
        }
    }
}

/// The known usage of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Seconds since the last use.
    IdleSeconds(u64),
    /// The logarithm of the count of uses, as in `OBJECT FREQ`.
    Freq(u8),
}

/// How keys are chosen for eviction.
#[derive(Clone, Copy, Debug)]
pub struct EvictionConfig {
    /// Which keys are evicted.
    pub policy: EvictionPolicy,
    /// Whether memory is limited (`maxmemory`).
    pub is_limited: bool,
    /// Count of keys that are drawn in each database for each eviction (`maxmemory-samples`).
    pub samples: usize,
    /// The larger this factor is, the more uses it takes to raise a count by one under LFU
    /// (`lfu-log-factor`).
    pub lfu_log_factor: u32,
    /// Minutes after which a count drops by one under LFU, or 0 if it never drops
    /// (`lfu-decay-time`).
    pub lfu_decay_minutes: u32,
}

impl Default for EvictionConfig {
    fn default() -> Self {
        let policy = EvictionPolicy::NoEviction;
        Self { policy, is_limited: false, samples: 5, lfu_log_factor: 10, lfu_decay_minutes: 1 }
    }
}

impl EvictionConfig {
    /// Whether Redis would use its shared objects for small integers. Redis uses them unless it
    /// tracks the use of each key.
    pub(crate) fn shares_integers(&self) -> bool {
        !self.is_limited || !(self.policy.is_lru() || self.policy.is_lfu())
    }

    pub(crate) fn rules(&self) -> Rules {
        Rules {
            counts: self.policy.is_lfu(),
            log_factor: self.lfu_log_factor,
            decay_minutes: self.lfu_decay_minutes,
        }
    }
}

/// The worst entries found so far. The very worst entry comes last.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    candidates: Vec<Candidate>,
    /// The database from which the random policies draw next.
    next_db: usize,
}

/// An entry that may be evicted. The hash alone identifies the entry, because it does no harm to
/// evict another entry with the same hash instead.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    rank: u64,
    db: DbIndex,
    hash: u32,
}

impl Pool {
    fn offer(&mut self, candidate: Candidate) {
        let at = self.candidates.partition_point(|other| other.rank < candidate.rank);
        let is_full = self.candidates.len() == POOL_LEN_MAX;
        if is_full && at == 0 {
            return;
        }
        let same = |other: &Candidate| (other.db, other.hash) == (candidate.db, candidate.hash);
        if self.candidates.iter().any(same) {
            return;
        }
        if is_full {
            self.candidates.remove(0);
        }
        let at = if is_planted("pool-unordered") { usize::from(is_full) } else { at };
        self.candidates.insert(at - usize::from(is_full), candidate);
        assert!(self.candidates.len() <= POOL_LEN_MAX, "the pool is bounded");
    }

    /// Panics with a message if an invariant of the pool does not hold.
    pub(crate) fn check(&self) {
        assert!(self.candidates.is_sorted_by_key(|one| one.rank), "the worst must come last");
        for (index, one) in self.candidates.iter().enumerate() {
            let same = |other: &Candidate| (other.db, other.hash) == (one.db, one.hash);
            assert!(!self.candidates[..index].iter().any(same), "a candidate occurs twice");
        }
    }
}

impl Keyspace {
    /// Changes how keys are chosen for eviction. The access bits in the entries' slots stay as they
    /// are, even if the new policy reads these bits differently.
    pub fn set_eviction(&mut self, config: EvictionConfig) {
        if config.policy != self.eviction.policy {
            self.pool.candidates.clear();
        }
        self.eviction = config;
    }

    /// How keys are chosen for eviction.
    pub fn eviction(&self) -> &EvictionConfig {
        &self.eviction
    }

    /// The known usage of an entry of this keyspace, as `maxmemory-policy` needs it: none, the idle
    /// time, or the frequency.
    pub fn usage(&self, entry: &EntryView<'_>, now_ms: i64) -> Option<Usage> {
        let EvictionConfig { policy, .. } = self.eviction;
        if policy.is_lfu() {
            Some(Usage::Freq(entry.access.count(now_ms, self.eviction.rules())))
        } else if policy.is_lru() {
            Some(Usage::IdleSeconds(entry.access.idle_seconds(now_ms).into()))
        } else {
            None
        }
    }

    /// Notes the usage of a key that exists. Ignores a kind of usage that does not match the
    /// current policy.
    pub fn set_usage(&mut self, db: DbIndex, key: &[u8], usage: Usage, now_ms: i64) {
        let access = match (usage, self.eviction.policy.is_lfu()) {
            (Usage::IdleSeconds(idle_s), false) => Access::idle(now_ms, idle_s),
            (Usage::Freq(count), true) => Access::counted(now_ms, count),
            (Usage::IdleSeconds(_), true) | (Usage::Freq(_), false) => return,
        };
        let hash = self.hash(key);
        let db = self.db_mut(db);
        if let Some(spot) = db.find(hash, key) {
            db.set_access(spot, access);
        }
    }

    /// Evicts the key that ranks highest by the current policy among the drawn keys. Adds the
    /// deletion to `effects`, with a copy of the key, so the deletion refers to no request. Returns
    /// how many bytes of [`used_bytes`](Self::used_bytes) were freed. Returns `None` if no key may
    /// be evicted, or if there is [no room](Effects::lacked_room) to log the deletion.
    ///
    /// The work is bounded by the configured samples and by the count of databases.
    pub fn evict(&mut self, now_ms: i64, effects: &mut Effects) -> Option<usize> {
        let policy = self.eviction.policy;
        let (db, spot) = match policy {
            EvictionPolicy::NoEviction => return None,
            _ if policy.is_random() => self.draw_victim(policy.is_volatile())?,
            _ => self.rank_victim(now_ms)?,
        };
        let before = self.db(db).used_bytes();
        let key = self.db(db).key(spot).to_vec();
        if !effects.take_room(&key) {
            return None;
        }
        let hash = self.hash(&key);
        let (from, displaced) = self.db_and_displaced(db);
        from.remove(spot, displaced);
        self.stats.evicted_keys += 1;
        if !is_planted("eviction-not-logged") {
            effects.log(db, &[Part::Bytes(b"DEL"), Part::Bytes(&key)]);
        }
        effects.touch(db, hash, &key, EVICTED);
        Some(before.saturating_sub(self.db(db).used_bytes()))
    }

    /// Draws a random key. Successive calls take the databases in turn.
    fn draw_victim(&mut self, is_volatile: bool) -> Option<(DbIndex, Spot)> {
        let count = self.db_count();
        let len = |db: DbIndex, this: &Self| {
            let db = this.db(db);
            if is_volatile { db.expiring() } else { db.len() }
        };
        let db = (0..count)
            .map(|turn| DbIndex(((self.pool.next_db + turn) % count) as u16))
            .find(|db| len(*db, self) > 0)?;
        self.pool.next_db = usize::from(db.0) + 1;
        loop {
            let random = self.random();
            let table = self.db(db).table();
            let drawn = if is_volatile { table.draw_expiring(random) } else { table.draw(random) };
            if let Some(spot) = drawn {
                return Some((db, spot));
            }
        }
    }

    /// Draws a few more keys, and takes the worst key from the pool.
    fn rank_victim(&mut self, now_ms: i64) -> Option<(DbIndex, Spot)> {
        let EvictionConfig { policy, .. } = self.eviction;
        let rules = self.eviction.rules();
        // All keys in the pool may have been deleted or used since they were drawn. If so, the
        // first round empties the pool, and in the second round the pool has only keys that were
        // drawn just now.
        for _ in 0..2 {
            for db in 0..self.db_count() {
                self.sample(DbIndex(db as u16), now_ms);
            }
            while let Some(candidate) = self.pool.candidates.pop() {
                let table = self.db(candidate.db).table();
                let Some(spot) = table.find_hash(candidate.hash) else { continue };
                let slot = table.get(spot);
                let may_go = slot.expires() || !policy.is_volatile();
                let is_unused = policy.rank(slot, now_ms, rules) >= candidate.rank;
                if may_go && (is_unused || is_planted("used-since-drawn")) {
                    return Some((candidate.db, spot));
                }
            }
        }
        None
    }

    /// Draws keys of a database and offers them to the pool.
    fn sample(&mut self, db: DbIndex, now_ms: i64) {
        let EvictionConfig { policy, samples, .. } = self.eviction;
        let rules = self.eviction.rules();
        let mut left = samples.min(SAMPLES_MAX);
        for _ in 0..DRAWS_MAX {
            let random = self.random();
            let (table, pool) = self.table_and_pool(db);
            let slots = if policy.is_volatile() {
                table.draw_expiring_bucket(random)
            } else {
                table.draw_bucket(random)
            };
            let Some(slots) = slots else { return };
            let mut seen = 0;
            for slot in slots.iter().take(BUCKET_SAMPLES_MAX) {
                if slot.expires() || !policy.is_volatile() {
                    let rank = policy.rank(slot, now_ms, rules);
                    pool.offer(Candidate { rank, db, hash: slot.hash });
                    seen += 1;
                }
            }
            if seen >= left {
                return;
            }
            left -= seen;
        }
    }

    /// The access bits of a new entry.
    pub(crate) fn new_access(&self, now_ms: i64) -> Access {
        Access::new(now_ms, self.eviction.rules())
    }

    /// Notes that an entry is used.
    pub(crate) fn touch_access(&mut self, db: DbIndex, spot: Spot, now_ms: i64) {
        let rules = self.eviction.rules();
        let random = if rules.counts { self.random() } else { 0 };
        let db = self.db_mut(db);
        let touched = db.access(spot).touched(now_ms, rules, random);
        db.set_access(spot, touched);
    }
}
