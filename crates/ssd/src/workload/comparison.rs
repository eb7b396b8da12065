//! Compares the formulas for the write amplification (WAF) with the simulation.

use std::fmt;

use super::{Steady, SteadyError, UniformWrites, run_after_fill, run_to_steady_state};
use crate::model::{
    ModelError, Trims, Units, alpha_of_spare, effective_alpha, fifo, fifo_finite, greedy,
};
use crate::{Config, ConfigError, Ftl, Victims};

/// The parameters of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// The part of the NAND that is not exported. This part is rounded to whole reclaim units.
    pub spare: f64,
    /// Which trims are counted in `ratio`.
    pub trims: Trims,
    /// Trims per write.
    pub ratio: f64,
    /// How victims are chosen. There are formulas for FIFO and greedy.
    pub victims: Victims,
}

/// The size of the simulated drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Number of reclaim units that can hold data.
    pub unit_count: u32,
    /// Number of pages of each reclaim unit.
    pub unit_pages: u32,
}

impl Size {
    /// A size that is large enough for the formulas, which are for an infinitely large drive.
    pub const DEFAULT: Self = Self { unit_count: 4000, unit_pages: 128 };
}

/// The results of formula and simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// The drive's spare factor, after rounding.
    pub spare: f64,
    /// WAF by the formula for an infinitely large drive.
    pub model: f64,
    /// WAF by the formula for a drive of this size, if there is one.
    pub finite: Option<f64>,
    /// The simulation's steady state.
    pub steady: Steady,
    /// WAF while the host writes a third of the drive's capacity, right after the drive was filled
    /// in sequence.
    pub first_third: f64,
}

impl Compared {
    /// The deviation of the simulation from the formula, relative to the formula.
    pub fn error(&self) -> f64 {
        self.steady.waf / self.model - 1.0
    }
}

/// Why there is nothing to compare.
#[derive(Clone, Debug, PartialEq)]
pub enum CompareError {
    /// The formula can't be evaluated.
    Model(ModelError),
    /// There is no formula for this choice of victims.
    NoFormula(Victims),
    /// The drive can't be made.
    Drive(ConfigError),
    /// The simulation reached no steady state.
    Steady(SteadyError),
}

impl From<ModelError> for CompareError {
    fn from(error: ModelError) -> Self {
        Self::Model(error)
    }
}

impl From<ConfigError> for CompareError {
    fn from(error: ConfigError) -> Self {
        Self::Drive(error)
    }
}

impl From<SteadyError> for CompareError {
    fn from(error: SteadyError) -> Self {
        Self::Steady(error)
    }
}

impl fmt::Display for CompareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model(error) => error.fmt(f),
            Self::NoFormula(victims) => write!(f, "there is no formula for {victims:?} victims"),
            Self::Drive(error) => error.fmt(f),
            Self::Steady(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CompareError {}

/// Evaluates the formula for the drive's rounded spare factor. Simulates the drive with the stream
/// of writes that `seed` gives.
///
/// # Errors
/// If there is no formula for the case's victims, if the case is out of the formula's range, if the
/// drive can't be made, or if the drive never reaches a steady state.
pub fn compare(case: &Case, size: Size, seed: u64) -> Result<Compared, CompareError> {
    // The case is checked before the drive is made, because the errors of this check are clearer
    // than the errors of making a drive.
    alpha_of_spare(case.spare)?;
    let live_share = case.trims.live_share(case.ratio)?;
    let exported = f64::from(size.unit_count) * (1.0 - case.spare);
    let user_units = (exported.round() as u32).max(1);
    let config = Config::model(user_units, size.unit_count, size.unit_pages, case.victims);
    config.check()?;
    let alpha = f64::from(size.unit_count) / f64::from(user_units);
    let effective = effective_alpha(alpha, live_share)?;
    let (model, finite) = match case.victims {
        Victims::Fifo => {
            let Size { unit_count, unit_pages } = size;
            let units = Units { user_units, unit_count, unit_pages, live_share };
            (fifo(effective)?, Some(fifo_finite(&units)?))
        }
        Victims::Greedy => (greedy(effective, size.unit_pages)?, None),
        Victims::CostBenefit => return Err(CompareError::NoFormula(case.victims)),
    };
    let stream = UniformWrites::new(config.lba_count, case.trims, case.ratio, seed)?;
    let third = config.lba_count / 3;
    let first_third = run_after_fill(&mut Ftl::new(config.clone())?, stream.clone(), third)?;
    let steady = run_to_steady_state(&mut Ftl::new(config)?, stream)?;
    Ok(Compared { spare: 1.0 - 1.0 / alpha, model, finite, steady, first_third })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { unit_count: 400, unit_pages: 32 };

    fn case(spare: f64, ratio: f64) -> Case {
        Case { spare, trims: Trims::LivePage, ratio, victims: Victims::Fifo }
    }

    #[test]
    fn the_spare_factor_is_that_of_whole_units() {
        let compared = compare(&case(0.1, 0.1), SIZE, 1).unwrap();
        assert!((compared.spare - 0.1).abs() < 1e-12);
        assert!((compared.model - 2.8228).abs() < 1e-4);
        let odd = compare(&case(0.1009, 0.1), SIZE, 1).unwrap();
        assert!(
            (odd.spare - 0.1).abs() < 1e-12,
            "360 of 400 units must be exported: {}",
            odd.spare
        );
        let early = compared.first_third / compared.steady.waf;
        assert!(
            (early - 1.0).abs() > 0.1,
            "after writes of a third of the capacity, the drive must not be steady yet: {early}"
        );
    }

    #[test]
    fn what_can_not_be_compared_is_a_sentence() {
        let refused = |spare, ratio| compare(&case(spare, ratio), SIZE, 1).unwrap_err().to_string();
        assert!(refused(0.0, 0.1).contains("without spare space"));
        assert!(refused(0.1, 1.0).contains("keeps nothing"));
        assert!(refused(0.001, 0.1).contains("no spare: 1 of 401 reclaim units"));
        let victims = Victims::CostBenefit;
        let refused = compare(&Case { victims, ..case(0.1, 0.1) }, SIZE, 1).unwrap_err();
        assert_eq!(refused, CompareError::NoFormula(victims));
    }
}
