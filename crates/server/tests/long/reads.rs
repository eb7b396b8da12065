//! Commands that only read, and run in steps without locking their keys.

use std::sync::atomic::{AtomicBool, Ordering};

use super::until_met;
use crate::common::{Client, encode};
use crate::{info, serving};

/// Adds members to a set, in several requests.
fn fill(client: &mut Client, key: &str, members: std::ops::Range<usize>) {
    let members: Vec<_> = members.map(|n| format!("member:{n}")).collect();
    for part in members.chunks(1000) {
        let words: Vec<&str> = ["SADD", key].into_iter().chain(part.iter().map(|m| &**m)).collect();
        assert_eq!(client.call(&words), format!(":{}\r\n", part.len()));
    }
}

/// How often a command has run to its end.
fn calls(stats: &str, command: &str) -> usize {
    let head = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&head));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

/// A guard that sets a flag to false when the guard is dropped, even by a panic.
struct Until<'a>(&'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Runs `beside` in another thread. The flag that `beside` gets is true until `run` has ended.
fn meanwhile(beside: impl FnOnce(&AtomicBool) + Send, run: impl FnOnce()) {
    let is_running = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| beside(&is_running));
        let _until = Until(&is_running);
        run();
    });
}

/// Another client moves a member to and fro between the first set and the last. A command that
/// looks at all sets must find the member in one of the sets.
#[test]
fn sets_are_all_seen_at_one_moment() {
    serving("appendonly no", |server| {
        let (mut client, mut other) = (server.connect(), server.connect());
        let keys: Vec<_> = (0..200).map(|n| format!("s{n}")).collect();
        assert_eq!(client.call(&["SADD", "s199", "moved"]), ":1\r\n");
        meanwhile(
            move |is_running| {
                while is_running.load(Ordering::SeqCst) {
                    for [from, to] in [["s199", "s0"], ["s0", "s199"]] {
                        assert_eq!(other.call(&["SMOVE", from, to, "moved"]), ":1\r\n");
                    }
                }
            },
            || {
                let union: Vec<&str> =
                    ["SUNION"].into_iter().chain(keys.iter().map(|key| &**key)).collect();
                for _ in 0..500 {
                    assert_eq!(client.call(&union), "*1\r\n$5\r\nmoved\r\n");
                }
            },
        );
    });
}

/// Another client stores unions all the time. The steps of a command that reads large sets must not
/// wait for these writes.
#[test]
fn reads_go_on_beside_long_writes() {
    const SIZE: usize = 40_000;
    serving("appendonly no", |server| {
        let (mut client, mut other, mut observer) =
            (server.connect(), server.connect(), server.connect());
        fill(&mut client, "one", 0..SIZE);
        fill(&mut client, "two", SIZE..2 * SIZE);
        let mut stored = || calls(&observer.call(&["INFO", "commandstats"]), "sunionstore");
        meanwhile(
            move |is_running| {
                let store = encode(&[b"SUNIONSTORE", b"to", b"one", b"two"]);
                // One request waits while another runs, so a request always runs.
                other.send_bytes(&[&store[..], &store].concat());
                while is_running.load(Ordering::SeqCst) {
                    other.send_bytes(&store);
                    assert!(other.read().starts_with(b":"));
                }
                (0..2).for_each(|_| drop(other.read()));
            },
            || {
                while stored() == 0 {}
                let before = stored();
                client.send(&["SUNION", "one", "two"]);
                assert!(client.read().starts_with(b"*80000\r\n"));
                let count = stored() - before;
                assert!(count < 15, "{count} SUNIONSTOREs ended during one SUNION");
            },
        );
    });
}

/// On a busy machine, the reply to a request may be late even if the request does not wait. So the
/// test tries each request up to this number of times.
const TRIES: usize = 20;

/// While sets are combined and stored, other clients may read these sets, and run transactions on
/// other keys. A client must wait if it would see the result or change a source.
#[test]
fn only_those_wait_who_would_see_a_part_of_it() {
    serving("appendonly no", |server| {
        let (mut client, mut other) = (server.connect(), server.connect());
        fill(&mut client, "one", 0..30_000);
        fill(&mut client, "two", 30_000..60_000);
        let words: Vec<&str> = ["SUNIONSTORE", "to"]
            .into_iter()
            .chain(std::iter::repeat_n(["one", "two"], 10).flatten())
            .collect();
        let begin = |client: &mut Client, other: &mut Client| {
            client.send(&words);
            while client.is_silent() && info(other, "long_request") != "running" {}
        };
        let goes_on: [&[&str]; 4] =
            [&["SCARD", "one"], &["SINTER", "two", "none"], &["SET", "k", "v"], &["GET", "k"]];
        let waits: [&[&str]; 4] =
            [&["SCARD", "to"], &["SADD", "one", "name"], &["SREM", "two", "name"], &["DBSIZE"]];
        // Sends requests while sets are being combined. Returns whether all requests are answered
        // before the combination ends.
        let mut is_beside = |requests: &[&[&str]], other: &mut Client| {
            begin(&mut client, other);
            for request in requests {
                other.call(request);
            }
            let is_silent = client.is_silent();
            assert_eq!(client.read(), b":60000\r\n");
            other.call(&["SREM", "one", "name"]);
            is_silent
        };
        for request in goes_on {
            for requests in [&[request][..], &[&["MULTI"], request, &["EXEC"]]] {
                let goes_on = (0..TRIES).any(|_| is_beside(requests, &mut other));
                assert!(goes_on, "{requests:?} waited for the long request");
            }
        }
        for request in waits {
            for requests in [&[request][..], &[&["MULTI"], request, &["EXEC"]]] {
                assert!(!is_beside(requests, &mut other), "{requests:?} did not wait");
            }
        }
        // The long request locks no key in the database that these requests select.
        let elsewhere: [&[&str]; 5] =
            [&["MULTI"], &["SELECT", "1"], &["SADD", "one", "name"], &["SELECT", "0"], &["EXEC"]];
        let goes_on = (0..TRIES).any(|_| is_beside(&elsewhere, &mut other));
        assert!(goes_on, "{elsewhere:?} waited for the long request");
        // The transaction of a client that watches a key waits, because the long request may be
        // changing the key, and the server reports the change only when that request ends.
        assert_eq!(other.call(&["WATCH", "to"]), "+OK\r\n");
        begin(&mut client, &mut other);
        for request in ["MULTI", "PING"] {
            other.call(&[request]);
        }
        assert_eq!(other.call(&["EXEC"]), "*-1\r\n");
        assert_eq!(client.read(), b":60000\r\n");
    });
}

/// The line of `CLIENT LIST` for a client with this name.
fn line<'a>(list: &'a str, name: &str) -> &'a str {
    list.lines()
        .find(|line| line.contains(&format!(" name={name} ")))
        .expect("the client is connected")
}

fn number(line: &str, field: &str) -> usize {
    let head = format!(" {field}=");
    let (_, rest) = line.split_once(&head).expect("the line has the field");
    rest.split(' ').next().unwrap().parse().unwrap()
}

/// While a command makes a reply in steps, the part that is made already counts as output and as
/// memory of the client.
#[test]
fn parts_of_a_reply_count_as_output() {
    serving("appendonly no\nclient-output-buffer-limit normal 0 0 0", |server| {
        let (mut client, mut observer) = (server.connect(), server.connect());
        fill(&mut client, "s", 0..200_000);
        assert_eq!(client.call(&["CLIENT", "SETNAME", "reader"]), "+OK\r\n");
        let mut done = 0;
        for request in
            [&["SMEMBERS", "s"][..], &["SUNION", "s", "none"], &["SRANDMEMBER", "s", "-200000"]]
        {
            let name = request[0].to_lowercase();
            until_met("no reply was seen while it was made", || {
                client.send(request);
                let is_seen = loop {
                    // Both requests arrive in one turn of the server.
                    observer.send_bytes(
                        &[encode(&[b"CLIENT", b"LIST"]), encode(&[b"INFO", b"everything"])]
                            .concat(),
                    );
                    let [list, stats] = [observer.read(), observer.read()]
                        .map(|reply| String::from_utf8(reply).unwrap());
                    let reader = line(&list, "reader");
                    if calls(&stats, &name) > done {
                        break false;
                    }
                    let (output, memory) = (number(reader, "omem"), number(reader, "tot-mem"));
                    if output > 500_000 {
                        let sum = stats.lines().find_map(|l| l.strip_prefix("mem_clients_normal:"));
                        let sum: usize = sum.unwrap().parse().unwrap();
                        assert!(
                            memory > 500_000,
                            "the output has {output} bytes, but the client only {memory}"
                        );
                        assert!(
                            sum > 500_000,
                            "the output has {output} bytes, but all clients only {sum}"
                        );
                        break true;
                    }
                };
                client.read();
                done = calls(&observer.call(&["INFO", "commandstats"]), &name);
                is_seen
            });
            done = 0;
        }
    });
}

/// The soft limit also applies to a reply that is still being made. So the command never runs to
/// its end.
#[test]
fn a_reply_is_within_the_soft_limit_while_it_is_made() {
    serving("appendonly no\nclient-output-buffer-limit normal 0 200kb 0", |server| {
        let (mut client, mut observer) = (server.connect(), server.connect());
        fill(&mut client, "s", 0..200_000);
        client.send(&["SMEMBERS", "s"]);
        assert_eq!(client.try_read_to_end(), 0);
        assert_eq!(info(&mut observer, "client_output_buffer_limit_disconnections"), "1");
        assert_eq!(calls(&observer.call(&["INFO", "commandstats"]), "smembers"), 0);
    });
}

/// A reply that the client has turned off is not made at all, however large it would be.
#[test]
fn a_reply_that_is_left_out_is_not_made() {
    serving("appendonly no\nclient-output-buffer-limit normal 100kb 0 0", |server| {
        let (mut client, mut observer) = (server.connect(), server.connect());
        fill(&mut client, "s", 0..200_000);
        assert_eq!(client.call(&["CLIENT", "SETNAME", "reader"]), "+OK\r\n");
        for _ in 0..10 {
            client.send(&["CLIENT", "REPLY", "OFF"]);
            for request in
                [&["SMEMBERS", "s"][..], &["SUNION", "s", "none"], &["SPOP", "s", "10000"]]
            {
                client.send(request);
            }
            client.send(&["CLIENT", "REPLY", "ON"]);
            while client.is_silent() {
                let list = observer.call(&["CLIENT", "LIST"]);
                let size = number(line(&list, "reader"), "omem");
                assert!(size < 100_000, "{size} bytes of an unwanted reply are kept");
            }
            assert_eq!(client.read(), b"+OK\r\n");
            client.send(&["CLIENT", "REPLY", "SKIP"]);
            client.send(&["SMEMBERS", "s"]);
            assert_eq!(client.call(&["PING"]), "+PONG\r\n");
        }
        assert_eq!(client.call(&["SCARD", "s"]), ":100000\r\n");
    });
}
