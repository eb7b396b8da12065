//! Sends replies to the clients, and enforces the output limits.

use slimio_planted::is_planted;
use slimio_resp::ReplyBuf;
use slimio_storage::Lsn;

use super::lifecycle::is_done_with;
use super::{Connections, NetRequest};
use crate::clients::{Client, Replies, soft_limit_is_over};
use crate::engine::{Engine, Settings};
use crate::gate::may_leave;
use crate::net::{ConnId, Net, Outgoing};

/// At most this many bytes of replies may wait for a client that has to authenticate first, because
/// such a client could send failing requests and never read the errors.
const STRANGER_OUTPUT_MAX: u64 = 64 << 10;

/// At most this many connections are closed in one turn. Closing a connection takes the kernel
/// about 10 us, and more if io_uring has to cancel operations of the connection.
const CLOSED_MAX: usize = 64;

impl Connections {
    /// Hands to the network all replies that may leave now.
    pub(crate) fn flush(&mut self, engine: &mut Engine, net: &mut dyn Net) {
        let releasable = engine.gate.releasable(engine.clock.now);
        let durable = engine.gate.durable();
        if !self.holding.is_empty() {
            let holding = std::mem::take(&mut self.holding);
            for &conn in &holding {
                if let Some(client) = self.clients.get_mut(conn) {
                    client.is_holding = false;
                    if !std::mem::replace(&mut client.is_dirty, true) {
                        self.dirty.push(conn);
                    }
                }
            }
        }
        let dirty = std::mem::take(&mut self.dirty);
        for &conn in &dirty {
            let Some(mut client) = self.clients.take(conn) else { continue };
            client.is_dirty = false;
            if !client.out.is_cut() {
                release(&mut client, releasable, durable);
                self.send(engine, &mut client, net);
            }
            if is_over_limit(engine, &mut client) || is_lost(engine, &client) {
                self.drop_client(engine, client);
                continue;
            }
            if client.unsent_size() == 0 && is_done_with(&engine.phase, &client) {
                self.drop_client(engine, client);
                continue;
            }
            if !client.held.is_empty() {
                client.is_holding = true;
                self.holding.push(conn);
            }
            self.clients.put(client);
        }
        if self.dirty.is_empty() {
            // Keeps the list's memory for the next turn.
            self.dirty = dirty;
            self.dirty.clear();
        }
        self.evict_clients(engine);
        self.grant(net);
        self.close_some(net);
    }

    /// Whether replies were added since the last [`flush`](Self::flush), such as replies to clients
    /// that waited for the end of a snapshot.
    pub(crate) fn has_unflushed(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Hands the noted [`NetRequest`]s to the network.
    pub(crate) fn grant(&mut self, net: &mut dyn Net) {
        for wish in self.net_requests.drain(..) {
            match wish {
                NetRequest::Fill(conn, filling) => net.fill(conn, filling),
                NetRequest::Receive(conn) => net.receive(conn),
                NetRequest::Pause(conn) => net.pause(conn),
            }
        }
    }

    /// Closes the connections of clients that were dropped, up to [`CLOSED_MAX`] of them.
    fn close_some(&mut self, net: &mut dyn Net) {
        for _ in 0..self.closing.len().min(CLOSED_MAX) {
            if let Some(conn) = self.closing.pop_front() {
                net.close(conn);
            }
        }
    }

    /// Whether connections are still to be closed. If so, the next turn must not sleep.
    pub(crate) fn has_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Called when the kernel has taken the bytes that were sent.
    pub(crate) fn sent(&mut self, conn: ConnId, outgoing: Outgoing) {
        self.keep_spare(outgoing.into_memory());
        let Some(mut client) = self.clients.take(conn) else { return };
        (client.sending, client.sending_memory) = (0, 0);
        let is_wanted = !client.ready.is_empty() || client.is_closing() || client.is_at_end;
        if is_wanted && !std::mem::replace(&mut client.is_dirty, true) {
            self.dirty.push(conn);
        }
        self.clients.put(client);
    }

    fn send(&mut self, engine: &mut Engine, client: &mut Client, net: &mut dyn Net) {
        if client.sending > 0 || client.ready.is_empty() {
            return;
        }
        let protocol = client.ready.protocol();
        let reply = std::mem::replace(&mut client.ready, ReplyBuf::new(protocol));
        let (size, own_memory) = (reply.len(), reply.own_memory());
        engine.stats.writes += 1;
        engine.stats.output_bytes += size as u64;
        if let Some(outgoing) = net.send(client.conn, Outgoing::from_reply(reply)) {
            self.keep_spare(outgoing.into_memory());
        } else {
            (client.sending, client.sending_memory) = (size, own_memory);
        }
    }

    /// Adds a client to `dirty`, so that its output limit is checked when the turn ends.
    pub(super) fn look_at_output(&mut self, client: &mut Client) {
        if !std::mem::replace(&mut client.is_dirty, true) {
            self.dirty.push(client.conn);
        }
    }

    /// Adds the clients that are above their soft limit to `dirty`, so that they are checked when
    /// the turn ends even if they do nothing.
    pub(crate) fn recheck_limits(&mut self) {
        for client in self.clients.iter_mut() {
            if client.soft_limit_since.is_some() && !client.is_dirty {
                client.is_dirty = true;
                self.dirty.push(client.conn);
            }
        }
    }

    /// Whether all connected clients have replies that wait for the log. If so, there is nothing
    /// else to do for these clients.
    pub(crate) fn all_are_holding(&self) -> bool {
        !self.holding.is_empty() && self.holding.len() == self.clients.len()
    }

    /// Whether some reply has not reached the kernel yet.
    pub(crate) fn has_output(&self) -> bool {
        self.clients.iter().any(|client| client.unsent_size() > 0)
    }
}

/// Moves replies of this turn and of earlier turns to `ready` if the replies may leave.
fn release(client: &mut Client, releasable: Lsn, durable: Lsn) {
    if !client.out.is_empty() {
        let needs = std::mem::take(&mut client.needs);
        let reply = client.out.take(ReplyBuf::default());
        if client.held.is_empty() && may_leave(needs, releasable, durable) {
            make_ready(client, reply);
            return;
        }
        client.held.push(needs, reply);
    }
    while let Some(reply) = client.held.pop_if(|needs| may_leave(needs, releasable, durable)) {
        make_ready(client, reply);
    }
}

fn make_ready(client: &mut Client, reply: ReplyBuf) {
    if client.ready.is_empty() {
        client.ready = reply;
    } else {
        client.ready.append(&reply);
    }
}

/// Limits the size of a client's next reply, so that the replies that wait for the client stay
/// within its output limit.
pub(super) fn limit_reply(settings: &Settings, client: &mut Client) {
    // A reply that `CLIENT REPLY` suppresses is not stored at all. Within a transaction, replies
    // are stored, because the transaction may still turn replies on.
    let is_off = client.replies != Replies::On && client.multi.is_none();
    if is_off && !is_planted("left-out-kept") {
        return client.out.set_size_max(Some(client.out.len()));
    }
    let hard = settings.output_limit.hard_bytes;
    if hard == 0 {
        return client.out.set_size_max(None);
    }
    let others = client.unsent_size() - client.out.len();
    client.out.set_size_max(Some((hard as usize).saturating_sub(others)));
}

/// Whether a client has too many unread replies, or has exceeded the soft limit for too long.
fn is_over_limit(engine: &mut Engine, client: &mut Client) -> bool {
    let limit = engine.settings.output_limit;
    let is_stranger = engine.settings.password.is_some() && !client.is_authenticated;
    let is_unlimited = limit.hard_bytes == 0 && limit.soft_bytes == 0;
    // A reply that was cut at an earlier limit stays incomplete. So a client with such a reply is
    // over the limit even if there is no limit now.
    if !client.out.is_cut() && is_unlimited && !is_stranger {
        return false;
    }
    let size = client.output_size() as u64;
    let is_over_soft = limit.soft_bytes > 0 && size >= limit.soft_bytes;
    if !is_over_soft {
        client.soft_limit_since = None;
    } else if client.soft_limit_since.is_none() {
        client.soft_limit_since = Some(engine.clock.now);
    }
    let is_over = client.out.is_cut()
        || (limit.hard_bytes > 0 && size >= limit.hard_bytes)
        || (is_stranger && size > STRANGER_OUTPUT_MAX && !is_planted("stranger-unlimited"))
        || soft_limit_is_over(client.soft_limit_since, engine.clock.now, limit.soft_seconds);
    if is_over {
        engine.stats.output_limit_disconnections += 1;
        log::warn!(
            "client {} closed for overcoming of output buffer limits",
            client.describe(engine.clock.now, engine.data.watches.is_stale(client), 0)
        );
    }
    is_over
}

/// Whether a client's held replies will never leave, because the log has failed. The connection
/// is then closed, which tells the client that the outcome of its writes is unknown.
fn is_lost(engine: &mut Engine, client: &Client) -> bool {
    let is_lost = !client.held.is_empty() && engine.gate.is_latched();
    engine.stats.undelivered += u64::from(is_lost);
    is_lost
}
