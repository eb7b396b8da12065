//! What happens to a request: its command is looked up, the request waits if it has to, and then it
//! is run, queued or refused.

use std::time::Duration;

use slimio_keyspace::{Command, Flags, Mode, Outcome, populate_log_size_max};
use slimio_planted::is_planted;
use slimio_resp::Args;
use slimio_storage::Lsn;

use super::Connections;
use super::output::limit_reply;
use crate::clients::{Client, LongCommand, Replies, State};
use crate::commands::{Entry, NotFound, Run};
use crate::engine::{Admission, Engine, Purpose};
use crate::waiting::Reason;

impl Connections {
    /// Runs, queues or refuses a request. Its reply is in the client's output afterwards, unless
    /// the client has to wait.
    pub(crate) fn request(&mut self, engine: &mut Engine, client: &mut Client, args: Args<'_>) {
        if client.replies == Replies::SkipNext {
            client.replies = Replies::Skip;
        }
        limit_reply(&engine.settings, client);
        let before = client.out.len();
        self.request_for_reply(engine, client, args, before);
        client.leave_out(before);
        self.close_if_cut(engine, client);
    }

    fn request_for_reply(
        &mut self,
        engine: &mut Engine,
        client: &mut Client,
        args: Args<'_>,
        before: usize,
    ) {
        let row = match crate::commands::find(args) {
            Ok(row) => row,
            Err(NotFound { row, text }) => return engine.reject(client, row, &text),
        };
        client.last_command = row.run.name;
        let limit = engine.settings.memory_max;
        let clients = if limit > 0 { self.client_bytes(engine, Some(client)) } else { 0 };
        let is_counted = self.waiting.again.is_counted;
        if let Err(text) = engine.check(client, row, clients, is_counted) {
            return engine.reject(client, Some(row), text.as_bytes());
        }
        if engine.phase.must_wait(client, row) {
            return self.retry_later(engine, client, Reason::Pause);
        }
        if client.multi.is_some() && !row.run.ends_queueing {
            return queue(client, row, args, engine.data.watches.is_stale(client));
        }
        let is_served = matches!(self.waiting.again.mode, Mode::Woken(_));
        if let Some(reason) = engine.data.is_held_up(client, row, args, is_served) {
            return self.retry_later(engine, client, reason);
        }
        match row.run.run {
            Run::Data(run) if engine.data.is_long(client.db, row, args) => {
                let ticket = self.waiting.ticket();
                return engine.begin_long(client, ticket, row, run, args);
            }
            Run::Data(run) => {
                if row.flags.has(Flags::WRITE) {
                    let size =
                        row.log_size_max(args) + engine.data.weigh(client.db, row, args).log_size;
                    match engine.admit(engine.purpose(row, client.db), size) {
                        Admission::Granted => {}
                        Admission::Wait => return self.retry_later(engine, client, Reason::Room),
                        Admission::Refused(text) => {
                            return engine.reject(client, Some(row), text.as_bytes());
                        }
                    }
                }
                let mode = self.waiting.again.mode;
                let (outcome, needs) = engine.run_data(client, row, run, args, mode);
                self.conclude(engine, client, args, outcome, needs, before);
            }
            Run::Server(run) => run(engine, client, args),
            Run::Connections(run) => run(self, engine, client, args),
            Run::Container(_) => unreachable!("the lookup returns the subcommand's row"),
        }
        let is_counted = self.waiting.again.is_counted;
        engine.account(client, row, args, Duration::ZERO, before, is_counted);
    }

    /// Runs one command of a transaction.
    pub(crate) fn run_queued(
        &mut self,
        engine: &mut Engine,
        client: &mut Client,
        row: &'static Command<Entry>,
        args: Args<'_>,
    ) {
        let before = client.out.len();
        if row.weigh.is_some() {
            engine.ask_for_more(client.db, row, args);
        }
        match row.run.run {
            Run::Data(run) => {
                let (outcome, needs) = engine.run_data(client, row, run, args, Mode::Atomic);
                self.conclude(engine, client, args, outcome, needs, before);
            }
            Run::Server(run) => run(engine, client, args),
            Run::Connections(run) => run(self, engine, client, args),
            Run::Container(_) => unreachable!("the lookup returns the subcommand's row"),
        }
        engine.account(client, row, args, Duration::ZERO, before, false);
    }

    /// Called when a data command, or a step of it, has run. Depending on `outcome`, makes the
    /// reply wait for the log up to `needs`, queues the next step, or makes the client wait.
    pub(crate) fn conclude(
        &mut self,
        engine: &mut Engine,
        client: &mut Client,
        args: Args<'_>,
        outcome: Outcome,
        needs: Lsn,
        before: usize,
    ) {
        match outcome {
            Outcome::Reply => engine.hold(client, needs, before),
            Outcome::Yield(steps) => {
                if !is_planted("steps-need-nothing") {
                    client.needs = client.needs.max(needs);
                }
                let request = args.to_owned();
                let is_counted = self.waiting.again.is_counted;
                let long = LongCommand { request, steps, spent: Duration::ZERO, is_counted };
                client.state = State::Yielding(Box::new(long));
                self.yielding.push_back(client.conn);
            }
            Outcome::Block(block) => self.block(engine, client, args, &block, needs),
            Outcome::NeedCold { .. } => unreachable!("no command in the table returns `NeedCold`"),
        }
    }

    /// If a client's reply was cut at the client's output limit, closes the client, as in Redis.
    pub(super) fn close_if_cut(&mut self, engine: &mut Engine, client: &mut Client) {
        if client.out.is_cut() {
            self.close(engine, client);
        }
    }
}

/// Queues a request of a transaction. `is_stale` says whether a watched key was changed.
fn queue(client: &mut Client, row: &Command<Entry>, args: Args<'_>, is_stale: bool) {
    let Some(multi) = &mut client.multi else { return };
    if (multi.is_broken || is_stale) && !is_planted("void-request-queued") {
        // The transaction will not run, so the request is not kept. The request does not count as a
        // write either, so that a pause of writes does not hold up `EXEC`.
        client.out.simple("QUEUED");
        return;
    }
    if let Some((purpose, size)) = asks_for(row, args) {
        multi.writes |= row.flags.has(Flags::WRITE);
        multi.purpose = multi.purpose.min(purpose);
        let size = if is_planted("exec-counts-requests") {
            args.iter().map(|arg| arg.size() as u64).sum()
        } else {
            size
        };
        multi.weighed += usize::from(row.weigh.is_some());
        multi.log_size_max = Some(multi.log_size_max.unwrap_or(0).saturating_add(size));
    }
    multi.needs_memory |= row.flags.has(Flags::DENYOOM);
    client.keeps_request = true;
    client.out.simple("QUEUED");
}

/// The purpose of a queued request that writes, and the largest payload in bytes that the request
/// may append to the log; `None` if the request does not write. Only `FLUSHALL` counts as emptying
/// the data set. `FLUSHDB` does not count, because it is not known yet whether it will empty the
/// whole data set.
fn asks_for(row: &Command<Entry>, args: Args<'_>) -> Option<(Purpose, u64)> {
    if row.name == "debug" && args.get(1).is("populate") {
        return Some((Purpose::Any, populate_log_size_max(args)));
    }
    let purpose = match row.flags {
        flags if !flags.has(Flags::WRITE) => return None,
        _ if row.name == "flushall" => Purpose::Empties,
        flags if flags.has(Flags::FREES) => Purpose::Frees,
        _ => Purpose::Any,
    };
    Some((purpose, row.log_size_max(args)))
}
