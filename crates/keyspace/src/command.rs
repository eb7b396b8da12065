//! The description of a command: one row of a table.

use slimio_resp::Args;

use crate::context::{Context, Outcome};
use crate::keyspace::{DbIndex, Keyspace};

/// What a request costs because of the values of its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Roughly how many elements of collections the request handles.
    pub elements: usize,
    /// Upper bound, in bytes, of the part of the effects that
    /// [`log_size_max`](Command::log_size_max) does not include.
    pub log_size: u64,
}

/// Weighs a request before it runs, in constant time for each key. A key that has expired is
/// weighed like any other key.
pub type WeighFn = fn(&Keyspace, DbIndex, Args<'_>) -> Weight;

/// Runs a data command. The count of its arguments has been checked against the command's row.
pub type DataFn = fn(&mut Context<'_>) -> Outcome;

/// One row of the command table. `F` is the type of the function that runs the command. It is a
/// parameter because the server's own commands have functions of another type.
#[derive(Clone, Copy, Debug)]
pub struct Command<F = DataFn> {
    /// The name, in lower case.
    pub name: &'static str,
    /// Count of arguments, the name included. If negative, this is the minimum count, negated.
    pub arity: i32,
    /// What the command does and where it is allowed.
    pub flags: Flags,
    /// Which arguments are keys.
    pub keys: KeyRange,
    /// ACL categories in addition to those that follow from flags and group.
    pub also: &'static [&'static str],
    /// Hints for clients and proxies.
    pub tips: &'static [&'static str],
    /// Which arguments are keys and what happens to them, in the words of `COMMAND INFO`.
    pub key_specs: &'static [KeySpec],
    /// Weighs a request. `None` if the cost of the command does not depend on the values of its
    /// keys. Also `None` if the command only reads the values, because it can read clones of them
    /// in steps.
    pub weigh: Option<WeighFn>,
    /// Functional group, as `COMMAND DOCS` names it.
    pub group: &'static str,
    /// Version of Redis that introduced the command.
    pub since: &'static str,
    /// Time complexity, for people to read.
    pub complexity: &'static str,
    /// What the command does, for people to read.
    pub summary: &'static str,
    /// Runs the command.
    pub run: F,
}

impl<F> Command<F> {
    /// Whether the command can be called with `len` arguments, its name included.
    pub fn accepts(&self, len: usize) -> bool {
        let wanted = self.arity.unsigned_abs() as usize;
        if self.arity < 0 { len >= wanted } else { len == wanted }
    }

    /// Indices of the keys of a request.
    pub fn key_indices(&self, args: Args<'_>) -> impl Iterator<Item = usize> + use<F> {
        self.key_indices_from(0, args)
    }

    /// Indices of the keys of a request, from argument `from` on.
    pub fn key_indices_from(
        &self,
        from: usize,
        args: Args<'_>,
    ) -> impl Iterator<Item = usize> + use<F> {
        let range = match self.key_specs {
            [spec] if spec.is_counted => spec.counted(args).unwrap_or(KeyRange::NONE),
            _ => self.keys,
        };
        range.indices_from(from, args.len())
    }

    /// Whether the key at this index of a request is only read.
    pub fn only_reads(&self, index: usize) -> bool {
        match self.key_specs {
            [spec] => spec.is_only_read(),
            [.., last] => last.is_only_read() && index >= last.begin as usize,
            [] => false,
        }
    }

    /// The same row with another function.
    pub const fn with_run<G: Copy>(&self, run: G) -> Command<G> {
        Command {
            name: self.name,
            arity: self.arity,
            flags: self.flags,
            keys: self.keys,
            also: self.also,
            tips: self.tips,
            key_specs: self.key_specs,
            weigh: self.weigh,
            group: self.group,
            since: self.since,
            complexity: self.complexity,
            summary: self.summary,
            run,
        }
    }
}

/// Every ACL category that a command here may have, in the order of `COMMAND INFO`.
const CATEGORIES: &[&str] = &[
    "@keyspace",
    "@read",
    "@write",
    "@set",
    "@sortedset",
    "@list",
    "@hash",
    "@string",
    "@bitmap",
    "@stream",
    "@admin",
    "@fast",
    "@slow",
    "@blocking",
    "@dangerous",
    "@connection",
    "@transaction",
];

impl<F> Command<F> {
    /// The ACL categories, `@read` and the like.
    pub fn categories(&self) -> impl Iterator<Item = &'static str> + '_ {
        let has = |flag| self.flags.has(flag);
        let is_of_data = has(Flags::READONLY) || has(Flags::WRITE);
        let follows = move |category| match category {
            "@keyspace" => is_of_data && self.group == "generic",
            "@read" => has(Flags::READONLY),
            "@write" => has(Flags::WRITE),
            "@sortedset" => self.group == "sorted-set",
            "@set" | "@list" | "@hash" | "@string" | "@bitmap" | "@stream" => {
                self.group == &category[1..]
            }
            "@admin" | "@dangerous" => has(Flags::ADMIN),
            "@fast" => has(Flags::FAST),
            "@slow" => !has(Flags::FAST),
            "@blocking" => has(Flags::BLOCKING),
            _ => false,
        };
        CATEGORIES.iter().copied().filter(move |name| follows(name) || self.also.contains(name))
    }
}

/// A row without keys or documentation.
pub(crate) const fn row(
    name: &'static str,
    arity: i32,
    flags: &'static [Flags],
    run: DataFn,
) -> Command {
    let (mut all, mut index) = (Flags::NONE, 0);
    while index < flags.len() {
        all = all.and(flags[index]);
        index += 1;
    }
    Command {
        name,
        arity,
        flags: all,
        keys: KeyRange::NONE,
        also: &[],
        tips: &[],
        key_specs: &[],
        weigh: None,
        group: "",
        since: "",
        complexity: "",
        summary: "",
        run,
    }
}

impl Command {
    /// The row with these key specs. If there are several specs, the keys of each spec come
    /// directly after the keys of the previous spec.
    pub(crate) const fn keys(self, key_specs: &'static [KeySpec]) -> Self {
        if key_specs[0].is_counted {
            return Self { key_specs, ..self };
        }
        let last = key_specs[key_specs.len() - 1].range().last;
        let keys = KeyRange { last, ..key_specs[0].range() };
        Self { keys, key_specs, ..self }
    }

    /// The row with its documentation for `COMMAND DOCS`.
    pub(crate) const fn docs(
        self,
        group: &'static str,
        since: &'static str,
        complexity: &'static str,
        summary: &'static str,
    ) -> Self {
        Self { group, since, complexity, summary, ..self }
    }

    /// The row of a command whose requests are weighed before they run.
    pub(crate) const fn weighed(self, weigh: WeighFn) -> Self {
        Self { weigh: Some(weigh), ..self }
    }

    /// The row with these additional ACL categories.
    pub(crate) const fn also(self, also: &'static [&'static str]) -> Self {
        Self { also, ..self }
    }

    /// The row with these hints for clients and proxies.
    pub(crate) const fn tips(self, tips: &'static [&'static str]) -> Self {
        Self { tips, ..self }
    }
}

/// Which arguments are keys: every `step`-th from `first` to `last`. A negative `last` counts from
/// the end of the arguments. If all three are zero, no argument is a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// Index of the first key.
    pub first: i32,
    /// Index of the last key. If negative, the index counts from the end.
    pub last: i32,
    /// Distance from one key to the next.
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
    /// Notes for people; empty if there are none.
    pub notes: &'static str,
    /// What happens to the key, as words separated by spaces. The first word is `RO`, `RW`, `OW` or
    /// `RM`.
    pub flags: &'static str,
    /// Index of the first key. If an argument counts the keys, this is the index of that argument,
    /// and the keys follow it.
    pub begin: i32,
    /// Whether an argument counts the keys.
    pub is_counted: bool,
    /// Last key, counted from the first. If negative, it counts from the end of the arguments.
    pub last: i32,
    /// Distance from one key to the next.
    pub step: i32,
    /// If `last` is negative, the arguments from `begin` on are cut into `limit` equal parts, and
    /// only the arguments of the first part are keys. If `limit` is 0 or 1, all these arguments are
    /// keys.
    pub limit: i32,
}

/// One key, at `index`. `flags` says what happens to the key.
pub const fn key(index: i32, flags: &'static str) -> KeySpec {
    KeySpec { notes: "", flags, begin: index, is_counted: false, last: 0, step: 1, limit: 0 }
}

/// Argument `index` is the count of keys. The keys follow it.
pub(crate) const fn keys_counted_at(index: i32, flags: &'static str) -> KeySpec {
    KeySpec { is_counted: true, ..key(index, flags) }
}

/// All arguments from `index` on are keys.
pub const fn keys_from(index: i32, flags: &'static str) -> KeySpec {
    KeySpec { last: -1, ..key(index, flags) }
}

/// All arguments from `index` on, except the last one, are keys.
pub(crate) const fn keys_but_last_from(index: i32, flags: &'static str) -> KeySpec {
    KeySpec { last: -2, ..key(index, flags) }
}

/// Every second argument from `index` on is a key.
pub(crate) const fn every_second_from(index: i32, flags: &'static str) -> KeySpec {
    KeySpec { step: 2, ..keys_from(index, flags) }
}

impl KeySpec {
    /// The same spec with notes for people.
    pub(crate) const fn noting(self, notes: &'static str) -> Self {
        Self { notes, ..self }
    }

    fn is_only_read(&self) -> bool {
        self.flag_names().next() == Some("RO")
    }

    /// What happens to the keys, word by word.
    pub fn flag_names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.flags.split_whitespace()
    }

    /// Which arguments of a request these keys are. `None` if an argument counts the keys, but is
    /// less than 1, is not an integer, or is more than the number of arguments after it.
    pub fn range_in(&self, args: Args<'_>) -> Option<KeyRange> {
        if self.is_counted { self.counted(args) } else { Some(self.range()) }
    }

    fn counted(&self, args: Args<'_>) -> Option<KeyRange> {
        let begin = self.begin as usize;
        let count = (begin < args.len()).then(|| args.get(begin).to_i64()).flatten()?;
        let count = i32::try_from(count).ok()?;
        let last = self.begin.checked_add(count)?;
        let is_valid = count >= 1 && (last as usize) < args.len();
        is_valid.then_some(KeyRange { first: self.begin + 1, last, step: 1 })
    }

    /// Which arguments these keys are, if no argument counts them. Ignores `limit`: no row has one.
    const fn range(&self) -> KeyRange {
        let last = if self.last < 0 { self.last } else { self.begin + self.last };
        KeyRange { first: self.begin, last, step: self.step }
    }
}

/// Flags of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u32);

/// Declares the flags with their names, in the order of `COMMAND INFO`. A flag with an empty name
/// is not shown.
macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $text:literal;)*) => {
        impl Flags {
            $($(#[$doc])* pub const $name: Flags = Flags(1 << $bit);)*

            const NAMES: &[(Flags, &str)] = &[$((Flags::$name, $text)),*];
        }

        /// The flags as bare names, for use in the rows of the command table.
        pub mod flag {
            use super::Flags;

            $($(#[$doc])* pub const $name: Flags = Flags::$name;)*
        }
    };
}

flags! {
    /// May change the data set.
    WRITE = 0, "write";
    /// Only reads the data set.
    READONLY = 1, "readonly";
    /// May need more memory, and so is refused if the memory limit is reached.
    DENYOOM = 2, "denyoom";
    /// Belongs to a module.
    MODULE = 3, "module";
    /// For administrators.
    ADMIN = 4, "admin";
    /// Publishes or subscribes.
    PUBSUB = 5, "pubsub";
    /// Not allowed in scripts.
    NOSCRIPT = 6, "noscript";
    /// May make its client wait until a key has data, or until another event.
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
    /// Not allowed while new data is loaded and the old data is still served.
    NO_ASYNC_LOADING = 17, "no_async_loading";
    /// Not allowed in a transaction.
    NO_MULTI = 18, "no_multi";
    /// Allowed while a script runs for too long.
    ALLOW_BUSY = 19, "allow_busy";
    /// Its keys are found by running code.
    MOVABLEKEYS = 20, "movablekeys";
    /// The reply depends on which keys a whole database holds.
    WHOLE_DB = 21, "";
    /// Frees memory, and so is allowed even when the log has little room left.
    FREES = 22, "";
    /// Its effect may be much longer than its request, because the effect contains an
    /// extended-precision number.
    LONG_EFFECT = 23, "";
    /// May look up its keys in two databases.
    TWO_DBS = 24, "";
    /// If a client sends the command with many arguments, processes the arguments in steps.
    IN_STEPS = 25, "";
    /// Processes a large argument in steps, because this may take much longer than the argument's
    /// size suggests.
    EXPANDS = 26, "";
}

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);

    /// These flags and `other`.
    #[must_use]
    pub const fn and(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Whether all flags of `other` are among these flags.
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

/// Finds commands by name. The table is made once, from rows that are sorted by name.
#[derive(Clone, Debug)]
pub struct CommandTable<F: 'static = DataFn> {
    rows: Vec<Command<F>>,
    /// A hash table with open addressing. Each place is `EMPTY` or the index of a row.
    places: Vec<u16>,
}

const EMPTY: u16 = u16::MAX;

impl<F> CommandTable<F> {
    /// A table of rows.
    ///
    /// Panics if the rows are not sorted by name, if a name occurs twice, or if a name is not in
    /// lower case.
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

    /// The command of that name. Letter case does not matter.
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

/// The hash of a command's name. Ignores letter case. The names in the table are few and fixed, so
/// clients cannot provoke collisions.
fn hash(name: &[u8]) -> usize {
    let mut hash = name.len() as u64;
    for &byte in name.iter().take(24) {
        hash = (hash.rotate_left(5) ^ u64::from(byte | 0x20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    (hash >> 40) as usize
}

#[cfg(test)]
mod tests {
    use slimio_resp::OwnedRequest;

    use super::*;

    #[test]
    fn keys_that_are_counted_wrongly_are_no_keys() {
        let spec = keys_counted_at(1, "RO access");
        for count in
            ["2147483647", "2147483646", "2147483648", "9223372036854775807", "-1", "0", "2", "x"]
        {
            let request = OwnedRequest::from_args(["SINTERCARD", count, "a"]);
            assert_eq!(spec.range_in(request.args()), None, "{count}");
        }
        let request = OwnedRequest::from_args(["SINTERCARD", "1", "a"]);
        assert_eq!(spec.range_in(request.args()), Some(KeyRange { first: 2, last: 2, step: 1 }));
    }
}
