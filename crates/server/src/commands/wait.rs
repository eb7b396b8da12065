//! Commands that make clients wait, and commands that end such a wait: `WAITAOF`, `CLIENT PAUSE`,
//! `CLIENT UNPAUSE` and `CLIENT UNBLOCK`.

use std::time::Duration;

use slimio_planted::is_planted;
use slimio_resp::Args;
use slimio_storage::Lsn;

use crate::clients::{Client, State};
use crate::connections::Connections;
use crate::engine::Engine;
use crate::waiting::{Line, LogWait, Reason, Then, deadline};

const NO_LOG: &str = "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.";

pub(super) fn waitaof(
    connections: &mut Connections,
    engine: &mut Engine,
    client: &mut Client,
    args: Args<'_>,
) {
    let numbers = (args.get(1).to_i64(), args.get(2).to_i64(), args.get(3).to_i64());
    let local = match numbers.0 {
        Some(local @ 0..=1) => local,
        Some(_) => {
            client.out.error("ERR value is out of range, value must between 0 and 1");
            return;
        }
        None => {
            client.out.error("ERR value is not an integer or out of range");
            return;
        }
    };
    let replicas = match numbers.1 {
        Some(replicas) if replicas >= 0 => replicas,
        Some(_) => {
            client.out.error("ERR value is out of range, must be positive");
            return;
        }
        None => {
            client.out.error("ERR value is not an integer or out of range");
            return;
        }
    };
    let timeout = match numbers.2 {
        Some(timeout) if timeout >= 0 => timeout as u64,
        Some(_) => {
            client.out.error("ERR timeout is negative");
            return;
        }
        None => {
            client.out.error("ERR timeout is not an integer or out of range");
            return;
        }
    };
    if local > 0 && !engine.may_have_log() {
        client.out.error(NO_LOG);
        return;
    }
    let lsn = if local > 0 { client.last_write } else { Lsn(0) };
    let is_there = replicas == 0
        && (local == 0 || engine.gate.is_recoverable(lsn) || engine.gate.is_latched());
    let is_within = engine.data.transaction.is_some() && !is_planted("waits-in-transaction");
    if is_there || is_within {
        reply(engine, client);
        return;
    }
    if let Some(wal) = &mut engine.gate.wal {
        wal.request_durable();
    }
    let deadline = deadline(engine.clock.now, Duration::from_millis(timeout));
    let wait = LogWait { lsn, is_local: local > 0, never: replicas > 0 };
    connections.wait_until(engine, client, Reason::Log(wait), Then::Answer, deadline);
}

/// Replies with two counts: of our own logs (0 or 1), and of the replicas' logs (always 0). A log
/// counts if a restart would recover from it everything that this client wrote.
pub(crate) fn reply(engine: &mut Engine, client: &mut Client) {
    client.out.array(2);
    client.out.integer(i64::from(engine.gate.is_recoverable(client.last_write)));
    client.out.integer(0);
}

pub(super) fn pause(engine: &mut Engine, client: &mut Client, args: Args<'_>) {
    let is_all = match args.len() {
        3 => true,
        4 if args.get(3).is("all") => true,
        4 if args.get(3).is("write") => false,
        4 => return client.out.error("ERR CLIENT PAUSE mode must be WRITE or ALL"),
        _ => return client.out.error(&wrong_count(args)),
    };
    match args.get(2).to_i64() {
        Some(timeout) if timeout >= 0 => {
            engine
                .phase
                .pause(engine.clock.now.checked_add(Duration::from_millis(timeout as u64)), is_all);
            client.out.ok();
        }
        Some(_) => client.out.error("ERR timeout is negative"),
        None => client.out.error("ERR timeout is not an integer or out of range"),
    }
}

pub(super) fn unpause(engine: &mut Engine, client: &mut Client, _: Args<'_>) {
    engine.phase.unpause();
    client.out.ok();
}

pub(super) fn unblock(
    connections: &mut Connections,
    engine: &mut Engine,
    client: &mut Client,
    args: Args<'_>,
) {
    let with_error = match args.len() {
        3 => false,
        4 if args.get(3).is("timeout") => false,
        4 if args.get(3).is("error") => true,
        4 => {
            return client.out.error("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR");
        }
        _ => return client.out.error(&wrong_count(args)),
    };
    let Some(id) = args.get(2).to_i64() else {
        return client.out.error("ERR value is not an integer or out of range");
    };
    let is_meant = |other: &&Client| i64::try_from(other.id) == Ok(id) && other.can_be_given_up();
    let blocked = connections.clients.iter().find(is_meant);
    let Some(conn) = blocked.map(|blocked| blocked.conn) else { return client.out.integer(0) };
    connections.unblock(engine, conn, with_error);
    client.out.integer(1);
    if is_planted("resumed-within-command") {
        connections.serve_resumed(engine);
    }
}

fn wrong_count(args: Args<'_>) -> String {
    let name = args.bytes(1);
    let name = String::from_utf8_lossy(&name);
    format!("ERR unknown subcommand or wrong number of arguments for '{name}'. Try CLIENT HELP.")
}

impl Engine {
    fn is_over(&self, wait: &LogWait) -> bool {
        // If the log has stopped, it never gets the missing records. So the wait ends, and the
        // reply counts 0 logs.
        !wait.never && (self.gate.is_recoverable(wait.lsn) || self.gate.is_latched())
    }

    /// Whether the volume is open and `appendonly` is `yes`. Then the log is on, or is being turned
    /// on.
    fn may_have_log(&self) -> bool {
        self.gate.wal.is_some() && self.config.yes("appendonly")
    }
}

impl Connections {
    /// Replies to the clients in `WAITAOF` whose wait has ended.
    pub(crate) fn check_waitaof(&mut self, engine: &mut Engine) {
        if self.waiting.is_empty(Line::Log) {
            return;
        }
        let conns: Vec<_> = self.waiting.in_line(Line::Log).collect();
        for conn in conns {
            let Some(client) = self.clients.get(conn) else { continue };
            let State::Waiting(waiting) = &client.state else { continue };
            let Reason::Log(wait) = waiting.reason else { continue };
            // The log may have been turned off meanwhile.
            let is_gone = wait.is_local && !engine.may_have_log();
            if !is_gone && !engine.is_over(&wait) {
                continue;
            }
            let Some(mut client) = self.clients.take(conn) else { continue };
            if is_gone {
                self.answer(engine, &mut client, |_, client| client.out.error(NO_LOG));
            } else {
                self.answer(engine, &mut client, reply);
            }
            self.put_back(engine, client);
        }
    }
}
