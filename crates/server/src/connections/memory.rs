//! Counts the memory that the clients take, and disconnects clients if they take too much.

use std::time::{Duration, Instant};

use slimio_planted::is_planted;

use super::Connections;
use crate::clients::Client;
use crate::engine::Engine;

/// Limit of the time that one turn takes to disconnect clients because of their memory.
const EVICTION_TIME: Duration = Duration::from_millis(1);

impl Connections {
    /// Bytes of memory that all clients take. This includes the request that is running in steps,
    /// if there is one, and `current`, the client being served.
    pub(crate) fn client_bytes(&self, engine: &Engine, current: Option<&Client>) -> u64 {
        (self.clients.memory() + current.map_or(0, Client::memory) + engine.data.long_memory())
            as u64
    }

    /// Disconnects the largest clients until all clients together take less memory than
    /// `maxmemory-clients` allows. Stops after [`EVICTION_TIME`]; the next turn continues.
    pub(super) fn evict_clients(&mut self, engine: &mut Engine) {
        self.evicts_more = false;
        let Some(limit) = engine.settings.clients_memory_max else { return };
        if (self.clients.memory() as u64) < limit {
            return;
        }
        let may_go = |client: &&Client| {
            !client.is_closing() && (!client.no_evict || is_planted("no-evict-unheard"))
        };
        let clients = self.clients.iter().filter(may_go);
        let mut largest: Vec<_> = clients.map(|client| (client.memory(), client.conn)).collect();
        largest.sort_unstable_by_key(|(memory, _)| std::cmp::Reverse(*memory));
        if is_planted("smallest-evicted") {
            largest.reverse();
        }
        let began = Instant::now();
        for (_, conn) in largest {
            if (self.clients.memory() as u64) < limit {
                return;
            }
            if began.elapsed() >= EVICTION_TIME {
                self.evicts_more = true;
                return;
            }
            if let Some(client) = self.clients.take(conn) {
                log::info!(
                    "Evicting client: {}",
                    client.describe(engine.clock.now, engine.data.watches.is_stale(&client), 0)
                );
                engine.stats.evicted_clients += 1;
                self.drop_client(engine, client);
            }
        }
    }
}
