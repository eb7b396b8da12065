//! Tests `slimio shortcut run` with stock Redis, which writes an append-only file.
//!
//! Such a log is written by the *short path*: the *keeper* process fills the file with zeros ahead
//! of the log, so a record becomes durable by one direct write. When somebody else opens the file,
//! the keeper first cuts these zeros off. The log's *stage* is memory for bytes that were appended,
//! but are not in the file yet.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use slimio_testing::address::Address;
use slimio_testing::client::{Client, Reply};
use slimio_testing::server::find_program;

use super::{Place, Running, text, wait_for};

/// The name of the socket in the server's folder.
const SOCKET: &str = "socket";

/// A redis-server under `slimio shortcut run`.
pub(crate) struct Redis {
    pub(crate) run: Running,
    folder: PathBuf,
}

impl Redis {
    /// Starts a server in a folder of its own. `None` if no redis-server is installed.
    pub(crate) fn start(place: &Place, policy: &str) -> Option<Self> {
        let Some(program) = find_program("redis-server") else {
            eprintln!("SKIPPED: redis-server is not installed");
            return None;
        };
        let folder = place.path().join("redis");
        fs::create_dir_all(&folder).unwrap();
        let mut command = place.run(&[&"--", &program]);
        // The server gets a socket in its own folder instead of a port. Another program could take
        // the port first.
        command.args(["--port", "0", "--unixsocket"]).arg(folder.join(SOCKET));
        command.args(["--appendonly", "yes", "--save", "", "--appendfsync", policy]);
        command.arg("--dir").arg(&folder).stdout(Stdio::null());
        Some(Self { run: Running(command.spawn().unwrap()), folder })
    }

    pub(crate) fn client(&self) -> Client {
        let mut client = None;
        wait_for("server", || {
            client = Client::connect(&Address::Unix(self.folder.join(SOCKET))).ok();
            let Some(client) = &mut client else { return false };
            client.expect(&["PING"]).is_ok()
        });
        client.unwrap()
    }

    /// The append-only file that the server is writing.
    pub(crate) fn log(&self) -> PathBuf {
        let folder = fs::read_dir(self.folder.join("appendonlydir")).unwrap();
        let paths = folder.map(|entry| entry.unwrap().path());
        let mut logs: Vec<_> =
            paths.filter(|path| path.to_str().unwrap().ends_with(".incr.aof")).collect();
        logs.sort();
        logs.pop().unwrap()
    }

    pub(crate) fn stop(mut self) {
        let _ = self.client().call(&[b"SHUTDOWN"]);
        assert!(self.run.wait().unwrap().success());
    }
}

/// Checks a log with `redis-check-aof`, as operators do.
fn check(log: &Path) {
    let mut command = Command::new("redis-check-aof");
    let said = text(&command.arg(log).output().unwrap());
    assert!(said.contains("is valid"), "{said}");
}

#[test]
fn whoever_opens_the_running_log_sees_just_the_log() {
    let Some(place) = Place::new() else { return };
    let Some(redis) = Redis::start(&place, "always") else { return };
    let mut client = redis.client();
    let log = redis.log();
    for round in 0..3 {
        wait_for("short path for the log", || {
            place.status().contains(".aof: takes the short path")
        });
        for key in 0..50 {
            client.expect(&["SET", &format!("k:{round}:{key}"), &"v".repeat(key * 40)]).unwrap();
        }
        let longer = fs::metadata(&log).unwrap().len();
        // Opening the log waits until the keeper has cut off the zeros behind the log's end.
        let seen = fs::read(&log).unwrap();
        assert!(seen.ends_with(b"\r\n"), "round {round}: the file goes on after the log's end");
        assert!(
            (seen.len() as u64) < longer,
            "in round {round}, the log was not written by the short path: a reader sees {} of the \
             file's {longer} bytes; {}",
            seen.len(),
            place.said()
        );
        check(&log);
        let copy = place.path().join("copy.aof");
        fs::copy(&log, &copy).unwrap();
        assert!(fs::read(&copy).unwrap().starts_with(&seen));
        client.expect(&["SET", "last", &format!("{round}")]).unwrap();
        assert!(
            fs::read(&log).unwrap().len() > seen.len(),
            "a reader of the log must see the last write"
        );
    }
    redis.stop();
    check(&log);
    assert!(place.stages().is_empty());
    // Stock Redis can start from this log.
    let redis = Redis::start(&place, "always").unwrap();
    assert_eq!(redis.client().expect(&["GET", "last"]).unwrap(), Reply::Bulk(b"2".into()));
    redis.stop();
}

#[test]
fn a_rewritten_log_goes_the_short_way_too() {
    let Some(place) = Place::new() else { return };
    let Some(redis) = Redis::start(&place, "everysec") else { return };
    let mut client = redis.client();
    let mut logs = vec![redis.log()];
    for round in 0..4 {
        for key in 0..200 {
            client.expect(&["SET", &format!("k:{key}"), &format!("{round}")]).unwrap();
        }
        client.expect(&["BGREWRITEAOF"]).unwrap();
        wait_for("rewrite", || {
            client.info("persistence").unwrap()["aof_rewrite_in_progress"] == "0"
        });
        logs.push(redis.log());
        client.expect(&["SET", "after", &format!("{round}")]).unwrap();
        wait_for("short path for the log", || {
            place.status().starts_with(&format!("{}: takes", redis.log().display()))
        });
        // A background thread of Redis closes the old log, so the old log's stage may exist for a
        // moment longer.
        wait_for("removal of the old log's stage", || place.stages().len() == 1);
    }
    logs.dedup();
    assert_eq!(logs.len(), 5);
    redis.stop();
    let redis = Redis::start(&place, "everysec").unwrap();
    let mut client = redis.client();
    assert_eq!(client.expect(&["GET", "after"]).unwrap(), Reply::Bulk(b"3".into()));
    assert_eq!(client.expect(&["DBSIZE"]).unwrap(), Reply::Integer(201));
    redis.stop();
}
