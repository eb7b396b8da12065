//! Checks the invariants of a drive, block by block and unit by unit (a unit is a reclaim unit).

use super::units::UnitState;
use super::{Ftl, number};

impl Ftl {
    /// Checks the mapping and all units. If an invariant is violated, panics with that invariant as
    /// the message.
    ///
    /// Tests call this function between other calls. In a build without debug assertions, the
    /// function does nothing.
    pub fn check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        self.check_mapping();
        self.check_units();
        self.check_victims();
        self.counters.check();
    }

    fn check_mapping(&self) {
        let mut valid = vec![0; self.units.count() as usize];
        let mut mapped = 0;
        for (lba, page) in (0..).zip(&self.page_of) {
            let Some(page) = number(*page) else { continue };
            // A page names only one block. So this check also shows that no two blocks are on the
            // same page.
            let back = number(self.lba_of[page as usize]);
            assert_eq!(back, Some(lba), "the page that a block is on names that block");
            valid[(page / self.unit_pages) as usize] += 1;
            mapped += 1;
        }
        assert_eq!(mapped, self.mapped_count, "`mapped_count` is the number of mapped blocks");
        for (unit, valid) in (0..).zip(valid) {
            assert_eq!(
                valid,
                self.units.valid(unit),
                "unit {unit} counts the blocks that are mapped to it"
            );
        }
    }

    fn check_units(&self) {
        let mut is_free = vec![false; self.units.count() as usize];
        for unit in self.units.free() {
            let was_free = std::mem::replace(&mut is_free[unit as usize], true);
            assert!(!was_free, "unit {unit} is only once in the list of free units");
        }
        for unit in 0..self.units.count() {
            let frontiers = self.frontiers.iter().filter(|frontier| frontier.is_at(unit)).count();
            let state = self.units.report(unit, 0).state;
            let is_open = state == UnitState::Open;
            assert_eq!(
                frontiers,
                usize::from(is_open),
                "an open unit has one frontier, and other units have none"
            );
            let is_listed = is_free[unit as usize];
            assert_eq!(
                state == UnitState::Free,
                is_listed,
                "unit {unit} is in the list of free units if and only if it is free"
            );
            assert!(!is_listed || self.units.valid(unit) == 0, "a free unit holds nothing");
        }
        for group in 0..self.config.groups {
            assert!(
                self.units.free_in(group) >= self.config.foreground_units_of_group(),
                "enough units of group {group} are free for its collector to begin"
            );
        }
    }

    fn check_victims(&self) {
        for (group, victims) in (0..).zip(&self.victims) {
            self.check_victims_of(group, victims.known());
        }
    }

    fn check_victims_of(&self, group: u16, known: Option<Vec<(u32, Option<u32>)>>) {
        let Some(mut known) = known else { return };
        known.sort_unstable();
        let of_group = (0..self.units.count()).filter(|unit| self.units.group_of(*unit) == group);
        let closed = of_group.filter(|unit| self.units.is_closed(*unit));
        assert!(
            known.iter().map(|(unit, _)| *unit).eq(closed),
            "the index of victims has all filled units, and no others"
        );
        for (unit, valid) in known {
            let is_right = valid.is_none_or(|valid| valid == self.units.valid(unit));
            assert!(is_right, "the index of victims has the right valid count of unit {unit}");
        }
    }
}
