//! Tests the load generator with a server that stalls on purpose, and with servers that reply with
//! an error or with nonsense.

#![expect(clippy::unwrap_used, reason = "if a helper fails, the test fails")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};
use slimio_lab::address::Address;
use slimio_lab::error::BenchError;
use slimio_lab::load::{Arrival, Generator, LoadConfig, PhaseReport, Until};
use slimio_lab::mix::{Mix, Op};
use slimio_lab::request::RequestWriter;
use slimio_lab::values::ValuePool;

const STALL: Duration = Duration::from_secs(1);
/// A request that does not wait for the [`STALL`] takes less than this, even on a busy machine.
const SLOW: Duration = Duration::from_millis(500);
const CLIENTS: usize = 4;
/// Requests per second. Even a busy machine can serve several times as many. If it could not,
/// requests that become due after the stall would wait long behind those that became due during the
/// stall.
const PER_SECOND: f64 = 200.0;

fn writer() -> RequestWriter {
    RequestWriter::new(ValuePool::new(64, 0.5, 1))
}

/// A server that answers every SET with `reply` at once, but sleeps for [`STALL`] at request number
/// `stall_at`. Meanwhile, no client gets an answer.
struct Stalling {
    reply: &'static [u8],
    stall_at: u64,
    seen: AtomicU64,
    /// How long the server slept: at least [`STALL`].
    slept: RwLock<Duration>,
}

/// Starts a [`Stalling`] server.
fn serve(reply: &'static [u8], stall_at: u64) -> (Address, Arc<Stalling>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let (seen, slept) = (AtomicU64::new(0), RwLock::new(Duration::ZERO));
    let server = Arc::new(Stalling { reply, stall_at, seen, slept });
    let served = Arc::clone(&server);
    thread::spawn(move || {
        for socket in listener.incoming() {
            let (served, socket) = (Arc::clone(&served), socket.unwrap());
            thread::spawn(move || answer(socket, &served));
        }
    });
    (address, server)
}

fn answer(mut socket: TcpStream, server: &Stalling) {
    let mut request = Vec::new();
    writer().write(Op::Set { key: 0 }, 1, &mut Rng::with_seed(1), &mut request);
    while socket.read_exact(&mut request).is_ok() {
        if server.seen.fetch_add(1, Ordering::Relaxed) == server.stall_at {
            let mut slept = server.slept.write().unwrap();
            let began = Instant::now();
            let (_held_open, nobody_sends) = mpsc::channel::<()>();
            assert!(nobody_sends.recv_timeout(STALL).is_err());
            *slept = began.elapsed();
        }
        let _awake = server.slept.read().unwrap();
        if socket.write_all(server.reply).is_err() {
            return;
        }
    }
}

fn connect(address: Address, arrival: Arrival) -> Generator {
    let config =
        LoadConfig { address, clients: CLIENTS, pipeline: 1, arrival, check_values: true, seed: 1 };
    Generator::connect(config, Mix::named("set", 100, None).unwrap(), writer()).unwrap()
}

fn slower_than(report: &PhaseReport, limit: Duration) -> u64 {
    report.latency.count_between(limit.as_nanos() as u64, u64::MAX)
}

#[test]
fn open_loop_counts_all_that_was_due_during_a_stall() {
    let (address, server) = serve(b"+OK\r\n", 50);
    let mut generator = connect(address, Arrival::Fixed { per_s: PER_SECOND });
    let report = generator.run(Until::Elapsed(STALL * 2)).unwrap();

    // The slow requests must be those that become due during the stall, at least `SLOW` before its
    // end.
    let slept = *server.slept.read().unwrap();
    let expected = slept.saturating_sub(SLOW).as_secs_f64() * PER_SECOND;
    let slow = slower_than(&report, SLOW) as f64;
    assert!((0.9..1.25).contains(&(slow / expected)), "{slow} of {expected} waited over {SLOW:?}");
    let longest = Duration::from_secs_f64(report.latency_us_max() / 1e6);
    assert!(longest >= STALL * 9 / 10, "{longest:?}");
    assert!((399..=401).contains(&report.requests), "{} requests", report.requests);
    assert_eq!(report.never_sent, 0);
}

#[test]
fn closed_loop_counts_a_stall_once_per_connection() {
    let mut generator = connect(serve(b"+OK\r\n", 500).0, Arrival::Closed);
    let report = generator.run(Until::Requests(2000)).unwrap();
    let slow = slower_than(&report, SLOW);
    assert!((1..=CLIENTS as u64).contains(&slow), "{slow} requests waited over {SLOW:?}");
    assert_eq!(report.requests, 2000);
}

#[test]
fn error_replies_are_counted_and_quoted() {
    let mut generator = connect(serve(b"-OOM no room\r\n", u64::MAX).0, Arrival::Closed);
    let report = generator.run(Until::Requests(100)).unwrap();
    assert_eq!((report.requests, report.errors), (100, 100));
    assert_eq!(report.first_error.as_deref(), Some("OOM no room"));
}

#[test]
fn a_reply_of_the_wrong_kind_ends_the_run() {
    let mut generator = connect(serve(b":1\r\n", u64::MAX).0, Arrival::Closed);
    let refused = generator.run(Until::Requests(100));
    assert!(matches!(refused, Err(BenchError::Reply(_))), "{refused:?}");
}

/// Signals stop and continue the generator while it waits for a server that sleeps. The signals
/// interrupt the wait, and the generator must not take that for a timeout.
#[test]
fn a_generator_that_was_stopped_for_a_while_goes_on() {
    let (address, server) = serve(b"+OK\r\n", 500);
    let Address::Tcp(place) = address else { unreachable!("the server has a TCP port") };
    let mut load = Command::new(env!("CARGO_BIN_EXE_slimio-lab"));
    load.args(["load", "--host", &place.to_string(), "--clients", "4", "--requests", "1000"]);
    let mut load = load.args(["--value-size", "64", "--keys", "100"]).spawn().unwrap();
    let pid = Pid::from_child(&load);
    while server.seen.load(Ordering::Relaxed) <= 500 {
        thread::yield_now();
    }
    while server.slept.try_read().is_err() {
        kill_process(pid, Signal::STOP).unwrap();
        kill_process(pid, Signal::CONT).unwrap();
    }
    assert!(load.wait().unwrap().success());
}
