//! Marks for the buckets that hold keys that expire. A mark is one bit. A segment has `SEGMENT_LEN`
//! buckets, and a group has `SEGMENT_LEN` segments. There are counts of the marked buckets by
//! segment and by group, so that a few marked buckets among many are found in bounded time.
//!
//! The marks cost one bit per bucket. Redis has a separate table for the keys that expire, which
//! costs tens of bytes per key.

use super::SEGMENT_LEN;

const WORD_BITS: usize = u64::BITS as usize;

/// The bits of a segment.
type Bits = [u64; SEGMENT_LEN / WORD_BITS];

const _: () = assert!(SEGMENT_LEN.is_multiple_of(WORD_BITS));

/// The marked buckets of a table.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    groups: Vec<Group>,
    count: usize,
}

#[derive(Clone, Debug, Default)]
struct Group {
    /// Sum of `counts`.
    count: usize,
    /// Counts of marked buckets by segment. The counts are kept apart from the bits, so that a
    /// search through all counts of a group reads only 2 KiB.
    counts: Vec<u16>,
    bits: Vec<Bits>,
}

impl Marks {
    /// Count of marked buckets.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Marks or unmarks a bucket.
    pub(super) fn set(&mut self, bucket: usize, is_marked: bool) {
        let (group, segment, word, bit) = place(bucket);
        if is_marked {
            self.reach(group, segment);
        }
        let Some(group) = self.groups.get_mut(group) else { return };
        let Some(bits) = group.bits.get_mut(segment) else { return };
        let was_marked = bits[word] & bit != 0;
        if is_marked && !was_marked {
            bits[word] |= bit;
            group.counts[segment] += 1;
            group.count += 1;
            self.count += 1;
        } else if was_marked && !is_marked {
            bits[word] &= !bit;
            group.counts[segment] -= 1;
            group.count -= 1;
            self.count -= 1;
        }
    }

    /// Makes room for the bits of a segment.
    fn reach(&mut self, group: usize, segment: usize) {
        if self.groups.len() <= group {
            self.groups.resize_with(group + 1, Group::default);
        }
        let group = &mut self.groups[group];
        if group.bits.len() <= segment {
            group.bits.resize(segment + 1, Bits::default());
            group.counts.resize(segment + 1, 0);
        }
    }

    /// The marked bucket with `rank` marked buckets before it; `None` if at most `rank` buckets are
    /// marked.
    pub(super) fn nth(&self, mut rank: usize) -> Option<usize> {
        let (group, found) = self.groups.iter().enumerate().find(|(_, group)| {
            let is_here = rank < group.count;
            rank -= if is_here { 0 } else { group.count };
            is_here
        })?;
        let (segment, _) = found.counts.iter().enumerate().find(|(_, count)| {
            let is_here = rank < usize::from(**count);
            rank -= if is_here { 0 } else { usize::from(**count) };
            is_here
        })?;
        let (word, bits) = found.bits[segment].iter().enumerate().find(|(_, bits)| {
            let count = bits.count_ones() as usize;
            let is_here = rank < count;
            rank -= if is_here { 0 } else { count };
            is_here
        })?;
        let mut bits = *bits;
        for _ in 0..rank {
            bits &= bits - 1;
        }
        Some(bucket(group, segment, word) + bits.trailing_zeros() as usize)
    }

    /// The first marked bucket from `from` on.
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        let (first_group, first_segment, first_word, bit) = place(from);
        for (index, group) in self.groups.iter().enumerate().skip(first_group) {
            if group.count == 0 {
                continue;
            }
            let is_first_group = index == first_group;
            let skipped = if is_first_group { first_segment } else { 0 };
            for (segment, count) in group.counts.iter().enumerate().skip(skipped) {
                if *count == 0 {
                    continue;
                }
                let is_first = is_first_group && segment == first_segment;
                let skipped = if is_first { first_word } else { 0 };
                for (word, bits) in group.bits[segment].iter().enumerate().skip(skipped) {
                    let is_first = is_first && word == first_word;
                    let bits = if is_first { bits & !(bit - 1) } else { *bits };
                    if bits != 0 {
                        return Some(bucket(index, segment, word) + bits.trailing_zeros() as usize);
                    }
                }
            }
        }
        None
    }
}

impl Marks {
    /// Counts the marks again, and returns their count. Panics if a stored count differs, or if a
    /// mark is for a bucket that does not exist.
    pub(super) fn check(&self, bucket_count: usize) -> usize {
        let mut all = 0;
        for group in &self.groups {
            assert_eq!(group.counts.len(), group.bits.len(), "each segment must have a count");
            let mut of_group = 0;
            for (bits, count) in group.bits.iter().zip(&group.counts) {
                let marked: u32 = bits.iter().map(|word| word.count_ones()).sum();
                assert_eq!(marked, u32::from(*count), "a segment has a wrong count of its marks");
                of_group += marked as usize;
            }
            assert_eq!(of_group, group.count, "a group has a wrong count of its marks");
            all += of_group;
        }
        assert_eq!(self.next(bucket_count), None, "a bucket past the last one is marked");
        all
    }
}

/// The place of a bucket's bit: the group, the segment, the word within the segment, and the bit as
/// a mask of that word.
fn place(bucket: usize) -> (usize, usize, usize, u64) {
    let (group, segment, within) = super::place(bucket);
    (group, segment, within / WORD_BITS, 1 << (within % WORD_BITS))
}

/// The number of the bucket whose bit is the lowest of a word.
fn bucket(group: usize, segment: usize, word: usize) -> usize {
    (group * SEGMENT_LEN + segment) * SEGMENT_LEN + word * WORD_BITS
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn marks_are_those_of_a_set() {
        let mut marks = Marks::default();
        let mut model = BTreeSet::new();
        let mut state = 7u64;
        for round in 0..4_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Bucket numbers from three groups alternate with small bucket numbers, many of which
            // are equal.
            let bound = if round % 2 == 0 { 300 } else { 3 * SEGMENT_LEN * SEGMENT_LEN };
            let bucket = (state >> 20) as usize % bound;
            let is_marked = state >> 62 != 0;
            marks.set(bucket, is_marked);
            if is_marked {
                model.insert(bucket)
            } else {
                model.remove(&bucket)
            };
            assert_eq!(marks.count(), model.len());
            assert_eq!(marks.next(bucket), model.range(bucket..).next().copied());
        }
        for (rank, bucket) in model.iter().enumerate() {
            assert_eq!(marks.nth(rank), Some(*bucket));
        }
        assert_eq!(marks.nth(model.len()), None);
        let mut walked = Vec::new();
        let mut from = 0;
        while let Some(bucket) = marks.next(from) {
            walked.push(bucket);
            from = bucket + 1;
        }
        assert!(walked.iter().eq(model.iter()));
        for bucket in model {
            marks.set(bucket, false);
        }
        assert_eq!((marks.count(), marks.nth(0), marks.next(0)), (0, None, None));
    }
}
