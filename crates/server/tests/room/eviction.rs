//! Eviction while the log is full, and afterwards.

use std::collections::HashSet;
use std::time::Duration;

use slimio_sim::SimDisk;
use slimio_storage::layout::BATCH_MAGIC;

use super::full::{Full, always_a_way_out};
use super::{WATCHED_MS, cpu_ms, pass};
use crate::common::until;
use crate::crashes::WAL;

/// Number of the log's LBAs that the test reads: four segments.
const LOG_LBAS: u64 = 1024;

/// Fills the log. Then lets the server evict as many keys as the log can still record.
fn evict_what_may_go(full: &mut Full) {
    full.fill(&["v"]);
    let set = ["CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "maxmemory", "1"];
    assert_eq!(full.client.call(&set), "+OK\r\n");
    let mut before = String::new();
    until("eviction does not stop", || {
        pass(&mut full.client, 100.0);
        let now = full.client.call(&["DBSIZE"]);
        std::mem::replace(&mut before, now) == before
    });
    assert_ne!(before, ":0\r\n", "the log had room for every deletion");
}

/// The first block of each batch that the log has on the disk.
fn batches(disk: &SimDisk) -> HashSet<Vec<u8>> {
    let blocks = (0..LOG_LBAS).map(|lba| disk.peek(WAL, lba));
    blocks.filter(|block| block.starts_with(&BATCH_MAGIC)).collect()
}

#[test]
fn eviction_stops_where_the_log_is_full_and_does_not_spin() {
    always_a_way_out(|full| {
        evict_what_may_go(full);
        // The CPU time is measured repeatedly, because on a busy machine the last evictions take a
        // while. If the server spins, it never sleeps, so the test still fails.
        until("the server never sleeps while the log has no room", || {
            let before = cpu_ms(&mut full.client);
            pass(&mut full.client, WATCHED_MS);
            cpu_ms(&mut full.client) - before < WATCHED_MS / 2.0
        });
        assert_eq!(full.client.call(&["CONFIG", "SET", "maxmemory", "0"]), "+OK\r\n");
    });
}

#[test]
fn eviction_goes_on_when_there_is_room_though_nobody_asks() {
    let mut full = Full::new("always");
    evict_what_may_go(&mut full);
    // If a figure had changed, the server would wake up to sample it, and could then resume
    // eviction by chance. After a reset of the statistics, no figure has changed.
    assert_eq!(full.client.call(&["CONFIG", "RESETSTAT"]), "+OK\r\n");
    let before = batches(&full.disk);
    full.disk.faults(|faults| faults.full = false);
    until("eviction does not resume", || {
        std::thread::sleep(Duration::from_millis(5));
        !batches(&full.disk).is_subset(&before)
    });
    full.server.stop();
}
