//! All databases, and what they have in common.

use std::fmt;
use std::hash::Hasher;
use std::sync::OnceLock;

use siphasher::sip::SipHasher13;
use slimio_resp::{Arg, ReplyBuf, Request};

use crate::command::CommandTable;
use crate::commands;
use crate::context::{Context, Mode};
use crate::db::Db;
use crate::effects::Effects;
use crate::garbage::Garbage;
use crate::payload::{Commands, PayloadError};

/// Most databases there can be.
pub const DB_COUNT_MAX: usize = 1 << 15;

/// A database by its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DbIndex(pub u16);

/// What a keyspace has to be told at its birth.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Count of databases, at least one and at most [`DB_COUNT_MAX`].
    pub db_count: usize,
    /// Longest string in bytes (`proto-max-bulk-len`).
    pub string_size_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { db_count: 16, string_size_max: 512 * 1024 * 1024 }
    }
}

/// Counters of `INFO stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Reads of keys that were there.
    pub keyspace_hits: u64,
    /// Reads of keys that were not.
    pub keyspace_misses: u64,
    /// Keys deleted because their time was over.
    pub expired_keys: u64,
}

/// The data set.
pub struct Keyspace {
    pub(crate) dbs: Vec<Db>,
    pub(crate) config: Config,
    pub(crate) stats: Stats,
    pub(crate) garbage: Garbage,
    /// 8 ns for a key of 16 bytes. The fastest hashes take 2, but make no promise to whoever is
    /// sent keys that were chosen to collide.
    hasher: SipHasher13,
    /// State of the generator behind `RANDOMKEY`.
    random: u64,
    scratch: Scratch,
}

/// What replay needs for each command, kept so that it allocates nothing.
#[derive(Default)]
struct Scratch {
    request: Request,
    reply: ReplyBuf,
    effects: Effects,
}

/// An entry, looked at from outside.
#[derive(Clone, Copy, Debug)]
pub struct EntryView<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value, a string.
    pub value: Arg<'a>,
    /// Milliseconds since 1970 after which it is gone.
    pub expires_at_ms: Option<i64>,
}

/// The log holds something that this keyspace cannot do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApplyError {
    /// The payload is not a sequence of commands.
    Malformed,
    /// A command is unknown, or not one that is ever logged.
    UnknownCommand(String),
    /// A command failed, with this reply; it did not when it was logged.
    Failed(String),
    /// A database that does not exist: there are fewer than when it was logged.
    NoSuchDb(u64),
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("the record is not a sequence of commands"),
            Self::UnknownCommand(name) => write!(f, "unknown command '{name}' in the record"),
            Self::Failed(reply) => write!(f, "a command of the record failed: {reply}"),
            Self::NoSuchDb(db) => write!(f, "the record is for database {db}, which is not there"),
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
    /// Empty databases. `seed` must be a secret drawn at random: it keys the hash that spreads the
    /// keys, and clients that knew it could choose keys that collide.
    ///
    /// Panics if the count of databases is out of range.
    pub fn new(config: Config, seed: u128) -> Self {
        assert!((1..=DB_COUNT_MAX).contains(&config.db_count), "count of databases");
        let (high, low) = ((seed >> 64) as u64, seed as u64);
        Self {
            dbs: (0..config.db_count).map(|_| Db::default()).collect(),
            config,
            stats: Stats::default(),
            garbage: Garbage::default(),
            hasher: SipHasher13::new_with_keys(high, low),
            random: high ^ low.rotate_left(32),
            scratch: Scratch::default(),
        }
    }

    /// The keyed hash of a key: the same as long as this keyspace lives.
    pub fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.hasher;
        hasher.write(key);
        hasher.finish()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Changes the longest string that commands make (`proto-max-bulk-len`), in bytes.
    pub fn set_string_size_max(&mut self, size: usize) {
        self.config.string_size_max = size;
    }

    /// Count of keys in a database, those included whose time is over but that nobody has met yet.
    pub fn dbsize(&self, db: DbIndex) -> usize {
        self.db(db).len()
    }

    /// Count of keys in a database that expire.
    pub fn expiring(&self, db: DbIndex) -> usize {
        self.db(db).expiring()
    }

    /// Mean time to live of the keys of a database that expire, in milliseconds, as far as active
    /// expiry has seen (`avg_ttl`).
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

    /// What is to be freed, best by another thread; `None` if nothing is.
    pub fn take_garbage(&mut self) -> Option<Garbage> {
        (!self.garbage.is_empty()).then(|| std::mem::take(&mut self.garbage))
    }

    /// Whether a key is there, and its time not over. Nothing is deleted or counted.
    pub fn contains(&self, db: DbIndex, key: &[u8], now_ms: i64) -> bool {
        self.get(db, key, now_ms).is_some()
    }

    /// The value of a key, unless its time is over. Nothing is deleted or counted.
    pub fn get(&self, db: DbIndex, key: &[u8], now_ms: i64) -> Option<Arg<'_>> {
        let db = self.db(db);
        let spot = db.find(self.hash(key), key)?;
        if db.expires_at_ms(spot).is_some_and(|at| now_ms > at) {
            return None;
        }
        Some(db.value(spot).as_arg())
    }

    /// Every entry of a database, those included whose time is over, in no order.
    pub fn entries(&self, db: DbIndex) -> impl Iterator<Item = EntryView<'_>> {
        let table = self.db(db).table();
        (0..table.bucket_count()).flat_map(move |bucket| {
            table.slots(bucket).iter().map(|slot| EntryView {
                key: slot.key(),
                value: slot.value().as_arg(),
                expires_at_ms: slot.expires_at_ms(),
            })
        })
    }

    /// Does again what the payload of a log record says was done. Nothing expires meanwhile.
    ///
    /// On an error the commands before the one that failed have been applied.
    pub fn apply(&mut self, mut db: DbIndex, payload: &[u8]) -> Result<(), ApplyError> {
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
    ) -> Result<(), ApplyError> {
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
            let expires = cfg!(feature = "plant-expiry-in-replay");
            let mut context = Context {
                keyspace: self,
                db: *db,
                args,
                now_ms: if expires { i64::MAX } else { 0 },
                reply,
                effects,
                mode: if expires { Mode::Atomic } else { Mode::Replay },
            };
            (command.run)(&mut context);
            if let Some(start) = reply.segments(0..reply.len()).next()
                && let Some(error) = start.strip_prefix(b"-")
            {
                return Err(ApplyError::Failed(String::from_utf8_lossy(error).trim().to_owned()));
            }
        }
        Ok(())
    }

    pub(crate) fn db(&self, db: DbIndex) -> &Db {
        &self.dbs[usize::from(db.0)]
    }

    pub(crate) fn db_mut(&mut self, db: DbIndex) -> &mut Db {
        &mut self.dbs[usize::from(db.0)]
    }

    /// A random number; the same sequence for the same seed.
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
        // Neither the seed nor the data belong in a message.
        f.debug_struct("Keyspace").field("dbs", &self.dbs.len()).finish_non_exhaustive()
    }
}
