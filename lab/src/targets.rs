//! The targets: the numbers that SlimIO has to reach, most of them relative to the stock server.
//! [`verdicts`] says for each target whether a comparison shows that SlimIO reaches it.

use crate::compare::{Better, Comparison};
use crate::server::ServerKind;

/// How a row is judged. The *floor* is the bound that SlimIO must reach. If less is better, the
/// floor is an upper bound.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Judged {
    /// SlimIO / stock must be at least the floor.
    RatioAtLeast,
    /// SlimIO / stock must be at most the floor.
    RatioAtMost,
    /// SlimIO's own number must be at most the floor.
    ValueAtMost,
    /// SlimIO's own number must be at least the floor.
    ValueAtLeast,
}

/// One line of the table of targets.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Target {
    title: &'static str,
    scenario: &'static str,
    /// The scenario of the stock server; `None` if it is the same as SlimIO's.
    stock_scenario: Option<&'static str>,
    metric: &'static str,
    judged: Judged,
    /// The floor: the bound that must be reached. `None` if the metric is only reported.
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
    Target { title, scenario, stock_scenario: None, metric, judged, floor, goal }
}

const CPU: &str = "server_cpu_us_per_request";
const PER_S: &str = "requests_per_s";
const TAIL: &str = "latency_us_p999";
const SLOWEST: &str = "command_cpu_ms_max";
const LOG: &str = "log_bytes_per_record_byte";
const DURING: &str = "during_per_without";
const DURING_TAIL_FULL: &str = "closed_p999_during_per_without";
const DURING_TAIL: &str = "set_p999_during_per_without";

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
    target(
        "requests/s while the log is rewritten / without, everysec",
        ("rewrite-everysec", DURING),
        ValueAtLeast,
        Some(0.92),
        0.97,
    ),
    target(
        "SET p99.9 while the log is rewritten / without, everysec",
        ("rewrite-everysec", DURING_TAIL_FULL),
        ValueAtMost,
        Some(1.15),
        1.05,
    ),
    target(
        "requests/s while the log is rewritten / without, always",
        ("rewrite-always", DURING),
        ValueAtLeast,
        Some(0.92),
        0.97,
    ),
    target(
        "SET p99.9 while the log is rewritten / without, always",
        ("rewrite-always", DURING_TAIL_FULL),
        ValueAtMost,
        Some(1.15),
        1.05,
    ),
    target("recovery MB/s, cold", ("recovery", "recovery_mb_per_s"), RatioAtLeast, Some(2.0), 2.0),
    target(
        "recovery MB/s / device read MB/s",
        ("recovery", "recovery_share_of_device_read"),
        ValueAtLeast,
        None,
        0.8,
    ),
    target(
        "recovery MB/s, cold, half compressible",
        ("recovery-half", "recovery_mb_per_s"),
        RatioAtLeast,
        Some(2.0),
        2.0,
    ),
    target(
        "recovery keys/s, cold, 64 B",
        ("recovery-64", "recovery_keys_per_s"),
        RatioAtLeast,
        Some(1.5),
        3.0,
    ),
    target(
        "slowest command, 10 M keys, CPU ms",
        ("slowest-keys", SLOWEST),
        ValueAtMost,
        Some(2.0),
        0.5,
    ),
    target(
        "slowest command, hash of 10 M fields, snapshots, CPU ms",
        ("slowest-hash", SLOWEST),
        ValueAtMost,
        Some(5.0),
        1.0,
    ),
    target(
        "another client's longest wait beside SINTERSTORE, ms",
        ("beside-sets", "wait_ms_sinterstore"),
        ValueAtMost,
        Some(10.0),
        1.0,
    ),
    target(
        "another client's longest wait beside SUNION, ms",
        ("beside-sets", "wait_ms_sunion"),
        ValueAtMost,
        Some(10.0),
        1.0,
    ),
    target(
        "another client's longest wait beside SDIFF, ms",
        ("beside-sets", "wait_ms_sdiff"),
        ValueAtMost,
        Some(10.0),
        1.0,
    ),
    target(
        "pushes/s, 10,000 clients wait for one key",
        ("waiters-one-key", "pushes_per_s"),
        RatioAtLeast,
        Some(1.0),
        1.5,
    ),
    target(
        "pushes/s, 10,000 clients wait for a key each",
        ("waiters-keys", "pushes_per_s"),
        RatioAtLeast,
        Some(1.0),
        1.5,
    ),
    target(
        "memory per client that waits",
        ("waiters-keys", "bytes_per_waiter"),
        RatioAtMost,
        Some(1.0),
        0.3,
    ),
    target("LINDEX in the middle", ("list-middle", "us_per_lindex"), RatioAtMost, Some(0.01), 0.01),
    target("LSET in the middle", ("list-middle", "us_per_lset"), RatioAtMost, Some(0.01), 0.01),
];

/// The rows that measure snapshots and have targets. For each row: its name in the table, its
/// scenario, and the scenario in which stock Redis does not compress. Without compression, the time
/// that stock Redis needs does not depend on the values. So the rows with incompressible values
/// name the same last scenario as the other rows.
const SNAPSHOT_ROWS: &[(&str, &str, &str)] = &[
    ("everysec", "snapshot-everysec", "snapshot-everysec-plain"),
    ("always", "snapshot-always", "snapshot-always-plain"),
    ("everysec, incompressible", "snapshot-everysec-incompressible", "snapshot-everysec-plain"),
    ("always, incompressible", "snapshot-always-incompressible", "snapshot-always-plain"),
];

const TOOK: &str = "snapshot_s";
const AWAY: &str = "command_thread_away_cpu_ms_max";

/// What each of [`SNAPSHOT_ROWS`] has to reach.
fn snapshot_targets(scenario: &'static str, plain: &'static str) -> [Target; 6] {
    let of = |title, metric, judged, (floor, goal): (f64, f64)| {
        target(title, (scenario, metric), judged, Some(floor), goal)
    };
    [
        of("requests/s during a snapshot / without", DURING, ValueAtLeast, (0.8, 0.95)),
        of("PSS at peak / before", "pss_peak_per_before", ValueAtMost, (1.25, 1.1)),
        of("snapshot seconds, stock with LZF", TOOK, RatioAtMost, (0.5, 0.25)),
        Target {
            stock_scenario: Some(plain),
            ..of("snapshot seconds, stock without compression", TOOK, RatioAtMost, (1.2, 0.7))
        },
        of("command thread away, CPU ms", AWAY, ValueAtMost, (5.0, 1.0)),
        of("SET p99.9 during / without", DURING_TAIL, ValueAtMost, (1.5, 1.1)),
    ]
}

/// One target, and the numbers of a comparison that show whether it is reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The target's title.
    pub title: String,
    /// Median of the stock server, or of the best stock server if there are several.
    pub stock: Option<f64>,
    /// Name of the best stock server, if there are several.
    pub best: Option<String>,
    /// Median of SlimIO.
    pub slimio: Option<f64>,
    /// SlimIO / stock.
    pub ratio: Option<f64>,
    /// The floor, as text: the bound that must be reached.
    pub floor: String,
    /// The goal, as text: the bound that is to be reached in the end.
    pub goal: String,
    /// Whether the floor is reached; `None` without a floor or without a measurement.
    pub met: Option<bool>,
}

/// Judges every target that the comparison's rows cover.
pub fn verdicts(comparison: &Comparison) -> Vec<Verdict> {
    let is_measured = |name| comparison.runs(name, ServerKind::Stock).is_some();
    let measured = TARGETS.iter().filter(|target| is_measured(target.scenario));
    let mut verdicts: Vec<Verdict> =
        measured.map(|target| verdict(target, target.title.to_owned(), comparison)).collect();
    for &(row, scenario, plain) in SNAPSHOT_ROWS {
        for target in snapshot_targets(scenario, plain) {
            if is_measured(scenario) && target.stock_scenario.is_none_or(is_measured) {
                let title = format!("{}, {row}", target.title);
                verdicts.push(verdict(&target, title, comparison));
            }
        }
    }
    verdicts
}

fn verdict(target: &Target, title: String, comparison: &Comparison) -> Verdict {
    let better = match target.judged {
        RatioAtLeast | ValueAtLeast => Better::More,
        RatioAtMost | ValueAtMost => Better::Less,
    };
    let stock_scenario = target.stock_scenario.unwrap_or(target.scenario);
    let best = comparison.best_stock(stock_scenario, target.metric, better);
    let stock = best.map(|(_, median)| median);
    let best = best.filter(|_| comparison.stock_count() > 1);
    let slimio = comparison.runs(target.scenario, ServerKind::SlimIO);
    let slimio = slimio.and_then(|runs| runs.median(target.metric));
    let ratio = stock.filter(|&stock| stock > 0.0).zip(slimio).map(|(stock, ours)| ours / stock);
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
        title,
        stock,
        best: best.map(|(server, _)| server.title().to_owned()),
        slimio,
        ratio,
        floor: target.floor.map_or_else(|| "reported".to_owned(), in_words),
        goal: in_words(target.goal),
        met,
    }
}
