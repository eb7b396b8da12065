//! Tests of clients that wait while other clients are served over several turns, and of clients
//! that disconnect or are disconnected.

use std::time::Duration;

use slimio_keyspace::DbIndex;

use super::*;
use crate::config::Config;
use crate::engine::Facts;
use crate::net::Peer;

/// How far the turns' clock is ahead of the system's clock.
const AHEAD: Duration = Duration::from_secs(3600);

/// An engine without a volume, and its clients. The test itself runs the turns of the event loop.
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

    /// Begins a turn whose time for requests is not used up, however slow the machine is.
    fn begin_turn(&mut self) {
        self.engine.clock.begin_turn();
        self.engine.clock.now += AHEAD;
    }

    /// Connects a client, which sends a request.
    fn join(&mut self, request: &str) -> ConnId {
        let conn = ConnId { index: self.count, generation: 0 };
        self.count += 1;
        self.connections.accepted(&mut self.engine, conn, Peer { remote: None, local: None });
        self.begin_turn();
        self.connections.received(&mut self.engine, conn, request.as_bytes());
        conn
    }

    /// Makes clients wait for a key, and pushes an element for each of them. There are more clients
    /// than one turn serves.
    fn push_much(&mut self) {
        for _ in 0..=SERVED_MAX {
            self.join("BLPOP k 0\r\n");
        }
        self.join(&format!("RPUSH k {}\r\n", "v ".repeat(SERVED_MAX + 1)));
        assert!(self.engine.data.blocking_keys.has_ready(), "all clients are served already");
    }

    /// A turn in which nothing arrives.
    fn turn(&mut self) {
        self.begin_turn();
        self.connections.retry_waiting(&mut self.engine);
        self.connections.serve_resumed(&mut self.engine);
    }

    fn has_left(&self, conn: ConnId) -> bool {
        self.connections.clients.get(conn).is_none_or(Client::is_closing)
    }

    fn is_waiting(&self, conn: ConnId) -> bool {
        let client = self.connections.clients.get(conn).expect("nobody disconnects");
        matches!(client.state, State::Waiting(_))
    }
}

/// There are more clients to serve than one turn serves. Until they are served, the deadlines of
/// clients that wait for other keys still apply.
#[test]
fn a_deadline_does_not_wait_for_those_who_are_served() {
    let mut served = Served::new();
    for _ in 0..=SERVED_MAX {
        served.join("BLPOP k 0\r\n");
    }
    let [last, other, of_none, mistyped] =
        ["k", "other", "neither", "typed"].map(|key| served.join(&format!("BLPOP {key} 5\r\n")));
    served.join("SET typed v\r\n");
    let elements = "v ".repeat(SERVED_MAX + 2);
    served.join(&format!("RPUSH k {elements}\r\n"));
    assert!(served.engine.data.blocking_keys.has_ready(), "all clients are served already");
    served.begin_turn();
    served.engine.clock.now += Duration::from_secs(10);
    served.connections.give_up_late(&mut served.engine);
    let waits = [last, other, of_none, mistyped].map(|conn| served.is_waiting(conn));
    assert_eq!(waits, [true, false, false, false]);
    served.connections.serve_waiting_for_keys(&mut served.engine);
    assert!(!served.is_waiting(last));
    assert!(!served.engine.data.blocking_keys.has_ready());
}

/// Clients wait for many keys of a database that is swapped in. Looking through these keys takes
/// several turns, but a client that waits in another database is served in the first of these
/// turns.
#[test]
fn a_swapped_database_holds_up_nobody_of_another() {
    let mut served = Served::new();
    let keys = 0..3 * SERVED_MAX;
    let waiting: Vec<ConnId> = keys.map(|key| served.join(&format!("BLPOP {key} 0\r\n"))).collect();
    let other = served.join("SELECT 5\r\nBLPOP k 0\r\n");
    served.join("SELECT 1\r\nSET x v\r\nSWAPDB 0 1\r\nSELECT 5\r\nRPUSH k v\r\n");
    served.begin_turn();
    served.connections.serve_waiting_for_keys(&mut served.engine);
    assert!(
        served.engine.data.blocking_keys.has_ready(),
        "the first turn must not look at all keys"
    );
    let [there, here] =
        ["SELECT 5\r\nDBSIZE\r\n", "DBSIZE\r\n"].map(|request| served.join(request));
    assert_eq!([there, here].map(|conn| served.is_waiting(conn)), [false, true]);
    assert!(waiting.iter().all(|conn| served.is_waiting(*conn)));
    assert!(!served.is_waiting(other));
}

/// A client sends nothing more. Its request still runs, even if the request has to wait for
/// something that is certain to happen. During a pause, the request is given up, as in Redis.
#[test]
fn who_sends_nothing_more_waits_for_what_will_come() {
    for is_paused in [false, true] {
        let mut served = Served::new();
        served.push_much();
        let held = served.join("LPUSH k last\r\n");
        if is_paused {
            served.join("CLIENT PAUSE 10000\r\n");
        }
        served.connections.at_end(&mut served.engine, held);
        assert_eq!(served.has_left(held), is_paused);
        served.turn();
        let keyspace = &served.engine.data.keyspace;
        assert_eq!(keyspace.dbsize(DbIndex(0)), usize::from(!is_paused));
    }
}

/// A client hangs up while its request waits for something that is certain to happen. The request
/// still runs, and finds nothing. The client then leaves. It does not begin to wait for a key,
/// because nobody would read its reply.
#[test]
fn who_has_hung_up_does_not_begin_to_wait_for_keys() {
    let mut served = Served::new();
    served.push_much();
    let held = served.join("BLPOP k 0\r\n");
    served.connections.hung_up(&mut served.engine, held);
    assert!(!served.has_left(held), "the client must stay until its request has run");
    served.turn();
    assert!(served.has_left(held));
    assert!(served.engine.data.blocking_keys.is_empty());
}

#[test]
fn who_goes_watches_nothing() {
    let mut served = Served::new();
    let client = served.join("WATCH a b\r\n");
    assert!(!served.engine.data.watches.is_empty());
    served.connections.ended(&mut served.engine, client);
    assert!(served.engine.data.watches.is_empty());
}

#[test]
fn the_largest_client_goes_first() {
    let mut served = Served::new();
    let [small, large, middle] = [10, 300_000, 100_000].map(|size| {
        let client = served.join("MULTI\r\n");
        let request = format!("ECHO {}\r\n", "x".repeat(size));
        served.connections.received(&mut served.engine, client, request.as_bytes());
        client
    });
    let sizes = [small, large, middle]
        .map(|client| served.connections.clients.get(client).expect("connected").memory() as u64);
    served.engine.settings.clients_memory_max = Some(sizes.iter().sum::<u64>() - 1);
    served.connections.evict_clients(&mut served.engine);
    assert_eq!([small, large, middle].map(|conn| served.has_left(conn)), [false, true, false]);
}
