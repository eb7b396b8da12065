//! Random sources that depend on nothing but a seed, so that a run can be repeated.

use fastrand::Rng;

/// A separate source for part `index` of a run with this seed.
pub fn for_part(seed: u64, index: u64) -> Rng {
    Rng::with_seed(mix64(seed ^ mix64(index.wrapping_add(0x9E37_79B9_7F4A_7C15))))
}

/// A draw from the exponential distribution with mean 1.
pub fn exponential(rng: &mut Rng) -> f64 {
    -(1.0 - rng.f64()).ln()
}

/// A bijection that spreads every bit (the finaliser of splitmix64): the results of neighbouring
/// numbers lie far apart.
pub fn mix64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_everything() {
        let draw = |seed| {
            let mut rng = for_part(seed, 0);
            (0..100).map(|_| rng.u64(..)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert_ne!(for_part(7, 0).u64(..), for_part(7, 1).u64(..));
    }

    #[test]
    fn draws_have_the_means_they_claim() {
        let mut rng = Rng::with_seed(1);
        let n = 200_000;
        let mean = |sum: f64| sum / f64::from(n);
        let unit = mean((0..n).map(|_| rng.f64()).sum());
        let exponential = mean((0..n).map(|_| exponential(&mut rng)).sum());
        let below = mean((0..n).map(|_| rng.u64(..11) as f64).sum());
        assert!((unit - 0.5).abs() < 0.01, "{unit}");
        assert!((exponential - 1.0).abs() < 0.02, "{exponential}");
        assert!((below - 5.0).abs() < 0.05, "{below}");
    }
}
