//! FIFO cleaning: units are collected in the order in which they were filled.

use super::{ModelError, check_alpha, effective_alpha, lambert_w0};

/// Write amplification A under FIFO cleaning, for a drive of many units. FIFO is also called LRU,
/// or least recently written. A is the solution of `1 - 1/A = e^(-alpha / A)`, which is `A = alpha
/// / (alpha + W0(-alpha e^-alpha))`.
///
/// Let the drive have T units of Np pages each, and export U of the units. A unit is collected `T
/// Np / A` host writes after it was filled. A page is copied if it is still valid at that time.
/// Each host write leaves the page valid with probability `1 - 1 / (U Np)`. W0 is the principal
/// branch of Lambert's function. The other branch gives the trivial root `-alpha`, which means an
/// infinite A. The result does not depend on the number of pages in a unit.
///
/// For a drive with trimmed pages, pass the [`effective_alpha`](super::effective_alpha).
///
/// Range: `alpha >= ALPHA_MIN`, uniform writes, one frontier, and many units. [`fifo_finite`] is
/// for few units.
///
/// Source: Desnoyers, "Analytic Modeling of SSD Write Performance", SYSTOR 2012 (and ACM
/// Transactions on Storage 10(2), 2014), LRU cleaning; the same form in Xiang and Kurkoski, arXiv
/// 1110.4245, 2011.
///
/// # Errors
/// If alpha is out of range.
pub fn fifo(alpha: f64) -> Result<f64, ModelError> {
    check_alpha(alpha)?;
    let w = lambert_w0(-alpha * (-alpha).exp()).ok_or(ModelError::Alpha { alpha })?;
    Ok(alpha / (alpha + w))
}

/// The size of a drive, for [`fifo_finite`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Units {
    /// Number of units that the exported capacity would fill.
    pub user_units: u32,
    /// Number of units that data may lie in. The unit that is kept free for the collector is not
    /// counted.
    pub unit_count: u32,
    /// Number of pages of a unit.
    pub unit_pages: u32,
    /// The part of the logical pages that holds data, as in [`effective_alpha`].
    pub live_share: f64,
}

/// Like [`fifo`], but for a drive of a given size. A is the solution of `A = 1 / (1 - (1 - 1 /
/// L)^(T' Np / A))`, with `L` live pages and `T' = T - 1 / (2 A)`.
///
/// The power in this equation is `e^(-c / A)` with `c = -T' Np ln(1 - 1 / L)`. So the closed form
/// of [`fifo`], with `c` in place of alpha, solves this equation, too.
///
/// Range: as for [`fifo`], but with any number of units.
///
/// Source: Desnoyers 2012. Lee et al., `HotStorage` 2025, have the equation with trims. Both papers
/// then let the size go to infinity. The term `1 / (2 A)` in T' is not from these papers. It is
/// derived as follows. A new unit is first filled with copies, and then with `Np / A` pages of the
/// host. Between the copies and the unit's collection, the host writes `T Np / A` pages, those in
/// the unit itself included. Each page of the host in the unit is followed by fewer host writes: on
/// average, by `Np / (2 A)` fewer. The host's pages are the part `1 / A` of the unit. So the
/// average over all pages of the unit is `Np / (2 A^2)` fewer, or `T' Np / A` host writes.
///
/// # Errors
/// If the drive has no pages, or no spare pages.
pub fn fifo_finite(units: &Units) -> Result<f64, ModelError> {
    if units.user_units == 0 || units.unit_pages == 0 {
        return Err(ModelError::NoPages);
    }
    let (user, count) = (f64::from(units.user_units), f64::from(units.unit_count));
    let live = user * f64::from(units.unit_pages) * units.live_share;
    let mut waf = fifo(effective_alpha(count / user, units.live_share)?)?;
    if live <= 1.0 {
        return Ok(1.0);
    }
    // The iteration converges fast, because T' depends little on A. With many units, T' depends on
    // A even less.
    for _ in 0..STEPS {
        let written = count - 0.5 / waf;
        let alpha = effective_alpha(written / user, units.live_share)?;
        waf = fifo(-alpha * live * (-1.0 / live).ln_1p())?;
    }
    Ok(waf)
}

/// Number of steps of the fixed-point iteration in [`fifo_finite`].
const STEPS: usize = 16;

#[cfg(test)]
mod tests {
    use super::super::{Trims, alpha_of_spare};
    use super::*;

    fn with_trims(spare: f64, ratio: f64, trims: Trims) -> f64 {
        let live_share = trims.live_share(ratio).unwrap();
        fifo(effective_alpha(alpha_of_spare(spare).unwrap(), live_share).unwrap()).unwrap()
    }

    /// The expected values were computed from the implicit equation, independently of this code.
    #[test]
    fn fifo_has_its_known_values() {
        for (spare, ratio, any, live) in [
            (0.10, 0.0, 5.1787, 5.1787),
            (0.10, 0.1, 2.9400, 2.8228),
            (0.10, 0.2, 2.2007, 1.9916),
            (0.07, 0.1, 3.4213, f64::NAN),
            (0.20, 0.1, 2.0379, f64::NAN),
        ] {
            let found = with_trims(spare, ratio, Trims::AnyPage);
            assert!(
                (found - any).abs() < 6e-5,
                "spare factor {spare}, {ratio} trims of any page per write: WAF {found}"
            );
            let found = with_trims(spare, ratio, Trims::LivePage);
            assert!(
                live.is_nan() || (found - live).abs() < 6e-5,
                "{ratio} trims of live pages per write: WAF {found}"
            );
        }
        // A value for an overprovisioning of 0.3, from Xiang and Kurkoski.
        assert!((fifo(1.3).unwrap() - 2.36).abs() < 0.005);
    }

    #[test]
    fn fifo_solves_its_equation_over_the_whole_range() {
        for exponent in -50..30 {
            let alpha = 1.0 + 10f64.powf(f64::from(exponent) / 10.0);
            let waf = fifo(alpha).unwrap();
            let error = 1.0 - 1.0 / waf - (-alpha / waf).exp();
            assert!(
                waf >= 1.0 && error.abs() < 1e-9,
                "alpha {alpha}: with a WAF of {waf}, the equation is off by {error}"
            );
            // The trivial root, 1/A = 0, solves the equation, too. This check makes sure that the
            // result is not the trivial root.
            assert!(
                waf < 2.0 / (alpha - 1.0) + 2.0,
                "alpha {alpha}: the WAF of {waf} is that of the trivial root"
            );
        }
    }

    #[test]
    fn the_finite_form_solves_its_equation_and_tends_to_the_closed_one() {
        let of = |user_units| Units {
            user_units,
            unit_count: user_units * 10 / 9,
            unit_pages: 128,
            live_share: 1.0 / 1.1,
        };
        let small = of(90);
        let (pages, waf): (f64, f64) = (90.0 * 128.0, fifo_finite(&small).unwrap());
        let power = (1.0 - 1.1 / pages).powf((100.0 - 0.5 / waf) * 128.0 / waf);
        assert!((waf - 1.0 / (1.0 - power)).abs() < 1e-9, "{waf}");
        let closed = with_trims(0.1, 0.1, Trims::AnyPage);
        let distance = |user_units| (fifo_finite(&of(user_units)).unwrap() - closed).abs() / closed;
        assert!(
            distance(90) > 0.005,
            "with 100 units, the two forms must differ by more than 0.005, but differ by {}",
            distance(90)
        );
        assert!(distance(9_000_000) < 1e-6);
        assert!(fifo_finite(&Units { unit_count: 90, live_share: 1.0, ..small }).is_err());
        assert_eq!(fifo_finite(&Units { user_units: 0, ..small }), Err(ModelError::NoPages));
    }
}
