//! What happens in a life: the steps that clients send, and how the life ends. A life is the time
//! from a start of the server until its disk dies.

use proptest::prelude::*;

use crate::common::encode;

/// Number of databases that are used.
pub(crate) const DB_COUNT: u8 = 3;
/// Number of keys that are used in each database.
pub(crate) const KEY_COUNT: u8 = 7;
/// When the first life begins, in milliseconds since 1970.
pub(crate) const FIRST_MS: i64 = 1_700_000_000_000;
/// A date after the end of every test.
const FAR_MS: i64 = 4_102_444_800_000;
/// Most keys that expire do so within this time after the first life's start, in milliseconds. By
/// the servers' clock, all lives together take about as long.
pub(crate) const NEAR_MS: i64 = 2000;
/// Longest value, in bytes. It is larger than one batch of the log, and larger than one piece of a
/// large string.
const VALUE_SIZE_MAX: usize = 300_000;
/// Commands that write nothing.
const READS: [&str; 5] = ["GET", "EXISTS", "STRLEN", "HLEN", "TYPE"];
/// A transaction has fewer commands than this.
const MANY_COMMANDS: usize = 3000;
/// Number of connections that send the steps, in turn.
pub(crate) const CLIENT_COUNT: usize = 3;
/// A hash with this many fields is no longer packed.
const MANY_FIELDS: u16 = 600;

/// A unit of execution: one command, or several in a transaction.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub(crate) db: u8,
    pub(crate) commands: Vec<String>,
    pub(crate) is_transaction: bool,
}

impl Unit {
    /// Whether the unit can write.
    pub(crate) fn writes(&self) -> bool {
        let is_read = |line: &String| {
            let name = line.split(' ').next().unwrap_or_default();
            READS.contains(&name) || name == "SINTERCARD"
        };
        !self.commands.iter().all(is_read)
    }

    /// Encodes the unit's requests. Returns how many replies they get.
    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) -> usize {
        let mut count = 0;
        let mut add = |line: &str| {
            encode_line(line, bytes);
            count += 1;
        };
        add(&format!("SELECT {}", self.db));
        if self.is_transaction {
            add("MULTI");
        }
        self.commands.iter().for_each(|line| add(line));
        if self.is_transaction {
            add("EXEC");
        }
        count
    }
}

/// Encodes a line as a request. A word `@SIZE` stands for a word of `SIZE` bytes.
pub(crate) fn encode_line(line: &str, bytes: &mut Vec<u8>) {
    let words: Vec<Vec<u8>> = line
        .split(' ')
        .map(|word| match word.strip_prefix('@').and_then(|size| size.parse().ok()) {
            Some(size) => (0..size).map(|at: usize| (at * 31 + size) as u8).collect(),
            None => word.as_bytes().to_vec(),
        })
        .collect();
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    bytes.extend(encode(&words));
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Run(Unit),
    /// The disk has no more space (true), or has space again (false). While the disk has no space,
    /// each step waits for the previous step, because only the replies tell which steps were
    /// refused.
    Full(bool),
    /// `BGREWRITEAOF`
    Rewrite,
    /// `BGSAVE`
    SaveInBackground,
    /// `SAVE`
    Save,
    /// `WAITAOF`
    WaitUntilDurable,
    /// `CONFIG SET appendfsync`
    Policy(&'static str),
    /// `CONFIG SET appendonly`
    Log(bool),
}

impl Step {
    /// Encodes the step's requests. Returns how many replies they get.
    pub(crate) fn encode(&self, requests: &mut Vec<u8>) -> usize {
        let line = match self {
            Self::Run(unit) => return unit.encode(requests),
            Self::Full(_) => return 0,
            Self::Rewrite => "BGREWRITEAOF",
            Self::SaveInBackground => "BGSAVE",
            Self::Save => "SAVE",
            // If the disk dies while the log resumes from a snapshot, nothing ever becomes durable,
            // because the snapshot is retried endlessly; the timeout is for this case. Otherwise,
            // the reply comes far sooner.
            Self::WaitUntilDurable => "WAITAOF 1 0 5000",
            Self::Policy(policy) => &format!("CONFIG SET appendfsync {policy}"),
            Self::Log(true) => "CONFIG SET appendonly yes",
            Self::Log(false) => "CONFIG SET appendonly no",
        };
        encode_line(line, requests);
        1
    }
}

/// Clients wait for a list, and another client then pushes an element for each of them.
#[derive(Clone, Debug)]
pub(crate) struct HandOver {
    pub(crate) db: u8,
    pub(crate) key: String,
    /// For each client that waits: the request that it sends, and the command that does the same
    /// without waiting.
    pub(crate) takers: Vec<(String, String)>,
    pub(crate) elements: Vec<String>,
}

impl HandOver {
    pub(crate) fn unit(&self, line: String) -> Unit {
        Unit { db: self.db, commands: vec![line], is_transaction: false }
    }

    /// The unit that makes the list.
    pub(crate) fn push(&self) -> Unit {
        self.unit(format!("RPUSH {} {}", self.key, self.elements.join(" ")))
    }
}

/// Steps that are sent together, `passes_ms` milliseconds after the previous batch.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) passes_ms: i64,
    /// Which client sends the steps.
    pub(crate) client: usize,
    /// How many bytes of the requests are sent at a time. Between two pieces, the server may be in
    /// any state.
    pub(crate) piece_size: usize,
    /// Whether another client waits in `WAITAOF` while the steps run.
    pub(crate) has_waiter: bool,
    /// A hand-over that happens before the steps.
    pub(crate) hands_over: Option<HandOver>,
    pub(crate) steps: Vec<Step>,
}

impl Batch {
    /// Steps that the first client sends in one piece.
    pub(crate) fn of(passes_ms: i64, steps: Vec<Step>) -> Self {
        let hands_over = None;
        Self { passes_ms, client: 0, piece_size: AT_ONCE, has_waiter: false, hands_over, steps }
    }
}

/// A piece size that is larger than any batch.
pub(crate) const AT_ONCE: usize = usize::MAX;

#[derive(Clone, Debug)]
pub(crate) struct Life {
    /// How long no server runs before this life, in milliseconds.
    pub(crate) rests_ms: i64,
    /// How much time passes while the server recovers, in milliseconds.
    pub(crate) recovers_ms: i64,
    pub(crate) batches: Vec<Batch>,
    /// The disk dies after this many operations, or when all batches have run, whichever comes
    /// first. Operations during the start are counted, unless the start has to make the volume.
    pub(crate) dies_after: u64,
    pub(crate) is_power_cut: bool,
    /// The death may leave one of several images of the disk. This number, modulo their count, says
    /// from which image the next life starts.
    pub(crate) image: usize,
    /// Number of polls during which operations that were handed to the device stay queued, as if
    /// the kernel had no memory for them.
    pub(crate) untaken_polls: u32,
    /// How the server is asked to end after the batches, before the disk dies.
    pub(crate) end: Option<End>,
}

/// An orderly end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// `SHUTDOWN`
    Plain,
    /// `SHUTDOWN SAVE`
    Save,
}

fn key() -> impl Strategy<Value = String> {
    (0..KEY_COUNT).prop_map(|key| format!("k{key}"))
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => (0..1000_u32).prop_map(|number| number.to_string()),
        6 => (1..2000_usize).prop_map(|size| format!("@{size}")),
        1 => (1..VALUE_SIZE_MAX).prop_map(|size| format!("@{size}")),
    ]
}

fn date() -> impl Strategy<Value = i64> {
    prop_oneof![
        2 => (0..1000_i64).prop_map(|ms| FAR_MS + ms),
        4 => (0..NEAR_MS).prop_map(|ms| FIRST_MS + ms),
        1 => Just(1),
    ]
}

/// A duration in milliseconds, often zero.
fn while_ms() -> impl Strategy<Value = i64> {
    prop_oneof![3 => Just(0), 2 => 1..200_i64]
}

fn db() -> impl Strategy<Value = u8> {
    0..DB_COUNT
}

fn field() -> impl Strategy<Value = String> {
    (0..5_u8).prop_map(|field| format!("f{field}"))
}

fn string_command() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (key(), value()).prop_map(|(key, value)| format!("SET {key} {value}")),
        2 => (key(), value(), date()).prop_map(|(k, v, at)| format!("SET {k} {v} PXAT {at}")),
        2 => (key(), value(), 1..300_u16).prop_map(|(k, v, ms)| format!("SET {k} {v} PX {ms}")),
        1 => (key(), value()).prop_map(|(key, value)| format!("SETNX {key} {value}")),
        2 => (key(), value()).prop_map(|(key, value)| format!("APPEND {key} {value}")),
        1 => (key(), 0..9000_u16, value()).prop_map(|(k, at, v)| format!("SETRANGE {k} {at} {v}")),
        2 => (key(), -99..99_i8).prop_map(|(key, by)| format!("INCRBY {key} {by}")),
        1 => (key(), value(), key(), value()).prop_map(|(k, v, l, w)| format!("MSET {k} {v} {l} {w}")),
        1 => key().prop_map(|key| format!("GETDEL {key}")),
        1 => (key(), 1..3_u8).prop_map(|(key, seconds)| format!("GETEX {key} EX {seconds}")),
        1 => (key(), 1..3_u8, value()).prop_map(|(k, s, v)| format!("SETEX {k} {s} {v}")),
        // The exponent decides how many digits the sum has.
        1 => (key(), 0..4900_u16).prop_map(|(key, ten)| format!("INCRBYFLOAT {key} 1e{ten}")),
    ]
}

fn read_command() -> impl Strategy<Value = String> {
    (0..READS.len(), key()).prop_map(|(read, key)| format!("{} {key}", READS[read]))
}

fn hash_command() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (key(), field(), value()).prop_map(|(k, f, v)| format!("HSET {k} {f} {v}")),
        1 => (key(), 100..MANY_FIELDS).prop_map(|(key, count)| {
            let fields: Vec<String> = (0..count).map(|n| format!("f{n} {n}")).collect();
            format!("HSET {key} {}", fields.join(" "))
        }),
        2 => (key(), field(), field()).prop_map(|(k, f, g)| format!("HDEL {k} {f} {g}")),
        1 => (key(), field()).prop_map(|(k, f)| format!("HINCRBY {k} {f} 7")),
        3 => set_command(),
        3 => list_command(),
    ]
}

/// Commands on lists. There are few different elements, so that commands often find them. Some
/// lists are large.
fn list_command() -> impl Strategy<Value = String> {
    let end = || prop_oneof![Just("LEFT"), Just("RIGHT")];
    let push = || prop_oneof![Just("LPUSH"), Just("RPUSH"), Just("RPUSHX")];
    let pop = || prop_oneof![Just("LPOP"), Just("RPOP")];
    let place = || -4..8_i16;
    prop_oneof![
        4 => (push(), key(), value(), field()).prop_map(|(p, k, v, f)| format!("{p} {k} {v} {f}")),
        1 => (push(), key(), 300..800_u16).prop_map(|(push, key, count)| {
            let elements: Vec<_> = (0..count).map(|n| format!("element:{}", n % 40)).collect();
            format!("{push} {key} {}", elements.join(" "))
        }),
        2 => (pop(), key()).prop_map(|(pop, key)| format!("{pop} {key}")),
        1 => (pop(), key(), 0..60_u8).prop_map(|(pop, key, count)| format!("{pop} {key} {count}")),
        1 => (key(), place(), value()).prop_map(|(k, at, v)| format!("LSET {k} {at} {v}")),
        1 => (key(), field(), field()).prop_map(|(k, f, g)| format!("LINSERT {k} AFTER {f} {g}")),
        1 => (key(), place(), field()).prop_map(|(k, count, f)| format!("LREM {k} {count} {f}")),
        1 => (key(), 0..60_i16, place()).prop_map(|(k, from, to)| format!("LTRIM {k} {from} {to}")),
        2 => (key(), key(), end(), end()).prop_map(|(k, l, a, b)| format!("LMOVE {k} {l} {a} {b}")),
        1 => (key(), key()).prop_map(|(k, l)| format!("RPOPLPUSH {k} {l}")),
        1 => (key(), key(), end(), 1..60_u8)
            .prop_map(|(k, l, end, count)| format!("LMPOP 2 {k} {l} {end} COUNT {count}")),
    ]
}

/// Commands on sets. `SPOP` is left out, because its replies are random: the oracle, which runs the
/// same commands, could not give the same replies.
fn set_command() -> impl Strategy<Value = String> {
    let operation = || prop_oneof![Just("SINTERSTORE"), Just("SUNIONSTORE"), Just("SDIFFSTORE")];
    prop_oneof![
        4 => (key(), -2..40_i16, field())
            .prop_map(|(k, number, text)| format!("SADD {k} {number} {} {text}", number + 1)),
        2 => (key(), -2..40_i16).prop_map(|(k, number)| format!("SADD {k} {number}")),
        1 => (key(), 100..800_u16).prop_map(|(k, count)| {
            let members: Vec<_> = (0..count).map(|n| (n * 7).to_string()).collect();
            format!("SADD {k} {}", members.join(" "))
        }),
        2 => (key(), -2..40_i16).prop_map(|(k, number)| format!("SREM {k} {number}")),
        2 => (key(), key(), -2..40_i16).prop_map(|(k, l, n)| format!("SMOVE {k} {l} {n}")),
        2 => (operation(), key(), key(), key()).prop_map(|(o, k, l, m)| format!("{o} {k} {l} {m}")),
        1 => (operation(), key(), many_keys()).prop_map(|(o, k, keys)| {
            format!("{o} {k} {}", keys.join(" "))
        }),
        1 => many_keys().prop_map(|keys| format!("SINTERCARD {} {}", keys.len(), keys.join(" "))),
    ]
}

/// More keys than some commands process in one step, but fewer than a long request has. The list
/// repeats only one or two different keys, so that all of them are often sets.
fn many_keys() -> impl Strategy<Value = Vec<String>> {
    (key(), key(), 65..200_usize).prop_map(|(one, other, count)| {
        (0..count).map(|n| if n % 3 == 0 { one.clone() } else { other.clone() }).collect()
    })
}

/// Commands that run in steps because of the number of their arguments. Some of these commands also
/// build their record in steps, and append it to the log when it is complete.
fn long_command() -> impl Strategy<Value = String> {
    let counts = 520..MANY_FIELDS;
    let words = |count: u16, word: &dyn Fn(u16) -> String| {
        (0..count).map(word).collect::<Vec<_>>().join(" ")
    };
    prop_oneof![
        (key(), counts.clone(), 1..800_u16).prop_map(move |(key, count, size)| {
            format!("HSET {key} {}", words(count, &|n| format!("f{n} @{}", size + n % 7)))
        }),
        (key(), counts.clone()).prop_map(move |(key, count)| {
            format!("HDEL {key} {}", words(2 * count, &|n| format!("f{n}")))
        }),
        (counts.clone(), 1..800_u16).prop_map(move |(count, size)| {
            let key = |n| n % u16::from(KEY_COUNT);
            format!("MSET {}", words(count, &|n| format!("k{} @{}", key(n), size + n % 7)))
        }),
        (counts, 0..KEY_COUNT).prop_map(move |(count, most)| {
            let key = |n| n % (u16::from(most) + 1);
            format!("DEL {}", words(2 * count, &|n| format!("k{}", key(n))))
        }),
    ]
}

fn key_command() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => (key(), key()).prop_map(|(key, other)| format!("DEL {key} {other}")),
        1 => key().prop_map(|key| format!("UNLINK {key}")),
        2 => (key(), key()).prop_map(|(key, other)| format!("RENAME {key} {other}")),
        1 => (key(), key()).prop_map(|(key, other)| format!("RENAMENX {key} {other}")),
        2 => (key(), key(), db()).prop_map(|(k, l, db)| format!("COPY {k} {l} DB {db} REPLACE")),
        2 => (key(), db()).prop_map(|(key, db)| format!("MOVE {key} {db}")),
        2 => (key(), date()).prop_map(|(key, at)| format!("PEXPIREAT {key} {at}")),
        1 => (key(), 1..300_u16).prop_map(|(key, ms)| format!("PEXPIRE {key} {ms}")),
        2 => key().prop_map(|key| format!("PERSIST {key}")),
    ]
}

fn command() -> impl Strategy<Value = String> {
    prop_oneof![
        12 => string_command(),
        8 => hash_command(),
        8 => key_command(),
        4 => read_command(),
        2 => long_command(),
        3 => (db(), db()).prop_map(|(db, other)| format!("SWAPDB {db} {other}")),
        1 => Just("FLUSHDB".to_owned()),
        1 => Just("FLUSHALL".to_owned()),
    ]
}

fn unit() -> impl Strategy<Value = Unit> {
    let one = (db(), command()).prop_map(|(db, line)| Unit {
        db,
        commands: vec![line],
        is_transaction: false,
    });
    let several = (db(), proptest::collection::vec(command(), 2..5))
        .prop_map(|(db, commands)| Unit { db, commands, is_transaction: true });
    let reads = (db(), proptest::collection::vec(read_command(), 2..8))
        .prop_map(|(db, commands)| Unit { db, commands, is_transaction: true });
    // Transactions whose records are longer than their requests.
    let longer = (db(), key(), 100..MANY_COMMANDS).prop_map(|(db, key, count)| Unit {
        db,
        commands: vec![format!("EXPIRE {key} 9"); count],
        is_transaction: true,
    });
    prop_oneof![40 => one, 8 => several, 2 => reads, 1 => longer]
}

/// Sets values until the log is full or nearly full, and sends a few more batches. After these
/// batches, either space comes back, or it does not come back in this life.
fn filling() -> impl Strategy<Value = Vec<Batch>> {
    let fill = (db(), key(), 100_000..VALUE_SIZE_MAX).prop_map(|(db, key, size)| {
        let commands = vec![format!("SET {key} @{size}")];
        Step::Run(Unit { db, commands, is_transaction: false })
    });
    let many = proptest::collection::vec(fill, 6..20);
    let rest = proptest::collection::vec(batch(), 1..6);
    (many, rest, any::<bool>()).prop_map(|(mut steps, mut batches, ends)| {
        steps.insert(0, Step::Full(true));
        batches.insert(0, Batch::of(0, steps));
        if ends {
            batches.push(Batch::of(0, vec![Step::Full(false)]));
        }
        batches
    })
}

fn batch() -> impl Strategy<Value = Batch> {
    let steps = proptest::collection::vec(step(), 1..10);
    let piece_size = prop_oneof![2 => Just(AT_ONCE), 1 => 500..5000_usize];
    let waits = (prop::bool::weighted(0.2), prop::option::weighted(0.2, hand_over()));
    (while_ms(), 0..CLIENT_COUNT, piece_size, waits, steps).prop_map(
        |(passes_ms, client, piece_size, (has_waiter, hands_over), steps)| Batch {
            passes_ms,
            client,
            piece_size,
            has_waiter,
            hands_over,
            steps,
        },
    )
}

fn hand_over() -> impl Strategy<Value = HandOver> {
    // At least one client waits, and one client is left to push.
    let takers = proptest::collection::vec((0..4_u8, key()), 1..CLIENT_COUNT);
    let elements = proptest::collection::vec(value(), CLIENT_COUNT - 1..6);
    (db(), key(), takers, elements).prop_map(|(db, key, takers, elements)| {
        let line = |(command, other): (u8, String)| match command {
            0 => (format!("BLPOP {key} 0"), format!("LPOP {key}")),
            1 => (format!("BRPOP {key} {key} 0"), format!("RPOP {key}")),
            2 => (
                format!("BLMOVE {key} {other} LEFT RIGHT 0"),
                format!("LMOVE {key} {other} LEFT RIGHT"),
            ),
            _ => (format!("BRPOPLPUSH {key} {other} 0"), format!("RPOPLPUSH {key} {other}")),
        };
        let takers = takers.into_iter().map(line).collect();
        HandOver { db, key, takers, elements }
    })
}

fn step() -> impl Strategy<Value = Step> {
    let policy = prop_oneof![Just("always"), Just("everysec"), Just("no")];
    prop_oneof![
        30 => unit().prop_map(Step::Run),
        4 => Just(Step::Rewrite),
        1 => Just(Step::SaveInBackground),
        1 => Just(Step::Save),
        1 => Just(Step::WaitUntilDurable),
        1 => policy.prop_map(Step::Policy),
        1 => any::<bool>().prop_map(Step::Log),
    ]
}

pub(crate) fn life() -> impl Strategy<Value = Life> {
    let batches = || proptest::collection::vec(batch(), 0..10);
    let full = (batches(), filling(), batches());
    let full = full.prop_map(|(before, full, behind)| [before, full, behind].concat());
    let batches = prop_oneof![3 => batches(), 1 => full];
    // The disk may die early, perhaps during recovery. It may also die later, or at the life's end.
    let dies_after = prop_oneof![1 => 0..40_u64, 3 => 0..400_u64, 1 => Just(u64::MAX / 2)];
    let end = prop_oneof![3 => Just(None), 1 => Just(Some(End::Plain)), 1 => Just(Some(End::Save))];
    let times = (while_ms(), while_ms());
    let untaken_polls = prop_oneof![7 => Just(0), 1 => 1..40_u32];
    let death = (dies_after, any::<bool>(), any::<usize>());
    (times, batches, death, untaken_polls, end).prop_map(
        |((rests_ms, recovers_ms), batches, death, untaken_polls, end)| Life {
            rests_ms,
            recovers_ms,
            batches,
            dies_after: death.0,
            is_power_cut: death.1,
            image: death.2,
            untaken_polls,
            end,
        },
    )
}
