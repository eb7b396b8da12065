//! What SlimIO has to reach against the stock server, and whether a comparison shows it.

use crate::compare::Comparison;
use crate::server::ServerKind;

/// How a row is judged.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Judged {
    /// SlimIO / stock, at least the floor.
    RatioAtLeast,
    /// SlimIO / stock, at most the floor.
    RatioAtMost,
    /// SlimIO's own number, at most the floor.
    ValueAtMost,
    /// SlimIO's own number, at least the floor.
    ValueAtLeast,
}

/// One line of the table of targets.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Target {
    title: &'static str,
    scenario: &'static str,
    metric: &'static str,
    judged: Judged,
    /// `None`: reported only.
    floor: Option<f64>,
    goal: f64,
}

const fn target(
    title: &'static str,
    (scenario, metric): (&'static str, &'static str),
    judged: Judged,
    floor: Option<f64>,
    goal: f64,
) -> Target {
    Target { title, scenario, metric, judged, floor, goal }
}

const CPU: &str = "server_cpu_us_per_request";
const PER_S: &str = "requests_per_s";
const TAIL: &str = "latency_us_p999";
const LOG: &str = "log_bytes_per_record_byte";

use Judged::{RatioAtLeast, RatioAtMost, ValueAtLeast, ValueAtMost};

const TARGETS: &[Target] = &[
    target("CPU per SET, everysec", ("set-everysec", CPU), RatioAtMost, Some(0.9), 0.6),
    target("CPU per SET, always", ("set-always", CPU), RatioAtMost, Some(0.8), 0.5),
    target("SET/s, everysec", ("set-everysec", PER_S), RatioAtLeast, Some(1.15), 1.6),
    target(
        "SET/s, everysec, redis-benchmark",
        ("redis-benchmark-everysec", PER_S),
        RatioAtLeast,
        Some(1.15),
        1.6,
    ),
    target("SET/s, always", ("set-always", PER_S), RatioAtLeast, Some(1.5), 2.5),
    target(
        "SET/s, always, redis-benchmark",
        ("redis-benchmark-always", PER_S),
        RatioAtLeast,
        Some(1.5),
        2.5,
    ),
    target("SET/s, always, 1 client", ("set-always-1", PER_S), RatioAtLeast, Some(1.3), 2.0),
    target("GET/s, hits", ("get-hits", PER_S), RatioAtLeast, Some(1.0), 1.5),
    target("SET/s, 64 B", ("set-64-p1", PER_S), RatioAtLeast, Some(1.0), 1.5),
    target("SET/s, 64 B, pipeline 16", ("set-64-p16", PER_S), RatioAtLeast, Some(1.0), 1.5),
    target("p99.9, half load, everysec", ("open-everysec", TAIL), RatioAtMost, Some(0.7), 0.33),
    target("p99.9, half load, always", ("open-always", TAIL), RatioAtMost, Some(0.7), 0.33),
    target("log per record byte, always, 1 client", ("log-always-1", LOG), ValueAtMost, None, 2.0),
    target(
        "log per record byte, everysec, 1 client",
        ("log-everysec-1", LOG),
        ValueAtMost,
        Some(1.2),
        1.05,
    ),
    target("log replay MB/s, cold", ("replay", "replay_mb_per_s"), RatioAtLeast, Some(1.5), 1.5),
    target(
        "log replay MB/s / file read MB/s",
        ("replay", "replay_share_of_file_read"),
        ValueAtLeast,
        None,
        0.8,
    ),
];

/// One target and what a comparison shows of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The row's name.
    pub title: &'static str,
    /// Median of the stock server.
    pub stock: Option<f64>,
    /// Median of SlimIO.
    pub slimio: Option<f64>,
    /// SlimIO / stock.
    pub ratio: Option<f64>,
    /// What must be reached, in words.
    pub floor: String,
    /// What shall be reached, in words.
    pub goal: String,
    /// Whether the floor is reached; `None` without a floor or without a measurement.
    pub met: Option<bool>,
}

/// Judges every target that the comparison's rows cover.
pub fn verdicts(comparison: &Comparison) -> Vec<Verdict> {
    let measured = |target: &&Target| comparison.runs(target.scenario, ServerKind::Stock).is_some();
    TARGETS.iter().filter(measured).map(|target| verdict(target, comparison)).collect()
}

fn verdict(target: &Target, comparison: &Comparison) -> Verdict {
    let median = |kind| comparison.runs(target.scenario, kind)?.median(target.metric);
    let ratio = comparison.ratio(target.scenario, target.metric);
    let slimio = median(ServerKind::SlimIO);
    let in_words = |bound: f64| match target.judged {
        RatioAtLeast => format!("≥ {bound}×"),
        RatioAtMost => format!("≤ {bound}×"),
        ValueAtLeast => format!("≥ {bound}"),
        ValueAtMost => format!("≤ {bound}"),
    };
    let met = target.floor.and_then(|floor| match target.judged {
        RatioAtLeast => ratio.map(|ratio| ratio >= floor),
        RatioAtMost => ratio.map(|ratio| ratio <= floor),
        ValueAtLeast => slimio.map(|value| value >= floor),
        ValueAtMost => slimio.map(|value| value <= floor),
    });
    Verdict {
        title: target.title,
        stock: median(ServerKind::Stock),
        slimio,
        ratio,
        floor: target.floor.map_or_else(|| "reported".to_owned(), in_words),
        goal: in_words(target.goal),
        met,
    }
}
