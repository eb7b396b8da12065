//! The connected clients: their requests, what they wait for, and their replies.
//!
//! ```text
//!  net events ─► received ─► requests ─► engine ─► reply ─► held until it may leave ─► net
//!                               │          ▲
//!                               └─ waits ──┘ woken
//! ```
//!
//! A reply may leave when the log is far enough for it; `appendfsync` decides how far.
//!
//! Nothing here does I/O on sockets. Tasks for the network are noted as [`NetRequest`]s, and
//! replies leave through [`Connections::flush`]. Functions that run a request get the [`Engine`] as
//! a separate parameter.

mod check;
mod input;
mod lifecycle;
mod long;
mod memory;
mod output;
mod requests;
mod snapshots;
mod timers;
mod waiting;
mod yielding;

use std::collections::VecDeque;

use crate::background::BackgroundJobs;
use crate::clients::Clients;
use crate::engine::Engine;
use crate::net::{ConnId, ReceiveBuffer};
use crate::waiting::WaitingRoom;

/// At most this many empty reply buffers are kept for the next replies.
const SPARE_MAX: usize = 256;
/// The largest reply buffer that is kept, in bytes.
const SPARE_SIZE_MAX: usize = 64 << 10;

/// A task for the network.
#[derive(Debug)]
pub(crate) enum NetRequest {
    /// Receive the connection's next bytes into this memory.
    Fill(ConnId, ReceiveBuffer),
    /// Go on reading from the connection.
    Receive(ConnId),
    /// Stop reading from the connection until [`Receive`](Self::Receive).
    Pause(ConnId),
}

/// All clients: what they have sent, what they wait for, and what is on its way to them.
#[derive(Default)]
pub(crate) struct Connections {
    pub(crate) clients: Clients,
    pub(crate) net_requests: Vec<NetRequest>,
    /// Connections to close. Closing many connections takes long, so each turn closes only some.
    closing: VecDeque<ConnId>,
    /// Whether the clients still take too much memory, because one turn had no time to disconnect
    /// enough of them. The next turn then continues.
    evicts_more: bool,
    dirty: Vec<ConnId>,
    /// Clients with replies that must wait until the log is far enough.
    holding: Vec<ConnId>,
    pub(crate) background_jobs: BackgroundJobs,
    /// Clients whose command runs in steps, and has steps left. The thread does not sleep while
    /// this list holds any client.
    yielding: VecDeque<ConnId>,
    /// Clients that have used up their share of a turn and have more requests.
    behind: VecDeque<ConnId>,
    /// Clients that wait.
    pub(crate) waiting: WaitingRoom,
    spare: Vec<Vec<u8>>,
}

impl Connections {
    /// Ends a turn, after all work that must be done before the next poll of the sockets.
    pub(crate) fn end_turn(&mut self, engine: &mut Engine) {
        self.check_clients(engine);
        if let Some(cpu) = engine.clock.end_turn() {
            engine.stats.turn_cpu_max = engine.stats.turn_cpu_max.max(cpu);
        }
    }

    /// Memory to write replies into.
    fn spare_memory(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn keep_spare(&mut self, memory: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && (1..=SPARE_SIZE_MAX).contains(&memory.capacity()) {
            self.spare.push(memory);
        }
    }
}
