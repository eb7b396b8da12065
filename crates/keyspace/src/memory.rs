//! Sizes in memory, as the allocator rounds them.
//!
//! Eviction and `MEMORY` work with sums of these sizes. The sums are logical: a value that two keys
//! share is counted for both keys. A deleted value is not counted, even while a command still reads
//! it.

/// Bytes that an allocation takes, by the size classes that mimalloc and jemalloc have in common.
/// The classes are eight bytes, then steps of 16 up to 128, then four classes for each power of
/// two.
pub(crate) fn allocated(size: usize) -> usize {
    match size {
        0 => 0,
        1..=8 => 8,
        9..=128 => size.next_multiple_of(16),
        _ => size.next_multiple_of(1 << ((size - 1).ilog2() - 2)),
    }
}

/// Bytes of an `Arc<Vec<u8>>` of this capacity. One allocation holds two counters and the vector's
/// head; another allocation holds the vector's bytes.
pub(crate) fn allocated_piece(capacity: usize) -> usize {
    const HEAD_SIZE: usize = 2 * size_of::<usize>() + size_of::<Vec<u8>>();
    allocated(HEAD_SIZE) + allocated(capacity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_to_classes() {
        let cases = [
            (0, 0),
            (1, 8),
            (8, 8),
            (9, 16),
            (17, 32),
            (128, 128),
            (129, 160),
            (160, 160),
            (193, 224),
            (256, 256),
            (257, 320),
            (1025, 1280),
            (4096, 4096),
            (4097, 5120),
            (262_144, 262_144),
        ];
        for (size, expected) in cases {
            assert_eq!(allocated(size), expected, "{size}");
        }
    }

    #[test]
    fn less_than_a_quarter_is_wasted_behind_the_small_classes() {
        for size in 129..100_000 {
            let taken = allocated(size);
            assert!(taken >= size && (taken - size) * 4 < size, "{size} takes {taken}");
            assert_eq!(allocated(taken), taken, "{size}");
        }
    }
}
