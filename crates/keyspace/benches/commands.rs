//! Prints what a command costs, from parsing the request to writing the reply, in CPU nanoseconds
//! and allocations.
//!
//! `cargo bench -p slimio-keyspace [KEYS]` runs commands on random keys. The number of different
//! keys is KEYS.

#![expect(clippy::print_stdout, reason = "the benchmark prints its measurements")]

use std::hint::black_box;

use slimio_keyspace::{
    AHEAD_MAX, Config, Context, DbIndex, Effects, ElementAhead, Gather, Keyspace, Mode, Outcome,
    Payload, command_table,
};
use slimio_resp::{Limits, OwnedRequest, Parser, ReplyBuf, Step};

const ROUND_LEN: usize = 200_000;

/// A server without sockets or disks.
struct Machine {
    keyspace: Keyspace,
    parser: Parser,
    reply: ReplyBuf,
    effects: Effects,
    gather: Gather,
    logs: bool,
}

impl Machine {
    fn new() -> Self {
        Self {
            keyspace: Keyspace::new(Config::default(), 0x5eed),
            parser: Parser::new(),
            reply: ReplyBuf::default(),
            effects: Effects::new(),
            gather: Gather::default(),
            logs: false,
        }
    }

    fn run(&mut self, bytes: &[u8]) {
        let step = self.parser.step(bytes, &Limits::default());
        assert_eq!(step, Step::Complete { consumed: bytes.len() });
        let args = self.parser.request().args(bytes);
        let command = command_table().lookup(&args.bytes(0)).expect("a command");
        assert!(command.accepts(args.len()));
        self.reply.clear();
        self.effects.clear();
        let outcome = (command.run)(&mut Context {
            keyspace: &mut self.keyspace,
            db: DbIndex(0),
            args,
            now_ms: 1,
            reply: &mut self.reply,
            effects: &mut self.effects,
            mode: Mode::Client,
        });
        assert!(matches!(outcome, Outcome::Reply));
        if self.logs {
            black_box(self.gather.parts(&self.effects, DbIndex(0), args).size());
        }
        black_box(self.reply.len());
    }
}

/// Replays commands as from a log: one command per index, on the key of that index. Prints
/// nanoseconds and allocations per command.
fn measure_replay(machine: &mut Machine, name: &str, indices: &[usize], args: &[&[u8]]) {
    let mut payload = Payload::default();
    let mut effects = Effects::new();
    effects.log_request(DbIndex(0));
    payload.begin(DbIndex(0));
    payload.add(&effects, OwnedRequest::from_args(args).args());
    let mut record = payload.bytes().to_vec();
    let at = record.windows(16).position(|bytes| bytes == key(0)).expect("the key");
    report(name, indices.len(), || {
        for &index in indices {
            record[at..at + 16].copy_from_slice(&key(index));
            machine
                .keyspace
                .apply(DbIndex(0), &record)
                .expect("a record that was just logged can be applied");
        }
    });
}

/// Does `count` pieces of work by calling `run`. Prints nanoseconds and allocations per piece.
fn report(name: &str, count: usize, run: impl FnOnce()) {
    let mut elapsed_ns = 0;
    let info = allocation_counter::measure(|| {
        let start_ns = cpu_ns();
        run();
        elapsed_ns = cpu_ns() - start_ns;
    });
    let (ns, allocations) = (elapsed_ns / count, info.count_total as f64 / count as f64);
    println!("{name:32} {ns:6} ns {allocations:6.2} allocations");
}

/// CPU time that this thread has used. Other processes do not affect it.
fn cpu_ns() -> usize {
    let status = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    status.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a number")
}

fn encode(args: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend(format!("${}\r\n", arg.len()).bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The key of an index. Every key has 16 bytes.
fn key(index: usize) -> [u8; 16] {
    let mut key = *b"key:000000000000";
    let mut rest = index;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// Runs one command per index. If `args` contain the key of index 0, each command gets the key of
/// its own index instead. Prints nanoseconds and allocations per command. The request's bytes are
/// in the cache, as if they had just been received.
fn measure(machine: &mut Machine, name: &str, indices: &[usize], args: &[&[u8]]) {
    let mut request = encode(args);
    let at = request.windows(16).position(|bytes| bytes == key(0));
    report(name, indices.len(), || {
        for &index in indices {
            if let Some(at) = at {
                request[at..at + 16].copy_from_slice(&key(index));
            }
            machine.run(&request);
        }
    });
}

/// Like [`measure`], for commands on the members of one set, in pipelines of [`AHEAD_MAX`]
/// requests. `is_ahead` says whether the members of a pipeline are prefetched. Allocations are not
/// counted: the printed number is always zero.
fn measure_pipelines(machine: &mut Machine, name: &str, indices: &[usize], is_ahead: bool) {
    let mut request = encode(&[name.as_bytes(), b"set", &key(0)]);
    let at = request.windows(16).position(|bytes| bytes == key(0)).expect("the member");
    let with = if is_ahead { "with" } else { "without" };
    report(&format!("{name} in pipelines {with} prefetch"), indices.len(), || {
        for pipeline in indices.chunks(AHEAD_MAX) {
            if is_ahead {
                let mut members = [[0; 16]; AHEAD_MAX];
                let mut elements = [ElementAhead::default(); AHEAD_MAX];
                for (member, &index) in members.iter_mut().zip(pipeline) {
                    *member = key(index);
                }
                for (ahead, member) in elements.iter_mut().zip(&members) {
                    *ahead = ElementAhead { hash: machine.keyspace.hash(b"set"), element: member };
                }
                machine.keyspace.bring_in(DbIndex(0), &elements[..pipeline.len()]);
            }
            for &index in pipeline {
                request[at..at + 16].copy_from_slice(&key(index));
                machine.run(&request);
            }
        }
    });
}

/// Runs commands on a long list, and then on a short one. Both begin empty.
fn measure_list(all: &[usize]) {
    let mut machine = Machine::new();
    let (element, some) = (key(0), &all[..all.len() / 10]);
    for (name, args, indices) in [
        ("RPUSH", &[&b"RPUSH"[..], b"list", &element][..], all),
        ("LPUSH", &[b"LPUSH", b"list", &element], all),
        ("LPOP", &[b"LPOP", b"list"], some),
        ("RPOP", &[b"RPOP", b"list"], some),
        ("LMOVE", &[b"LMOVE", b"list", b"list", b"LEFT", b"RIGHT"], some),
        ("LINDEX in the middle", &[b"LINDEX", b"list", b"70000"], some),
        ("LSET in the middle", &[b"LSET", b"list", b"70000", &element], some),
        ("LRANGE of 100", &[b"LRANGE", b"list", b"0", b"99"], &some[..some.len() / 10]),
        ("LRANGE of 600", &[b"LRANGE", b"list", b"0", b"599"], &some[..some.len() / 10]),
        ("LPOS of the first 1000", &[b"LPOS", b"list", b"none", b"MAXLEN", b"1000"], some),
        ("LPUSH, short list", &[b"LPUSH", b"short", &element], &all[..50]),
        ("LMOVE, short list", &[b"LMOVE", b"short", b"short", b"LEFT", b"RIGHT"], some),
    ] {
        measure(&mut machine, name, indices, args);
    }
}

fn main() {
    // Arguments that are not numbers are skipped, because Cargo adds flags of its own.
    let keys = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(100_000);
    let mut state = 1u64;
    let random: Vec<usize> = (0..ROUND_LEN)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % keys
        })
        .collect();
    let all: Vec<usize> = (0..keys).collect();
    let mut machine = Machine::new();
    measure_pipelines(&mut machine, "SADD", &all, false);
    for _ in 0..3 {
        for name in ["SISMEMBER", "SADD"] {
            measure_pipelines(&mut machine, name, &random, false);
            measure_pipelines(&mut machine, name, &random, true);
        }
    }
    println!();
    measure_list(&all);
    println!();
    for size in [64, 1000, 4096, 16_384] {
        let mut machine = Machine::new();
        let value = vec![b'v'; size];
        let longer = vec![b'v'; size + 1];
        let placeholder = key(0);
        let get: &[&[u8]] = &[b"GET", &placeholder];
        let set: &[&[u8]] = &[b"SET", &placeholder, &value];
        let set_longer: &[&[u8]] = &[b"SET", &placeholder, &longer];
        let set_ex: &[&[u8]] = &[b"SET", &placeholder, &value, b"EX", b"100"];
        let some = &random[..ROUND_LEN.min((1 << 28) / size)];
        measure(&mut machine, &format!("SET {size} new"), &all, set);
        measure(&mut machine, &format!("SET {size} over the same size"), some, set);
        measure(&mut machine, &format!("GET {size}"), some, get);
        machine.logs = true;
        measure(&mut machine, &format!("SET {size} with log payload"), some, set);
        machine.logs = false;
        measure_replay(&mut machine, &format!("SET {size} replayed"), some, set);
        measure(&mut machine, &format!("SET {size} over another size"), some, set_longer);
        measure(&mut machine, &format!("SET {size} EX"), some, set_ex);
        println!();
    }
}
