//! Runs as a table.

use std::fmt::Write as _;

use super::Outcome;

/// A look counts as a collapse when it saw less than this share of the median.
const COLLAPSE_SHARE: f64 = 0.5;

/// What a run comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    per_s: f64,
    median: f64,
    /// A twentieth of the looks saw less.
    low: f64,
    /// Share of the time with less than half of the median.
    collapsed: f64,
    latency_ms: [f64; 2],
    host_gib: f64,
    waf: f64,
}

impl Row {
    fn of(outcome: &Outcome) -> Self {
        let mut rates: Vec<f64> =
            outcome.samples.requests_per_s().into_iter().map(|(_, rate)| rate).collect();
        rates.sort_by(f64::total_cmp);
        let at = |share: f64| rates.get((rates.len() as f64 * share) as usize).copied();
        let median = at(0.5).unwrap_or(f64::NAN);
        let collapsed = rates.partition_point(|rate| *rate < median * COLLAPSE_SHARE);
        let driven = &outcome.driven;
        let latency = |value: u64| value as f64 / 1e6;
        let host_bytes = outcome.samples.last.map_or(f64::NAN, |last| last.host_bytes as f64);
        Self {
            per_s: driven.requests as f64 / driven.elapsed.as_secs_f64(),
            median,
            low: at(0.05).unwrap_or(f64::NAN),
            collapsed: collapsed as f64 / rates.len() as f64,
            latency_ms: [
                latency(driven.latency.value_at_percentile(99.9)),
                latency(driven.latency.max()),
            ],
            host_gib: host_bytes / f64::from(1 << 30),
            waf: outcome.waf(),
        }
    }
}

/// All runs, as a table in Markdown.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut text = "| drive | spare NAND | collected below | on it | `appendfsync` | SET/s | median of 100 ms | 5th \
                    percentile | time below half the median | SET p99.9 ms | slowest ms | host GiB | \
                    WAF |\n|---|---:|---:|---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for outcome in outcomes {
        let row = Row::of(outcome);
        let setup = &outcome.setup;
        let [p999, max] = row.latency_ms;
        let _ = writeln!(
            text,
            "| {} | {} % | {} % | {} | {} | {:.0} | {:.0} | {:.0} | {:.1} % | {p999:.1} | {max:.0} | {:.2} | \
             {:.3} |",
            setup.drive.name,
            setup.drive.spare_percent,
            setup.drive.background_percent,
            setup.host,
            setup.policy,
            row.per_s,
            row.median,
            row.low,
            row.collapsed * 100.0,
            row.host_gib,
            row.waf,
        );
    }
    text
}
