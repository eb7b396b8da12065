//! The events of changes: their names, their order, the client that asked for the change, and the
//! LSN of the change's record. The server tells each event to its listener. The listener is a
//! function that is passed to the server at its launch.

mod images;
mod stock;

use std::path::Path;
use std::sync::{Arc, Mutex};

use slimio_device::{EngineChoice, PathOptions};
use slimio_server::{Listener, WallClock};

use crate::common::{BACK_ENDS, Client, Running, config, launch_heard, until};
use crate::info;

/// An event, as the listener received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) client: Option<u64>,
    pub(crate) lsn: Option<u64>,
    /// Database, event and key, as in `0 set k`. If a whole database changes, the event
    /// is `-` and the key is empty.
    pub(crate) text: String,
}

/// The events that the listener has received since the last call of [`take`](Self::take).
#[derive(Clone, Debug, Default)]
pub(crate) struct Ear(Arc<Mutex<Vec<Heard>>>);

impl Ear {
    pub(crate) fn listener(&self) -> Listener {
        let heard = Arc::clone(&self.0);
        Box::new(move |told| {
            let name = told.event.map_or("-", slimio_keyspace::Event::name);
            let text = format!("{} {name} {}", told.db.0, String::from_utf8_lossy(&told.key));
            let lsn = told.lsn.map(|lsn| lsn.0);
            heard.lock().unwrap().push(Heard { client: told.client, lsn, text });
        })
    }

    /// Takes the events that were heard since the last call.
    pub(crate) fn take(&self) -> Vec<Heard> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn texts(heard: &[Heard]) -> Vec<&str> {
    heard.iter().map(|heard| &*heard.text).collect()
}

/// Runs a check against a server with a listener and with these directives, over both back ends.
fn hearing(directives: &str, check: impl Fn(&Running, &Ear)) {
    for back_end in BACK_ENDS {
        if back_end == "uring" && slimio_ring::probe().is_err() {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let directives = format!("enable-debug-command local\n{directives}");
        let config = config(back_end, &dir.path().join("volume"), directives.trim());
        let engine = if back_end == "plain" { EngineChoice::Plain } else { EngineChoice::Best };
        let ear = Ear::default();
        let listener = Some(ear.listener());
        let server = launch_heard(config, WallClock::System, listener, move |config| {
            let options = PathOptions { engine, ..PathOptions::default() };
            let volume = Path::new(config.text("volume"));
            let size_max = config.int("log-size-max") as u64;
            let storage = slimio_volume::open(volume, options, true, size_max);
            storage.map(Some).map_err(|error| error.to_string())
        })
        .serving();
        check(&server, &ear);
        server.stop();
    }
}

fn number(client: &mut Client, request: &[&str]) -> u64 {
    client.call(request)[1..].trim().parse().unwrap()
}

fn appended(client: &mut Client) -> u64 {
    info(client, "log_appended_lsn").parse().unwrap()
}

/// The LSN of an event is the end of the log record that has the event's change.
#[test]
fn each_event_has_its_client_and_the_end_of_its_record() {
    hearing("", |server, ear| {
        let mut clients = [server.connect(), server.connect()];
        let ids = clients.each_mut().map(|client| number(client, &["CLIENT", "ID"]));
        let mut before = appended(&mut clients[0]);
        let requests: [(&[&str], &[&str]); 7] = [
            (&["SET", "k", "v"], &["0 new k", "0 set k"]),
            (&["SETEX", "k", "100", "v"], &["0 set k", "0 expire k"]),
            (&["RENAME", "k", "l"], &["0 new l", "0 rename_from k", "0 rename_to l"]),
            (&["HSET", "h", "f", "v"], &["0 new h", "0 hset h"]),
            (&["HDEL", "h", "f"], &["0 hdel h", "0 del h"]),
            (&["GET", "l"], &[]),
            (&["FLUSHDB"], &["0 - "]),
        ];
        for (index, (request, expected)) in requests.into_iter().enumerate() {
            let (client, id) = (&mut clients[index % 2], ids[index % 2]);
            assert!(!client.call(request).starts_with('-'), "{request:?}");
            let (heard, end) = (ear.take(), appended(client));
            assert_eq!(texts(&heard), expected, "{request:?}");
            for heard in heard {
                assert_eq!((heard.client, heard.lsn), (Some(id), Some(end)), "{request:?}");
            }
            assert_eq!(end > before, !expected.is_empty(), "{request:?}");
            before = end;
        }
    });
}

/// The events of a transaction are reported when the transaction's record is in the log. The LSN of
/// each of these events is the end of that record.
#[test]
fn a_transactions_events_are_told_in_order_with_its_record() {
    hearing("", |server, ear| {
        let (mut client, mut other) = (server.connect(), server.connect());
        let id = number(&mut client, &["CLIENT", "ID"]);
        let queued: [&[&str]; 7] = [
            &["SET", "k", "1"],
            &["INCR", "k"],
            &["SELECT", "1"],
            &["SADD", "s", "1"],
            &["SPOP", "s"],
            &["SELECT", "0"],
            &["DEL", "k"],
        ];
        assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
        for request in queued {
            assert_eq!(client.call(request), "+QUEUED\r\n");
        }
        assert_eq!(other.call(&["SET", "between", "1"]), "+OK\r\n");
        assert_eq!(texts(&ear.take()), ["0 new between", "0 set between"]);
        assert!(client.call(&["EXEC"]).starts_with("*7\r\n"));
        let (heard, end) = (ear.take(), appended(&mut client));
        let expected = [
            "0 new k",
            "0 set k",
            "0 incrby k",
            "1 new s",
            "1 sadd s",
            "1 spop s",
            "1 del s",
            "0 del k",
        ];
        assert_eq!(texts(&heard), expected);
        for heard in heard {
            assert_eq!((heard.client, heard.lsn), (Some(id), Some(end)));
        }
    });
}

/// An expiry event belongs to no client, even if a client's request found the expired key.
#[test]
fn expiry_is_of_no_client() {
    hearing("hz 100", |server, ear| {
        let mut client = server.connect();
        for is_active in [false, true] {
            client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", if is_active { "1" } else { "0" }]);
            assert_eq!(client.call(&["SET", "k", "v", "PX", "1"]), "+OK\r\n");
            if !is_active {
                assert_eq!(client.call(&["DEBUG", "SLEEP", "0.003"]), "+OK\r\n");
                assert_eq!(client.call(&["SET", "k", "w"]), "+OK\r\n");
                let heard = ear.take();
                let expected =
                    ["0 new k", "0 set k", "0 expire k", "0 expired k", "0 new k", "0 set k"];
                assert_eq!(texts(&heard), expected);
                let is_asked: Vec<bool> = heard.iter().map(|it| it.client.is_some()).collect();
                assert_eq!(is_asked, [true, true, true, false, true, true]);
                continue;
            }
            let mut heard = Vec::new();
            until("the key did not expire", || {
                heard.extend(ear.take());
                heard.last().is_some_and(|last| last.text == "0 expired k")
            });
            let last = heard.last().unwrap();
            assert_eq!((last.client, last.lsn), (None, Some(appended(&mut client))));
        }
    });
}

#[test]
fn eviction_is_of_no_client() {
    hearing("maxmemory 1mb\nmaxmemory-policy allkeys-random", |server, ear| {
        let mut client = server.connect();
        let value = "v".repeat(100_000);
        let mut evicted = Vec::new();
        for key in 0..30 {
            assert_eq!(client.call(&["SET", &format!("k{key}"), &value]), "+OK\r\n");
            let mut heard = ear.take();
            heard.retain(|heard| heard.text.contains(" evicted "));
            evicted.extend(heard);
        }
        assert!(evicted.len() > 10, "only {} keys were evicted", evicted.len());
        assert!(evicted.iter().all(|heard| heard.client.is_none() && heard.lsn.is_some()));
    });
}

/// Without a log, events have no LSN, but they are still reported.
#[test]
fn events_need_no_log() {
    hearing("", |server, ear| {
        let mut client = server.connect();
        assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "no"]), "+OK\r\n");
        until("the log was not turned off", || info(&mut client, "log_state") == "off");
        client.send_bytes(b"SET k v\r\nMULTI\r\nDEL k\r\nEXEC\r\n");
        (0..4).for_each(|_| drop(client.read()));
        let heard = ear.take();
        assert_eq!(texts(&heard), ["0 new k", "0 set k", "0 del k"]);
        assert!(heard.iter().all(|heard| heard.lsn.is_none()));
    });
}

/// A change with several events, such as a `SETEX`, counts as one change. A `RENAME` changes two
/// keys, so it counts as two.
#[test]
fn only_changes_are_counted() {
    hearing("", |server, ear| {
        let mut client = server.connect();
        let requests: [(&[&str], usize); 5] = [
            (&["SETEX", "k", "100", "v"], 1),
            (&["HSET", "h", "f", "v", "g", "w"], 1),
            (&["SADD", "s", "a", "b"], 1),
            (&["RENAME", "k", "l"], 2),
            (&["SPOP", "s", "9"], 1),
        ];
        let mut expected = 0;
        for (request, changes) in requests {
            client.call(request);
            expected += changes;
            let counted = info(&mut client, "rdb_changes_since_last_save");
            assert_eq!(counted, expected.to_string(), "{request:?}");
        }
        assert!(ear.take().len() > expected, "there must be more events than changes");
    });
}
