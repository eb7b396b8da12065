//! Keys that go because memory is short, chosen as Redis chooses them.
//!
//! A few keys are drawn at random, the worst of them join a pool of the worst ones met so far, and
//! the worst of the pool goes. What is drawn is a bucket with all its keys, so that each key is as
//! likely as any other and a draw reads one place in memory; for the policies that spare keys which
//! do not expire, it is one of the buckets that hold any that do.

use slimio_planted::is_planted;

use crate::access::{Access, Rules};
use crate::effects::{Effects, Part};
use crate::keyspace::{DbIndex, EntryView, Keyspace};
use crate::table::{Slot, Spot};

/// Candidates kept between one eviction and the next (`EVPOOL_SIZE`).
const POOL_LEN_MAX: usize = 16;

/// Most keys drawn for one eviction, whatever is configured.
const SAMPLES_MAX: usize = 1000;

/// Most keys of one bucket that are looked at: more than a bucket has.
const BUCKET_SAMPLES_MAX: usize = 64;

/// Most buckets drawn in one database for one eviction.
const DRAWS_MAX: usize = 1000;

/// Which keys go when memory is short (`maxmemory-policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// None: commands that need memory are refused.
    #[default]
    NoEviction,
    /// Those not used for the longest time.
    AllKeysLru,
    /// Those used least often.
    AllKeysLfu,
    /// Any.
    AllKeysRandom,
    /// Of those that expire, the ones not used for the longest time.
    VolatileLru,
    /// Of those that expire, the ones used least often.
    VolatileLfu,
    /// Any of those that expire.
    VolatileRandom,
    /// Those that expire first.
    VolatileTtl,
}

impl EvictionPolicy {
    /// All of them, with the words of `maxmemory-policy`.
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

    /// The policy of that name.
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

    /// Whether only keys that expire may go.
    fn is_volatile(self) -> bool {
        use EvictionPolicy as P;
        matches!(self, P::VolatileLru | P::VolatileLfu | P::VolatileRandom | P::VolatileTtl)
    }

    fn is_random(self) -> bool {
        matches!(self, Self::AllKeysRandom | Self::VolatileRandom)
    }

    /// How much an entry deserves to go: the higher, the more.
    fn rank(self, slot: &Slot, now_ms: i64, rules: Rules) -> u64 {
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

/// What is known of the uses of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Seconds since the last one.
    IdleSeconds(u64),
    /// The logarithm of how often, as `OBJECT FREQ` has it.
    Freq(u8),
}

/// How keys are chosen that go when memory is short.
#[derive(Clone, Copy, Debug)]
pub struct EvictionConfig {
    /// Which keys go.
    pub policy: EvictionPolicy,
    /// Whether memory is limited (`maxmemory`).
    pub is_limited: bool,
    /// Keys drawn for each one that goes (`maxmemory-samples`).
    pub samples: usize,
    /// How many uses count as one more under LFU (`lfu-log-factor`).
    pub lfu_log_factor: u32,
    /// Minutes after which a count is one less under LFU; 0: never (`lfu-decay-time`).
    pub lfu_decay_minutes: u32,
}

impl Default for EvictionConfig {
    fn default() -> Self {
        let policy = EvictionPolicy::NoEviction;
        Self { policy, is_limited: false, samples: 5, lfu_log_factor: 10, lfu_decay_minutes: 1 }
    }
}

impl EvictionConfig {
    /// Whether Redis shares small integers: unless it keeps an account of the uses of each.
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

/// The worst entries met so far, the worst last.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    candidates: Vec<Candidate>,
    /// For the random policies: the database whose turn it is.
    next_db: usize,
}

/// An entry that may go. It is told by its hash alone: another one with the same would do as well.
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
        self.candidates.insert(at - usize::from(is_full), candidate);
    }
}

impl Keyspace {
    /// Changes how keys are chosen that go when memory is short. Entries keep what their slots say
    /// of their last use, also where another policy reads it as something else.
    pub fn set_eviction(&mut self, config: EvictionConfig) {
        if config.policy != self.eviction.policy {
            self.pool.candidates.clear();
        }
        self.eviction = config;
    }

    /// How keys are chosen that go when memory is short.
    pub fn eviction(&self) -> &EvictionConfig {
        &self.eviction
    }

    /// What is known of the uses of an entry of this keyspace, as `maxmemory-policy` wants it:
    /// nothing, when, or how often.
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

    /// Notes what is known of the uses of a key that is there. What the policy in force does not
    /// look at is passed over.
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

    /// Deletes the key that deserves it most by the policy in force, as far as a few draws tell.
    /// The deletion is added to `effects` and refers to no request. Returns how many bytes of
    /// [`used_bytes`](Self::used_bytes) are free now, or `None` if there is no key that may go, or
    /// [no room](Effects::is_short) to say that it did.
    ///
    /// The work is bounded by the samples configured and by the count of databases.
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
        let (from, past) = self.db_and_past(db);
        from.remove(spot, past);
        self.stats.evicted_keys += 1;
        if !is_planted("eviction-not-logged") {
            effects.log(db, &[Part::Bytes(b"DEL"), Part::Bytes(&key)]);
        }
        effects.touch(db, hash, &key);
        Some(before.saturating_sub(self.db(db).used_bytes()))
    }

    /// Any key, every database in turn.
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

    /// The worst of the pool, after a few more have been drawn.
    fn rank_victim(&mut self, now_ms: i64) -> Option<(DbIndex, Spot)> {
        let EvictionConfig { policy, .. } = self.eviction;
        let rules = self.eviction.rules();
        // Everybody in the pool may be gone or in use again: but not those that were just drawn.
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

    /// What an entry that is made now says of its last use.
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
