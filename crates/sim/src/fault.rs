//! Faults that a test requests and can lift again. Rot and read errors do not change the data
//! itself.

use std::collections::{HashMap, HashSet};

/// The faults that a disk has until a test lifts them. Blocks are named by a space (a file of the
/// disk, or the disk as one device) and an LBA.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Blocks that are read with one wrong byte. The value is the byte's offset in the block and a
    /// mask, with which the byte is XORed.
    pub rotten: HashMap<(usize, u64), (usize, u8)>,
    /// Blocks that can't be read.
    pub unreadable: HashSet<(usize, u64)>,
    /// Writes that touch one of these blocks fail.
    pub unwritable: HashSet<(usize, u64)>,
    /// Writes that start at one of these blocks complete, but change nothing.
    pub lost: HashSet<(usize, u64)>,
    /// Writes that start at the first block complete, but go to the second block instead, in the
    /// same space.
    pub misdirected: HashMap<(usize, u64), u64>,
    /// This many more writes succeed. All later writes fail.
    pub writes_until_failure: Option<u64>,
    /// This many more flushes succeed. All later flushes fail.
    pub flushes_until_failure: Option<u64>,
    /// This many more deallocations succeed. Each later deallocation fails after its first half.
    pub deallocations_until_failure: Option<u64>,
    /// Writes that start at one of these blocks do not complete until the fault is lifted.
    pub held: HashSet<(usize, u64)>,
    /// If set, flushes do not complete until the fault is lifted.
    pub holds_flushes: bool,
    /// After a [kick](slimio_device::Device::kick), operations are handed to the disk only after
    /// this many polls or waits with a timeout. A wait without a timeout hands them over at once.
    pub untaken_polls: u32,
    /// If set, no space can grow, and holes can't be written: the disk has no free blocks.
    pub full: bool,
    /// If set, all operations fail.
    pub gone: bool,
}

/// Counts down by one. Returns true if the count was 0 already.
pub(crate) fn count_down(left: &mut Option<u64>) -> bool {
    match left {
        None => false,
        Some(0) => true,
        Some(left) => {
            *left -= 1;
            false
        }
    }
}
