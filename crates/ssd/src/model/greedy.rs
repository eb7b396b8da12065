//! Greedy cleaning: the unit with the fewest valid pages is collected next.

use super::{ModelError, check_alpha};

/// Write amplification A under greedy cleaning, for a drive of many units of `unit_pages` pages.
///
/// Let the drive have T units of Np pages each, and export as many pages as U units have. Then
/// alpha is T / U. A host write makes a page of a given unit invalid with probability
/// `i / (U Np)`, where `i` is the number of the unit's valid pages. In steady state, units go from
/// `i` to `i - 1` valid pages as often as units are collected. Let that be `V` times per host
/// write. So there are `V U Np / i` units with `i` valid pages, for each `i` from `Np` down to the
/// valid count of victims. Victims have `k` or `k - 1` valid pages: of the units that reach `k`, a
/// share `q` loses one more page before its collection. The numbers of units add up to T, and each
/// victim frees `Np - (k - q)` pages for host writes:
///
/// ```text
/// alpha = A (H(Np) - H(k) + q / k)      A = Np / (Np - k + q)      H: harmonic numbers
/// ```
///
/// These equations have one solution with a whole number `k` and `0 <= q <= 1`. The code finds the
/// solution by counting `k` down from `Np`. For large units, the harmonic numbers tend to
/// logarithms, and the result tends to that of [`fifo`](super::fifo).
///
/// Range: `alpha >= ALPHA_MIN`, `unit_pages >= 1`, uniform writes, one frontier, and at least a few
/// hundred units. With fewer units, some valid counts would have no unit. For alpha above `H(Np)`,
/// victims have no valid pages, and A is 1.
///
/// Source: the balance between the valid counts comes from the mean-field models (Van Houdt, "A
/// mean field model for a class of garbage collection algorithms in flash-based solid state
/// drives", SIGMETRICS 2013), in the limit of greedy choice. Desnoyers 2012 has a closed form of
/// the same kind. The interpolation with `q` is derived here, and was checked against simulation.
///
/// # Errors
/// If alpha is out of range, or units have no pages.
pub fn greedy(alpha: f64, unit_pages: u32) -> Result<f64, ModelError> {
    check_alpha(alpha)?;
    if unit_pages == 0 {
        return Err(ModelError::NoPages);
    }
    let pages = f64::from(unit_pages);
    // H(Np) - H(k)
    let mut above = 0.0;
    for k in (1..=unit_pages).rev().map(f64::from) {
        // The value that alpha would have if all victims had k - 1 valid pages.
        let reached = pages * (above + 1.0 / k) / (pages - k + 1.0);
        if reached >= alpha {
            let q = (alpha * (pages - k) - pages * above) / (pages / k - alpha);
            return Ok(pages / (pages - k + q));
        }
        above += 1.0 / k;
    }
    Ok(1.0)
}

#[cfg(test)]
mod tests {
    use super::super::fifo;
    use super::*;

    #[test]
    fn greedy_has_its_known_values() {
        // The expected values come from a simulation that is independent of this code. The spare
        // factor is 0.1. The first value is without trims. For the second value, the host makes 0.1
        // trims per write, each of a page that is drawn from all logical pages.
        for (alpha, simulated) in [(1.0 / 0.9, 5.0002), (1.1 / 0.9, 2.8867)] {
            let waf = greedy(alpha, 128).unwrap();
            assert!(
                (waf / simulated - 1.0).abs() < 0.005,
                "the formula gives {waf}, and the simulation gives {simulated}"
            );
        }
    }

    #[test]
    fn greedy_solves_its_equations() {
        for unit_pages in [2, 3, 16, 128, 4096] {
            for alpha in [1.001, 1.02, 1.1, 1.3, 2.0, 4.0] {
                let waf = greedy(alpha, unit_pages).unwrap();
                let pages = f64::from(unit_pages);
                let left = pages * (1.0 - 1.0 / waf);
                let whole = left.floor();
                let harmonic = |n: f64| (1..=n as u32).map(|i| 1.0 / f64::from(i)).sum::<f64>();
                // If the mean number of valid pages is not a whole number, its harmonic number is
                // interpolated between the harmonic numbers of the two nearest whole numbers.
                let between = (left - whole) / (whole + 1.0);
                let found = waf * (harmonic(pages) - harmonic(whole) - between);
                let all_empty = harmonic(pages) <= alpha;
                assert!(
                    if all_empty { waf <= 1.0 } else { (found / alpha - 1.0).abs() < 1e-9 },
                    "{unit_pages} pages, alpha {alpha}: a WAF of {waf} gives an alpha of {found}"
                );
            }
        }
    }

    #[test]
    fn greedy_is_better_than_fifo_and_tends_to_it_with_large_units() {
        for alpha in [1.01, 1.1, 1.5, 3.0] {
            let fifo = fifo(alpha).unwrap();
            let of = |unit_pages| greedy(alpha, unit_pages).unwrap() / fifo;
            assert!(of(16) < of(128) && of(128) < of(4096) && of(4096) < 1.0, "alpha {alpha}");
            assert!(of(1 << 20) > 0.9999, "alpha {alpha}: {}", of(1 << 20));
        }
    }
}
