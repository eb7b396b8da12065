//! A requested shutdown: the last snapshot, the commands that must not run after this snapshot, and
//! the commands that continue when the server gives up the shutdown.

use std::path::Path;
use std::time::Duration;

use slimio_server::WallClock;
use slimio_sim::{SimConfig, SimDisk};

use crate::common::{BACK_ENDS, Client, Running, config, encode, patience, start, until};
use crate::crashes::{Kind, SimMedia, launch_on};

/// How long the command thread sleeps, in seconds. Requests that clients send in this time arrive
/// in one turn of the server's event loop.
const SLEEP_SECONDS: &str = "1";

/// Runs a check against a server without a log, on a simulated disk, over both back ends.
fn without_log(check: impl Fn(Running, SimDisk)) {
    for back_end in BACK_ENDS {
        if back_end == "uring"
            && let Err(refused) = slimio_ring::probe()
        {
            eprintln!("SKIPPED with io_uring: {refused}");
            continue;
        }
        let media = SimMedia::new(SimConfig::default(), Kind::Files);
        let disk = media.disk.clone();
        let directives = "appendonly no\nlog-buffers 4\nenable-debug-command yes";
        let mut config = config(back_end, Path::new("simulated"), directives);
        config.set("save", "").unwrap();
        let server = launch_on(media, false, config, WallClock::System).serving();
        let mut client = server.connect();
        assert_eq!(client.call(&["DEBUG", "POPULATE", "1000", "k", "100"]), "+OK\r\n");
        check(server, disk);
    }
}

/// Makes these clients' requests arrive in one turn of the event loop, in this order.
fn at_once(server: &Running, requests: &mut [(&mut Client, &[u8])]) {
    let mut sleeper = server.connect();
    sleeper.send(&["DEBUG", "SLEEP", SLEEP_SECONDS]);
    std::thread::sleep(Duration::from_millis(50));
    for (client, bytes) in requests {
        client.send_bytes(bytes);
    }
    assert_eq!(sleeper.read(), b"+OK\r\n");
}

fn is_refused(client: &mut Client) -> bool {
    client.read() == b"-ERR Errors trying to SHUTDOWN. Check logs.\r\n"
}

#[test]
fn a_large_value_behind_an_end_that_is_given_up_is_whole() {
    let value = b"SET other 1\r\n".repeat(30_000);
    let whole = [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
    let bytes = [b"SHUTDOWN SAVE\r\n".to_vec(), encode(&[b"SET", b"large", &value])].concat();
    without_log(|server, disk| {
        disk.faults(|faults| faults.full = true);
        let mut client = server.connect();
        for _ in 0..20 {
            for piece in bytes.chunks(8 << 10) {
                client.send_bytes(piece);
            }
            assert!(is_refused(&mut client));
            assert_eq!(client.read(), b"+OK\r\n");
            client.send(&["GET", "large"]);
            assert!(client.read() == whole, "the server must keep the value as it was sent");
            assert_eq!(client.call(&["EXISTS", "other"]), ":0\r\n");
        }
        server.stop();
    });
}

#[test]
fn nothing_is_run_behind_the_last_snapshot() {
    without_log(|server, _| {
        let (mut saves, mut ends) = (server.connect(), server.connect());
        let requests: [(_, &[u8]); 2] =
            [(&mut saves, b"SAVE\r\nSET k 1\r\n"), (&mut ends, b"SHUTDOWN SAVE\r\n")];
        at_once(&server, &mut { requests });
        assert_eq!(saves.read(), b"+OK\r\n");
        assert_eq!(saves.try_read(), None, "the server acknowledged a SET after the last snapshot");
        assert_eq!(ends.read_to_end(), b"");
        server.abandon().unwrap();
    });
}

#[test]
fn who_was_held_up_by_an_end_goes_on_when_it_is_given_up() {
    without_log(|server, disk| {
        disk.faults(|faults| faults.full = true);
        let mut clients = [server.connect(), server.connect(), server.connect()];
        let [saves, ends, sets] = &mut clients;
        at_once(
            &server,
            &mut [
                (saves, b"SAVE\r\nSET k 1\r\n"),
                (ends, b"SHUTDOWN SAVE\r\nSET l 1\r\n"),
                (sets, b"SET m 1\r\nGET m\r\n"),
            ],
        );
        let [saves, ends, sets] = &mut clients;
        assert!(saves.read().starts_with(b"-ERR "));
        assert_eq!(saves.read(), b"+OK\r\n");
        assert!(is_refused(ends));
        assert_eq!(ends.read(), b"+OK\r\n");
        assert_eq!((sets.read(), sets.read()), (b"+OK\r\n".to_vec(), b"$1\r\n1\r\n".to_vec()));
        server.stop();
    });
}

#[test]
fn each_who_asks_for_an_end_is_told_that_it_is_given_up() {
    without_log(|server, disk| {
        disk.faults(|faults| faults.full = true);
        let mut clients = [server.connect(), server.connect()];
        let [first, second] = &mut clients;
        let bytes = b"SHUTDOWN SAVE\r\nPING\r\n";
        at_once(&server, &mut [(first, bytes), (second, bytes)]);
        for client in &mut clients {
            assert!(is_refused(client));
            assert_eq!(client.read(), b"+PONG\r\n");
        }
        server.stop();
    });
}

/// A pin (`SLIMIO PIN`) keeps a snapshot as it is until the pin's connection ends. The server must
/// release all pins before the last snapshot. Otherwise, no slot is free for this snapshot.
#[test]
fn a_pinned_snapshot_does_not_hold_up_the_end() {
    for asks in [true, false] {
        for back_end in BACK_ENDS {
            let dir = tempfile::tempdir().unwrap();
            let volume = dir.path().join("volume");
            let Some(server) = start(back_end, &volume, "save 3600 1000") else { continue };
            let (mut client, mut reader) = (server.connect(), server.connect());
            assert_eq!(client.call(&["SET", "k", "1"]), "+OK\r\n");
            assert!(client.call(&["BGREWRITEAOF"]).starts_with("+Background"));
            crate::common::until("the rewrite of the log did not end", || {
                crate::info(&mut client, "aof_rewrite_in_progress") == "0"
            });
            assert!(reader.call(&["SLIMIO", "PIN"]).starts_with('$'));
            assert_eq!(client.call(&["SAVE"]), "+OK\r\n");
            assert_eq!(client.call(&["SET", "k", "2"]), "+OK\r\n");
            client.set_patience(patience() / 4);
            if asks {
                client.send(&["SHUTDOWN", "SAVE"]);
                assert_eq!(client.read_to_end(), b"");
                server.abandon().unwrap();
            } else {
                server.abandon().unwrap();
            }
            assert_eq!(
                reader.try_read(),
                None,
                "the client whose pin was released must be disconnected"
            );
        }
    }
}

/// `snapshot-rate` must not limit the last snapshot before the server ends. The server serves no
/// client any more, so the snapshot can slow down no client.
#[test]
fn the_snapshot_before_the_end_is_not_held_back() {
    without_log(|server, _| {
        let mut client = server.connect();
        let set = ["CONFIG", "SET", "save", "3600 1", "snapshot-rate", "1"];
        assert_eq!(client.call(&set), "+OK\r\n");
        assert_eq!(client.call(&["DEBUG", "POPULATE", "3000", "more", "1000"]), "+OK\r\n");
        for _ in 0..100 {
            assert_eq!(client.call(&["SET", "k", "v"]), "+OK\r\n");
        }
        client.set_patience(patience() / 2);
        client.send(&["SHUTDOWN"]);
        assert_eq!(client.read_to_end(), b"");
        server.abandon().unwrap();
    });
}

#[test]
fn a_signal_asks_for_one_end() {
    without_log(|mut server, disk| {
        let mut client = server.connect();
        assert_eq!(client.call(&["CONFIG", "SET", "save", "3600 1"]), "+OK\r\n");
        disk.faults(|faults| faults.full = true);
        server.ask_to_stop();
        until("no snapshot has failed", || {
            client.call(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:err")
        });
        disk.faults(|faults| faults.full = false);
        // If the server took the signal for two requests, it would end now.
        for _ in 0..100 {
            assert_eq!(client.call(&["EXISTS", "none"]), ":0\r\n");
        }
        server.ask_to_stop();
        server.ended().unwrap();
    });
}

/// The log has stopped, so no snapshot can begin. `SHUTDOWN SAVE` must be refused, and must not
/// wait for a snapshot.
#[test]
fn a_snapshot_that_cannot_begin_is_none_before_the_end() {
    let media = SimMedia::new(SimConfig::default(), Kind::Files);
    let disk = media.disk.clone();
    let config = config("plain", Path::new("simulated"), "appendfsync always\nlog-buffers 4");
    let server = launch_on(media, false, config, WallClock::System).serving();
    let (mut client, mut other) = (server.connect(), server.connect());
    assert_eq!(client.call(&["SET", "k", "1"]), "+OK\r\n");
    disk.crash_now();
    client.send(&["SET", "k", "2"]);
    until("the log did not stop", || crate::info(&mut other, "log_latched") == "1");
    other.send(&["SHUTDOWN", "SAVE"]);
    assert!(is_refused(&mut other));
    server.abandon().unwrap_err();
}

#[test]
fn who_has_a_pin_and_asks_for_an_end_is_told_that_it_is_given_up() {
    without_log(|server, disk| {
        let mut client = server.connect();
        assert!(client.call(&["SLIMIO", "PIN"]).starts_with('$'));
        disk.faults(|faults| faults.full = true);
        client.send(&["SHUTDOWN", "SAVE"]);
        assert!(is_refused(&mut client));
        disk.faults(|faults| faults.full = false);
        server.stop();
    });
}
