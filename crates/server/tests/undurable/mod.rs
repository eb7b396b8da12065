//! No client may see anything of a write that is not durable.

mod exempt;
mod generator;
mod rows;
mod words;
mod world;

use std::path::Path;

use crate::common::{BACK_ENDS, Client, encode, until};
pub(crate) use world::World;

/// Runs a check on a server whose log can be held back, with each back end. From
/// [`World::shut`] to [`World::open`], no write becomes durable.
pub(crate) fn held(directives: &str, check: impl Fn(&mut World)) {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume: &Path = &dir.path().join("volume");
        if let Some(mut world) = World::start(back_end, volume, directives) {
            check(&mut world);
            world.stop();
        }
    }
}

pub(crate) fn send_all(client: &mut Client, requests: &[&[&str]]) {
    let encode = |request: &&[&str]| {
        let args: Vec<&[u8]> = request.iter().map(|arg| arg.as_bytes()).collect();
        encode(&args)
    };
    client.send_bytes(&requests.iter().flat_map(encode).collect::<Vec<u8>>());
}

fn read_text(client: &mut Client) -> String {
    String::from_utf8_lossy(&client.read()).into_owned()
}

/// Checks that the reply of `reader`'s transaction waits until the held write becomes durable.
fn check_exec_waits(world: &mut World, reader: &mut Client, reply: &str) {
    assert_eq!(reader.call(&["MULTI"]), "+OK\r\n");
    assert_eq!(reader.call(&["PING"]), "+QUEUED\r\n");
    reader.send(&["EXEC"]);
    world.wait_until_run("reader", "exec");
    assert!(reader.is_silent(), "the reply of EXEC does not wait for the log");

    world.open();
    assert_eq!(read_text(reader), reply);
}

#[test]
fn under_always_nobody_reads_what_is_not_durable() {
    let requests: [(&[&str], &str); 6] = [
        (&["GET", "changed"], "$3\r\nnew\r\n"),
        (&["GET", "deleted"], "$-1\r\n"),
        (&["STRLEN", "changed"], ":3\r\n"),
        (&["MGET", "untouched", "deleted"], "*2\r\n$1\r\ny\r\n$-1\r\n"),
        (&["DBSIZE"], ":2\r\n"),
        // This write changes nothing, but its reply depends on a record that is not durable.
        (&["SETNX", "changed", "other"], ":0\r\n"),
    ];
    held("", |world| {
        let mut writer = world.connect("writer");
        let old = ["MSET", "changed", "old", "deleted", "x", "untouched", "y"];
        assert_eq!(writer.call(&old), "+OK\r\n");

        world.shut();
        send_all(&mut writer, &[&["SET", "changed", "new"], &["DEL", "deleted"]]);
        world.wait_until_run("writer", "del");
        let mut readers = Vec::new();
        for (number, (request, _)) in requests.iter().enumerate() {
            let name = format!("reader{number}");
            let mut reader = world.connect(&name);
            reader.send(request);
            world.wait_until_run(&name, &request[0].to_lowercase());
            readers.push(reader);
        }
        assert_eq!(world.observer.call(&["GET", "untouched"]), "$1\r\ny\r\n");
        assert!(writer.is_silent(), "a write was acknowledged before it was durable");
        for (reader, (request, _)) in readers.iter_mut().zip(&requests) {
            assert!(reader.is_silent(), "the reply to {request:?} did not wait");
        }

        world.open();
        assert_eq!(writer.read(), b"+OK\r\n");
        assert_eq!(writer.read(), b":1\r\n");
        for (reader, (request, reply)) in readers.iter_mut().zip(&requests) {
            assert_eq!(read_text(reader), *reply, "{request:?}");
        }
    });
}

/// Each command here runs in steps, and its first step reads a key whose last write is not durable
/// yet. The reply leaves only some steps later, and must still wait for that write.
#[test]
fn a_reply_made_in_steps_waits_for_what_its_first_step_has_read() {
    const COUNT: usize = 10_000;
    let requests: [&[&str]; 4] = [
        &["SMEMBERS", "set"],
        &["SUNION", "set", "none"],
        &["SRANDMEMBER", "set", "9000"],
        &["HGETALL", "hash"],
    ];
    held("", |world| {
        let mut writer = world.connect("writer");
        let names: Vec<String> = (0..COUNT).map(|number| format!("name {number}")).collect();
        for names in names.chunks(500) {
            let members = names.iter().map(String::as_str);
            let fields = members.clone().flat_map(|name| [name, "value"]);
            writer.call(&["SADD", "set"].into_iter().chain(members).collect::<Vec<_>>());
            writer.call(&["HSET", "hash"].into_iter().chain(fields).collect::<Vec<_>>());
        }

        world.shut();
        send_all(&mut writer, &[&["SADD", "set", "new"], &["HSET", "hash", "new", "value"]]);
        world.wait_until_run("writer", "hset");
        let mut readers = requests.map(|request| {
            let name = request[0].to_lowercase();
            let mut reader = world.connect(&name);
            reader.send(request);
            let stat = format!("cmdstat_{name}:");
            until("the command has not ended", || {
                world.observer.call(&["INFO", "commandstats"]).contains(&stat)
            });
            world.wait_until_run(&name, &name);
            reader
        });
        for (reader, request) in readers.iter_mut().zip(requests) {
            assert!(reader.is_silent(), "the reply to {request:?} did not wait");
        }

        world.open();
        let counts = [COUNT + 1, COUNT + 1, 9000, 2 * (COUNT + 1)];
        for ((reader, request), count) in readers.iter_mut().zip(requests).zip(counts) {
            assert!(read_text(reader).starts_with(&format!("*{count}\r\n")), "{request:?}");
        }
    });
}

#[test]
fn a_refusal_waits_for_the_key_of_another_database() {
    held("", |world| {
        let mut writer = world.connect("writer");
        assert_eq!(writer.call(&["MSET", "moved", "x", "copied", "y"]), "+OK\r\n");
        assert_eq!(writer.call(&["SELECT", "1"]), "+OK\r\n");
        world.shut();
        writer.send(&["MSET", "moved", "in the way", "copied", "in the way"]);
        world.wait_until_run("writer", "mset");
        let requests: [&[&str]; 2] =
            [&["MOVE", "moved", "1"], &["COPY", "copied", "copied", "DB", "1"]];
        let mut readers = requests.map(|request| {
            let name = request[0].to_lowercase();
            let mut reader = world.connect(&name);
            reader.send(request);
            world.wait_until_run(&name, &name);
            reader
        });
        for reader in &mut readers {
            assert!(reader.is_silent(), "a refusal did not wait for the other key");
        }
        world.open();
        for reader in &mut readers {
            assert_eq!(read_text(reader), ":0\r\n");
        }
    });
}

#[test]
fn a_transaction_waits_for_the_write_that_it_was_given_up_for() {
    held("", |world| {
        let mut writer = world.connect("writer");
        assert_eq!(writer.call(&["MSET", "changed", "old", "other", "y"]), "+OK\r\n");
        let mut reader = world.connect("reader");
        assert_eq!(reader.call(&["WATCH", "other", "changed"]), "+OK\r\n");

        world.shut();
        writer.send(&["SET", "changed", "new"]);
        world.wait_until_run("writer", "set");
        check_exec_waits(world, &mut reader, "*-1\r\n");
    });
}

#[test]
fn a_transaction_waits_for_the_time_that_a_watched_key_was_given() {
    held("", |world| {
        let mut writer = world.connect("writer");
        assert_eq!(writer.call(&["SET", "key", "value"]), "+OK\r\n");
        world.shut();
        writer.send(&["PEXPIRE", "key", "5"]);
        world.wait_until_run("writer", "pexpire");
        let mut reader = world.connect("reader");
        assert_eq!(reader.call(&["WATCH", "key"]), "+OK\r\n");
        assert_eq!(world.observer.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]), "+OK\r\n");
        world.pass_ms(10);
        check_exec_waits(world, &mut reader, "*-1\r\n");
    });
}

/// A watched key would have expired without an earlier `PERSIST`, which is not durable. If the
/// transaction runs, its reply reveals the `PERSIST`, so the reply must wait.
#[test]
fn a_transaction_that_runs_waits_for_what_a_watched_key_was_spared() {
    held("", |world| {
        let mut writer = world.connect("writer");
        assert_eq!(writer.call(&["SET", "key", "value", "PX", "5"]), "+OK\r\n");
        world.shut();
        writer.send(&["PERSIST", "key"]);
        world.wait_until_run("writer", "persist");
        let mut reader = world.connect("reader");
        assert_eq!(reader.call(&["WATCH", "key"]), "+OK\r\n");
        world.pass_ms(10);
        check_exec_waits(world, &mut reader, "*1\r\n+PONG\r\n");
    });
}

#[test]
fn what_was_written_before_always_is_not_read_before_it_is_durable() {
    held("appendfsync everysec", |world| {
        let mut writer = world.connect("writer");
        world.shut();
        assert_eq!(writer.call(&["SET", "key", "value"]), "+OK\r\n");
        assert_eq!(world.observer.call(&["CONFIG", "SET", "appendfsync", "always"]), "+OK\r\n");
        let mut reader = world.connect("reader");
        reader.send(&["GET", "key"]);
        world.wait_until_run("reader", "get");
        assert!(reader.is_silent(), "the reply to GET did not wait for the key");

        world.open();
        assert_eq!(read_text(&mut reader), "$5\r\nvalue\r\n");
    });
}

#[test]
fn debug_object_waits_for_its_key() {
    held("", |world| {
        let mut writer = world.connect("writer");
        assert_eq!(writer.call(&["MSET", "deleted", "x", "untouched", "y"]), "+OK\r\n");
        world.shut();
        send_all(&mut writer, &[&["SET", "made", "value"], &["DEL", "deleted"]]);
        world.wait_until_run("writer", "del");
        let keys = ["made", "deleted"];
        let mut readers = keys.map(|key| {
            let mut reader = world.connect(key);
            assert_eq!(reader.call(&["MULTI"]), "+OK\r\n");
            assert_eq!(reader.call(&["DEBUG", "OBJECT", key]), "+QUEUED\r\n");
            reader.send(&["EXEC"]);
            world.wait_until_run(key, "exec");
            let mut plain = world.connect(&format!("plain-{key}"));
            plain.send(&["DEBUG", "OBJECT", key]);
            world.wait_until_run(&format!("plain-{key}"), "debug");
            (reader, plain)
        });
        for (reader, plain) in &mut readers {
            assert!(reader.is_silent(), "EXEC did not wait for the key");
            assert!(plain.is_silent(), "DEBUG OBJECT did not wait for the key");
        }
        let untouched = world.observer.call(&["DEBUG", "OBJECT", "untouched"]);
        assert!(untouched.contains("encoding:"), "{untouched}");

        world.open();
        let [(_, made), (_, deleted)] = &mut readers;
        assert!(read_text(made).contains("serializedlength:5"));
        assert_eq!(read_text(deleted), "-ERR no such key\r\n");
    });
}

#[test]
fn the_slow_log_leaves_out_what_is_not_durable() {
    held("slowlog-log-slower-than 0\nslowlog-max-len 100000", |world| {
        let mut writer = world.connect("writer");
        assert_eq!(writer.call(&["SET", "key", "durable-value"]), "+OK\r\n");
        world.shut();
        let mut readers = Vec::new();
        writer.send(&["SET", "key", "secret-alone"]);
        world.wait_until_run("writer", "set");
        let mut other = world.connect("other");
        send_all(&mut other, &[&["MULTI"], &["SET", "key", "secret-transaction"], &["EXEC"]]);
        world.wait_until_run("other", "exec");
        // An entry for a command that failed because of the write would reveal the write, too.
        let mut third = world.connect("third");
        third.send(&["SETNX", "key", "secret-refused"]);
        world.wait_until_run("third", "setnx");
        readers.extend([writer, other, third]);

        let count = |text: &str| text.trim_start_matches(':').trim().parse::<usize>().unwrap();
        let listed = |text: &str| count(text.split_once("\r\n").unwrap().0.trim_start_matches('*'));
        let log = world.observer.call(&["SLOWLOG", "GET", "-1"]);
        assert!(log.contains("durable-value"), "{log}");
        assert!(!log.contains("secret"), "{log}");
        // `SLOWLOG GET` itself is in the slow log when `SLOWLOG LEN` counts the entries.
        let len = count(&world.observer.call(&["SLOWLOG", "LEN"]));
        assert_eq!(len, listed(&log) + 1, "SLOWLOG LEN must count the shown entries");

        world.open();
        for reader in &mut readers {
            reader.read();
        }
        let log = world.observer.call(&["SLOWLOG", "GET", "-1"]);
        for secret in ["secret-alone", "secret-transaction", "secret-refused"] {
            assert!(log.contains(secret), "{secret} is durable, but left out: {log}");
        }
    });
}

#[test]
fn figures_do_not_wait_for_the_log() {
    held("", |world| {
        let mut writer = world.connect("writer");
        world.shut();
        send_all(&mut writer, &[&["SET", "key", "value"], &["FLUSHALL"], &["SET", "key", "v"]]);
        world.wait_until_run("writer", "set");
        for request in [&["INFO"][..], &["INFO", "everything"], &["MEMORY", "STATS"]] {
            let reply = world.observer.call(request);
            assert!(!reply.starts_with('-'), "{request:?}: {reply}");
            assert_eq!(world.observer.call(&["MULTI"]), "+OK\r\n");
            assert_eq!(world.observer.call(request), "+QUEUED\r\n");
            let reply = world.observer.call(&["EXEC"]);
            assert!(reply.starts_with("*1\r\n"), "{request:?}: {reply}");
        }
        assert!(writer.is_silent(), "a write was acknowledged before it was durable");
        world.open();
    });
}

#[test]
fn the_list_of_clients_shows_no_watch_that_was_touched_by_what_is_not_durable() {
    held("", |world| {
        let mut reader = world.connect("reader");
        assert_eq!(reader.call(&["WATCH", "key"]), "+OK\r\n");
        let mut writer = world.connect("writer");
        world.shut();
        writer.send(&["SET", "key", "value"]);
        world.wait_until_run("writer", "set");
        let line = world.client_line(" name=reader ").unwrap();
        assert!(line.contains(" flags=N "), "{line}");
        let line = reader.call(&["CLIENT", "INFO"]);
        assert!(line.contains(" flags=N "), "{line}");

        world.open();
        assert_eq!(writer.read(), b"+OK\r\n");
        let line = world.client_line(" name=reader ").unwrap();
        assert!(line.contains(" flags=d "), "{line}");
    });
}
