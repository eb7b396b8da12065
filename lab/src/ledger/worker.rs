//! A client of the ledger. (The ledger is a test that kills a server again and again.) The client
//! sends commands, compares replies, and keeps an account of its writes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::audit::{self, Settled};
use super::model::{Found, Model, Moment};
use super::workload::{Action, Unit, choose, read_stamp};
use crate::address::Address;
use crate::client::{Client, Reply};
use crate::error::{BenchError, Result};
use crate::rng::for_part;

/// The largest number of units sent before their replies are read. A unit is one command, or a
/// transaction of several.
const BATCH_LEN_MAX: u64 = 12;
/// The server reads its clock in whole milliseconds, and may still use a time that is one
/// millisecond old.
const CLOCK_SLACK_MS: u64 = 2;

/// Everything that one client knows. The account is kept from one [`Life`] of the server to the
/// next.
#[derive(Debug)]
pub(super) struct Account {
    index: usize,
    seed: u64,
    /// The state of the client's keys after all acknowledged units.
    model: Model,
    acknowledged: u64,
    in_flight: VecDeque<(Unit, Moment)>,
    sent: u64,
    observed: u64,
    peek_count: u64,
}

/// The data that the clients of one life share. A life begins with a start of the server, and ends
/// when the server is killed.
pub(super) struct Life<'a> {
    pub(super) address: &'a Address,
    pub(super) number: u32,
    /// Number of units of all clients that were acknowledged in this life. The life ends when this
    /// count reaches `units`.
    pub(super) acknowledged: &'a AtomicU64,
    pub(super) units: u64,
    /// For each client, the number of its newest unit whose value any client has read.
    pub(super) observed: &'a [AtomicU64],
    /// Set before the server is killed. From then on, a closed connection is expected.
    pub(super) dying: &'a AtomicBool,
    pub(super) stop: mpsc::Sender<Stop>,
}

/// Why a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The wanted number of units was acknowledged.
    Enough,
    /// A client found something wrong.
    Wrong,
}

impl Account {
    pub(super) fn new(index: usize, seed: u64) -> Self {
        Self {
            index,
            seed,
            model: Model::default(),
            acknowledged: 0,
            in_flight: VecDeque::new(),
            sent: 0,
            observed: 0,
            peek_count: 0,
        }
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// The number of this client's newest unit whose value any client has read.
    pub(super) fn observed(&self) -> u64 {
        self.observed
    }

    pub(super) fn observe(&mut self, sequence: u64) {
        self.observed = self.observed.max(sequence);
    }

    pub(super) fn peek_count(&self) -> u64 {
        self.peek_count
    }

    /// Compares the account with the keys that were found after a restart. Afterwards, the account
    /// has the state of these keys.
    pub(super) fn settle(&mut self, found: &BTreeMap<Vec<u8>, Found>) -> Result<Settled> {
        let settled = audit::settle(
            &mut self.model,
            &self.in_flight,
            found,
            self.acknowledged,
            self.observed,
        )
        .map_err(|error| BenchError::Broken(format!("client {}: {error}", self.index)))?;
        // In the next life, the numbers of units go on after `sent`, so the number of a lost unit
        // is never used again.
        self.in_flight.clear();
        self.acknowledged = self.sent;
        self.observed = 0;
        Ok(settled)
    }
}

/// Sends batches and reads replies until the connection breaks.
pub(super) fn write_until_death(account: &mut Account, life: &Life<'_>) -> Result<()> {
    let outcome = write_batches(account, life);
    let expected = matches!(outcome, Err(BenchError::Io { .. } | BenchError::Server(_)))
        && life.dying.load(Ordering::SeqCst);
    if expected {
        return Ok(());
    }
    // The receiver outlives this thread, so the send can't fail. Only the first message of a life
    // has an effect: it ends the life.
    let _ = life.stop.send(Stop::Wrong);
    let index = account.index;
    outcome.map_err(|error| match error {
        BenchError::Broken(text) => {
            BenchError::Broken(format!("life {}, client {index}: {text}", life.number))
        }
        other => BenchError::Broken(format!("life {}, client {index}: {other}", life.number)),
    })
}

fn write_batches(account: &mut Account, life: &Life<'_>) -> Result<()> {
    let part = (u64::from(life.number) << 32) | account.index as u64;
    let mut rng = for_part(account.seed, part);
    let mut client = Client::connect(life.address)?;
    let mut requests = Vec::new();
    loop {
        requests.clear();
        let sent_ms = now_ms();
        for _ in 0..=rng.u64(..BATCH_LEN_MAX) {
            account.sent += 1;
            let clients = life.observed.len();
            let unit = choose(&mut rng, account.index, clients, account.sent, sent_ms);
            unit.write(&mut requests);
            // Until the reply arrives, only a lower bound is known for the time at which the unit
            // is executed: the server executes the unit no earlier than now.
            let moment = Moment { sent_ms: sent_ms - CLOCK_SLACK_MS, replied_ms: u64::MAX / 2 };
            account.in_flight.push_back((unit, moment));
        }
        client.send(&requests)?;
        while let Some((unit, moment)) = account.in_flight.front() {
            let reply = receive(&mut client, unit)?;
            let moment = Moment { replied_ms: now_ms() + CLOCK_SLACK_MS, ..*moment };
            let expected = account.model.apply(unit, moment);
            if let Some(expected) = expected
                && expected != reply
            {
                let text = format!("{unit:?} was answered with {reply:?} instead of {expected:?}");
                return Err(BenchError::Broken(shortened(&text)));
            }
            if let [Action::Peek { owner, key }] = &unit.actions[..] {
                let sequence = peeked(*owner, key, &reply)?;
                life.observed[*owner].fetch_max(sequence, Ordering::SeqCst);
                account.peek_count += u64::from(sequence > 0);
            }
            account.acknowledged = unit.sequence;
            account.in_flight.pop_front();
            if life.acknowledged.fetch_add(1, Ordering::SeqCst) + 1 == life.units {
                let _ = life.stop.send(Stop::Enough);
            }
        }
    }
}

/// Receives the reply of a unit. For a transaction, that is the reply of EXEC.
fn receive(client: &mut Client, unit: &Unit) -> Result<Reply> {
    if !unit.transaction {
        return Ok(client.receive()?);
    }
    let mut words = vec!["OK"];
    words.resize(1 + unit.actions.len(), "QUEUED");
    for word in words {
        let reply = client.receive()?;
        if reply != Reply::Status(word.into()) {
            return Err(BenchError::Broken(format!(
                "a command of a transaction was answered with {reply:?} instead of {word}"
            )));
        }
    }
    Ok(client.receive()?)
}

/// The number of the unit that wrote the value of another client's key. 0 if there is no value.
fn peeked(owner: usize, key: &[u8], reply: &Reply) -> Result<u64> {
    match reply {
        Reply::Nil => Ok(0),
        Reply::Bulk(value) => match read_stamp(value) {
            Some((writer, sequence)) if writer == owner => Ok(sequence),
            _ => Err(BenchError::Broken(format!(
                "{} holds a value that its owner never wrote",
                String::from_utf8_lossy(key)
            ))),
        },
        other => Err(BenchError::Broken(shortened(&format!("GET was answered with {other:?}")))),
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_millis() as u64
}

/// The start of a text that may contain long values, for an error message.
fn shortened(text: &str) -> String {
    const LENGTH_MAX: usize = 600;
    match text.char_indices().nth(LENGTH_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{} …", &text[..end]),
    }
}
