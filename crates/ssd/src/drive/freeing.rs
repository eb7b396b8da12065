//! The drive's blocks that hold no data, but may still take space in the drive's file.

use std::collections::BTreeMap;
use std::ops::Range;

/// After a drive was opened, it asks the file system where the file has holes, for this many blocks
/// at a time. The drive is locked while the file system answers, for at most half a millisecond.
const LOOK_LBAS: u64 = 128;

/// Blocks whose space has to be given back, and parts of the drive that may have more such blocks.
#[derive(Debug, Default)]
pub(super) struct Freeing {
    /// Ranges that do not touch: the end of each, by its start.
    ranges: BTreeMap<u64, u64>,
    /// For each part of the drive, whether nobody has looked at the part since the drive was
    /// opened.
    unseen: Vec<bool>,
}

impl Freeing {
    /// The state for a drive of `lba_count` blocks that was just opened.
    pub(super) fn of_opened(lba_count: u64) -> Self {
        let parts = lba_count.div_ceil(LOOK_LBAS) as usize;
        Self { ranges: BTreeMap::new(), unseen: vec![true; parts] }
    }

    /// The next part of the drive that has one of these blocks and was not looked at yet. The
    /// caller has to look at it.
    pub(super) fn take_unseen(&mut self, blocks: &Range<u64>) -> Option<Range<u64>> {
        let parts = blocks.start / LOOK_LBAS..blocks.end.div_ceil(LOOK_LBAS);
        let is_unseen = |part: &u64| self.unseen.get(*part as usize).is_some_and(|unseen| *unseen);
        let part = parts.into_iter().find(is_unseen)?;
        self.unseen[part as usize] = false;
        Some(part * LOOK_LBAS..(part + 1) * LOOK_LBAS)
    }

    /// Adds blocks whose space has to be given back.
    pub(super) fn add(&mut self, blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        let Range { mut start, mut end } = blocks;
        while let Some((&at, &until)) = self.ranges.range(..=end).next_back()
            && until >= start
        {
            self.ranges.remove(&at);
            (start, end) = (start.min(at), end.max(until));
        }
        self.ranges.insert(start, end);
    }

    /// Removes blocks whose space was given back, or must not be given back any more.
    pub(super) fn remove(&mut self, blocks: &Range<u64>) {
        while let Some(found) = self.last_in(blocks) {
            let end = self.ranges.remove(&found.start).unwrap_or(found.end);
            if found.start < blocks.start {
                self.ranges.insert(found.start, blocks.start);
            }
            if blocks.end < end {
                self.ranges.insert(blocks.end, end);
            }
        }
    }

    /// The last range that has one of these blocks.
    fn last_in(&self, blocks: &Range<u64>) -> Option<Range<u64>> {
        let (&start, &end) = self.ranges.range(..blocks.end).next_back()?;
        (end > blocks.start && !blocks.is_empty()).then_some(start..end)
    }

    /// Within these blocks, the first range whose space has to be given back.
    pub(super) fn first_in(&self, blocks: &Range<u64>) -> Option<Range<u64>> {
        let before = self.ranges.range(..=blocks.start).next_back();
        let before = before.filter(|(_, end)| **end > blocks.start);
        let (start, end) = before.or_else(|| self.ranges.range(blocks.start..).next())?;
        let found = blocks.start.max(*start)..blocks.end.min(*end);
        (!found.is_empty()).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use slimio_sim::Random;

    use super::*;

    #[test]
    fn it_holds_what_was_added_and_not_taken_away() {
        let mut random = Random::new(3);
        let mut freeing = Freeing::default();
        let mut all = [false; 64];
        for _ in 0..5000 {
            let (start, count) = (random.below(60), random.below(5));
            let blocks = start..start + count;
            let is_added = random.below(2) == 0;
            if is_added {
                freeing.add(blocks.clone());
            } else {
                freeing.remove(&blocks);
            }
            all[start as usize..(start + count) as usize].fill(is_added);
            let from = random.below(64);
            let found = freeing.first_in(&(from..64));
            let is_in = |lba: &u64| all[*lba as usize];
            let first = (from..64).find(is_in);
            let expected = first.map(|at| at..(at..64).find(|lba| !is_in(lba)).unwrap_or(64));
            assert_eq!(found, expected, "{freeing:?}");
        }
    }

    #[test]
    fn each_part_is_looked_at_once() {
        let mut freeing = Freeing::of_opened(3 * LOOK_LBAS - 1);
        let mut seen = Vec::new();
        while let Some(part) = freeing.take_unseen(&(LOOK_LBAS - 1..LOOK_LBAS + 1)) {
            seen.push(part.start / LOOK_LBAS);
        }
        assert_eq!(seen, [0, 1]);
        assert_eq!(freeing.take_unseen(&(0..3 * LOOK_LBAS)), Some(256..384));
        assert_eq!(freeing.take_unseen(&(0..u64::from(u32::MAX))), None);
    }
}
