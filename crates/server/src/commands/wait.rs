//! `WAITAOF`

use std::time::{Duration, Instant};

use slimio_resp::Args;
use slimio_storage::Lsn;

use crate::clients::{Client, State, Wait};
use crate::core::Core;

pub(super) fn waitaof(core: &mut Core, client: &mut Client, args: Args<'_>) {
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
    if local > 0 && core.wal.is_none() {
        client
            .out
            .error("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.");
        return;
    }
    let lsn = if local > 0 { client.last_write } else { Lsn(0) };
    let is_there = core.durable() >= lsn && replicas == 0;
    if is_there || core.transaction.is_some() {
        reply(core, client);
        return;
    }
    if let Some(wal) = &mut core.wal {
        wal.request_durable();
    }
    let deadline = (timeout > 0).then(|| core.now.checked_add(Duration::from_millis(timeout)));
    let wait = Wait { lsn, never: replicas > 0, deadline: deadline.flatten() };
    client.state = State::Waiting(wait);
    core.add_waiting(client);
}

/// How many logs, ours and the replicas', have everything that this client wrote.
fn reply(core: &Core, client: &mut Client) {
    let is_durable = core.wal.is_some() && core.durable() >= client.last_write;
    client.out.array(2);
    client.out.integer(i64::from(is_durable));
    client.out.integer(0);
}

impl Core {
    /// Replies to those whose wait is over.
    pub(crate) fn check_waiting(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let (durable, now) = (self.durable(), self.now);
        let is_over = |wait: &Wait| {
            let is_late = wait.deadline.is_some_and(|at: Instant| at <= now);
            is_late || (!wait.never && wait.lsn <= durable)
        };
        for conn in std::mem::take(&mut self.waiting) {
            let Some(mut client) = self.clients.take(conn) else { continue };
            match &client.state {
                State::Waiting(wait) if is_over(wait) => {
                    client.state = State::Running;
                    reply(self, &mut client);
                    self.resume(&mut client);
                }
                State::Waiting(_) => self.waiting.push(conn),
                _ => {}
            }
            self.put_back(client);
        }
    }

    fn add_waiting(&mut self, client: &Client) {
        self.waiting.push(client.conn);
    }
}
