//! What a command costs from its bytes to the bytes of its reply: nanoseconds, and allocations.
//!
//! `cargo bench -p slimio-keyspace [KEYS]`: random keys out of so many.

use std::hint::black_box;
use std::time::Instant;

use slimio_keyspace::{
    Config, Context, DbIndex, Effects, Keyspace, Mode, Outcome, Payload, command_table,
};
use slimio_resp::{Limits, Parser, ReplyBuf, Step};

const ROUND_LEN: usize = 200_000;

/// As a server has it, without sockets and disks.
struct Machine {
    keyspace: Keyspace,
    parser: Parser,
    reply: ReplyBuf,
    effects: Effects,
    payload: Payload,
    logs: bool,
}

impl Machine {
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
            self.payload.begin(DbIndex(0));
            self.payload.add(&self.effects, args);
            black_box(self.payload.bytes());
        }
        black_box(self.reply.len());
    }
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

/// Runs one command per index; prints nanoseconds and allocations per command.
fn measure(machine: &mut Machine, name: &str, indices: &[usize], make: &dyn Fn(&[u8]) -> Vec<u8>) {
    let requests: Vec<Vec<u8>> =
        indices.iter().map(|index| make(format!("key:{index:012}").as_bytes())).collect();
    let mut elapsed = std::time::Duration::ZERO;
    let info = allocation_counter::measure(|| {
        let start = Instant::now();
        for request in &requests {
            machine.run(request);
        }
        elapsed = start.elapsed();
    });
    let count = requests.len();
    let ns = elapsed.as_nanos() as usize / count;
    println!("{name:32} {ns:6} ns {:6.2} allocations", info.count_total as f64 / count as f64);
}

fn main() {
    // Cargo hands over flags of its own.
    let keys = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(100_000);
    let mut state = 1u64;
    let random: Vec<usize> = (0..ROUND_LEN)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % keys
        })
        .collect();
    let all: Vec<usize> = (0..keys).collect();
    for size in [64, 1000, 4096, 16_384] {
        let mut machine = Machine {
            keyspace: Keyspace::new(Config::default(), 0x5eed),
            parser: Parser::new(),
            reply: ReplyBuf::default(),
            effects: Effects::new(),
            payload: Payload::default(),
            logs: false,
        };
        let value = vec![b'v'; size];
        let longer = vec![b'v'; size + 1];
        let get = |key: &[u8]| encode(&[b"GET", key]);
        let set = |key: &[u8]| encode(&[b"SET", key, &value]);
        let set_longer = |key: &[u8]| encode(&[b"SET", key, &longer]);
        let set_ex = |key: &[u8]| encode(&[b"SET", key, &value, b"EX", b"100"]);
        for part in all.chunks(20_000.min(keys)).take(1) {
            measure(&mut machine, &format!("SET {size} new"), part, &set);
        }
        for part in all.chunks(20_000.min(keys)).skip(1) {
            part.iter().for_each(|i| machine.run(&set(format!("key:{i:012}").as_bytes())));
        }
        let some = &random[..ROUND_LEN.min((1 << 28) / size)];
        measure(&mut machine, &format!("SET {size} over the same size"), some, &set);
        measure(&mut machine, &format!("GET {size}"), some, &get);
        machine.logs = true;
        measure(&mut machine, &format!("SET {size} with log payload"), some, &set);
        machine.logs = false;
        measure(&mut machine, &format!("SET {size} over another size"), some, &set_longer);
        measure(&mut machine, &format!("SET {size} EX"), some, &set_ex);
        println!();
    }
}
