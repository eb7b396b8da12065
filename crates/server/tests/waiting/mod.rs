//! Clients that wait for something, and how they continue.

use std::time::Duration;

use crate::common::{BACK_ENDS, Client, encode, start, start_held, until};
use crate::undurable::{held, send_all};
use crate::{info, serving};

/// A request that waits until `CLIENT UNBLOCK`.
const FOR_EVER: [&str; 4] = ["WAITAOF", "0", "1", "0"];

/// Sends a request that waits, and `requests` after it. Returns the client's id when the server has
/// received all these requests.
fn send_behind_a_wait(client: &mut Client, requests: &[&[&str]], observer: &mut Client) -> String {
    let id = client.call(&["CLIENT", "ID"])[1..].trim().to_owned();
    let behind: usize = requests.iter().map(|request| encoded(request).len()).sum();
    send_all(client, &[&[&FOR_EVER[..]], requests].concat());
    let (start, behind) = (format!("id={id} "), format!(" qbuf={behind} "));
    until("the requests have not arrived", || {
        let list = observer.call(&["CLIENT", "LIST"]);
        list.lines().any(|line| line.starts_with(&start) && line.contains(&behind))
    });
    id
}

fn encoded(request: &[&str]) -> Vec<u8> {
    encode(&request.iter().map(|arg| arg.as_bytes()).collect::<Vec<_>>())
}

/// `WAITAOF` waits for every kind of write. The second `FLUSHALL` finds nothing to flush, and
/// appends no record. But its client must wait, too, because the first `FLUSHALL` is not durable.
#[test]
fn who_asks_for_the_log_waits_for_each_kind_of_write() {
    let writes: [&[&[&str]]; 5] = [
        &[&["SET", "k", "v"]],
        &[&["MULTI"], &["SET", "k", "w"], &["EXEC"]],
        &[&["DEBUG", "POPULATE", "1000"]],
        &[&["FLUSHALL"]],
        &[&["FLUSHALL"]],
    ];
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let directives = "appendfsync everysec\nenable-debug-command yes";
        let Some((server, gate)) = start_held(back_end, &volume, directives) else { continue };
        gate.shut();
        let mut clients = Vec::new();
        for write in writes {
            let mut client = server.connect();
            for request in write {
                let reply = client.call(request);
                assert!(!reply.starts_with('-'), "{request:?}: {reply}");
            }
            let reply = client.call(&["WAITAOF", "1", "0", "50"]);
            assert_eq!(reply, "*2\r\n:0\r\n:0\r\n", "{back_end}: {write:?}");
            clients.push(client);
        }
        gate.open();
        for mut client in clients {
            assert_eq!(client.call(&["WAITAOF", "1", "0", "0"]), "*2\r\n:1\r\n:0\r\n");
        }
        server.stop();
    }
}

#[test]
fn who_is_unblocked_within_a_transaction_goes_on_behind_it() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some(server) = start(back_end, &volume, "appendfsync everysec") else { continue };
        let (mut one, mut two) = (server.connect(), server.connect());
        let requests: [&[&str]; 5] =
            [&["MULTI"], &["APPEND", "k", "c"], &["EXEC"], &["APPEND", "k", "d"], &["PING"]];
        let two_id = send_behind_a_wait(&mut two, &requests, &mut one);
        let unblock = ["CLIENT", "UNBLOCK", &two_id];
        let again = ["CLIENT", "UNBLOCK", &two_id, "ERROR"];
        send_all(
            &mut one,
            &[
                &["MULTI"],
                &["APPEND", "k", "a"],
                &unblock,
                &again,
                &["APPEND", "k", "b"],
                &["EXEC"],
            ],
        );
        (0..5).for_each(|_| drop(one.read()));
        assert_eq!(one.read(), b"*4\r\n:1\r\n:1\r\n:0\r\n:2\r\n", "{back_end}");
        for reply in
            ["*2\r\n:1\r\n:0\r\n", "+OK\r\n", "+QUEUED\r\n", "*1\r\n:3\r\n", ":4\r\n", "+PONG\r\n"]
        {
            assert_eq!(two.read(), reply.as_bytes(), "{back_end}");
        }
        server.stop();
        let server = start(back_end, &volume, "").unwrap();
        assert_eq!(server.connect().call(&["GET", "k"]), "$4\r\nabcd\r\n", "{back_end}");
        server.stop();
    }
}

#[test]
fn who_is_unblocked_within_a_transaction_is_answered_when_it_is_durable() {
    held("", |world| {
        let mut two = world.connect("two");
        let two_id = send_behind_a_wait(&mut two, &[&["SET", "k", "v"]], &mut world.observer);
        world.shut();
        let mut one = world.connect("one");
        send_all(&mut one, &[&["MULTI"], &["CLIENT", "UNBLOCK", &two_id], &["EXEC"]]);
        world.wait_until_run("two", "set");
        // The reply of WAITAOF may have come alone: this happens if the server's turn ends before
        // SET runs.
        assert!(!two.has_received(b"+OK\r\n"), "SET was answered before it was durable");
        for reply in ["+OK\r\n", "+QUEUED\r\n", "*1\r\n:1\r\n"] {
            assert_eq!(one.read(), reply.as_bytes());
        }
        world.open();
        assert_eq!(two.read(), b"*2\r\n:1\r\n:0\r\n");
        assert_eq!(two.read(), b"+OK\r\n");
    });
}

/// After `begin`, a client waits in the first of `requests`. After that request, it has sent more
/// input than the limit of the query buffer allows. Then `end` lets the client continue. When the
/// client has read its replies, the server must close the connection.
fn check_stays_closing(requests: &[u8], begin: &[&str], end: &[&str]) {
    held("client-query-buffer-limit 1mb", |world| {
        let mut other = world.connect("other");
        assert_eq!(other.call(&["SET", "v", &"v".repeat(100_000)]), "+OK\r\n");
        assert_eq!(world.observer.call(begin), "+OK\r\n");
        // While this write is held back, no later snapshot can end, because a snapshot ends only
        // when the writes before it are durable.
        world.shut();
        other.send(&["APPEND", "held", "v"]);
        world.wait_until_run("other", "append");
        let mut client = world.connect_unnamed();
        // The replies are longer than what the socket's buffers hold, so the client stays connected
        // until it has read the replies.
        client.send_bytes(&encoded(&["GET", "v"]).repeat(400));
        client.send_bytes(requests);
        client.send_bytes(&b"PING\r\n".repeat(200_000));
        until("the limit of the query buffer has no effect", || {
            info(&mut world.observer, "client_query_buffer_limit_disconnections") == "1"
        });
        assert_eq!(world.observer.call(end), "+OK\r\n");
        world.open();
        assert_eq!(other.read(), b":1\r\n");
        until("the snapshot does not end", || {
            info(&mut world.observer, "rdb_bgsave_in_progress") == "0"
        });
        client.try_read_to_end();
        until("no connection closes", || info(&mut world.observer, "connected_clients") == "2");
        assert_eq!(world.observer.call(&["EXISTS", "k"]), ":0\r\n");
    });
}

#[test]
fn who_is_to_be_closed_in_a_save_is_closed_when_that_is_over() {
    let nothing = ["CLIENT", "SETNAME", "observer"];
    check_stays_closing(b"SAVE\r\n", &nothing, &nothing);
    check_stays_closing(b"SLIMIO PIN\r\n", &nothing, &nothing);
}

#[test]
fn who_is_to_be_closed_in_a_pause_is_closed_when_that_is_over() {
    let pause = ["CLIENT", "PAUSE", "100000", "WRITE"];
    check_stays_closing(b"SET k v\r\n", &pause, &["CLIENT", "UNPAUSE"]);
}

#[test]
fn who_is_to_be_closed_in_a_long_command_is_closed_when_that_is_over() {
    let nothing = ["CLIENT", "SETNAME", "observer"];
    // There are several requests, so that all later requests have arrived before the last `KEYS`
    // has ended.
    let requests = b"KEYS nothing\r\n".repeat(50);
    check_stays_closing(&requests, &["DEBUG", "POPULATE", "50000"], &nothing);
}

#[test]
fn replies_can_be_left_out_of_requests_that_wait() {
    let requests: [&[&str]; 6] = [
        &["WAITAOF", "0", "1", "20"],
        &["SAVE"],
        &["SLIMIO", "PIN"],
        &["CONFIG", "REWRITE"],
        &["KEYS", "no such key"],
        &["DEBUG", "POPULATE", "50000", "other"],
    ];
    held("", |world| {
        assert_eq!(world.observer.call(&["DEBUG", "POPULATE", "50000"]), "+OK\r\n");
        for request in requests {
            let mut client = world.connect_unnamed();
            send_all(&mut client, &[&["CLIENT", "REPLY", "SKIP"], request, &["ECHO", "next"]]);
            assert_eq!(client.read(), b"$4\r\nnext\r\n", "{request:?}");
            let off_and_on: [&[&str]; 5] = [
                &["CLIENT", "REPLY", "OFF"],
                request,
                &["PING"],
                &["CLIENT", "REPLY", "ON"],
                &["ECHO", "on"],
            ];
            send_all(&mut client, &off_and_on);
            assert_eq!(client.read(), b"+OK\r\n", "{request:?}");
            assert_eq!(client.read(), b"$2\r\non\r\n", "{request:?}");
            send_all(&mut client, &[&["CLIENT", "REPLY", "OFF"], request, &["QUIT"]]);
            assert_eq!(client.read_to_end(), b"", "{request:?}");
        }
    });
}

#[test]
fn who_pins_waits_for_one_snapshot() {
    serving("appendfsync everysec", |server| {
        let mut client = server.connect();
        assert_eq!(client.call(&["SET", "k", "v"]), "+OK\r\n");
        for number in 1..4 {
            let pinned = client.call(&["SLIMIO", "PIN"]);
            let found = pinned.split_whitespace().nth(2);
            assert_eq!(found, Some(&*number.to_string()), "{pinned}");
        }
    });
}

/// Large values that arrive one after the other must never be in the query buffer together.
/// Otherwise, they would exceed the buffer's limit.
#[test]
fn large_values_do_not_add_up_to_the_limit_of_the_query_buffer() {
    serving("client-query-buffer-limit 1mb", |server| {
        let mut client = server.connect();
        let value = "v".repeat(400_000);
        for _ in 0..5 {
            assert_eq!(client.call(&["SET", "k", &value]), "+OK\r\n");
        }
    });
}

/// `WAITAOF` in a transaction does not wait. It reports whether earlier writes are durable, and
/// leaves out the transaction's own writes.
#[test]
fn nobody_waits_within_a_transaction() {
    serving("appendfsync no", |server| {
        let mut client = server.connect();
        assert_eq!(client.call(&["SET", "k", "v"]), "+OK\r\n");
        for expected in ["*2\r\n:0\r\n:0\r\n", "*2\r\n:1\r\n:0\r\n"] {
            send_all(
                &mut client,
                &[&["MULTI"], &["SET", "k", "w"], &["WAITAOF", "1", "0", "0"], &["EXEC"]],
            );
            (0..3).for_each(|_| drop(client.read()));
            let replies = [b"*2\r\n+OK\r\n", expected.as_bytes()].concat();
            assert_eq!(client.read(), replies);
            assert_eq!(client.call(&["WAITAOF", "1", "0", "0"]), "*2\r\n:1\r\n:0\r\n");
        }
    });
}

/// Sends requests that wait for the end of a pause for writes. Returns once `count` clients wait.
fn postpone(client: &mut Client, requests: &[&[&str]], observer: &mut Client, count: &str) {
    send_all(client, requests);
    until("the client does not wait", || info(observer, "blocked_clients") == count);
}

#[test]
fn what_follows_a_postponed_request_runs_before_the_next_one() {
    serving("", |server| {
        let [mut observer, mut one, mut two] = [(); 3].map(|()| server.connect());
        assert_eq!(observer.call(&["CLIENT", "PAUSE", "100000", "WRITE"]), "+OK\r\n");
        let first: [&[&str]; 2] = [&["APPEND", "k", "1"], &["APPEND", "k", "2"]];
        postpone(&mut one, &first, &mut observer, "1");
        postpone(&mut two, &[&["APPEND", "k", "3"]], &mut observer, "2");
        assert_eq!(observer.call(&["CLIENT", "UNPAUSE"]), "+OK\r\n");
        assert_eq!(two.read(), b":3\r\n");
        assert_eq!(observer.call(&["GET", "k"]), "$3\r\n123\r\n");
    });
}

#[test]
fn a_transaction_that_nothing_comes_of_waits_for_no_pause() {
    serving("", |server| {
        let [mut observer, mut client] = [(); 2].map(|()| server.connect());
        for broken in [true, false] {
            assert_eq!(client.call(&["WATCH", "k"]), "+OK\r\n");
            assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
            if broken {
                assert!(client.call(&["NOSUCH"]).starts_with("-ERR"));
            } else {
                assert_eq!(observer.call(&["SET", "k", "v"]), "+OK\r\n");
            }
            assert_eq!(client.call(&["SET", "k", "v"]), "+QUEUED\r\n");
            assert_eq!(observer.call(&["CLIENT", "PAUSE", "100000", "WRITE"]), "+OK\r\n");
            let reply = client.call(&["EXEC"]);
            assert!(reply.starts_with(if broken { "-EXECABORT" } else { "*-1" }), "{reply}");
            assert_eq!(observer.call(&["CLIENT", "UNPAUSE"]), "+OK\r\n");
        }
    });
}

#[test]
fn what_was_postponed_behind_an_end_does_not_run() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some(server) = start(back_end, &volume, "") else { continue };
        let [mut observer, mut one, mut two] = [(); 3].map(|()| server.connect());
        assert_eq!(observer.call(&["CLIENT", "PAUSE", "300", "ALL"]), "+OK\r\n");
        one.send(&["SHUTDOWN"]);
        // During a pause for all commands, no client can ask whether the request has arrived.
        std::thread::sleep(Duration::from_millis(50));
        two.send(&["SET", "k", "v"]);
        server.ended().unwrap();
        let server = start(back_end, &volume, "").unwrap();
        assert_eq!(server.connect().call(&["EXISTS", "k"]), ":0\r\n", "SET ran after the shutdown");
        server.stop();
    }
}
