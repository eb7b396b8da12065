//! Requests per second over the time of a run, and the times of its snapshots.

use std::time::Duration;

use serde_json::{Value, json};

use crate::load::{PhaseReport, TICK};

/// The last tick of a phase ends with the phase, so it may be shorter than the others. It counts if
/// it has at least this share of a tick's length.
const TICK_SHARE_MIN: f64 = 0.5;

/// Requests per second during a run. All times are in seconds since the first phase began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// For each [`TICK`], the time of its middle and its requests per second.
    pub points: Vec<(f64, f64)>,
    /// When each snapshot began and ended.
    pub snapshots: Vec<(f64, f64)>,
}

impl Series {
    /// Adds a phase. `began` is the time from the beginning of the first phase to that of this
    /// phase.
    pub fn add(&mut self, began: Duration, report: &PhaseReport) {
        let (began, elapsed) = (began.as_secs_f64(), report.elapsed.as_secs_f64());
        let width = TICK.as_secs_f64();
        for (index, &count) in report.timeline.iter().enumerate() {
            let from = index as f64 * width;
            let length = (elapsed - from).min(width);
            if length >= width * TICK_SHARE_MIN {
                self.points.push((began + from + length / 2.0, count as f64 / length));
            }
        }
    }

    /// As JSON, two lists of pairs.
    pub fn to_json(&self) -> Value {
        json!({ "requests_per_s_by_s": self.points, "snapshots_from_to_s": self.snapshots })
    }
}
