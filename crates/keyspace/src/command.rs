//! What a command is, apart from what it does: one row of a table.

use crate::context::{Context, Outcome};

/// Runs a data command. Its arguments have the count that its row demands.
pub type DataFn = fn(&mut Context<'_>) -> Outcome;

/// One row of the command table. `F` is what runs it: the server has commands of its own kind.
#[derive(Clone, Copy, Debug)]
pub struct Command<F = DataFn> {
    /// In lower case.
    pub name: &'static str,
    /// Count of arguments with the name; negative: at least so many.
    pub arity: i32,
    /// What the command does and where it is allowed.
    pub flags: Flags,
    /// Which arguments are keys.
    pub keys: KeyRange,
    /// ACL categories, `@read` and the like.
    pub categories: &'static [&'static str],
    /// Hints for clients and proxies.
    pub tips: &'static [&'static str],
    /// Which arguments are keys and what happens to them, in the words of `COMMAND INFO`.
    pub key_specs: &'static [KeySpec],
    /// Functional group, as `COMMAND DOCS` names it.
    pub group: &'static str,
    /// Version of Redis that had it first.
    pub since: &'static str,
    /// Time it takes, for people.
    pub complexity: &'static str,
    /// What it does, for people.
    pub summary: &'static str,
    /// Runs it.
    pub run: F,
}

impl<F> Command<F> {
    /// Whether the command can be called with `len` arguments, its name included.
    pub fn accepts(&self, len: usize) -> bool {
        let wanted = self.arity.unsigned_abs() as usize;
        if self.arity < 0 { len >= wanted } else { len == wanted }
    }

    /// The same row, run by something else.
    pub const fn with_run<G: Copy>(&self, run: G) -> Command<G> {
        Command {
            name: self.name,
            arity: self.arity,
            flags: self.flags,
            keys: self.keys,
            categories: self.categories,
            tips: self.tips,
            key_specs: self.key_specs,
            group: self.group,
            since: self.since,
            complexity: self.complexity,
            summary: self.summary,
            run,
        }
    }
}

/// Which arguments are keys: every `step`-th from `first` to `last`; a negative `last` counts from
/// the end of the arguments. All zero: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// Index of the first key.
    pub first: i32,
    /// Index of the last key, or how far from the end it is.
    pub last: i32,
    /// From one key to the next.
    pub step: i32,
}

impl KeyRange {
    /// No argument is a key.
    pub const NONE: KeyRange = KeyRange { first: 0, last: 0, step: 0 };

    /// Indices of the keys among `len` arguments.
    pub fn indices(self, len: usize) -> impl Iterator<Item = usize> + use<> {
        self.indices_from(0, len)
    }

    /// Indices of the keys from argument `from` on, among `len` arguments.
    pub fn indices_from(self, from: usize, len: usize) -> impl Iterator<Item = usize> + use<> {
        let len = i32::try_from(len).unwrap_or(i32::MAX);
        let last = if self.last < 0 { len + self.last } else { self.last.min(len - 1) };
        let end = if self.first == 0 { 0 } else { last + 1 };
        let step = self.step.max(1) as usize;
        let first = self.first as usize;
        let first = first + from.saturating_sub(first).next_multiple_of(step);
        (first..end.max(0) as usize).step_by(step)
    }
}

/// A part of the keys of a command and what happens to them, as `COMMAND INFO` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpec {
    /// For people; empty if there is nothing to say.
    pub notes: &'static str,
    /// `RO`, `RW`, `OW`, `RM` and what else happens to the key.
    pub flags: &'static [&'static str],
    /// Index of the first key.
    pub begin: i32,
    /// Last key, counted from the first; negative: from the end of the arguments.
    pub last: i32,
    /// From one key to the next.
    pub step: i32,
    /// With a negative `last`, the fraction of the arguments that are keys; 0 and 1: all.
    pub limit: i32,
}

impl KeySpec {
    /// Which arguments these keys are. No command here has a limit to them.
    pub fn range(&self) -> KeyRange {
        let last = if self.last < 0 { self.last } else { self.begin + self.last };
        KeyRange { first: self.begin, last, step: self.step }
    }
}

/// Flags of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u32);

/// Names the flags and, where `COMMAND INFO` shows them, what it calls them, in its order.
macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $text:literal;)*) => {
        impl Flags {
            $($(#[$doc])* pub const $name: Flags = Flags(1 << $bit);)*

            const NAMES: &[(Flags, &str)] = &[$((Flags::$name, $text)),*];
        }
    };
}

flags! {
    /// May change the data set.
    WRITE = 0, "write";
    /// Only reads the data set.
    READONLY = 1, "readonly";
    /// May need more memory: refused when there is none.
    DENYOOM = 2, "denyoom";
    /// Takes a module's word for what it does.
    MODULE = 3, "module";
    /// For administrators.
    ADMIN = 4, "admin";
    /// Publishes or subscribes.
    PUBSUB = 5, "pubsub";
    /// Not allowed in scripts.
    NOSCRIPT = 6, "noscript";
    /// May wait for something to happen.
    BLOCKING = 7, "blocking";
    /// Allowed while data is being loaded.
    LOADING = 8, "loading";
    /// Allowed on a replica that has lost its master.
    STALE = 9, "stale";
    /// Not shown by `MONITOR`.
    SKIP_MONITOR = 10, "skip_monitor";
    /// Not kept by `SLOWLOG`.
    SKIP_SLOWLOG = 11, "skip_slowlog";
    /// Allowed on a hash slot that is being imported.
    ASKING = 12, "asking";
    /// Takes constant or logarithmic time.
    FAST = 13, "fast";
    /// Allowed before authentication.
    NO_AUTH = 14, "no_auth";
    /// May replicate though it does not write.
    MAY_REPLICATE = 15, "may_replicate";
    /// Its keys may be left out.
    NO_MANDATORY_KEYS = 16, "no_mandatory_keys";
    /// Not allowed while data is being loaded beside the old.
    NO_ASYNC_LOADING = 17, "no_async_loading";
    /// Not allowed in a transaction.
    NO_MULTI = 18, "no_multi";
    /// Allowed while a script runs for too long.
    ALLOW_BUSY = 19, "allow_busy";
    /// Its keys are found by running code.
    MOVABLEKEYS = 20, "movablekeys";
    /// The reply depends on which keys a whole database holds.
    WHOLE_DB = 21, "";
    /// Makes room: allowed when the log has little of it left.
    FREES = 22, "";
    /// Its effect may be longer than its request by a number of extended precision.
    LONG_EFFECT = 23, "";
    /// Looks its keys up in two databases.
    TWO_DBS = 24, "";
    /// Takes in many arguments in steps, for a client.
    IN_STEPS = 25, "";
}

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);

    /// These flags and those.
    #[must_use]
    pub const fn and(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Whether all of `other` are among these.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// The names that `COMMAND INFO` shows, in its order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES
            .iter()
            .filter(move |(flag, name)| self.has(*flag) && !name.is_empty())
            .map(|(_, name)| *name)
    }
}

/// Finds commands by name. Made once, from rows sorted by name.
#[derive(Clone, Debug)]
pub struct CommandTable<F: 'static = DataFn> {
    rows: Vec<Command<F>>,
    /// Open addressing; `EMPTY` or the index of a row.
    places: Vec<u16>,
}

const EMPTY: u16 = u16::MAX;

impl<F> CommandTable<F> {
    /// A table of rows.
    ///
    /// Panics if they are not sorted by name, or a name is there twice or not in lower case.
    pub fn new(rows: Vec<Command<F>>) -> Self {
        assert!(rows.is_sorted_by(|a, b| a.name < b.name), "rows are sorted by name");
        assert!(rows.len() < EMPTY as usize);
        let mut places = vec![EMPTY; (rows.len() * 4).next_power_of_two()];
        for (index, row) in rows.iter().enumerate() {
            assert!(!row.name.bytes().any(|byte| byte.is_ascii_uppercase()), "{}", row.name);
            let mut place = hash(row.name.as_bytes()) & (places.len() - 1);
            while places[place] != EMPTY {
                place = (place + 1) & (places.len() - 1);
            }
            places[place] = index as u16;
        }
        Self { rows, places }
    }

    /// The command of that name, letter case aside.
    pub fn lookup(&self, name: &[u8]) -> Option<&Command<F>> {
        let mut place = hash(name) & (self.places.len() - 1);
        loop {
            let row = self.rows.get(self.places[place] as usize)?;
            if row.name.as_bytes().eq_ignore_ascii_case(name) {
                return Some(row);
            }
            place = (place + 1) & (self.places.len() - 1);
        }
    }

    /// All commands, sorted by name.
    pub fn rows(&self) -> &[Command<F>] {
        &self.rows
    }
}

/// Letter case aside. Names are few and known, so this need not withstand an attack.
fn hash(name: &[u8]) -> usize {
    let mut hash = name.len() as u64;
    for &byte in name.iter().take(24) {
        hash = (hash.rotate_left(5) ^ u64::from(byte | 0x20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    (hash >> 40) as usize
}
