//! The compressor. It is designed to waste little time on data that cannot be compressed.
//!
//! The compressor looks up earlier occurrences of four bytes in a small hash table. The longer it
//! finds no occurrence, the larger its steps become, so that it skips most of a run of random
//! bytes. It copies nothing to the output before it has found the first match. It gives up a string
//! that would not shrink by at least a sixteenth and by at least four bytes, because decompressing
//! such a string would cost the reader more than the smaller size saves. After it has given up many
//! strings in a row, it tries only some of the following strings, until one shrinks.

use super::{LITERALS_MAX, LONG, MATCH_MAX, WINDOW};

/// Strings of fewer bytes are not compressed. Redis has the same limit.
pub const LZF_SIZE_MIN: usize = 21;
/// Strings of more bytes are not compressed, so that the memory for the result is bounded.
pub const LZF_SIZE_MAX: usize = 4 << 20;

/// The table remembers at most 2^n places. This is the exponent n. The table takes 16 KiB, which is
/// half of a core's fastest cache.
const TABLE_BITS_MAX: u32 = 12;
/// The table remembers at least 2^n places. This is the exponent n.
const TABLE_BITS_MIN: u32 = 6;
/// Bytes that must be equal for a match. The format also allows matches of three bytes, but such
/// matches would gain nothing.
const MATCH_MIN: usize = 4;
/// Each time 2^n places had no match, the step grows by one byte. This is the exponent n.
const PATIENCE_BITS: usize = 5;
/// Limit of the step, in bytes. With larger steps, compressible data after random bytes could be
/// missed.
const STEP_MAX: usize = 64;
/// After this many strings in a row that did not shrink, only one string in four is tried.
const GIVEN_UP_MAX: u32 = 16;
/// Room after the result, in bytes. Copies of fixed size may go beyond the end of the result.
const SLACK: usize = LITERALS_MAX + 8;

/// Compresses one string after the other. From one string to the next, it remembers only how many
/// strings in a row did not shrink.
#[derive(Debug)]
pub struct Compressor {
    /// For each hash, the place in the input where four bytes with this hash occurred last, or 0.
    table: Box<[u32; 1 << TABLE_BITS_MAX]>,
    out: Vec<u8>,
    /// Count of strings in a row that did not shrink, including those that were not tried.
    given_up: u32,
}

impl Default for Compressor {
    fn default() -> Self {
        Self::new()
    }
}

impl Compressor {
    /// A compressor with 16 KiB for its table. Memory for results is allocated when it is needed.
    pub fn new() -> Self {
        Self { table: Box::new([0; 1 << TABLE_BITS_MAX]), out: Vec::new(), given_up: 0 }
    }

    /// The compressed form of `input`. `None` if that form would not be at least a sixteenth and at
    /// least four bytes smaller, or if `input` is shorter than [`LZF_SIZE_MIN`] or longer than
    /// [`LZF_SIZE_MAX`]. Also `None` if `input` was not tried: after 16 strings in a row that did
    /// not shrink, only one string in four is tried.
    pub fn compress(&mut self, input: &[u8]) -> Option<&[u8]> {
        if !(LZF_SIZE_MIN..=LZF_SIZE_MAX).contains(&input.len()) {
            return None;
        }
        if !self.is_worth_trying() {
            self.given_up = self.given_up.wrapping_add(1);
            return None;
        }
        // The table is cleared for each string. To keep this cheap, a short string uses only a part
        // of the table. Every place in a cleared table lies before the current place. So the
        // compressor need not check this, and saves an unpredictable branch.
        let bits = input.len().ilog2().clamp(TABLE_BITS_MIN, TABLE_BITS_MAX);
        self.table[..1 << bits].fill(0);
        let size_max = input.len() - (input.len() / 16).max(4);
        if self.out.len() < size_max + SLACK {
            self.out.resize(size_max + SLACK, 0);
        }
        let Some(written) = run(input, &mut self.table, bits, &mut self.out, size_max) else {
            self.given_up = self.given_up.wrapping_add(1);
            return None;
        };
        self.given_up = 0;
        Some(&self.out[..written])
    }
}

impl Compressor {
    /// Whether the next string should be tried. If every fourth string were tried, the same kind of
    /// string could be missed each time, because strings often come in a regular order, such as
    /// fields and values in turn. Multiples of the golden ratio also select a fourth of the
    /// strings, but their selection has no period (Knuth, The Art of Computer Programming 3, 6.4).
    fn is_worth_trying(&self) -> bool {
        self.given_up < GIVEN_UP_MAX || self.given_up.wrapping_mul(0x9e37_79b9) >> 30 == 0
    }
}

/// Compresses `input` into `out`. Returns the size of the result in bytes; `None` if it would be
/// larger than `size_max`, or if there is no match. `out` must have room for [`SLACK`] bytes more
/// than `size_max`.
fn run(
    input: &[u8],
    table: &mut [u32; 1 << TABLE_BITS_MAX],
    bits: u32,
    out: &mut [u8],
    size_max: usize,
) -> Option<usize> {
    let mut written = 0;
    // The place in `input` at which the unwritten literals begin.
    let mut pending = 0;
    // 0 marks an empty entry of the table, so the search starts at 1.
    let mut at = 1;
    let mut misses = 0;
    while let Some(word) = word_at(input, at) {
        let hash = word.wrapping_mul(0x9e37_79b1) >> (32 - bits);
        let place = &mut table[hash as usize % (1 << TABLE_BITS_MAX)];
        let before = *place as usize;
        *place = at as u32;
        let distance = at - before;
        if word_at(input, before) != Some(word) || distance > WINDOW {
            at += (1 + (misses >> PATIENCE_BITS)).min(STEP_MAX);
            misses += 1;
            continue;
        }
        // A step may have skipped the beginning of the match.
        let mut start = at;
        while start > pending && start > distance && input[start - 1] == input[start - 1 - distance]
        {
            start -= 1;
        }
        let end = at + MATCH_MIN + common_size(input, at + MATCH_MIN, distance);
        written = literals(input, pending, start, out, written, size_max)?;
        (written, pending) = matches(start, end, distance, out, written, size_max)?;
        at = pending;
        // The count of misses is halved, not set to zero, because the data after a match often
        // resembles the data before the match.
        misses /= 2;
    }
    if pending == 0 {
        return None;
    }
    literals(input, pending, input.len(), out, written, size_max)
}

fn word_at(input: &[u8], at: usize) -> Option<u32> {
    input.get(at..at + MATCH_MIN)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

/// How many bytes from `at` on are equal to the bytes that lie `distance` before them.
fn common_size(input: &[u8], at: usize, distance: usize) -> usize {
    let (now, then) = (&input[at..], &input[at - distance..]);
    let mut size = 0;
    for (a, b) in now.chunks_exact(8).zip(then.chunks_exact(8)) {
        let (Some(a), Some(b)) = (a.first_chunk(), b.first_chunk()) else { break };
        let differing = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differing != 0 {
            return size + (differing.trailing_zeros() / 8) as usize;
        }
        size += 8;
    }
    size + now[size..].iter().zip(&then[size..]).take_while(|(a, b)| a == b).count()
}

/// Writes `input[start..end]` as literals to `out` from `written` on. Returns where the literals
/// end in `out`.
fn literals(
    input: &[u8],
    start: usize,
    end: usize,
    out: &mut [u8],
    mut written: usize,
    size_max: usize,
) -> Option<usize> {
    let size = end - start;
    if written + size + size.div_ceil(LITERALS_MAX) > size_max {
        return None;
    }
    let mut runs = input[start..end].chunks_exact(LITERALS_MAX);
    for run in &mut runs {
        out[written] = LITERALS_MAX as u8 - 1;
        out[written + 1..written + 1 + LITERALS_MAX].copy_from_slice(run);
        written += 1 + LITERALS_MAX;
    }
    let rest = runs.remainder();
    if rest.is_empty() {
        return Some(written);
    }
    out[written] = rest.len() as u8 - 1;
    let rest_start = end - rest.len();
    let room = &mut out[written + 1..written + 1 + LITERALS_MAX];
    // Copying the largest possible run takes less time than copying exactly the rest.
    match input.get(rest_start..rest_start + LITERALS_MAX) {
        Some(run) => room.copy_from_slice(run),
        None => room[..rest.len()].copy_from_slice(rest),
    }
    Some(written + 1 + rest.len())
}

/// Writes `start..end` as matches. Returns the end of the output, and where the matches end in the
/// input: up to two bytes may be left over.
fn matches(
    start: usize,
    end: usize,
    distance: usize,
    out: &mut [u8],
    mut written: usize,
    size_max: usize,
) -> Option<(usize, usize)> {
    let mut rest = end - start;
    let [high, low] = (distance as u16 - 1).to_be_bytes();
    while rest > 2 {
        let size = rest.min(MATCH_MAX);
        let length = size - 2;
        if written + 3 > size_max {
            return None;
        }
        if length < LONG {
            out[written] = (length as u8) << 5 | high;
            out[written + 1] = low;
            written += 2;
        } else {
            out[written] = (LONG as u8) << 5 | high;
            out[written + 1] = (length - LONG) as u8;
            out[written + 2] = low;
            written += 3;
        }
        rest -= size;
    }
    Some((written, end - rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lzf::decompress;
    use proptest::prelude::*;

    fn round_trip(compressor: &mut Compressor, input: &[u8]) -> Option<usize> {
        let compressed = compressor.compress(input)?;
        assert!(compressed.len() <= input.len() - 4);
        let mut out = b"before".to_vec();
        decompress(compressed, input.len(), &mut out).unwrap();
        assert_eq!(&out[6..], input);
        Some(compressed.len())
    }

    #[test]
    fn the_sizes_that_are_known() {
        let mut compressor = Compressor::new();
        assert_eq!(round_trip(&mut compressor, &[7; 20]), None, "too short");
        // One literal, then one match of the rest.
        assert_eq!(round_trip(&mut compressor, &[7; 21]), Some(2 + 3));
        assert_eq!(round_trip(&mut compressor, &[7; 265]), Some(2 + 3));
        assert_eq!(round_trip(&mut compressor, &[7; 1 + 2 * 264]), Some(2 + 6));
        // The last two bytes are too few for a match.
        assert_eq!(round_trip(&mut compressor, &[7; 1 + 264 + 2]), Some(2 + 3 + 3));
        assert_eq!(round_trip(&mut compressor, &vec![0; LZF_SIZE_MAX + 1]), None, "too long");
        assert!(round_trip(&mut compressor, &vec![0; LZF_SIZE_MAX]).unwrap() < LZF_SIZE_MAX / 80);
    }

    #[test]
    fn places_of_an_earlier_string_are_not_believed() {
        let mut compressor = Compressor::new();
        let first: Vec<u8> = (0..200).collect();
        assert_eq!(round_trip(&mut compressor, &first), None);
        assert_eq!(round_trip(&mut compressor, &first), None, "an earlier string gave a match");
        assert!(round_trip(&mut compressor, &first.repeat(2)).is_some());
    }

    #[test]
    fn after_many_that_do_not_shrink_few_are_tried_until_one_does() {
        let random = |seed: u64| {
            let mut state = seed;
            let mut bytes = Vec::new();
            bytes.resize_with(300, || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            });
            bytes
        };
        // Each string that shrinks follows 1 to 6 strings that never shrink, like the value of the
        // same field in many hashes. The compressor must soon try one of the shrinking strings.
        for period in 2..=7_u64 {
            let mut compressor = Compressor::new();
            for seed in 0..1000 {
                assert_eq!(round_trip(&mut compressor, &random(seed)), None);
            }
            let shrinking = [7; 300];
            let rounds: Vec<bool> = (0..100 * period)
                .filter_map(|n| {
                    let is_last = n % period == period - 1;
                    let input = if is_last { shrinking.to_vec() } else { random(n) };
                    let shrank = round_trip(&mut compressor, &input).is_some();
                    is_last.then_some(shrank)
                })
                .collect();
            let first = rounds.iter().position(|shrank| *shrank);
            assert!(
                first.is_some_and(|first| first < 20),
                "period {period}: first shrunk {first:?}"
            );
            assert!(rounds[first.unwrap()..].iter().all(|shrank| *shrank), "period {period}");
        }
    }

    #[test]
    fn matches_reach_back_as_far_as_they_can_and_no_further() {
        let mut compressor = Compressor::new();
        let unit = |gap: usize| {
            let mut seed = 1_u64;
            let mut bytes = b"this stands here and again there, at some distance!".to_vec();
            bytes.resize_with(gap, || {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 56) as u8
            });
            bytes.extend_from_within(..51);
            // There are enough zeros that the whole string is worth compressing.
            bytes.resize(2 * gap, 0);
            bytes
        };
        for gap in [WINDOW - 1, WINDOW, WINDOW + 1] {
            assert!(round_trip(&mut compressor, &unit(gap)).is_some(), "{gap}");
        }
    }

    fn compressible() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..200),
            (any::<u8>(), 0..1000_usize).prop_map(|(byte, size)| vec![byte; size]),
            proptest::collection::vec(0..3_u8, 0..300),
            ("[a-c]{1,9}", 1..50_usize).prop_map(|(text, count)| text.repeat(count).into_bytes()),
        ];
        proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn what_is_compressed_comes_back(inputs in proptest::collection::vec(compressible(), 1..4)) {
            let mut compressor = Compressor::new();
            for input in inputs {
                round_trip(&mut compressor, &input);
            }
        }
    }
}
