//! What the reply of a client that has waited promises.

use super::{NOTHING, integer, popped, send_all};
use crate::common::{BACK_ENDS, start, until};
use crate::info;
use crate::undurable::held;

fn waits(world: &mut crate::undurable::World, count: &str) {
    until("not that many wait", || info(&mut world.observer, "blocked_clients") == count);
}

#[test]
fn both_hear_of_what_was_handed_over_when_it_is_durable() {
    held("", |world| {
        let (mut waiter, mut pusher) = (world.connect("waiter"), world.connect("pusher"));
        waiter.send(&["BLPOP", "k", "0"]);
        waits(world, "1");
        world.shut();
        pusher.send(&["RPUSH", "k", "v"]);
        world.wait_until_run("pusher", "rpush");
        waits(world, "0");
        assert!(pusher.is_silent(), "the push is not durable");
        assert!(waiter.is_silent(), "what was taken may come back");
        world.open();
        assert_eq!(pusher.read(), integer(1).as_bytes());
        assert_eq!(waiter.read(), popped("k", "v").as_bytes());
    });
}

#[test]
fn that_nothing_came_waits_for_who_has_taken_it() {
    held("", |world| {
        let (mut waiter, mut other) = (world.connect("waiter"), world.connect("other"));
        world.shut();
        send_all(&mut other, &[&["RPUSH", "k", "v"], &["LPOP", "k"]]);
        world.wait_until_run("other", "lpop");
        waiter.send(&["BLPOP", "k", "0.01"]);
        world.wait_until_run("waiter", "blpop");
        waits(world, "0");
        world.wait_until_run("waiter", "blpop");
        assert!(waiter.is_silent(), "that the list is gone is not durable");
        world.open();
        assert_eq!(other.read(), integer(1).as_bytes());
        assert_eq!(other.read(), b"$1\r\nv\r\n");
        assert_eq!(waiter.read(), NOTHING.as_bytes());
    });
}

#[test]
fn what_was_handed_over_is_not_there_after_a_restart() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some(server) = start(back_end, &volume, "appendfsync always") else { continue };
        let mut waiters = super::Waiters::of(&server);
        let requests: [&[&str]; 5] = [
            &["BLPOP", "a", "0"],
            &["BRPOP", "b", "0"],
            &["BLMPOP", "0", "1", "c", "LEFT", "COUNT", "2"],
            &["BLMOVE", "d", "moved", "LEFT", "RIGHT", "0"],
            &["BRPOPLPUSH", "e", "moved", "0"],
        ];
        for (request, key) in requests.into_iter().zip(["a", "b", "c", "d", "e"]) {
            let mut waiter = waiters.join(request);
            assert_eq!(waiters.call(&["RPUSH", key, "1", "2", "3"]), integer(3));
            drop(waiter.read());
            waiters.leave(1);
        }
        let lists = |client: &mut crate::common::Client| {
            ["a", "b", "c", "d", "e", "moved"].map(|key| client.call(&["LRANGE", key, "0", "-1"]))
        };
        let before = lists(&mut waiters.observer);
        drop(waiters);
        server.stop();
        let server = start(back_end, &volume, "").unwrap();
        assert_eq!(lists(&mut server.connect()), before);
        server.stop();
    }
}
