//! The collector, and how handles get fresh units.
//!
//! A unit is a reclaim unit: the pages that the drive erases at once. A handle is the part of the
//! drive that fills one unit at a time; the unit that it fills is its frontier.
//!
//! Each reclaim group is collected separately: when the collector copies pages out of a unit, the
//! new pages are in the same group. The invariant of the [parent module](super) holds for each
//! group: enough units are free, or collecting gains free pages. There is one exception. If all
//! pages of a group's filled units are valid, collecting that group gains nothing. A handle that
//! needs a unit then goes on in another group.

use super::counters::Cause;
use super::events::{EventKind, FdpEventRecord};
use super::units::Owner;
use super::{Ftl, NandPage, Observer, link};
use crate::{Frontiers, Isolation};

impl Ftl {
    /// Gives a fresh unit to a handle whose frontier in a group is full. If too few units are free,
    /// collects first, until enough units are free. If the group has no room left, the handle goes
    /// on in another group.
    pub(super) fn turn_handle(&mut self, group: u16, handle: u16, observer: &mut impl Observer) {
        let frontier = self.frontier_of(group, handle);
        let units_min = self.config.foreground_units_of_group();
        let mut from = group;
        // If the collector shares the frontier, it may have given the frontier a unit already.
        while self.frontiers[frontier].is_full() {
            if self.units.free_in(from) > units_min {
                let unit = self.units.open(from, Owner::Handle(handle), self.unit_pages);
                self.frontiers[frontier] = unit;
                if from != group {
                    let event = FdpEventRecord::new(EventKind::HandleMoved).in_namespace();
                    let placement = self.config.placement(group, handle).0;
                    self.events
                        .push(Some(handle), event.with_placement(placement).at(from, handle));
                }
            } else if self.can_gain(from) {
                self.collect(from, observer);
            } else {
                from = self.group_with_room();
            }
        }
    }

    /// Whether collecting in a group frees pages. If the drive has only one group, collecting
    /// always does.
    fn can_gain(&self, group: u16) -> bool {
        self.config.groups == 1 || self.units.can_gain(group, self.unit_pages)
    }

    /// The group with the most free units, of all groups that can give a unit. There is always such
    /// a group, because the drive has spare units for all groups.
    fn group_with_room(&self) -> u16 {
        let units_min = self.config.foreground_units_of_group();
        let has_room =
            |group: &u16| self.units.free_in(*group) > units_min || self.can_gain(*group);
        let groups = (0..self.config.groups).filter(has_room);
        groups.max_by_key(|group| self.units.free_in(*group)).expect("some group has room")
    }

    pub(super) fn collect_if_it_pays(&mut self, group: u16, observer: &mut impl Observer) -> bool {
        let pays = self.choose(group).is_some_and(|unit| {
            self.unit_pages - self.units.valid(unit) >= self.background_invalid_pages
        });
        if pays {
            self.collect(group, observer);
        }
        pays
    }

    fn choose(&mut self, group: u16) -> Option<u32> {
        let now = self.counters.host_pages();
        self.victims[usize::from(group)].choose(group, &self.units, self.unit_pages, now)
    }

    fn collect(&mut self, group: u16, observer: &mut impl Observer) {
        let victim = self.choose(group).expect("there are spare units, so some unit is filled");
        observer.victim(victim);
        self.victims[usize::from(group)].remove(victim);
        let owner = self.units.owner(victim);
        let frontier = self.frontier_of_copies(owner);
        let frontier = (self.frontier_of(group, frontier.0), frontier.1);
        let first = victim * self.unit_pages;
        let copied = self.units.valid(victim);
        if copied > 0 {
            let mut first_lba = None;
            for page in first..first + self.unit_pages {
                if let Some(lba) = self.valid_lba(page) {
                    first_lba.get_or_insert(u64::from(lba));
                    self.copy(group, frontier, lba, page, observer);
                }
            }
            self.counters.wrote(owner, Cause::Collector, u64::from(copied));
            self.note_reallocated(group, owner, copied, first_lba.unwrap_or_default());
        }
        let left = self.units.remove_valid(victim, copied);
        assert_eq!(left, 0, "the collector has not copied all valid pages of the victim");
        self.units.erase(victim);
        self.counters.erased(owner);
        observer.erase(victim);
    }

    /// Records that the collector moved `moved` blocks out of a unit. `first` is the first of these
    /// blocks.
    fn note_reallocated(&mut self, group: u16, owner: Owner, moved: u32, first: u64) {
        let event = FdpEventRecord::new(EventKind::Reallocated).in_namespace();
        let event = event.with_moved(moved, first);
        match owner {
            Owner::Handle(handle) => {
                let placement = self.config.placement(group, handle).0;
                self.events.push(Some(handle), event.with_placement(placement).at(group, handle));
            }
            Owner::Mixed => self.events.push(None, event),
        }
    }

    /// The frontier to which the collector copies the data of `owner`'s units. Returns the number
    /// of the frontier in its group, and the owner of the units that the frontier fills.
    fn frontier_of_copies(&self, owner: Owner) -> (u16, Owner) {
        let handles = self.config.handles;
        if self.config.frontiers == Frontiers::Shared {
            return (0, Owner::Handle(0));
        }
        let is_persistent =
            |handle: &u16| self.config.isolation_of(*handle) == Isolation::Persistent;
        match owner {
            Owner::Handle(handle) if is_persistent(&handle) => {
                let before = (0..handle).filter(is_persistent).count() as u16;
                (handles + before, owner)
            }
            _ => (self.group_frontiers as u16 - 1, Owner::Mixed),
        }
    }

    fn copy(
        &mut self,
        group: u16,
        (frontier, owner): (usize, Owner),
        lba: u32,
        from: u32,
        observer: &mut impl Observer,
    ) {
        if self.frontiers[frontier].is_full() {
            self.frontiers[frontier] = self.units.open(group, owner, self.unit_pages);
        }
        let to = self.program(frontier, lba);
        self.page_of[lba as usize] = link(to);
        observer.copy(NandPage(from), NandPage(to));
        self.close_if_full(frontier);
    }
}
