//! Lambert's W function on its principal branch.
//!
//! The function is not taken from a crate, because only one real branch is needed, on `-1/e <= x <
//! 0`, and ten lines compute it. The crates that have this function also bring complex numbers.

use std::f64::consts::E;

/// The largest number of steps of Halley's iteration. From the starting values below, five steps
/// suffice.
const STEPS_MAX: usize = 32;

/// The principal branch W0: the number `w >= -1` for which `w e^w = x`.
///
/// The method is Halley's iteration. Near the branch point, it starts from the series around that
/// point, because it would converge slowly from a start farther away. Elsewhere, it starts from
/// `ln(1 + x)`. Range: `x >= -1/e`. The result is `None` for lower numbers and for NaN. An `x` that
/// is below -1/e by only a rounding error counts as -1/e. Precision: a few units in the last place.
/// Near the branch point, where W0 is as steep as a square root near 0, only about half of the
/// digits are exact.
///
/// Source: Corless, Gonnet, Hare, Jeffrey, Knuth, "On the Lambert W Function", Advances in
/// Computational Mathematics 5, 1996. The series is equation (4.22), the iteration is (5.9).
pub fn lambert_w0(x: f64) -> Option<f64> {
    // The distance to the branch point, times 2e.
    let p_squared = 2.0 * (E * x + 1.0);
    if x.is_nan() || p_squared < -1e-14 {
        return None;
    }
    if x == f64::INFINITY {
        return Some(x);
    }
    let p = p_squared.max(0.0).sqrt();
    let mut w = if p < 1.0 { -1.0 + p - p * p / 3.0 + 11.0 / 72.0 * p.powi(3) } else { x.ln_1p() };
    for _ in 0..STEPS_MAX {
        let e_w = w.exp();
        let error = w * e_w - x;
        let denominator = e_w * (w + 1.0) - (w + 2.0) * error / (2.0 * w + 2.0);
        let step = error / denominator;
        // At the branch point itself, the derivative is 0.
        if !step.is_finite() {
            break;
        }
        w -= step;
        if step.abs() <= f64::EPSILON * w.abs() {
            break;
        }
    }
    Some(w)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w0_has_its_known_values() {
        let known = [
            (0.0, 0.0),
            (1.0, 0.567_143_290_409_783_8),
            (E, 1.0),
            (-0.1, -0.111_832_559_158_962_96),
            (-0.3, -0.489_402_227_180_214_6),
            (1e6, 11.383_358_086_140_053),
        ];
        for (x, w) in known {
            let found = lambert_w0(x).unwrap();
            assert!((found - w).abs() <= 1e-14 * w.abs().max(1.0), "W0({x}) = {found}");
        }
        assert!((lambert_w0(-1.0 / E).unwrap() + 1.0).abs() < 1e-7, "W0 is -1 at the branch point");
        assert_eq!(lambert_w0(-0.37), None);
        assert_eq!(lambert_w0(f64::NAN), None);
    }

    #[test]
    fn w0_inverts_and_stays_on_its_branch() {
        for step in 1..4000 {
            let w = -1.0 + f64::from(step) / 1000.0;
            let found = lambert_w0(w * w.exp()).unwrap();
            assert!((found - w).abs() < 1e-11, "W0 gives {found} instead of {w}");
        }
    }
}
