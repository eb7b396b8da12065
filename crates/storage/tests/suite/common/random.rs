//! Random steps of a client, and an oracle that knows which records must come back after the steps.

use std::time::Duration;

use slimio_storage::{LogState, Policy, SnapshotKind};

use super::{Client, Disk, Script};

/// A random step of a client.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Append(usize),
    /// Appends this many small records. Each is made durable before the next is appended, as if a
    /// client waited for each.
    Commits(usize),
    Turn,
    Idle,
    Pass(u64),
    Policy(u8),
    RequestDurable,
    Release,
    Snapshot(bool),
    CancelSnapshot,
    /// The log gives back space, as it does if a snapshot lacks space.
    GiveBack,
    End,
    Resume,
}

/// Unless the disk or the log is full, a commit becomes durable within this many turns.
const COMMIT_TURNS_MAX: u32 = 20;

/// The records that may come back.
#[derive(Default)]
pub(crate) struct Oracle {
    /// All records since formatting, except those that are known to be lost.
    records: Script,
    /// A release lets the log drop all records before it. For each release, this is the number of
    /// the records before it. The recovered records may begin after any of the releases, or with
    /// the first record.
    released: Vec<usize>,
}

impl Oracle {
    pub(crate) fn perform<D: Disk>(&mut self, client: &mut Client<D>, step: &Step) {
        match *step {
            Step::Append(size) => self.append(client, size),
            Step::Commits(count) => {
                for size in 0..count {
                    self.append(client, size);
                    for _ in 0..COMMIT_TURNS_MAX {
                        let log = &client.volume.log;
                        if client.is_over() || log.durable() == log.appended() {
                            break;
                        }
                        client.volume.log.request_durable();
                        client.turn(true);
                    }
                }
            }
            Step::Turn => client.turn(false),
            Step::Idle => client.turn(true),
            Step::Pass(milliseconds) => client.pass(Duration::from_millis(milliseconds)),
            Step::Policy(number) => client.volume.log.set_policy(policy(number)),
            Step::RequestDurable => client.volume.log.request_durable(),
            Step::Release => {
                // A log that is off ignores the release. But even then, the next snapshot holds the
                // emptied data set.
                let lsn = client.volume.log.appended();
                client.volume.log.release_before(lsn);
                client.history.clear();
                self.released.push(self.records.len());
            }
            Step::Snapshot(is_wal) => {
                let kind = if is_wal { SnapshotKind::Wal } else { SnapshotKind::OnDemand };
                client.begin(kind);
            }
            Step::CancelSnapshot => client.cancel(),
            Step::GiveBack => {
                client.volume.log.give_back_space();
            }
            Step::End => client.volume.log.end(),
            Step::Resume => {
                if client.volume.log.log_state() != LogState::On {
                    client.cancel();
                    client.volume.log.resume();
                    client.begin(SnapshotKind::Wal);
                }
            }
        }
        client.volume.log.check_all();
    }

    fn append<D: Disk>(&mut self, client: &mut Client<D>, size: usize) {
        let record = record(self.records.len(), size);
        if client.append(&record) {
            self.records.push(record);
        }
    }

    /// Checks the recovered records, of which `at_least` were promised. Forgets the records that
    /// did not come back, because they must not come back later.
    pub(crate) fn recovered(&mut self, recovered: &Script, at_least: usize, context: &str) {
        let mut starts = std::iter::once(0).chain(self.released.iter().copied());
        let start = starts.find(|&start| {
            self.records[start..].starts_with(recovered) && start + recovered.len() >= at_least
        });
        let (count, appended) = (recovered.len(), self.records.len());
        let Some(start) = start else {
            panic!("{count} of {appended} records came back, {at_least} were promised; {context}")
        };
        self.records.truncate(start + count);
        self.released.retain(|&released| released <= self.records.len());
    }

    /// Number of records, including those that were released.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }
}

pub(crate) fn policy(number: u8) -> Policy {
    match number % 3 {
        0 => Policy::Always,
        1 => Policy::EverySec,
        _ => Policy::No,
    }
}

fn record(number: usize, size: usize) -> (u16, Vec<u8>) {
    let mut payload = vec![number as u8; size];
    for (at, byte) in payload.iter_mut().enumerate() {
        *byte = byte.wrapping_mul(31).wrapping_add(at as u8);
    }
    ((number % 5) as u16, payload)
}
