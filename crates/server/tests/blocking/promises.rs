//! A client that has waited for a key gets its reply only once everything that the reply shows is
//! durable.

use std::path::Path;

use slimio_server::WallClock;
use slimio_sim::SimConfig;

use super::{NOTHING, Waiters, id_of, integer, popped, send_all};
use crate::common::{BACK_ENDS, config, start, until};
use crate::crashes::{Kind, SimMedia, launch_on};
use crate::info;
use crate::undurable::held;

fn waits(world: &mut crate::undurable::World, count: &str) {
    until("the number of blocked clients is wrong", || {
        info(&mut world.observer, "blocked_clients") == count
    });
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
        assert!(pusher.is_silent(), "a reply was sent before the push was durable");
        assert!(waiter.is_silent(), "the element was sent before its removal was durable");
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
        assert!(waiter.is_silent(), "a reply was sent before the list's deletion was durable");
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
        let mut waiters = Waiters::of(&server);
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

/// The log stops just after a client was given an element. No client gets a reply about this
/// element. The waits of other clients can still be ended.
#[test]
fn nobody_hears_of_what_was_handed_over_when_the_log_has_stopped() {
    let media = SimMedia::new(SimConfig::default(), Kind::Files);
    let disk = media.disk.clone();
    let config = config("plain", Path::new("simulated"), "appendfsync always\nlog-buffers 4");
    let server = launch_on(media, false, config, WallClock::System).serving();
    let mut waiters = Waiters::of(&server);
    let mut served = waiters.join(&["BLPOP", "k", "0"]);
    let mut next = server.connect();
    let id = id_of(&mut next);
    waiters.wait(&mut next, &["BLPOP", "k", "other", "0"]);
    let mut last = waiters.join(&["BLPOP", "other", "0"]);
    disk.crash_now();
    let mut pusher = server.connect();
    pusher.send(&["RPUSH", "k", "v"]);
    until("the log did not stop", || info(&mut waiters.observer, "log_latched") == "1");
    assert_eq!(served.read_to_end(), b"", "a client got an element whose removal may be lost");
    assert_eq!(pusher.read_to_end(), b"", "a client got a reply to a push that may be lost");
    waiters.leave(1);
    let refusal = waiters.call(&["RPUSH", "other", "v"]);
    assert!(refusal.starts_with("-MISCONF"), "{refusal}");
    let refusal = waiters.call(&["BLPOP", "other", "0"]);
    assert!(refusal.starts_with("-MISCONF"), "{refusal}");
    // If `next` got the reply that nothing came, the reply would say that `k` is empty. But `k` is
    // empty only because `served` was given the element, and the record of that change never became
    // durable.
    assert_eq!(waiters.call(&["CLIENT", "UNBLOCK", &id]), integer(1));
    let withheld = String::from_utf8(next.read()).unwrap();
    assert!(withheld.starts_with("-MISCONF"), "{withheld}");
    let id_of_last = waiters.call(&["CLIENT", "LIST"]);
    let line = id_of_last.lines().find(|line| line.contains(" flags=b ")).unwrap();
    let id = line.trim_start_matches("id=").split(' ').next().unwrap().to_owned();
    assert_eq!(waiters.call(&["CLIENT", "UNBLOCK", &id]), integer(1));
    assert_eq!(last.read(), NOTHING.as_bytes());
    drop(waiters);
    server.abandon().unwrap_err();
}
