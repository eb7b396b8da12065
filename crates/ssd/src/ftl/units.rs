//! Reclaim units: which handle fills each unit, how many of its pages are valid, and which units
//! are free.

use std::collections::VecDeque;
use std::ops::Range;

/// Who fills or has filled a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A handle, or the collector with the data of a single handle.
    Handle(u16),
    /// The collector, with data of several handles.
    Mixed,
}

impl Owner {
    /// The handle, or 0 for a mixed unit.
    pub fn handle(self) -> u16 {
        match self {
            Self::Handle(handle) => handle,
            Self::Mixed => 0,
        }
    }
}

/// The state of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitState {
    /// Erased, and without an owner.
    Free,
    /// Being filled.
    Open,
    /// Filled.
    Closed,
}

/// A unit as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitReport {
    /// The unit's state.
    pub state: UnitState,
    /// Who fills or has filled the unit. `None` if the unit is free.
    pub owner: Option<Owner>,
    /// Number of pages that hold a block.
    pub valid: u32,
    /// Number of pages that were programmed since the unit was last erased.
    pub written: u32,
    /// How often the unit was erased.
    pub erase_count: u32,
}

/// The place of the next page, in a unit that is being filled. At first, a frontier may have no
/// unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frontier {
    unit: u32,
    next: u32,
    end: u32,
}

impl Frontier {
    /// A frontier without a unit, so it has no pages left.
    pub(super) const NONE: Self = Self { unit: u32::MAX, next: 0, end: 0 };

    pub(super) fn numbers(&self) -> [u32; 3] {
        [self.unit, self.next, self.end]
    }

    pub(super) fn from_numbers([unit, next, end]: [u32; 3]) -> Self {
        Self { unit, next, end }
    }

    pub(super) fn is_full(&self) -> bool {
        self.next == self.end
    }

    pub(super) fn is_at(&self, unit: u32) -> bool {
        self.unit == unit && !self.is_full()
    }

    pub(super) fn unit(&self) -> u32 {
        self.unit
    }

    pub(super) fn pages_left(&self) -> u32 {
        self.end - self.next
    }

    pub(super) fn rest(&self) -> Range<u32> {
        self.next..self.end
    }

    pub(super) fn skip_rest(&mut self) {
        self.next = self.end;
    }

    /// Takes the next page. Returns the unit and the page. The frontier must not be full.
    pub(super) fn take(&mut self) -> (u32, u32) {
        let page = self.next;
        self.next += 1;
        (self.unit, page)
    }
}

/// A unit, as the stored state of a drive describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saved {
    pub(super) state: UnitState,
    pub(super) owner: Owner,
    pub(super) closed_at: u64,
    pub(super) erase_count: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Units {
    valid: Vec<u32>,
    state: Vec<UnitState>,
    owner: Vec<Owner>,
    /// How many pages the host had written when the unit became full.
    closed_at: Vec<u64>,
    erase_count: Vec<u32>,
    /// The free units of each reclaim group. The unit that has been free longest is taken first, so
    /// that all units wear evenly.
    free: Vec<VecDeque<u32>>,
}

impl Units {
    pub(super) fn new(count: u32, groups: u16) -> Self {
        let len = count as usize;
        Self {
            valid: vec![0; len],
            state: vec![UnitState::Free; len],
            owner: vec![Owner::Mixed; len],
            closed_at: vec![0; len],
            erase_count: vec![0; len],
            free: in_groups(0..count, groups),
        }
    }

    /// Restores units from a stored state. Their valid pages are counted later.
    pub(super) fn of_saved(saved: &[Saved], free: &[u32], groups: u16) -> Self {
        Self {
            valid: vec![0; saved.len()],
            state: saved.iter().map(|unit| unit.state).collect(),
            owner: saved.iter().map(|unit| unit.owner).collect(),
            closed_at: saved.iter().map(|unit| unit.closed_at).collect(),
            erase_count: saved.iter().map(|unit| unit.erase_count).collect(),
            free: in_groups(free.iter().copied(), groups),
        }
    }

    pub(super) fn saved(&self) -> impl Iterator<Item = Saved> {
        (0..self.state.len()).map(|unit| Saved {
            state: self.state[unit],
            owner: self.owner[unit],
            closed_at: self.closed_at[unit],
            erase_count: self.erase_count[unit],
        })
    }

    /// The free units, group by group, in the order in which they are taken.
    pub(super) fn free(&self) -> impl Iterator<Item = u32> {
        self.free.iter().flatten().copied()
    }

    pub(super) fn count(&self) -> u32 {
        self.valid.len() as u32
    }

    pub(super) fn free_count(&self) -> u32 {
        self.free.iter().map(|free| free.len() as u32).sum()
    }

    pub(super) fn group_count(&self) -> u16 {
        self.free.len() as u16
    }

    #[inline]
    pub(super) fn group_of(&self, unit: u32) -> u16 {
        // With a single group, this shortcut saves a division for each write.
        if self.free.len() == 1 {
            return 0;
        }
        (unit % self.free.len() as u32) as u16
    }

    pub(super) fn free_in(&self, group: u16) -> u32 {
        self.free[usize::from(group)].len() as u32
    }

    /// Whether collecting in a group can free pages, which means that a filled unit has a page that
    /// is not valid.
    pub(super) fn can_gain(&self, group: u16, unit_pages: u32) -> bool {
        let units = (u32::from(group)..self.count()).step_by(self.free.len());
        units.into_iter().any(|unit| self.is_closed(unit) && self.valid(unit) < unit_pages)
    }

    pub(super) fn report(&self, unit: u32, written: u32) -> UnitReport {
        let index = unit as usize;
        let state = self.state[index];
        let is_free = state == UnitState::Free;
        UnitReport {
            state,
            owner: (!is_free).then_some(self.owner[index]),
            valid: self.valid[index],
            written: if is_free { 0 } else { written },
            erase_count: self.erase_count[index],
        }
    }

    /// Takes a free unit of a group, and opens it for filling.
    pub(super) fn open(&mut self, group: u16, owner: Owner, unit_pages: u32) -> Frontier {
        let free = &mut self.free[usize::from(group)];
        let unit = free.pop_front().expect("the group has a free unit to open");
        let is_free = self.state[unit as usize] == UnitState::Free;
        assert!(
            is_free && self.valid[unit as usize] == 0,
            "the unit to open is not free and empty"
        );
        self.state[unit as usize] = UnitState::Open;
        self.owner[unit as usize] = owner;
        let next = unit * unit_pages;
        Frontier { unit, next, end: next + unit_pages }
    }

    pub(super) fn close(&mut self, unit: u32, now: u64) {
        assert_eq!(self.state[unit as usize], UnitState::Open, "the unit to close is not open");
        self.state[unit as usize] = UnitState::Closed;
        self.closed_at[unit as usize] = now;
    }

    pub(super) fn erase(&mut self, unit: u32) {
        assert_eq!(self.state[unit as usize], UnitState::Closed, "the unit to erase is not full");
        self.state[unit as usize] = UnitState::Free;
        self.erase_count[unit as usize] += 1;
        let group = self.group_of(unit);
        self.free[usize::from(group)].push_back(unit);
    }

    pub(super) fn is_closed(&self, unit: u32) -> bool {
        self.state[unit as usize] == UnitState::Closed
    }

    pub(super) fn closed_at(&self, unit: u32) -> u64 {
        self.closed_at[unit as usize]
    }

    pub(super) fn owner(&self, unit: u32) -> Owner {
        self.owner[unit as usize]
    }

    pub(super) fn valid(&self, unit: u32) -> u32 {
        self.valid[unit as usize]
    }

    pub(super) fn add_valid(&mut self, unit: u32) {
        self.valid[unit as usize] += 1;
    }

    /// Subtracts `pages` from a unit's valid count. Returns the new count.
    pub(super) fn remove_valid(&mut self, unit: u32, pages: u32) -> u32 {
        let valid = &mut self.valid[unit as usize];
        assert!(*valid >= pages, "a unit's valid count would go below 0");
        *valid -= pages;
        *valid
    }
}

/// Distributes units to their groups. In each group, the units keep their order.
fn in_groups(units: impl Iterator<Item = u32>, groups: u16) -> Vec<VecDeque<u32>> {
    let mut free = vec![VecDeque::new(); usize::from(groups)];
    for unit in units {
        free[(unit % u32::from(groups)) as usize].push_back(unit);
    }
    free
}
