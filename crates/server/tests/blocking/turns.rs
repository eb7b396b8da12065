//! Clients that are woken and then have to wait for something else.

use super::{Waiters, integer, popped};
use crate::serving;

/// The element expires while the client that was woken for it is paused. The client goes on
/// waiting, in its place.
#[test]
fn who_finds_nothing_when_it_runs_again_waits_in_its_place() {
    serving("enable-debug-command yes", |server| {
        let mut waiters = Waiters::of(server);
        let mut first = waiters.join(&["BLPOP", "k", "0"]);
        let mut second = waiters.join(&["BLPOP", "k", "0"]);
        let pause = ["CLIENT", "PAUSE", "100000", "WRITE"];
        waiters.exec(&[&["RPUSH", "k", "v"], &["PEXPIRE", "k", "5"], &pause]);
        crate::common::until("it does not expire", || waiters.call(&["EXISTS", "k"]) == integer(0));
        assert_eq!(waiters.call(&["CLIENT", "UNPAUSE"]), "+OK\r\n");
        waiters.see("they do not wait any more");
        assert_eq!(waiters.call(&["RPUSH", "k", "1", "2"]), integer(2));
        waiters.served(&mut first, &popped("k", "1"));
        waiters.served(&mut second, &popped("k", "2"));
        let stats = waiters.call(&["INFO", "commandstats"]);
        assert!(stats.contains("cmdstat_blpop:calls=2,"), "{stats}");
    });
}
