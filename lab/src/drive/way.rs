//! The two ways to a drive: in this process, and over NVMe/TCP.

use std::time::{Duration, Instant};

use slimio_device::{Buffer, Completion, Lba, Op, PlacementId, Token as OpToken, WholeDevice as _};
use slimio_initiator::{Error, Host, IoQueue, Options, Outcome, Placed, Submission, Token};
use slimio_ssd::{Clock, DriveOptions, DriveQueue, EmulatedDrive};

use super::{DEPTH, LBA_SIZE, Served};
use crate::error::{BenchError, Result};

/// A way to a drive, with room for [`DEPTH`] operations in flight. The name of an operation is a
/// number from 0 to `DEPTH - 1`.
pub trait Way {
    /// Number of the drive's blocks.
    fn lba_count(&self) -> u64;
    /// Begins to read or write a block.
    ///
    /// # Errors
    /// When the drive fails.
    fn begin(&mut self, name: usize, is_write: bool, lba: u64, placement: u16) -> Result<()>;
    /// Waits until an operation has ended. Adds to `ended` the names of all operations that have
    /// ended.
    ///
    /// # Errors
    /// When the drive fails.
    fn wait(&mut self, ended: &mut Vec<usize>) -> Result<()>;
    /// Bytes that hosts have written, and bytes that the drive wrote to its media for them.
    ///
    /// # Errors
    /// When the drive fails.
    fn counters(&mut self) -> Result<(u128, u128)>;
}

/// A drive in this process.
pub struct InProcess {
    queue: DriveQueue,
    drive: EmulatedDrive,
    buffers: Vec<Option<Buffer>>,
    completions: Vec<Completion>,
}

impl InProcess {
    /// Makes the drive.
    ///
    /// # Errors
    /// When the drive can't be made.
    pub fn open(spec: &str) -> Result<Self> {
        let failed = |error: &dyn std::fmt::Display| BenchError::Usage(format!("{spec}: {error}"));
        let options = DriveOptions::parse(spec, Clock::Real).map_err(|error| failed(&error))?;
        let drive = EmulatedDrive::open(options).map_err(|error| failed(&error))?;
        let buffers = (0..DEPTH).map(|_| Some(Buffer::zeroed(1))).collect();
        Ok(Self { queue: drive.open_queue(), drive, buffers, completions: Vec::new() })
    }
}

impl Way for InProcess {
    fn lba_count(&self) -> u64 {
        self.drive.lba_count()
    }

    fn begin(&mut self, name: usize, is_write: bool, lba: u64, placement: u16) -> Result<()> {
        let buffer =
            self.buffers[name].take().expect("two operations in flight have different names");
        let (lba, placement) = (Lba(lba), PlacementId(placement));
        let op = if is_write {
            Op::Write { lba, buffer, placement, durable: false }
        } else {
            Op::Read { lba, buffer }
        };
        self.queue.begin(OpToken(name as u64), op, Instant::now());
        Ok(())
    }

    /// Spins. If the thread slept instead, the latency would include the time that the thread takes
    /// to wake.
    fn wait(&mut self, ended: &mut Vec<usize>) -> Result<()> {
        while self.completions.is_empty() && self.queue.in_flight() > 0 {
            self.queue.poll(&mut self.completions);
        }
        for completion in self.completions.drain(..) {
            let name = completion.token.0 as usize;
            completion.result.map_err(|error| BenchError::Broken(error.to_string()))?;
            self.buffers[name] = completion.buffer;
            ended.push(name);
        }
        Ok(())
    }

    fn counters(&mut self) -> Result<(u128, u128)> {
        let counters = self.drive.counters();
        Ok((counters.host_bytes().into(), counters.media_bytes().into()))
    }
}

/// A drive that is served over NVMe/TCP.
#[derive(Debug)]
pub struct OverTcp {
    host: Host,
    queue: IoQueue,
    lba_count: u64,
    buffers: Vec<Vec<u8>>,
    outcomes: Vec<Outcome>,
}

fn failed(error: Error) -> BenchError {
    match error {
        Error::Io(source) => BenchError::Io { what: "talking to the drive".into(), source },
        error => BenchError::Broken(error.to_string()),
    }
}

impl OverTcp {
    /// Connects a host that polls for `spin` before it sleeps.
    ///
    /// # Errors
    /// When the drive can't be reached, or refuses the host.
    pub fn connect(served: &Served, spin: Duration) -> Result<Self> {
        let options = Options::new(served.address, &served.nqn);
        // The host turns flow control off to be faster: successful reads then need no response.
        let options = Options { has_flow_control: false, ..options };
        let mut host = Host::connect(&options).map_err(failed)?;
        let lba_count = host.namespace(1).map_err(failed)?.nsze;
        let mut queue = host.open_queue(1, DEPTH as u16 + 1).map_err(failed)?;
        queue.queue().set_spin(spin);
        let buffers = vec![vec![0; LBA_SIZE]; DEPTH];
        Ok(Self { host, queue, lba_count, buffers, outcomes: Vec::new() })
    }
}

impl Way for OverTcp {
    fn lba_count(&self) -> u64 {
        self.lba_count
    }

    fn begin(&mut self, name: usize, is_write: bool, lba: u64, placement: u16) -> Result<()> {
        let data = std::mem::take(&mut self.buffers[name]);
        let command = if is_write {
            let placed = Placed { durable: false, placement: Some(placement) };
            self.queue.write_command(lba, 1, placed)
        } else {
            self.queue.read_command(lba, 1)
        };
        let submission = Submission { token: Token(name as u64), command, data };
        self.queue.queue().submit(submission).expect("the queue has an entry for each name");
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<usize>) -> Result<()> {
        self.queue.queue().wait(&mut self.outcomes).map_err(failed)?;
        for outcome in self.outcomes.drain(..) {
            let outcome = outcome.checked().map_err(failed)?;
            let name = outcome.token.0 as usize;
            self.buffers[name] = outcome.data;
            ended.push(name);
        }
        Ok(())
    }

    fn counters(&mut self) -> Result<(u128, u128)> {
        let statistics = self.host.statistics(1).map_err(failed)?;
        Ok((statistics.hbmw, statistics.mbmw))
    }
}
