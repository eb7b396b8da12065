//! Makes a table of finished runs.

use std::fmt::Write as _;

use super::{Outcome, Setup};
use crate::compare::median;

/// A sample below this share of the median rate counts as a collapse.
const COLLAPSE_SHARE: f64 = 0.5;

/// The figures of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct RunFigures {
    per_s: f64,
    median: f64,
    /// The 5th percentile of the samples' rates.
    low: f64,
    /// Share of the time in which the rate was below half of the median.
    collapsed: f64,
    latency_ms: [f64; 2],
    /// CPU time of the server for each SET.
    cpu_us: f64,
    host_gib: f64,
    waf: f64,
}

impl RunFigures {
    fn of(outcome: &Outcome) -> Self {
        let mut rates: Vec<f64> =
            outcome.samples.requests_per_s().into_iter().map(|(_, rate)| rate).collect();
        rates.sort_by(f64::total_cmp);
        let at = |share: f64| rates.get((rates.len() as f64 * share) as usize).copied();
        let median = at(0.5).unwrap_or(f64::NAN);
        let collapsed = rates.partition_point(|rate| *rate < median * COLLAPSE_SHARE);
        let latency = |value: u64| value as f64 / 1e6;
        let driven = &outcome.driven;
        let host_bytes = outcome.samples.last.map_or(f64::NAN, |last| last.host_bytes as f64);
        Self {
            per_s: per_s(outcome),
            median,
            low: at(0.05).unwrap_or(f64::NAN),
            collapsed: collapsed as f64 / rates.len() as f64,
            latency_ms: [
                latency(driven.latency.value_at_percentile(99.9)),
                latency(driven.latency.max()),
            ],
            cpu_us: outcome.samples.cpu_us_per_request(),
            host_gib: host_bytes / f64::from(1 << 30),
            waf: outcome.waf(),
        }
    }

    fn of_rounds(rounds: &[&Outcome]) -> Self {
        let rows: Vec<Self> = rounds.iter().map(|outcome| Self::of(outcome)).collect();
        let middle = |column: fn(&Self) -> f64| {
            median(rows.iter().map(column).collect()).unwrap_or(f64::NAN)
        };
        Self {
            per_s: middle(|row| row.per_s),
            median: middle(|row| row.median),
            low: middle(|row| row.low),
            collapsed: middle(|row| row.collapsed),
            latency_ms: [middle(|row| row.latency_ms[0]), middle(|row| row.latency_ms[1])],
            cpu_us: middle(|row| row.cpu_us),
            host_gib: middle(|row| row.host_gib),
            waf: middle(|row| row.waf),
        }
    }
}

fn per_s(outcome: &Outcome) -> f64 {
    outcome.driven.requests as f64 / outcome.driven.elapsed.as_secs_f64()
}

/// The rounds of each setup, in the order of the setups' first rounds.
fn rounds(outcomes: &[Outcome]) -> Vec<(&Setup, Vec<&Outcome>)> {
    let mut all: Vec<(&Setup, Vec<&Outcome>)> = Vec::new();
    for outcome in outcomes {
        match all.iter_mut().find(|(setup, _)| **setup == outcome.setup) {
            Some((_, rounds)) => rounds.push(outcome),
            None => all.push((&outcome.setup, vec![outcome])),
        }
    }
    all
}

/// For each setup, the round whose throughput is in the middle. Charts show this round.
pub fn middle_rounds(outcomes: &[Outcome]) -> Vec<&Outcome> {
    let mut shown = Vec::new();
    for (_, mut rounds) in rounds(outcomes) {
        rounds.sort_by(|a, b| per_s(a).total_cmp(&per_s(b)));
        shown.push(rounds[(rounds.len() - 1) / 2]);
    }
    shown
}

/// All runs, as a table in Markdown. If a setup has several rounds, its row has the median of each
/// figure over the rounds. The SET/s column also has the rates of the slowest and the fastest
/// round.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut text = "| drive | spare NAND | collected below | on it | `appendfsync` | SET/s | median of 100 ms | 5th \
                    percentile | time below half the median | SET p99.9 ms | slowest ms | CPU µs per SET | \
                    host GiB | WAF |\n|---|---:|---:|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for (setup, rounds) in rounds(outcomes) {
        let row = RunFigures::of_rounds(&rounds);
        let [p999, max] = row.latency_ms;
        let _ = writeln!(
            text,
            "| {} | {} % | {} % | {} | {} | {:.0}{} | {:.0} | {:.0} | {:.1} % | {p999:.1} | {max:.0} | {:.1} | \
             {:.2} | {:.3} |",
            setup.drive.name,
            setup.drive.spare_percent,
            setup.drive.background_percent,
            setup.host,
            setup.policy,
            row.per_s,
            spread(&rounds),
            row.median,
            row.low,
            row.collapsed * 100.0,
            row.cpu_us,
            row.host_gib,
            row.waf,
        );
    }
    text
}

fn spread(rounds: &[&Outcome]) -> String {
    let all = rounds.iter().map(|outcome| per_s(outcome));
    let (slowest, fastest) =
        all.fold((f64::MAX, 0.0_f64), |(least, most), rate| (least.min(rate), most.max(rate)));
    if rounds.len() < 2 { String::new() } else { format!(" ({slowest:.0} to {fastest:.0})") }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hdrhistogram::Histogram;

    use super::*;
    use crate::recorder::Driven;
    use crate::runtime::{Drive, Host, Samples};
    use crate::server::Policy;

    fn outcome(host: Host, requests: u64) -> Outcome {
        let drive = Drive {
            name: "paper",
            size_bytes: 1 << 30,
            unit_bytes: None,
            spare_percent: 25,
            background_percent: 25,
            fill_percent: 100,
        };
        let setup =
            Setup { host, policy: Policy::Always, drive, repetitions: 1, snapshot_rate: None };
        let latency = Histogram::new(3).expect("a histogram can have three significant digits");
        let driven = Driven { requests, elapsed: Duration::from_secs(1), latency };
        Outcome { setup, driven, samples: Samples::default() }
    }

    #[test]
    fn rounds_of_one_setup_are_one_row_and_one_picture() {
        let (with, without) = (Host::WithPlacement, Host::WithoutPlacement);
        let rounds =
            [(with, 10), (without, 40), (without, 60), (with, 30), (with, 20), (without, 50)];
        let outcomes = rounds.map(|(host, requests)| outcome(host, requests));
        let text = table(&outcomes);
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(rows.len(), 2);
        assert!(rows[0].contains("| SlimIO with FDP | always | 20 (10 to 30) |"), "{}", rows[0]);
        assert!(rows[1].contains("| SlimIO without FDP | always | 50 (40 to 60) |"), "{}", rows[1]);
        let shown = middle_rounds(&outcomes);
        assert_eq!(
            shown.iter().map(|outcome| outcome.driven.requests).collect::<Vec<_>>(),
            [20, 50]
        );
        assert!(table(&outcomes[..1]).contains("| always | 10 |"), "one round shows no range");
    }
}
