//! The previous format of a drive's state. States of this format are only read.
//!
//! ```text
//! | magic | checksum | lba_count | units, unit_pages, handles, frontiers | counters |
//! | page of each block ... | each unit ... | free units ... | each frontier ... |
//! ```
//!
//! All integers are little-endian. The checksum (XXH3) covers everything after it. The format has
//! neither the order in which units become victims of the collector, nor the FDP events.

use twox_hash::XxHash3_64;

use super::state::Input;
use super::units::Units;
use super::{Counters, Ftl, link};
use crate::Config;

const MAGIC: [u8; 8] = *b"SLIMSSD1";

/// The checksum covers the bytes from this offset on.
const HEAD_SIZE: usize = 16;

/// Stands for "no page": the block is not mapped.
const UNMAPPED: u32 = u32::MAX;

impl Ftl {
    /// The drive that `bytes` describe. `None` if the bytes are damaged, or if the drive does not
    /// have the shape that `config` says.
    pub(crate) fn decode_old(config: Config, bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(HEAD_SIZE)?;
        let checksum = XxHash3_64::oneshot(rest).to_le_bytes();
        if head[..8] != MAGIC || head[8..] != checksum {
            return None;
        }
        assert_eq!(config.groups, 1, "a drive of the previous format must have one group");
        let mut input = Input(rest);
        let mut ftl = Self::new(config).ok()?;
        ftl.decode_shape(&mut input)?;
        ftl.counters = Counters::from_numbers(&ftl.counters, || input.u64())?;
        for lba in 0..ftl.page_of.len() {
            let page = input.u32()?;
            if page != UNMAPPED {
                ftl.restore(lba, link(page))?;
            }
        }
        ftl.units = Units::decode(ftl.units.count(), 1, &mut input)?;
        ftl.decode_frontiers(&mut input)?;
        ftl.count_valid()?;
        ftl.order_victims_by_age();
        input.0.is_empty().then_some(ftl)
    }
}
