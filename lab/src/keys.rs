//! Chooses the next key: uniform, zipfian as in YCSB, latest, in sequence, or new.

use fastrand::Rng;

use crate::rng::mix64;

/// YCSB's skew constant.
const ZIPFIAN_THETA: f64 = 0.99;

/// How the keys of a run are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum KeyDistribution {
    /// Every key equally often.
    Uniform,
    /// A few keys very often. A hash spreads them over the key range, as in YCSB's scrambled
    /// zipfian.
    Zipfian,
    /// Like zipfian, but ranks count back from the key that was inserted last (YCSB D).
    Latest,
    /// 0, 1, 2, … up to the last key, and then from 0 again.
    Sequential,
    /// New keys after the last key, each once.
    New,
}

impl KeyDistribution {
    /// Whether the keys are drawn by a Zipf distribution.
    fn is_skewed(self) -> bool {
        matches!(self, Self::Zipfian | Self::Latest)
    }
}

/// Draws key numbers below `count()`.
#[derive(Clone, Debug)]
pub struct KeyPicker {
    distribution: KeyDistribution,
    count: u64,
    next: u64,
    zipf: Zipf,
}

impl KeyPicker {
    /// A picker over the keys `0..count`.
    ///
    /// # Panics
    /// When `count` is 0.
    pub fn new(distribution: KeyDistribution, count: u64) -> Self {
        assert!(count > 0, "a run needs at least one key");
        let zipf = Zipf::new(if distribution.is_skewed() { count } else { 1 });
        Self { distribution, count, next: 0, zipf }
    }

    /// Number of keys in the range that keys are drawn from.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The next key number.
    pub fn pick(&mut self, rng: &mut Rng) -> u64 {
        match self.distribution {
            KeyDistribution::Uniform => rng.u64(..self.count),
            KeyDistribution::Zipfian => mix64(self.zipf.rank(rng)) % self.count,
            KeyDistribution::Latest => self.count - 1 - self.zipf.rank(rng),
            KeyDistribution::Sequential => {
                let key = self.next;
                self.next = (key + 1) % self.count;
                key
            }
            KeyDistribution::New => self.insert(),
        }
    }

    /// Makes the key range longer by one key, and returns the new key's number.
    pub fn insert(&mut self) -> u64 {
        let key = self.count;
        self.count += 1;
        if self.distribution.is_skewed() {
            self.zipf.grow();
        }
        key
    }
}

/// Draws ranks. The probability of a rank is proportional to 1 / (rank + 1)^θ. The method is that
/// of Gray et al., "Quickly generating billion-record synthetic databases", as in YCSB.
#[derive(Clone, Debug)]
struct Zipf {
    count: u64,
    zeta: f64,
    zeta_of_two: f64,
    alpha: f64,
}

impl Zipf {
    fn new(count: u64) -> Self {
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-ZIPFIAN_THETA)).sum::<f64>();
        Self { count, zeta: zeta(count), zeta_of_two: zeta(2), alpha: 1.0 / (1.0 - ZIPFIAN_THETA) }
    }

    fn grow(&mut self) {
        self.count += 1;
        self.zeta += (self.count as f64).powf(-ZIPFIAN_THETA);
    }

    fn rank(&self, rng: &mut Rng) -> u64 {
        let unit = rng.f64();
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(ZIPFIAN_THETA) {
            return 1.min(self.count - 1);
        }
        let n = self.count as f64;
        let eta =
            (1.0 - (2.0 / n).powf(1.0 - ZIPFIAN_THETA)) / (1.0 - self.zeta_of_two / self.zeta);
        let rank = (n * (eta * unit - eta + 1.0).powf(self.alpha)) as u64;
        rank.min(self.count - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn zipfian_ranks_follow_the_formula() {
        let count = 1000;
        let zipf = Zipf::new(count);
        let mut rng = Rng::with_seed(3);
        let draws = 400_000;
        let mut seen = vec![0u32; count as usize];
        for _ in 0..draws {
            seen[zipf.rank(&mut rng) as usize] += 1;
        }
        let expected = |rank: u64| ((rank + 1) as f64).powf(-ZIPFIAN_THETA) / zipf.zeta;
        let share = |hits: u32| f64::from(hits) / f64::from(draws);
        for rank in [0, 1] {
            let (is, should) = (share(seen[rank as usize]), expected(rank));
            assert!(
                (is / should - 1.0).abs() < 0.05,
                "rank {rank} was drawn with frequency {is} instead of {should}"
            );
        }
        // Beyond the first two ranks, the method is an approximation. But the sums over ranges of
        // ranks are close to the exact sums.
        for range in [0..10, 10..100, 100..1000] {
            let is = share(seen[range.start as usize..range.end as usize].iter().sum());
            let should: f64 = range.clone().map(expected).sum();
            assert!(
                (is / should - 1.0).abs() < 0.1,
                "ranks {range:?} were drawn with frequency {is} instead of {should}"
            );
        }
    }

    #[test]
    fn scrambling_spreads_the_hot_keys() {
        let mut picker = KeyPicker::new(KeyDistribution::Zipfian, 1000);
        let mut rng = Rng::with_seed(3);
        let mut seen = vec![0u32; 1000];
        for _ in 0..100_000 {
            seen[picker.pick(&mut rng) as usize] += 1;
        }
        let hottest = (0..1000).max_by_key(|&key| seen[key]).unwrap();
        let neighbours = seen[(hottest + 1) % 1000].max(seen[(hottest + 999) % 1000]);
        assert!(seen[hottest] > 10_000, "the hottest key must get more than a tenth of all draws");
        assert!(neighbours < seen[hottest] / 4, "the hottest key must have no hot neighbours");
    }

    #[test]
    fn latest_prefers_what_was_inserted_last() {
        let mut picker = KeyPicker::new(KeyDistribution::Latest, 100);
        for _ in 0..900 {
            picker.insert();
        }
        let mut rng = Rng::with_seed(4);
        let recent = (0..10_000).filter(|_| picker.pick(&mut rng) >= 900).count();
        assert!(
            recent > 5_000,
            "the newest tenth of the keys must get most of 10,000 draws, but got {recent}"
        );
    }

    #[test]
    fn a_range_of_one_key_grows() {
        for distribution in [KeyDistribution::Zipfian, KeyDistribution::Latest] {
            let mut picker = KeyPicker::new(distribution, 1);
            for _ in 1..100 {
                picker.insert();
            }
            let mut rng = Rng::with_seed(6);
            let picked: HashSet<u64> = (0..1000).map(|_| picker.pick(&mut rng)).collect();
            assert!(picked.len() > 20, "{distribution:?} has picked only {picked:?}");
        }
    }

    #[test]
    fn new_keys_come_once() {
        let mut new = KeyPicker::new(KeyDistribution::New, 3);
        let in_order: Vec<u64> = (0..3).map(|_| new.pick(&mut Rng::with_seed(5))).collect();
        assert_eq!(in_order, [3, 4, 5]);
    }

    #[test]
    fn uniform_and_sequential_cover_the_range() {
        let mut rng = Rng::with_seed(5);
        let mut sequential = KeyPicker::new(KeyDistribution::Sequential, 3);
        let in_order: Vec<u64> = (0..7).map(|_| sequential.pick(&mut rng)).collect();
        assert_eq!(in_order, [0, 1, 2, 0, 1, 2, 0]);

        let mut uniform = KeyPicker::new(KeyDistribution::Uniform, 10);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[uniform.pick(&mut rng) as usize] += 1;
        }
        assert!(seen.iter().all(|&hits| (850..1150).contains(&hits)), "{seen:?}");
    }
}
