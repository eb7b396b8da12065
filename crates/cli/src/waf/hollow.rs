//! A device that records its operations, and keeps only the data of the superblock. A host that
//! reads back only the superblock needs no more. The device takes little memory, so it can have any
//! size.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slimio_device::{
    Completion, Contents, Device, DeviceError, Geometry, LBA_SIZE, Lba, MappedFile, Op, OpenError,
    PlacementId, Token, WholeDevice, WriteCache,
};
use slimio_ssd::trace::{ByteRange, TraceEvent, TraceWriter};
use slimio_storage::Lifetime;

/// Common drives allow transfers of up to this many blocks, and this many operations in flight.
const TRANSFER_LBAS_MAX: u32 = 256;
const IN_FLIGHT_MAX: u32 = 64;

/// The device. It has a placement for each lifetime, that is, for each kind of data that is deleted
/// together. A completed write counts as durable.
pub(super) struct Hollow {
    lba_count: u64,
    placements: Vec<PlacementId>,
    record: Record,
}

/// State shared by all of the device's paths.
#[derive(Clone)]
pub(super) struct Record(Arc<Mutex<State>>);

struct State {
    trace: TraceWriter<File>,
    time_ns: u64,
    /// Blocks of the superblock.
    kept: HashMap<u64, Box<[u8]>>,
    failed: Option<io::Error>,
}

impl Hollow {
    /// Makes a device of this many blocks whose operations are recorded in `trace`.
    pub(super) fn new(lba_count: u64, trace: TraceWriter<File>) -> (Self, Record) {
        let state = State { trace, time_ns: 0, kept: HashMap::new(), failed: None };
        let record = Record(Arc::new(Mutex::new(state)));
        let placements = (0..).take(Lifetime::ALL.len()).map(PlacementId).collect();
        (Self { lba_count, placements, record: record.clone() }, record)
    }
}

impl Record {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the time that later operations are recorded with.
    pub(super) fn set_time(&self, time: Duration) {
        self.lock().time_ns = time.as_nanos() as u64;
    }

    /// Writes a mark with this text to the trace.
    pub(super) fn mark(&self, what: &str) {
        self.lock().push(&TraceEvent::Mark(what.into()));
    }

    /// Ends the trace, and returns the number of its events. All users of the device must have
    /// dropped it.
    pub(super) fn finish(self) -> io::Result<u64> {
        let state = Arc::into_inner(self.0)
            .ok_or_else(|| io::Error::other("the device is still in use"))?;
        let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = state.failed {
            return Err(error);
        }
        let events = state.trace.event_count();
        state.trace.finish()?;
        Ok(events)
    }
}

impl State {
    fn push(&mut self, event: &TraceEvent) {
        if self.failed.is_none() {
            self.failed = self.trace.push(self.time_ns, event).err();
        }
    }

    /// Runs an operation; returns its buffer and its result.
    fn run(&mut self, op: Op) -> (Option<slimio_device::Buffer>, Result<(), DeviceError>) {
        let bytes = |lba: Lba, size: usize| ByteRange::new(lba.0 * LBA_SIZE as u64, size as u64);
        let buffer = match op {
            Op::Read { lba, mut buffer } => {
                for (index, block) in buffer.chunks_exact_mut(LBA_SIZE).enumerate() {
                    match self.kept.get(&(lba.0 + index as u64)) {
                        Some(kept) => block.copy_from_slice(kept),
                        None => block.fill(0),
                    }
                }
                Some(buffer)
            }
            Op::Write { lba, buffer, placement, .. } => {
                if Lifetime::of(placement) == Lifetime::Superblock {
                    for (lba, block) in (lba.0..).zip(buffer.chunks_exact(LBA_SIZE)) {
                        self.kept.insert(lba, block.into());
                    }
                }
                let range = bytes(lba, buffer.len());
                self.push(&TraceEvent::Write { stream: placement.0 as u8, range });
                Some(buffer)
            }
            Op::Flush => {
                self.push(&TraceEvent::Flush);
                None
            }
            Op::Deallocate { range } => {
                let size = (range.end.0 - range.start.0) as usize * LBA_SIZE;
                self.push(&TraceEvent::Deallocate { range: bytes(range.start, size) });
                None
            }
        };
        (
            buffer,
            self.failed.as_ref().map_or(Ok(()), |error| {
                Err(DeviceError::Io { errno: error.raw_os_error().unwrap_or_default() })
            }),
        )
    }
}

impl WholeDevice for Hollow {
    fn lba_count(&self) -> u64 {
        self.lba_count
    }

    fn contents(&self) -> Result<Contents, OpenError> {
        Ok(Contents::Nothing)
    }

    fn open_path(&mut self) -> Result<Box<dyn Device + Send>, OpenError> {
        let (record, lba_count) = (self.record.clone(), self.lba_count);
        Ok(Box::new(HollowPath { record, lba_count, done: Vec::new() }))
    }

    fn map(&mut self, _: u64, size: usize) -> Result<MappedFile, OpenError> {
        MappedFile::anonymous(size)
    }

    fn placements(&self) -> &[PlacementId] {
        &self.placements
    }

    fn is_best(&self) -> bool {
        true
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn describe(&self) -> String {
        "a device that keeps nothing".into()
    }

    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A path on which every operation completes when it is submitted.
struct HollowPath {
    record: Record,
    lba_count: u64,
    done: Vec<Completion>,
}

impl Device for HollowPath {
    fn geometry(&self) -> Geometry {
        Geometry {
            lba_count: self.lba_count,
            transfer_lbas_max: TRANSFER_LBAS_MAX,
            in_flight_max: IN_FLIGHT_MAX,
            write_cache: WriteCache::Stable,
        }
    }

    fn submit(&mut self, token: Token, op: Op) -> Result<(), Op> {
        if self.done.len() >= IN_FLIGHT_MAX as usize {
            return Err(op);
        }
        let (buffer, result) = self.record.lock().run(op);
        self.done.push(Completion { token, buffer, result });
        Ok(())
    }

    fn kick(&mut self) {}

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.done);
    }

    fn wait(&mut self, _: Option<Duration>, completions: &mut Vec<Completion>) {
        self.poll(completions);
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn grow(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        if lba_count <= self.lba_count { Ok(()) } else { Err(DeviceError::NoSpace) }
    }
}
