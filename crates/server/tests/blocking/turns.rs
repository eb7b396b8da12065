//! Clients that are woken and then have to wait for something else.

use super::{NOTHING, Waiters, bulk, id_of, integer, popped};
use crate::common::{encode, until};
use crate::{info, serving};

/// The element expires while the client that was woken for it is paused. The client goes on waiting
/// and keeps its place.
#[test]
fn who_finds_nothing_when_it_runs_again_waits_in_its_place() {
    serving("enable-debug-command yes", |server| {
        let mut waiters = Waiters::of(server);
        let mut first = waiters.join(&["BLPOP", "k", "0"]);
        let mut second = waiters.join(&["BLPOP", "k", "0"]);
        let pause = ["CLIENT", "PAUSE", "100000", "WRITE"];
        waiters.exec(&[&["RPUSH", "k", "v"], &["PEXPIRE", "k", "5"], &pause]);
        crate::common::until("the key stays", || waiters.call(&["EXISTS", "k"]) == integer(0));
        assert_eq!(waiters.call(&["CLIENT", "UNPAUSE"]), "+OK\r\n");
        waiters.see("the clients no longer wait");
        assert_eq!(waiters.call(&["RPUSH", "k", "1", "2"]), integer(2));
        waiters.served(&mut first, &popped("k", "1"));
        waiters.served(&mut second, &popped("k", "2"));
        let stats = waiters.call(&["INFO", "commandstats"]);
        assert!(stats.contains("cmdstat_blpop:calls=2,"), "{stats}");
    });
}

/// Clients that were woken, and whose commands then wait for the end of a pause, are still in a
/// blocking command: they can be unblocked, and they give up at their deadlines.
#[test]
fn who_is_woken_in_a_pause_can_still_give_up() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let request = |timeout| ["BLMOVE", "k", "d", "LEFT", "LEFT", timeout];
        let mut unblocked = server.connect();
        let id = id_of(&mut unblocked);
        waiters.wait(&mut unblocked, &request("0"));
        let mut with_error = server.connect();
        let id_with_error = id_of(&mut with_error);
        waiters.wait(&mut with_error, &request("0"));
        let mut stays = waiters.join(&request("0"));
        let mut late = waiters.join(&request("3"));
        waiters.exec(&[&["RPUSH", "k", "v"], &["CLIENT", "PAUSE", "100000", "WRITE"]]);
        assert_eq!(waiters.call(&["CLIENT", "UNBLOCK", &id]), integer(1));
        waiters.served(&mut unblocked, NOTHING);
        assert_eq!(waiters.call(&["CLIENT", "UNBLOCK", &id_with_error, "ERROR"]), integer(1));
        waiters.served(&mut with_error, "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n");
        waiters.served(&mut late, NOTHING);
        // A write that was only postponed is not a blocking command.
        let mut writer = server.connect();
        let id = id_of(&mut writer);
        waiters.wait(&mut writer, &["SET", "s", "v"]);
        assert_eq!(waiters.call(&["CLIENT", "UNBLOCK", &id]), integer(0));
        assert!(stays.is_silent());
        assert_eq!(waiters.call(&["CLIENT", "UNPAUSE"]), "+OK\r\n");
        waiters.served(&mut stays, &bulk("v"));
        waiters.served(&mut writer, "+OK\r\n");
    });
}

/// During a pause, the server stops reading from a client that has already sent many bytes. It must
/// read again when the client begins to wait for keys. Otherwise, the server would not notice that
/// the client has disconnected.
#[test]
fn who_begins_to_wait_behind_a_pause_is_read_again() {
    serving("client-query-buffer-limit 1gb", |server| {
        let mut waiters = Waiters::of(server);
        assert_eq!(waiters.call(&["CLIENT", "PAUSE", "100000", "WRITE"]), "+OK\r\n");
        let mut client = server.connect();
        let id = id_of(&mut client);
        let qbuf = |waiters: &mut Waiters<'_>| {
            let line = waiters.call(&["CLIENT", "LIST", "ID", &id]);
            let field = line.split(' ').find_map(|field| field.strip_prefix("qbuf="));
            field.map_or(0, |size| size.parse::<usize>().unwrap())
        };
        let sender = std::thread::spawn(move || {
            let mut bytes = encode(&[b"BLPOP", b"k", b"0"]);
            // These are far more bytes than the server reads ahead, and more than the socket's
            // buffers hold.
            bytes.extend_from_slice(&b"PING\r\n".repeat(4_000_000));
            client.send_bytes(&bytes);
        });
        waiters.one_more_waits();
        until("the server has read too few bytes", || qbuf(&mut waiters) > 1 << 20);
        assert_eq!(waiters.call(&["CLIENT", "UNPAUSE"]), "+OK\r\n");
        until("the client is not gone", || info(&mut waiters.observer, "connected_clients") == "1");
        sender.join().unwrap();
        assert_eq!(waiters.call(&["RPUSH", "k", "v"]), integer(1));
        assert_eq!(waiters.call(&["LLEN", "k"]), integer(1), "the element must still be there");
    });
}
