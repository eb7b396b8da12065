//! Prints the CPU time that a capture takes on the thread that runs commands: the time to begin the
//! capture, the time per entry, and the time of the longest step. Also prints the CPU time of a
//! `SET` before, during and after the capture.
//!
//! `cargo run --release -p slimio-keyspace --example capture [COUNT SIZE]` captures COUNT keys of
//! 16 bytes with values of SIZE bytes. By default, one run has 250,000 values of 4096 bytes, and
//! another run has 10 million values of 16 bytes.

#![expect(clippy::print_stdout, reason = "the example prints its measurements")]

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use slimio_keyspace::{
    CaptureBudget, CaptureKind, CaptureState, Captured, Config, Context, DbIndex, Effects,
    Keyspace, Mode, Outcome, command_table,
};
use slimio_resp::{OwnedRequest, ReplyBuf};

/// The server's allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Budget of a step. About this much work fits into one iteration of an event loop.
const BUDGET: CaptureBudget = CaptureBudget { size: 256 * 1024, entries: 500 };

/// Count of commands between two steps, in the second capture. The first capture runs without
/// commands.
const COMMANDS_PER_STEP: usize = 100;

fn main() {
    let args: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    if let [count, size] = args[..] {
        return measure(count, size);
    }
    measure(250_000, 4096);
    measure(10_000_000, 16);
}

/// A keyspace with a client that sets keys.
struct Machine {
    keyspace: Keyspace,
    request: OwnedRequest,
    reply: ReplyBuf,
    effects: Effects,
    size: usize,
    state: u64,
}

impl Machine {
    fn set(&mut self, index: usize) {
        let key = format!("key:{index:012}");
        self.request = OwnedRequest::from_args([b"SET", key.as_bytes(), &vec![b'v'; self.size]]);
        self.reply.clear();
        self.effects.clear();
        let command = command_table().lookup(b"set").expect("a command");
        let outcome = (command.run)(&mut Context {
            keyspace: &mut self.keyspace,
            db: DbIndex(0),
            args: self.request.args(),
            now_ms: 1,
            reply: &mut self.reply,
            effects: &mut self.effects,
            mode: Mode::Client,
        });
        assert!(matches!(outcome, Outcome::Reply));
    }

    /// Runs `commands` SETs of random keys. Returns their CPU time.
    fn set_random(&mut self, commands: usize, keys: usize) -> Duration {
        let start = cpu_time();
        for _ in 0..commands {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let index = (self.state >> 33) as usize % keys;
            self.set(index);
        }
        cpu_time().saturating_sub(start)
    }

    /// Captures everything, with `commands` SETs between two steps. Another thread drops the
    /// captured entries, as in the server.
    fn capture(&mut self, keys: usize, commands: usize) {
        let (sender, receiver) = std::sync::mpsc::sync_channel::<Vec<Captured>>(4);
        let consumer = std::thread::spawn(move || {
            receiver.into_iter().map(|out| out.iter().map(Captured::len).sum::<usize>()).sum()
        });
        let start = cpu_time();
        self.keyspace.begin_capture(CaptureKind::PointInTime);
        let begin = cpu_time().saturating_sub(start);
        let (mut total, mut longest, mut steps) = (Duration::ZERO, Duration::ZERO, 0);
        let (mut set_time, mut waiting) = (Duration::ZERO, 0);
        while self.keyspace.capture_state() == CaptureState::Running {
            set_time += self.set_random(commands, keys);
            waiting = waiting.max(self.keyspace.capture_stats().owned_size);
            let mut out = Vec::new();
            let start = cpu_time();
            self.keyspace.capture_step(BUDGET, &mut out);
            let step = cpu_time().saturating_sub(start);
            sender.send(out).expect("the consumer is running");
            (total, longest) = (total + step, longest.max(step));
            steps += 1;
        }
        drop(sender);
        let taken: usize = consumer.join().expect("the consumer does not panic");
        assert_eq!(taken, keys, "each key is captured once");
        self.keyspace.end_capture();
        let each = total.as_nanos() / keys as u128;
        println!("  begin {begin:?}, {each} ns an entry, {steps} steps, the longest {longest:?}");
        if commands > 0 {
            // Pre-images are entries that were captured because a SET was about to change them.
            let each = set_time.as_nanos() / (commands * steps) as u128;
            println!("  SET between the steps: {each} ns; pre-images {waiting} bytes at most");
        }
    }
}

fn measure(keys: usize, size: usize) {
    let mut machine = Machine {
        keyspace: Keyspace::new(Config::default(), 0x5eed),
        request: OwnedRequest::from_args(["SET"]),
        reply: ReplyBuf::default(),
        effects: Effects::new(),
        size,
        state: 1,
    };
    println!("{keys} keys, values of {size} bytes");
    (0..keys).for_each(|index| machine.set(index));
    let rounds = 200_000;
    let each = |time: Duration| time.as_nanos() / rounds as u128;
    println!("  SET before: {} ns", each(machine.set_random(rounds, keys)));
    println!(" nothing else running:");
    machine.capture(keys, 0);
    println!("  SET after: {} ns", each(machine.set_random(rounds, keys)));
    println!(" {COMMANDS_PER_STEP} SETs between two steps:");
    machine.capture(keys, COMMANDS_PER_STEP);
    println!("  SET after: {} ns", each(machine.set_random(rounds, keys)));
}

/// CPU time that this thread has used. Other processes do not affect it.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
