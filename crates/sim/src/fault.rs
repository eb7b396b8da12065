//! Faults that a test asks for. They lie over the data, so they can be lifted.

use std::collections::{HashMap, HashSet};

/// What is wrong with a disk, until it is lifted. A block is a space and an LBA.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Blocks whose bytes read differently: the byte at the offset is XORed with the mask.
    pub rotten: HashMap<(usize, u64), (usize, u8)>,
    /// Blocks that can't be read.
    pub unreadable: HashSet<(usize, u64)>,
    /// Writes that touch one of these blocks fail.
    pub unwritable: HashSet<(usize, u64)>,
    /// Writes that start at one of these blocks complete, but never happen.
    pub lost: HashSet<(usize, u64)>,
    /// Writes that start at the first block complete, but happen at the second.
    pub misdirected: HashMap<(usize, u64), u64>,
    /// This many more writes succeed, later ones fail.
    pub writes_until_failure: Option<u64>,
    /// This many more flushes succeed, later ones fail.
    pub flushes_until_failure: Option<u64>,
    /// This many more deallocations succeed, later ones fail half done.
    pub deallocations_until_failure: Option<u64>,
    /// Writes that start at one of these blocks do not complete before this is lifted.
    pub held: HashSet<(usize, u64)>,
    /// Flushes do not complete before this is lifted.
    pub holds_flushes: bool,
    /// Kicked operations are handed over after this many polls, or at a wait without a timeout.
    pub untaken_polls: u32,
    /// Space can't grow.
    pub full: bool,
    /// Everything fails.
    pub gone: bool,
}

/// Counts down by one; true when it has run out.
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
