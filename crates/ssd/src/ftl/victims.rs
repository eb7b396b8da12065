//! An index of the filled reclaim units, which makes it cheap to choose the next victim: the unit
//! that garbage collection empties next.

use std::collections::VecDeque;

use slimio_planted::is_planted;

use super::units::Units;
use crate::Victims;

/// The filled units of a group, in the form that the policy for choosing victims needs.
#[derive(Clone, Debug)]
pub(super) enum VictimIndex {
    Greedy(ByValidCount),
    /// The units in the order in which they were filled.
    Fifo(VecDeque<u32>),
    /// No index. Each choice computes the scores of all units, because scores change with time.
    CostBenefit,
}

impl VictimIndex {
    pub(super) fn new(policy: Victims, unit_count: u32, unit_pages: u32) -> Self {
        match policy {
            Victims::Greedy => Self::Greedy(ByValidCount::new(unit_count, unit_pages)),
            Victims::Fifo => Self::Fifo(VecDeque::with_capacity(unit_count as usize)),
            Victims::CostBenefit => Self::CostBenefit,
        }
    }

    /// Notes that a unit has been filled.
    pub(super) fn insert(&mut self, unit: u32, valid: u32) {
        match self {
            Self::Greedy(units) => units.insert(unit, valid),
            Self::Fifo(units) => units.push_back(unit),
            Self::CostBenefit => {}
        }
    }

    /// Notes that the valid count of a filled unit has fallen to `valid`. The valid count is the
    /// number of the unit's pages that hold data.
    #[inline]
    pub(super) fn moved(&mut self, unit: u32, valid: u32) {
        if let Self::Greedy(units) = self
            && !is_planted("victim-not-moved")
        {
            units.remove(unit);
            units.insert(unit, valid);
        }
    }

    /// Removes the chosen unit, which is being collected.
    pub(super) fn remove(&mut self, unit: u32) {
        match self {
            Self::Greedy(units) => units.remove(unit),
            Self::Fifo(units) => {
                let first = units.pop_front();
                assert_eq!(first, Some(unit), "the chosen unit is not the first unit");
            }
            Self::CostBenefit => {}
        }
    }

    /// All filled units in the index, each with its valid count if the index has it. `None` if
    /// there is no index.
    pub(super) fn known(&self) -> Option<Vec<(u32, Option<u32>)>> {
        match self {
            Self::Greedy(units) => Some(units.walk()),
            Self::Fifo(units) => Some(units.iter().map(|unit| (*unit, None)).collect()),
            Self::CostBenefit => None,
        }
    }

    /// The filled units in an order from which [`restore`](Self::restore) makes the same index.
    pub(super) fn in_order(&self) -> Vec<u32> {
        self.known().unwrap_or_default().into_iter().map(|(unit, _)| unit).collect()
    }

    /// Fills the empty index of a group with units, which come in the order of
    /// [`in_order`](Self::in_order). `None` if they are not exactly the filled units of the group.
    /// For a policy without an index, `in_order` must be empty instead.
    pub(super) fn restore(&mut self, group: u16, in_order: Vec<u32>, units: &Units) -> Option<()> {
        if matches!(self, Self::CostBenefit) {
            return in_order.is_empty().then_some(());
        }
        let is_filled = |unit| units.is_closed(unit) && units.group_of(unit) == group;
        let mut is_left: Vec<bool> = (0..units.count()).map(is_filled).collect();
        for unit in &in_order {
            let is_left = is_left.get_mut(*unit as usize)?;
            if !std::mem::replace(is_left, false) {
                return None;
            }
        }
        if is_left.contains(&true) {
            return None;
        }
        match self {
            // Units are inserted in reverse order, because each unit is inserted at the front of
            // its list.
            Self::Greedy(lists) => {
                in_order.iter().rev().for_each(|unit| lists.insert(*unit, units.valid(*unit)));
            }
            Self::Fifo(queue) => queue.extend(in_order),
            Self::CostBenefit => {}
        }
        Some(())
    }

    /// The next victim of a group. `now` is the number of pages that the host has written so far.
    /// `None` if no unit of the group is filled.
    pub(super) fn choose(
        &mut self,
        group: u16,
        units: &Units,
        unit_pages: u32,
        now: u64,
    ) -> Option<u32> {
        match self {
            Self::Greedy(by_valid) => by_valid.first(),
            Self::Fifo(by_age) => by_age.front().copied(),
            Self::CostBenefit => {
                let score = |unit| {
                    benefit(
                        units.valid(unit),
                        unit_pages,
                        now.saturating_sub(units.closed_at(unit)),
                    )
                };
                (u32::from(group)..units.count())
                    .step_by(units.group_count().into())
                    .filter(|unit| units.is_closed(*unit))
                    .max_by(|a, b| score(*a).total_cmp(&score(*b)))
            }
        }
    }
}

/// The benefit of collecting a unit, divided by the cost. Ages begin at 1 here. If they began at 0,
/// every unit that was just filled would have a benefit of 0, no matter how many of its pages are
/// valid.
fn benefit(valid: u32, unit_pages: u32, age: u64) -> f64 {
    let (valid, all) = (f64::from(valid), f64::from(unit_pages));
    (all - valid) / (all + valid) * (age + 1) as f64
}

const NONE: u32 = u32::MAX;

/// Filled units in doubly linked lists, one for each valid count.
#[derive(Clone, Debug)]
pub(super) struct ByValidCount {
    heads: Vec<u32>,
    links: Vec<Link>,
    /// A lower bound: no unit has a lower valid count.
    least: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    behind: u32,
    valid: u32,
}

impl ByValidCount {
    fn new(unit_count: u32, unit_pages: u32) -> Self {
        let link = Link { before: NONE, behind: NONE, valid: 0 };
        Self {
            heads: vec![NONE; unit_pages as usize + 1],
            links: vec![link; unit_count as usize],
            least: unit_pages,
        }
    }

    #[inline]
    fn insert(&mut self, unit: u32, valid: u32) {
        let behind = std::mem::replace(&mut self.heads[valid as usize], unit);
        if behind != NONE {
            self.links[behind as usize].before = unit;
        }
        self.links[unit as usize] = Link { before: NONE, behind, valid };
        self.least = self.least.min(valid);
    }

    #[inline]
    fn remove(&mut self, unit: u32) {
        let Link { before, behind, valid } = self.links[unit as usize];
        if before == NONE {
            self.heads[valid as usize] = behind;
        } else {
            self.links[before as usize].behind = behind;
        }
        if behind != NONE {
            self.links[behind as usize].before = before;
        }
    }

    /// All units in all lists. Panics if a list is inconsistent.
    fn walk(&self) -> Vec<(u32, Option<u32>)> {
        let mut met = Vec::new();
        for (valid, head) in (0..).zip(&self.heads) {
            let (mut unit, mut before) = (*head, NONE);
            assert!(
                unit == NONE || valid >= self.least,
                "a unit has a lower valid count than `least`"
            );
            while unit != NONE {
                let link = self.links[unit as usize];
                assert_eq!(link.before, before, "a list differs if it is walked backwards");
                assert_eq!(link.valid, valid, "a unit is in the list of another valid count");
                assert!(met.len() < self.links.len(), "a list does not end");
                met.push((unit, Some(valid)));
                (before, unit) = (unit, link.behind);
            }
        }
        met
    }

    fn first(&mut self) -> Option<u32> {
        let from = self.least as usize;
        let found = self.heads[from..].iter().position(|head| *head != NONE)?;
        self.least = (from + found) as u32;
        Some(self.heads[from + found])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_valid_comes_first_whatever_was_moved() {
        let mut units = ByValidCount::new(5, 8);
        assert_eq!(units.first(), None);
        for (unit, valid) in [(0, 8), (1, 5), (2, 5), (3, 7), (4, 8)] {
            units.insert(unit, valid);
        }
        assert_eq!(units.first(), Some(2));
        units.remove(2);
        assert_eq!(units.first(), Some(1));
        units.remove(3);
        units.insert(3, 0);
        assert_eq!(units.first(), Some(3));
        for unit in [3, 1, 0, 4] {
            units.remove(unit);
        }
        assert_eq!(units.first(), None);
        units.insert(2, 6);
        assert_eq!(units.first(), Some(2));
    }

    #[test]
    fn cost_and_benefit_weigh_age_against_what_is_valid() {
        assert!(benefit(0, 8, 10) > benefit(4, 8, 10));
        assert!(
            benefit(4, 8, 100) > benefit(2, 8, 10),
            "an older unit may score higher although more of its pages are valid"
        );
        assert!(
            benefit(8, 8, 1 << 40) <= 0.0,
            "a unit whose pages are all valid brings nothing, however old it is"
        );
        assert!(benefit(0, 8, 0) > benefit(8, 8, 1000));
    }
}
