//! Transactions with snapshots, the log and `WATCH`. Recovery applies a transaction as a whole, and
//! only once.

use crate::common::{BACK_ENDS, encode, start, until};
use crate::{info, serving};

#[test]
fn a_snapshot_does_not_begin_within_a_transaction() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some(server) = start(back_end, &volume, "appendfsync always") else { continue };
        let mut client = server.connect();
        // Each of these writes has a different result if it is applied twice.
        let requests: [&[&str]; 5] = [
            &["APPEND", "text", "first"],
            &["INCR", "n"],
            &["BGREWRITEAOF"],
            &["INCR", "n"],
            &["APPEND", "text", "second"],
        ];
        assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
        for request in requests {
            assert_eq!(client.call(request), "+QUEUED\r\n");
        }
        assert!(client.call(&["EXEC"]).contains("+Background append only file rewriting "));
        until("there is no snapshot", || info(&mut client, "snapshot_rewrites_complete") == "1");
        server.stop();
        let server = start(back_end, &volume, "appendfsync always").unwrap();
        let mut client = server.connect();
        assert_eq!(client.call(&["MGET", "text", "n"]), "*2\r\n$11\r\nfirstsecond\r\n$1\r\n2\r\n");
        server.stop();
    }
}

/// A transaction turns the log off and on. That must happen only after the transaction, because a
/// transaction is logged as a whole or not at all.
#[test]
fn a_transaction_is_logged_in_whole_where_the_log_is_turned_within() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some(server) = start(back_end, &volume, "") else { continue };
        let mut client = server.connect();
        let turned = |state: &'static str| ["CONFIG", "SET", "appendonly", state];
        let requests: [&[&str]; 7] = [
            &["MULTI"],
            &["SET", "before", "1"],
            &turned("no"),
            &["SET", "within", "1"],
            &turned("yes"),
            &["EXEC"],
            &["WAITAOF", "1", "0", "0"],
        ];
        for request in requests {
            client.send(request);
        }
        (0..6).for_each(|_| drop(client.read()));
        assert_eq!(client.read(), b"*2\r\n:1\r\n:0\r\n");
        assert!(server.abandon().is_ok());

        let server = start(back_end, &volume, "").unwrap();
        assert_eq!(server.connect().call(&["EXISTS", "before", "within"]), ":2\r\n");
        server.stop();
    }
}

#[test]
fn a_transaction_that_turns_the_log_on_needs_no_room_in_it() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let directives = "log-segment-size 1mb\nlog-size-max 8mb\nlog-buffer-size 256kb";
        let Some(server) = start(back_end, &dir.path().join("volume"), directives) else {
            continue;
        };
        let mut client = server.connect();
        assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "no"]), "+OK\r\n");
        until("the log is off", || info(&mut client, "log_state") == "off");
        let value = "v".repeat(1 << 20);
        client.send(&["MULTI"]);
        client.send(&["CONFIG", "SET", "appendonly", "yes"]);
        (0..16).for_each(|key| client.send(&["SET", &format!("k{key}"), &value]));
        client.send(&["EXEC"]);
        (0..18).for_each(|_| drop(client.read()));
        assert!(client.read().starts_with(b"*17\r\n+OK\r\n"));
        until("the log is on", || info(&mut client, "log_state") == "on");
        assert_eq!(client.call(&["WAITAOF", "1", "0", "0"]), "*2\r\n:1\r\n:0\r\n");
        server.stop();
    }
}

/// If a key had expired before a client began to watch it, deleting the key must not abort the
/// client's transaction, as in Redis.
#[test]
fn a_key_that_had_expired_when_it_was_watched_may_go() {
    serving("enable-debug-command yes", |server| {
        let (mut client, mut other) = (server.connect(), server.connect());
        assert_eq!(other.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]), "+OK\r\n");
        let went: [&[&str]; 3] = [&["GET", "k"], &["DEL", "k"], &["FLUSHALL"]];
        let came: [&[&str]; 2] = [&["SET", "k", "v"], &["APPEND", "k", "v"]];
        let runs = "*1\r\n+PONG\r\n";
        for (requests, expected) in [(&went[..], runs), (&came[..], "*-1\r\n")] {
            for request in requests {
                // A request that touches an expired key deletes it.
                for is_met in [false, true] {
                    assert_eq!(client.call(&["SET", "k", "v", "PX", "1"]), "+OK\r\n");
                    assert_eq!(client.call(&["DEBUG", "SLEEP", "0.003"]), "+OK\r\n");
                    if is_met {
                        assert_eq!(client.call(&["EXISTS", "k"]), ":0\r\n");
                    }
                    assert_eq!(client.call(&["WATCH", "k"]), "+OK\r\n");
                    other.call(request);
                    assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
                    assert_eq!(client.call(&["PING"]), "+QUEUED\r\n");
                    assert_eq!(client.call(&["EXEC"]), expected, "{request:?}, {is_met}");
                    client.call(&["DEL", "k"]);
                }
            }
        }
    });
}

/// If the database of a watched key is swapped with another database, that counts as a change of
/// the key.
#[test]
fn what_is_swapped_in_under_a_watched_key_is_a_change() {
    const DEAD: &[&str] = &["SET", "k", "v", "PX", "1"];
    const ALIVE: &[&str] = &["SET", "k", "v"];
    let runs = "*1\r\n+PONG\r\n";
    serving("enable-debug-command yes", |server| {
        let (mut client, mut other) = (server.connect(), server.connect());
        assert_eq!(other.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]), "+OK\r\n");
        let cases: [(&[&str], &[&str], &str); 9] = [
            (&[], &[], runs),
            (&[], DEAD, runs),
            (&[], ALIVE, "*-1\r\n"),
            (DEAD, &[], runs),
            (DEAD, DEAD, runs),
            (DEAD, ALIVE, "*-1\r\n"),
            (ALIVE, &[], "*-1\r\n"),
            (ALIVE, DEAD, "*-1\r\n"),
            (ALIVE, ALIVE, "*-1\r\n"),
        ];
        for (before, behind, expected) in cases {
            assert_eq!(other.call(&["FLUSHALL"]), "+OK\r\n");
            for (db, request) in [("0", before), ("1", behind)] {
                other.call(&["SELECT", db]);
                if !request.is_empty() {
                    assert_eq!(other.call(request), "+OK\r\n");
                }
            }
            assert_eq!(other.call(&["DEBUG", "SLEEP", "0.003"]), "+OK\r\n");
            assert_eq!(client.call(&["WATCH", "k"]), "+OK\r\n");
            assert_eq!(other.call(&["SWAPDB", "0", "1"]), "+OK\r\n");
            assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
            assert_eq!(client.call(&["PING"]), "+QUEUED\r\n");
            assert_eq!(client.call(&["EXEC"]), expected, "{before:?}, then {behind:?}");
        }
        // A database that is swapped with itself does not change.
        assert_eq!(client.call(ALIVE), "+OK\r\n");
        assert_eq!(client.call(&["WATCH", "k"]), "+OK\r\n");
        assert_eq!(other.call(&["SWAPDB", "0", "0"]), "+OK\r\n");
        assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
        assert_eq!(client.call(&["PING"]), "+QUEUED\r\n");
        assert_eq!(client.call(&["EXEC"]), runs);
    });
}

/// Keys that are no longer watched are removed in steps. Before a key is removed, it must not
/// affect any client.
#[test]
fn a_key_that_was_watched_before_it_expired_may_be_watched_again() {
    serving("appendonly no\nenable-debug-command yes", |server| {
        let mut watch: Vec<String> = (0..2000).map(|n| format!("key:{n}")).collect();
        watch.insert(0, "WATCH".into());
        // This key is the last in sorted order, so it is removed last.
        watch.push("z".into());
        let watch: Vec<&[u8]> = watch.iter().map(String::as_bytes).collect();
        let requests: [&[&[u8]]; 9] = [
            &[b"DEBUG", b"SET-ACTIVE-EXPIRE", b"0"],
            &[b"SET", b"z", b"v", b"PX", b"20"],
            &watch,
            &[b"UNWATCH"],
            &[b"DEBUG", b"SLEEP", b"0.05"],
            &[b"WATCH", b"z"],
            &[b"MULTI"],
            &[b"PING"],
            &[b"EXEC"],
        ];
        let mut client = server.connect();
        client
            .send_bytes(&requests.iter().flat_map(|request| encode(request)).collect::<Vec<u8>>());
        let replies: Vec<Vec<u8>> = requests.iter().map(|_| client.read()).collect();
        assert_eq!(replies[8], b"*1\r\n+PONG\r\n");
    });
}

#[test]
fn a_key_is_watched_in_the_database_that_is_selected() {
    serving("appendonly no", |server| {
        let (mut client, mut other) = (server.connect(), server.connect());
        for (db, expected) in [("5", "*-1\r\n"), ("0", "*0\r\n")] {
            assert_eq!(client.call(&["SELECT", "5"]), "+OK\r\n");
            assert_eq!(other.call(&["SELECT", db]), "+OK\r\n");
            assert_eq!(client.call(&["WATCH", "k"]), "+OK\r\n");
            assert_eq!(other.call(&["SET", "k", "v"]), "+OK\r\n");
            assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
            assert_eq!(client.call(&["EXEC"]), expected);
        }
    });
}
