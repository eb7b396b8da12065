//! All databases, and what they have in common.

mod check;

use std::fmt;
use std::sync::OnceLock;

use slimio_planted::is_planted;
use slimio_resp::{ReplyBuf, Request};

use crate::access::Access;
use crate::ahead::ElementAhead;
use crate::collection::{EditForm, LargeString};
use crate::command::CommandTable;
use crate::commands;
use crate::context::{Context, Mode};
use crate::db::Db;
use crate::displaced::Displaced;
use crate::effects::Effects;
use crate::evict::{EvictionConfig, Pool};
use crate::garbage::Garbage;
use crate::hasher::KeyHasher;
use crate::kinds::PackedLimits;
use crate::payload::{Commands, PayloadError};
use crate::table::{Spot, Table};
use crate::value::ValueRef;

/// The largest number of databases that a keyspace can have.
pub const DB_COUNT_MAX: usize = 1 << 15;

/// The number of a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DbIndex(pub u16);

/// The configuration of a new keyspace.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Count of databases, at least one and at most [`DB_COUNT_MAX`].
    pub db_count: usize,
    /// Size in bytes of the longest string (`proto-max-bulk-len`).
    pub string_size_max: usize,
    /// The limits up to which collections are packed.
    pub packed_limits: PackedLimits,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            db_count: 16,
            string_size_max: 512 * 1024 * 1024,
            packed_limits: PackedLimits::default(),
        }
    }
}

/// Counters of `INFO stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Reads of keys that existed.
    pub keyspace_hits: u64,
    /// Reads of keys that did not exist.
    pub keyspace_misses: u64,
    /// Keys that were deleted because they had expired.
    pub expired_keys: u64,
    /// Keys that were deleted because memory was short.
    pub evicted_keys: u64,
}

/// The data set.
pub struct Keyspace {
    /// Change these only through [`db_mut`](Self::db_mut) and the like, which keep `used` up to
    /// date.
    dbs: Vec<Db>,
    used: Used,
    pub(crate) config: Config,
    pub(crate) stats: Stats,
    pub(crate) displaced: Displaced,
    pub(crate) eviction: EvictionConfig,
    pub(crate) pool: Pool,
    /// Whether commands leave the last use of keys unchanged.
    pub(crate) is_untouched: bool,
    /// The time that replay notes as the last use of keys, in milliseconds since 1970.
    pub(crate) replay_ms: i64,
    pub(crate) hasher: KeyHasher,
    /// State of the generator of random numbers.
    random: u64,
    scratch: Scratch,
}

/// Memory of all databases. The sum is kept up to date, so no command has to add it up.
#[derive(Clone, Copy, Default)]
struct Used {
    /// The sum over all databases at the time when the `open` database was opened.
    settled: usize,
    /// The database that was changed last.
    open: DbIndex,
    /// The memory of the `open` database when it was opened.
    before: usize,
}

/// Memory that replay reuses for each command, so that replay allocates nothing.
#[derive(Default)]
struct Scratch {
    request: Request,
    reply: ReplyBuf,
    effects: Effects,
}

/// A view of an entry.
#[derive(Clone, Copy, Debug)]
pub struct EntryView<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: ValueRef<'a>,
    /// The time after which the entry has expired, in milliseconds since 1970.
    pub expires_at_ms: Option<i64>,
    /// The entry's last use: see [`Keyspace::usage`].
    pub(crate) access: Access,
}

/// Why a record of the log cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApplyError {
    /// The payload is not a sequence of commands.
    Malformed,
    /// A command is unknown, or is never logged.
    UnknownCommand(String),
    /// A command failed with this reply, although the same command had succeeded when it was
    /// logged.
    Failed(String),
    /// The record names a database that does not exist. There were more databases when the record
    /// was logged.
    NoSuchDb(u64),
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("the record is not a sequence of commands"),
            Self::UnknownCommand(name) => write!(f, "unknown command '{name}' in the record"),
            Self::Failed(reply) => write!(f, "a command of the record failed: {reply}"),
            Self::NoSuchDb(db) => write!(f, "the record names database {db}, which is missing"),
        }
    }
}

impl std::error::Error for ApplyError {}

impl From<PayloadError> for ApplyError {
    fn from(_: PayloadError) -> Self {
        Self::Malformed
    }
}

/// The data commands.
pub fn command_table() -> &'static CommandTable {
    static TABLE: OnceLock<CommandTable> = OnceLock::new();
    TABLE.get_or_init(|| CommandTable::new(commands::rows()))
}

impl Keyspace {
    /// An empty keyspace. `seed` must be a random secret. The hash function that spreads keys over
    /// buckets depends on the seed. So clients that knew the seed could choose keys that collide.
    ///
    /// Panics if the count of databases is out of range.
    pub fn new(config: Config, seed: u128) -> Self {
        assert!((1..=DB_COUNT_MAX).contains(&config.db_count), "the count of databases is invalid");
        let (high, low) = ((seed >> 64) as u64, seed as u64);
        let numbers = (0..config.db_count).map(|number| DbIndex(number as u16));
        let dbs: Vec<Db> = numbers.map(Db::new).collect();
        let used = Used {
            settled: dbs.iter().map(Db::used_bytes).sum(),
            open: DbIndex(0),
            before: dbs[0].used_bytes(),
        };
        Self {
            dbs,
            used,
            config,
            stats: Stats::default(),
            displaced: Displaced::default(),
            eviction: EvictionConfig::default(),
            pool: Pool::default(),
            is_untouched: false,
            replay_ms: 0,
            hasher: KeyHasher::new(seed),
            random: high ^ low.rotate_left(32),
            scratch: Scratch::default(),
        }
    }

    /// An empty keyspace with the same configuration, counters and hash function.
    #[must_use]
    pub fn emptied(&self) -> Self {
        let mut empty = Self::new(self.config, 0);
        (empty.hasher, empty.random) = (self.hasher, self.random);
        (empty.eviction, empty.stats) = (self.eviction, self.stats);
        empty
    }

    /// The keyed hash of a key. It stays the same as long as this keyspace lives.
    pub fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash(key)
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Changes the size, in bytes, of the longest string that commands make (`proto-max-bulk-len`).
    pub fn set_string_size_max(&mut self, size: usize) {
        self.config.string_size_max = size;
    }

    /// Changes the limits up to which collections are packed. An existing collection keeps its form
    /// until it is written to.
    pub fn set_packed_limits(&mut self, limits: PackedLimits) {
        self.config.packed_limits = limits;
    }

    /// The hash function of this keyspace, for values that are built on another thread.
    pub fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    /// Count of keys in a database, including expired ones that have not been deleted yet.
    pub fn dbsize(&self, db: DbIndex) -> usize {
        self.db(db).len()
    }

    /// Count of keys in a database that have an expiry.
    pub fn expiring(&self, db: DbIndex) -> usize {
        self.db(db).expiring()
    }

    /// Bytes of memory that the table of a database takes, not counting its keys and values.
    pub fn table_bytes_of(&self, db: DbIndex) -> usize {
        self.db(db).table().table_bytes()
    }

    /// Bytes that all keys, their values and the tables take in memory, rounded up to the size
    /// classes of the allocator. Memory that several values share is counted for each of these
    /// values. Deleted values are not counted, even if they are not freed yet.
    pub fn used_bytes(&self) -> usize {
        let Used { settled, open, before } = self.used;
        let used = settled - before + self.db(open).used_bytes();
        debug_assert_eq!(used, self.dbs.iter().map(Db::used_bytes).sum(), "a change was missed");
        used
    }

    /// Sets the time, in milliseconds since 1970, that [`apply`](Self::apply) notes as the last use
    /// of keys, because a record does not contain this time.
    pub fn set_replay_time(&mut self, now_ms: i64) {
        self.replay_ms = now_ms;
    }

    /// The time that the last call of [`set_replay_time`](Self::set_replay_time) set, in
    /// milliseconds since 1970.
    pub fn replay_time(&self) -> i64 {
        self.replay_ms
    }

    /// Sets whether the commands that run from now on, except `TOUCH`, leave the last use of keys
    /// unchanged (`CLIENT NO-TOUCH`).
    pub fn set_untouched(&mut self, is_untouched: bool) {
        self.is_untouched = is_untouched;
    }

    /// Mean time to live of a database's keys that expire, in milliseconds, as estimated by active
    /// expiry (`avg_ttl`).
    pub fn ttl_mean_ms(&self, db: DbIndex) -> i64 {
        self.db(db).ttl_mean_ms
    }

    /// Counters since the start or the last reset.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Sets the counters to zero (`CONFIG RESETSTAT`).
    pub fn reset_stats(&mut self) {
        self.stats = Stats::default();
    }

    /// The memory to be freed; `None` if there is nothing to free. Another thread should free it.
    pub fn take_garbage(&mut self) -> Option<Garbage> {
        let garbage = &mut self.displaced.garbage;
        (!garbage.is_empty()).then(|| std::mem::take(garbage))
    }

    /// Whether a key exists and has not expired. Nothing is deleted or counted.
    pub fn contains(&self, db: DbIndex, key: &[u8], now_ms: i64) -> bool {
        self.get(db, key, now_ms).is_some()
    }

    /// The value of a key, unless it has expired. Nothing is deleted or counted.
    pub fn get(&self, db: DbIndex, key: &[u8], now_ms: i64) -> Option<ValueRef<'_>> {
        let db = self.db(db);
        let spot = db.find(self.hash(key), key)?;
        if db.expires_at_ms(spot).is_some_and(|at| now_ms > at) {
            return None;
        }
        Some(db.value(spot))
    }

    /// Prefetches what requests will look for. Reading everything together takes less time than
    /// reading one thing after the other.
    ///
    /// Panics if there are more than [`AHEAD_MAX`](crate::AHEAD_MAX) elements.
    pub fn bring_in(&self, db: DbIndex, elements: &[ElementAhead<'_>]) {
        self.db(db).bring_in(&self.hasher, elements);
    }

    /// Every entry of a database, expired ones included, in no particular order.
    pub fn entries(&self, db: DbIndex) -> impl Iterator<Item = EntryView<'_>> {
        let table = self.db(db).table();
        (0..table.bucket_count()).flat_map(move |bucket| {
            table.slots(bucket).iter().map(|slot| EntryView {
                key: slot.key(),
                value: slot.value(),
                expires_at_ms: slot.expires_at_ms(),
                access: slot.access(),
            })
        })
    }

    /// Applies the payload of a log record. No key expires meanwhile. Returns the count of changes.
    /// A key that was changed twice counts twice.
    ///
    /// If a command fails, the commands before it have been applied.
    pub fn apply(&mut self, mut db: DbIndex, payload: &[u8]) -> Result<usize, ApplyError> {
        self.check_db(u64::from(db.0))?;
        let mut scratch = std::mem::take(&mut self.scratch);
        let result = self.apply_commands(&mut db, payload, &mut scratch);
        self.scratch = scratch;
        result
    }

    fn apply_commands(
        &mut self,
        db: &mut DbIndex,
        payload: &[u8],
        scratch: &mut Scratch,
    ) -> Result<usize, ApplyError> {
        let mut changes = 0;
        let Scratch { request, reply, effects } = scratch;
        let mut commands = Commands::new(payload);
        while commands.next(request)? {
            let args = request.args(payload);
            let name = args.bytes(0);
            if name.eq_ignore_ascii_case(b"select") {
                let number = (args.len() == 2).then(|| args.get(1).to_i64()).flatten();
                let number = number.and_then(|number| u64::try_from(number).ok());
                *db = self.check_db(number.ok_or(ApplyError::Malformed)?)?;
                continue;
            }
            let command = command_table()
                .lookup(&name)
                .filter(|command| command.accepts(args.len()))
                .ok_or_else(|| {
                    ApplyError::UnknownCommand(String::from_utf8_lossy(&name).into_owned())
                })?;
            reply.clear();
            effects.clear();
            let replay_now_ms = match () {
                () if is_planted("expiry-in-replay") => i64::MAX,
                () if is_planted("expiry-by-restart") => self.replay_time(),
                () => 0,
            };
            let mut context = Context {
                keyspace: self,
                db: *db,
                args,
                now_ms: replay_now_ms,
                reply,
                effects,
                mode: if replay_now_ms > 0 { Mode::Atomic } else { Mode::Replay },
            };
            (command.run)(&mut context);
            if let Some(start) = reply.segments(0..reply.len()).next()
                && let Some(error) = start.strip_prefix(b"-")
            {
                return Err(ApplyError::Failed(String::from_utf8_lossy(error).trim().to_owned()));
            }
            changes += effects.touched_count();
        }
        Ok(changes)
    }

    pub(crate) fn db(&self, db: DbIndex) -> &Db {
        &self.dbs[usize::from(db.0)]
    }

    pub(crate) fn db_mut(&mut self, db: DbIndex) -> &mut Db {
        self.db_and_displaced(db).0
    }

    /// A database to be changed, and what takes its old entries: the capture of a running snapshot,
    /// and the garbage.
    pub(crate) fn db_and_displaced(&mut self, db: DbIndex) -> (&mut Db, &mut Displaced) {
        self.open(db);
        (&mut self.dbs[usize::from(db.0)], &mut self.displaced)
    }

    /// All databases, for changes that affect neither a key nor a value.
    pub(crate) fn dbs_and_displaced(&mut self) -> (&mut [Db], &mut Displaced) {
        (&mut self.dbs, &mut self.displaced)
    }

    pub(crate) fn swap_dbs(&mut self, a: DbIndex, b: DbIndex) {
        self.dbs.swap(usize::from(a.0), usize::from(b.0));
        self.number_swapped(a, b);
        // The sum is unchanged, but `open` may now be the number of another database.
        let Used { settled, before, open } = self.used;
        let now = self.db(open).used_bytes();
        let was = if open == a {
            b
        } else if open == b {
            a
        } else {
            return;
        };
        let used = settled - before + self.db(was).used_bytes();
        self.used = Used { settled: used, open, before: now };
    }

    /// Makes a database the `open` one. First settles the memory of the database that was open.
    fn open(&mut self, db: DbIndex) {
        let Used { settled, open, before } = self.used;
        if open != db {
            let settled = settled - before + self.db(open).used_bytes();
            self.used = Used { settled, open: db, before: self.db(db).used_bytes() };
        }
    }

    /// The table of a database, to draw keys from, and the pool of eviction candidates.
    pub(crate) fn table_and_pool(&mut self, db: DbIndex) -> (&Table, &mut Pool) {
        (self.dbs[usize::from(db.0)].table(), &mut self.pool)
    }

    pub(crate) fn db_count(&self) -> usize {
        self.dbs.len()
    }

    /// Changes a collection. Old strings that take noticeable time to free are added to the
    /// garbage.
    ///
    /// Panics if the value is a string.
    pub(crate) fn edit_collection<R>(
        &mut self,
        db: DbIndex,
        spot: Spot,
        edit: impl FnOnce(&mut EditForm<'_>, &mut Vec<LargeString>) -> R,
    ) -> R {
        let (db, displaced) = self.db_and_displaced(db);
        db.update_collection(spot, displaced, edit)
    }

    /// The next random number. The same seed gives the same sequence.
    pub(crate) fn random(&mut self) -> u64 {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn check_db(&self, number: u64) -> Result<DbIndex, ApplyError> {
        if number >= self.dbs.len() as u64 {
            return Err(ApplyError::NoSuchDb(number));
        }
        Ok(DbIndex(number as u16))
    }
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the seed nor the data may be in a message.
        f.debug_struct("Keyspace").field("dbs", &self.dbs.len()).finish_non_exhaustive()
    }
}
