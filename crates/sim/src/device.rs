//! A path to a simulated disk.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use slimio_device::{
    Buffer, Completion, Device, DeviceError, FilledHoles, Geometry, LBA_SIZE, LbaRange, Op, Token,
};

use crate::disk::{GONE, Medium, Order, SimDisk};

/// A path to one space of a [`SimDisk`].
#[derive(Debug)]
pub struct SimDevice {
    disk: SimDisk,
    space: usize,
    flying: Vec<Operation>,
    /// Operations are handed to the disk only after this many more polls or waits with a timeout.
    untaken_polls: u32,
}

#[derive(Debug)]
struct Operation {
    token: Token,
    what: OperationKind,
}

#[derive(Debug)]
enum OperationKind {
    Read {
        lba: u64,
        buffer: Buffer,
    },
    Write {
        id: u64,
        lba: u64,
        buffer: Buffer,
        durable: bool,
    },
    Flush {
        covers: Vec<u64>,
    },
    Deallocate {
        id: u64,
    },
    /// The operation was refused when it was submitted.
    Failed {
        buffer: Option<Buffer>,
        error: DeviceError,
    },
}

impl SimDevice {
    pub(crate) fn new(disk: SimDisk, space: usize) -> Self {
        Self { disk, space, flying: Vec::new(), untaken_polls: 0 }
    }

    /// Completes some operations in flight. If `at_least_one` is set, completes at least one,
    /// unless a fault holds all of them.
    fn complete(&mut self, at_least_one: bool, completions: &mut Vec<Completion>) {
        let disk = self.disk.clone();
        let mut medium = disk.lock();
        let mut wanted = match medium.config.order {
            Order::Random => {
                let most = self.flying.len() as u64 + 1;
                (medium.random.below(most) as usize).max(usize::from(at_least_one))
            }
            Order::Fifo | Order::Lifo if at_least_one => 1,
            Order::Fifo | Order::Lifo => self.flying.len(),
        };
        while wanted > 0 {
            let is_dead = medium.step();
            let ready: Vec<usize> = (0..self.flying.len())
                .filter(|&index| is_dead || !is_held(&medium, self.space, &self.flying[index]))
                .collect();
            let next = match medium.config.order {
                _ if ready.is_empty() => break,
                Order::Fifo => ready[0],
                Order::Lifo => ready[ready.len() - 1],
                Order::Random => ready[medium.random.below(ready.len() as u64) as usize],
            };
            let flying = self.flying.remove(next);
            completions.push(finish(&mut medium, self.space, flying, is_dead));
            wanted -= 1;
        }
    }
}

fn is_held(medium: &Medium, space: usize, flying: &Operation) -> bool {
    match &flying.what {
        OperationKind::Write { lba, .. } => medium.faults.held.contains(&(space, *lba)),
        OperationKind::Flush { .. } => medium.faults.holds_flushes,
        _ => false,
    }
}

fn finish(medium: &mut Medium, space: usize, flying: Operation, is_dead: bool) -> Completion {
    let (buffer, result) = match flying.what {
        OperationKind::Failed { buffer, error } => (buffer, Err(error)),
        OperationKind::Read { buffer, .. } | OperationKind::Write { buffer, .. } if is_dead => {
            (Some(buffer), Err(GONE))
        }
        OperationKind::Flush { .. } | OperationKind::Deallocate { .. } if is_dead => {
            (None, Err(GONE))
        }
        OperationKind::Read { lba, mut buffer } => {
            let result = medium.read(space, lba, &mut buffer);
            (Some(buffer), result)
        }
        OperationKind::Write { id, buffer, durable, .. } => {
            let result = medium.end_write(id, durable);
            // The call that completes the write also reaps it.
            medium.mark_reaped(id);
            (Some(buffer), result)
        }
        OperationKind::Flush { covers } => (None, medium.end_flush(&covers)),
        OperationKind::Deallocate { id } => (None, medium.end_deallocate(id)),
    };
    Completion { token: flying.token, buffer, result }
}

impl Device for SimDevice {
    fn geometry(&self) -> Geometry {
        self.disk.lock().geometry(self.space)
    }

    fn submit(&mut self, token: Token, op: Op) -> Result<(), Op> {
        let mut medium = self.disk.lock();
        let geometry = medium.geometry(self.space);
        if self.flying.len() >= geometry.in_flight_max as usize {
            return Err(op);
        }
        let is_dead = medium.step();
        let fits = |lba: u64, lbas: usize| {
            lba.checked_add(lbas as u64).is_some_and(|end| end <= geometry.lba_count)
                && lbas <= geometry.transfer_lbas_max as usize
        };
        let what = match op {
            Op::Read { buffer, .. } | Op::Write { buffer, .. } if is_dead => {
                OperationKind::Failed { buffer: Some(buffer), error: GONE }
            }
            Op::Flush | Op::Deallocate { .. } if is_dead => {
                OperationKind::Failed { buffer: None, error: GONE }
            }
            Op::Read { lba, buffer } | Op::Write { lba, buffer, .. }
                if !fits(lba.0, buffer.len_lbas()) =>
            {
                OperationKind::Failed { buffer: Some(buffer), error: DeviceError::OutOfRange }
            }
            Op::Deallocate { range } if range.end.0 > geometry.lba_count => {
                OperationKind::Failed { buffer: None, error: DeviceError::OutOfRange }
            }
            Op::Read { lba, buffer } => OperationKind::Read { lba: lba.0, buffer },
            Op::Write { lba, buffer, durable, .. } => {
                let id = medium.begin_write(self.space, lba.0, &buffer);
                OperationKind::Write { id, lba: lba.0, buffer, durable }
            }
            Op::Flush => OperationKind::Flush { covers: medium.flush_covers(self.space) },
            Op::Deallocate { range } => {
                let id = medium.begin_deallocate(self.space, range.start.0, range.end.0);
                OperationKind::Deallocate { id }
            }
        };
        self.flying.push(Operation { token, what });
        Ok(())
    }

    fn kick(&mut self) {
        if !self.flying.is_empty() {
            self.untaken_polls = self.disk.lock().faults.untaken_polls;
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        if self.has_unsubmitted() {
            self.untaken_polls -= 1;
            return;
        }
        self.complete(false, completions);
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        if timeout.is_some() && self.has_unsubmitted() {
            self.untaken_polls -= 1;
            return;
        }
        self.untaken_polls = 0;
        if !self.flying.is_empty() {
            self.complete(true, completions);
        }
    }

    fn has_unsubmitted(&mut self) -> bool {
        self.untaken_polls > 0
    }

    fn in_flight(&self) -> usize {
        self.flying.len()
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn grow(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        self.disk.lock().grow(self.space, lba_count)
    }

    fn shrink(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        self.disk.lock().shrink(self.space, lba_count)
    }

    fn fill_holes(&mut self, range: LbaRange) -> Result<FilledHoles, DeviceError> {
        let lbas = range.start.0..range.end.0;
        self.disk.lock().fill_holes(self.space, lbas).map(|()| FilledHoles::default())
    }

    fn free_space(&self) -> Option<u64> {
        Some(self.disk.lock().free_space())
    }
}

const _: () = assert!(LBA_SIZE.is_multiple_of(512), "blocks are whole sectors");
