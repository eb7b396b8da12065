//! Checks in debug builds that the lists of clients match the states of the clients.

use std::collections::HashSet;

use super::Connections;
use crate::clients::{Client, State};
use crate::engine::Engine;
use crate::net::ConnId;
use crate::waiting::Line;

/// With more clients than this, nothing is checked, because the check runs in every turn and would
/// take too long.
const CLIENTS_MAX: usize = 64;

impl Connections {
    /// Checks all clients and the lists that they are in, between two turns. Panics if an invariant
    /// does not hold.
    ///
    /// Does nothing in a build without debug assertions.
    pub(super) fn check_clients(&self, engine: &Engine) {
        if !cfg!(debug_assertions) || self.clients.len() > CLIENTS_MAX {
            return;
        }
        self.clients.check();
        let is_yielding = |state: &State| matches!(state, State::Yielding(_));
        self.check_waiting(engine);
        self.check_listed("yielding", self.yielding.iter(), is_yielding);
        let is_resumed = |state: &State| matches!(state, State::Resumed);
        self.check_listed("resumed", self.waiting.resumed.iter(), is_resumed);
        self.check_marked("behind", self.behind.iter(), |client| client.is_behind);
        self.check_marked("dirty", self.dirty.iter(), |client| client.is_dirty);
        self.check_marked("holding", self.holding.iter(), |client| client.is_holding);
    }

    /// Checks that exactly the clients that wait are in the waiting room, each in its line.
    fn check_waiting(&self, engine: &Engine) {
        engine.data.blocking_keys.check();
        let mut count = 0;
        for line in Line::ALL {
            count += self.waiting.len(line);
            for conn in self.waiting.in_line(line) {
                let client = self.clients.get(conn).expect("a client that has left is in no line");
                assert_eq!(client.line(), Some(line), "{conn:?} is in the wrong line");
            }
        }
        let is_waiting = |client: &&Client| client.line().is_some();
        assert_eq!(
            self.clients.iter().filter(is_waiting).count(),
            count,
            "a waiting client is in no line"
        );
    }

    /// Checks that each client with a state that `belongs` accepts is listed exactly once. An
    /// unlisted client would stay in its state forever. A listed client must be in such a state, be
    /// closing, or have left.
    fn check_listed<'a>(
        &self,
        name: &str,
        listed: impl Iterator<Item = &'a ConnId>,
        belongs: impl Fn(&State) -> bool,
    ) {
        let mut conns = HashSet::new();
        for conn in listed {
            assert!(conns.insert(*conn), "{conn:?} is listed twice as {name}");
            let is_right = self.clients.get(*conn).is_none_or(|client| {
                belongs(&client.state) || matches!(client.state, State::Closing)
            });
            assert!(is_right, "{conn:?} is listed as {name}, but its state differs");
        }
        for client in self.clients.iter().filter(|client| belongs(&client.state)) {
            assert!(conns.contains(&client.conn), "{:?} is {name} and not listed", client.conn);
        }
    }

    /// Checks that the listed clients are exactly the marked clients, and that each is listed once.
    /// Only a client that has left may be listed as well.
    fn check_marked<'a>(
        &self,
        name: &str,
        listed: impl Iterator<Item = &'a ConnId>,
        is_marked: impl Fn(&Client) -> bool,
    ) {
        let mut conns = HashSet::new();
        for conn in listed {
            assert!(conns.insert(*conn), "{conn:?} is listed twice as {name}");
            let is_right = self.clients.get(*conn).is_none_or(&is_marked);
            assert!(is_right, "{conn:?} is listed as {name}, but has no mark");
        }
        for client in self.clients.iter().filter(|client| is_marked(client)) {
            assert!(conns.contains(&client.conn), "{:?} is {name} and not listed", client.conn);
        }
    }
}
