//! The pool: which extents (equal parts of a device) are free, and how many extents each area may
//! take.
//!
//! The pool is shared by all paths of a volume (ways to the device, each with a queue of its own),
//! and by the keeper. The keeper writes the superblock, whose map says which extent belongs to
//! which area. The pool's lock is held only for steps in memory. A path takes the lock only if some
//! area's extents have changed, not for each operation.

mod check;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slimio_device::{Device, DeviceError, Lba};
use slimio_planted::is_planted;

use super::path::AreaPath;
use super::{AREA_COUNT, AREAS, ExtentMap, index_of};
use crate::layout::{EXTENTS_MAX, SUPERBLOCK_AREA_LBAS_MIN};
use crate::{Area, Error, SlotName, SnapshotKind, Snapshots};

/// Blocks of the superblock's area. One half is at the start of the device, the other at its end.
pub(super) const SUPER_LBAS: u64 = SUPERBLOCK_AREA_LBAS_MIN;

/// The smallest number of extents: one for each area, and a second one for the log, so that the log
/// can go on when its first extent is full.
const EXTENTS_MIN: u64 = AREA_COUNT as u64 + 1;

/// The log leaves room for an on-demand snapshot only if at least 1/16 of all extents remains for
/// the log. A shorter log would need a new WAL-snapshot all the time.
const LOG_SHARE_MIN: u64 = 16;

/// The extents of a device. Clones share one pool.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// Counts changes of the areas' extents.
    generation: AtomicU64,
}

/// The extents of an area, as a path uses them.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
    pub(super) generation: u64,
    pub(super) first_lba: u64,
    pub(super) extent_lbas: u64,
    pub(super) extents: Vec<Option<u32>>,
}

/// How the extents are used at present, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUse {
    /// Blocks of all extents.
    pub total: u64,
    /// Blocks of an extent.
    pub extent: u64,
    /// Blocks of the log's extents.
    pub wal: u64,
    /// Blocks of each snapshot slot's extents.
    pub slots: [u64; SlotName::ALL.len()],
    /// Blocks of the free extents.
    pub free: u64,
    /// Blocks that the log leaves free for the next snapshot.
    pub kept: u64,
}

#[derive(Debug)]
struct State {
    device_lbas: u64,
    first_lba: u64,
    extent_lbas: u64,
    areas: [Vec<Option<u32>>; AREA_COUNT],
    /// For each extent, whether it is free.
    free: Vec<bool>,
    /// The largest number of blocks that the log's area may have.
    wal_lbas_max: u64,
    /// Blocks that the next snapshot takes if, until then, the log's present room is used up. If
    /// this is `None`, no room is kept for a snapshot.
    need_lbas: Option<u64>,
    snapshots: Snapshots,
    /// The snapshot that is being written.
    running: Option<(SlotName, SnapshotKind)>,
}

impl Pool {
    /// Makes a pool of free extents on a device of `device_lbas` blocks. The first extent starts at
    /// `first_lba`. Each extent has at least `extent_lbas_min` blocks, and there are at most as
    /// many extents as the superblock has room for. The log's area may have at most `wal_lbas_max`
    /// blocks.
    ///
    /// # Errors
    /// If the device is too small. The error is a sentence that says which size is needed.
    pub fn new(
        device_lbas: u64,
        first_lba: u64,
        extent_lbas_min: u64,
        wal_lbas_max: u64,
    ) -> Result<Self, String> {
        assert!(first_lba >= SUPER_LBAS / 2, "the extents overlap the superblock's first half");
        let lbas_min = first_lba + EXTENTS_MIN * extent_lbas_min + SUPER_LBAS / 2;
        if device_lbas < lbas_min {
            return Err(format!(
                "the device has {device_lbas} blocks, but a volume needs {lbas_min}"
            ));
        }
        let lbas = device_lbas - SUPER_LBAS / 2 - first_lba;
        let mut extent_lbas = extent_lbas_min;
        while lbas / extent_lbas > EXTENTS_MAX as u64 {
            extent_lbas *= 2;
        }
        let state = State {
            device_lbas,
            first_lba,
            extent_lbas,
            areas: Default::default(),
            free: vec![true; (lbas / extent_lbas) as usize],
            wal_lbas_max,
            need_lbas: None,
            snapshots: Snapshots::default(),
            running: None,
        };
        Ok(Self(Arc::new(Inner { state: Mutex::new(state), generation: AtomicU64::new(0) })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned lock may be used, because each change is complete before anything can fail.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.0.generation.fetch_add(1, Ordering::Release);
    }

    /// A path to an area, through `below`, a path to the whole device.
    pub fn path(&self, area: Area, below: Box<dyn Device + Send>) -> Box<dyn Device + Send> {
        Box::new(AreaPath::new(Some(area), self.clone(), below))
    }

    /// A path through which all free extents are contiguous, over `below`, a path to the whole
    /// device.
    pub fn free_path(&self, below: Box<dyn Device + Send>) -> Box<dyn Device + Send> {
        Box::new(AreaPath::new(None, self.clone(), below))
    }

    /// Frees all extents, and gives up their contents.
    pub fn clear(&self) {
        let mut state = self.state();
        state.areas = Default::default();
        state.free.fill(true);
        state.snapshots = Snapshots::default();
        drop(state);
        self.changed();
    }

    /// Takes over the map and the snapshots of a superblock.
    pub(crate) fn load(&self, map: &ExtentMap, snapshots: &Snapshots) -> Result<(), Error> {
        let mut state = self.state();
        if map.device_lbas != state.device_lbas {
            let (found_lbas, made_lbas) = (state.device_lbas, map.device_lbas);
            return Err(Error::OtherSize { found_lbas, made_lbas });
        }
        state.first_lba = map.first_lba;
        state.extent_lbas = map.extent_lbas;
        state.areas = AREAS.map(|area| map.pieces(area));
        state.free = map.owners.iter().map(Option::is_none).collect();
        state.snapshots = *snapshots;
        drop(state);
        self.changed();
        Ok(())
    }

    /// The map as it is now, for the next superblock.
    pub(crate) fn map(&self) -> ExtentMap {
        let state = self.state();
        let mut owners = vec![None; state.free.len()];
        for (area, pieces) in AREAS.into_iter().zip(&state.areas) {
            for (piece, extent) in (0..).zip(pieces) {
                let Some(extent) = extent else { continue };
                let owner: &mut Option<(Area, u32)> = &mut owners[*extent as usize];
                assert!(
                    owner.is_none() && !state.free[*extent as usize],
                    "an extent must have one owner"
                );
                *owner = Some((area, piece));
            }
        }
        ExtentMap {
            device_lbas: state.device_lbas,
            first_lba: state.first_lba,
            extent_lbas: state.extent_lbas,
            owners,
        }
    }

    /// Takes over the snapshots of the superblock in force. A slot that holds no snapshot is a
    /// reserve.
    pub(crate) fn set_snapshots(&self, snapshots: &Snapshots) {
        self.state().snapshots = *snapshots;
    }

    /// Sets which snapshot is being written; `None` if none is being written.
    pub(crate) fn set_running(&self, running: Option<(SlotName, SnapshotKind)>) {
        self.state().running = running;
    }

    /// Sets how many blocks the next snapshot will take. The number includes the present data set
    /// and all data that may still be appended in the extents that the log has. The log and
    /// on-demand snapshots leave room for this snapshot. Until the next call, each extent that the
    /// log takes is added to the blocks of this snapshot.
    pub(crate) fn set_need(&self, lbas: u64) {
        self.state().need_lbas = Some(lbas);
    }

    /// The largest number of blocks that the log should have, so that the present snapshots and the
    /// next one have room beside the log. If an on-demand snapshot would fit as well, the log
    /// leaves room for it too.
    pub fn wal_lbas_max(&self) -> u64 {
        let state = self.state();
        let held = SlotName::ALL.into_iter().filter(|slot| state.snapshots.get(*slot).is_some());
        let held: u64 = held.map(|slot| state.slot_lbas(slot)).sum();
        let all = state.free.len() as u64 * state.extent_lbas;
        let need = state.need();
        let beside_next = all.saturating_sub(held + need);
        // A new on-demand snapshot replaces the present one. The extents of the replaced snapshot
        // are then free for the next snapshot.
        let on_demand = state.snapshots.of_kind(SnapshotKind::OnDemand);
        let replaced = on_demand.map_or(0, |held| state.slot_lbas(held.slot));
        let beside_both = beside_next.saturating_sub(need.saturating_sub(replaced));
        let room = if beside_both >= all / LOG_SHARE_MIN { beside_both } else { beside_next };
        room.min(state.wal_lbas_max)
    }

    /// How the extents are used.
    pub fn usage(&self) -> PoolUse {
        let state = self.state();
        PoolUse {
            total: state.free.len() as u64 * state.extent_lbas,
            extent: state.extent_lbas,
            wal: state.lbas_of(0),
            slots: SlotName::ALL.map(|slot| state.slot_lbas(slot)),
            free: state.free_count() * state.extent_lbas,
            kept: state.need(),
        }
    }

    /// Where on the device a block of an area is; `None` if the block is in no extent.
    pub fn locate(&self, area: Area, lba: Lba) -> Option<Lba> {
        self.pieces(Some(area)).locate(lba.0).map(Lba)
    }

    /// Whether a path has to fetch its area's extents again.
    pub(super) fn is_stale(&self, pieces: &Pieces) -> bool {
        self.0.generation.load(Ordering::Acquire) != pieces.generation
    }

    /// The extents of an area. If `area` is `None`, the free extents.
    pub(super) fn pieces(&self, area: Option<Area>) -> Pieces {
        // The generation is read before the lock is taken, so that if the extents change in
        // between, the path only fetches them again.
        let generation = self.0.generation.load(Ordering::Acquire);
        let state = self.state();
        let (first_lba, extent_lbas) = (state.first_lba, state.extent_lbas);
        let extents = match area.map(index_of) {
            Some(Some(index)) => state.areas[index].clone(),
            Some(None) => Vec::new(),
            None => {
                let all = (0..).zip(&state.free);
                all.filter_map(|(extent, free)| free.then_some(Some(extent))).collect()
            }
        };
        Pieces { generation, first_lba, extent_lbas, extents }
    }

    pub(super) fn device_lbas(&self) -> u64 {
        self.state().device_lbas
    }

    /// Gives an area all extents that it lacks from block `start` to `end`, or none of them.
    ///
    /// The extents belong to the area from the next superblock on. Until then, recovery must ignore
    /// their contents.
    pub(super) fn take(&self, area: Area, start: u64, end: u64) -> Result<(), DeviceError> {
        let Some(index) = index_of(area) else { return Err(DeviceError::NoSpace) };
        let mut state = self.state();
        let Some(pieces) = state.pieces_of(start, end) else { return Err(DeviceError::NoSpace) };
        let has = |piece: usize| state.areas[index].get(piece).is_some_and(Option::is_some);
        let lacking: Vec<usize> = pieces.filter(|&piece| !has(piece)).collect();
        // An on-demand snapshot has to leave room even if its slot already has all the extents that
        // it needs.
        if lacking.is_empty() && !state.is_on_demand(area) {
            return Ok(());
        }
        if area == Area::Wal && end > state.wal_lbas_max {
            return Err(DeviceError::NoSpace);
        }
        let lacking_lbas = lacking.len() as u64 * state.extent_lbas;
        let is_log = area == Area::Wal && !is_planted("log-forgets-growth");
        let need = state.need_lbas.map(|need| need + if is_log { lacking_lbas } else { 0 });
        let left = (state.free_count() * state.extent_lbas).checked_sub(lacking_lbas);
        if left.is_none_or(|left| !state.leaves_enough(area, left, need.unwrap_or(0))) {
            return Err(DeviceError::NoSpace);
        }
        state.need_lbas = need;
        for piece in lacking {
            let extent = state.choose(index, piece);
            state.free[extent as usize] = false;
            let pieces = &mut state.areas[index];
            pieces.resize(pieces.len().max(piece + 1), None);
            pieces[piece] = Some(extent);
        }
        drop(state);
        self.changed();
        Ok(())
    }

    /// Whether an area has all extents from block `start` to `end`.
    pub(crate) fn has(&self, area: Area, start: u64, end: u64) -> bool {
        let Some(index) = index_of(area) else { return false };
        let state = self.state();
        let has = |piece: usize| state.areas[index].get(piece).is_some_and(Option::is_some);
        state.pieces_of(start, end).is_some_and(|mut pieces| pieces.all(has))
    }

    /// The extents of an area that lie entirely between blocks `start` and `end`, each with its
    /// place in the area.
    pub(super) fn within(&self, area: Area, start: u64, end: u64) -> Vec<(u32, u32)> {
        let Some(index) = index_of(area) else { return Vec::new() };
        let state = self.state();
        let first = start.div_ceil(state.extent_lbas);
        (0..)
            .zip(&state.areas[index])
            .filter(|&(piece, _)| {
                let piece = u64::from(piece);
                piece >= first && (piece + 1).saturating_mul(state.extent_lbas) <= end
            })
            .filter_map(|(piece, extent)| extent.map(|extent| (piece, extent)))
            .collect()
    }

    /// Frees pieces of an area. Recovery must no longer need their contents, and their deallocation
    /// must be complete.
    pub(super) fn free(&self, area: Area, pieces: impl IntoIterator<Item = u32>) {
        let Some(index) = index_of(area) else { return };
        let mut state = self.state();
        for piece in pieces {
            let extent = state.areas[index].get_mut(piece as usize).and_then(Option::take);
            if let Some(extent) = extent {
                assert!(!state.free[extent as usize], "the extent was free already");
                state.free[extent as usize] = true;
            }
        }
        while state.areas[index].last().is_some_and(Option::is_none) {
            state.areas[index].pop();
        }
        drop(state);
        self.changed();
    }
}

impl State {
    fn free_count(&self) -> u64 {
        self.free.iter().filter(|free| **free).count() as u64
    }

    fn round_up(&self, lbas: u64) -> u64 {
        lbas.div_ceil(self.extent_lbas).saturating_mul(self.extent_lbas)
    }

    /// Blocks of the extents that the next snapshot needs.
    fn need(&self) -> u64 {
        self.round_up(self.need_lbas.unwrap_or(0))
    }

    /// Blocks of the extents that an area has.
    fn lbas_of(&self, index: usize) -> u64 {
        self.areas[index].iter().flatten().count() as u64 * self.extent_lbas
    }

    fn slot_lbas(&self, slot: SlotName) -> u64 {
        self.lbas_of(1 + slot.index())
    }

    /// The pieces that hold the blocks from `start` to `end`; `None` if an area can't have that
    /// many pieces.
    fn pieces_of(&self, start: u64, end: u64) -> Option<std::ops::Range<usize>> {
        let last = end.div_ceil(self.extent_lbas);
        // The superblock's map can't describe more than `EXTENTS_MAX` pieces.
        (last <= EXTENTS_MAX as u64).then(|| (start / self.extent_lbas) as usize..last as usize)
    }

    /// Whether an area may take extents until only `left` blocks stay free, if the next snapshot
    /// needs `need` blocks.
    ///
    /// A WAL-snapshot may take everything, because it makes room. The log and an on-demand snapshot
    /// must leave enough for the next snapshot, which is written to a reserve and may use the
    /// reserve's extents.
    fn leaves_enough(&self, area: Area, left: u64, need: u64) -> bool {
        let next = match area {
            Area::Superblock => return false,
            Area::Wal => self.reserve_lbas(&self.snapshots),
            Area::Snapshot(slot) if self.is_on_demand(area) => {
                // The snapshot in `slot` will replace the present on-demand snapshot. The next
                // snapshot can then use the slot of the replaced snapshot.
                self.reserve_lbas(&self.snapshots.with(slot, SnapshotKind::OnDemand))
            }
            Area::Snapshot(_) => return true,
        };
        left + next >= self.round_up(need)
    }

    /// Whether an on-demand snapshot is being written to an area.
    fn is_on_demand(&self, area: Area) -> bool {
        self.running.is_some_and(|(slot, kind)| {
            kind == SnapshotKind::OnDemand && area == Area::Snapshot(slot)
        })
    }

    /// Blocks of the largest reserve.
    fn reserve_lbas(&self, snapshots: &Snapshots) -> u64 {
        let reserves = SlotName::ALL.into_iter().filter(|slot| snapshots.get(*slot).is_none());
        reserves.map(|slot| self.slot_lbas(slot)).max().unwrap_or(0)
    }

    /// A free extent for a piece of an area. If possible, it is right after the extent of the
    /// previous piece, so that ranges stay long. If not, it is in the middle of the longest run of
    /// free extents, because the area before this run may grow into the run. If the run begins with
    /// the device's first extent, that extent is returned.
    fn choose(&self, index: usize, piece: usize) -> u32 {
        let before = piece.checked_sub(1).and_then(|before| self.areas[index].get(before));
        if let Some(Some(before)) = before
            && self.free.get(*before as usize + 1) == Some(&true)
        {
            return before + 1;
        }
        let mut best = (0, 0);
        let mut start = 0;
        for run in self.free.chunk_by(|a, b| a == b) {
            if run[0] && run.len() > best.0 {
                best = (run.len(), start);
            }
            start += run.len();
        }
        let (len, start) = best;
        assert!(len > 0, "there is no free extent");
        let is_behind_another = start > 0;
        (start + if is_behind_another { len / 2 } else { 0 }) as u32
    }
}

impl Pieces {
    /// Where a block of the area is on the device.
    pub(super) fn locate(&self, lba: u64) -> Option<u64> {
        let extent = self.extents.get((lba / self.extent_lbas) as usize).copied().flatten()?;
        Some(self.start_of(extent) + lba % self.extent_lbas)
    }

    /// First block of an extent.
    pub(super) fn start_of(&self, extent: u32) -> u64 {
        self.first_lba + u64::from(extent) * self.extent_lbas
    }

    /// Blocks of the area, holes included.
    pub(super) fn lba_count(&self) -> u64 {
        self.extents.len() as u64 * self.extent_lbas
    }
}
