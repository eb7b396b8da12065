//! Prints the memory that a key takes, in this keyspace and in stock `redis-server`.
//!
//! `cargo run --release -p slimio-keyspace --example memory [COUNT]` inserts COUNT keys of 16 bytes
//! with values of several sizes, and then inserts hashes, sets and lists. Each kind of data is
//! inserted in a process of its own; the processes run one after the other. Counted bytes are those
//! that `maxmemory` limits. The allocator and the kernel should report about as many bytes.

#![expect(clippy::print_stdout, reason = "the example prints its measurements")]

mod stock;

use std::process::Command;

use slimio_keyspace::{Config, Context, DbIndex, Effects, Keyspace, Mode, Outcome, command_table};
use slimio_resp::{OwnedRequest, ReplyBuf};
use stock::Stock;

/// The server's allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const VALUE_SIZES: [usize; 6] = [16, 64, 512, 1024, 4096, 5000];

const KEY_COUNT: usize = 1_000_000;

/// Limit of the total size in bytes of all values of one run.
const TOTAL_SIZE_MAX: usize = 1 << 30;

/// For each run with hashes: the count of keys, the count of fields of each hash, and the bytes of
/// a field and of a value.
const HASHES: [[usize; 4]; 6] = [
    [200_000, 5, 16, 16],
    [200_000, 10, 10, 10],
    [20_000, 100, 10, 10],
    [20_000, 100, 16, 16],
    [20_000, 100, 16, 64],
    [1, 1_000_000, 16, 64],
];

/// For each run with sets: the count of keys, the count of members of each set, and the bytes of a
/// member. If a member has 0 bytes here, the members are integers.
const SETS: [[usize; 3]; 5] =
    [[200_000, 5, 16], [20_000, 100, 16], [20_000, 100, 0], [1, 1_000_000, 16], [1, 1_000_000, 0]];

/// The same for lists: the count of keys, the count of elements of each list, and the bytes of an
/// element. If an element has 0 bytes here, the elements are integers.
const LISTS: [[usize; 3]; 5] =
    [[200_000, 5, 16], [20_000, 100, 16], [20_000, 100, 0], [1, 1_000_000, 16], [1, 1_000_000, 0]];

/// Count of fields, members or elements that one command adds.
const ELEMENTS_PER_COMMAND: usize = 100;

/// The commands that insert data.
const VERBS: [&str; 4] = ["SET", "HSET", "SADD", "RPUSH"];

const HEAD: &str =
    "counted B | allocated B | resident B | redis used_memory B | redis resident B |";

/// The data to insert: keys, each of which holds a string, a hash, a set or a list.
#[derive(Clone, Copy)]
struct Shape {
    /// The command that inserts the data.
    verb: &'static str,
    keys: usize,
    /// Fields, members or elements of each key; 0 for a string.
    elements: usize,
    /// Bytes of a field, member or element; 0 if members or elements are integers.
    element_size: usize,
    /// Bytes of a value; 0 for sets and lists.
    value_size: usize,
    expiring: bool,
}

impl Shape {
    fn to_args(self) -> [String; 6] {
        let verb =
            VERBS.iter().position(|verb| *verb == self.verb).expect("each verb is one of `VERBS`");
        let expiring = usize::from(self.expiring);
        [verb, self.keys, self.elements, self.element_size, self.value_size, expiring]
            .map(|n| n.to_string())
    }

    fn from_args(mut args: impl Iterator<Item = String>) -> Self {
        let mut number = || args.next().and_then(|arg| arg.parse().ok()).expect("a number");
        let verb = VERBS[number()];
        let (keys, elements) = (number(), number());
        let (element_size, value_size) = (number(), number());
        Self { verb, keys, elements, element_size, value_size, expiring: number() == 1 }
    }

    /// The number by which the measured bytes are divided. For hashes, sets and lists, this is the
    /// count of all fields, members or elements. For strings, this is the count of all keys.
    fn count(self) -> usize {
        self.keys * self.elements.max(1)
    }

    fn commands_per_key(self) -> usize {
        self.elements.div_ceil(ELEMENTS_PER_COMMAND).max(1)
    }

    fn command_count(self) -> usize {
        self.keys * self.commands_per_key()
    }

    /// One of the commands that insert the data.
    fn command(self, index: usize) -> Vec<Vec<u8>> {
        let (key, part) = (index / self.commands_per_key(), index % self.commands_per_key());
        // Values are letters, because Redis would store a number in another form.
        let value = |n: usize| (0..self.value_size).map(|i| b'a' + ((i + n) % 26) as u8).collect();
        let name = format!("key:{key:012}").into_bytes();
        if self.elements > 0 {
            let first = part * ELEMENTS_PER_COMMAND;
            let mut args = vec![self.verb.as_bytes().to_vec(), name];
            for n in first..self.elements.min(first + ELEMENTS_PER_COMMAND) {
                args.push(self.element(n).into_bytes());
                args.extend((self.verb == "HSET").then(|| value(n)));
            }
            return args;
        }
        let mut args = vec![self.verb.as_bytes().to_vec(), name, value(key)];
        if self.expiring {
            args.extend([b"EX".to_vec(), b"100000".to_vec()]);
        }
        args
    }

    /// The name of a field, a member, or an element.
    fn element(self, n: usize) -> String {
        match self.element_size {
            0 => n.to_string(),
            size => format!("f{n:0width$}", width = size - 1),
        }
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let first = args.next();
    if first.as_deref() == Some("--fill") {
        let [counted, allocated, resident] = fill(Shape::from_args(args));
        println!("{counted:.1} {allocated:.1} {resident:.1}");
        return;
    }
    let count = first.and_then(|arg| arg.parse().ok()).unwrap_or(KEY_COUNT);
    println!("For each key:\n\n| value | expires | keys | {HEAD}");
    println!("|---|---|---|---|---|---|---|---|");
    for value_size in VALUE_SIZES {
        for expiring in [false, true] {
            let keys = count.min(TOTAL_SIZE_MAX / value_size);
            let bytes = measure(Shape {
                verb: "SET",
                keys,
                elements: 0,
                element_size: 0,
                value_size,
                expiring,
            });
            println!("| {value_size} | {expiring} | {keys} | {bytes} |");
        }
    }
    println!("\nFor each field:\n\n| field | value | fields | keys | {HEAD}");
    println!("|---|---|---|---|---|---|---|---|---|");
    for [keys, elements, element_size, value_size] in HASHES {
        let (keys, elements) = (keys.min(count), elements.min(count));
        let (verb, expiring) = ("HSET", false);
        let shape = Shape { verb, keys, elements, element_size, value_size, expiring };
        println!("| {element_size} | {value_size} | {elements} | {keys} | {} |", measure(shape));
    }
    for (verb, name, shapes) in [("SADD", "member", SETS), ("RPUSH", "element", LISTS)] {
        println!("\nFor each {name}:\n\n| {name} | {name}s | keys | {HEAD}");
        println!("|---|---|---|---|---|---|---|---|");
        for [keys, elements, element_size] in shapes {
            let (keys, elements) = (keys.min(count), elements.min(count));
            let (value_size, expiring) = (0, false);
            let shape = Shape { verb, keys, elements, element_size, value_size, expiring };
            let size = if element_size == 0 { "integer".into() } else { element_size.to_string() };
            println!("| {size} | {elements} | {keys} | {} |", measure(shape));
        }
    }
}

/// Measures the bytes per key or element, in this keyspace and in a stock server. Returns the
/// results as the columns of a row.
fn measure(shape: Shape) -> String {
    let program = std::env::current_exe().expect("this program");
    let output =
        Command::new(program).arg("--fill").args(shape.to_args()).output().expect("it runs");
    let ours = String::from_utf8_lossy(&output.stdout).trim().replace(' ', " | ");
    let redis = redis(shape).map_or("not | installed".to_owned(), |[used, resident]| {
        format!("{used:.1} | {resident:.1}")
    });
    format!("{ours} | {redis}")
}

/// Fills a keyspace. Returns the counted, allocated and resident bytes per key or element.
fn fill(shape: Shape) -> [f64; 3] {
    let mut keyspace = Keyspace::new(Config::default(), 0x5eed);
    let (mut reply, mut effects) = (ReplyBuf::default(), Effects::new());
    let (allocated, resident) = (allocated_size(), resident_size());
    for index in 0..shape.command_count() {
        let request = OwnedRequest::from_args(shape.command(index));
        let command = command_table().lookup(&request.args().bytes(0)).expect("a command");
        reply.clear();
        effects.clear();
        let outcome = (command.run)(&mut Context {
            keyspace: &mut keyspace,
            db: DbIndex(0),
            args: request.args(),
            now_ms: 1,
            reply: &mut reply,
            effects: &mut effects,
            // Every command runs to its end without a break.
            mode: Mode::Atomic,
        });
        assert!(matches!(outcome, Outcome::Reply));
    }
    assert_eq!(keyspace.dbsize(DbIndex(0)), shape.keys);
    let bytes = [keyspace.used_bytes(), allocated_size() - allocated, resident_size() - resident];
    bytes.map(|bytes| bytes as f64 / shape.count() as f64)
}

fn allocated_size() -> usize {
    tikv_jemalloc_ctl::epoch::advance().expect("jemalloc");
    tikv_jemalloc_ctl::stats::allocated::read().expect("jemalloc")
}

fn resident_size() -> usize {
    let status =
        std::fs::read_to_string("/proc/self/status").expect("Linux provides the status file");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS"))
        .expect("the status file has a line with VmRSS");
    let digits: String = line.chars().filter(char::is_ascii_digit).collect();
    digits.parse::<usize>().expect("a number") * 1024
}

/// Bytes per key or element in a stock server, as counted by the server and by the kernel;
/// `None` if no stock server is installed.
fn redis(shape: Shape) -> Option<[f64; 2]> {
    const BATCH_LEN: usize = 100;
    let mut stock = Stock::start()?;
    let before = ["used_memory", "used_memory_rss"].map(|field| stock.info(field));
    for start in (0..shape.command_count()).step_by(BATCH_LEN) {
        let end = shape.command_count().min(start + BATCH_LEN);
        let requests: Vec<_> = (start..end).map(|index| shape.command(index)).collect();
        assert!(stock.run(&requests).iter().all(|reply| !reply.starts_with(b"-")));
    }
    let after = ["used_memory", "used_memory_rss"].map(|field| stock.info(field));
    Some([0, 1].map(|i| (after[i] - before[i]) as f64 / shape.count() as f64))
}
