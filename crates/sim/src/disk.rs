//! The medium: its stable contents, cached writes, and operations in flight.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use slimio_device::{DeviceError, Geometry, LBA_SIZE, MappedFile, WriteCache};

use crate::crash::{Block, Blocks, Crash, FRESH, Image, Pending, Shrunk};
use crate::{Faults, Random, SimDevice};

/// Which operation in flight completes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The oldest operation. A poll completes all operations.
    Fifo,
    /// The newest operation. A poll completes all operations.
    Lifo,
    /// A random operation. A poll completes some operations.
    Random,
}

/// How a disk behaves.
#[derive(Clone, Copy, Debug)]
pub struct SimConfig {
    /// The seed of all random decisions.
    pub seed: u64,
    /// Completion order.
    pub order: Order,
    /// Whether completed writes are stable.
    pub write_cache: WriteCache,
    /// The most operations that each path may have in flight.
    pub in_flight_max: u32,
    /// The longest transfer, in blocks.
    pub transfer_lbas_max: u32,
    /// The most blocks that all spaces (files, or one device) may have together.
    pub lbas_max: u64,
    /// Whether the spaces are files. If so, a flush of a space covers only the writes to that
    /// space, and deallocated blocks are holes. A hole takes space again once it is written or
    /// filled.
    pub has_files: bool,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            order: Order::Fifo,
            write_cache: WriteCache::Volatile,
            in_flight_max: 16,
            transfer_lbas_max: 256,
            lbas_max: 1 << 20,
            has_files: false,
        }
    }
}

/// A simulated medium. Clones refer to the same medium.
#[derive(Clone, Debug)]
pub struct SimDisk(Arc<Mutex<Medium>>);

#[derive(Debug)]
pub(crate) struct Medium {
    pub(crate) config: SimConfig,
    pub(crate) random: Random,
    pub(crate) faults: Faults,
    space_lbas: Vec<u64>,
    /// Blocks that take no space.
    holes: BTreeSet<(usize, u64)>,
    /// Shortenings of spaces that no flush has made stable yet.
    shrunk: Vec<Shrunk>,
    /// Writes of a dead process that are still in flight.
    late: Vec<Pending>,
    /// The contents that a read returns if no fault changes them.
    current: Blocks,
    stable: Blocks,
    cached: Vec<Pending>,
    flying: Vec<Pending>,
    /// Blocks that are being deallocated.
    deallocating: Vec<(u64, usize, u64, u64)>,
    next_id: u64,
    ops: u64,
    crash_after: Option<u64>,
    crash: Option<Crash>,
    mapped: Option<MappedFile>,
    pages: Vec<Vec<Block>>,
}

impl SimDisk {
    /// A disk with no spaces.
    pub fn new(config: SimConfig) -> Self {
        Self(Arc::new(Mutex::new(Medium {
            config,
            random: Random::new(config.seed),
            faults: Faults::default(),
            space_lbas: Vec::new(),
            holes: BTreeSet::new(),
            shrunk: Vec::new(),
            late: Vec::new(),
            current: Blocks::new(),
            stable: Blocks::new(),
            cached: Vec::new(),
            flying: Vec::new(),
            deallocating: Vec::new(),
            next_id: 0,
            ops: 0,
            crash_after: None,
            crash: None,
            mapped: None,
            pages: Vec::new(),
        })))
    }

    /// The disk that the next process finds. If memory is mapped, the caller has to set it again
    /// with [`set_mapped`](Self::set_mapped).
    pub fn from_image(config: SimConfig, image: &Image) -> Self {
        let disk = Self::new(config);
        let mut medium = disk.lock();
        medium.space_lbas.clone_from(&image.space_lbas);
        medium.holes.clone_from(&image.holes);
        medium.holes.retain(|&(space, lba)| lba < image.space_lbas[space]);
        medium.stable.clone_from(&image.stable);
        medium.current.clone_from(&image.stable);
        for write in &image.cached {
            write.apply(&mut medium.current);
        }
        let lengths = &image.space_lbas;
        medium.current.retain(|&(space, lba), _| lba < lengths[space]);
        medium.shrunk.clone_from(&image.shrunk);
        medium.late.clone_from(&image.late);
        let ids = image.cached.iter().chain(&image.late).map(|write| write.id);
        let ids = ids.chain(image.shrunk.iter().map(|shrunk| shrunk.id));
        medium.next_id = ids.max().map_or(0, |newest| newest + 1);
        medium.cached.clone_from(&image.cached);
        // The memory survived the process, so it exists even if it is not mapped again.
        medium.note_pages(&image.mapped);
        drop(medium);
        disk
    }

    /// Takes the claim, as the server of a volume does. The claim is a lock that the kernel holds
    /// for a process until the last operation of the process is over. So once the claim is taken,
    /// no operation of an earlier process is in flight. A write of an earlier process that has not
    /// landed by then never lands.
    pub fn claim(&self) {
        self.lock().late.clear();
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Medium> {
        self.0.lock().expect("no test goes on after a panic")
    }

    /// Adds a space of `lbas` blocks and returns its index.
    pub fn add_space(&self, lbas: u64) -> usize {
        let mut medium = self.lock();
        medium.space_lbas.push(lbas);
        medium.space_lbas.len() - 1
    }

    /// Number of spaces.
    pub fn space_count(&self) -> usize {
        self.lock().space_lbas.len()
    }

    /// A path to a space.
    pub fn open_path(&self, space: usize) -> SimDevice {
        assert!(space < self.space_count(), "there is no such space");
        SimDevice::new(self.clone(), space)
    }

    /// Sets the mapped memory, which survives the process. Every crash from now on includes the
    /// memory's contents.
    pub fn set_mapped(&self, mapped: MappedFile) {
        let mut medium = self.lock();
        medium.pages.clear();
        medium.mapped = Some(mapped);
        medium.sample_mapped();
    }

    /// The present contents of mapped memory. Empty if no memory is mapped.
    pub fn mapped_now(&self) -> Vec<u8> {
        let medium = self.lock();
        let mapped = medium.mapped.as_ref();
        mapped.map_or_else(Vec::new, |mapped| mapped.read_all().expect("mapped memory can be read"))
    }

    /// Changes the faults of the disk.
    pub fn faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.lock().faults);
    }

    /// Crashes after the next `ops` operations, so that the operation after them fails.
    /// Submissions, completions and changes of a space's length count as operations.
    pub fn crash_after(&self, ops: u64) {
        let mut medium = self.lock();
        medium.crash_after = Some(medium.ops + ops);
    }

    /// The crash, if it has happened. All operations after a crash fail.
    pub fn crashed(&self) -> Option<Crash> {
        self.lock().crash.clone()
    }

    /// Whether the crash has happened.
    pub fn has_crashed(&self) -> bool {
        self.lock().crash.is_some()
    }

    /// Crashes now.
    pub fn crash_now(&self) -> Crash {
        let mut medium = self.lock();
        medium.freeze();
        medium.crash.clone().expect("the disk has just crashed")
    }

    /// Number of operations so far.
    pub fn ops(&self) -> u64 {
        self.lock().ops
    }

    /// The contents that a read of a block would return without faults.
    pub fn peek(&self, space: usize, lba: u64) -> Vec<u8> {
        self.lock().block(space, lba).to_vec()
    }

    /// Overwrites a block directly, not through a path. The new contents are stable.
    ///
    /// # Panics
    /// If `bytes` is not exactly one block.
    pub fn poke(&self, space: usize, lba: u64, bytes: &[u8]) {
        let block: Block = Arc::new(bytes.try_into().expect("`poke` takes exactly one block"));
        let mut medium = self.lock();
        medium.current.insert((space, lba), block.clone());
        medium.stable.insert((space, lba), block);
    }

    /// Shortens a space directly, not through a path.
    pub fn truncate(&self, space: usize, lbas: u64) {
        self.lock().space_lbas[space] = lbas;
    }
}

impl Medium {
    /// Counts an operation. Returns true if the disk has crashed, so that the operation must fail.
    pub(crate) fn step(&mut self) -> bool {
        if self.crash.is_none() && self.crash_after.is_some() {
            self.sample_mapped();
        }
        if self.crash_after == Some(self.ops) && self.crash.is_none() {
            self.freeze();
        }
        self.ops += 1;
        if !self.late.is_empty()
            && self.random.below(LATE_ONE_IN[(self.late[0].id % 3) as usize]) == 0
        {
            let next = self.random.below(self.late.len() as u64) as usize;
            let write = self.late.swap_remove(next);
            write.apply(&mut self.current);
            self.cached.push(write);
        }
        self.crash.is_some()
    }

    fn freeze(&mut self) {
        self.sample_mapped();
        let mut flying = self.flying.clone();
        flying.extend(self.late.iter().cloned());
        flying.extend(self.deallocating.iter().map(|&(id, space, start, end)| {
            // As with a write in flight, it is unknown whether the deallocation took effect.
            Pending::deallocated(id, space, start, end)
        }));
        self.crash = Some(Crash {
            space_lbas: self.space_lbas.clone(),
            holes: self.holes.clone(),
            shrunk: self.shrunk.clone(),
            growing: None,
            stable: self.stable.clone(),
            cached: self.cached.clone(),
            flying,
            pages: self.pages.clone(),
            seed: self.config.seed ^ self.ops,
        });
    }

    fn sample_mapped(&mut self) {
        let Some(mapped) = &self.mapped else { return };
        let bytes = mapped.read_all().expect("mapped memory can be read");
        self.note_pages(&bytes);
    }

    fn note_pages(&mut self, bytes: &[u8]) {
        self.pages.resize(bytes.len() / LBA_SIZE, Vec::new());
        for (versions, page) in self.pages.iter_mut().zip(bytes.chunks_exact(LBA_SIZE)) {
            if versions.last().is_none_or(|last| last[..] != *page) {
                versions.push(Arc::new(page.try_into().expect("a page is a block")));
            }
        }
    }

    pub(crate) fn geometry(&self, space: usize) -> Geometry {
        Geometry {
            lba_count: self.space_lbas[space],
            transfer_lbas_max: self.config.transfer_lbas_max,
            in_flight_max: self.config.in_flight_max,
            write_cache: self.config.write_cache,
        }
    }

    pub(crate) fn grow(&mut self, space: usize, lbas: u64) -> Result<(), DeviceError> {
        let was_alive = self.crash.is_none();
        let before = self.space_lbas[space];
        let is_full = self.lacks(lbas.saturating_sub(before));
        if self.step() || self.faults.gone {
            // After the crash, the space has its old length, the requested length, or one in
            // between.
            if let Some(crash) = self.crash.as_mut().filter(|_| was_alive && !is_full) {
                crash.growing = (lbas > before).then_some((space, lbas));
            }
            return Err(GONE);
        }
        if is_full {
            return Err(DeviceError::NoSpace);
        }
        if lbas > before {
            self.settle_length(space, before);
            self.space_lbas[space] = lbas;
        }
        Ok(())
    }

    /// How much all spaces together can still grow, in bytes.
    pub(crate) fn free_space(&self) -> u64 {
        let used = self.space_lbas.iter().sum::<u64>() - self.holes.len() as u64;
        let free = if self.faults.full { 0 } else { self.config.lbas_max.saturating_sub(used) };
        free.saturating_mul(LBA_SIZE as u64)
    }

    /// Whether there is no space for `lbas` more blocks.
    fn lacks(&self, lbas: u64) -> bool {
        lbas > self.free_space() / LBA_SIZE as u64
    }

    /// Allocates space for the holes in a range.
    pub(crate) fn fill_holes(&mut self, space: usize, lbas: Range<u64>) -> Result<(), DeviceError> {
        let holes = self.holes.range((space, lbas.start)..(space, lbas.end));
        let holes: Vec<(usize, u64)> = holes.copied().collect();
        if self.lacks(holes.len() as u64) {
            return Err(DeviceError::NoSpace);
        }
        for hole in holes {
            self.holes.remove(&hole);
        }
        Ok(())
    }

    pub(crate) fn shrink(&mut self, space: usize, lbas: u64) -> Result<(), DeviceError> {
        if self.step() || self.faults.gone {
            return Err(GONE);
        }
        let before = self.space_lbas[space];
        if lbas < before {
            self.space_lbas[space] = lbas;
            let id = self.take_id();
            self.shrunk.push(Shrunk { id, space, before, now: lbas });
            self.current.retain(|&(other, lba), _| other != space || lba < lbas);
            self.holes.retain(|&(other, lba)| other != space || lba < lbas);
        }
        Ok(())
    }

    /// Makes the shortening of a space to `lbas` blocks stable: a power cut can't undo it any more.
    fn settle_length(&mut self, space: usize, lbas: u64) {
        self.shrunk.retain(|shrunk| shrunk.space != space);
        self.stable.retain(|&(other, lba), _| other != space || lba < lbas);
        self.cached.retain(|write| write.space != space || write.lba < lbas);
    }

    fn block(&self, space: usize, lba: u64) -> [u8; LBA_SIZE] {
        self.current.get(&(space, lba)).map_or([FRESH; LBA_SIZE], |block| **block)
    }

    /// Begins a write, and returns its id.
    ///
    /// # Panics
    /// If the write overlaps another write or a deallocation in flight.
    pub(crate) fn begin_write(&mut self, space: usize, lba: u64, bytes: &[u8]) -> u64 {
        let lbas = (bytes.len() / LBA_SIZE) as u64;
        self.assert_alone(space, lba, lba + lbas);
        let id = self.take_id();
        let data = bytes
            .chunks_exact(LBA_SIZE)
            .map(|block| Arc::new(block.try_into().expect("a chunk is a block")))
            .collect();
        self.flying.push(Pending { id, space, lba, data, is_reaped: false });
        id
    }

    pub(crate) fn begin_deallocate(&mut self, space: usize, start: u64, end: u64) -> u64 {
        self.assert_alone(space, start, end);
        let id = self.take_id();
        self.deallocating.push((id, space, start, end));
        id
    }

    fn assert_alone(&self, space: usize, start: u64, end: u64) {
        let writes = self
            .flying
            .iter()
            .map(|write| (write.space, write.lba, write.lba + write.data.len() as u64));
        let others = self.deallocating.iter().map(|&(_, space, start, end)| (space, start, end));
        for (other_space, other_start, other_end) in writes.chain(others) {
            assert!(
                space != other_space || end <= other_start || other_end <= start,
                "{start}..{end} of space {space} overlaps {other_start}..{other_end}, which is \
                 in flight"
            );
        }
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// The ids of the writes and shortenings that a flush of this space must cover if it is
    /// submitted now.
    pub(crate) fn flush_covers(&self, space: usize) -> Vec<u64> {
        let is_covered = |other: usize| other == space || !self.config.has_files;
        let writes = self.cached.iter().filter(|write| write.is_reaped && is_covered(write.space));
        let shrunk = self.shrunk.iter().filter(|shrunk| is_covered(shrunk.space));
        writes.map(|write| write.id).chain(shrunk.map(|shrunk| shrunk.id)).collect()
    }

    pub(crate) fn end_write(&mut self, id: u64, durable: bool) -> Result<(), DeviceError> {
        let index =
            self.flying.iter().position(|write| write.id == id).expect("the write is in flight");
        let mut write = self.flying.remove(index);
        let (space, start) = (write.space, write.lba);
        if self.faults.gone {
            return Err(GONE);
        }
        let lbas = start..start + write.data.len() as u64;
        if crate::fault::count_down(&mut self.faults.writes_until_failure)
            || lbas.clone().any(|lba| self.faults.unwritable.contains(&(space, lba)))
        {
            return Err(IO);
        }
        self.fill_holes(space, lbas)?;
        if self.faults.lost.contains(&(space, start)) {
            return Ok(());
        }
        if let Some(&elsewhere) = self.faults.misdirected.get(&(space, start)) {
            write.lba = elsewhere;
        }
        write.apply(&mut self.current);
        if durable || self.config.write_cache == WriteCache::Stable {
            write.apply(&mut self.stable);
            self.supersede(&write);
        } else {
            self.cached.push(write);
        }
        Ok(())
    }

    /// Called when a newer write has become stable. Removes the blocks of the newer write from
    /// older writes in the cache, so that the older writes can't undo the newer write.
    fn supersede(&mut self, newer: &Pending) {
        let range = newer.lba..newer.lba + newer.data.len() as u64;
        let mut kept = Vec::new();
        for write in self.cached.drain(..) {
            let end = write.lba + write.data.len() as u64;
            if write.space != newer.space || end <= range.start || range.end <= write.lba {
                kept.push(write);
                continue;
            }
            for (lba, block) in (write.lba..).zip(&write.data) {
                if !range.contains(&lba) {
                    kept.push(Pending { lba, data: vec![block.clone()], ..write.clone() });
                }
            }
        }
        self.cached = kept;
    }

    pub(crate) fn mark_reaped(&mut self, id: u64) {
        for write in self.cached.iter_mut().filter(|write| write.id == id) {
            write.is_reaped = true;
        }
    }

    pub(crate) fn end_flush(&mut self, covers: &[u64]) -> Result<(), DeviceError> {
        let has_failed =
            self.faults.gone || crate::fault::count_down(&mut self.faults.flushes_until_failure);
        let mut cached = std::mem::take(&mut self.cached);
        cached.retain(|write| {
            let is_covered = covers.contains(&write.id);
            if is_covered && !has_failed {
                write.apply(&mut self.stable);
            }
            !is_covered
        });
        self.cached = cached;
        if !has_failed {
            let newest = |shrunk: &&Shrunk| covers.contains(&shrunk.id);
            let settled: Vec<_> = self.shrunk.iter().filter(newest).copied().collect();
            for Shrunk { space, now, .. } in settled {
                if self.space_lbas[space] == now {
                    self.settle_length(space, now);
                }
            }
        }
        if has_failed { Err(if self.faults.gone { GONE } else { IO }) } else { Ok(()) }
    }

    pub(crate) fn end_deallocate(&mut self, id: u64) -> Result<(), DeviceError> {
        let index = self
            .deallocating
            .iter()
            .position(|&(other, ..)| other == id)
            .expect("the deallocation is in flight");
        let (_, space, start, end) = self.deallocating.remove(index);
        if self.faults.gone {
            return Err(GONE);
        }
        let has_failed = crate::fault::count_down(&mut self.faults.deallocations_until_failure);
        let done = if has_failed { (end - start) / 2 } else { end - start };
        let write = Pending::deallocated(id, space, start, start + done);
        write.apply(&mut self.current);
        write.apply(&mut self.stable);
        self.supersede(&write);
        if self.config.has_files {
            self.holes.extend((start..start + done).map(|lba| (space, lba)));
        }
        if has_failed { Err(IO) } else { Ok(()) }
    }

    pub(crate) fn read(&self, space: usize, lba: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        if self.faults.gone {
            return Err(GONE);
        }
        for (lba, target) in (lba..).zip(bytes.chunks_exact_mut(LBA_SIZE)) {
            if self.faults.unreadable.contains(&(space, lba)) {
                return Err(IO);
            }
            target.copy_from_slice(&self.block(space, lba));
            if let Some(&(offset, mask)) = self.faults.rotten.get(&(space, lba)) {
                target[offset] ^= mask;
            }
        }
        Ok(())
    }
}

/// Until the disk is claimed, each operation may let a late write of a dead process land. The
/// chance is one in N. The id of the first write in `late` selects N from these numbers. So some
/// writes land early, some later, and some long after the recovery.
const LATE_ONE_IN: [u64; 3] = [5, 20, 80];

/// The error "No such device" (ENODEV).
pub(crate) const GONE: DeviceError = DeviceError::Io { errno: 19 };

/// The error "Input/output error" (EIO).
const IO: DeviceError = DeviceError::Io { errno: 5 };
