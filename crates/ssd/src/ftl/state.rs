//! A drive's state as bytes. A drive that is decoded from these bytes goes on exactly as if it had
//! never stopped.
//!
//! ```text
//! | shape | counters | events | page of each block | units | free units | frontiers | victims |
//! ```
//!
//! All integers are little-endian. The bytes have no checksum: the code that stores the bytes adds
//! a checksum.

use super::events::Events;
use super::units::{Frontier, Owner, Saved, UnitState, Units};
use super::victims::VictimIndex;
use super::{Counters, Ftl, Link};
use crate::Config;

/// Stands for [`Owner::Mixed`] in place of a handle's number.
const MIXED: u32 = u32::MAX;

/// How many bytes the state has for each unit.
const UNIT_SIZE: usize = 20;

impl Ftl {
    /// The largest size that the state of a drive with this configuration can have, in bytes.
    pub(crate) fn encoded_size_max(config: &Config) -> usize {
        let units = config.geometry.unit_count() as usize;
        let numbers = 8 * (5 + 1 + 4 * (usize::from(config.handles) + 1));
        let groups = usize::from(config.groups);
        let lists = (UNIT_SIZE + 4 + 4) * units + (1 + groups) * 4;
        numbers
            + Events::encoded_size_max(config.handles)
            + 4 * config.lba_count as usize
            + lists
            + 12 * groups * config.frontier_count() as usize
    }

    /// Appends the drive's state to `bytes`.
    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        for number in self.shape().into_iter().chain(self.counters.numbers()) {
            bytes.extend(number.to_le_bytes());
        }
        self.events.encode(bytes);
        let at = bytes.len();
        bytes.resize(at + 4 * self.page_of.len(), 0);
        for (place, page) in bytes[at..].as_chunks_mut::<4>().0.iter_mut().zip(&self.page_of) {
            *place = page.map_or(0, std::num::NonZeroU32::get).to_le_bytes();
        }
        self.units.encode(bytes);
        for frontier in &self.frontiers {
            bytes.extend(frontier.numbers().into_iter().flat_map(u32::to_le_bytes));
        }
        for victims in &self.victims {
            let victims = victims.in_order();
            bytes.extend((victims.len() as u32).to_le_bytes());
            bytes.extend(victims.into_iter().flat_map(u32::to_le_bytes));
        }
        let size = bytes.len() - start;
        assert!(
            size <= Self::encoded_size_max(&self.config),
            "the encoded state is larger than its maximum"
        );
    }

    /// Numbers that must be the same in the encoded drive and in the configuration that it is
    /// decoded with.
    pub(super) fn shape(&self) -> [u64; 5] {
        [
            self.config.lba_count,
            self.units.count().into(),
            self.unit_pages.into(),
            self.config.handles.into(),
            self.frontiers.len() as u64,
        ]
    }

    /// The drive that `bytes` describe. `None` if the bytes do not describe a drive, or if the
    /// drive does not have the shape that `config` says.
    pub(crate) fn decode(config: Config, bytes: &[u8]) -> Option<Self> {
        let mut input = Input(bytes);
        let mut ftl = Self::new(config).ok()?;
        ftl.decode_shape(&mut input)?;
        let counters = Counters::from_numbers(&ftl.counters, || input.u64())?;
        if !slimio_planted::is_planted("counters-not-restored") {
            ftl.counters = counters;
        }
        ftl.events = Events::decode(ftl.config.handles, &mut input)?;
        let pages = input.take(4 * ftl.page_of.len())?;
        for (lba, page) in pages.as_chunks::<4>().0.iter().enumerate() {
            ftl.restore(lba, Link::from(std::num::NonZeroU32::new(u32::from_le_bytes(*page))))?;
        }
        ftl.units = Units::decode(ftl.units.count(), ftl.config.groups, &mut input)?;
        ftl.decode_frontiers(&mut input)?;
        ftl.count_valid()?;
        for (group, victims) in (0..).zip(&mut ftl.victims) {
            let count = input.u32()?;
            let in_order: Option<Vec<u32>> = (0..count).map(|_| input.u32()).collect();
            victims.restore(group, in_order?, &ftl.units)?;
        }
        input.0.is_empty().then_some(ftl)
    }

    pub(super) fn decode_shape(&self, input: &mut Input<'_>) -> Option<()> {
        self.shape().into_iter().all(|number| input.u64() == Some(number)).then_some(())
    }

    pub(super) fn decode_frontiers(&mut self, input: &mut Input<'_>) -> Option<()> {
        for frontier in &mut self.frontiers {
            *frontier = Frontier::from_numbers([input.u32()?, input.u32()?, input.u32()?]);
        }
        Some(())
    }

    /// Maps a block to the page that it was on.
    pub(super) fn restore(&mut self, lba: usize, page: Link) -> Option<()> {
        if let Some(number) = super::number(page) {
            let holds = self.lba_of.get_mut(number as usize)?;
            *holds = super::link(lba as u32);
            self.page_of[lba] = page;
            self.mapped_count += 1;
        }
        Some(())
    }

    /// Computes how many pages of each unit are valid. `None` if two blocks are on the same page.
    pub(super) fn count_valid(&mut self) -> Option<()> {
        for (lba, page) in (0..).zip(&self.page_of) {
            let Some(page) = super::number(*page) else { continue };
            if super::number(self.lba_of[page as usize]) != Some(lba) {
                return None;
            }
            self.units.add_valid(page / self.unit_pages);
        }
        Some(())
    }

    /// The same drive with a different configuration. Only values such as the choice of victims,
    /// the thresholds and the timing may differ.
    pub(crate) fn with_config(mut self, config: Config) -> Self {
        assert_eq!(config.geometry, self.config.geometry, "the geometry must stay the same");
        if config.victims != self.config.victims {
            self.config.victims = config.victims;
            self.order_victims_by_age();
        }
        self.config = config;
        self.background_invalid_pages = Self::background_invalid_pages(&self.config);
        self
    }

    /// Rebuilds the index of victims. The units enter the index in the order in which they were
    /// filled.
    pub(super) fn order_victims_by_age(&mut self) {
        let fresh = VictimIndex::new(self.config.victims, self.units.count(), self.unit_pages);
        self.victims.fill(fresh);
        let is_closed = |unit: &u32| self.units.is_closed(*unit);
        let mut closed: Vec<u32> = (0..self.units.count()).filter(is_closed).collect();
        closed.sort_by_key(|unit| self.units.closed_at(*unit));
        for unit in closed {
            let group = usize::from(self.units.group_of(unit));
            self.victims[group].insert(unit, self.units.valid(unit));
        }
    }
}

pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*number))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }
}

impl Units {
    fn encode(&self, bytes: &mut Vec<u8>) {
        for Saved { state, owner, closed_at, erase_count } in self.saved() {
            let owner = match owner {
                Owner::Handle(handle) => u32::from(handle),
                Owner::Mixed => MIXED,
            };
            let state = match state {
                UnitState::Free => 0_u32,
                UnitState::Open => 1,
                UnitState::Closed => 2,
            };
            bytes.extend([state, owner, erase_count].into_iter().flat_map(u32::to_le_bytes));
            bytes.extend(closed_at.to_le_bytes());
        }
        bytes.extend(self.free_count().to_le_bytes());
        bytes.extend(self.free().flat_map(u32::to_le_bytes));
    }

    pub(super) fn decode(count: u32, groups: u16, input: &mut Input<'_>) -> Option<Self> {
        let mut saved = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let state = match input.u32()? {
                0 => UnitState::Free,
                1 => UnitState::Open,
                2 => UnitState::Closed,
                _ => return None,
            };
            let owner = match input.u32()? {
                MIXED => Owner::Mixed,
                handle => Owner::Handle(u16::try_from(handle).ok()?),
            };
            let (erase_count, closed_at) = (input.u32()?, input.u64()?);
            saved.push(Saved { state, owner, closed_at, erase_count });
        }
        let free_count = input.u32()?;
        let free: Option<Vec<u32>> = (0..free_count).map(|_| input.u32()).collect();
        Some(Self::of_saved(&saved, &free?, groups))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isolation, Victims};

    pub(crate) fn used(config: &Config) -> Ftl {
        let mut drive = Ftl::new(config.clone()).expect("such a drive can work");
        let lbas = config.lba_count;
        for round in 0..3 * lbas {
            let lba = round * round % lbas;
            drive
                .write(lba, (lba % u64::from(config.handles)) as u16)
                .expect("the block is within the drive");
        }
        drive.deallocate(lbas / 3, lbas / 9).expect("the blocks are within the drive");
        drive.set_time(1_700_000_000_000);
        drive.note_invalid_placement(999);
        drive.enable_events(0, &[crate::EventKind::Reallocated], false).expect("the handle exists");
        drive
    }

    fn encoded(drive: &Ftl) -> Vec<u8> {
        let mut bytes = Vec::new();
        drive.encode(&mut bytes);
        bytes
    }

    #[test]
    fn a_drive_goes_on_as_if_it_had_never_stopped() {
        for victims in [Victims::Greedy, Victims::CostBenefit, Victims::Fifo] {
            for (isolation, groups) in [(Isolation::Initial, 1), (Isolation::Persistent, 2)] {
                let config = Config { groups, isolation, victims, ..Config::scaled(24 << 20) };
                let mut one = used(&config);
                let other = Ftl::decode(config.clone(), &encoded(&one));
                let mut other = other.expect("the encoded state is whole");
                other.set_time(1_700_000_000_000);
                other.check();
                assert!(encoded(&other) == encoded(&one), "the decoded drive has another state");
                for lba in (0..config.lba_count).rev() {
                    one.write(lba, 0).expect("the block is within the drive");
                    other.write(lba, 0).expect("the block is within the drive");
                }
                other.check();
                assert!(
                    encoded(&other) == encoded(&one),
                    "{victims:?}: the drives have made different choices"
                );
            }
        }
    }

    #[test]
    fn a_drive_may_go_on_with_another_policy() {
        let config = Config::scaled(24 << 20);
        let drive = used(&config);
        let mapped = drive.mapped_count();
        for victims in [Victims::Fifo, Victims::CostBenefit, Victims::Greedy] {
            let mut other = drive.clone().with_config(Config { victims, ..config.clone() });
            other.check();
            for lba in 0..config.lba_count / 2 {
                other.write(lba, 1).expect("the block is within the drive");
            }
            other.check();
            assert!(other.mapped_count() >= mapped);
        }
    }

    #[test]
    fn what_is_not_whole_or_of_another_drive_is_not_taken() {
        let config = Config::scaled(12 << 20);
        let bytes = encoded(&used(&config));
        let decode = |bytes: &[u8]| Ftl::decode(config.clone(), bytes);
        assert!(decode(&bytes).is_some());
        for cut in [0, 8, 16, 60, bytes.len() - 1] {
            assert!(
                decode(&bytes[..cut]).is_none(),
                "a state that is cut to {cut} bytes must be refused"
            );
        }
        assert!(
            decode(&[&bytes[..], &[0]].concat()).is_none(),
            "a state with a byte too many must be refused"
        );
        assert!(Ftl::decode(Config { handles: 7, ..config.clone() }, &bytes).is_none());
    }
}
