//! Formulas for write amplification. They tell how much spare space, and how much TRIM, a drive
//! needs.
//!
//! All formulas assume a page-mapped drive in steady state, to which a host writes single pages,
//! uniformly at random. The collector writes to the same frontier as the host. Under these
//! assumptions, two numbers determine the result:
//!
//! * **alpha**, the number of NAND pages that data may lie in, divided by the number of logical
//!   pages ([`alpha_of_spare`]);
//! * the **live share**, the part of the logical pages that holds data ([`Trims::live_share`]).
//!
//! For the collector, a trimmed page is spare space like any other. So the formulas take alpha
//! divided by the live share ([`effective_alpha`]). "Trim ratio" has two meanings ([`Trims`]),
//! which differ only in the live share that they lead to.
//!
//! ```
//! use slimio_ssd::model::{Trims, alpha_of_spare, effective_alpha, fifo, greedy};
//!
//! let alpha = alpha_of_spare(0.1)?;
//! let any = effective_alpha(alpha, Trims::AnyPage.live_share(0.1)?)?;
//! let live = effective_alpha(alpha, Trims::LivePage.live_share(0.1)?)?;
//! let rounded = |waf: f64| (waf * 1000.0).round() / 1000.0;
//! assert_eq!(
//!     [alpha, any, live].map(|alpha| rounded(fifo(alpha).unwrap())),
//!     [5.179, 2.940, 2.823]
//! );
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

/// The lowest spare factor for which the formulas are evaluated. With lower factors, rounding
/// errors reach the fourth digit.
pub const SPARE_MIN: f64 = 1e-5;

/// The lowest alpha for which the formulas are evaluated. It follows from [`SPARE_MIN`].
pub const ALPHA_MIN: f64 = 1.0 + SPARE_MIN;

/// Which trims are counted in the ratio of trims to writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trims {
    /// Trims of pages that are drawn from all logical pages. Some of these pages hold nothing, so
    /// some trims have no effect. The CXL flash model counts trims in this way: for `D` trims per
    /// write and `U Np` logical pages, it has the term `(1 + D) / (U Np)`, because writes hit
    /// all pages equally often, and so do trims.
    ///
    /// Source: Lee et al., "Revisiting Trim for CXL Memory", `HotStorage` 2025.
    AnyPage,
    /// Trims of pages that hold data. Each such trim makes one page free. A host trims in this way
    /// if it deallocates the blocks of its own files or segments.
    ///
    /// Source: Frankie, Hughes, Kreutz-Delgado, "Analysis of Trim Commands on Overprovisioning and
    /// Write Amplification in Solid State Drives", arXiv 1208.1794, 2012.
    LivePage,
}

impl Trims {
    /// The share of the logical pages that hold data in steady state, with `ratio` trims per write.
    ///
    /// A write adds a live page with probability `1 - live`. Per write, trims of any page remove
    /// `ratio * live` live pages. In balance, this gives `live = 1 / (1 + ratio)`. Trims of live
    /// pages remove `ratio` live pages per write, which gives `live = 1 - ratio`.
    ///
    /// Range: `ratio >= 0` for trims of any page, and `0 <= ratio < 1` for trims of live pages. A
    /// host that trims as many live pages as it writes keeps nothing.
    ///
    /// # Errors
    /// If the ratio is out of this range.
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

    /// The name in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AnyPage => "trims of any page",
            Self::LivePage => "trims of live pages",
        }
    }
}

/// Alpha of a drive with the spare factor `spare`, which is the part of the NAND that the drive
/// does not export. Alpha is `1 / (1 - spare)`.
///
/// The spare factor is relative to all of the NAND. Overprovisioning is relative to the exported
/// part: a spare factor of 0.1 is an overprovisioning of 0.111.
///
/// Range: `SPARE_MIN <= spare < 1`.
///
/// Source: Desnoyers, "Analytic Modeling of SSD Write Performance", SYSTOR 2012.
///
/// # Errors
/// If the factor is out of this range.
pub fn alpha_of_spare(spare: f64) -> Result<f64, ModelError> {
    if (SPARE_MIN..1.0).contains(&spare) {
        Ok(1.0 / (1.0 - spare))
    } else {
        Err(ModelError::Spare { spare })
    }
}

/// Alpha as the collector sees it, if only the part `live_share` of the logical pages holds data
/// and the rest is spare.
///
/// With [`Trims::AnyPage`], this is `alpha * (1 + ratio)`, as in the extension of the FIFO formula
/// by Lee et al. With [`Trims::LivePage`], it is `alpha / (1 - ratio)`, the effective
/// overprovisioning of Frankie et al. The division by the live share is right for every choice of
/// victims that depends only on which pages are valid.
///
/// The result is right if writes hit all pages equally often, and so do trims. Range:
/// `0 < live_share <= 1`.
///
/// # Errors
/// If `alpha` or `live_share` is out of range.
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
    /// The spare factor is below [`SPARE_MIN`], or is not below 1.
    Spare {
        /// The spare factor.
        spare: f64,
    },
    /// Alpha is below [`ALPHA_MIN`], or is not a finite number.
    Alpha {
        /// NAND pages over logical pages.
        alpha: f64,
    },
    /// The ratio is negative or not finite.
    TrimRatio {
        /// Trims per write.
        ratio: f64,
    },
    /// There are as many trims of live pages as writes, or more.
    NothingLives {
        /// Trims per write.
        ratio: f64,
    },
    /// The share is 0 or less, above 1, or not a number.
    LiveShare {
        /// Live pages over logical pages.
        live_share: f64,
    },
    /// The drive has no pages.
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
                "a spare factor of {spare}: not all of the NAND can be spare; give a number \
                 between {SPARE_MIN} and 1"
            ),
            Self::Alpha { alpha } => write!(
                f,
                "{alpha} NAND pages for each logical page: the formulas need a finite number, at \
                 least {ALPHA_MIN}"
            ),
            Self::TrimRatio { ratio } => {
                write!(
                    f,
                    "a trim ratio of {ratio}: the ratio is the number of trims per write, 0 or more"
                )
            }
            Self::NothingLives { ratio } => write!(
                f,
                "a trim ratio of {ratio} for live pages: a host that trims as many live pages as it \
                 writes keeps nothing; give a ratio below 1"
            ),
            Self::LiveShare { live_share } => {
                write!(f, "a live share of {live_share}: it must be above 0, and 1 at most")
            }
            Self::NoPages => write!(f, "the drive has no pages"),
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
        assert!(spare(1.0).contains("not all of the NAND can be spare"));
        assert!(spare(f64::NAN).contains("between"));
        let trim = |trims: Trims, ratio| trims.live_share(ratio).unwrap_err().to_string();
        assert!(trim(Trims::LivePage, 1.0).contains("keeps nothing"));
        assert!(trim(Trims::AnyPage, -0.1).contains("0 or more"));
        assert!(trim(Trims::AnyPage, f64::INFINITY).contains("0 or more"));
        assert!(
            Trims::AnyPage.live_share(3.0).is_ok(),
            "a ratio of 3 is allowed, because some trims hit pages that hold nothing"
        );
        assert!(effective_alpha(1.1, 0.0).unwrap_err().to_string().contains("above 0"));
        for alpha in [1.0, 0.9, f64::NAN, f64::INFINITY] {
            let sentence = fifo(alpha).unwrap_err().to_string();
            assert!(sentence.contains("at least 1.00001"), "{sentence}");
            assert_eq!(greedy(alpha, 128).unwrap_err().to_string(), sentence);
        }
        assert_eq!(greedy(1.1, 0), Err(ModelError::NoPages));
    }
}
