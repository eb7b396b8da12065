//! The flash translation layer: the mapping of logical blocks to NAND pages, and the collector.
//!
//! A write goes to the next NAND page of its handle's frontier, which is a reclaim unit that is
//! being filled. The page that held the block before is no longer valid. If free units run short,
//! the collector chooses a filled unit, the victim. It copies the valid pages of the victim to one
//! of its own frontiers, or to the host's frontier if collector and host share one. Then it erases
//! the victim.
//!
//! Invariant: between calls, at least `foreground_units` units are free, so the collector can
//! always begin. A call that needs a free unit collects first if no more than `foreground_units`
//! units are free. [`Config::check`] makes sure that some filled unit then has a page that is not
//! valid. So each collection gains free pages, and the collector stops after a limited number of
//! collections.

mod check;
mod collector;
mod counters;
mod events;
mod old_state;
mod state;
mod units;
mod victims;

pub use counters::{Counters, HandleCounters};
pub use events::{EVENTS_MAX, EventKind, FdpEventRecord};
pub use units::{Owner, UnitReport, UnitState};

use std::fmt;
use std::num::NonZeroU32;

use slimio_device::PlacementId;

use crate::{Config, ConfigError};
use counters::Cause;
use events::Events;
use units::{Frontier, Units};
use victims::VictimIndex;

/// The number of a NAND page. The pages of all reclaim units are numbered consecutively.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NandPage(pub u32);

/// The number of a page or block plus one, or `None`. `None` is stored as zero, so the tables of an
/// empty drive are zeroed memory. Zeroed memory takes no room until something is written to it.
type Link = Option<NonZeroU32>;

/// The link to a page or a block. Adding one does not overflow, because a drive has fewer than
/// 2^32 - 1 pages, and fewer than 2^32 - 1 blocks.
fn link(number: u32) -> Link {
    NonZeroU32::new(number + 1)
}

fn number(link: Link) -> Option<u32> {
    link.map(|number| number.get() - 1)
}

/// Follows what happens to the NAND, as it happens. By default, each method does nothing.
pub trait Observer {
    /// `page` is programmed with the host's data for `lba`.
    fn program(&mut self, page: NandPage, lba: u64) {
        let _ = (page, lba);
    }

    /// `page` is no longer valid, because the host has written its block again.
    fn outdated(&mut self, page: NandPage) {
        let _ = page;
    }

    /// `page` is filled with padding, because the host moves the page's handle to another unit.
    fn pad(&mut self, page: NandPage) {
        let _ = page;
    }

    /// The collector begins to collect `unit`.
    fn victim(&mut self, unit: u32) {
        let _ = unit;
    }

    /// The collector reads `from` and programs `to` with the same data.
    fn copy(&mut self, from: NandPage, to: NandPage) {
        let _ = (from, to);
    }

    /// All erase blocks of `unit` are erased.
    fn erase(&mut self, unit: u32) {
        let _ = unit;
    }
}

impl Observer for () {}

/// A drive's mapping, reclaim units, collector and counters.
#[derive(Clone, Debug)]
pub struct Ftl {
    config: Config,
    unit_pages: u32,
    page_of: Vec<Link>,
    /// The logical block that each page was last programmed with. The page is valid while that
    /// block is mapped to it.
    lba_of: Vec<Link>,
    mapped_count: u64,
    units: Units,
    /// The filled units of each group.
    victims: Vec<VictimIndex>,
    /// For each group, first the frontiers of the handles, and then those of the collector. The
    /// collector has one frontier for each persistently isolated handle, and one for all other
    /// handles, if there are any.
    frontiers: Vec<Frontier>,
    /// Number of frontiers in each group.
    group_frontiers: usize,
    counters: Counters,
    events: Events,
    /// A unit with at least this many invalid pages is collected in the background.
    background_invalid_pages: u32,
}

/// Why a request can't be served. A request that is not served leaves the drive unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FtlError {
    /// The request reaches beyond the exported blocks.
    OutOfRange {
        /// First block of the request that is beyond the exported blocks.
        lba: u64,
        /// Number of exported blocks.
        lba_count: u64,
    },
    /// The drive has no such handle.
    UnknownHandle {
        /// The handle that was named.
        handle: u16,
        /// Number of handles that the drive has.
        handles: u16,
    },
    /// The drive could not store the request in its journal, so the request's effect would not
    /// outlive the process.
    NotStored,
}

impl fmt::Display for FtlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange { lba, lba_count } => {
                write!(f, "block {lba} is beyond the drive, which has {lba_count} blocks")
            }
            Self::UnknownHandle { handle, handles } => {
                write!(
                    f,
                    "there is no handle {handle}: the drive has {handles} handles, counted from 0"
                )
            }
            Self::NotStored => f.write_str("the drive's state can't be stored"),
        }
    }
}

impl std::error::Error for FtlError {}

impl Ftl {
    /// A drive that holds nothing.
    ///
    /// # Errors
    /// If a drive with this configuration can't work.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        let unit_pages = config.geometry.unit_pages();
        let mut units = Units::new(config.geometry.unit_count(), config.groups);
        let (in_group, groups) = (config.frontier_count() as usize, usize::from(config.groups));
        let mut frontiers = vec![Frontier::NONE; groups * in_group];
        // Each handle has an open unit in each group from the start, as on an FDP drive.
        for (group, frontiers) in (0..).zip(frontiers.chunks_exact_mut(in_group)) {
            for (handle, frontier) in (0..config.handles).zip(frontiers) {
                *frontier = units.open(group, Owner::Handle(handle), unit_pages);
            }
        }
        let victims = VictimIndex::new(config.victims, units.count(), unit_pages);
        Ok(Self {
            unit_pages,
            page_of: vec![None; config.lba_count as usize],
            lba_of: vec![None; config.geometry.page_count() as usize],
            mapped_count: 0,
            victims: vec![victims; groups],
            units,
            frontiers,
            group_frontiers: in_group,
            counters: Counters::new(config.handles, config.geometry.unit_size()),
            events: Events::new(config.handles),
            background_invalid_pages: Self::background_invalid_pages(&config),
            config,
        })
    }

    fn background_invalid_pages(config: &Config) -> u32 {
        let unit_pages = u64::from(config.geometry.unit_pages());
        let permille = u64::from(config.thresholds.background_invalid_permille);
        (unit_pages * permille).div_ceil(1000).max(1) as u32
    }

    /// The drive's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How much was written, copied and erased so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Number of mapped logical blocks.
    pub fn mapped_count(&self) -> u64 {
        self.mapped_count
    }

    /// The page that a logical block is on. `None` if the block holds nothing, or is beyond the
    /// drive.
    pub fn page_of(&self, lba: u64) -> Option<NandPage> {
        number(*self.page_of.get(usize::try_from(lba).ok()?)?).map(NandPage)
    }

    /// The logical block that a page holds. `None` if the page is not valid.
    pub fn lba_of(&self, page: NandPage) -> Option<u64> {
        self.lba_of.get(page.0 as usize)?;
        self.valid_lba(page.0).map(u64::from)
    }

    /// All reclaim units as they are now.
    pub fn units(&self) -> impl Iterator<Item = UnitReport> {
        (0..self.units.count()).map(|unit| {
            let frontier = self.frontiers.iter().find(|frontier| frontier.is_at(unit));
            let unwritten = frontier.map_or(0, Frontier::pages_left);
            self.units.report(unit, self.unit_pages - unwritten)
        })
    }

    /// Number of reclaim units that are erased and not in use.
    pub fn free_units(&self) -> u32 {
        self.units.free_count()
    }

    /// How many pages the host can still write to the reclaim unit of a placement. NVMe calls this
    /// number RUAMW.
    ///
    /// # Errors
    /// If there is no such placement.
    pub fn handle_pages_left(&self, placement: u16) -> Result<u32, FtlError> {
        let (group, handle) = self.parse(placement)?;
        Ok(self.frontiers[self.frontier_of(group, handle)].pages_left())
    }

    /// The latest [`EVENTS_MAX`] events that hosts caused, oldest first.
    pub fn host_events(&self) -> impl Iterator<Item = &FdpEventRecord> {
        self.events.of_host()
    }

    /// The latest [`EVENTS_MAX`] events that the controller caused without being asked, oldest
    /// first.
    pub fn controller_events(&self) -> impl Iterator<Item = &FdpEventRecord> {
        self.events.of_controller()
    }

    /// For each kind of event, its code and whether `handle` records events of this kind.
    ///
    /// # Errors
    /// If there is no such handle.
    pub fn enabled_events(&self, handle: u16) -> Result<Vec<(u8, bool)>, FtlError> {
        self.check_handle(handle)?;
        let of_kind = |kind: EventKind| (kind.code(), self.events.is_enabled(handle, kind));
        Ok(EventKind::ALL.into_iter().map(of_kind).collect())
    }

    /// Turns the recording of these kinds of events on or off for a handle.
    ///
    /// # Errors
    /// If there is no such handle.
    pub fn enable_events(
        &mut self,
        handle: u16,
        kinds: &[EventKind],
        is_enabled: bool,
    ) -> Result<(), FtlError> {
        self.check_handle(handle)?;
        for kind in kinds {
            self.events.enable(handle, *kind, is_enabled);
        }
        Ok(())
    }

    /// Sets the time that new events get, in milliseconds since the Unix epoch. Nothing else
    /// depends on this time.
    pub fn set_time(&mut self, now_ms: u64) {
        self.events.now_ms = now_ms;
    }

    /// Records that the drive has lost its mapping, and that its handles therefore refer to other
    /// units.
    pub(crate) fn note_handles_reset(&mut self) {
        self.events.push(None, FdpEventRecord::new(EventKind::HandlesReset));
    }

    /// The placement that a write goes to. If `placement` does not exist, records an event and
    /// returns the first placement, as FDP specifies.
    pub(crate) fn accept(&mut self, placement: u16) -> u16 {
        if self.parse(placement).is_ok() {
            return placement;
        }
        self.note_invalid_placement(placement);
        0
    }

    /// Records that a host named a placement that does not exist. The write goes to the first
    /// handle. So the settings of the first handle decide whether the event is recorded.
    pub fn note_invalid_placement(&mut self, placement: u16) {
        let event = FdpEventRecord::new(EventKind::InvalidPlacement);
        self.events.push(Some(0), event.in_namespace().with_placement(placement));
    }

    /// Writes one logical block to a placement. If the drive has only one group, a placement is the
    /// number of a handle.
    ///
    /// # Errors
    /// If the block is beyond the drive, or if there is no such placement.
    pub fn write(&mut self, lba: u64, placement: u16) -> Result<(), FtlError> {
        self.write_observed(lba, placement, &mut ())
    }

    /// Maps blocks as if the first handle had written them. The counters stay as they are.
    pub(crate) fn take_over(&mut self, blocks: &[u64]) {
        let counters = self.counters.clone();
        for lba in blocks {
            self.write(*lba, 0).expect("the block is within the drive");
        }
        self.counters = counters;
    }

    /// The placement that a block belongs to. If the collector has filled the block's unit with
    /// data of several handles, the placement names handle 0. `None` if the block holds nothing.
    pub(crate) fn writer_of(&self, lba: u64) -> Option<u16> {
        let unit = self.page_of(lba)?.0 / self.unit_pages;
        let (group, handle) = (self.units.group_of(unit), self.units.owner(unit).handle());
        Some(self.config.placement(group, handle).0)
    }

    /// Maps a block to a page of this placement, unless the block is mapped already. This is called
    /// after a power cut. The cut has undone the block's latest changes, perhaps a deallocation, so
    /// the block holds its last stable data again. This does not count as a write.
    pub(crate) fn bring_back(&mut self, lba: u64, placement: u16) {
        if self.page_of(lba).is_none() {
            let counters = self.counters.clone();
            self.write(lba, placement).expect("the block was written to this placement before");
            self.counters = counters;
        }
    }

    /// Like [`write`](Self::write), but also tells `observer` what happens to the NAND.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn write_observed(
        &mut self,
        lba: u64,
        placement: u16,
        observer: &mut impl Observer,
    ) -> Result<(), FtlError> {
        let (group, handle) = self.parse(placement)?;
        self.check_range(lba, 1)?;
        let frontier = self.frontier_of(group, handle);
        if self.frontiers[frontier].is_full() {
            self.turn_handle(group, handle, observer);
        }
        let page = self.program(frontier, lba as u32);
        observer.program(NandPage(page), lba);
        match number(std::mem::replace(&mut self.page_of[lba as usize], link(page))) {
            None => self.mapped_count += 1,
            Some(before) => {
                observer.outdated(NandPage(before));
                self.invalidate(before / self.unit_pages, 1);
            }
        }
        self.counters.wrote(Owner::Handle(handle), Cause::Host, 1);
        self.close_if_full(frontier);
        // The drive decides about background collection once for each row of pages across the
        // unit's dies.
        if page.is_multiple_of(self.config.geometry.unit_dies()) {
            let group = self.units.group_of(page / self.unit_pages);
            if self.units.free_in(group) <= self.config.background_units_of_group() {
                self.collect_if_it_pays(group, observer);
            }
        }
        Ok(())
    }

    /// Deallocates blocks. Some of them may hold nothing already.
    ///
    /// # Errors
    /// If some of the blocks are beyond the drive.
    pub fn deallocate(&mut self, lba: u64, count: u64) -> Result<(), FtlError> {
        self.check_range(lba, count)?;
        // Blocks that were written together are often in the same unit. So each run of blocks in
        // one unit is invalidated in one step.
        let (mut unit, mut pages) = (u32::MAX, 0);
        for index in lba as usize..(lba + count) as usize {
            let Some(page) = number(self.page_of[index].take()) else { continue };
            self.mapped_count -= 1;
            if page / self.unit_pages != unit {
                self.invalidate_some(unit, pages);
                (unit, pages) = (page / self.unit_pages, 0);
            }
            pages += 1;
        }
        self.invalidate_some(unit, pages);
        Ok(())
    }

    /// Moves a handle to a fresh reclaim unit. The placement names the handle, and the group of the
    /// unit. The pages left in the handle's current unit are filled with padding. The padding
    /// counts as written to the media, as it does in QEMU's emulated drive. If the current unit is
    /// empty, nothing happens.
    ///
    /// # Errors
    /// If there is no such placement.
    pub fn start_fresh_unit(
        &mut self,
        placement: u16,
        observer: &mut impl Observer,
    ) -> Result<(), FtlError> {
        let (group, handle) = self.parse(placement)?;
        let at = self.frontier_of(group, handle);
        let frontier = self.frontiers[at];
        let left = frontier.pages_left();
        if left == self.unit_pages {
            return Ok(());
        }
        if left > 0 {
            for page in frontier.rest() {
                self.lba_of[page as usize] = None;
                observer.pad(NandPage(page));
            }
            self.counters.wrote(Owner::Handle(handle), Cause::Padding, u64::from(left));
            let event = FdpEventRecord::new(EventKind::UnitNotFull).in_namespace();
            self.events.push(Some(handle), event.with_placement(placement).at(group, handle));
            self.frontiers[at].skip_rest();
            self.close_if_full(at);
        }
        self.turn_handle(group, handle, observer);
        Ok(())
    }

    /// Collects one unit of a group, if the background thresholds say so: few units of the group
    /// are free, and a filled unit is worth collecting. Returns whether a unit was collected.
    pub fn collect_in_background(&mut self, observer: &mut impl Observer) -> bool {
        let units_max = self.config.background_units_of_group();
        (0..self.config.groups).any(|group| {
            self.units.free_in(group) <= units_max && self.collect_if_it_pays(group, observer)
        })
    }

    /// The group and the handle of a placement.
    fn parse(&self, placement: u16) -> Result<(u16, u16), FtlError> {
        let handles = self.config.handles;
        let parsed = self.config.parse_placement(PlacementId(placement));
        parsed.ok_or(FtlError::UnknownHandle { handle: placement, handles })
    }

    /// The index of a handle's frontier in a group.
    fn frontier_of(&self, group: u16, handle: u16) -> usize {
        usize::from(group) * self.group_frontiers + usize::from(handle)
    }

    fn check_handle(&self, handle: u16) -> Result<(), FtlError> {
        let handles = self.config.handles;
        if handle < handles { Ok(()) } else { Err(FtlError::UnknownHandle { handle, handles }) }
    }

    fn check_range(&self, lba: u64, count: u64) -> Result<(), FtlError> {
        let lba_count = self.config.lba_count;
        match lba.checked_add(count) {
            Some(end) if end <= lba_count => Ok(()),
            _ => Err(FtlError::OutOfRange { lba: lba.max(lba_count), lba_count }),
        }
    }

    /// Programs the next page of a frontier with a block, and returns the page. The frontier must
    /// not be full. The caller then maps the block to the page.
    fn program(&mut self, frontier: usize, lba: u32) -> u32 {
        let (unit, page) = self.frontiers[frontier].take();
        self.lba_of[page as usize] = link(lba);
        self.units.add_valid(unit);
        page
    }

    fn close_if_full(&mut self, frontier: usize) {
        let frontier = &self.frontiers[frontier];
        if frontier.is_full() {
            let unit = frontier.unit();
            self.units.close(unit, self.counters.host_pages());
            let group = usize::from(self.units.group_of(unit));
            self.victims[group].insert(unit, self.units.valid(unit));
        }
    }

    fn invalidate_some(&mut self, unit: u32, pages: u32) {
        if pages > 0 {
            self.invalidate(unit, pages);
        }
    }

    fn invalidate(&mut self, unit: u32, pages: u32) {
        let valid = self.units.remove_valid(unit, pages);
        if self.units.is_closed(unit) {
            let group = usize::from(self.units.group_of(unit));
            self.victims[group].moved(unit, valid);
        }
    }

    /// The block that a page holds. `None` if the page is not valid.
    #[inline]
    fn valid_lba(&self, page: u32) -> Option<u32> {
        number(self.lba_of[page as usize]).filter(|lba| self.page_of[*lba as usize] == link(page))
    }
}
