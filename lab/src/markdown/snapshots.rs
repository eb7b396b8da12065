//! The tables of the scenarios with snapshots (full rate and memory, latency, time), of recovery,
//! and of other scenarios that have columns of their own, such as the slowest command.

use std::fmt::Write as _;

use super::number;
use crate::compare::Comparison;
use crate::scenario::{Scenario, Work};
use crate::{beside, middle};

/// A column's title and its metric.
type Column = (&'static str, &'static str);

const THROUGHPUT: &[Column] = &[
    ("requests/s without", "requests_per_s_without"),
    ("PSS MiB before", "pss_mib_before"),
    ("requests/s during", "requests_per_s_during"),
    ("PSS MiB at peak", "pss_mib_peak"),
    ("average requests/s", "requests_per_s"),
    ("snapshot s", "snapshot_s"),
    ("requests/s during / without", "during_per_without"),
    ("p99.9 us without", "closed_latency_us_p999_without"),
    ("p99.9 us during", "closed_latency_us_p999_during"),
    ("PSS at peak / before", "pss_peak_per_before"),
    ("write rate / snapshot rate", "write_rate_per_snapshot_rate"),
];

const LATENCY: &[Column] = &[
    ("offered/s", "offered_per_s"),
    ("SET p99.9 us without", "set_latency_us_p999_without"),
    ("SET p99.9 us during", "set_latency_us_p999_during"),
    ("GET p99.9 us without", "get_latency_us_p999_without"),
    ("GET p99.9 us during", "get_latency_us_p999_during"),
    ("machine stalls, p99.9 us, without", "machine_stall_us_p999_without"),
    ("machine stalls, p99.9 us, during", "machine_stall_us_p999_during"),
    ("command thread away ms", "command_thread_away_ms_max"),
    ("its CPU time ms", "command_thread_away_cpu_ms_max"),
];

const TIME: &[Column] = &[
    ("snapshot s", "snapshot_s"),
    ("in memory", "saver_user_s"),
    ("in the kernel", "saver_system_s"),
    ("waits for a core", "saver_waits_for_core_s"),
    ("other waits", "saver_waits_s"),
];

const RECOVERY: &[Column] = &[
    ("recovery s", "recovery_s"),
    ("MB/s", "recovery_mb_per_s"),
    ("keys/s", "recovery_keys_per_s"),
    ("read from device MB/s", "recovery_device_read_mb_per_s"),
    ("device's best MB/s", "device_read_mb_per_s"),
    ("MB/s / device's best", "recovery_share_of_device_read"),
];

const WAITERS: &[Column] = &[
    ("bytes per client", "bytes_per_waiter"),
    ("server CPU us per push", "server_cpu_us_per_push"),
    ("pushes/s", "pushes_per_s"),
];

const SLOWEST: &[Column] = &[
    ("slowest command, CPU ms", "command_cpu_ms_max"),
    ("slowest command by the clock, ms", "command_ms_max_by_clock"),
    ("seconds", "seconds"),
];

/// Writes every table for which the comparison has rows.
pub(super) fn tables(comparison: &Comparison, text: &mut String) {
    let is_snapshot = |row: &Scenario| matches!(row.work, Work::Snapshot(_));
    let is_recovery = |row: &Scenario| matches!(row.work, Work::Recovery { .. });
    let is_slowest = |row: &Scenario| matches!(row.work, Work::Slowest(_));
    table(comparison, "Snapshots: full rate and memory", is_snapshot, THROUGHPUT, text);
    table(comparison, "Snapshots: latency at half load", is_snapshot, LATENCY, text);
    table(comparison, "Snapshots: where the time goes", is_snapshot, TIME, text);
    table(comparison, "Recovery", is_recovery, RECOVERY, text);
    table(comparison, "The slowest command", is_slowest, SLOWEST, text);
    let is_beside = |row: &Scenario| matches!(row.work, Work::Beside);
    let waits: Vec<Column> =
        beside::COMMANDS.iter().map(|(title, metric, _)| (*title, *metric)).collect();
    table(comparison, "The longest wait of another client, ms", is_beside, &waits, text);
    let is_waiters = |row: &Scenario| matches!(row.work, Work::Waiters { .. });
    table(comparison, "Clients that wait", is_waiters, WAITERS, text);
    let is_middle = |row: &Scenario| matches!(row.work, Work::Middle);
    let costs: Vec<Column> =
        middle::COMMANDS.iter().map(|(title, metric, _)| (*title, *metric)).collect();
    table(comparison, "In the middle of a list, us within the command", is_middle, &costs, text);
}

fn table(
    comparison: &Comparison,
    title: &str,
    is_row: impl Fn(&Scenario) -> bool,
    columns: &[Column],
    text: &mut String,
) {
    let rows = comparison.config.scenarios.iter().enumerate();
    let rows: Vec<_> = rows.filter(|(_, scenario)| is_row(scenario)).collect();
    if rows.is_empty() {
        return;
    }
    let titles: Vec<&str> = columns.iter().map(|(title, _)| *title).collect();
    let _ = writeln!(text, "## {title}\n\n| | policy | {} |", titles.join(" | "));
    let _ = writeln!(text, "|---|---|{}", "---:|".repeat(columns.len()));
    for (index, scenario) in rows {
        for (server, contender) in comparison.config.servers.iter().enumerate() {
            let Some(runs) = comparison.runs.get(&(index, server)) else { continue };
            let name = &contender.name;
            let _ = write!(text, "| {}, {name} | {} |", scenario.title, scenario.policy);
            for (_, metric) in columns {
                let _ = write!(text, " {} |", number(runs.median(metric)));
            }
            text.push('\n');
        }
    }
    text.push('\n');
}
