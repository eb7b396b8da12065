//! A path to a namespace. It has a ring of its own, whose entries are NVMe commands for the driver.
//!
//! Submitted operations stay in the path until `kick` or `wait` is called. Then one system call
//! hands all of them to the driver. The driver does not split commands. So this path cuts a
//! transfer that is too long for one command into several commands. Deallocations that were
//! submitted in a row become the ranges of one command.

#![expect(
    unsafe_code,
    reason = "the driver does not check that a command's memory is as long as the command says"
)]

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slimio_planted::is_planted;
use slimio_ring::{Fd, NvmeCommand, Outcome, Ring, Wide};

use super::Namespace;
use super::commands::result_of;
use super::data::{self, Data};
use super::wire::{self, RANGES_MAX, opcode};
use crate::bulk::{Extras, Refusal, path_setup};
use crate::claim::Claim;
use crate::pool::{Pool, pooled_or_own};
use crate::target::buffer_of;
use crate::uring::{enter, untaken};
use crate::{Buffer, Completion, Device, DeviceError, Geometry, LbaRange, Op, Token};

/// A path to a namespace, by NVMe passthrough.
pub(crate) struct NvmePath {
    namespace: Arc<Namespace>,
    in_flight_max: u32,
    /// Buffers in memory that the ring has registered.
    pool: Option<Arc<Pool>>,
    ring: Ring<Command, Data, Wide>,
    fd: Fd,
    /// Operations that were submitted, but were not kicked yet.
    queued: VecDeque<(Token, Op)>,
    /// Operations that were kicked and not reaped yet. For each command, the ring keeps the index
    /// of the command's operation in this list.
    operations: Vec<Option<Operation>>,
    free: Vec<usize>,
    /// Number of operations that were submitted and not reaped yet.
    in_flight: usize,
    /// Completions just reaped from the ring. The vector is kept so that its memory is reused.
    reaped: Vec<slimio_ring::Completion<Command, Data>>,
}

/// A command of an operation.
#[derive(Clone, Copy, Debug)]
struct Command {
    operation: usize,
    opcode: u8,
}

/// An operation, or several deallocations merged into one.
struct Operation {
    token: Token,
    /// Tokens of the deallocations that were merged into this operation.
    others: Vec<Token>,
    /// Number of the operation's commands that have not ended.
    commands_left: u32,
    /// The first failure among the operation's commands.
    result: Result<(), DeviceError>,
    /// The buffer, once the last command has returned it.
    buffer: Option<Buffer>,
}

impl NvmePath {
    /// # Errors
    /// When the kernel refuses the ring, or refuses to register the pool's memory or the claim with
    /// the ring.
    pub(crate) fn new(
        namespace: Arc<Namespace>,
        file: OwnedFd,
        claim: &Claim,
        in_flight_max: u32,
        extras: &Extras,
    ) -> Result<Self, Refusal> {
        let mut ring =
            Ring::new(path_setup(in_flight_max, extras.polling)).map_err(Refusal::Ring)?;
        if let Some(pool) = &extras.pool {
            pool.register(&mut ring).map_err(Refusal::Memory)?;
        }
        if !is_planted("nvme-claim-not-registered") {
            claim.be_held_by(&mut ring)?;
        }
        let fd = ring.adopt(file);
        Ok(Self {
            namespace,
            in_flight_max,
            pool: extras.pool.clone(),
            ring,
            fd,
            queued: VecDeque::new(),
            operations: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            reaped: Vec::new(),
        })
    }

    /// Turns all queued operations into commands.
    fn begin_all(&mut self) {
        while let Some((token, op)) = self.queued.pop_front() {
            if let Err(error) = self.namespace.check(&op) {
                self.hold(token, buffer_of(op), Err(error));
                continue;
            }
            match op {
                Op::Read { lba, buffer } => {
                    self.transfer(token, buffer, |namespace, lbas, count| {
                        namespace.read(lba.0 + lbas, count)
                    });
                }
                Op::Write { lba, buffer, placement, durable } => {
                    self.transfer(token, buffer, |namespace, lbas, count| {
                        namespace.write(lba.0 + lbas, count, placement, durable)
                    });
                }
                Op::Flush => match self.namespace.flush() {
                    Some(flush) => {
                        let operation = self.operation(token, 1);
                        self.command(operation, flush, None);
                    }
                    None => self.hold(token, None, Ok(())),
                },
                Op::Deallocate { range } => self.deallocate(token, range),
            }
        }
    }

    /// Turns a read or write into as many commands as it needs. `command` makes each command from
    /// two numbers: how many blocks the earlier commands transfer, and how many blocks the new
    /// command is to transfer.
    fn transfer(
        &mut self,
        token: Token,
        buffer: Buffer,
        command: impl Fn(&Namespace, u64, u32) -> NvmeCommand,
    ) {
        let namespace = self.namespace.clone();
        let (lbas, step) = (buffer.len_lbas(), namespace.command_lbas_max as usize);
        if lbas <= step {
            let operation = self.operation(token, 1);
            let command = command(&namespace, 0, lbas as u32);
            self.command(operation, command, Some(Data::Whole(buffer)));
            return;
        }
        let parts = data::cut(buffer, step);
        let operation = self.operation(token, parts.len() as u32);
        for (index, part) in parts.into_iter().enumerate() {
            let before = index * step;
            let command = command(&namespace, before as u64, (lbas - before).min(step) as u32);
            self.command(operation, command, Some(Data::Part(part)));
        }
    }

    /// Turns a deallocation, and the deallocations queued right after it, into commands with many
    /// ranges.
    fn deallocate(&mut self, token: Token, range: LbaRange) {
        let (mut tokens, mut ranges) = (vec![token], vec![range]);
        while let Some((token, Op::Deallocate { range })) = self.queued.front() {
            if self.namespace.check(&Op::Deallocate { range: *range }).is_err() {
                break;
            }
            tokens.push(*token);
            ranges.push(*range);
            self.queued.pop_front();
        }
        let ranges = self.namespace.ranges(&ranges);
        if ranges.is_empty() || !self.namespace.has_deallocate {
            for token in tokens {
                self.hold(token, None, Ok(()));
            }
            return;
        }
        let commands: Vec<_> = ranges.chunks(RANGES_MAX).collect();
        let operation = self.operation(token, commands.len() as u32);
        let others = tokens.split_off(1);
        self.operations[operation].as_mut().expect("the operation was just made").others = others;
        for ranges in commands {
            let mut buffer = Buffer::zeroed(1);
            for (place, range) in buffer.chunks_exact_mut(16).zip(ranges) {
                place.copy_from_slice(range);
            }
            let command = wire::deallocate(self.namespace.nsid, ranges.len());
            self.command(operation, command, Some(Data::Whole(buffer)));
        }
    }

    /// Completes an operation that is not handed to the device. In its place, the ring gets an
    /// entry that does nothing. The end of this entry makes the ring's descriptor readable, and
    /// `poll` then returns the operation's completion.
    fn hold(&mut self, token: Token, buffer: Option<Buffer>, result: Result<(), DeviceError>) {
        let operation = self.operation(token, 1);
        let held = self.operations[operation].as_mut().expect("the operation was just made");
        (held.buffer, held.result) = (buffer, result);
        self.ring.nothing(self.fd, Command { operation, opcode: opcode::FLUSH });
    }

    fn operation(&mut self, token: Token, commands: u32) -> usize {
        let operation = Operation {
            token,
            others: Vec::new(),
            commands_left: commands,
            result: Ok(()),
            buffer: None,
        };
        if let Some(index) = self.free.pop() {
            self.operations[index] = Some(operation);
            index
        } else {
            self.operations.push(Some(operation));
            self.operations.len() - 1
        }
    }

    fn command(&mut self, operation: usize, command: NvmeCommand, data: Option<Data>) {
        let step = Command { operation, opcode: command.opcode };
        // SAFETY: a read or write command names as many blocks as its data has. The data of a
        // deallocation is one block, which has room for all ranges that the command names. A flush
        // transfers no data.
        unsafe { self.ring.command(self.fd, command, data, step) };
    }

    /// Records the end of a command. The last command of an operation ends the operation.
    fn settle(
        &mut self,
        step: Command,
        data: Option<Data>,
        result: Result<(), DeviceError>,
        completions: &mut Vec<Completion>,
    ) {
        let place = &mut self.operations[step.operation];
        let operation =
            place.as_mut().expect("an operation stays here until its last command ends");
        match data {
            // This path made the buffer with the deallocation's ranges, so no caller gets it.
            Some(Data::Whole(_)) if step.opcode == opcode::DATASET_MANAGEMENT => {}
            Some(Data::Whole(buffer)) => operation.buffer = Some(buffer),
            Some(Data::Part(part)) => operation.buffer = part.end(),
            None => {}
        }
        if operation.result.is_ok() {
            operation.result = result;
        }
        operation.commands_left -= 1;
        if operation.commands_left > 0 {
            return;
        }
        let Operation { token, others, result, buffer, .. } =
            place.take().expect("the operation has not been taken yet");
        self.free.push(step.operation);
        self.in_flight -= 1 + others.len();
        completions.extend(others.iter().map(|&token| Completion {
            token,
            buffer: None,
            result: result.clone(),
        }));
        completions.push(Completion { token, buffer, result });
    }
}

impl Device for NvmePath {
    fn geometry(&self) -> Geometry {
        Geometry {
            lba_count: self.namespace.lba_count,
            transfer_lbas_max: crate::target::TRANSFER_LBAS_MAX,
            in_flight_max: self.in_flight_max,
            write_cache: self.namespace.write_cache,
        }
    }

    fn buffer(&mut self, lbas: usize) -> Buffer {
        pooled_or_own(self.pool.as_ref(), lbas)
    }

    fn submit(&mut self, token: Token, op: Op) -> Result<(), Op> {
        if self.in_flight >= self.in_flight_max as usize {
            return Err(op);
        }
        self.in_flight += 1;
        self.queued.push_back((token, op));
        Ok(())
    }

    fn kick(&mut self) {
        self.begin_all();
        enter(&mut self.ring, 0, None);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let mut reaped = std::mem::take(&mut self.reaped);
        self.ring.reap(&mut reaped);
        for slimio_ring::Completion { payload, outcome, .. } in reaped.drain(..) {
            match outcome {
                Outcome::Commanded { memory, result } => {
                    let result = result_of(payload.opcode, result);
                    let result = untaken(&self.ring, self.namespace.explain(result));
                    self.settle(payload, memory, result, completions);
                }
                Outcome::Done(result) => {
                    let result = untaken(&self.ring, result.map_err(DeviceError::from));
                    self.settle(payload, None, result, completions);
                }
                other => unreachable!("no operation of a path ends like this: {other:?}"),
            }
        }
        self.reaped = reaped;
        // Operations for which the kernel had no memory are handed to the kernel again.
        if self.has_unsubmitted() {
            enter(&mut self.ring, 0, None);
        }
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let before = completions.len();
        self.begin_all();
        while self.in_flight > 0 {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            enter(&mut self.ring, 1, left);
            self.poll(completions);
            if completions.len() > before || left.is_some_and(|left| left.is_zero()) {
                return;
            }
        }
    }

    fn has_unsubmitted(&mut self) -> bool {
        self.ring.has_unsubmitted()
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.ring.readiness()
    }

    fn grow(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        if lba_count <= self.namespace.lba_count { Ok(()) } else { Err(DeviceError::NoSpace) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, TryLockError};

    use super::*;
    use crate::CLAIM_FILE_NAME;
    use crate::nvme::commands::tests::namespace;

    #[test]
    fn its_ring_alone_keeps_the_claim() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let claim = Claim::of_directory(place.path()).expect("the claim is free");
        let other =
            File::open(place.path().join(CLAIM_FILE_NAME)).expect("the claim's file exists");
        let file = File::open("/dev/null").expect("every Linux has /dev/null").into();
        let path = NvmePath::new(Arc::new(namespace(0)), file, &claim, 4, &Extras::default());
        let path = match path {
            Ok(path) => path,
            Err(refused) => {
                eprintln!("SKIPPED: {refused:?}");
                return;
            }
        };
        drop(claim);
        assert!(matches!(other.try_lock(), Err(TryLockError::WouldBlock)));
        drop(path);
        // This may wait for a moment: if another test is just starting a child process, the child
        // shares the descriptor briefly.
        Claim::of_directory(place.path()).expect("the claim is released");
    }
}
