//! A drive's mapping as bytes, which are stored while the drive is closed.
//!
//! ```text
//! | magic | checksum | lba_count | units, unit_pages, handles, frontiers | counters |
//! | page of each block ... | each unit ... | free units ... | each frontier ... |
//! ```
//!
//! All integers are little-endian. The checksum (XXH3) covers everything after it.

use twox_hash::XxHash3_64;

use super::units::{Frontier, Owner, Saved, UnitState, Units};
use super::victims::VictimIndex;
use super::{Counters, Ftl, link, number};
use crate::Config;

/// No page: the block is not mapped.
const UNMAPPED: u32 = u32::MAX;

const MAGIC: [u8; 8] = *b"SLIMSSD1";

/// The checksum covers the bytes from here on.
const HEAD_SIZE: usize = 16;

impl Ftl {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([0; 8]);
        for number in self.shape() {
            bytes.extend(number.to_le_bytes());
        }
        for number in self.counters.numbers() {
            bytes.extend(number.to_le_bytes());
        }
        for page in &self.page_of {
            bytes.extend(number(*page).unwrap_or(UNMAPPED).to_le_bytes());
        }
        self.units.encode(&mut bytes);
        for frontier in &self.frontiers {
            bytes.extend(frontier.numbers().into_iter().flat_map(u32::to_le_bytes));
        }
        let checksum = XxHash3_64::oneshot(&bytes[HEAD_SIZE..]);
        bytes[8..HEAD_SIZE].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The numbers that must be equal in the drive that was encoded and in the one being decoded.
    fn shape(&self) -> [u64; 5] {
        [
            self.config.lba_count,
            self.units.count().into(),
            self.unit_pages.into(),
            self.config.handles.into(),
            self.frontiers.len() as u64,
        ]
    }

    /// The drive that `bytes` describe. `None` if the bytes are damaged, or if that drive
    /// does not have the shape that `config` says.
    pub(crate) fn decode(config: Config, bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(HEAD_SIZE)?;
        let checksum = XxHash3_64::oneshot(rest).to_le_bytes();
        if head[..8] != MAGIC || head[8..] != checksum {
            return None;
        }
        let mut input = Input(rest);
        let mut ftl = Self::new(config).ok()?;
        for number in ftl.shape() {
            if input.u64()? != number {
                return None;
            }
        }
        ftl.counters = Counters::from_numbers(&ftl.counters, || input.u64())?;
        for (lba, page_of) in ftl.page_of.iter_mut().enumerate() {
            let page = input.u32()?;
            if page != UNMAPPED {
                *page_of = link(page);
                *ftl.lba_of.get_mut(page as usize)? = link(lba as u32);
                ftl.mapped_count += 1;
            }
        }
        ftl.units = Units::decode(ftl.units.count(), &mut input)?;
        for frontier in &mut ftl.frontiers {
            *frontier = Frontier::from_numbers([input.u32()?, input.u32()?, input.u32()?]);
        }
        if !input.0.is_empty() {
            return None;
        }
        ftl.count_valid(&ftl.config.clone());
        Some(ftl)
    }

    /// From the mapping and the units, computes how many pages of each unit are valid, and the order
    /// of the victims.
    fn count_valid(&mut self, config: &Config) {
        for page in self.page_of.iter().filter_map(|page| number(*page)) {
            self.units.add_valid(page / self.unit_pages);
        }
        self.victims = VictimIndex::new(config.victims, self.units.count(), self.unit_pages);
        let is_closed = |unit: &u32| self.units.is_closed(*unit);
        let mut closed: Vec<u32> = (0..self.units.count()).filter(is_closed).collect();
        closed.sort_by_key(|unit| self.units.closed_at(*unit));
        for unit in closed {
            self.victims.insert(unit, self.units.valid(unit));
        }
    }
}

pub(super) struct Input<'a>(&'a [u8]);

impl Input<'_> {
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

/// Written for [`Owner::Mixed`], where otherwise the number of a handle stands.
const MIXED: u32 = u32::MAX;

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

    fn decode(count: u32, input: &mut Input<'_>) -> Option<Self> {
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
        let free: Option<_> = (0..free_count).map(|_| input.u32()).collect();
        Some(Self::of_saved(&saved, free?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isolation, Victims};

    fn used(config: &Config) -> Ftl {
        let mut drive = Ftl::new(config.clone()).expect("it can work");
        let lbas = config.lba_count;
        for round in 0..3 * lbas {
            let lba = round * round % lbas;
            drive.write(lba, (lba % u64::from(config.handles)) as u16).expect("it is within");
        }
        drive.deallocate(lbas / 3, lbas / 9).expect("it is within");
        drive
    }

    #[test]
    fn a_drive_goes_on_as_if_it_had_never_stopped() {
        for victims in [Victims::Greedy, Victims::CostBenefit, Victims::Fifo] {
            for isolation in [Isolation::Initial, Isolation::Persistent] {
                let config = Config { isolation, victims, ..Config::scaled(24 << 20) };
                let mut one = used(&config);
                let mut other = Ftl::decode(config.clone(), &one.encode()).expect("it is whole");
                assert_eq!(other.mapped_count(), one.mapped_count());
                assert!(other.units().eq(one.units()));
                assert_eq!(other.counters(), one.counters());
                for lba in (0..config.lba_count).rev() {
                    one.write(lba, 0).expect("it is within");
                    other.write(lba, 0).expect("it is within");
                }
                // If several victims are equally good, the two drives may choose different ones. So
                // only these counts have to be equal.
                assert_eq!(other.counters().host_bytes(), one.counters().host_bytes());
                assert_eq!(other.mapped_count(), one.mapped_count());
            }
        }
    }

    #[test]
    fn what_is_not_whole_or_of_another_drive_is_not_taken() {
        let config = Config::scaled(12 << 20);
        let bytes = used(&config).encode();
        let decode = |bytes: &[u8]| Ftl::decode(config.clone(), bytes);
        assert!(decode(&bytes).is_some());
        for cut in [0, 8, 16, 60, bytes.len() - 1] {
            assert!(decode(&bytes[..cut]).is_none(), "cut at {cut}");
        }
        for at in (0..bytes.len()).step_by(997) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert!(decode(&damaged).is_none(), "changed at {at}");
        }
        assert!(Ftl::decode(Config { handles: 7, ..config.clone() }, &bytes).is_none());
    }
}
