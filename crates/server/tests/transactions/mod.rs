//! Transactions with snapshots, the log and `WATCH`. Recovery applies a transaction as a whole, and
//! only once.

use crate::common::{BACK_ENDS, Client, encode, start, until};
use crate::{info, serving};

#[test]
fn a_snapshot_does_not_begin_within_a_transaction() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some(server) = start(back_end, &volume, "appendfsync always") else { continue };
        let mut client = server.connect();
        // Each of these writes would have a different result if recovery applied it twice.
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
        until("no rewrite has ended", || info(&mut client, "snapshot_rewrites_complete") == "1");
        server.stop();
        let server = start(back_end, &volume, "appendfsync always").unwrap();
        let mut client = server.connect();
        assert_eq!(client.call(&["MGET", "text", "n"]), "*2\r\n$11\r\nfirstsecond\r\n$1\r\n2\r\n");
        server.stop();
    }
}

/// A transaction turns the log off and on. The server must do so only after the transaction,
/// because it logs a transaction as a whole or not at all.
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
        until("the log was not turned off", || info(&mut client, "log_state") == "off");
        let value = "v".repeat(1 << 20);
        client.send(&["MULTI"]);
        client.send(&["CONFIG", "SET", "appendonly", "yes"]);
        (0..16).for_each(|key| client.send(&["SET", &format!("k{key}"), &value]));
        client.send(&["EXEC"]);
        (0..18).for_each(|_| drop(client.read()));
        assert!(client.read().starts_with(b"*17\r\n+OK\r\n"));
        until("the log was not turned on", || info(&mut client, "log_state") == "on");
        assert_eq!(client.call(&["WAITAOF", "1", "0", "0"]), "*2\r\n:1\r\n:0\r\n");
        server.stop();
    }
}

/// If a key had expired before a client began to watch it, deleting the key must not abort the
/// client's transaction. Redis does the same.
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
                // If `is_met`, a request touches the expired key before `WATCH`, and so deletes it.
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

/// The database of a watched key is swapped with another database. If the key is missing or expired
/// in both databases, the swap is no change of the key. Otherwise it is a change, even if the key
/// has the same value in both.
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

/// If a client stops watching many keys, the server forgets the watched keys in steps. A key that
/// is not forgotten yet must not affect any client.
#[test]
fn a_key_that_was_watched_before_it_expired_may_be_watched_again() {
    serving("appendonly no\nenable-debug-command yes", |server| {
        let mut watch: Vec<String> = (0..2000).map(|n| format!("key:{n}")).collect();
        watch.insert(0, "WATCH".into());
        // This key is the last in sorted order, so the server forgets it last.
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

/// Adds 10,000 members of 100 bytes to a set.
fn fill(client: &mut Client, key: &str) {
    let members: Vec<_> = (0..10_000).map(|n| format!("{n:0100}")).collect();
    for part in members.chunks(500) {
        let words: Vec<&str> = ["SADD", key].into_iter().chain(part.iter().map(|m| &**m)).collect();
        assert_eq!(client.call(&words), ":500\r\n");
    }
}

/// The elements that `SPOP` takes out of a large set need room in the log. A transaction must have
/// this room, whether it selects the set's database, swaps databases, or makes the set itself.
#[test]
fn a_transaction_has_room_for_what_it_takes_out() {
    serving("log-segment-size 8mb", |server| {
        let mut client = server.connect();
        let cases: [&[&[&str]]; 4] = [
            &[&["SELECT", "1"], &["SPOP", "s", "5000"]],
            &[&["SWAPDB", "0", "1"], &["SPOP", "s", "5000"]],
            &[&["SELECT", "1"], &["SUNIONSTORE", "t", "s"], &["SPOP", "t", "5000"]],
            &[
                &["SELECT", "1"],
                &["SADD", "s", "x"],
                &["SPOP", "s", "4000"],
                &["SPOP", "s", "4000"],
            ],
        ];
        for requests in cases {
            assert_eq!(client.call(&["FLUSHALL"]), "+OK\r\n");
            assert_eq!(client.call(&["SELECT", "1"]), "+OK\r\n");
            fill(&mut client, "s");
            assert_eq!(client.call(&["SELECT", "0"]), "+OK\r\n");
            assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
            for request in requests {
                assert_eq!(client.call(request), "+QUEUED\r\n");
            }
            let reply = client.call(&["EXEC"]);
            let errors: Vec<_> = reply.lines().filter(|line| line.starts_with('-')).collect();
            assert!(errors.is_empty(), "{requests:?}: {errors:?}");
            assert_eq!(client.call(&["SELECT", "0"]), "+OK\r\n");
        }
    });
}

/// If a transaction makes a set, the log may have no room for the elements that `SPOP` then takes
/// out of this set. In this case, `SPOP` replies with an error that says so, and the set stays
/// whole.
#[test]
fn a_transaction_without_room_says_so() {
    serving("log-segment-size 1mb\nlog-size-max 4mb", |server| {
        let mut client = server.connect();
        assert_eq!(client.call(&["CONFIG", "SET", "auto-aof-rewrite-percentage", "0"]), "+OK\r\n");
        fill(&mut client, "s");
        let copies: Vec<_> = (0..10).map(|n| format!("s{n}")).collect();
        assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
        for copy in &copies {
            assert_eq!(client.call(&["SUNIONSTORE", copy, "s"]), "+QUEUED\r\n");
            assert_eq!(client.call(&["SPOP", copy, "9000"]), "+QUEUED\r\n");
        }
        let reply = client.call(&["EXEC"]);
        assert!(reply.contains("-MISCONF The log has too little room for what SPOP takes out"));
        assert_eq!(client.call(&["SCARD", "s9"]), ":10000\r\n");
        assert_eq!(client.call(&["PING"]), "+PONG\r\n");
    });
}

/// To know the room that a transaction needs, the server looks at the sets in the databases that
/// the transaction selects. If the log has no room for the elements that the transaction takes out
/// of these sets, the server refuses the whole transaction.
#[test]
fn a_transaction_is_weighed_in_the_databases_that_it_selects() {
    serving("log-segment-size 1mb\nlog-size-max 4mb", |server| {
        let mut client = server.connect();
        assert_eq!(client.call(&["SELECT", "1"]), "+OK\r\n");
        fill(&mut client, "s");
        let copies: Vec<_> = (0..10).map(|n| format!("s{n}")).collect();
        for copy in &copies {
            assert_eq!(client.call(&["COPY", "s", copy]), ":1\r\n");
        }
        assert_eq!(client.call(&["SELECT", "0"]), "+OK\r\n");
        assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
        assert_eq!(client.call(&["SELECT", "1"]), "+QUEUED\r\n");
        for copy in &copies {
            assert_eq!(client.call(&["SPOP", copy, "9000"]), "+QUEUED\r\n");
        }
        let reply = client.call(&["EXEC"]);
        assert!(reply.starts_with("-EXECABORT"), "{}", &reply[..reply.len().min(200)]);
        assert_eq!(client.call(&["SELECT", "1"]), "+OK\r\n");
        assert_eq!(client.call(&["SCARD", "s0"]), ":10000\r\n");
    });
}

/// `SPOP` asks for no more room than the present members of its set can take. It does not matter
/// how many members the request asks for, or how long a former member was.
#[test]
fn spop_asks_for_what_its_set_holds() {
    serving("log-segment-size 1mb\nlog-size-max 4mb", |server| {
        let mut client = server.connect();
        let long = "x".repeat(100_000);
        fill(&mut client, "s");
        assert_eq!(client.call(&["SADD", "s", &long]), ":1\r\n");
        assert_eq!(client.call(&["SREM", "s", &long]), ":1\r\n");
        assert!(client.call(&["SPOP", "s", "5000"]).starts_with("*5000\r\n"));
        assert_eq!(client.call(&["DEL", "s"]), ":1\r\n");
        assert_eq!(client.call(&["SADD", "s", "a", "b", &long]), ":3\r\n");
        assert!(client.call(&["SPOP", "s", "1000000"]).starts_with("*3\r\n"));
    });
}
