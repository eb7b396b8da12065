//! The data that a server should have in memory, taken from a second server without a volume.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use slimio_server::WallClock;

use super::script::{FIRST_MS, Unit};
use super::state::{State, read};
use crate::common::{Client, Running, config, launch_at};

pub(crate) struct Oracle {
    pub(crate) client: Client,
    /// The oracle has its own time of day, because it runs each unit (a request or a transaction)
    /// again at the time at which the unit first ran.
    pub(crate) clock: Arc<AtomicI64>,
    _server: Running,
}

impl Oracle {
    /// Starts the oracle with an empty data set.
    pub(crate) fn start() -> Self {
        let clock = Arc::new(AtomicI64::new(FIRST_MS));
        let config = config("plain", Path::new("none"), "appendonly no");
        let given = WallClock::Given(Arc::clone(&clock));
        let server = launch_at(config, given, |_| Ok(None)).serving();
        Self { client: server.connect(), clock, _server: server }
    }

    /// Runs a unit. Returns its replies, and the state after it.
    pub(crate) fn run(&mut self, unit: &Unit) -> (Vec<Vec<u8>>, State) {
        let mut requests = Vec::new();
        let count = unit.encode(&mut requests);
        self.client.send_bytes(&requests);
        let replies = (0..count).map(|_| self.client.read()).collect();
        (replies, read(&mut self.client).unwrap())
    }

    /// Empties the data set and runs each of these units again, at the time at which it first ran.
    /// Then sets the clock to `now_ms`.
    pub(crate) fn reset(&mut self, units: &[(i64, Unit)], now_ms: i64) {
        self.client.call(&["FLUSHALL"]);
        for at_once in units.chunk_by(|(at_ms, _), (next_ms, _)| at_ms == next_ms) {
            self.clock.store(at_once[0].0, Ordering::SeqCst);
            let mut requests = Vec::new();
            let count: usize = at_once.iter().map(|(_, unit)| unit.encode(&mut requests)).sum();
            self.client.send_bytes(&requests);
            (0..count).for_each(|_| drop(self.client.read()));
        }
        self.clock.store(now_ms, Ordering::SeqCst);
    }
}
