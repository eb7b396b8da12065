//! A path to one area of a device. Through the path, the area's blocks are contiguous, wherever the
//! area's extents are on the device.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use slimio_device::{
    Buffer, Completion, Device, DeviceError, Geometry, LBA_SIZE, Lba, LbaRange, Op, Token,
};
use slimio_planted::is_planted;

use super::pool::{Pieces, Pool, SUPER_LBAS};
use crate::Area;

/// A path to an area, through a path to the whole device.
///
/// An operation whose blocks are contiguous on the device is passed on as it is. If its blocks lie
/// in extents that are not next to each other on the device, the operation is cut into parts. When
/// all parts are done, the path joins them. The parts have copies of the operation's data.
pub(super) struct AreaPath {
    /// `None` if this path leads to the free extents.
    area: Option<Area>,
    pool: Pool,
    pieces: Pieces,
    device_lbas: u64,
    below: Box<dyn Device + Send>,
    /// For each operation that was passed to the path below, where its completion goes. The index
    /// is the operation's token in that path.
    flying: Vec<Option<CompletionOwner>>,
    /// Operations that were cut.
    joins: Vec<Option<Join>>,
    /// Whole operations and parts that the path below could not take yet.
    waiting: VecDeque<(CompletionOwner, Op)>,
    in_flight: usize,
    reaped: Vec<Completion>,
    /// Completions for the caller, who has not polled them yet.
    done: Vec<Completion>,
}

/// Where a completion goes.
#[derive(Clone, Copy)]
enum CompletionOwner {
    /// To the caller, under this token.
    Whole(Token),
    /// To a cut operation. The completion is for the part that starts at byte `at` of the
    /// operation.
    Part { join: usize, at: usize },
    /// To this path itself, which waits for the completion.
    Own,
}

/// An operation in parts.
struct Join {
    token: Token,
    buffer: Option<Buffer>,
    is_read: bool,
    left: usize,
    result: Result<(), DeviceError>,
}

/// Contiguous blocks of the device: the first block, and the number of blocks.
type Part = (u64, u64);

impl AreaPath {
    pub(super) fn new(area: Option<Area>, pool: Pool, below: Box<dyn Device + Send>) -> Self {
        let (pieces, device_lbas) = (pool.pieces(area), pool.device_lbas());
        Self {
            area,
            pool,
            pieces,
            device_lbas,
            below,
            flying: Vec::new(),
            joins: Vec::new(),
            waiting: VecDeque::new(),
            in_flight: 0,
            reaped: Vec::new(),
            done: Vec::new(),
        }
    }

    fn refresh(&mut self) {
        if self.pool.is_stale(&self.pieces) {
            self.pieces = self.pool.pieces(self.area);
        }
    }

    /// Returns where a block of the area is on the device, and how many blocks are left in the
    /// block's piece.
    fn locate(&self, lba: u64) -> Option<Part> {
        if self.area != Some(Area::Superblock) {
            let left = self.pieces.extent_lbas - lba % self.pieces.extent_lbas;
            return Some((self.pieces.locate(lba)?, left));
        }
        let half = SUPER_LBAS / 2;
        match lba {
            _ if lba < half => Some((lba, half - lba)),
            _ if lba < SUPER_LBAS => Some((self.device_lbas - SUPER_LBAS + lba, SUPER_LBAS - lba)),
            _ => None,
        }
    }

    /// The parts of the device that hold these blocks of the area: `lbas` blocks, beginning with
    /// block `lba`. `None` if one of the blocks is in no extent.
    fn parts(&self, lba: u64, lbas: u64) -> Option<Vec<Part>> {
        let (mut at, end) = (lba, lba.checked_add(lbas)?);
        let mut parts: Vec<Part> = Vec::with_capacity(1);
        while at < end {
            let (start, run) = self.locate(at)?;
            let run = run.min(end - at);
            at += run;
            match parts.last_mut() {
                Some((before, lbas)) if *before + *lbas == start => *lbas += run,
                _ => parts.push((start, run)),
            }
        }
        Some(parts)
    }

    /// Hands an operation to the path below, as soon as that path accepts it.
    fn pass(&mut self, flying: CompletionOwner, op: Op) {
        self.waiting.push_back((flying, op));
        self.pump();
    }

    fn pump(&mut self) {
        while let Some((flying, op)) = self.waiting.pop_front() {
            let index = free_index(&mut self.flying);
            match self.below.submit(Token(index as u64), op) {
                Ok(()) => self.flying[index] = Some(flying),
                Err(op) => {
                    self.waiting.push_front((flying, op));
                    return;
                }
            }
        }
    }

    /// Submits an operation in parts.
    fn cut(&mut self, token: Token, op: Op, parts: &[Part]) {
        let (buffer, is_read) = match &op {
            Op::Read { .. } => (true, true),
            Op::Write { .. } => (true, false),
            Op::Flush | Op::Deallocate { .. } => (false, false),
        };
        let index = free_index(&mut self.joins);
        self.joins[index] =
            Some(Join { token, buffer: None, is_read, left: parts.len(), result: Ok(()) });
        let mut at = 0;
        let part_buffer = |whole: Option<&Buffer>, at: usize, lbas: u64| {
            let mut part = Buffer::zeroed(lbas as usize);
            if let Some(whole) = whole {
                let size = part.len();
                part.copy_from_slice(&whole[at..at + size]);
            }
            part
        };
        for &(start, lbas) in parts {
            let lba = Lba(start);
            let part = match &op {
                Op::Read { .. } => Op::Read { lba, buffer: part_buffer(None, at, lbas) },
                Op::Write { buffer, placement, durable, .. } => {
                    let buffer = part_buffer(Some(buffer), at, lbas);
                    Op::Write { lba, buffer, placement: *placement, durable: *durable }
                }
                Op::Flush => Op::Flush,
                Op::Deallocate { .. } => {
                    Op::Deallocate { range: LbaRange { start: lba, end: Lba(start + lbas) } }
                }
            };
            self.pass(CompletionOwner::Part { join: index, at }, part);
            at += lbas as usize * LBA_SIZE;
        }
        if buffer
            && let (Some(join), Op::Read { buffer, .. } | Op::Write { buffer, .. }) =
                (&mut self.joins[index], op)
        {
            join.buffer = Some(buffer);
        }
    }

    /// Handles the completions of the path below.
    fn settle(&mut self) {
        let mut reaped = std::mem::take(&mut self.reaped);
        for completion in reaped.drain(..) {
            let Completion { token: Token(index), buffer, result } = completion;
            match self.flying[index as usize].take().expect("the operation was in flight") {
                CompletionOwner::Own => {}
                CompletionOwner::Whole(token) => {
                    self.done.push(Completion { token, buffer, result });
                }
                CompletionOwner::Part { join, at } => self.join(join, at, buffer.as_ref(), result),
            }
        }
        self.reaped = reaped;
        self.pump();
    }

    fn join(
        &mut self,
        index: usize,
        at: usize,
        part: Option<&Buffer>,
        result: Result<(), DeviceError>,
    ) {
        let join = self.joins[index].as_mut().expect("the operation still has parts in flight");
        join.left -= 1;
        if let (true, Some(part), Some(whole)) = (join.is_read, part, &mut join.buffer) {
            whole[at..at + part.len()].copy_from_slice(part);
        }
        if join.result.is_ok() {
            join.result = result;
        }
        if join.left == 0
            && let Some(Join { token, buffer, result, .. }) = self.joins[index].take()
        {
            self.done.push(Completion { token, buffer, result });
        }
    }

    fn hand_over(&mut self, completions: &mut Vec<Completion>) {
        self.in_flight -= self.done.len();
        completions.append(&mut self.done);
    }

    /// Deallocates extents, in ranges that are as long as possible, and waits for completion. If
    /// the device refuses, that does no harm.
    fn deallocate(&mut self, extents: &[u32]) {
        let mut extents = extents.to_vec();
        extents.sort_unstable();
        let gap_max = if is_planted("deallocation-over-gap") { 2 } else { 1 };
        for run in extents.chunk_by(|a, b| b - a <= gap_max) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let start = Lba(self.pieces.start_of(*first));
            let end = Lba(self.pieces.start_of(last + 1));
            self.pass(CompletionOwner::Own, Op::Deallocate { range: LbaRange { start, end } });
        }
        if is_planted("reuse-in-flight") {
            self.below.kick();
            return;
        }
        let is_own = |flying: &CompletionOwner| matches!(flying, CompletionOwner::Own);
        while self.flying.iter().flatten().any(is_own)
            || self.waiting.iter().any(|(flying, _)| is_own(flying))
        {
            self.below.wait(None, &mut self.reaped);
            self.settle();
        }
    }
}

/// Index of an element that is `None`. Adds such an element if necessary.
fn free_index<T>(places: &mut Vec<Option<T>>) -> usize {
    places.iter().position(Option::is_none).unwrap_or_else(|| {
        places.push(None);
        places.len() - 1
    })
}

impl Device for AreaPath {
    fn geometry(&self) -> Geometry {
        let lba_count = match self.area {
            Some(Area::Superblock) => SUPER_LBAS,
            _ if self.pool.is_stale(&self.pieces) => self.pool.pieces(self.area).lba_count(),
            _ => self.pieces.lba_count(),
        };
        Geometry { lba_count, ..self.below.geometry() }
    }

    fn buffer(&mut self, lbas: usize) -> Buffer {
        self.below.buffer(lbas)
    }

    fn submit(&mut self, token: Token, op: Op) -> Result<(), Op> {
        let below = self.below.geometry();
        if self.in_flight >= below.in_flight_max as usize {
            return Err(op);
        }
        self.in_flight += 1;
        self.refresh();
        let (lba, lbas) = match &op {
            Op::Read { lba, buffer } | Op::Write { lba, buffer, .. } => {
                (lba.0, buffer.len_lbas() as u64)
            }
            Op::Deallocate { range } => (range.start.0, range.end.0.saturating_sub(range.start.0)),
            Op::Flush => {
                self.pass(CompletionOwner::Whole(token), op);
                return Ok(());
            }
        };
        let is_too_long =
            !matches!(op, Op::Deallocate { .. }) && lbas > u64::from(below.transfer_lbas_max);
        let start = match self.locate(lba) {
            Some((start, run)) if lbas <= run => start,
            _ => match self.parts(lba, lbas).filter(|_| !is_too_long).as_deref() {
                Some([(start, _)]) => *start,
                Some(parts @ [_, _, ..]) => {
                    self.cut(token, op, parts);
                    return Ok(());
                }
                // Some of the blocks are in no extent, or there are too many blocks. So the
                // operation gets an address that the path below refuses.
                _ => u64::MAX,
            },
        };
        self.pass(CompletionOwner::Whole(token), moved(op, start, lbas));
        Ok(())
    }

    fn kick(&mut self) {
        self.below.kick();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.below.poll(&mut self.reaped);
        self.settle();
        self.hand_over(completions);
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let mut left = timeout;
        // If only a part of an operation has completed, there is nothing for the caller yet, so the
        // wait goes on.
        while self.in_flight > 0 && self.done.is_empty() {
            self.below.wait(left, &mut self.reaped);
            self.settle();
            left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break;
            }
        }
        self.hand_over(completions);
    }

    fn would_run_here(&self) -> bool {
        self.in_flight == 1 && self.below.would_run_here()
    }

    fn has_unsubmitted(&mut self) -> bool {
        self.below.has_unsubmitted()
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.below.readiness()
    }

    /// The area can use the new extents at once. The next update of the superblock makes the growth
    /// durable.
    fn grow(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        let now = self.geometry().lba_count;
        if lba_count <= now {
            return Ok(());
        }
        self.reserve(LbaRange { start: Lba(now), end: Lba(lba_count) })
    }

    fn reserve(&mut self, range: LbaRange) -> Result<(), DeviceError> {
        let area = self.area.ok_or(DeviceError::NoSpace)?;
        self.pool.take(area, range.start.0, range.end.0)
    }

    fn shrink(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        self.release(LbaRange { start: Lba(lba_count), end: Lba(u64::MAX) })
    }

    /// Deallocates the extents that lie entirely in `range`. When the deallocation is complete,
    /// gives these extents back to the pool.
    fn release(&mut self, range: LbaRange) -> Result<(), DeviceError> {
        let Some(area) = self.area else { return Ok(()) };
        self.refresh();
        let within = self.pool.within(area, range.start.0, range.end.0);
        let (pieces, extents): (Vec<u32>, Vec<u32>) = within.into_iter().unzip();
        if !extents.is_empty() {
            self.deallocate(&extents);
            self.pool.free(area, pieces);
        }
        Ok(())
    }
}

/// The same operation, moved to the blocks from `start` on. A deallocation gets the length `lbas`.
fn moved(op: Op, start: u64, lbas: u64) -> Op {
    let lba = Lba(start);
    match op {
        Op::Read { buffer, .. } => Op::Read { lba, buffer },
        Op::Write { buffer, placement, durable, .. } => {
            Op::Write { lba, buffer, placement, durable }
        }
        Op::Flush => Op::Flush,
        Op::Deallocate { .. } => {
            Op::Deallocate { range: LbaRange { start: lba, end: Lba(start.saturating_add(lbas)) } }
        }
    }
}
