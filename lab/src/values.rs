//! Values of a chosen entropy: a different value for every request, at the price of a copy.
//!
//! A pool of bytes is made once: units of random bytes followed by filler. A compressor can shrink
//! the filler and nothing else. A value is a piece of the pool that begins at a random byte. So two
//! requests practically never send the same bytes, and nothing is generated during a measurement.

use fastrand::Rng;

/// Number of starting points in the pool. It is so small that the pool stays in a core's cache.
const START_COUNT: usize = 1 << 20;
/// Length of one unit of random bytes and filler, in bytes. If values are shorter, a unit is as
/// long as a value.
const UNIT_SIZE: usize = 256;
const FILLER: u8 = b'x';

/// Where the values of a run come from.
#[derive(Clone, Debug)]
pub struct ValuePool {
    bytes: Vec<u8>,
    value_size: usize,
}

impl ValuePool {
    /// Values of `value_size` bytes. `compressible` is the share of these bytes that a compressor
    /// can get rid of (0.0: nothing, 0.5: half, 1.0: all).
    ///
    /// # Panics
    /// When `compressible` is not between 0 and 1.
    pub fn new(value_size: usize, compressible: f64, seed: u64) -> Self {
        assert!((0.0..=1.0).contains(&compressible), "the compressible share is not within 0 to 1");
        let unit_size = UNIT_SIZE.min(value_size.max(1));
        let random_size = (unit_size as f64 * (1.0 - compressible)).round() as usize;
        let mut bytes = vec![FILLER; START_COUNT + value_size];
        let mut rng = Rng::with_seed(seed);
        for unit in bytes.chunks_mut(unit_size) {
            let random_size = random_size.min(unit.len());
            rng.fill(&mut unit[..random_size]);
        }
        Self { bytes, value_size }
    }

    /// Length of every value, in bytes.
    pub fn value_size(&self) -> usize {
        self.value_size
    }

    /// The next value.
    pub fn pick(&self, rng: &mut Rng) -> &[u8] {
        let start = rng.u64(..START_COUNT as u64) as usize;
        &self.bytes[start..start + self.value_size]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn compressed_share(value_size: usize, compressible: f64) -> f64 {
        let pool = ValuePool::new(value_size, compressible, 1);
        let mut rng = Rng::with_seed(2);
        let rounds = 100;
        let compressed: usize =
            (0..rounds).map(|_| lz4_flex::compress(pool.pick(&mut rng)).len()).sum();
        compressed as f64 / (rounds * value_size) as f64
    }

    #[test]
    fn values_compress_as_far_as_they_say() {
        for (compressible, expected) in [(0.0, 1.0), (0.25, 0.75), (0.5, 0.5), (1.0, 0.01)] {
            let share = compressed_share(4096, compressible);
            assert!((share - expected).abs() < 0.05, "{compressible}: {share}");
        }
        let small = compressed_share(64, 0.5);
        assert!((0.5..0.8).contains(&small), "64 bytes leave a compressor little room: {small}");
    }

    #[test]
    fn no_two_values_are_equal() {
        let pool = ValuePool::new(64, 0.5, 1);
        let mut rng = Rng::with_seed(2);
        let different: HashSet<&[u8]> = (0..1000).map(|_| pool.pick(&mut rng)).collect();
        assert!(different.len() > 990, "{} of 1000", different.len());
    }
}
