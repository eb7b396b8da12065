//! Tests of the whole server, byte for byte, with both I/O back ends.
#![expect(clippy::unwrap_used, reason = "a test fails if it cannot go on")]

mod blocking;
mod checks;
mod common;
mod crashes;
mod ending;
mod events;
mod exchange;
mod half;
mod loading;
mod long;
mod memory;
mod pipelines;
mod rollback;
mod room;
mod starving;
mod transactions;
mod undurable;
mod upgrade;
mod waiting;

use std::path::Path;

use common::{BACK_ENDS, Client, Running, config, encode, start, until};
use crashes::{Kind, SimMedia, launch_on};
use slimio_server::WallClock;
use slimio_sim::SimConfig;

/// Runs a check against a server with these directives, over both back ends.
fn serving(directives: &str, check: impl Fn(&Running)) {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        if let Some(server) = start(back_end, &dir.path().join("volume"), directives) {
            check(&server);
            server.stop();
        }
    }
}

fn info(client: &mut Client, field: &str) -> String {
    let text = client.call(&["INFO", "everything"]);
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field} in INFO")).trim().to_owned()
}

#[test]
fn writes_among_writers_need_no_other_thread() {
    serving("appendfsync always", |server| {
        let mut writers = [server.connect(), server.connect()];
        until("the command thread never wrote to the log", || {
            for _ in 0..50 {
                for writer in &mut writers {
                    writer.send(&["INCR", "n"]);
                }
                for writer in &mut writers {
                    assert!(writer.read().starts_with(b":"));
                }
            }
            info(&mut writers[0], "log_writes_by_command_thread") != "0"
        });
    });
}

#[test]
fn requests_are_answered_in_order_whatever_their_form() {
    for policy in ["always", "everysec", "no"] {
        serving(&format!("appendfsync {policy}"), |server| {
            let mut client = server.connect();
            let mut bytes = Vec::new();
            for i in 0..500 {
                bytes.extend(encode(&[b"SET", format!("k{i}").as_bytes(), b"v"]));
                bytes.extend(encode(&[b"INCR", b"n"]));
                bytes.extend_from_slice(b"GET n\r\n");
            }
            client.send_bytes(&bytes);
            for i in 1..=500 {
                assert_eq!(client.read(), b"+OK\r\n");
                assert_eq!(client.read(), format!(":{i}\r\n").into_bytes());
                let n = i.to_string();
                assert_eq!(client.read(), format!("${}\r\n{n}\r\n", n.len()).into_bytes());
            }
            // The request is sent one byte at a time.
            for byte in encode(&[b"GET", b"k7"]) {
                client.send_bytes(&[byte]);
            }
            assert_eq!(client.read(), b"$1\r\nv\r\n");
        });
    }
}

#[test]
fn large_values_come_and_go_whole() {
    serving("appendfsync everysec", |server| {
        let mut client = server.connect();
        for size in [32_767, 32_768, 100_000, 256 << 10, (256 << 10) + 1, 3 << 20] {
            let value: Vec<u8> = (0..size).map(|i| (i * 7 % 251) as u8).collect();
            let mut bytes = encode(&[b"SET", b"large", &value]);
            bytes.extend(encode(&[b"STRLEN", b"large"]));
            bytes.extend(encode(&[b"GET", b"large"]));
            bytes.extend(encode(&[b"MSET", b"a", &value, b"b", &value]));
            bytes.extend(encode(&[b"GET", b"b"]));
            let mut writer = server.connect();
            writer.send_bytes(&encode(&[b"PING"]));
            assert_eq!(writer.read(), b"+PONG\r\n");
            client.send_bytes(&bytes);
            let whole = [format!("${size}\r\n").as_bytes(), &value, b"\r\n"].concat();
            assert_eq!(client.read(), b"+OK\r\n");
            assert_eq!(client.read(), format!(":{size}\r\n").into_bytes());
            assert!(client.read() == whole, "GET must return the {size} bytes of SET");
            assert_eq!(client.read(), b"+OK\r\n");
            assert!(client.read() == whole, "GET must return the {size} bytes of MSET");
        }
    });
}

/// A client sends `SAVE`, and then a `SET` with a large value. The save ends before the value has
/// arrived, because sending the value takes longer than the save. The server then resumes the
/// client between two reads of the client's socket. Bytes that have arrived by then belong to the
/// value.
#[test]
fn a_large_value_that_comes_while_a_save_ends_is_whole() {
    let value: Vec<u8> = (0..900 << 10).map(|i| (i * 7 % 251) as u8).collect();
    let whole = [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
    let bytes = [b"SAVE\r\n".to_vec(), encode(&[b"SET", b"large", &value])].concat();
    let media = SimMedia::new(SimConfig::default(), Kind::Files);
    let config = config("plain", Path::new("simulated"), "log-buffers 4\nhz 500");
    let server = launch_on(media, false, config, WallClock::System).served().unwrap();
    let mut client = server.connect();
    for _ in 0..100 {
        for piece in bytes.chunks(1 << 10) {
            client.send_bytes(piece);
        }
        assert_eq!(client.read(), b"+OK\r\n");
        assert_eq!(client.read(), b"+OK\r\n");
        client.send_bytes(&encode(&[b"GET", b"large"]));
        assert!(client.read() == whole, "the server must keep the value as it was sent");
    }
    server.stop();
}

#[test]
fn what_was_acknowledged_is_there_after_a_restart() {
    for back_end in BACK_ENDS {
        for policy in ["always", "everysec", "no"] {
            let dir = tempfile::tempdir().unwrap();
            let volume = dir.path().join("volume");
            let directives = format!("appendfsync {policy}");
            let Some(server) = start(back_end, &volume, &directives) else { continue };
            let mut client = server.connect();
            let large = "x".repeat(700_000);
            for i in 0..100 {
                assert_eq!(client.call(&["SET", &format!("k{i}"), &i.to_string()]), "+OK\r\n");
            }
            assert_eq!(client.call(&["SET", "large", &large]), "+OK\r\n");
            assert_eq!(client.call(&["SELECT", "3"]), "+OK\r\n");
            client.send_bytes(b"MULTI\r\nSET t 1\r\nSELECT 4\r\nSET u 2\r\nEXEC\r\n");
            for _ in 0..4 {
                client.read();
            }
            assert_eq!(client.read(), b"*3\r\n+OK\r\n+OK\r\n+OK\r\n");
            assert_eq!(client.call(&["EXPIRE", "u", "1000"]), ":1\r\n");
            let expires_at = client.call(&["PEXPIRETIME", "u"]);
            server.stop();

            let server = start(back_end, &volume, &directives).unwrap();
            let mut client = server.connect();
            assert_eq!(client.call(&["DBSIZE"]), ":101\r\n", "{back_end} {policy}");
            assert_eq!(client.call(&["GET", "k42"]), "$2\r\n42\r\n");
            assert_eq!(client.call(&["STRLEN", "large"]), ":700000\r\n");
            client.call(&["SELECT", "3"]);
            assert_eq!(client.call(&["GET", "t"]), "$1\r\n1\r\n");
            client.call(&["SELECT", "4"]);
            assert_eq!(client.call(&["PEXPIRETIME", "u"]), expires_at);
            server.stop();
        }
    }
}

#[test]
fn transactions_follow_the_words_of_redis() {
    serving("appendfsync always", |server| {
        let mut one = server.connect();
        let mut two = server.connect();
        assert_eq!(one.call(&["EXEC"]), "-ERR EXEC without MULTI\r\n");
        assert_eq!(one.call(&["DISCARD"]), "-ERR DISCARD without MULTI\r\n");
        assert_eq!(one.call(&["MULTI"]), "+OK\r\n");
        assert_eq!(one.call(&["MULTI"]), "-ERR MULTI calls can not be nested\r\n");
        assert_eq!(one.call(&["WATCH", "k"]), "-ERR WATCH inside MULTI is not allowed\r\n");
        assert_eq!(one.call(&["SET", "k", "1"]), "+QUEUED\r\n");
        assert_eq!(one.call(&["INCR", "k"]), "+QUEUED\r\n");
        assert_eq!(two.call(&["GET", "k"]), "$-1\r\n", "no queued command may run before EXEC");
        assert_eq!(one.call(&["EXEC"]), "*2\r\n+OK\r\n:2\r\n");

        assert_eq!(one.call(&["MULTI"]), "+OK\r\n");
        assert!(one.call(&["NOSUCH"]).starts_with("-ERR unknown command 'NOSUCH'"));
        assert_eq!(
            one.call(&["EXEC"]),
            "-EXECABORT Transaction discarded because of previous errors.\r\n"
        );

        assert_eq!(one.call(&["WATCH", "k", "other"]), "+OK\r\n");
        assert_eq!(two.call(&["SET", "k", "3"]), "+OK\r\n");
        one.call(&["MULTI"]);
        one.call(&["SET", "k", "4"]);
        assert_eq!(
            one.call(&["EXEC"]),
            "*-1\r\n",
            "EXEC must fail after a change of a watched key"
        );
        assert_eq!(one.call(&["WATCH", "k"]), "+OK\r\n");
        assert_eq!(two.call(&["FLUSHALL"]), "+OK\r\n");
        one.call(&["MULTI"]);
        assert_eq!(one.call(&["EXEC"]), "*-1\r\n", "EXEC must fail after a flush");
        assert_eq!(one.call(&["WATCH", "k"]), "+OK\r\n");
        two.call(&["SET", "k", "5"]);
        assert_eq!(one.call(&["UNWATCH"]), "+OK\r\n");
        one.call(&["MULTI"]);
        assert_eq!(one.call(&["EXEC"]), "*0\r\n");
    });
}

#[test]
fn waitaof_waits_for_stable_media() {
    serving("appendfsync no", |server| {
        let mut client = server.connect();
        client.call(&["SET", "k", "v"]);
        assert_eq!(client.call(&["WAITAOF", "1", "0", "0"]), "*2\r\n:1\r\n:0\r\n");
        let durable: u64 = info(&mut client, "log_durable_lsn").parse().unwrap();
        assert_eq!(info(&mut client, "log_appended_lsn"), durable.to_string());
        assert_eq!(
            client.call(&["WAITAOF", "0", "1", "1"]),
            "*2\r\n:1\r\n:0\r\n",
            "WAITAOF must time out"
        );
        assert!(client.call(&["WAITAOF", "2", "0", "0"]).starts_with("-ERR value is out of range"));
        assert_eq!(client.call(&["WAITAOF", "1", "0", "-1"]), "-ERR timeout is negative\r\n");
    });
    serving("appendonly no", |server| {
        let mut client = server.connect();
        assert!(client.call(&["WAITAOF", "1", "0", "0"]).contains("appendonly is disabled"));
        assert_eq!(client.call(&["SET", "k", "v"]), "+OK\r\n");
    });
    serving("appendonly yes", |server| {
        let mut client = server.connect();
        assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "no"]), "+OK\r\n");
        client.call(&["SET", "k", "w"]);
        assert!(client.call(&["WAITAOF", "1", "0", "0"]).contains("appendonly is disabled"));
        assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "yes"]), "+OK\r\n");
        // The log resumes with a snapshot. Until this snapshot is adopted, a crash would lose the
        // writes that were not logged.
        assert_eq!(client.call(&["WAITAOF", "1", "0", "0"]), "*2\r\n:1\r\n:0\r\n");
        assert_eq!(info(&mut client, "log_state"), "on");
    });
}

/// The client requests each change before the previous change has ended. The last change must win.
#[test]
fn a_log_that_is_turned_off_and_on_and_off_is_off() {
    serving("appendfsync everysec", |server| {
        let mut client = server.connect();
        let mut bytes = encode(&[b"SET", b"k", b"v"]);
        for state in ["no", "yes", "no"] {
            bytes.extend(encode(&[b"CONFIG", b"SET", b"appendonly", state.as_bytes()]));
        }
        client.send_bytes(&bytes);
        (0..4).for_each(|_| assert_eq!(client.read(), b"+OK\r\n"));
        until("the log was not turned off", || info(&mut client, "log_state") == "off");
    });
}

#[test]
fn everything_can_be_encoded_and_loaded_again() {
    const RELOADS: usize = 12;
    serving("enable-debug-command yes", |server| {
        let mut client = server.connect();
        client.call(&["SET", "text", "value", "PXAT", "4102444800000"]);
        client.call(&["SET", "number", "12345"]);
        client.call(&["SET", "long", &"0123456789".repeat(100_000)]);
        client.call(&["HSET", "small", "a", "1", "b", "2"]);
        let pairs: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
        let pairs: Vec<&str> = pairs.iter().map(String::as_str).collect();
        client.call(&[&["HSET", "large"], &pairs[..]].concat());
        client.call(&["SET", "ninth", "x"]);
        client.call(&["MOVE", "ninth", "9"]);
        let mut everything = || {
            let mut replies = vec![client.call(&["DBSIZE"]), client.call(&["GET", "ninth"])];
            for key in ["text", "number", "long"] {
                replies.push(client.call(&["GET", key]));
            }
            replies.push(client.call(&["PEXPIRETIME", "text"]));
            replies.push(client.call(&["HGETALL", "small"]));
            for key in ["number", "small", "large"] {
                replies.push(client.call(&["OBJECT", "ENCODING", key]));
            }
            replies.extend(pairs.chunks(2).map(|pair| client.call(&["HGET", "large", pair[0]])));
            replies
        };
        let before = everything();
        let mut other = server.connect();
        // When the reload begins, the background save may or may not have ended. In several rounds,
        // both cases occur.
        for _ in 0..RELOADS {
            assert_eq!(other.call(&["BGSAVE"]), "+Background saving started\r\n");
            assert_eq!(other.call(&["DEBUG", "RELOAD"]), "+OK\r\n");
            assert!(everything() == before, "the loaded data differs");
            // If the server gave up the background save for the reload, it starts the save again.
            assert_eq!(other.call(&["WAITAOF", "1", "0", "0"]), "*2\r\n:1\r\n:0\r\n");
            until("BGSAVE has not ended", || info(&mut other, "rdb_bgsave_in_progress") == "0");
        }
        assert_eq!(info(&mut other, "snapshot_saves_complete"), RELOADS.to_string());
        assert!(other.call(&["DEBUG", "RELOAD", "NOSAVE"]).contains("no options"));
    });
}

#[test]
fn a_password_is_asked_for() {
    serving("requirepass secret", |server| {
        let mut client = server.connect();
        assert_eq!(client.call(&["GET", "k"]), "-NOAUTH Authentication required.\r\n");
        assert!(client.call(&["HELLO", "3"]).starts_with("-NOAUTH HELLO must be called"));
        assert!(client.call(&["AUTH", "wrong"]).starts_with("-WRONGPASS"));
        assert!(client.call(&["AUTH", "other", "secret"]).starts_with("-WRONGPASS"));
        assert_eq!(client.call(&["AUTH", "secret"]), "+OK\r\n");
        assert_eq!(client.call(&["GET", "k"]), "$-1\r\n");
        assert_eq!(client.call(&["RESET"]), "+RESET\r\n");
        assert_eq!(client.call(&["GET", "k"]), "-NOAUTH Authentication required.\r\n");
        let hello = client.call(&["HELLO", "3", "AUTH", "default", "secret", "SETNAME", "me"]);
        assert!(hello.starts_with("%7\r\n"), "{hello}");
        assert_eq!(client.call(&["CLIENT", "GETNAME"]), "$2\r\nme\r\n");
        assert_eq!(client.call(&["GET", "k"]), "_\r\n", "the reply must be the null of RESP3");
        client.call(&["CONFIG", "SET", "requirepass", ""]);
        assert_eq!(server.connect().call(&["PING"]), "+PONG\r\n");
    });
}

#[test]
fn clients_are_listed_and_killed() {
    serving("maxclients 3", |server| {
        let mut one = server.connect();
        let mut two = server.connect();
        two.call(&["CLIENT", "SETNAME", "two"]);
        assert!(two.call(&["CLIENT", "SETINFO", "LIB-NAME", "a b"]).starts_with("-ERR lib-name"));
        let id = two.call(&["CLIENT", "ID"]);
        let id = id[1..].trim();
        let list = one.call(&["CLIENT", "LIST"]);
        assert_eq!(list.matches("id=").count(), 2, "{list}");
        assert!(list.contains(&format!("id={id} ")) && list.contains("name=two"), "{list}");
        let mut three = server.connect();
        assert_eq!(three.call(&["PING"]), "+PONG\r\n");
        let mut four = server.connect();
        assert_eq!(four.read_to_end(), b"-ERR max number of clients reached\r\n");
        assert_eq!(one.call(&["CLIENT", "KILL", "ID", id]), ":1\r\n");
        assert_eq!(two.read_to_end(), b"");
        assert_eq!(
            one.call(&["CLIENT", "KILL", "TYPE", "normal"]),
            ":1\r\n",
            "the caller must not be killed"
        );
        assert_eq!(three.read_to_end(), b"");
        assert_eq!(one.call(&["CLIENT", "KILL", "1.2.3.4:5"]), "-ERR No such client\r\n");
        assert_eq!(one.call(&["QUIT"]), "+OK\r\n");
        assert_eq!(one.read_to_end(), b"");
    });
}

#[test]
fn replies_can_be_left_out() {
    serving("appendonly no", |server| {
        let mut client = server.connect();
        client.send_bytes(
            b"CLIENT REPLY SKIP\r\nSET k 1\r\nPING\r\nCLIENT REPLY OFF\r\nPING\r\nINCR k\r\n\
              CLIENT REPLY ON\r\nGET k\r\n",
        );
        assert_eq!(client.read(), b"+PONG\r\n");
        assert_eq!(client.read(), b"+OK\r\n");
        assert_eq!(client.read(), b"$1\r\n2\r\n");
    });
}

#[test]
fn broken_protocol_is_answered_and_ended() {
    serving("appendonly no", |server| {
        for (bytes, reply) in [
            (&b"*1\r\nPING\r\n"[..], "-ERR Protocol error: expected '$', got 'P'\r\n"),
            (b"*x\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
            (b"*1\r\n$-5\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
            (b"*1\r\n$999999999999\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
            (b"set \"a\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n"),
        ] {
            let mut client = server.connect();
            client.send_bytes(b"PING\r\n");
            client.send_bytes(bytes);
            assert_eq!(client.read(), b"+PONG\r\n");
            assert_eq!(String::from_utf8(client.read_to_end()).unwrap(), reply);
        }
        // Each client sends half a request, then disconnects.
        for part in [&b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\nhalf"[..], b"*2\r\n$3\r\nGE"] {
            server.connect().send_bytes(part);
        }
        let mut client = server.connect();
        assert_eq!(client.call(&["EXISTS", "k"]), ":0\r\n");
    });
}

#[test]
fn a_reply_that_came_while_its_client_waited_is_sent() {
    serving("", |server| {
        let mut client = server.connect();
        // The reset drops the samples of the server's counters. Without samples, no timer wakes the
        // server. So the server must not go to sleep before the reply to `SAVE` is sent.
        assert_eq!(client.call(&["CONFIG", "RESETSTAT"]), "+OK\r\n");
        assert_eq!(client.call(&["SAVE"]), "+OK\r\n");
        assert_eq!(client.call(&["PING"]), "+PONG\r\n");
    });
}

#[test]
fn the_cpu_time_of_commands_is_measured_when_asked() {
    serving("appendonly no", |server| {
        let mut client = server.connect();
        let slimio = client.call(&["INFO", "slimio"]);
        assert!(!slimio.contains("command_cpu_us_max"), "{slimio}");
        client.call(&["CONFIG", "SET", "command-cpu-tracking", "yes"]);
        client.call(&["DEBUG", "POPULATE", "50000"]);
        client.call(&["CONFIG", "RESETSTAT"]);
        client.call(&["PING"]);
        let us = |client: &mut _| info(client, "command_cpu_us_max").parse::<u64>().unwrap();
        let ping = us(&mut client);
        client.call(&["KEYS", "no such key"]);
        let keys = us(&mut client);
        assert!(keys > ping && keys > 50, "PING took {ping} us, and KEYS took {keys} us");
    });
}

#[test]
fn a_client_that_never_reads_is_ended_at_its_limit() {
    serving("appendonly no\nclient-output-buffer-limit normal 1mb 0 0", |server| {
        let mut client = server.connect();
        client.call(&["SET", "k", &"v".repeat(100_000)]);
        let mut deaf = server.connect();
        // The replies are longer than what the socket's buffers hold.
        let request = encode(&[b"GET", b"k"]).repeat(400);
        deaf.send_bytes(&request);
        // The client must not read before it is disconnected, because a client that reads keeps its
        // output below the limit.
        until("the client was not disconnected", || {
            info(&mut client, "client_output_buffer_limit_disconnections") == "1"
        });
        let read = deaf.try_read_to_end();
        assert!(read < 40_000_000, "the server sent {read} bytes");
    });
}

#[test]
fn the_policy_can_be_changed_while_serving() {
    serving("appendfsync everysec", |server| {
        let mut client = server.connect();
        for policy in ["always", "no", "everysec", "always"] {
            assert_eq!(client.call(&["SET", "k", policy]), "+OK\r\n");
            assert_eq!(client.call(&["CONFIG", "SET", "appendfsync", policy]), "+OK\r\n");
            assert_eq!(client.call(&["SET", "j", policy]), "+OK\r\n");
            let size = policy.len();
            assert_eq!(client.call(&["GET", "k"]), format!("${size}\r\n{policy}\r\n"));
            assert_eq!(info(&mut client, "log_policy"), policy);
        }
        let appended = info(&mut client, "log_appended_lsn");
        assert_eq!(
            info(&mut client, "log_durable_lsn"),
            appended,
            "under always, the whole log must be durable"
        );
    });
}

#[test]
fn keys_run_out_of_time_and_the_log_knows() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path().join("volume");
    let server = start("plain", &volume, "hz 100").unwrap();
    let mut client = server.connect();
    for i in 0..50 {
        client.call(&["SET", &format!("k{i}"), "v", "PX", "1"]);
    }
    client.call(&["SET", "stays", "v", "PX", "100000"]);
    // Nobody reads the keys, so only active expiry deletes them.
    until("the keys did not expire", || client.call(&["DBSIZE"]) == ":1\r\n");
    assert_eq!(info(&mut client, "expired_keys"), "50");
    server.stop();
    let server = start("plain", &volume, "hz 100").unwrap();
    assert_eq!(server.connect().call(&["DBSIZE"]), ":1\r\n");
    server.stop();
}
