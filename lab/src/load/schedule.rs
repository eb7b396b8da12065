//! The moments at which requests are due in the open loop.

use fastrand::Rng;

use crate::rng::exponential;

/// How requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// Closed loop: each reply is followed by the connection's next request.
    Closed,
    /// Open loop: at equal intervals.
    Fixed {
        /// Requests per second.
        per_s: f64,
    },
    /// Open loop: at random, as from very many independent clients.
    Poisson {
        /// Requests per second on average.
        per_s: f64,
    },
}

/// The arrivals of one open-loop phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    due_ns: f64,
    mean_gap_ns: f64,
    poisson: bool,
}

impl Schedule {
    /// The schedule of a phase. `None` in the closed loop.
    pub(super) fn new(arrival: Arrival) -> Option<Self> {
        let (per_s, poisson) = match arrival {
            Arrival::Closed => return None,
            Arrival::Fixed { per_s } => (per_s, false),
            Arrival::Poisson { per_s } => (per_s, true),
        };
        Some(Self { due_ns: 0.0, mean_gap_ns: 1e9 / per_s.max(1e-3), poisson })
    }

    /// When the next request is due, in nanoseconds since the phase began.
    pub(super) fn due_ns(&self) -> u64 {
        self.due_ns as u64
    }

    /// Moves on to the next request.
    pub(super) fn advance(&mut self, rng: &mut Rng) {
        let gaps = if self.poisson { exponential(rng) } else { 1.0 };
        self.due_ns += gaps * self.mean_gap_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_come_at_the_rate_asked_for() {
        for arrival in [Arrival::Fixed { per_s: 1000.0 }, Arrival::Poisson { per_s: 1000.0 }] {
            let mut schedule = Schedule::new(arrival).unwrap();
            let mut rng = Rng::with_seed(1);
            let mut gaps = Vec::new();
            for _ in 0..100_000 {
                let before = schedule.due_ns();
                schedule.advance(&mut rng);
                gaps.push((schedule.due_ns() - before) as f64);
            }
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance =
                gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!((mean / 1e6 - 1.0).abs() < 0.02, "{arrival:?}: the mean gap is {mean} ns");
            let spread = variance.sqrt() / mean;
            let expected = if matches!(arrival, Arrival::Fixed { .. }) { 0.0 } else { 1.0 };
            assert!(
                (spread - expected).abs() < 0.02,
                "{arrival:?}: the gaps have the relative deviation {spread}"
            );
        }
        assert!(Schedule::new(Arrival::Closed).is_none());
    }
}
