//! Clients that are served over several turns.

use std::time::Duration;

use super::*;
use crate::config::Config;
use crate::engine::Facts;
use crate::net::Peer;

/// An engine without a volume, and its clients. Turns are made by the test.
struct Served {
    engine: Engine,
    connections: Connections,
    count: u32,
}

impl Served {
    fn new() -> Self {
        let engine = Engine::new(Config::default(), 1, Facts::default());
        Self { engine, connections: Connections::default(), count: 0 }
    }

    /// Connects a client, which sends a request.
    fn join(&mut self, request: &str) -> ConnId {
        let conn = ConnId { index: self.count, generation: 0 };
        self.count += 1;
        self.connections.accepted(&mut self.engine, conn, Peer { remote: None, local: None });
        self.engine.clock.begin_turn();
        self.connections.received(&mut self.engine, conn, request.as_bytes());
        conn
    }

    fn is_waiting(&self, conn: ConnId) -> bool {
        let client = self.connections.clients.get(conn).expect("nobody disconnects");
        matches!(client.state, State::Waiting(_))
    }
}

/// More clients are to be served than one turn serves. Meanwhile, the deadlines of those who wait for
/// other keys hold.
#[test]
fn a_deadline_does_not_wait_for_those_who_are_served() {
    let mut served = Served::new();
    for _ in 0..=SERVED_MAX {
        served.join("BLPOP k 0\r\n");
    }
    let [last, other, of_none, mistyped] = ["k", "other", "neither", "typed"]
        .map(|key| served.join(&format!("BLPOP {key} 0.001\r\n")));
    served.join("SET typed v\r\n");
    let elements = "v ".repeat(SERVED_MAX + 2);
    served.join(&format!("RPUSH k {elements}\r\n"));
    assert!(served.engine.data.blocking_keys.has_ready(), "some are still to be served");
    std::thread::sleep(Duration::from_millis(2));
    served.engine.clock.begin_turn();
    served.connections.give_up_late(&mut served.engine);
    let waits = [last, other, of_none, mistyped].map(|conn| served.is_waiting(conn));
    assert_eq!(waits, [true, false, false, false]);
    served.connections.serve_waiting_for_keys(&mut served.engine);
    assert!(!served.is_waiting(last));
    assert!(!served.engine.data.blocking_keys.has_ready());
}

/// Clients wait for many keys of a database that is swapped in. Looking through them takes several
/// turns, but a client of another database is served in the first of them.
#[test]
fn a_swapped_database_holds_up_nobody_of_another() {
    let mut served = Served::new();
    let mut waiting = 0..3 * SERVED_MAX;
    let waiting = waiting.by_ref().map(|key| served.join(&format!("BLPOP {key} 0\r\n")));
    let waiting = waiting.last().expect("many wait");
    let other = served.join("SELECT 5\r\nBLPOP k 0\r\n");
    served.join("SELECT 1\r\nSET x v\r\nSWAPDB 0 1\r\nSELECT 5\r\nRPUSH k v\r\n");
    served.engine.clock.begin_turn();
    served.connections.serve_waiting_for_keys(&mut served.engine);
    assert!(served.engine.data.blocking_keys.has_ready(), "not all keys were looked at");
    assert_eq!([waiting, other].map(|conn| served.is_waiting(conn)), [true, false]);
}
