//! Runs commands on large sets with one client, and measures how long another client waits
//! meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::client::{Client, Reply};
use crate::error::Result;
use crate::run::RunResult;
use crate::server::{Server, ServerConfig};
use crate::slowest::{Elements, fill};

/// Time between a reply to the other client and that client's next request.
const PAUSE: Duration = Duration::from_micros(200);

/// Each command: the column's title, the metric, and the request. The sets `left` and `right`
/// share half of their members.
pub const COMMANDS: &[(&str, &str, &[&str])] = &[
    ("SINTERSTORE", "wait_ms_sinterstore", &["SINTERSTORE", "to", "left", "right"]),
    ("SUNIONSTORE", "wait_ms_sunionstore", &["SUNIONSTORE", "to", "left", "right"]),
    ("SDIFFSTORE", "wait_ms_sdiffstore", &["SDIFFSTORE", "to", "left", "right"]),
    ("SINTER", "wait_ms_sinter", &["SINTER", "left", "right"]),
    ("SUNION", "wait_ms_sunion", &["SUNION", "left", "right"]),
    ("SDIFF", "wait_ms_sdiff", &["SDIFF", "left", "right"]),
    ("SMEMBERS", "wait_ms_smembers", &["SMEMBERS", "left"]),
];

/// Runs each command on sets of `count` members. Returns, for each command, the longest time that
/// the other client waited for a reply meanwhile, in milliseconds.
pub fn run(config: &ServerConfig, count: u64) -> Result<RunResult> {
    let server = Server::start(config)?;
    let mut result = RunResult::default();
    let mut client = server.client()?;
    for (key, first) in [("left", 0), ("right", count / 2)] {
        let elements = Elements { key, range: first..first + count, value: None };
        fill(&mut client, "SADD", &elements)?;
    }
    let mut other = server.client()?;
    let (longest_us, replies) = (AtomicU64::new(0), AtomicU64::new(0));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let pinging = scope.spawn(|| ping(&mut other, &longest_us, &replies, &is_over));
        let ran = COMMANDS.iter().try_for_each(|(_, metric, words)| {
            longest_us.store(0, Ordering::SeqCst);
            client.expect(words)?;
            // The other client may still wait for the reply to its last request. That wait counts,
            // too.
            let seen = replies.load(Ordering::SeqCst);
            while replies.load(Ordering::SeqCst) == seen && !pinging.is_finished() {
                std::thread::sleep(PAUSE);
            }
            let longest_us = longest_us.load(Ordering::SeqCst);
            result.metrics.insert(metric, longest_us as f64 / 1000.0);
            Ok(())
        });
        is_over.store(true, Ordering::SeqCst);
        pinging.join().expect("the thread of the other client does not panic")?;
        ran
    })?;
    result.add_notes(&server)?;
    server.stop()?;
    Ok(result)
}

/// Sends `PING` again and again, counts the replies, and notes the longest time until a reply.
fn ping(
    client: &mut Client,
    longest_us: &AtomicU64,
    replies: &AtomicU64,
    is_over: &AtomicBool,
) -> Result<()> {
    while !is_over.load(Ordering::SeqCst) {
        let sent = Instant::now();
        let reply = client.expect(&["PING"])?;
        assert_eq!(reply, Reply::Status("PONG".into()), "the reply to PING is PONG");
        longest_us.fetch_max(sent.elapsed().as_micros() as u64, Ordering::SeqCst);
        replies.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(PAUSE);
    }
    Ok(())
}
