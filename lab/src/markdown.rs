//! A comparison as Markdown.

mod elements;
mod snapshots;

use std::fmt::Write as _;

use crate::compare::{Comparison, Contender, Runs};
use crate::scenario::{Scenario, Work};
use crate::server::ServerKind;
use crate::targets::{Verdict, verdicts};

/// The text of a cell that has no value.
const NOTHING: &str = "–";

/// The report: environment, targets, one line per row, and every measured number.
pub fn render(comparison: &Comparison, command: &str) -> String {
    let mut text = String::from("# Benchmarks\n\n");
    let scale = &comparison.config.scale;
    let _ = writeln!(
        text,
        "Made by `{command}`. The numbers are medians of {} round(s) of {} s, in which stock and \
         SlimIO take turns; seed {}. Keys are drawn at random from {} keys, which are all set \
         before the measurement. Some rows differ. Rows about log bytes begin without keys. Under \
         `always`, {} MiB were written and deleted before, so the files of the log are reused and \
         do not grow. In rows with snapshots and recoveries, the data set has {} MiB. In rows \
         about the slowest command, it has {} keys or fields. In rows on elements, it has a set, \
         hash or list of {} elements. Values are half compressible and differ from request to \
         request. Ratios are SlimIO / {}. A number in brackets is the spread of the rounds: \
         (largest - smallest) / median.\n",
        scale.rounds,
        scale.measured_s,
        comparison.config.seed,
        scale.key_count,
        scale.aged_payload_bytes >> 20,
        scale.snapshot_payload_bytes >> 20,
        scale.slowest_count,
        scale.element_count,
        if comparison.stock_count() > 1 { "the best stock server of the row" } else { "stock" },
    );
    environment(comparison, &mut text);
    if comparison.config.servers.len() > 1 {
        targets(&verdicts(comparison), stock_title(comparison), &mut text);
    }
    overview(comparison, &mut text);
    elements::table(comparison, &mut text);
    snapshots::tables(comparison, &mut text);
    for (index, scenario) in comparison.config.scenarios.iter().enumerate() {
        detail(comparison, index, scenario, &mut text);
    }
    text.push_str(NOTES);
    text
}

const NOTES: &str = "## What the numbers are\n\n\
- `server_cpu`: user and system time of the server, in steps of 10 ms. It includes all threads \
of the server, io_uring workers too, and the children that the server has waited for. It does \
not include work that the kernel does in its own threads and in interrupts (writeback, \
completions). `machine_cpu`: CPU time of everything on the machine, clients and other programs \
included.\n\
- `other_cores_busy`: how many cores were busy with other work than that of the server and the \
client. The kernel's own threads and other programs do such work.\n\
- `client_cpu`: CPU time of the load generator, or of `redis-benchmark`.\n\
- Open loop: requests arrive at random (Poisson), at half the rate that stock reaches in the \
closed loop of the same run. Latency counts from the moment at which a request was due. \
`client_lag`: how late the load generator itself sent requests. `machine_stall`: how late a \
thread that does nothing but sleep wakes up. Stalls are counted like latencies, at the same \
time. So even a server that takes no time at all would have latencies as high as the stalls.\n\
- `device_*`: counters of the whole device below the directory, after all dirty data was written \
out. Writes of other programs count, too. `process_write_bytes`: written bytes that the kernel \
attributes to the server.\n\
- `log_bytes_per_payload_byte`: growth of the log, divided by the bytes of keys and values that \
were sent. The size of the log is that of the append-only files (stock), or `log_area_bytes` of \
INFO (SlimIO). `log_bytes_per_record_byte`: growth of the log, divided by the bytes of its \
records. For stock, this is 1, because its log has nothing but records.\n\
- `pss`: memory of the server. A page that several processes share is divided by their number.\n\
- Rows on elements: all requests are on one set, hash or list (`SINTER`: two sets), with values \
of 64 B. `SADD` and `SPOP` change the size of the data set, so each server gets the same number \
of these requests. The other rows run for the same time on each server.\n\
- System calls are counted in a separate stretch after the measured stretch.\n\
- `replay`: payload, divided by the time from start to the first PONG. The start follows a \
SIGKILL (SlimIO) or SHUTDOWN (stock), and the files were dropped from this machine's page cache. \
(The host of a virtual machine may still hold the files in its memory.) `file_read`: one thread \
reads the same files afterwards, with buffered reads.\n\
- `recovery`: like `replay`, but all data is in the snapshot that the log goes on from. \
`device_read`: the same files are read afterwards by direct I/O, with several reads in flight. \
The bytes are those of the device's counters.\n\
- Snapshots: the data set is filled, and the log is rewritten. Then clients write at full rate: \
without a snapshot, during `BGSAVE`, and without a snapshot again. Then the log is rewritten \
again. Then requests arrive at random (Poisson): first without a snapshot, then during one. Their \
rate is half of the rate that stock reaches without a snapshot. `requests_per_s`: the average \
over the whole time at full rate. `snapshot_s`: time from the command until INFO says that the \
snapshot is complete. `closed_latency_…`: latency at full rate. `pss`: memory of the server and \
its children, sampled. For a sample, the kernel walks through all their memory, which takes a core \
for milliseconds. So samples are taken only at full rate, both with a snapshot and without. \
`write_rate_per_snapshot_rate`: bytes that clients wrote during the snapshot, divided by the \
size of the data set. `command_thread_away_ms_max`: `latest_fork_usec` (stock) or the longest \
step of a snapshot (SlimIO), by the clock. `command_thread_away_cpu_ms_max`: the same in CPU \
time. Stock does not report CPU time, so its number is by the clock, too.\n\
- Slowest command: the longest time that a command ran without a break. If a command yields to \
other commands, its time begins anew after that. The CPU time is from `command-cpu-tracking` \
(SlimIO only). The time by the clock is from `SLOWLOG`, which begins at 0.5 ms. For the row \
about a hash, these steps run twice: the hash is filled, a snapshot begins, single fields are \
written, and the hash expires or is deleted. `was_during_snapshot`: whether both snapshots were \
still running after the last step.\n\
- `wait_ms_…`: one client runs the named command on two sets that share half of their members. \
Meanwhile, another client sends `PING` every 0.2 ms. The number is the longest time until a \
reply to `PING`, by the clock. The commands of both clients need cores, too, so differences of a \
millisecond say little.\n\
- `saver_*`: times of the child that saves (stock) or of the snapshot thread (SlimIO), as they \
were when the saver was last seen alive. User mode is work in memory. Work that the kernel does \
for the saver in its own threads is not included. `saver_waits`: time in which the saver neither \
ran nor waited for a core. So it waited for the device or for data, or it paused because of \
`snapshot-rate` (SlimIO).\n";

fn environment(comparison: &Comparison, text: &mut String) {
    text.push_str("| | |\n|---|---|\n");
    for (name, fact) in comparison.environment.facts() {
        let _ = writeln!(text, "| {} | {fact} |", name.replace('_', " "));
    }
    let how_syscalls = note(comparison, "syscalls");
    let _ = writeln!(text, "| system calls counted by | {how_syscalls} |");
    let _ = writeln!(text, "| cold start by | {} |", note(comparison, "cold"));
    if comparison.config.servers.iter().any(|server| server.kind == ServerKind::SlimIO) {
        let _ = writeln!(text, "| SlimIO's I/O path | {} |", note(comparison, "io_path"));
    }
    text.push('\n');
}

fn note(comparison: &Comparison, name: &str) -> String {
    let mut notes = comparison.runs.values().flat_map(|runs| &runs.results);
    notes.find_map(|result| result.notes.get(name)).map_or(NOTHING.into(), Clone::clone)
}

/// Title of the column with the stock server's numbers.
fn stock_title(comparison: &Comparison) -> &'static str {
    if comparison.stock_count() > 1 { "best of stock" } else { "stock" }
}

fn targets(verdicts: &[Verdict], stock: &str, text: &mut String) {
    let _ =
        writeln!(text, "## Targets\n\n| | {stock} | SlimIO | ratio | floor | goal | floor met |");
    text.push_str("|---|---:|---:|---:|---:|---:|---|\n");
    for verdict in verdicts {
        let met = match verdict.met {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => NOTHING,
        };
        let best = verdict.best.as_ref().map(|name| format!(" ({name})"));
        let _ = writeln!(
            text,
            "| {} | {}{} | {} | {} | {} | {} | {met} |",
            verdict.title,
            number(verdict.stock),
            best.unwrap_or_default(),
            number(verdict.slimio),
            ratio(verdict.ratio),
            verdict.floor,
            verdict.goal
        );
    }
    text.push('\n');
}

fn overview(comparison: &Comparison, text: &mut String) {
    let rows = comparison.config.scenarios.iter().enumerate();
    let rows: Vec<_> = rows.filter(|(_, scenario)| !has_a_table_of_its_own(scenario)).collect();
    if rows.is_empty() {
        return;
    }
    text.push_str("## Overview\n\n| | policy | requests/s | p50 us | p99 us | p99.9 us | max us |");
    text.push_str(" client late, p99.9 us | machine stalls, p99.9 us | server CPU us/request |");
    text.push_str(" system calls/request | log/payload | PSS MiB |\n");
    text.push_str("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    for (index, scenario) in rows {
        for (server, contender) in comparison.config.servers.iter().enumerate() {
            let Some(runs) = comparison.runs.get(&(index, server)) else { continue };
            let name = &contender.name;
            let _ = write!(text, "| {}, {name} | {} |", scenario.title, scenario.policy);
            for metric in [
                "requests_per_s",
                "latency_us_p50",
                "latency_us_p99",
                "latency_us_p999",
                "latency_us_max",
                "client_lag_us_p999",
                "machine_stall_us_p999",
                "server_cpu_us_per_request",
                "syscalls_per_request",
                "log_bytes_per_payload_byte",
                "pss_mib",
            ] {
                let _ = write!(text, " {} |", number(runs.median(metric)));
            }
            text.push('\n');
        }
    }
    text.push('\n');
}

fn has_a_table_of_its_own(scenario: &Scenario) -> bool {
    matches!(
        scenario.work,
        Work::Replay { .. }
            | Work::Snapshot(_)
            | Work::Recovery { .. }
            | Work::Slowest(_)
            | Work::Beside
            | Work::Waiters { .. }
            | Work::Middle
    )
}

fn detail(comparison: &Comparison, index: usize, scenario: &Scenario, text: &mut String) {
    let servers = comparison.config.servers.iter().enumerate();
    let runs: Vec<(&Contender, &Runs)> = servers
        .filter_map(|(server, contender)| Some((contender, comparison.runs.get(&(index, server))?)))
        .collect();
    let titles: Vec<&str> = runs.iter().map(|(contender, _)| contender.title()).collect();
    let to_what = if comparison.stock_count() > 1 { " to the best" } else { "" };
    let _ = writeln!(
        text,
        "## {} ({}): {}\n\n| | {} | ratio{to_what} |\n|---|{}---:|",
        scenario.title,
        scenario.policy,
        scenario.name,
        titles.join(" | "),
        "---:|".repeat(titles.len()),
    );
    let mut names: Vec<&str> = runs.iter().flat_map(|(_, runs)| runs.metric_names()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let _ = write!(text, "| {name} |");
        for (_, runs) in &runs {
            let spread = runs.spread(name).filter(|&spread| spread > 0.0);
            let spread = spread.map(|spread| format!(" [{:.0} %]", spread * 100.0));
            let _ = write!(text, " {}{} |", number(runs.median(name)), spread.unwrap_or_default());
        }
        let _ = writeln!(text, " {} |", ratio(comparison.ratio(scenario.name, name)));
    }
    text.push('\n');
    for (contender, runs) in runs {
        for error in &runs.errors {
            let (name, error) = (&contender.name, error.replace('\n', " "));
            let _ = writeln!(text, "A round of {name} failed: {error}\n");
        }
    }
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| NOTHING.into(), |ratio| format!("{ratio:.2}×"))
}

/// The value, with about three digits.
fn number(value: Option<f64>) -> String {
    match value {
        None => NOTHING.into(),
        Some(0.0) => "0".into(),
        Some(value) if value.abs() >= 100.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 10.0 => format!("{value:.1}"),
        Some(value) if value.abs() >= 0.1 => format!("{value:.2}"),
        Some(value) => format!("{value:.4}"),
    }
}
