//! What a drive is made of: channels, dies, erase blocks, NAND pages, reclaim units.
//!
//! ```text
//! channel 0   die 0: | block 0 | block 1 | ...       a reclaim unit: a block of each of its dies.
//!             die 8: | block 0 | block 1 | ...       Its pages go to these dies in turn.
//! channel 1   die 1: ...
//! ```

use std::num::NonZeroU32;

use slimio_device::LBA_SIZE;

/// The NAND of a drive. A NAND page holds one logical block of [`LBA_SIZE`] bytes. There are no
/// planes: the blocks of a die's planes all count as blocks of the die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of channels. Channels transfer independently of one another.
    pub channels: u32,
    /// Number of dies on each channel. Dies read, program and erase independently of one another.
    pub dies_per_channel: u32,
    /// Number of erase blocks in each die.
    pub blocks_per_die: u32,
    /// Number of NAND pages in each erase block.
    pub pages_per_block: u32,
    /// The number of dies that one reclaim unit spans. The number of all dies must be a multiple of
    /// this number. A unit has one block of each die that it spans. `None` means that a unit spans
    /// all dies.
    pub dies_per_unit: Option<NonZeroU32>,
}

impl Geometry {
    /// The geometry of the drive in SlimIO's paper: 8 channels of 8 dies, erase blocks of 16 MiB,
    /// reclaim units of 1 GiB, and a third more NAND than the 180 GiB that are exported.
    ///
    /// Source: the emulator behind the paper, lass-lab/ConfFDP, `femu-scripts/run-fdp.sh`.
    pub const PAPER: Self = Self {
        channels: 8,
        dies_per_channel: 8,
        blocks_per_die: 240,
        pages_per_block: 4096,
        dies_per_unit: None,
    };

    /// Number of dies.
    pub const fn die_count(&self) -> u32 {
        self.channels * self.dies_per_channel
    }

    /// Number of dies that a reclaim unit spans.
    pub const fn unit_dies(&self) -> u32 {
        match self.dies_per_unit {
            Some(dies) => dies.get(),
            None => self.die_count(),
        }
    }

    /// Number of NAND pages of a reclaim unit.
    pub const fn unit_pages(&self) -> u32 {
        self.unit_dies() * self.pages_per_block
    }

    /// Size of a reclaim unit in bytes.
    pub const fn unit_size(&self) -> u64 {
        self.unit_pages() as u64 * LBA_SIZE as u64
    }

    /// Number of reclaim units.
    pub const fn unit_count(&self) -> u32 {
        self.blocks_per_die * (self.die_count() / self.unit_dies())
    }

    /// Number of NAND pages.
    pub const fn page_count(&self) -> u64 {
        self.unit_count() as u64 * self.unit_pages() as u64
    }

    /// The die of a NAND page. Consecutive pages of a unit are on consecutive dies, and consecutive
    /// dies are on different channels.
    pub const fn die_of(&self, page: u32) -> u32 {
        let dies = self.unit_dies();
        let groups = self.die_count() / dies;
        let unit = page / self.unit_pages();
        (unit % groups) * dies + (page % self.unit_pages()) % dies
    }

    /// The channel that a die is on.
    pub const fn channel_of(&self, die: u32) -> u32 {
        die % self.channels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_drive_has_its_sizes() {
        let paper = Geometry::PAPER;
        assert_eq!(paper.unit_size(), 1 << 30);
        assert_eq!(paper.unit_count(), 240);
        assert_eq!(paper.page_count() * LBA_SIZE as u64 / 4 * 3, 180 << 30);
    }

    #[test]
    fn a_unit_goes_round_its_channels_first() {
        let geometry = Geometry {
            channels: 2,
            dies_per_channel: 4,
            blocks_per_die: 3,
            pages_per_block: 2,
            dies_per_unit: NonZeroU32::new(4),
        };
        assert_eq!(geometry.unit_pages(), 8);
        assert_eq!(geometry.unit_count(), 6);
        let dies: Vec<u32> = (0..24).map(|page| geometry.die_of(page)).collect();
        assert_eq!(dies[..8], [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(dies[8..16], [4, 5, 6, 7, 4, 5, 6, 7]);
        assert_eq!(dies[16..], dies[..8]);
        assert_eq!(geometry.channel_of(0), 0);
        assert_eq!(geometry.channel_of(3), 1);
    }
}
