//! Measures write amplification (the WAF) in a true steady state.
//!
//! A drive that was just filled in sequence is far from steady: all pages of its units are valid,
//! and the first victims (the units that the collector empties and erases) cost less copying than
//! any later victims. The host's writes are divided into windows. A window has as many writes as
//! the drive has blocks. The probability that a block is not overwritten in one window is 1/e. The
//! influence of the past decays at this rate, so the windows become more and more alike. The state
//! counts as steady when two conditions hold: the WAFs of the last [`ALIKE`] windows differ by at
//! most [`CLOSE`], and they neither rise from each window to the next, nor fall from each to the
//! next. Then the WAF is measured over the next [`MEASURED`] windows, which have no part in that
//! decision.

use std::fmt;

use slimio_planted::is_planted;

use super::HostOp;
use crate::{Ftl, FtlError};

/// Number of windows that must be alike.
const ALIKE: usize = 3;
/// The largest difference between the WAFs of windows that count as alike, relative to their mean.
const CLOSE: f64 = 0.004;
/// Number of windows that are measured.
const MEASURED: usize = 6;
/// After this many windows, the drive counts as one that never becomes steady.
pub const WINDOWS_MAX: usize = 100;

/// What was measured at steady state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steady {
    /// Write amplification: bytes written to the media per byte that the host wrote.
    pub waf: f64,
    /// The largest difference between the WAFs of the measured windows, relative to their mean.
    pub spread: f64,
    /// The part of the blocks that held data. It is the mean of the values at the ends of the
    /// measured windows.
    pub live_share: f64,
    /// Number of windows until the state was steady. The first fill is not counted.
    pub settled_after: usize,
}

/// Why there is no steady state to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SteadyError {
    /// The stream does not fit the drive.
    Drive(FtlError),
    /// The stream ended.
    Ended,
    /// The windows did not become alike.
    Restless {
        /// WAF of the last window.
        last: f64,
        /// WAF of the window before that.
        before: f64,
    },
}

impl From<FtlError> for SteadyError {
    fn from(error: FtlError) -> Self {
        Self::Drive(error)
    }
}

impl fmt::Display for SteadyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drive(error) => error.fmt(f),
            Self::Ended => write!(f, "the stream of writes ended before the drive was steady"),
            Self::Restless { last, before } => write!(
                f,
                "there is no steady state after writing the drive's capacity {WINDOWS_MAX} times: \
                 the WAF was {before:.3}, then {last:.3}"
            ),
        }
    }
}

impl std::error::Error for SteadyError {}

/// Fills `drive` in sequence, runs `stream` until the state is steady, and then measures.
///
/// # Errors
/// If the stream does not fit the drive, if the stream ends, or if the drive never reaches a steady
/// state.
pub fn run_to_steady_state(
    drive: &mut Ftl,
    mut stream: impl Iterator<Item = HostOp>,
) -> Result<Steady, SteadyError> {
    let lba_count = drive.config().lba_count;
    fill(drive)?;
    let mut wafs = Vec::new();
    while !is_settled(&wafs) {
        if wafs.len() == WINDOWS_MAX {
            let [.., before, last] = wafs[..] else {
                unreachable!("there were more than two windows")
            };
            return Err(SteadyError::Restless { last, before });
        }
        wafs.push(window(drive, &mut stream, lba_count)?);
    }
    let settled_after = wafs.len();
    let mut measured = [0.0; MEASURED];
    let mut live = 0.0;
    for waf in &mut measured {
        *waf = window(drive, &mut stream, lba_count)?;
        live += drive.mapped_count() as f64 / lba_count as f64;
    }
    Ok(Steady {
        waf: mean(&measured),
        spread: spread(&measured),
        live_share: live / MEASURED as f64,
        settled_after,
    })
}

/// Fills `drive` in sequence, then runs `stream` until it has written `host_pages`. Returns the WAF
/// of only these writes. A measurement that does not wait for the steady state finds this WAF.
///
/// # Errors
/// If the stream does not fit the drive, or ends.
pub fn run_after_fill(
    drive: &mut Ftl,
    mut stream: impl Iterator<Item = HostOp>,
    host_pages: u64,
) -> Result<f64, SteadyError> {
    fill(drive)?;
    window(drive, &mut stream, host_pages)
}

fn fill(drive: &mut Ftl) -> Result<(), FtlError> {
    (0..drive.config().lba_count).try_for_each(|lba| drive.write(lba, 0))
}

/// WAF while the host writes `host_pages` blocks.
fn window(
    drive: &mut Ftl,
    stream: &mut impl Iterator<Item = HostOp>,
    host_pages: u64,
) -> Result<f64, SteadyError> {
    let before = (drive.counters().host_bytes(), drive.counters().media_bytes());
    let end = drive.counters().host_pages() + host_pages;
    while drive.counters().host_pages() < end {
        stream.next().ok_or(SteadyError::Ended)?.run(drive)?;
    }
    let now = (drive.counters().host_bytes(), drive.counters().media_bytes());
    Ok((now.1 - before.1) as f64 / (now.0 - before.0) as f64)
}

fn is_settled(wafs: &[f64]) -> bool {
    let Some(last) = wafs.last_chunk::<ALIKE>() else { return false };
    let rises = last.is_sorted_by(|a, b| a < b);
    let falls = last.is_sorted_by(|a, b| a > b);
    spread(last) <= CLOSE && (is_planted("trend-is-steady") || !rises && !falls)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn spread(values: &[f64]) -> f64 {
    let most = values.iter().copied().fold(f64::MIN, f64::max);
    let least = values.iter().copied().fold(f64::MAX, f64::min);
    (most - least) / mean(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trend_is_not_steady() {
        assert!(!is_settled(&[2.0, 2.0]));
        assert!(is_settled(&[1.0, 2.0, 2.002, 2.001]));
        assert!(!is_settled(&[2.0, 2.001, 2.002]), "WAFs that only rise are not steady");
        assert!(!is_settled(&[2.002, 2.001, 2.0]), "WAFs that only fall are not steady");
        assert!(!is_settled(&[2.0, 2.02, 2.01]), "WAFs that are too far apart are not steady");
        assert!(is_settled(&[1.0, 1.0, 1.0]));
    }
}
