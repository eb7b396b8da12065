//! The generator against a server that stalls on purpose, and against one that talks nonsense.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails the test")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, mpsc};
use std::thread;
use std::time::Duration;

use slimio_bench::address::Address;
use slimio_bench::error::BenchError;
use slimio_bench::load::{Arrival, Generator, LoadConfig, PhaseReport, Until};
use slimio_bench::mix::{Mix, Op};
use slimio_bench::request::RequestWriter;
use slimio_bench::rng::Rng;
use slimio_bench::values::ValuePool;

const STALL: Duration = Duration::from_millis(300);
const CLIENTS: usize = 4;

fn writer() -> RequestWriter {
    RequestWriter::new(ValuePool::new(64, 0.5, 1))
}

/// A server that answers every SET with `reply` at once, but takes a nap of [`STALL`] at request
/// number `stall_at`, during which nobody is answered.
fn serve(reply: &'static [u8], stall_at: u64) -> Address {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let seen = Arc::new(AtomicU64::new(0));
    let awake = Arc::new(RwLock::new(()));
    thread::spawn(move || {
        for socket in listener.incoming() {
            let (seen, awake) = (Arc::clone(&seen), Arc::clone(&awake));
            let socket = socket.unwrap();
            thread::spawn(move || answer(socket, reply, stall_at, &seen, &awake));
        }
    });
    address
}

fn answer(
    mut socket: TcpStream,
    reply: &[u8],
    stall_at: u64,
    seen: &AtomicU64,
    awake: &RwLock<()>,
) {
    let mut request = Vec::new();
    writer().write(Op::Set { key: 0 }, 1, &mut Rng::new(1), &mut request);
    while socket.read_exact(&mut request).is_ok() {
        if seen.fetch_add(1, Ordering::Relaxed) == stall_at {
            let _asleep = awake.write().unwrap();
            let (_held_open, nobody_sends) = mpsc::channel::<()>();
            assert!(nobody_sends.recv_timeout(STALL).is_err());
        }
        let _awake = awake.read().unwrap();
        if socket.write_all(reply).is_err() {
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
    let mut generator = connect(serve(b"+OK\r\n", 500), Arrival::Fixed { per_s: 2000.0 });
    let report = generator.run(Until::Elapsed(Duration::from_secs(1))).unwrap();

    // 600 requests fall due in the stall of 300 ms; 400 of them more than 100 ms before its end.
    let slow = slower_than(&report, Duration::from_millis(100));
    assert!((350..=650).contains(&slow), "{slow} requests waited over 100 ms");
    assert!(report.latency_us_max() >= 290_000.0, "longest {} us", report.latency_us_max());
    assert!((1990..=2001).contains(&report.requests), "{} requests", report.requests);
    assert_eq!(report.never_sent, 0);
}

#[test]
fn closed_loop_counts_a_stall_once_per_connection() {
    let mut generator = connect(serve(b"+OK\r\n", 500), Arrival::Closed);
    let report = generator.run(Until::Requests(2000)).unwrap();
    let slow = slower_than(&report, Duration::from_millis(100));
    assert!((1..=CLIENTS as u64).contains(&slow), "{slow} requests waited over 100 ms");
    assert_eq!(report.requests, 2000);
}

#[test]
fn error_replies_are_counted_and_quoted() {
    let mut generator = connect(serve(b"-OOM no room\r\n", u64::MAX), Arrival::Closed);
    let report = generator.run(Until::Requests(100)).unwrap();
    assert_eq!((report.requests, report.errors), (100, 100));
    assert_eq!(report.first_error.as_deref(), Some("OOM no room"));
}

#[test]
fn a_reply_of_the_wrong_kind_ends_the_run() {
    let mut generator = connect(serve(b":1\r\n", u64::MAX), Arrival::Closed);
    let refused = generator.run(Until::Requests(100));
    assert!(matches!(refused, Err(BenchError::Reply(_))), "{refused:?}");
}
