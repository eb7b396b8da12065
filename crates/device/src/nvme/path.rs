//! A path to a namespace: a ring of its own, whose entries are commands for the driver.
//!
//! What is submitted rests here until it is kicked; then all of it goes down with one system call.
//! The driver does not split: what is longer than one command can be is cut in several here, and
//! deallocations that were submitted in a row become the ranges of one.

#![expect(unsafe_code, reason = "the driver trusts commands to fit their memory")]

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slimio_ring::{CommandError, Fd, Features, NvmeCommand, Outcome, Refused, Ring, Setup, Wide};

use super::data::{self, Data};
use super::wire::{self, RANGES_MAX, opcode};
use super::{Namespace, status};
use crate::target::{buffer_of, check_range};
use crate::{
    Buffer, Completion, Device, DeviceError, Geometry, LbaRange, Op, PlacementId, Polling, Token,
    WriteCache,
};

/// A namespace through the driver's own commands.
pub(crate) struct NvmePath {
    namespace: Arc<Namespace>,
    in_flight_max: u32,
    ring: Ring<Step, Data, Wide>,
    fd: Fd,
    /// Submitted but not kicked.
    queued: VecDeque<(Token, Op)>,
    /// Handed over but not told of, by the index in the payload of their commands.
    operations: Vec<Option<Operation>>,
    free: Vec<usize>,
    /// Tokens that were submitted and not reaped.
    in_flight: usize,
    /// What the ring has just returned. Kept for its memory.
    reaped: Vec<slimio_ring::Completion<Step, Data>>,
}

/// A command of an operation's.
#[derive(Clone, Copy, Debug)]
struct Step {
    operation: usize,
    opcode: u8,
}

/// An operation, or several that became one.
struct Operation {
    token: Token,
    /// Those of the deallocations that go with it.
    others: Vec<Token>,
    /// Commands that have not ended.
    commands_left: u32,
    /// The first failure of any of its commands.
    result: Result<(), DeviceError>,
    /// Come home already.
    buffer: Option<Buffer>,
}

impl NvmePath {
    /// # Errors
    /// Why there is no ring.
    pub(crate) fn new(
        namespace: Arc<Namespace>,
        file: OwnedFd,
        in_flight_max: u32,
        polling: Polling,
    ) -> Result<Self, Refused> {
        let mut ring = Ring::new(Setup {
            submissions: in_flight_max,
            completions: 2 * in_flight_max,
            // A path may be handed from thread to thread, and its ring is polled by others: both
            // want completions that need no call of the thread that has submitted.
            avoid: Features { deferred: true, ..Features::NONE },
            polling: polling.for_ring(),
        })?;
        let fd = ring.adopt(file);
        Ok(Self {
            namespace,
            in_flight_max,
            ring,
            fd,
            queued: VecDeque::new(),
            operations: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            reaped: Vec::new(),
        })
    }

    fn enter(&mut self, min: usize, timeout: Option<Duration>) {
        match self.ring.submit_and_wait(min, timeout) {
            Ok(()) => {}
            // What the kernel has no memory for now stays queued for the next call.
            Err(errno) if errno.number() == libc::EAGAIN => {}
            Err(errno) => panic!("the kernel no longer takes operations: {errno}"),
        }
    }

    /// Makes commands of all that is queued.
    fn begin_all(&mut self) {
        while let Some((token, op)) = self.queued.pop_front() {
            if let Err(error) = check_range(&op, self.namespace.lba_count) {
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
                // Nothing is in a cache that a power cut would empty.
                Op::Flush if self.namespace.write_cache == WriteCache::Stable => {
                    self.hold(token, None, Ok(()));
                }
                Op::Flush => {
                    let operation = self.operation(token, 1);
                    self.command(operation, wire::flush(self.namespace.nsid), None);
                }
                Op::Deallocate { range } => self.deallocate(token, range),
            }
        }
    }

    /// Makes a read or write into as many commands as it takes: `command` makes one, from the
    /// number of blocks before it and its own.
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

    /// Makes a deallocation, and those queued right behind it, into commands with many ranges.
    fn deallocate(&mut self, token: Token, range: LbaRange) {
        let (mut tokens, mut ranges) = (vec![token], vec![range]);
        while let Some((token, Op::Deallocate { range })) = self.queued.front() {
            if check_range(&Op::Deallocate { range: *range }, self.namespace.lba_count).is_err() {
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
        self.operations[operation].as_mut().expect("it was just made").others = others;
        for ranges in commands {
            let mut buffer = Buffer::zeroed(1);
            for (place, range) in buffer.chunks_exact_mut(16).zip(ranges) {
                place.copy_from_slice(range);
            }
            let command = wire::deallocate(self.namespace.nsid, ranges.len());
            self.command(operation, command, Some(Data::Whole(buffer)));
        }
    }

    /// Ends an operation that is not for the device: what would have come of it must not be there
    /// before the next `poll`, and must show in the ring's readiness.
    fn hold(&mut self, token: Token, buffer: Option<Buffer>, result: Result<(), DeviceError>) {
        let operation = self.operation(token, 1);
        let held = self.operations[operation].as_mut().expect("it was just made");
        (held.buffer, held.result) = (buffer, result);
        self.ring.nothing(self.fd, Step { operation, opcode: opcode::FLUSH });
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
        let step = Step { operation, opcode: command.opcode };
        // SAFETY: reads and writes are made with the block count of their data, deallocations with
        // at most as many ranges as the block that is their data has room for, and a flush moves
        // nothing.
        unsafe { self.ring.command(self.fd, command, data, step) };
    }

    /// Notes the end of a command, and of its operation if it was the last.
    fn settle(
        &mut self,
        step: Step,
        data: Option<Data>,
        result: Result<(), DeviceError>,
        completions: &mut Vec<Completion>,
    ) {
        let place = &mut self.operations[step.operation];
        let operation = place.as_mut().expect("its commands have not all ended");
        match data {
            // What a deallocation carried is nobody's.
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
            place.take().expect("it was there just now");
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

/// What an end of a command means. A deallocation is a hint: where there is none, blocks just stay.
fn result_of(opcode: u8, result: Result<(), CommandError>) -> Result<(), DeviceError> {
    let is_hint = opcode == opcode::DATASET_MANAGEMENT;
    match result {
        Ok(()) => Ok(()),
        Err(CommandError::Status(status)) if is_hint && status::is_unknown_command(status) => {
            Ok(())
        }
        // Not everybody may: the kernel asks for more than the right to write.
        Err(CommandError::Os(errno)) if is_hint && errno.number() == libc::EACCES => Ok(()),
        Err(CommandError::Status(status)) if status::is_no_space(status) => {
            Err(DeviceError::NoSpace)
        }
        Err(CommandError::Status(status)) => Err(DeviceError::Nvme { opcode, status }),
        Err(CommandError::Os(errno)) if errno.number() == libc::EINTR => {
            Err(DeviceError::Aborted { opcode })
        }
        Err(CommandError::Os(errno)) => Err(DeviceError::Io { errno: errno.number() }),
    }
}

impl Namespace {
    /// Says that the device is gone where the kernel only says that a command does not do.
    fn explain(&self, result: Result<(), DeviceError>) -> Result<(), DeviceError> {
        match result {
            Err(DeviceError::Io { .. }) if !self.node.exists() => Err(DeviceError::Gone),
            result => result,
        }
    }

    fn read(&self, lba: u64, lbas: u32) -> NvmeCommand {
        let shift = self.blocks_shift;
        wire::read(self.nsid, lba << shift, lbas << shift)
    }

    fn write(&self, lba: u64, lbas: u32, placement: PlacementId, durable: bool) -> NvmeCommand {
        let shift = self.blocks_shift;
        // The device would take another for its default, and complain about it.
        let placement = self.placements.contains(&placement).then_some(placement.0);
        let durable = durable && self.write_cache != WriteCache::Stable;
        wire::write(self.nsid, lba << shift, lbas << shift, placement, durable)
    }

    /// Ranges as the device takes them.
    fn ranges(&self, ranges: &[LbaRange]) -> Vec<[u8; 16]> {
        let mut found = Vec::new();
        for range in ranges {
            let (mut at, end) =
                (range.start.0 << self.blocks_shift, range.end.0 << self.blocks_shift);
            while at < end {
                let blocks = u32::try_from(end - at).unwrap_or(RANGE_BLOCKS_MAX);
                found.push(wire::range(at, blocks));
                at += u64::from(blocks);
            }
        }
        found
    }
}

/// Most blocks of one range that is part of a longer one: the field has 32 bits.
const RANGE_BLOCKS_MAX: u32 = 1 << 31;

impl Device for NvmePath {
    fn geometry(&self) -> Geometry {
        Geometry {
            lba_count: self.namespace.lba_count,
            transfer_lbas_max: crate::target::TRANSFER_LBAS_MAX,
            in_flight_max: self.in_flight_max,
            write_cache: self.namespace.write_cache,
        }
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
        self.enter(0, None);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let mut reaped = std::mem::take(&mut self.reaped);
        self.ring.reap(&mut reaped);
        for slimio_ring::Completion { payload, outcome, .. } in reaped.drain(..) {
            match outcome {
                Outcome::Commanded { memory, result } => {
                    let result = result_of(payload.opcode, result);
                    let result = self.namespace.explain(result);
                    self.settle(payload, memory, result, completions);
                }
                Outcome::Done(result) => {
                    self.settle(payload, None, result.map_err(DeviceError::from), completions);
                }
                other => unreachable!("a path asks for no such thing: {other:?}"),
            }
        }
        self.reaped = reaped;
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let before = completions.len();
        self.begin_all();
        while self.in_flight > 0 {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            self.enter(1, left);
            self.poll(completions);
            if completions.len() > before || left.is_some_and(|left| left.is_zero()) {
                return;
            }
        }
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
    use slimio_ring::{Errno, NvmeStatus};

    use super::*;
    use crate::Lba;

    fn namespace(blocks_shift: u32) -> Namespace {
        Namespace {
            node: "/sys".into(),
            nsid: 3,
            lba_count: 1 << 40,
            blocks_shift,
            command_lbas_max: 4,
            write_cache: WriteCache::VolatileWithFua,
            has_deallocate: true,
            placements: vec![PlacementId(0), PlacementId(0x4001)],
        }
    }

    #[test]
    fn a_device_of_smaller_blocks_is_addressed_in_groups_of_them() {
        let namespace = namespace(3);
        assert_eq!(namespace.read(5, 2), wire::read(3, 40, 16));
        let range = LbaRange { start: Lba(1), end: Lba(3) };
        assert_eq!(namespace.ranges(&[range]), [wire::range(8, 16)]);
    }

    #[test]
    fn only_the_devices_own_placements_are_named() {
        let mut namespace = namespace(0);
        let named = namespace.write(7, 1, PlacementId(0x4001), true);
        assert_eq!(named, wire::write(3, 7, 1, Some(0x4001), true));
        let unknown = namespace.write(7, 1, PlacementId(1), false);
        assert_eq!(unknown, wire::write(3, 7, 1, None, false));
        namespace.placements.clear();
        let none = namespace.write(7, 1, PlacementId(0), false);
        assert_eq!(none, wire::write(3, 7, 1, None, false));
        namespace.write_cache = WriteCache::Stable;
        let stable = namespace.write(7, 1, PlacementId(0), true);
        assert_eq!(stable, wire::write(3, 7, 1, None, false), "no cache is to be passed by");
    }

    #[test]
    fn a_device_that_is_gone_is_said_to_be() {
        let mut namespace = namespace(0);
        let refused = Err(DeviceError::Io { errno: libc::EINVAL });
        assert_eq!(namespace.explain(refused.clone()), refused);
        namespace.node = "/sys/no/such/device".into();
        assert_eq!(namespace.explain(refused), Err(DeviceError::Gone));
        assert_eq!(namespace.explain(Ok(())), Ok(()));
    }

    #[test]
    fn a_range_longer_than_the_field_is_several() {
        let range = LbaRange { start: Lba(10), end: Lba(10 + (1 << 32)) };
        let half = 1 << 31;
        let found = namespace(0).ranges(&[range, LbaRange { start: Lba(4), end: Lba(4) }]);
        assert_eq!(found, [wire::range(10, half), wire::range(10 + u64::from(half), half)]);
    }

    #[test]
    fn every_status_becomes_an_error_that_names_it() {
        let status = |word| Err(CommandError::Status(NvmeStatus::new(word).expect("a failure")));
        for (opcode, word, said) in [
            (opcode::WRITE, 0x4280, "the device failed a write: Write Fault (2:80h)"),
            (opcode::READ, 0x4281, "the device failed a read: Unrecovered Read Error (2:81h)"),
            (opcode::FLUSH, 0x4006, "the device failed a flush: Internal Error (0:06h)"),
            (
                opcode::DATASET_MANAGEMENT,
                0x4002,
                "the device failed a deallocation: Invalid Field in Command (0:02h)",
            ),
            (opcode::WRITE, 0x4081, "no space left"),
        ] {
            let error = result_of(opcode, status(word)).expect_err("it is a failure");
            assert_eq!(error.to_string(), said);
        }
        let unknown = status(0x4001);
        assert_eq!(result_of(opcode::DATASET_MANAGEMENT, unknown), Ok(()));
        assert!(result_of(opcode::WRITE, unknown).is_err());
        let given_up = Err(CommandError::Os(Errno::new(libc::EINTR)));
        let error = result_of(opcode::WRITE, given_up).expect_err("nobody knows");
        assert_eq!(
            error.to_string(),
            "the driver gave a write up: the device was reset, did not answer, or is gone"
        );
    }
}
