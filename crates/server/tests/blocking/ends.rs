//! Clients that stop waiting without being served.

use super::{NOTHING, Waiters, id_of, integer, popped};
use crate::common::{BACK_ENDS, start, until};
use crate::{info, serving};

const UNBLOCKED: &str = "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n";

#[test]
fn who_has_gone_takes_nothing() {
    serving("client-query-buffer-limit 1gb", |server| {
        let mut waiters = Waiters::of(server);
        for (is_half, is_stuffed) in [(false, false), (true, false), (false, true)] {
            let connected = |waiters: &mut Waiters<'_>, count: &str| {
                until(&format!("a client's end was not noticed: {is_half} {is_stuffed}"), || {
                    info(&mut waiters.observer, "connected_clients") == count
                });
            };
            connected(&mut waiters, "1");
            let mut waiter = waiters.join(&["BLMOVE", "k", "taken", "LEFT", "RIGHT", "0"]);
            let mut next = waiters.join(&["BLPOP", "k", "0"]);
            if is_stuffed {
                // These are more bytes than the socket's buffers hold, so the server notices the
                // client's end only if it goes on reading. (From a client that waits for something
                // other than keys, the server would have stopped reading much earlier.)
                waiter.send_bytes(&b"PING\r\n".repeat(1_780_000));
            }
            if is_half {
                waiter.end_sending();
            } else {
                drop(waiter);
            }
            connected(&mut waiters, "2");
            waiters.leave(1);
            assert_eq!(waiters.call(&["RPUSH", "k", "v", "w"]), integer(2));
            waiters.served(&mut next, &popped("k", "v"));
            assert_eq!(waiters.call(&["LLEN", "k"]), integer(1), "the second element must be left");
            assert_eq!(waiters.call(&["EXISTS", "taken"]), integer(0));
            assert_eq!(waiters.call(&["DEL", "k"]), integer(1));
        }
    });
}

#[test]
fn who_is_killed_takes_nothing() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut doomed = server.connect();
        let id = id_of(&mut doomed);
        waiters.wait(&mut doomed, &["BLPOP", "k", "l", "0"]);
        let mut next = waiters.join(&["BLPOP", "k", "0"]);
        assert_eq!(waiters.call(&["CLIENT", "KILL", "ID", &id]), integer(1));
        waiters.leave(1);
        assert_eq!(doomed.read_to_end(), b"");
        assert_eq!(info(&mut waiters.observer, "total_blocking_keys"), "1");
        assert_eq!(waiters.call(&["RPUSH", "k", "v"]), integer(1));
        waiters.served(&mut next, &popped("k", "v"));
    });
}

#[test]
fn a_wait_is_ended_by_another_client() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut client = server.connect();
        let id = id_of(&mut client);
        assert_eq!(waiters.call(&["CLIENT", "UNBLOCK", &id]), integer(0));
        let request = ["BLMOVE", "k", "d", "LEFT", "RIGHT", "0"];
        for (words, reply) in [(&[][..], NOTHING), (&["TIMEOUT"], NOTHING), (&["ERROR"], UNBLOCKED)]
        {
            waiters.wait(&mut client, &request);
            let unblock = [&["CLIENT", "UNBLOCK", id.as_str()], words].concat();
            assert_eq!(waiters.call(&unblock), integer(1));
            waiters.served(&mut client, reply);
            assert_eq!(waiters.call(&unblock), integer(0));
            assert_eq!(waiters.call(&["RPUSH", "k", "v"]), integer(1));
            assert_eq!(
                waiters.call(&["LPOP", "k"]),
                "$1\r\nv\r\n",
                "a client that no longer waits took the element"
            );
        }
        let line = waiters.call(&["CLIENT", "LIST", "ID", &id]);
        assert!(line.contains(" flags=N "), "{line}");
        let stats = waiters.call(&["INFO", "commandstats"]);
        assert!(stats.contains("cmdstat_blmove:calls=3,"), "{stats}");
        let line = stats.lines().find(|line| line.starts_with("cmdstat_blmove:")).unwrap();
        assert!(line.ends_with("failed_calls=1"), "{line}");
        waiters.wait(&mut client, &request);
        let line = waiters.call(&["CLIENT", "LIST", "ID", &id]);
        assert!(line.contains(" flags=b ") && line.contains(" cmd=blmove "), "{line}");
        assert_eq!(waiters.call(&["CLIENT", "UNBLOCK", &id]), integer(1));
        waiters.served(&mut client, NOTHING);
    });
}

/// A client that waits does not count as idle, however long it waits.
#[test]
fn who_waits_is_not_idle() {
    serving("timeout 1", |server| {
        let mut waiters = Waiters::of(server);
        let mut waiter = waiters.join(&["BLPOP", "k", "0"]);
        let mut idle = server.connect();
        assert_eq!(idle.call(&["PING"]), "+PONG\r\n");
        // The observer keeps sending requests, so it is not idle.
        until("the idle client stays", || info(&mut waiters.observer, "connected_clients") == "2");
        assert_eq!(idle.read_to_end(), b"");
        assert_eq!(waiters.call(&["RPUSH", "k", "v"]), integer(1));
        waiters.served(&mut waiter, &popped("k", "v"));
    });
}

#[test]
fn a_pause_ends_no_wait_and_nobody_is_served_in_it() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut soon = server.connect();
        let mut waiter = waiters.join(&["BLPOP", "k", "0"]);
        waiters.wait(&mut soon, &["BLPOP", "other", "1.5"]);
        // The pause begins within the transaction, so no client is served when the transaction
        // ends.
        let pause = ["CLIENT", "PAUSE", "100000", "WRITE"];
        let replies = waiters.exec(&[&["RPUSH", "k", "v"], &pause]);
        assert_eq!(replies, "*2\r\n:1\r\n+OK\r\n");
        waiters.served(&mut soon, NOTHING);
        assert!(waiter.is_silent());
        assert_eq!(waiters.call(&["LLEN", "k"]), integer(1));
        assert_eq!(waiters.call(&["CLIENT", "UNPAUSE"]), "+OK\r\n");
        waiters.served(&mut waiter, &popped("k", "v"));
    });
}

#[test]
fn the_end_of_the_server_ends_all_waits() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some(server) = start(back_end, &volume, "") else { continue };
        let mut waiters = Waiters::of(&server);
        let mut waiter = waiters.join(&["BLPOP", "k", "0"]);
        let mut last = server.connect();
        // The request after `SHUTDOWN` does not run.
        crate::undurable::send_all(&mut last, &[&["SHUTDOWN"], &["RPUSH", "k", "v"]]);
        assert_eq!(waiter.read_to_end(), b"");
        drop(waiters);
        server.ended().unwrap();
        let server = start(back_end, &volume, "").unwrap();
        assert_eq!(server.connect().call(&["EXISTS", "k"]), integer(0));
        server.stop();
    }
}

#[test]
fn timeouts_are_read_as_in_redis() {
    serving("", |server| {
        let mut client = server.connect();
        let negative = "-ERR timeout is negative\r\n";
        let no_float = "-ERR timeout is not a float or out of range\r\n";
        let times = [
            ("-1", negative),
            ("-0.0015", negative),
            ("inf", negative),
            ("1e18", negative),
            ("nan", no_float),
            ("abc", no_float),
            ("", no_float),
            (" 1", no_float),
            ("1e-5", NOTHING),
            ("0.0001", NOTHING),
            ("0x0.01", NOTHING),
        ];
        for (time, reply) in times {
            assert_eq!(client.call(&["BLPOP", "k", time]), reply, "{time:?}");
            assert_eq!(client.call(&["BLMPOP", time, "1", "k", "LEFT"]), reply, "{time:?}");
            assert_eq!(client.call(&["BRPOPLPUSH", "k", "l", time]), reply, "{time:?}");
            let request = ["BLMOVE", "k", "l", "LEFT", "LEFT", time];
            assert_eq!(client.call(&request), reply, "{time:?}");
        }
        let mut waiters = Waiters::of(server);
        for time in ["0", "0.0", "-0", "-0.0001", "9223372036854775"] {
            let mut waiter = waiters.join(&["BLPOP", "k", time]);
            assert_eq!(waiters.call(&["RPUSH", "k", "v"]), integer(1));
            waiters.served(&mut waiter, &popped("k", "v"));
        }
    });
}

#[test]
fn who_gives_up_very_soon_gives_up() {
    serving("", |server| {
        let mut client = server.connect();
        for timeout in ["0.001", "0.0015", "0.01"] {
            assert_eq!(client.call(&["BLPOP", "k", timeout]), NOTHING);
        }
    });
}

/// When the request runs again, its timeout has already passed: the client was woken during a
/// pause, and the pause ends while the server is busy.
#[test]
fn who_is_late_when_its_request_runs_again_gets_nothing() {
    serving("enable-debug-command yes", |server| {
        let mut waiters = Waiters::of(server);
        let mut waiter = waiters.join(&["BLMOVE", "k", "d", "LEFT", "RIGHT", "0.3"]);
        let pause = ["CLIENT", "PAUSE", "100000", "WRITE"];
        waiters.exec(&[&["RPUSH", "k", "v"], &["PEXPIRE", "k", "1"], &pause]);
        until("the key does not expire", || waiters.call(&["EXISTS", "k"]) == integer(0));
        let mut sleeper = server.connect();
        sleeper.send(&["DEBUG", "SLEEP", "0.5"]);
        assert_eq!(waiters.call(&["CLIENT", "UNPAUSE"]), "+OK\r\n");
        waiters.served(&mut waiter, NOTHING);
        assert_eq!(sleeper.read(), b"+OK\r\n");
    });
}

/// Memory is full when the waiting command runs again. The command runs nevertheless, because it
/// was allowed when it began to wait. This is as in Redis.
#[test]
fn who_has_waited_may_move_although_memory_is_full() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut waiter = waiters.join(&["BLMOVE", "k", "d", "LEFT", "RIGHT", "0"]);
        waiters.exec(&[&["RPUSH", "k", "v"], &["CONFIG", "SET", "maxmemory", "1"]]);
        waiters.served(&mut waiter, "$1\r\nv\r\n");
        let refusal = waiters.call(&["BLMOVE", "d", "k", "LEFT", "RIGHT", "0"]);
        assert!(refusal.starts_with("-OOM"), "{refusal}");
    });
}

/// A request that runs again does not get more time.
#[test]
fn the_deadline_stays_when_a_request_runs_again() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut first = waiters.join(&["BLPOP", "k", "1"]);
        let pause = ["CLIENT", "PAUSE", "500", "WRITE"];
        waiters.exec(&[&["RPUSH", "k", "v"], &["PEXPIRE", "k", "1"], &pause]);
        let mut second = server.connect();
        second.send(&["BLPOP", "other", "1.25"]);
        assert_eq!(second.read(), NOTHING.as_bytes());
        assert!(!first.is_silent(), "the client with the earlier deadline has no reply");
        waiters.served(&mut first, NOTHING);
    });
}

/// While all clients together take too much memory, the largest clients are disconnected.
#[test]
fn the_largest_clients_go_first() {
    serving("maxmemory-clients 400kb", |server| {
        let mut observer = server.connect();
        let [mut small, mut spared, mut large] = [(); 3].map(|()| server.connect());
        assert_eq!(spared.call(&["CLIENT", "NO-EVICT", "ON"]), "+OK\r\n");
        let queue = |client: &mut crate::common::Client, size: usize| {
            assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
            client.send(&["SET", "k", &"v".repeat(size)]);
        };
        queue(&mut small, 20_000);
        assert_eq!(small.read(), b"+QUEUED\r\n");
        queue(&mut spared, 200_000);
        assert_eq!(spared.read(), b"+QUEUED\r\n");
        queue(&mut large, 190_000);
        large.try_read_to_end();
        assert_eq!(info(&mut observer, "evicted_clients"), "1");
        assert_eq!(small.call(&["EXEC"]), "*1\r\n+OK\r\n");
        assert_eq!(spared.call(&["EXEC"]), "*1\r\n+OK\r\n");
    });
}

#[test]
fn as_many_clients_go_as_take_too_much() {
    serving("maxmemory-clients 0", |server| {
        let mut observer = server.connect();
        let mut large: Vec<_> = (0..100).map(|_| server.connect()).collect();
        for client in &mut large {
            assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
            assert_eq!(client.call(&["SET", "k", &"v".repeat(50_000)]), "+QUEUED\r\n");
        }
        assert_eq!(observer.call(&["CONFIG", "SET", "maxmemory-clients", "400kb"]), "+OK\r\n");
        until("too few clients were evicted", || {
            info(&mut observer, "evicted_clients").parse::<usize>().unwrap() > 90
        });
        assert_eq!(
            observer.call(&["PING"]),
            "+PONG\r\n",
            "the observer is the smallest client and must stay"
        );
        let memory = info(&mut observer, "mem_clients_normal").parse::<u64>().unwrap();
        assert!(memory < 400 << 10, "{memory}");
    });
}

#[test]
fn many_clients_are_killed_in_several_turns() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut doomed: Vec<_> = (0..300).map(|_| server.connect()).collect();
        for client in &mut doomed {
            client.send(&["BLPOP", "k", "0"]);
        }
        waiters.count = doomed.len();
        waiters.see("not all clients wait");
        assert_eq!(waiters.call(&["CLIENT", "KILL", "TYPE", "normal"]), integer(300));
        waiters.leave(300);
        assert_eq!(info(&mut waiters.observer, "connected_clients"), "1");
        for client in &mut doomed {
            assert_eq!(client.read_to_end(), b"");
        }
        assert_eq!(waiters.call(&["RPUSH", "k", "v"]), integer(1));
        assert_eq!(waiters.call(&["LLEN", "k"]), integer(1));
    });
}
