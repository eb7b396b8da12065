//! Runs the workload of the lab's recordings against a stock server. The tests check how far the
//! server's log can grow, when snapshots begin, and which failures end the workload.
#![expect(clippy::unwrap_used, reason = "if a test cannot go on, it fails")]

mod common;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::Scratch;
use rustix::process::{Pid, Signal, kill_process};
use slimio_lab::proc::{children, deleted_files};
use slimio_lab::recorder::Workload;
use slimio_lab::server::{Policy, Server};

/// Upper limit of a SET's bytes in the log: a value of 4096 bytes, and the rest of its record.
const RECORD_BYTES: u64 = 4096 + 64;

/// A workload that takes some seconds.
fn workload() -> Workload {
    Workload { repetitions: 2, ..Workload::scaled(64 << 20) }
}

/// A stock server whose snapshots take a second, so that its log grows much during each snapshot.
fn slow_stock(scratch: &Scratch) -> Option<Server> {
    let mut config = scratch.stock(Policy::EverySec)?;
    config.extra = ["--rdb-key-save-delay", "500"].map(Into::into).to_vec();
    Some(Server::start(&config).unwrap())
}

#[test]
fn clients_are_held_back_by_all_of_the_log() {
    let scratch = Scratch::new();
    let Some(server) = slow_stock(&scratch) else { return };
    let workload = workload();
    // Now and then, the workload checks whether the log has more than `hold_back_bytes`. The log
    // may exceed this limit by the records that are logged between two checks.
    let data_bytes = workload.key_count * RECORD_BYTES;
    let most = data_bytes + workload.hold_back_bytes + workload.requests / 32 * RECORD_BYTES;
    let (times, largest) = (AtomicU64::new(0), AtomicU64::new(0));
    let look = |what: &str| {
        if what == "clients held back" {
            let info = server.client()?.info("persistence")?;
            times.fetch_add(1, Ordering::Relaxed);
            largest.fetch_max(info["aof_current_size"].trim().parse().unwrap(), Ordering::Relaxed);
        }
        Ok(())
    };
    workload.drive(&server, &look).unwrap();
    let (times, largest) = (times.into_inner(), largest.into_inner());
    assert!(times >= 2, "clients were held back {times} times");
    assert!(largest <= most, "the log has {largest} bytes, more than {most}");
    server.stop().unwrap();
}

/// The workload must not begin a snapshot while the server still has files open that a rewrite
/// deleted. The child that is forked to save would keep these files open.
#[test]
fn a_snapshot_begins_when_a_rewrite_has_freed_what_it_can() {
    let scratch = Scratch::new();
    let Some(server) = slow_stock(&scratch) else { return };
    // The log reaches `log_bytes`, and is rewritten, towards the end of each repetition.
    let workload = workload();
    let requests = workload.log_bytes / 4096;
    let workload = Workload { repetitions: 4, requests, ..workload };
    let times = AtomicU64::new(0);
    let look = |what: &str| {
        if what.starts_with("repetition") {
            let info = server.client()?.info("persistence")?;
            assert_eq!(info["aof_rewrite_in_progress"].trim(), "0", "{what}");
            assert_eq!(info["aof_rewrite_scheduled"].trim(), "0", "{what}");
            assert_eq!(deleted_files(server.pid())?, [] as [PathBuf; 0], "{what}");
            times.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    workload.drive(&server, &look).unwrap();
    assert_eq!(times.into_inner(), 4);
    server.stop().unwrap();
}

#[test]
fn a_rewrite_that_fails_ends_the_workload() {
    let scratch = Scratch::new();
    let Some(server) = slow_stock(&scratch) else { return };
    let is_over = AtomicBool::new(false);
    let is_begun = AtomicBool::new(false);
    let begun = |what: &str| {
        is_begun.fetch_or(what.starts_with("repetition 1"), Ordering::Relaxed);
        Ok(())
    };
    let driven = thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = server.client().unwrap();
            while !is_over.load(Ordering::Relaxed) {
                let info = client.info("persistence").unwrap();
                let is_rewriting = info["aof_rewrite_in_progress"].trim() == "1";
                if is_begun.load(Ordering::Relaxed) && is_rewriting {
                    for child in children(server.pid()).unwrap() {
                        let child = Pid::from_raw(child as i32).unwrap();
                        let _ = kill_process(child, Signal::KILL);
                    }
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        let driven = workload().drive(&server, &begun);
        is_over.store(true, Ordering::Relaxed);
        driven
    });
    let error = driven.unwrap_err().to_string();
    assert!(error.contains("BGREWRITEAOF failed: aof_last_bgrewrite_status is err"), "{error}");
    server.kill().unwrap();
}
