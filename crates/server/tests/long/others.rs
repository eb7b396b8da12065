//! Other work that must wait for a long request, or is affected by it: transactions, `DBSIZE`,
//! moved keys, eviction, watchers, and requests that ask whether a write is durable. In names of
//! tests, `it` is the long request.

use std::path::Path;
use std::sync::atomic::Ordering;

use slimio_server::WallClock;
use slimio_server::config::Config;
use slimio_sim::{Limits, SimConfig};

use super::{MANY, beside, key, many, mset, until_met};
use crate::common::{BACK_ENDS, config, encode, start, start_held, until};
use crate::crashes::{Kind, SimMedia, launch_on};
use crate::undurable::{held, send_all};
use crate::{info, serving};

fn msetnx() -> Vec<u8> {
    many(&["MSETNX"], |number| [key(number), "1".to_owned()])
}

fn del() -> Vec<u8> {
    many(&["DEL"], |number| [key(number)])
}

#[test]
fn transactions_and_counts_see_all_of_it_or_nothing() {
    serving("", |server| {
        let (first, last) = (key(0), key(MANY - 1));
        let sets: Vec<_> = (10..30).map(mset).collect();
        beside(server, &sets, |client, is_running| {
            while is_running.load(Ordering::SeqCst) {
                send_all(client, &[&["MULTI"], &["GET", &first], &["GET", &last], &["EXEC"]]);
                (0..3).for_each(|_| drop(client.read()));
                let reply = String::from_utf8(client.read()).unwrap();
                let values: Vec<_> = reply.split("\r\n").filter(|l| !l.starts_with('*')).collect();
                let (one, other) = values.split_at(values.len() / 2);
                assert_eq!(one, &other[..one.len()], "a transaction saw a part of a long request");
            }
        });
        let turns: Vec<_> = (0..10).flat_map(|value| [del(), mset(value)]).collect();
        beside(server, &turns, |client, is_running| {
            while is_running.load(Ordering::SeqCst) {
                let size = client.call(&["DBSIZE"]);
                let is_whole = size == ":0\r\n" || size == format!(":{MANY}\r\n");
                assert!(is_whole, "DBSIZE counted a part of a long request: {size}");
            }
        });
    });
}

/// `MSETNX` checks that none of its keys exists, and then writes them. If another client moved a
/// key to one of these names between the check and the write, `MSETNX` would overwrite the moved
/// key.
#[test]
fn no_key_is_moved_into_its_database_meanwhile() {
    const ROUNDS: usize = 5;
    let last = key(MANY - 1);
    serving("", |server| {
        let (mut client, mut mover) = (server.connect(), server.connect());
        assert_eq!(mover.call(&["SELECT", "1"]), "+OK\r\n");
        let moves = [encode(&[b"INFO"]), encode(&[b"MOVE", last.as_bytes(), b"0"])].concat();
        let mut met = 0;
        until_met("too few MOVEs came while a long request ran", || {
            assert_eq!(client.call(&["FLUSHALL"]), "+OK\r\n");
            assert_eq!(mover.call(&["SET", &last, "moved"]), "+OK\r\n");
            client.send_bytes(&msetnx());
            while client.is_silent() && info(&mut mover, "long_request") != "running" {}
            // Both requests arrive in one turn of the server.
            mover.send_bytes(&moves);
            let before = String::from_utf8(mover.read()).unwrap();
            let (moved, set) = (mover.read(), client.read());
            assert_ne!(moved, set, "MOVE and MSETNX must not both succeed or both fail");
            met += usize::from(before.contains("long_request:running\r\n"));
            met == ROUNDS
        });
    });
}

#[test]
fn who_watches_one_of_its_keys_is_told() {
    serving("", |server| {
        let (mut client, mut watcher) = (server.connect(), server.connect());
        assert_eq!(watcher.call(&["WATCH", &key(MANY - 1)]), "+OK\r\n");
        client.send_bytes(&mset(1));
        assert_eq!(client.read(), b"+OK\r\n");
        send_all(&mut watcher, &[&["MULTI"], &["PING"], &["EXEC"]]);
        let replies = [watcher.read(), watcher.read(), watcher.read()];
        assert_eq!(replies[2], b"*-1\r\n", "the transaction ran although its key was changed");
    });
}

/// If a key that the request sets were evicted before the request has ended, the eviction would be
/// in the log before the record that sets the key. So recovery would bring the key back.
#[test]
fn nothing_that_it_sets_is_evicted_before_its_end() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some(server) = start(back_end, &volume, "") else { continue };
        let mut client = server.connect();
        let used: usize = info(&mut client, "used_memory").parse().unwrap();
        let limit = (used + (1 << 20)).to_string();
        let set = ["CONFIG", "SET", "maxmemory-policy", "allkeys-random", "maxmemory", &limit];
        assert_eq!(client.call(&set), "+OK\r\n");
        for round in 0..10 {
            // Each round has keys of its own. Otherwise, a later round would hide that a key came
            // back.
            let set = many(&["MSET"], |number| [format!("{round}:{number}"), "value".to_owned()]);
            client.send_bytes(&set);
            assert_eq!(client.read(), b"+OK\r\n");
        }
        let evicted: u64 = info(&mut client, "evicted_keys").parse().unwrap();
        assert!(evicted > 0, "no key was evicted");
        assert_eq!(client.call(&["CONFIG", "SET", "maxmemory", "0"]), "+OK\r\n");
        let size = client.call(&["DBSIZE"]);
        assert!(server.abandon().is_ok());
        let server = start(back_end, &volume, "").unwrap();
        assert_eq!(server.connect().call(&["DBSIZE"]), size, "{back_end}: evicted keys came back");
        server.stop();
    }
}

/// The request is so small that, under `everysec`, its reply leaves at once. But until the
/// request's record is durable, `WAITAOF` must not say that the log has the request.
#[test]
fn whether_it_is_durable_is_told_when_it_is() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let directives = "appendfsync everysec";
        let Some((server, gate)) = start_held(back_end, &volume, directives) else { continue };
        let mut client = server.connect();
        gate.shut();
        let keys: Vec<_> = (0..2000).map(key).collect();
        let words = keys.iter().flat_map(|key| [key.as_bytes(), b"v"]);
        client.send_bytes(&encode(&[&b"MSET"[..]].into_iter().chain(words).collect::<Vec<_>>()));
        assert_eq!(client.read(), b"+OK\r\n");
        assert_eq!(client.call(&["WAITAOF", "1", "0", "50"]), "*2\r\n:0\r\n:0\r\n");
        gate.open();
        assert_eq!(client.call(&["WAITAOF", "1", "0", "0"]), "*2\r\n:1\r\n:0\r\n");
        server.stop();
    }
}

#[test]
fn a_refusal_waits_for_the_key_that_it_has_seen() {
    held("log-segment-size 8mb", |world| {
        let (mut writer, mut refused) = (world.connect("writer"), world.connect("refused"));
        world.shut();
        writer.send(&["SET", &key(MANY - 1), "v"]);
        world.wait_until_run("writer", "set");
        refused.send_bytes(&msetnx());
        until("the MSETNX has not ended", || {
            let counts = world.observer.call(&["INFO", "commandstats"]);
            counts.contains("cmdstat_msetnx:calls=1,")
        });
        assert!(refused.is_silent(), "the refusal did not wait for the key");
        world.open();
        assert_eq!(writer.read(), b"+OK\r\n");
        assert_eq!(refused.read(), b":0\r\n");
    });
}

#[test]
fn who_waits_for_it_goes_on_in_the_order_of_arrival() {
    let set = |value: &str| {
        [encode(&[b"INFO"]), encode(&[b"SET", key(0).as_bytes(), value.as_bytes()])].concat()
    };
    serving("", |server| {
        let (mut client, mut observer) = (server.connect(), server.connect());
        let mut writers = [server.connect(), server.connect()];
        until_met("no two writers had to wait for a long request", || {
            client.send_bytes(&mset(1));
            while client.is_silent() && info(&mut observer, "long_request") == "none" {}
            let was_running =
                ["a", "b"].iter().zip(&mut writers).fold(true, |was, (value, writer)| {
                    writer.send_bytes(&set(value));
                    let before = String::from_utf8(writer.read()).unwrap();
                    was && before.contains("long_request:running\r\n")
                });
            for writer in &mut writers {
                assert_eq!(writer.read(), b"+OK\r\n");
            }
            assert_eq!(client.read(), b"+OK\r\n");
            let last = observer.call(&["GET", &key(0)]);
            assert!(!was_running || last == "$1\r\nb\r\n", "the later writer went first: {last}");
            was_running
        });
    });
}

/// A log that has stopped does not take the request's record, so the server must not acknowledge
/// the request. But if the request ends just before the disk fails, the server acknowledges the
/// request, and the disk has the record.
#[test]
fn one_that_ends_behind_a_failure_of_the_log_is_never_acknowledged() {
    until_met("each long request ended before the log stopped", || {
        let media = SimMedia::new(SimConfig::default(), Kind::Files);
        let disk = media.disk.clone();
        let server = launch_on(media, false, always(), WallClock::System).serving();
        let (mut client, mut other, mut writer) =
            (server.connect(), server.connect(), server.connect());
        let mut value = 0;
        let mut crash = None;
        until_met("no long request was seen while it ran", || {
            value += 1;
            client.send_bytes(&mset(value));
            while client.is_silent() && info(&mut other, "long_request") != "running" {}
            if info(&mut other, "long_request") == "running" {
                crash = Some(disk.crash_now());
                writer.send(&["SET", "other", "v"]);
            } else {
                assert_eq!(client.read(), b"+OK\r\n");
            }
            crash.is_some()
        });
        until("the log did not stop", || info(&mut other, "log_latched") == "1");
        until("the request has not ended", || info(&mut other, "long_request") == "none");
        assert_eq!(other.call(&["PING"]), "+PONG\r\n");
        let is_acknowledged = !client.is_silent() && client.read() == b"+OK\r\n";
        server.abandon().unwrap_err();
        if is_acknowledged {
            let image = crash.unwrap().power_images(&NOTHING_MORE).remove(0);
            let media = SimMedia::from_image(SimConfig::default(), Kind::Files, &image);
            let server = launch_on(media, true, always(), WallClock::System).serving();
            let last = server.connect().call(&["GET", &key(MANY - 1)]);
            assert!(
                last.ends_with(&format!("\r\n{value}\r\n")),
                "an acknowledged write was lost: {last}"
            );
            server.stop();
        }
        !is_acknowledged
    });
}

/// An image has only the writes that the disk had to keep.
const NOTHING_MORE: Limits = Limits { exhaustive_max: 0, random_count: 0, torn: false };

fn always() -> Config {
    config("plain", Path::new("simulated"), "appendfsync always\nlog-buffers 4")
}

/// If the copy did not wait for the long request, it would come after the request's writes in
/// memory, but before them in the log.
#[test]
fn nothing_is_copied_onto_its_keys_meanwhile() {
    let first = key(0);
    let copy = ["COPY", "source", &first, "DB", "1", "REPLACE"].map(str::as_bytes);
    for back_end in BACK_ENDS {
        until_met("no COPY came while a long request ran", || {
            let dir = tempfile::tempdir().unwrap();
            let volume = dir.path().join("volume");
            let Some(server) = start(back_end, &volume, "") else { return true };
            let (mut client, mut copier) = (server.connect(), server.connect());
            assert_eq!(copier.call(&["SET", "source", "copied"]), "+OK\r\n");
            assert_eq!(client.call(&["SELECT", "1"]), "+OK\r\n");
            client.send_bytes(&mset(1));
            while client.is_silent() && info(&mut copier, "long_request") != "running" {}
            // Both requests arrive in one turn of the server.
            copier.send_bytes(&[encode(&[b"INFO"]), encode(&copy)].concat());
            let before = String::from_utf8(copier.read()).unwrap();
            assert_eq!(copier.read(), b":1\r\n");
            assert_eq!(client.read(), b"+OK\r\n");
            let value = client.call(&["GET", &first]);
            assert!(server.abandon().is_ok());
            let server = start(back_end, &volume, "").unwrap();
            let mut client = server.connect();
            assert_eq!(client.call(&["SELECT", "1"]), "+OK\r\n");
            assert_eq!(client.call(&["GET", &first]), value, "the value differs after a restart");
            server.stop();
            before.contains("long_request:running\r\n")
        });
    }
}

/// Every write request of at least a certain size runs in steps. The request of this test is
/// smaller, but the value that it restores is so large that `RESTORE` runs in steps, too. The
/// request does not say `REPLACE`, so a key that another client sets must not be replaced.
#[test]
fn nobody_sets_a_key_that_is_being_restored() {
    for back_end in BACK_ENDS {
        until_met("no SET came while a RESTORE ran", || {
            let dir = tempfile::tempdir().unwrap();
            let Some(server) = start(back_end, &dir.path().join("volume"), "") else { return true };
            let (mut client, mut setter) = (server.connect(), server.connect());
            let value = vec![b'a'; 20_000];
            for field in 0..1_500 {
                client.send_bytes(&encode(&[
                    b"HSET",
                    b"source",
                    &[field as u8, (field >> 8) as u8],
                    &value,
                ]));
                assert_eq!(client.read(), b":1\r\n");
            }
            client.send_bytes(&encode(&[b"DUMP", b"source"]));
            let dump = client.read();
            let start_of_bytes = dump.iter().position(|&byte| byte == b'\n').unwrap() + 1;
            let payload = &dump[start_of_bytes..dump.len() - 2];
            assert!(payload.len() < 1 << 20, "{} bytes", payload.len());
            client.send_bytes(&encode(&[b"RESTORE", b"key", b"0", payload]));
            while client.is_silent() && info(&mut setter, "long_request") != "running" {}
            // Both requests arrive in one turn of the server.
            setter.send_bytes(&[encode(&[b"INFO"]), encode(&[b"SET", b"key", b"mine"])].concat());
            let before = String::from_utf8(setter.read()).unwrap();
            assert_eq!(setter.read(), b"+OK\r\n");
            assert_eq!(client.read(), b"+OK\r\n");
            assert_eq!(client.call(&["GET", "key"]), "$4\r\nmine\r\n");
            server.stop();
            before.contains("long_request:running\r\n")
        });
    }
}

/// If a reply is made in steps, it waits only for the records that are in the log at the last step.
/// So the reply must not show data whose record is not in the log yet.
#[test]
fn a_search_that_is_under_way_sees_nothing_of_it_before_it_is_logged() {
    held("log-segment-size 8mb", |world| {
        let (mut reader, mut writer) = (world.connect("reader"), world.connect("writer"));
        assert_eq!(writer.call(&["DEBUG", "POPULATE", "400000", "other"]), "+OK\r\n");
        for round in 1..=3 {
            world.shut();
            reader.send(&["KEYS", "key:*"]);
            writer.send_bytes(&mset(round));
            until("KEYS or MSET has not ended", || {
                let counts = world.observer.call(&["INFO", "commandstats"]);
                let calls = |name: &str| counts.contains(&format!("cmdstat_{name}:calls={round},"));
                calls("keys") && calls("mset")
            });
            if reader.is_silent() {
                world.open();
                reader.read();
            } else {
                assert_eq!(reader.read(), b"*0\r\n", "the reply shows keys that are not durable");
                world.open();
            }
            assert_eq!(writer.read(), b"+OK\r\n");
            writer.send_bytes(&del());
            assert_eq!(writer.read(), format!(":{MANY}\r\n").into_bytes());
        }
    });
}

/// Checks that another client's request waits until the long request has ended, although the two
/// requests have no key in common.
fn waits_for_it(request: &[&str]) {
    const ROUNDS: usize = 5;
    let words: Vec<&[u8]> = request.iter().map(|word| word.as_bytes()).collect();
    let requests = [encode(&[b"INFO"]), encode(&words), encode(&[b"INFO"])].concat();
    serving("enable-debug-command yes", |server| {
        let (mut client, mut other) = (server.connect(), server.connect());
        let mut met = 0;
        until_met("too few requests came while a long request ran", || {
            client.send_bytes(&mset(1));
            while client.is_silent() && info(&mut other, "long_request") != "running" {}
            // The first two requests arrive in one turn of the server.
            other.send_bytes(&requests);
            let replies = [other.read(), other.read(), other.read()];
            let [before, reply, behind] = replies.map(|reply| String::from_utf8(reply).unwrap());
            assert_eq!(reply, "+OK\r\n");
            assert!(
                behind.contains("long_request:none\r\n"),
                "{request:?} did not wait for the long request"
            );
            assert_eq!(client.read(), b"+OK\r\n");
            met += usize::from(before.contains("long_request:running\r\n"));
            met == ROUNDS
        });
    });
}

/// While a long request runs, no directive may turn the log on or off. Otherwise, the log could be
/// on when the request is admitted, but off when the request ends.
#[test]
fn no_directive_is_changed_meanwhile() {
    waits_for_it(&["CONFIG", "SET", "appendfsync", "no"]);
}

#[test]
fn nothing_is_debugged_meanwhile() {
    waits_for_it(&["DEBUG", "SET-ACTIVE-EXPIRE", "1"]);
}

/// `DEBUG POPULATE` may have begun before a long request, but must not continue meanwhile. If it
/// did, a long request that reads would see the new keys only in its last steps. If the long
/// request writes, its record would be in the log after the records of the new keys, although the
/// request began before these keys were made.
#[test]
fn no_keys_are_made_for_trials_meanwhile() {
    const COUNT: &str = "100000";
    let exists = many(&["EXISTS"], |number| [key(number)]);
    serving("enable-debug-command yes\nappendonly no", |server| {
        let (mut client, mut maker) = (server.connect(), server.connect());
        let mut observer = server.connect();
        assert_eq!(maker.call(&["SELECT", "1"]), "+OK\r\n");
        // The number of keys in database 1, if a long request runs and more keys are to come.
        let mut made = || {
            let text = observer.call(&["INFO", "everything"]);
            let keys = text.lines().find_map(|line| line.strip_prefix("db1:keys="));
            let keys = keys.and_then(|rest| rest.split(',').next()).map(str::to_owned);
            keys.filter(|keys| keys != COUNT && text.contains("long_request:running\r\n"))
        };
        for request in [exists.clone(), mset(1)] {
            until_met("no long request ran during a DEBUG POPULATE", || {
                maker.send(&["DEBUG", "POPULATE", COUNT]);
                let mut has_met = false;
                while maker.is_silent() && !has_met {
                    client.send_bytes(&request);
                    while client.is_silent() {
                        if let (Some(keys), Some(later)) = (made(), made()) {
                            assert_eq!(keys, later, "keys were made during a long request");
                            has_met = true;
                        }
                    }
                    assert!(!client.read().starts_with(b"-"));
                }
                assert_eq!(maker.read(), b"+OK\r\n");
                assert_eq!(maker.call(&["FLUSHDB"]), "+OK\r\n");
                has_met
            });
        }
    });
}
