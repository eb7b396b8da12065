//! Write amplification by formula: how much spare space, and how much TRIM, a drive needs.
//!
//! Everything here assumes uniform writes of single pages to a page-mapped drive in steady state,
//! whose collector writes to the same frontier as the host. Then two numbers determine the result:
//!
//! * **alpha**, the count of NAND pages that data may lie in, divided by that of logical pages
//!   ([`alpha_of_spare`]);
//! * the **live share**, the part of the logical pages that holds data ([`Trims::live_share`]).
//!
//! To the collector a trimmed page is spare space like any other, so the formulas take alpha
//! divided by the live share ([`effective_alpha`]). The two meanings of "trim ratio" ([`Trims`])
//! differ only in the live share that they give.
//!
//! ```
//! use slimio_ssd::model::{Trims, alpha_of_spare, effective_alpha, fifo, greedy};
//!
//! let alpha = alpha_of_spare(0.1)?;
//! let any = effective_alpha(alpha, Trims::AnyPage.live_share(0.1)?)?;
//! let live = effective_alpha(alpha, Trims::LivePage.live_share(0.1)?)?;
//! let rounded = |waf: f64| (waf * 1000.0).round() / 1000.0;
//! assert_eq!([alpha, any, live].map(|alpha| rounded(fifo(alpha).unwrap())), [5.179, 2.940, 2.823]);
//! assert_eq!(rounded(greedy(alpha, 128)?), 4.992);
//! # Ok::<(), slimio_ssd::model::ModelError>(())
//! ```

mod fifo;
mod greedy;
mod lambert;

use std::fmt;

use slimio_planted::is_planted;

pub use fifo::{Units, fifo, fifo_finite};
pub use greedy::greedy;
pub use lambert::lambert_w0;

/// The least spare factor for which the formulas are evaluated. Below it, rounding errors reach the
/// fourth digit.
pub const SPARE_MIN: f64 = 1e-5;

/// The least alpha for which the formulas are evaluated, from [`SPARE_MIN`].
pub const ALPHA_MIN: f64 = 1.0 + SPARE_MIN;

/// Which trims count in the ratio of trims to writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trims {
    /// Trims of pages drawn from all logical pages, including those that hold nothing, so some
    /// trims have no effect. The term `(1 + D) / (U Np)` of the CXL flash model has this meaning:
    /// writes and trims hit every page equally often.
    ///
    /// Source: Lee et al., "Revisiting Trim for CXL Memory", `HotStorage` 2025.
    AnyPage,
    /// Trims of pages that hold data, each of which makes one page free. A store that deallocates
    /// the blocks of its own files or segments does this.
    ///
    /// Source: Frankie, Hughes, Kreutz-Delgado, "Analysis of Trim Commands on Overprovisioning and
    /// Write Amplification in Solid State Drives", arXiv 1208.1794, 2012.
    LivePage,
}

impl Trims {
    /// Share of the logical pages that hold data in steady state, with `ratio` trims per write.
    ///
    /// A write adds a live page with probability `1 - live`. Per write, trims of any page remove
    /// `ratio * live` live pages, so in balance `live = 1 / (1 + ratio)`. Trims of live pages
    /// remove `ratio` live pages, so `live = 1 - ratio`.
    ///
    /// Range: `ratio >= 0` for any pages, `0 <= ratio < 1` for live ones, because a host that trims
    /// as much as it writes keeps nothing.
    ///
    /// # Errors
    /// When the ratio is out of this range.
    pub fn live_share(self, ratio: f64) -> Result<f64, ModelError> {
        if !(ratio.is_finite() && ratio >= 0.0) {
            return Err(ModelError::TrimRatio { ratio });
        }
        match self {
            Self::AnyPage => Ok(1.0 / (1.0 + ratio)),
            Self::LivePage if is_planted("trims-confused") => Ok(1.0 / (1.0 + ratio)),
            Self::LivePage if ratio < 1.0 => Ok(1.0 - ratio),
            Self::LivePage => Err(ModelError::NothingLives { ratio }),
        }
    }

    /// A name in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AnyPage => "trims of any page",
            Self::LivePage => "trims of live pages",
        }
    }
}

/// Alpha of a drive that does not export the part `spare` of its NAND: `1 / (1 - spare)`.
///
/// The spare factor is relative to all of the NAND, and overprovisioning is relative to what is
/// exported. With a spare factor of 0.1, overprovisioning is 0.111.
///
/// Range: `SPARE_MIN <= spare < 1`.
///
/// Source: Desnoyers, "Analytic Modeling of SSD Write Performance", SYSTOR 2012.
///
/// # Errors
/// When the factor is out of this range.
pub fn alpha_of_spare(spare: f64) -> Result<f64, ModelError> {
    if (SPARE_MIN..1.0).contains(&spare) {
        Ok(1.0 / (1.0 - spare))
    } else {
        Err(ModelError::Spare { spare })
    }
}

/// Alpha as the collector sees it when only `live_share` of the logical pages holds data and the
/// rest is spare.
///
/// With [`Trims::AnyPage`] this is `alpha * (1 + ratio)`, the extension of the FIFO formula in Lee
/// et al.; with [`Trims::LivePage`] it is `alpha / (1 - ratio)`, the effective overprovisioning of
/// Frankie et al. The division by the live share is right for every way to choose victims, if the
/// choice depends only on which pages are valid.
///
/// Range: `0 < live_share <= 1`; writes and trims that hit every page equally often.
///
/// # Errors
/// When one of the two is out of range.
pub fn effective_alpha(alpha: f64, live_share: f64) -> Result<f64, ModelError> {
    check_alpha(alpha)?;
    if live_share > 0.0 && live_share <= 1.0 {
        Ok(alpha / live_share)
    } else {
        Err(ModelError::LiveShare { live_share })
    }
}

fn check_alpha(alpha: f64) -> Result<(), ModelError> {
    if alpha.is_finite() && alpha >= ALPHA_MIN { Ok(()) } else { Err(ModelError::Alpha { alpha }) }
}

/// Why a formula can't be evaluated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ModelError {
    /// No spare space, or nothing but spare space.
    Spare {
        /// The spare factor.
        spare: f64,
    },
    /// No more NAND pages than logical pages, or infinitely many.
    Alpha {
        /// NAND pages over logical pages.
        alpha: f64,
    },
    /// The ratio is negative or not finite.
    TrimRatio {
        /// Trims per write.
        ratio: f64,
    },
    /// As many trims of live pages as writes, or more.
    NothingLives {
        /// Trims per write.
        ratio: f64,
    },
    /// The share is not above 0, or it is above 1.
    LiveShare {
        /// Live pages over logical pages.
        live_share: f64,
    },
    /// A drive without pages.
    NoPages,
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spare { spare } if *spare < SPARE_MIN => write!(
                f,
                "a spare factor of {spare}: without spare space nothing can be collected; give a \
                 number between {SPARE_MIN} and 1"
            ),
            Self::Spare { spare } => write!(
                f,
                "a spare factor of {spare}: it must be a part of the NAND; give a number between \
                 {SPARE_MIN} and 1"
            ),
            Self::Alpha { alpha } => write!(
                f,
                "{alpha} NAND pages for each logical page: the formulas need a finite number, at \
                 least {ALPHA_MIN}"
            ),
            Self::TrimRatio { ratio } => {
                write!(f, "a trim ratio of {ratio}: it is trims per write, 0 or more")
            }
            Self::NothingLives { ratio } => write!(
                f,
                "a trim ratio of {ratio} of live pages: a host that trims as many as it writes \
                 keeps nothing; give less than 1"
            ),
            Self::LiveShare { live_share } => {
                write!(f, "a live share of {live_share}: it must be above 0, and 1 at most")
            }
            Self::NoPages => write!(f, "a drive without pages"),
        }
    }
}

impl std::error::Error for ModelError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_readings_of_the_trim_ratio_are_an_effective_alpha() {
        let alpha = alpha_of_spare(0.1).unwrap();
        let of = |trims: Trims| effective_alpha(alpha, trims.live_share(0.2).unwrap()).unwrap();
        assert!((of(Trims::AnyPage) - alpha * 1.2).abs() < 1e-12);
        assert!((of(Trims::LivePage) - alpha / 0.8).abs() < 1e-12);
    }

    #[test]
    fn what_a_formula_cannot_be_asked_is_a_sentence() {
        let spare = |spare| alpha_of_spare(spare).unwrap_err().to_string();
        assert!(spare(0.0).contains("without spare space nothing can be collected"));
        assert!(spare(-0.1).contains("without spare space"));
        assert!(spare(1.0).contains("part of the NAND"));
        assert!(spare(f64::NAN).contains("between"));
        let trim = |trims: Trims, ratio| trims.live_share(ratio).unwrap_err().to_string();
        assert!(trim(Trims::LivePage, 1.0).contains("keeps nothing"));
        assert!(trim(Trims::AnyPage, -0.1).contains("0 or more"));
        assert!(trim(Trims::AnyPage, f64::INFINITY).contains("0 or more"));
        assert!(Trims::AnyPage.live_share(3.0).is_ok(), "some of these trim nothing");
        assert!(effective_alpha(1.1, 0.0).unwrap_err().to_string().contains("above 0"));
        for alpha in [1.0, 0.9, f64::NAN, f64::INFINITY] {
            let sentence = fifo(alpha).unwrap_err().to_string();
            assert!(sentence.contains("at least 1.00001"), "{sentence}");
            assert_eq!(greedy(alpha, 128).unwrap_err().to_string(), sentence);
        }
        assert_eq!(greedy(1.1, 0), Err(ModelError::NoPages));
    }
}
