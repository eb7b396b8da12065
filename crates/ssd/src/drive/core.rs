//! The state that all paths of a drive share: the mapping, clocks, cache, and changes that a power
//! cut undoes.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use slimio_device::{
    Buffer, Completion, DeviceError, Geometry, LBA_SIZE, Lba, LbaRange, Op, PlacementId, Token,
    WriteCache,
};
use slimio_planted::is_planted;

use super::cache::Cache;
use super::data::Data;
use super::deallocation::{Canceller, Pending};
use super::freeing::Freeing;
use super::journal::Journal;
use super::request::Request;
use super::undo::Undo;
use super::{Clock, DriveOptions, Shared};
use crate::Clocked;

/// The most blocks that one operation may transfer: 8 MiB.
const TRANSFER_LBAS_MAX: u32 = 2048;

#[derive(Debug)]
pub(super) struct Core {
    pub(super) drive: Clocked,
    /// The drive's own time, for [`Clock::Virtual`].
    pub(super) now: Duration,
    clock: Clock,
    /// The Unix time when the drive was opened.
    opened_at: Duration,
    /// `None` if the drive's state does not outlive the process. The journal is dropped before the
    /// data, because the lock of the data file protects both files.
    pub(super) journal: Option<Journal>,
    pub(super) data: Arc<Data>,
    pub(super) has_fdp: bool,
    /// The value of the bytes of a block that holds nothing.
    nothing: u8,
    is_sync: bool,
    pub(super) cache: Option<Cache>,
    deallocate_latency: Duration,
    /// Pending deallocations, in the order of the times at which they take effect.
    pub(super) deallocating: VecDeque<Pending>,
    /// Blocks that hold nothing, but may have bytes in the file.
    pub(super) freeing: Freeing,
    /// How many deallocations have taken effect. The number changes only under the lock.
    pub(super) deallocations: Arc<AtomicU64>,
    pub(super) undo: Option<Undo>,
    /// How often the power was cut. The number changes only under the lock.
    cuts: Arc<AtomicU64>,
}

/// The values that a path or queue keeps from the time when it was opened.
#[derive(Debug, Default)]
pub(super) struct Opened {
    /// How often the power had been cut by that time.
    cuts: u64,
    pub(super) canceller: Canceller,
}

#[derive(Debug)]
pub(super) struct StartedOp {
    /// When the operation completes.
    pub(super) due: Duration,
    pub(super) buffer: Option<Buffer>,
    pub(super) result: Result<(), DeviceError>,
    pub(super) what: OpKind,
    /// Whether everything that was written has to be durable before the operation completes.
    is_sync: bool,
    cuts: u64,
    /// How many deallocations had taken effect when the operation began.
    pub(super) deallocations: u64,
}

#[derive(Debug)]
pub(super) enum OpKind {
    Read {
        lba: u64,
    },
    Write {
        lba: u64,
        /// The id by which the write can be undone. `None` if power is never cut.
        undo: Option<u64>,
        durable: bool,
    },
    Flush {
        /// Ids of the writes and deallocations that the flush makes stable.
        covers: Vec<u64>,
    },
    Deallocate {
        blocks: Range<u64>,
    },
    Refused,
}

/// Memory that a path reuses, so that an operation allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// The blocks that hold nothing, among those of the present read. They are counted from the
    /// read's first block.
    empty: Vec<u32>,
}

impl Core {
    pub(super) fn new(
        drive: Clocked,
        data: Arc<Data>,
        journal: Option<Journal>,
        options: &DriveOptions,
    ) -> Self {
        // A drive without a state file is new, so its blocks have no old bytes.
        let lba_count = journal.as_ref().map_or(0, |_| options.config.lba_count);
        Self {
            drive,
            now: Duration::ZERO,
            clock: options.clock,
            opened_at: SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default(),
            journal,
            data,
            has_fdp: options.has_fdp,
            nothing: options.deallocated.byte(),
            is_sync: options.is_sync,
            cache: (options.cache_lbas > 0).then(|| Cache::new(options.cache_lbas)),
            deallocate_latency: options.deallocate_latency,
            deallocating: VecDeque::new(),
            freeing: Freeing::of_opened(lba_count),
            deallocations: Arc::default(),
            undo: options.can_lose_power.then(Undo::default),
            cuts: Arc::default(),
        }
    }

    /// How often the power was cut. The caller can read the number without the lock.
    pub(super) fn cuts(&self) -> Arc<AtomicU64> {
        self.cuts.clone()
    }

    /// Opens a path to the drive.
    pub(super) fn open(&self, in_flight_max: u32) -> (Geometry, Opened) {
        let geometry = Geometry {
            lba_count: self.drive.ftl().config().lba_count,
            transfer_lbas_max: TRANSFER_LBAS_MAX,
            in_flight_max,
            write_cache: match self.cache {
                None if !self.is_sync => WriteCache::Stable,
                _ => WriteCache::VolatileWithFua,
            },
        };
        let cuts = self.cuts.load(Ordering::Acquire);
        (geometry, Opened { cuts, canceller: Canceller::default() })
    }

    /// The current time by the drive's clock.
    pub(super) fn drive_now(&self, shared: &Shared) -> Duration {
        match self.clock {
            Clock::Real => shared.real_now(),
            Clock::Virtual => self.now,
        }
    }

    /// Begins an operation at the time `now`. `opened` has the values that the operation's path
    /// keeps. The caller then [moves](StartedOp::transfer) the bytes of the operation.
    pub(super) fn begin(
        &mut self,
        op: Op,
        now: Duration,
        opened: &Opened,
        scratch: &mut Scratch,
    ) -> StartedOp {
        let cuts = opened.cuts;
        self.deallocate_until(now);
        let (buffer, asked) = match op {
            Op::Read { lba, buffer } => (Some(buffer), OpRequest::Read(lba.0)),
            Op::Write { lba, buffer, placement, durable } => {
                (Some(buffer), OpRequest::Write(lba.0, placement, durable))
            }
            Op::Flush => (None, OpRequest::Flush),
            Op::Deallocate { range } => (None, OpRequest::Deallocate(range)),
        };
        let lbas = buffer.as_ref().map_or(0, |buffer| buffer.len_lbas() as u64);
        let is_sync =
            self.is_sync && matches!(asked, OpRequest::Flush | OpRequest::Write(_, _, true));
        let begun = self.check(&asked, lbas, cuts).and_then(|()| match asked {
            OpRequest::Read(lba) => Ok(self.begin_read(lba, lbas, now, scratch)),
            OpRequest::Write(lba, placement, durable) => {
                self.begin_write(lba, lbas, placement, durable, now)
            }
            OpRequest::Flush => {
                let due = self.cache.as_mut().map_or(now, |cache| now.max(cache.empty_at()));
                let covers = self.undo.as_ref().map_or_else(Vec::new, Undo::over);
                Ok((due, OpKind::Flush { covers }))
            }
            OpRequest::Deallocate(range) => {
                if !self.data.is_mapped(range) {
                    self.take_from_memory(range)?;
                }
                if !is_planted("deallocation-not-ready") {
                    self.make_ready(1)?;
                }
                if let Some(journal) = &mut self.journal {
                    journal.reserve();
                }
                let due = now + self.deallocate_latency;
                // Paths read the clock before they lock the drive, so a request that gets the lock
                // later may be due earlier.
                let at = self.deallocating.partition_point(|other| other.due <= due);
                let canceller = opened.canceller.clone();
                self.deallocating.insert(at, Pending { due, range, canceller });
                Ok((due, OpKind::Deallocate { blocks: range.start.0..range.end.0 }))
            }
        });
        let deallocations = self.deallocations.load(Ordering::Acquire);
        let (due, what, result) = match begun {
            Ok((due, what)) => (due, what, Ok(())),
            Err(error) => (now, OpKind::Refused, Err(error)),
        };
        let is_sync = is_sync && result.is_ok();
        StartedOp { due, buffer, result, what, is_sync, cuts, deallocations }
    }

    fn check(&self, asked: &OpRequest, lbas: u64, cuts: u64) -> Result<(), DeviceError> {
        let lba_count = self.drive.ftl().config().lba_count;
        let (start, lbas) = match asked {
            OpRequest::Read(lba) | OpRequest::Write(lba, ..) => (*lba, lbas),
            OpRequest::Flush => (0, 0),
            OpRequest::Deallocate(LbaRange { start, end }) => {
                (start.0, end.0.checked_sub(start.0).ok_or(DeviceError::OutOfRange)?)
            }
        };
        let is_transfer = !matches!(asked, OpRequest::Deallocate(_));
        let is_inside = start.checked_add(lbas).is_some_and(|end| end <= lba_count);
        if cuts != self.cuts.load(Ordering::Acquire) {
            return Err(DeviceError::Gone);
        }
        if !is_inside || is_transfer && lbas > u64::from(TRANSFER_LBAS_MAX) {
            return Err(DeviceError::OutOfRange);
        }
        Ok(())
    }

    fn begin_read(
        &mut self,
        lba: u64,
        lbas: u64,
        now: Duration,
        scratch: &mut Scratch,
    ) -> (Duration, OpKind) {
        let ftl = self.drive.ftl();
        let is_empty = |index: &u32| ftl.page_of(lba + u64::from(*index)).is_none();
        scratch.empty.clear();
        scratch.empty.extend((0..lbas as u32).filter(is_empty));
        (self.drive.read(now, lba, lbas), OpKind::Read { lba })
    }

    fn begin_write(
        &mut self,
        lba: u64,
        lbas: u64,
        placement: PlacementId,
        durable: bool,
        now: Duration,
    ) -> Result<(Duration, OpKind), DeviceError> {
        let time = self.wall_ms(now);
        let range = LbaRange { start: Lba(lba), end: Lba(lba + lbas) };
        if self.data.is_mapped(range) {
            return Err(DeviceError::OutOfRange);
        }
        self.take_from_memory(range)?;
        self.make_ready(1)?;
        // After a crash, the journal may have the write although the write's bytes never arrived.
        // Then a read of the blocks must not find older bytes.
        if !is_planted("reused-keep-bytes") {
            self.give_back_within(&(lba..lba + lbas))?;
        }
        let undo = match &mut self.undo {
            Some(undo) => {
                let ftl = self.drive.ftl();
                Some(undo.begin(&self.data, lba..lba + lbas, |lba| ftl.writer_of(lba))?)
            }
            None => None,
        };
        let placement = if self.has_fdp { placement.0 } else { 0 };
        if let Some(journal) = &mut self.journal {
            let (lba, count) = (lba as u32, lbas as u32);
            let stored = journal.append(Request::Write { lba, count, placement }, time);
            if let Err(failure) = stored {
                if let Some((all, id)) = self.undo.as_mut().zip(undo) {
                    all.forget(id);
                }
                return Err(failure);
            }
        }
        self.drive.ftl_mut().set_time(time);
        let handle = self.drive.ftl_mut().accept(placement);
        let written = self.drive.write(now, lba, lbas, handle);
        let written = written.map_err(|_| DeviceError::OutOfRange)?;
        let due = match &mut self.cache {
            Some(cache) if !durable => cache.take(lbas, now, written),
            // A durable write takes no room in the cache.
            Some(_) | None => written,
        };
        Ok((due, OpKind::Write { lba, undo, durable: durable || self.cache.is_none() }))
    }

    /// The Unix time, in milliseconds, when the drive's clock is at `now`.
    pub(super) fn wall_ms(&self, now: Duration) -> u64 {
        (self.opened_at + now).as_millis() as u64
    }

    /// Completes an operation that is due.
    fn end(&mut self, begun: &StartedOp) -> Result<(), DeviceError> {
        match &begun.what {
            OpKind::Write { undo: id, durable, .. } => {
                if let Some((undo, id)) = self.undo.as_mut().zip(*id) {
                    undo.end(id, *durable);
                }
            }
            OpKind::Flush { covers } => {
                if let Some(undo) = &mut self.undo {
                    undo.make_stable(covers);
                }
            }
            OpKind::Deallocate { .. } => {
                self.deallocate_until(begun.due);
                if let Some(failure) = self.journal.as_ref().and_then(Journal::failure) {
                    return Err(failure.clone());
                }
            }
            OpKind::Read { .. } | OpKind::Refused => {}
        }
        Ok(())
    }

    pub(super) fn cut_power(&mut self, survives: impl FnMut(u64) -> bool) {
        let undo = self.undo.as_mut().expect("the drive's options allow power cuts");
        for (lba, held) in undo.cut(survives) {
            match held {
                Some((bytes, handle)) => {
                    let written = self.data.write(lba, &bytes);
                    written.expect("the block was written before");
                    self.drive.ftl_mut().bring_back(lba, handle);
                }
                None => self.forget(LbaRange { start: Lba(lba), end: Lba(lba + 1) }),
            }
        }
        self.give_back_all().expect("the space can be given back");
        self.deallocating.clear();
        if let Some(journal) = &mut self.journal {
            journal.forget_reserved();
            // If this fails, the drive refuses everything that would change it.
            drop(journal.restart(self.drive.ftl()));
        }
        self.cuts.fetch_add(1, Ordering::AcqRel);
        if let Some(cache) = &mut self.cache {
            *cache = Cache::new(cache.lbas_max as u32);
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.deallocate_until(Duration::MAX);
        // If this fails, the next process gives the space back.
        drop(self.give_back_all());
        if let Some(journal) = &mut self.journal {
            // If this fails, the next process starts from the previous checkpoint.
            drop(journal.checkpoint(self.drive.ftl()));
        }
    }
}

impl Shared {
    /// Begins an operation and moves its bytes. The operation begins at `now`, or at the drive's
    /// own time if `now` is `None`. `opened` has the values that the operation's path keeps. If the
    /// operation's effect has to be durable,
    /// [`InFlight::settle`](super::queue::InFlight::settle) makes it durable later.
    pub(super) fn begin(
        &self,
        op: Op,
        now: Option<Duration>,
        opened: &Opened,
        data: &Data,
        scratch: &mut Scratch,
    ) -> StartedOp {
        let mut core = self.lock();
        if core.is_sync && core.is_checkpoint_due() && !matches!(op, Op::Read { .. }) {
            // The checkpoint will sync under the lock. This sync without the lock comes first, so
            // that the checkpoint's sync has less to write. If this sync fails, the checkpoint
            // fails, too.
            drop(core);
            drop(self.durability.sync());
            core = self.lock();
        }
        let now = now.unwrap_or(core.now);
        let mut begun = core.begin(op, now, opened, scratch);
        let nothing = core.nothing;
        if core.undo.is_none() {
            // Move the bytes without the lock, so that other paths can use the drive meanwhile.
            drop(core);
            begun.transfer(data, scratch, nothing);
            self.settle(&mut begun, nothing);
        } else {
            // Move the bytes under the lock. The next write to these blocks copies their bytes
            // first, so that a power cut can undo that write. So the bytes must be complete before
            // the next write begins.
            begun.transfer(data, scratch, nothing);
            drop(core);
        }
        begun
    }

    /// Syncs the drive's files. All operations that began before this call are then durable in the
    /// files' file system.
    pub(super) fn make_durable(&self) -> Result<(), DeviceError> {
        self.durability.sync()
    }
}

/// An operation without its buffer.
enum OpRequest {
    Read(u64),
    Write(u64, PlacementId, bool),
    Flush,
    Deallocate(LbaRange),
}

impl StartedOp {
    pub(super) fn transfer(&mut self, data: &Data, scratch: &Scratch, nothing: u8) {
        let Some(buffer) = &mut self.buffer else { return };
        match &self.what {
            OpKind::Read { lba } => {
                if scratch.empty.len() < buffer.len_lbas() {
                    self.result = data.read(*lba, buffer);
                }
                for index in &scratch.empty {
                    buffer[*index as usize * LBA_SIZE..][..LBA_SIZE].fill(nothing);
                }
            }
            OpKind::Write { lba, .. } => self.result = data.write(*lba, buffer),
            OpKind::Flush { .. } | OpKind::Deallocate { .. } | OpKind::Refused => {}
        }
    }

    /// Whether the operation has begun without an error, and its effect still has to be made
    /// durable.
    pub(super) fn is_unsynced(&self) -> bool {
        self.is_sync && self.result.is_ok()
    }

    /// Notes the result of making the operation's effect durable.
    pub(super) fn set_synced(&mut self, synced: Result<(), DeviceError>) {
        (self.is_sync, self.result) = (false, synced);
    }

    /// The blocks whose bytes the operation moves.
    pub(super) fn blocks(&self) -> LbaRange {
        let lbas = self.buffer.as_ref().map_or(0, |buffer| buffer.len_lbas() as u64);
        match self.what {
            OpKind::Read { lba } | OpKind::Write { lba, .. } => {
                LbaRange { start: Lba(lba), end: Lba(lba + lbas) }
            }
            _ => LbaRange { start: Lba(0), end: Lba(0) },
        }
    }

    /// Completes the operation, which is due. The caller reports the completion.
    pub(super) fn end(mut self, token: Token, shared: &Shared) -> Completion {
        if self.result.is_ok() {
            self.end_in(shared);
        }
        Completion { token, buffer: self.buffer, result: self.result }
    }

    fn end_in(&mut self, shared: &Shared) {
        // Only an operation that changes the drive when it ends needs the lock.
        let core = match &self.what {
            OpKind::Deallocate { .. } | OpKind::Write { undo: Some(_), .. } => Some(shared.lock()),
            OpKind::Flush { covers } if !covers.is_empty() => Some(shared.lock()),
            _ => None,
        };
        if shared.cuts.load(Ordering::Acquire) != self.cuts {
            self.result = Err(DeviceError::Gone);
        } else if let Some(mut core) = core {
            self.result = core.end(self);
            if let OpKind::Deallocate { blocks } = &self.what
                && self.result.is_ok()
            {
                self.result = shared.give_back(core, blocks.clone());
            }
        }
    }
}
