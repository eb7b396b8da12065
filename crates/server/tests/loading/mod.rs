//! Replies to clients during recovery. The log's device holds back its completions until the test
//! opens a gate.

use std::path::Path;

use slimio_testing::held::Gate;

use crate::common::{BACK_ENDS, Client, Starting, launch, start, until};
use crate::info;

const LOADING: &str = "-LOADING Redis is loading the dataset in memory\r\n";

/// Fills a volume, and starts a server on it. The server can read nothing of its log until the gate
/// is opened. Returns `None` if the kernel refuses the back end.
fn loading(back_end: &str, volume: &Path, directives: &str) -> Option<(Starting, Gate)> {
    let server = start(back_end, volume, "appendfsync always")?;
    let mut client = server.connect();
    for number in 0..100 {
        client.call(&["SET", &format!("key:{number}"), &"v".repeat(20_000)]);
    }
    server.stop();
    let gate = Gate::default();
    gate.shut();
    let held = gate.clone();
    let server = launch(back_end, volume, directives, move |storage| held.hold_log(storage))?;
    Some((server, gate))
}

#[test]
fn while_the_log_is_read_clients_get_loading() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some((server, gate)) = loading(back_end, &volume, "maxclients 10") else { continue };
        let mut client = server.connect();
        check_replies(&mut client);
        check_transaction(&mut server.connect());
        check_info(&mut client);

        gate.open();
        let server = server.serving();
        assert_eq!(client.call(&["PING"]), "+PONG\r\n", "the connection must outlive the loading");
        assert_eq!(client.call(&["DBSIZE"]), ":100\r\n");
        assert_eq!(client.call(&["STRLEN", "key:99"]), ":20000\r\n");
        let persistence = client.call(&["INFO", "persistence"]);
        assert!(persistence.contains("\r\nloading:0\r\n"), "{persistence}");
        assert!(!persistence.contains("loading_"), "{persistence}");
        server.stop();
    }
}

#[test]
fn what_is_changed_while_loading_is_in_force_behind_it() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some((server, gate)) = loading(back_end, &volume, "appendonly no") else { continue };
        let mut client = server.connect();
        let changes = "appendonly yes maxmemory 1 maxmemory-policy allkeys-lru \
                       hash-max-listpack-entries 1 proto-max-bulk-len 1mb";
        let request: Vec<&str> =
            "CONFIG SET".split(' ').chain(changes.split_whitespace()).collect();
        assert_eq!(client.call(&request), "+OK\r\n");

        gate.open();
        let server = server.serving();
        until("the log was not turned on", || info(&mut client, "log_state") == "on");
        until("some keys were not evicted", || client.call(&["DBSIZE"]) == ":0\r\n");
        assert_eq!(client.call(&["CONFIG", "SET", "maxmemory", "0"]), "+OK\r\n");
        assert_eq!(client.call(&["HSET", "h", "a", "1", "b", "2"]), ":2\r\n");
        assert_eq!(client.call(&["OBJECT", "ENCODING", "h"]), "$9\r\nhashtable\r\n");
        let too_long = client.call(&["SETRANGE", "k", "2000000", "x"]);
        assert!(too_long.starts_with("-ERR string exceeds maximum allowed size"), "{too_long}");
        server.stop();
        let server = start(back_end, &volume, "appendonly yes").unwrap();
        assert_eq!(server.connect().call(&["HLEN", "h"]), ":2\r\n");
        server.stop();
    }
}

/// Checks that, while it reads its log, the server replies as a loading redis-server 7.0 does.
fn check_replies(client: &mut Client) {
    let refused: [&[&str]; 17] = [
        &["PING"],
        &["PING", "x"],
        &["GET", "key:1"],
        &["SET", "key:1", "x"],
        &["MGET", "a", "b"],
        &["DEL", "key:1"],
        &["DBSIZE"],
        &["KEYS", "*"],
        &["SCAN", "0"],
        &["RANDOMKEY"],
        &["EXISTS", "key:1"],
        &["TYPE", "key:1"],
        &["TTL", "key:1"],
        &["RENAME", "key:1", "b"],
        &["FLUSHDB"],
        &["FLUSHALL"],
        &["COPY", "a", "b"],
    ];
    for request in refused {
        assert_eq!(client.call(request), LOADING, "{request:?}");
    }
    for (request, reply) in [
        (&["ECHO", "x"][..], "$1\r\nx\r\n"),
        (&["SELECT", "3"], "+OK\r\n"),
        (&["CONFIG", "GET", "maxclients"], "*2\r\n$10\r\nmaxclients\r\n$2\r\n10\r\n"),
        (&["CONFIG", "RESETSTAT"], "+OK\r\n"),
        (&["CLIENT", "SETNAME", "early"], "+OK\r\n"),
        (&["CLIENT", "GETNAME"], "$5\r\nearly\r\n"),
        (&["WATCH", "key:1"], "+OK\r\n"),
        (&["UNWATCH"], "+OK\r\n"),
        (&["DISCARD"], "-ERR DISCARD without MULTI\r\n"),
        (&["EXISTS"], "-ERR wrong number of arguments for 'exists' command\r\n"),
        (&["NOSUCH"], "-ERR unknown command 'NOSUCH', with args beginning with: \r\n"),
        (&["RESET"], "+RESET\r\n"),
    ] {
        assert_eq!(client.call(request), reply, "{request:?}");
    }
    let time = client.call(&["TIME"]);
    assert!(time.starts_with("*2\r\n"), "{time}");
    let hello = client.call(&["HELLO"]);
    assert!(hello.starts_with("*14\r\n$6\r\nserver\r\n$5\r\nredis\r\n"), "{hello}");
}

fn check_transaction(client: &mut Client) {
    assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
    assert_eq!(client.call(&["GET", "key:1"]), LOADING);
    assert_eq!(client.call(&["SELECT", "0"]), "+QUEUED\r\n");
    assert_eq!(
        client.call(&["EXEC"]),
        "-EXECABORT Transaction discarded because of previous errors.\r\n"
    );
    assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
    assert_eq!(client.call(&["UNWATCH"]), "+QUEUED\r\n");
    assert_eq!(
        client.call(&["EXEC"]),
        "*1\r\n+OK\r\n",
        "a command that may run while loading may run in EXEC, too"
    );
}

fn check_info(client: &mut Client) {
    let number = |client: &mut Client, field| info(client, field).parse::<f64>().unwrap();
    assert_eq!(info(client, "loading"), "1");
    assert_eq!(info(client, "async_loading"), "0");
    assert!(number(client, "loading_start_time") > 1e9);
    let total = number(client, "loading_total_bytes");
    assert!(total >= 100.0 * 20_000.0, "{total}");
    let loaded = number(client, "loading_loaded_bytes");
    assert!(loaded < total, "no log was read, but {loaded} of {total} bytes are loaded");
    let percent = number(client, "loading_loaded_perc");
    assert!((percent - loaded / total * 100.0).abs() < 0.01, "{percent}");
    assert!(number(client, "loading_eta_seconds") >= 0.0);
    assert_eq!(
        info(client, "errorstat_LOADING"),
        "count=1",
        "one request was refused since CONFIG RESETSTAT"
    );
}

#[test]
fn stopped_while_loading_it_leaves_no_socket_file_and_the_volume_as_it_was() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let (volume, socket) = (dir.path().join("volume"), dir.path().join("socket"));
        let directives = format!("unixsocket {}", socket.display());
        let Some((mut server, gate)) = loading(back_end, &volume, &directives) else { continue };
        let mut client = server.connect();
        assert_eq!(client.call(&["PING"]), LOADING);
        assert!(socket.exists());

        server.ask_to_stop();
        // The second reply comes in a turn after the turn that saw the stop request.
        for _ in 0..2 {
            assert_eq!(client.call(&["PING"]), LOADING);
        }
        gate.open();
        assert_eq!(server.ended(), Ok(()));
        assert!(!socket.exists(), "{back_end}: the socket's file was left behind");

        let server = start(back_end, &volume, "appendfsync always").unwrap();
        assert_eq!(server.connect().call(&["DBSIZE"]), ":100\r\n");
        server.stop();
    }
}

#[test]
fn a_volume_that_is_refused_leaves_no_socket_file() {
    let dir = tempfile::tempdir().unwrap();
    let (volume, socket) = (dir.path().join("volume"), dir.path().join("socket"));
    start("plain", &volume, "appendfsync always").unwrap().stop();
    let log = std::fs::OpenOptions::new().write(true).open(volume.join("wal")).unwrap();
    log.set_len(4096).unwrap();
    let directives = format!("unixsocket {}", socket.display());
    let server = launch("plain", &volume, &directives, |storage| storage).unwrap();
    let why = server.ended().unwrap_err();
    assert!(why.contains("wal"), "{why}");
    assert!(!socket.exists(), "the socket's file was left behind");
}
