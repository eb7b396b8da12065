//! Long requests: they run in steps, but to other clients, each such request is atomic. In names of
//! tests, `it` is the long request.

mod counts;
mod others;
mod reads;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use slimio_testing::held::Gate;

use crate::common::{
    BACK_ENDS, Client, Running, encode, patience, start, start_held, start_on, until,
};
use crate::undurable::held;
use crate::{info, serving};

/// Number of keys, or of fields, in a request that takes a few dozen turns of the event loop.
const MANY: usize = 30_000;

/// Size in bytes of a value that takes several steps to log. The size is an odd number, so that the
/// pieces of a string are not aligned.
const LARGE: usize = (3 << 20) + 5;

/// A request that consists of `head` and of the words that `of` makes for each number below
/// [`MANY`].
fn many<const N: usize>(head: &[&str], of: impl Fn(usize) -> [String; N]) -> Vec<u8> {
    let mut words: Vec<Vec<u8>> = head.iter().map(|word| word.as_bytes().to_vec()).collect();
    words.extend((0..MANY).flat_map(|number| of(number).map(String::into_bytes)));
    encode(&words.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

fn key(number: usize) -> String {
    format!("key:{number}")
}

fn mset(value: usize) -> Vec<u8> {
    many(&["MSET"], |number| [key(number), value.to_string()])
}

/// As long as `is_running` is true, sends a request for the first and the last of many values. If
/// the two values differ, the client has seen a part of a long request.
fn is_one(client: &mut Client, request: &[&str], is_running: &AtomicBool) {
    while is_running.load(Ordering::SeqCst) {
        let reply = client.call(request);
        let mut values = reply.split("\r\n").filter(|line| !line.starts_with(['*', '$']));
        let (first, last) = (values.next().unwrap(), values.next().unwrap());
        assert_eq!(first, last, "a client saw a part of a long request");
    }
}

/// Retries until a rare order of events has occurred. The time limit is longer than [`patience`].
fn until_met(what: &str, mut has_come: impl FnMut() -> bool) {
    let deadline = Instant::now() + 5 * patience();
    while !has_come() {
        assert!(Instant::now() < deadline, "{what}");
    }
}

/// Runs the requests of one client in order, while `beside` runs as another client.
fn beside(
    server: &Running,
    requests: &[Vec<u8>],
    beside: impl Fn(&mut Client, &AtomicBool) + Sync,
) {
    let is_running = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let mut other = server.connect();
        let (is_running, beside) = (&is_running, &beside);
        let task = scope.spawn(move || beside(&mut other, is_running));
        let mut client = server.connect();
        for request in requests {
            client.send_bytes(request);
            let reply = client.read();
            assert!(!reply.starts_with(b"-"), "{}", String::from_utf8_lossy(&reply));
        }
        is_running.store(false, Ordering::SeqCst);
        task.join().unwrap();
    });
}

#[test]
fn others_see_all_of_it_or_nothing() {
    serving("", |server| {
        let sets: Vec<_> = (10..30).map(mset).collect();
        server.connect().send_bytes(&sets[0]);
        until("the keys do not exist", || server.connect().call(&["EXISTS", "key:0"]) == ":1\r\n");
        let (first, last) = (key(0), key(MANY - 1));
        beside(server, &sets, |client, is_running| {
            is_one(client, &["MGET", &first, &last], is_running);
        });
        let hashes: Vec<_> = (10..30)
            .map(|value: usize| {
                many(&["HSET", "hash"], move |number| [key(number), value.to_string()])
            })
            .collect();
        server.connect().send_bytes(&hashes[0]);
        until("the hash does not exist", || server.connect().call(&["EXISTS", "hash"]) == ":1\r\n");
        beside(server, &hashes, |client, is_running| {
            is_one(client, &["HMGET", "hash", &first, &last], is_running);
        });
        let all = many(&["MGET"], |number| [key(number)]);
        beside(server, &sets, |client, is_running| {
            while is_running.load(Ordering::SeqCst) {
                client.send_bytes(&all);
                let reply = String::from_utf8(client.read()).unwrap();
                let values: Vec<_> =
                    reply.split("\r\n").filter(|line| !line.starts_with(['*', '$'])).collect();
                assert!(
                    values[1..MANY].iter().all(|value| *value == values[0]),
                    "the reply mixes old and new values"
                );
            }
        });
        let pair = |value: &str| {
            encode(&[
                b"MSET",
                first.as_bytes(),
                value.as_bytes(),
                last.as_bytes(),
                value.as_bytes(),
            ])
        };
        let pairs: Vec<_> = (0..3000).map(|number| pair(&number.to_string())).collect();
        beside(server, &pairs, |client, is_running| {
            while is_running.load(Ordering::SeqCst) {
                client.send_bytes(&all);
                let reply = String::from_utf8(client.read()).unwrap();
                let mut values = reply.split("\r\n").filter(|line| !line.starts_with(['*', '$']));
                assert_eq!(
                    values.next(),
                    values.nth(MANY - 2),
                    "the reply mixes old and new values"
                );
            }
        });
        // Two clients delete the same keys. Each deletion must be counted once, in the reply to the
        // client whose request ran first.
        let delete = many(&["DEL"], |number| [key(number)]);
        let (mut one, mut two) = (server.connect(), server.connect());
        one.send_bytes(&delete);
        two.send_bytes(&delete);
        let counts = [one.read(), two.read()];
        assert!(counts.contains(&format!(":{MANY}\r\n").into_bytes()), "{counts:?}");
        assert!(counts.contains(&b":0\r\n".to_vec()), "{counts:?}");
    });
}

#[test]
fn others_are_served_between_its_steps() {
    serving("appendonly no", |server| {
        let mut writer = server.connect();
        let mut other = server.connect();
        let hash =
            |value: usize| many(&["HSET", "hash"], move |number| [key(number), value.to_string()]);
        until("other clients are not served between the steps", || {
            writer.send_bytes(&[hash(1), hash(2), hash(3)].concat());
            // The other client sends its requests later. Nevertheless, it gets its replies before
            // the writer gets any byte.
            let began = Instant::now();
            let mut served = 0;
            while began.elapsed() < Duration::from_millis(10) {
                assert_eq!(other.call(&["SET", "other", "v"]), "+OK\r\n");
                served += 1;
            }
            let is_silent = writer.is_silent();
            (0..3).for_each(|_| assert!(writer.read().starts_with(b":")));
            served > 2 && is_silent
        });
    });
}

#[test]
fn it_comes_to_its_end_without_its_client() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some(server) = start(back_end, &volume, "") else { continue };
        let mut observer = server.connect();
        let mut client = server.connect();
        client.send_bytes(&mset(1));
        drop(client);
        // If the server has received the whole request, all its keys exist. If the request was cut
        // off, no key exists.
        until("the client stays connected", || info(&mut observer, "connected_clients") == "1");
        let size = observer.call(&["DBSIZE"]);
        assert!(size == ":0\r\n" || size == format!(":{MANY}\r\n"), "{size}");
        server.stop();
        let server = start(back_end, &volume, "").unwrap();
        assert_eq!(server.connect().call(&["DBSIZE"]), size);
        server.stop();
    }
}

#[test]
fn what_it_has_written_is_read_when_it_is_durable() {
    held("log-segment-size 8mb", |world| {
        let mut writer = world.connect("writer");
        world.shut();
        writer.send_bytes(&mset(1));
        until("the long request has not run", || {
            world.observer.call(&["INFO", "keyspace"]).contains(&format!("keys={MANY},"))
        });
        let mut reader = world.connect("reader");
        reader.send(&["GET", &key(MANY / 2)]);
        world.wait_until_run("reader", "get");
        let mut large = world.connect("large");
        large.send_bytes(&many(&["EXISTS"], |number| [key(number)]));
        world.wait_until_run("large", "exists");
        for client in [&mut writer, &mut reader, &mut large] {
            assert!(client.is_silent(), "a reply left before the long request was durable");
        }
        world.open();
        assert_eq!(writer.read(), b"+OK\r\n");
        assert_eq!(reader.read(), b"$1\r\n1\r\n");
        assert_eq!(large.read(), format!(":{MANY}\r\n").into_bytes());
    });
}

/// Under `everysec`, a small record is stored in a mapped buffer. From that moment on, it outlives
/// the process. The record of a large value is not in such a buffer. It outlives the process only
/// after the server has written it, so the reply must not leave before that.
#[test]
fn a_large_value_is_kept_when_it_is_written() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let directives = "appendfsync everysec\nlog-segment-size 16mb";
        let Some((server, gate)) = start_held(back_end, &volume, directives) else { continue };
        let (mut client, mut observer) = (server.connect(), server.connect());
        gate.shut();
        client.send(&["SET", "text", &"x".repeat(LARGE)]);
        until("the value is not in the backlog of the log", || {
            info(&mut observer, "log_backlog_bytes").parse::<usize>().unwrap() > LARGE
        });
        assert!(client.is_silent(), "the server acknowledged a value that a kill would lose");
        gate.open();
        // Until now, the gate has held back the completions of the log's writes. Opening it does
        // not wake the server, but any turn of the server polls the log's path.
        assert_eq!(observer.call(&["PING"]), "+PONG\r\n");
        assert_eq!(client.read(), b"+OK\r\n");
        server.stop();
    }
}

/// If a snapshot had a part of a request, the replay of the whole record would apply that part
/// twice.
#[test]
fn no_snapshot_holds_a_part_of_it() {
    const APPENDS: usize = 6;
    let more = encode(&[b"APPEND", b"text", "x".repeat(4 * LARGE).as_bytes()]).repeat(APPENDS);
    for back_end in BACK_ENDS {
        until_met("no snapshot was due while a long request ran", || {
            let dir = tempfile::tempdir().unwrap();
            let volume = dir.path().join("volume");
            let directives = "enable-debug-command yes";
            let Some(server) = start(back_end, &volume, directives) else { return true };
            let (mut client, mut observer) = (server.connect(), server.connect());
            assert_eq!(client.call(&["DEBUG", "POPULATE", "50000"]), "+OK\r\n");
            let mut was_put_off = false;
            std::thread::scope(|scope| {
                let task = scope.spawn(|| {
                    client.send_bytes(&more);
                    (0..APPENDS).for_each(|_| assert!(client.read().starts_with(b":")));
                });
                while !task.is_finished() && info(&mut observer, "long_request") == "none" {}
                // The second snapshot is due as soon as the first has ended. A long request may be
                // running at that time.
                for request in [&["BGSAVE"][..], &["BGREWRITEAOF"]] {
                    observer.call(request);
                }
                while !was_put_off && !task.is_finished() {
                    let text = observer.call(&["INFO", "everything"]);
                    let says = |line: &str| text.contains(&format!("{line}\r\n"));
                    was_put_off = says("aof_rewrite_scheduled:1")
                        && says("rdb_bgsave_in_progress:0")
                        && (says("long_request:running") || says("long_request:staging"));
                }
            });
            until("the rewrite did not end", || {
                info(&mut observer, "snapshot_rewrites_complete") == "1"
            });
            assert!(server.abandon().is_ok());
            let server = start(back_end, &volume, "").unwrap();
            let size = format!(":{}\r\n", APPENDS * 4 * LARGE);
            assert_eq!(server.connect().call(&["STRLEN", "text"]), size, "{back_end}");
            server.stop();
            was_put_off
        });
    }
}

/// A WAL-snapshot may leave out entries that are overwritten while the snapshot is taken, because
/// the log has the new values. But the log has the values of a long request only when the request
/// has ended. Until then, no snapshot that lacks overwritten entries may be adopted.
#[test]
fn no_snapshot_lacks_what_it_overwrites() {
    /// Number of keys with 10 KB each. While the gate is shut, it holds back the completions of the
    /// snapshot's writes. So the snapshot can't take all of these keys.
    const OTHERS: usize = 2000;
    const BEFORE: usize = 100;
    const BEHIND: usize = 30 * MANY;
    let set = |keys: usize, value: &[u8]| {
        let keys: Vec<_> = (0..keys).map(|number| key(number).into_bytes()).collect();
        let words = keys.iter().flat_map(|key| [key.as_slice(), value]);
        encode(&[&b"MSET"[..]].into_iter().chain(words).collect::<Vec<_>>())
    };
    let all = |keys: usize, value: &str| {
        let values = format!("$1\r\n{value}\r\n").repeat(2);
        [format!(":{}\r\n", OTHERS + keys), format!("*2\r\n{values}")]
    };
    let (first, second) = (set(BEFORE, b"1"), set(BEHIND, b"2"));
    let directives = "enable-debug-command yes\nrdbcompression no";
    for back_end in BACK_ENDS {
        until_met("no snapshot was written while a long request ran", || {
            let dir = tempfile::tempdir().unwrap();
            let volume = dir.path().join("volume");
            let gate = Gate::default();
            let held = gate.clone();
            let wrap = move |storage| held.hold_snapshots(storage);
            let server = start_on(back_end, &volume, directives, wrap);
            let Some(server) = server else { return true };
            let (mut client, mut observer) = (server.connect(), server.connect());
            client.call(&["DEBUG", "POPULATE", &OTHERS.to_string(), "other", "10000"]);
            client.send_bytes(&first);
            assert_eq!(client.read(), b"+OK\r\n");
            gate.shut();
            observer.call(&["BGREWRITEAOF"]);
            let mut is_written = false;
            std::thread::scope(|scope| {
                let task = scope.spawn(|| {
                    client.send_bytes(&second);
                    client.read()
                });
                while !task.is_finished() {
                    let text = observer.call(&["INFO", "everything"]);
                    let says = |line: &str| text.contains(&format!("{line}\r\n"));
                    if !says("long_request:running") {
                        continue;
                    }
                    gate.open();
                    is_written |= !says("snapshot_stage:taking");
                    let is_adopted = says("snapshot_rewrites_complete:1");
                    assert!(!is_adopted, "a kill now would lose overwritten keys");
                }
                gate.open();
                assert!(server.abandon().is_ok());
                // The thread may have panicked, because the server has closed the thread's
                // connection.
                drop(task.join());
            });
            let server = start(back_end, &volume, "").unwrap();
            let mut client = server.connect();
            let found = [&["DBSIZE"][..], &["MGET", &key(0), &key(BEFORE - 1)]];
            let found = found.map(|request| client.call(request));
            assert_eq!(found, all(BEHIND, "2"));
            server.stop();
            is_written
        });
    }
}

/// A long request reserves room in the log before it begins. No other client may take that room, so
/// the log must have room for the request's record when the request ends.
#[test]
fn it_has_room_in_the_log_when_it_is_over() {
    let directives = "log-segment-size 1mb\nlog-size-max 26mb\nlog-buffer-size 256kb";
    let large = "x".repeat(5 * LARGE);
    let set = encode(&[b"SET", b"text", large.as_bytes()]);
    // Besides the room that the long request asks for, the log has only one segment, and the bytes
    // that it sets aside for deletes. Two requests like `small` need more room than that.
    let value = "v".repeat(1_000_000);
    let small = encode(&[b"SET", b"small", value.as_bytes()]);
    let (head, end) = small.split_at(small.len() - 2);
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some(server) = start(back_end, &volume, directives) else { continue };
        let (mut client, mut observer) = (server.connect(), server.connect());
        let mut writers: Vec<_> = (0..3).map(|_| server.connect()).collect();
        until_met("no other client wrote while a long request ran", || {
            for writer in &mut writers {
                writer.send_bytes(head);
            }
            client.send_bytes(&set);
            while client.is_silent() && info(&mut observer, "long_request") != "staging" {}
            for writer in &mut writers {
                writer.send_bytes(end);
            }
            let has_met = info(&mut observer, "long_request") == "staging";
            for client in writers.iter_mut().chain([&mut client]) {
                assert_eq!(client.read(), b"+OK\r\n");
            }
            // `FLUSHALL` lets the log start over.
            assert_eq!(client.call(&["FLUSHALL"]), "+OK\r\n");
            has_met
        });
        server.stop();
    }
}

#[test]
fn a_stop_finds_no_part_of_it() {
    for back_end in BACK_ENDS {
        until_met("no SHUTDOWN came while a long request ran", || {
            let dir = tempfile::tempdir().unwrap();
            let volume = dir.path().join("volume");
            let Some(server) = start(back_end, &volume, "save 3600 1") else { return true };
            let (mut client, mut observer) = (server.connect(), server.connect());
            assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "no"]), "+OK\r\n");
            until("the log was not turned off", || info(&mut client, "log_state") == "off");
            client.send_bytes(&mset(1));
            assert_eq!(client.read(), b"+OK\r\n");
            client.send_bytes(&mset(2));
            while client.is_silent() && info(&mut observer, "long_request") != "running" {}
            // Both requests arrive in one turn of the server.
            observer.send_bytes(&[encode(&[b"INFO"]), encode(&[b"SHUTDOWN"])].concat());
            let before = String::from_utf8(observer.read()).unwrap();
            server.ended().unwrap();

            let server = start(back_end, &volume, "appendonly no").unwrap();
            let mut client = server.connect();
            client.send_bytes(&many(&["MGET"], |number| [key(number)]));
            let reply = String::from_utf8(client.read()).unwrap();
            let values: Vec<_> =
                reply.split("\r\n").filter(|line| !line.starts_with(['*', '$'])).collect();
            assert!(values.len() > MANY, "{}", &reply[..100.min(reply.len())]);
            let is_one = values[1..MANY].iter().all(|value| *value == values[0]);
            assert!(is_one, "the server saved a part of a long request");
            server.stop();
            before.contains("long_request:running\r\n")
        });
    }
}

/// When the pause begins, a long request may have arrived but not begun. It must not write before
/// the pause has ended.
#[test]
fn nothing_of_it_is_written_within_a_pause() {
    let get = ["MGET", &key(0), &key(MANY - 1)];
    let pause = encode(&[b"CLIENT", b"PAUSE", b"60000", b"WRITE"]);
    let paused_get = [encode(&[b"INFO"]), pause, encode(&get.map(str::as_bytes))].concat();
    serving("", |server| {
        let (mut client, mut observer) = (server.connect(), server.connect());
        let mut value = 0;
        until_met("no pause came between arrival and run of a long request", || {
            value += 1;
            client.send_bytes(&mset(value));
            while client.is_silent() && info(&mut observer, "long_request") == "none" {}
            // All requests arrive in one turn of the server.
            observer.send_bytes(&paused_get);
            let before = String::from_utf8(observer.read()).unwrap();
            assert_eq!(observer.read(), b"+OK\r\n");
            let values = String::from_utf8(observer.read()).unwrap();
            until("a long request still runs", || info(&mut observer, "long_request") == "none");
            assert_eq!(observer.call(&get), values, "a long request wrote within a pause");
            assert_eq!(observer.call(&["CLIENT", "UNPAUSE"]), "+OK\r\n");
            assert_eq!(client.read(), b"+OK\r\n");
            before.contains("long_request:measuring\r\n")
        });
    });
}

/// The pipeline and the other clients must each get a share of each turn, and all requests must be
/// answered.
#[test]
fn a_long_pipeline_leaves_others_their_turn() {
    const COUNT: usize = 100_000;
    serving("appendonly no\nclient-output-buffer-limit normal 0 0 0", |server| {
        let mut other = server.connect();
        let mut flood = server.connect();
        let large = "x".repeat(100_000);
        let mut bytes = Vec::new();
        for number in 0..COUNT {
            bytes.extend(encode(&[b"APPEND", b"text", b"x"]));
            if number % 1000 == 0 {
                bytes.extend(encode(&[b"ECHO", large.as_bytes()]));
            }
        }
        let mut served = 0;
        std::thread::scope(|scope| {
            let task = scope.spawn(move || {
                flood.send_bytes(&bytes);
                flood.end_sending();
                let replies = flood.read_to_end();
                replies.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b":")).count()
            });
            while !task.is_finished() {
                assert_eq!(other.call(&["PING"]), "+PONG\r\n");
                served += 1;
            }
            assert_eq!(task.join().unwrap(), COUNT);
        });
        assert!(served >= 20, "only {served} PINGs were served during the long pipeline");
        assert_eq!(other.call(&["STRLEN", "text"]), format!(":{COUNT}\r\n"));
    });
}
