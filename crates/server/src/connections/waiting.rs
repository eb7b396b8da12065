//! How clients begin to wait, are woken, continue, and give up.
//!
//! Code that wakes a client either calls [`Connections::answer`] or runs the client's request
//! again. All other code that ends a wait calls [`Connections::leave`], which takes the client off
//! its lists. A client may have sent more requests after the request that had to wait. These later
//! requests do not run at the point where the wait ends, because the wait may end within another
//! client's transaction. [`Connections::serve_resumed`] runs them later.

use std::time::Instant;

use slimio_keyspace::{Block, Mode, Nothing, ValueRef, ValueType};
use slimio_planted::is_planted;
use slimio_resp::{Args, OwnedRequest};
use slimio_storage::Lsn;

use super::Connections;
use crate::clients::{Client, State};
use crate::engine::{Engine, Phase};
use crate::inbox::Inbox;
use crate::net::ConnId;
use crate::waiting::{Again, KeyName, Line, Reason, Then, Ticket, Waiting, WantedKeys, deadline};

/// At most this many clients that wait for keys are served in one turn. The rest of them are served
/// in the next turns. Until then, no other client gets at the keys that the rest wait for.
const SERVED_MAX: usize = 256;

impl Connections {
    /// Makes a client wait. If the client's request is to be run [again](Then::Again), the caller
    /// [keeps](crate::engine::Data::keep_request) the request afterwards.
    pub(crate) fn wait(
        &mut self,
        engine: &mut Engine,
        client: &mut Client,
        reason: Reason,
        then: Then,
    ) {
        let deadline = self.waiting.again.deadline;
        self.wait_until(engine, client, reason, then, deadline);
    }

    /// Like [`wait`](Self::wait), but with the given deadline.
    pub(crate) fn wait_until(
        &mut self,
        engine: &mut Engine,
        client: &mut Client,
        reason: Reason,
        then: Then,
        deadline: Option<Instant>,
    ) {
        let line = reason.line();
        let mut ticket = self.waiting.ticket();
        if line == Line::LongRequest && is_planted("held-up-last-first") {
            ticket = ticket.reversed();
        }
        client.keeps_request = matches!(then, Then::Again(_));
        let is_counted = line == Line::Keys || self.waiting.again.is_counted;
        let waiting = Box::new(Waiting { reason, then, ticket, deadline, is_counted });
        self.waiting.enter(client.conn, &waiting);
        if let Reason::Keys(wanted) = &waiting.reason {
            engine.data.blocking_keys.enter(client.conn, client.db, wanted, waiting.ticket);
        }
        client.state = State::Waiting(waiting);
        self.read_on(client);
    }

    /// Makes a client wait, and runs its request again when the wait has ended.
    pub(crate) fn retry_later(&mut self, engine: &mut Engine, client: &mut Client, reason: Reason) {
        self.wait(engine, client, reason, Then::Again(OwnedRequest::default()));
    }

    /// Called if a command has found nothing in the keys that it wants. Makes the client wait for
    /// these keys. Within a transaction, or if the client's deadline has passed, replies instead
    /// that there was nothing. This reply depends on the log up to `needs`.
    #[cold]
    pub(super) fn block(
        &mut self,
        engine: &mut Engine,
        client: &mut Client,
        args: Args<'_>,
        block: &Block,
        needs: Lsn,
    ) {
        let again = self.waiting.again;
        let deadline = if again.is_counted {
            again.deadline
        } else {
            deadline(engine.clock.lap(), block.timeout)
        };
        let is_late =
            again.is_counted && deadline.is_some_and(|deadline| deadline <= engine.clock.now);
        let is_within = engine.data.transaction.is_some() && !is_planted("blocks-in-transaction");
        if is_within || is_late {
            let before = client.out.len();
            let nothing = if is_late { Nothing::NullArray } else { block.nothing };
            nothing.reply(&mut client.out);
            return engine.hold(client, needs, before);
        }
        let wanted = WantedKeys::new(&engine.data.keyspace, args, block);
        let then = Then::Again(OwnedRequest::default());
        self.wait_until(engine, client, Reason::Keys(wanted), then, deadline);
    }

    /// Takes a waiting client off all lists. Returns what the client has waited for; `None` if the
    /// client does not wait.
    pub(crate) fn leave(
        &mut self,
        engine: &mut Engine,
        client: &mut Client,
    ) -> Option<Box<Waiting>> {
        if !matches!(client.state, State::Waiting(_)) {
            return None;
        }
        match std::mem::replace(&mut client.state, State::Running) {
            State::Waiting(waiting) => {
                if !is_planted("left-still-listed") {
                    self.waiting.leave(&waiting);
                    if let Reason::Keys(wanted) = &waiting.reason {
                        engine.data.blocking_keys.leave(client.db, wanted, waiting.ticket);
                    }
                }
                Some(waiting)
            }
            _ => None,
        }
    }

    /// Runs no more requests of this client; replies that are already written are still sent.
    pub(crate) fn close(&mut self, engine: &mut Engine, client: &mut Client) {
        let waits = matches!(client.state, State::Waiting(_));
        if waits && is_planted("closing-still-waits") {
            return;
        }
        self.abandon(engine, client);
        client.state = State::Closing;
        client.inbox = Inbox::default();
    }

    /// Ends, without a reply, the client's wait or the command that the client has begun.
    pub(crate) fn abandon(&mut self, engine: &mut Engine, client: &mut Client) {
        let begun = match self.leave(engine, client).map(|waiting| waiting.then) {
            Some(Then::GoOn(command)) => Some(command),
            Some(Then::Again(_) | Then::Answer) => None,
            None => match std::mem::replace(&mut client.state, State::Closing) {
                State::Yielding(command) => Some(command),
                _ => None,
            },
        };
        if let Some(command) = begun {
            engine.data.free(command.steps.into());
        }
    }

    /// Ends a client's wait: `reply` writes the outcome, and the client goes on. A client that no
    /// longer waits, because it is to be closed, gets no reply.
    pub(crate) fn answer(
        &mut self,
        engine: &mut Engine,
        client: &mut Client,
        reply: impl FnOnce(&mut Engine, &mut Client),
    ) {
        if self.leave(engine, client).is_none() {
            return;
        }
        let before = client.out.len();
        reply(engine, client);
        engine.count_error(client, before);
        self.resume(client);
        if !is_planted("left-out-unless-waiting") {
            client.leave_out(before);
        }
    }

    /// Answers all clients in a line, in order.
    pub(crate) fn answer_line(
        &mut self,
        engine: &mut Engine,
        line: Line,
        reply: impl Fn(&mut Engine, &mut Client),
    ) {
        let conns: Vec<ConnId> = self.waiting.in_line(line).collect();
        for conn in conns {
            let Some(mut client) = self.clients.take(conn) else { continue };
            self.answer(engine, &mut client, &reply);
            self.put_back(engine, client);
        }
    }

    /// Called when a client's wait has ended. Marks the client as resumed. The requests that the
    /// client sent while it waited cannot run here, because this function may be called within
    /// another client's transaction. [`serve_resumed`](Self::serve_resumed) runs them.
    pub(crate) fn resume(&mut self, client: &mut Client) {
        client.state = State::Resumed;
        self.waiting.resumed.push_back(client.conn);
    }

    /// Runs the requests of resumed clients, and of clients that these requests resume. The loop
    /// ends, because it receives no new requests.
    pub(crate) fn serve_resumed(&mut self, engine: &mut Engine) {
        if self.has_resumed() {
            engine.clock.begin_lap(Instant::now());
        }
        while let Some(conn) = self.waiting.resumed.pop_front() {
            let Some(mut client) = self.clients.take(conn) else { continue };
            if matches!(client.state, State::Resumed) {
                self.go_on(engine, &mut client);
            }
            self.put_back(engine, client);
        }
    }

    /// Whether any resumed client still has to be served.
    pub(crate) fn has_resumed(&self) -> bool {
        !self.waiting.resumed.is_empty()
    }

    /// Runs a client's request again.
    fn run_again(&mut self, engine: &mut Engine, conn: ConnId, mode: Mode) {
        let Some(mut client) = self.clients.take(conn) else { return };
        let Some(waiting) = self.leave(engine, &mut client) else {
            return self.clients.put(client);
        };
        let Waiting { then: Then::Again(request), ticket, deadline, is_counted, .. } = *waiting
        else {
            unreachable!("a client that only waits for an answer has no request to run again");
        };
        engine.clock.begin_lap(Instant::now());
        let is_counted = is_counted && !is_planted("woken-counted-twice");
        self.waiting.again = Again { ticket: Some(ticket), deadline, is_counted, mode };
        self.request(engine, &mut client, request.args());
        if mode != Mode::Client && is_planted("woken-undurable") {
            client.needs = Lsn(0);
        }
        self.waiting.again = Again::default();
        if client.keeps_request {
            engine.data.keep_request(&mut client, request);
        }
        if client.is_running() {
            self.resume(&mut client);
        }
        self.put_back(engine, client);
    }

    /// Runs again, in order, the requests of the clients in a line. Stops if `is_over` returns true
    /// after a request, or if the time of the turn is used up.
    fn retry_line(
        &mut self,
        engine: &mut Engine,
        line: Line,
        mut is_over: impl FnMut(&mut Self, &mut Engine, ConnId) -> bool,
    ) {
        // A request that has to wait again keeps its place in the line. The loop stops at the place
        // that was last when the loop began, so no request is tried twice.
        let last = self.waiting.last_in(line);
        let mut after = Ticket::default();
        while let Some((ticket, conn)) = self.waiting.next_in(line, after)
            && ticket <= last
        {
            after = ticket;
            self.run_again(engine, conn, Mode::Client);
            self.serve_waiting_for_keys(engine);
            if is_over(self, engine, conn) || engine.clock.is_turn_over() {
                return;
            }
        }
    }

    /// Serves clients whose keys are ready, and retries the requests that a pause or a long request
    /// has held up. Then retries, in order, the requests that wait for room in the log.
    pub(crate) fn retry_waiting(&mut self, engine: &mut Engine) {
        if engine.phase.shutdown.is_some() {
            return;
        }
        self.serve_waiting_for_keys(engine);
        self.resume_postponed(engine);
        self.resume_held_up(engine);
        self.waiting.has_untried = false;
        let is_over = |connections: &mut Self, engine: &mut Engine, conn| {
            // If a request still has to wait, the requests behind it would have to wait as well.
            let client = connections.clients.get(conn);
            let still_waits = client.is_some_and(|client| client.line() == Some(Line::Room));
            connections.waiting.has_untried = engine.clock.is_turn_over() && !still_waits;
            still_waits
        };
        self.retry_line(engine, Line::Room, is_over);
        self.waiting.has_untried &= !self.waiting.is_empty(Line::Room);
    }

    /// If the pause has ended, runs the postponed requests.
    pub(crate) fn resume_postponed(&mut self, engine: &mut Engine) {
        engine.phase.end_pause_if_over(engine.clock.now);
        if engine.phase.is_paused() || engine.phase.is_ending() {
            return;
        }
        self.retry_line(engine, Line::Pause, |connections, engine, _| {
            // As in Redis, the requests that this client sent after the postponed request run
            // before the requests of the next client.
            if !is_planted("postponed-rest-last") {
                connections.serve_resumed(engine);
            }
            engine.phase.is_ending()
        });
    }

    /// If there is no long request any more, retries the requests that a long request held up. If
    /// no keys are ready for other clients any more, retries the requests that such keys held up. A
    /// retried request may become the long request. It then holds up the requests behind it.
    pub(crate) fn resume_held_up(&mut self, engine: &mut Engine) {
        if engine.phase.shutdown.is_some() {
            return;
        }
        if !engine.data.has_long() {
            self.retry_line(engine, Line::LongRequest, |_, _, _| false);
        }
        if !engine.data.blocking_keys.has_ready() {
            self.retry_line(engine, Line::TakenKeys, |_, _, _| false);
        }
    }

    /// Whether some waiting requests can be retried at once. If so, the next turn must not sleep.
    pub(crate) fn may_retry(&self, engine: &Engine) -> bool {
        let has = |line| !self.waiting.is_empty(line);
        let is_held = (has(Line::LongRequest) && !engine.data.has_long())
            || self.waiting.has_untried
            || engine.data.blocking_keys.has_ready()
            || has(Line::TakenKeys);
        (is_held && engine.phase.shutdown.is_none())
            || (has(Line::Pause) && !engine.phase.is_paused())
    }

    /// Whether requests or long commands wait for room in the log.
    pub(crate) fn has_parked(&self) -> bool {
        !self.waiting.is_empty(Line::Room) || !self.waiting.is_empty(Line::RoomForStep)
    }

    /// Serves the clients that wait for keys which have become ready. Called when a whole command,
    /// transaction or long request has ended.
    #[inline]
    pub(crate) fn serve_waiting_for_keys(&mut self, engine: &mut Engine) {
        if engine.data.blocking_keys.has_ready() && !engine.phase.is_ending() {
            self.serve_ready(engine);
        }
    }

    #[cold]
    fn serve_ready(&mut self, engine: &mut Engine) {
        while let Some(key) = engine.data.blocking_keys.next_ready() {
            let mut after = Ticket::default();
            loop {
                if !engine.data.blocking_keys.may_serve(engine.clock.turn, SERVED_MAX) {
                    // The next turn goes on with the same key.
                    return;
                }
                let Some((ticket, conn)) = self.next_to_serve(engine, key, after) else { break };
                after = ticket;
                let Some((index, _)) = self.found_for(engine, conn, key.1) else { break };
                self.run_again(engine, conn, Mode::Woken(index));
                if engine.clock.is_turn_over() {
                    return;
                }
            }
            engine.data.blocking_keys.served();
        }
    }

    /// The next client, behind the ticket `after`, that waits for a value of the type that the key
    /// holds.
    fn next_to_serve(
        &self,
        engine: &Engine,
        key: KeyName,
        after: Ticket,
    ) -> Option<(Ticket, ConnId)> {
        let lines = &engine.data.blocking_keys;
        let (_, holds) = self.found_for(engine, lines.first_waiter(key)?, key.1)?;
        let wanted = if is_planted("wrong-type-woken") { ValueType::List } else { holds };
        lines.next_waiter(key, wanted, after)
    }

    /// Looks at a key that a client waits for, given the key's hash. Returns the key's index among
    /// the arguments of the client's request, and the type of the key's value. `None` if the key
    /// does not exist, or if the client does not wait for it.
    fn found_for(&self, engine: &Engine, conn: ConnId, hash: u64) -> Option<(usize, ValueType)> {
        let client = self.clients.get(conn)?;
        let State::Waiting(waiting) = &client.state else { return None };
        let (Reason::Keys(wanted), Then::Again(request)) = (&waiting.reason, &waiting.then) else {
            return None;
        };
        let index = wanted.index_of(hash)?;
        let value =
            engine.data.keyspace.get(client.db, &request.args().bytes(index), engine.clock.now_ms);
        value.map(|value| (index, ValueRef::value_type(value)))
    }

    /// Ends the waits of clients whose deadlines have passed. A client that is still to be served,
    /// in this turn or a later one, goes on waiting, because the value that it waits for was there
    /// in time.
    pub(crate) fn give_up_late(&mut self, engine: &mut Engine) {
        let mut after = None;
        while let Some((deadline, conn)) = self.waiting.next_late(engine.clock.now, after) {
            after = Some(deadline);
            if !self.is_to_be_served(engine, conn) || is_planted("late-before-served") {
                self.unblock(engine, conn, false);
            }
            engine.clock.begin_lap(Instant::now());
            if engine.clock.is_turn_over() {
                return;
            }
        }
    }

    /// Whether one of the keys that a client waits for is ready, and holds a value of the type that
    /// the client waits for.
    fn is_to_be_served(&self, engine: &Engine, conn: ConnId) -> bool {
        let lines = &engine.data.blocking_keys;
        if !lines.has_ready() {
            return false;
        }
        if is_planted("late-behind-others") {
            return true;
        }
        let Some(client) = self.clients.get(conn) else { return false };
        let State::Waiting(waiting) = &client.state else { return false };
        let Reason::Keys(wanted) = &waiting.reason else { return false };
        let holds_wanted = |hash| {
            let found = self.found_for(engine, conn, hash);
            found.is_some_and(|(_, holds)| holds == wanted.wanted())
        };
        let mut ready = wanted.hashes().filter(|hash| lines.is_taken((client.db, *hash)));
        ready.any(holds_wanted)
    }

    /// Ends the wait of a client in a blocking command. If `with_error` is set, the client gets an
    /// error. Otherwise, the wait ends as if its time were up.
    pub(crate) fn unblock(&mut self, engine: &mut Engine, conn: ConnId, with_error: bool) {
        let Some(mut client) = self.clients.take(conn) else { return };
        let State::Waiting(waiting) = &client.state else { return self.clients.put(client) };
        if with_error {
            const UNBLOCKED: &str = "UNBLOCKED client unblocked via CLIENT UNBLOCK";
            if let Then::Again(request) = &waiting.then
                && let Ok(row) = crate::commands::find(request.args())
            {
                engine.stats.by_command[row.run.id].failed += 1;
            }
            self.answer(engine, &mut client, |_, client| client.out.error(UNBLOCKED));
        } else if waiting.is_counted {
            // The reply reveals that the keys hold nothing, perhaps because another client has
            // taken the elements. So the reply depends on the record of that client's request.
            let needs = match &waiting.reason {
                Reason::Keys(wanted) => engine.gate.depends_on_wanted(&client, wanted),
                _ => engine.gate.depends_on_all(),
            };
            self.answer(engine, &mut client, |engine, client| {
                let before = client.out.len();
                Nothing::NullArray.reply(&mut client.out);
                if !engine.gate.withhold(client, needs, before) {
                    client.needs = client.needs.max(needs);
                }
            });
        } else {
            self.answer(engine, &mut client, crate::commands::reply_of_waitaof);
        }
        self.put_back(engine, client);
    }
}

/// Whether a client that may have disconnected can be dropped although it still waits, as in
/// Redis.
pub(super) fn waits_in_vain(phase: &Phase, client: &Client) -> bool {
    let State::Waiting(waiting) = &client.state else { return false };
    match &waiting.reason {
        // A client that has disconnected must not be given an element, because the element would be
        // lost.
        _ if waiting.is_counted => !is_planted("gone-still-waits"),
        Reason::Log(wait) => wait.never,
        // A request that a pause has postponed is not run if its client may have disconnected
        // during the pause.
        Reason::Room | Reason::Pause | Reason::LongRequest | Reason::TakenKeys => {
            phase.is_paused() || is_planted("half-closed-given-up")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
