//! Prints which commands took longest, in CPU time of their thread.
//!
//! `cargo run --release -p slimio-keyspace --example slowest [KEYS [VALUE_SIZE [PERCENT]]]`: the
//! ten slowest `SET`s of KEYS new keys in random order of their hashes, and then the ten slowest
//! `DEL`s of these keys. PERCENT says how many percent of the keys have an expiry.
//!
//! `… --example slowest hash [FIELDS [VALUE_SIZE]]`: the ten slowest steps of each of several
//! series of commands. The series make one hash of FIELDS fields, write to the hash while a capture
//! holds all fields, read the hash, and let it expire.
//!
//! `… --example slowest set [MEMBERS]`: the ten slowest steps of each of several series of
//! commands. The series make one set of MEMBERS members of 16 bytes, change the set while a capture
//! holds all members, draw members, combine the set with another set, and let it expire.
//!
//! `… --example slowest list [ELEMENTS]`: the ten slowest steps of each of several series of
//! commands. The series make one list of ELEMENTS elements of 16 bytes. They work at the ends, in
//! the middle and on the whole list, change the list while a capture holds all elements, and let it
//! expire.
//!
//! The time of a command includes the kernel's time to hand out memory, but not the time of other
//! processes.

#![expect(clippy::print_stdout, reason = "the example prints its measurements")]

use std::ops::Range;

use rustix::time::{ClockId, clock_gettime};
use slimio_keyspace::{
    CaptureBudget, CaptureKind, CaptureState, Captured, Config, Context, DbIndex, Effects, Gather,
    Keyspace, Mode, Outcome, command_table,
};
use slimio_resp::{OwnedRequest, ReplyBuf};

/// The server's allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const KEY_COUNT: usize = 10_000_000;
const VALUE_SIZE: usize = 64;
const SHOWN: usize = 10;

/// Limit of the commands in one series on an existing hash, set or list.
const COMMANDS: usize = 1_000_000;

/// A step of a command that was slow. Most commands are a single step.
#[derive(Clone, Copy, Debug)]
struct Slow {
    ns: u64,
    /// Count of steps before this one.
    index: usize,
    /// Bytes in use after the step.
    used: usize,
    /// How many more bytes are in use after the step than before it.
    growth: isize,
}

/// Times of a series of commands or steps.
struct Measured {
    slowest: Vec<Slow>,
    steps: usize,
    sum_ns: u64,
}

fn main() {
    let mut args = std::env::args().skip(1).peekable();
    let is_hash = args.next_if(|arg| arg == "hash").is_some();
    let is_set = args.next_if(|arg| arg == "set").is_some();
    let is_list = args.next_if(|arg| arg == "list").is_some();
    let mut number = |default| args.next().and_then(|arg| arg.parse().ok()).unwrap_or(default);
    let (count, size, percent) = (number(KEY_COUNT), number(VALUE_SIZE), number(0));
    let mut keyspace = Keyspace::new(Config::default(), 0x5eed);
    if is_hash {
        hash(&mut keyspace, count, size);
    } else if is_set {
        set(&mut keyspace, count);
    } else if is_list {
        list(&mut keyspace, count);
    } else {
        keys(&mut keyspace, count, size, percent);
    }
}

fn keys(keyspace: &mut Keyspace, count: usize, size: usize, percent: usize) {
    let value = "x".repeat(size);
    let set = |index: usize| {
        let key = format!("key:{index:012}");
        if index % 100 < percent {
            OwnedRequest::from_args(["SET", &key, &value, "EX", "1000000"])
        } else {
            OwnedRequest::from_args(["SET", &key, &value])
        }
    };
    show("SET", &measure(keyspace, 1, 0..count, set));
    let del = |index: usize| OwnedRequest::from_args(["DEL", &format!("key:{index:012}")]);
    show("DEL", &measure(keyspace, 1, 0..count, del));
}

/// Measures one large hash while it is made, written to during a capture, read, and expired.
fn hash(keyspace: &mut Keyspace, count: usize, size: usize) {
    let values = ["x", "y"].map(|letter| letter.repeat(size));
    let field = |index: usize| format!("field:{:010}", index % count);
    let set = |index: usize| OwnedRequest::from_args(["HSET", "h", &field(index), &values[0]]);
    show("HSET of new fields", &measure(keyspace, 1, 0..count, set));
    let over = |index: usize| OwnedRequest::from_args(["HSET", "h", &field(index), &values[1]]);
    show("HSET of old fields", &measure(keyspace, 1, 0..count.min(COMMANDS), over));

    let captured = capture(keyspace);
    // Successive fields are far from each other, so that each write copies a different path of the
    // tree.
    let far = |index: usize| index.wrapping_mul(7_368_787);
    let set = |index: usize| OwnedRequest::from_args(["HSET", "h", &field(far(index)), &values[0]]);
    show("HSET of old fields", &measure(keyspace, 1, 0..count.min(COMMANDS), set));
    let new = |index: usize| OwnedRequest::from_args(["HSET", "h", &format!("new:{index}"), "v"]);
    show("HSET of new fields", &measure(keyspace, 1, 0..count.min(COMMANDS), new));
    let del = |index: usize| OwnedRequest::from_args(["HDEL", "h", &field(far(index))]);
    show("HDEL", &measure(keyspace, 1, 0..count.min(COMMANDS) / 2, del));
    let all = |_| OwnedRequest::from_args(["HGETALL", "h"]);
    show("steps of HGETALL", &measure(keyspace, 1, 0..1, all));
    let random = |_| OwnedRequest::from_args(["HRANDFIELD", "h", "1000000", "WITHVALUES"]);
    show("steps of HRANDFIELD", &measure(keyspace, 1, 0..1, random));
    expire(keyspace, "h", captured);
}

/// Measures one large set while it is made, changed during a capture, drawn from, combined with
/// another set, and expired.
fn set(keyspace: &mut Keyspace, count: usize) {
    let member = |index: usize| format!("member{:010}", index % count);
    let add = |index: usize| OwnedRequest::from_args(["SADD", "s", &member(index)]);
    show("SADD of new members", &measure(keyspace, 1, 0..count, add));
    let part = |index: usize| OwnedRequest::from_args(["SADD", "part", &member(2 * index)]);
    measure(keyspace, 1, 0..(count / 10).min(COMMANDS), part);
    drop(keyspace.take_garbage());

    let captured = capture(keyspace);
    let far = |index: usize| index.wrapping_mul(7_368_787);
    let many = |name: &str, index: usize| {
        let members: Vec<String> = (0..1000).map(|at| member(far(index * 1000 + at))).collect();
        let members = members.iter().map(String::as_str);
        OwnedRequest::from_args([name, "s"].into_iter().chain(members))
    };
    let rounds = (count / 10_000).min(100);
    show("steps of SREM of 1000 members", &measure(keyspace, 1, 0..rounds, |i| many("SREM", i)));
    show("steps of SADD of 1000 members", &measure(keyspace, 1, 0..rounds, |i| many("SADD", i)));
    let words = |words: &'static [&'static str]| move |_| OwnedRequest::from_args(words);
    let large = &(count / 2).to_string();
    for (name, words) in [
        ("SPOP of one", vec!["SPOP", "s"]),
        ("steps of SPOP of 100,000", vec!["SPOP", "s", "100000"]),
        ("steps of SRANDMEMBER of 100,000", vec!["SRANDMEMBER", "s", "100000"]),
        ("steps of SRANDMEMBER of half", vec!["SRANDMEMBER", "s", large]),
        ("steps of SMEMBERS", vec!["SMEMBERS", "s"]),
        ("steps of SINTERSTORE", vec!["SINTERSTORE", "d", "s", "part"]),
        ("steps of SUNIONSTORE", vec!["SUNIONSTORE", "d", "s", "part"]),
        ("steps of SDIFFSTORE", vec!["SDIFFSTORE", "d", "s", "part"]),
        ("steps of SUNION", vec!["SUNION", "s", "part"]),
    ] {
        let request = |_| OwnedRequest::from_args(words.iter().copied());
        show(name, &measure(keyspace, 1, 0..1, request));
        drop(keyspace.take_garbage());
    }
    show("DEL", &measure(keyspace, 1, 0..1, words(&["DEL", "d"])));
    measure(keyspace, 1, 0..1, words(&["DEL", "part"]));
    expire(keyspace, "s", captured);
}

/// Measures one large list while it is made, changed during a capture, searched, cut, and expired.
fn list(keyspace: &mut Keyspace, count: usize) {
    let element = |index: usize| format!("element{:09}", index % count);
    let push = |index: usize| OwnedRequest::from_args(["RPUSH", "l", &element(index)]);
    show("RPUSH", &measure(keyspace, 1, 0..count, push));
    drop(keyspace.take_garbage());
    let captured = capture(keyspace);
    let far = |index: usize| (index.wrapping_mul(7_368_787) % count).to_string();
    let get = |index: usize| OwnedRequest::from_args(["LINDEX", "l", &far(index)]);
    show("LINDEX", &measure(keyspace, 1, 0..count.min(COMMANDS), get));
    let set = |index: usize| OwnedRequest::from_args(["LSET", "l", &far(index), &element(index)]);
    show("LSET", &measure(keyspace, 1, 0..count.min(COMMANDS), set));
    let (last, half) = (&element(count - 1), &(count / 2).to_string());
    let words = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        move |_| OwnedRequest::from_args(&words)
    };
    for (name, request) in [
        ("LPUSH", words(&["LPUSH", "l", "new"])),
        ("LPOP", words(&["LPOP", "l"])),
        ("RPOP", words(&["RPOP", "l"])),
        ("LMOVE", words(&["LMOVE", "l", "l", "LEFT", "RIGHT"])),
        ("steps of LRANGE of all", words(&["LRANGE", "l", "0", "-1"])),
        ("steps of LPOS", words(&["LPOS", "l", "none"])),
        ("steps of LINSERT", words(&["LINSERT", "l", "BEFORE", last, "new"])),
        ("steps of LREM", words(&["LREM", "l", "0", "none"])),
        ("COPY", words(&["COPY", "l", "copy"])),
        ("steps of LPOP of half", words(&["LPOP", "copy", half])),
        ("DEL", words(&["DEL", "copy"])),
        ("LTRIM to half", words(&["LTRIM", "l", half, "-1"])),
    ] {
        show(name, &measure(keyspace, 1, 0..1, request));
        drop(keyspace.take_garbage());
    }
    expire(keyspace, "l", captured);
}

/// Captures everything.
fn capture(keyspace: &mut Keyspace) -> Vec<Captured> {
    keyspace.begin_capture(CaptureKind::PointInTime);
    let mut captured = Vec::new();
    let budget = CaptureBudget { size: 1 << 20, entries: 1000 };
    while keyspace.capture_state() == CaptureState::Running {
        keyspace.capture_step(budget, &mut captured);
    }
    println!("\nwhile a capture holds the whole data set");
    captured
}

/// Lets the only key that is left expire. Then frees everything.
fn expire(keyspace: &mut Keyspace, key: &str, captured: Vec<Captured>) {
    let expire = |_| OwnedRequest::from_args(["PEXPIREAT", key, "1000"]);
    show("PEXPIREAT", &measure(keyspace, 1, 0..1, expire));
    let exists = |_| OwnedRequest::from_args(["EXISTS", key]);
    show("EXISTS that finds the key expired", &measure(keyspace, 2000, 0..1, exists));
    assert_eq!(keyspace.dbsize(DbIndex(0)), 0);
    let began_ns = cpu_ns();
    drop((captured, keyspace.take_garbage()));
    println!("freed by another thread in {} ms", (cpu_ns() - began_ns) / 1_000_000);
}

/// Runs a command for each index, and keeps the slowest steps, slowest first.
fn measure(
    keyspace: &mut Keyspace,
    now_ms: i64,
    indices: Range<usize>,
    request: impl Fn(usize) -> OwnedRequest,
) -> Measured {
    let mut slowest: Vec<Slow> = Vec::new();
    let (mut reply, mut effects, mut gather) =
        (ReplyBuf::default(), Effects::new(), Gather::default());
    let (mut steps, mut sum_ns) = (0, 0);
    for index in indices {
        let request = request(index);
        let args = request.args();
        reply.clear();
        let command = command_table().lookup(&args.bytes(0)).expect("a command");
        let mut outcome = None;
        while !matches!(outcome, Some(Outcome::Reply)) {
            let used_before = keyspace.used_bytes();
            effects.clear();
            let began_ns = cpu_ns();
            let mut context = Context {
                keyspace,
                db: DbIndex(0),
                args,
                now_ms,
                reply: &mut reply,
                effects: &mut effects,
                mode: Mode::Client,
            };
            outcome = Some(match outcome {
                None => (command.run)(&mut context),
                Some(Outcome::Yield(yielded)) => yielded.resume(&mut context),
                Some(other) => panic!("unexpected outcome: {other:?}"),
            });
            std::hint::black_box(gather.parts(&effects, DbIndex(0), args).size());
            let ns = cpu_ns() - began_ns;
            (steps, sum_ns) = (steps + 1, sum_ns + ns);
            if slowest.last().is_none_or(|last| ns > last.ns) || slowest.len() < SHOWN {
                let used = keyspace.used_bytes();
                let growth = used as isize - used_before as isize;
                let at = slowest.partition_point(|slow| slow.ns >= ns);
                slowest.insert(at, Slow { ns, index: steps - 1, used, growth });
                slowest.truncate(SHOWN);
            }
        }
    }
    Measured { slowest, steps, sum_ns }
}

fn show(name: &str, measured: &Measured) {
    let Measured { slowest, steps, sum_ns } = measured;
    println!("the slowest of {steps} {name}, which took {} ns on average", sum_ns / *steps as u64);
    println!("| CPU us | steps before it | MB in use | bytes more |");
    println!("|---|---|---|---|");
    for Slow { ns, index, used, growth } in slowest {
        println!("| {} | {index} | {} | {growth} |", ns / 1000, used >> 20);
    }
}

/// CPU time of this thread.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
