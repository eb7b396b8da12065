//! Clients that are woken while the log has no room for the records of their commands.

use slimio_testing::held::Gate;

use super::{NOTHING, Waiters, id_of, integer};
use crate::common::{BACK_ENDS, Client, Running, start_held, until};
use crate::info;

/// Size of the values that fill the log.
const VALUE_SIZE: usize = 300_000;
/// Size of the name of the key to which the waiting client moves the element. A log that is full of
/// values of `VALUE_SIZE` bytes has no room for the record of the move, but it has room for the
/// record of a push.
const NAME_SIZE: usize = 400_000;

/// Runs `check` on servers whose log is never rewritten, and is written only while the gate is
/// open.
fn held_back(check: impl Fn(&Running, &Gate)) {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let directives = "auto-aof-rewrite-percentage 0";
        if let Some((server, gate)) = start_held(back_end, &volume, directives) {
            check(&server, &gate);
            server.stop();
        }
    }
}

/// A client waits in `BLMOVE` for up to `timeout` seconds and is woken, but the log has no room for
/// its record. `end` ends the client's wait. Then the log gets room. The element must still be
/// there.
fn woken_without_room(timeout: &str, end: impl Fn(&mut Waiters<'_>, Client, &str)) {
    held_back(|server, gate| {
        let mut waiters = Waiters::of(server);
        let mut waiter = server.connect();
        let (id, taken) = (id_of(&mut waiter), "d".repeat(NAME_SIZE));
        waiters.wait(&mut waiter, &["BLMOVE", "k", &taken, "LEFT", "RIGHT", timeout]);
        until("no client waits", || info(&mut waiters.observer, "total_blocking_keys") == "1");
        gate.shut();
        let (mut filler, value) = (server.connect(), "v".repeat(VALUE_SIZE));
        let mut sent = 0;
        while info(&mut waiters.observer, "blocked_clients") == "1" {
            filler.send(&["SET", "filler", &value]);
            sent += 1;
        }
        let mut pusher = server.connect();
        pusher.send(&["RPUSH", "k", "v"]);
        until("the element was not pushed", || waiters.call(&["LLEN", "k"]) == integer(1));
        assert_eq!(
            info(&mut waiters.observer, "total_blocking_keys"),
            "0",
            "the client was not woken"
        );
        end(&mut waiters, waiter, &id);
        gate.open();
        // Opening the gate does not wake the server, but any turn of the server polls the log's
        // path.
        assert_eq!(waiters.call(&["PING"]), "+PONG\r\n");
        (0..sent).for_each(|_| assert_eq!(filler.read(), b"+OK\r\n"));
        assert_eq!(pusher.read(), integer(1).as_bytes());
        assert_eq!(waiters.call(&["LLEN", "k"]), integer(1), "the element must still be there");
        assert_eq!(waiters.call(&["EXISTS", &taken]), integer(0));
    });
}

#[test]
fn who_has_gone_takes_nothing_when_there_is_room() {
    woken_without_room("0", |waiters, waiter, _| {
        drop(waiter);
        until("the server did not notice that the client has gone", || {
            info(&mut waiters.observer, "connected_clients") == "3"
        });
    });
}

#[test]
fn who_is_unblocked_takes_nothing_when_there_is_room() {
    woken_without_room("0", |waiters, mut waiter, id| {
        assert_eq!(waiters.call(&["CLIENT", "UNBLOCK", id]), integer(1));
        assert_eq!(waiter.read(), NOTHING.as_bytes());
        assert_eq!(waiters.call(&["CLIENT", "UNBLOCK", id]), integer(0));
    });
}

#[test]
fn who_has_waited_long_enough_takes_nothing_when_there_is_room() {
    woken_without_room("4", |_, mut waiter, _| assert_eq!(waiter.read(), NOTHING.as_bytes()));
}

/// The client disconnects while it waits for room. The server does not notice yet, because the
/// client has sent more bytes than the server reads ahead. When the client begins to wait for keys,
/// it has already disconnected.
#[test]
fn who_has_gone_before_it_waits_takes_nothing() {
    held_back(|server, gate| {
        let mut waiters = Waiters::of(server);
        gate.shut();
        let (mut client, value) = (server.connect(), "v".repeat(VALUE_SIZE));
        while info(&mut waiters.observer, "blocked_clients") == "0" {
            client.send(&["SET", "filler", &value]);
        }
        client.send(&["BLPOP", "k", "0"]);
        client.send_bytes(&b"PING\r\n".repeat(200_000));
        drop(client);
        for _ in 0..2 {
            assert_eq!(waiters.call(&["PING"]), "+PONG\r\n");
        }
        gate.open();
        until("the client is not gone", || info(&mut waiters.observer, "connected_clients") == "1");
        assert_eq!(waiters.call(&["RPUSH", "k", "v"]), integer(1));
        assert_eq!(waiters.call(&["LLEN", "k"]), integer(1));
    });
}
