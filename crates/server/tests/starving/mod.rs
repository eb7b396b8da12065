//! A machine that has no core to spare.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use crate::common::{BACK_ENDS, Client, patience, start};
use crate::info;

/// Number of keys that the client sets at once.
const KEYS_AT_ONCE: usize = 500;
const KEYS: usize = 75 * KEYS_AT_ONCE;

/// Sets some keys, so that the server has commands to serve.
fn set(client: &mut Client, first: usize, value: &str) {
    for n in first..first + KEYS_AT_ONCE {
        client.send(&["SET", &n.to_string(), value]);
    }
    for _ in 0..KEYS_AT_ONCE {
        assert_eq!(client.read(), b"+OK\r\n");
    }
}

/// The snapshot thread runs only on a core that no other thread wants (`SCHED_IDLE`). If all cores
/// are busy, it hardly runs, and the snapshot would never end. So a second thread must take over.
/// That thread has the normal class with a higher nice value, so it gets a share of a core.
#[test]
fn a_machine_without_a_core_to_spare_does_not_starve_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let directives = "snapshot-rate 256mb\nauto-aof-rewrite-percentage 0";
    let volume = dir.path().join("volume");
    let server = BACK_ENDS.iter().find_map(|back_end| start(back_end, &volume, directives));
    let server = server.expect("plain system calls are never refused");
    let mut client = server.connect();
    let value = "x".repeat(2000);
    for first in (0..KEYS).step_by(KEYS_AT_ONCE) {
        set(&mut client, first, &value);
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    spin_loop();
                }
            });
        }
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // The loop usually takes some seconds.
            let deadline = Instant::now() + 2 * patience();
            let mut started = 0;
            // If the client hardly gets a core either, the server may mistake this for a pause in
            // the load, and take the snapshot without its rate limit. Then the loop takes another
            // snapshot.
            while info(&mut client, "snapshot_starved_turns") == "0" || started == 0 {
                started += 1;
                assert!(client.call(&["BGSAVE", "SCHEDULE"]).starts_with("+Background"));
                while info(&mut client, "snapshot_saves_complete") != started.to_string() {
                    assert!(Instant::now() < deadline, "snapshot {started} does not end");
                    set(&mut client, 0, &value);
                }
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    server.stop();
}
