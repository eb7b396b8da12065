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
         SlimIO take turns; seed {}. Keys are drawn at random from {} keys, which are all set before the \
         measurement. Some rows differ. Rows about log bytes begin without keys; under `always`, {} MiB \
         were written and deleted before, so that the log's files do not grow for the first time. Rows \
         with snapshots and recoveries hold {} MiB, rows about the slowest command {} keys or fields, \
         and rows on elements a set, hash or list of {} elements. Values are half compressible and \
         differ from request to request. Ratios are SlimIO / {}. A number in brackets is the spread of \
         the rounds: (largest - smallest) / median.\n",
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
- `server_cpu`: user and system time of all threads of the server (its io_uring workers too) and \
of children it has waited for, in steps of 10 ms. Not in it: what the kernel does in threads of \
its own and in interrupts (writeback, completions). `machine_cpu` has everything that ran on the \
machine, the clients and other programs included.\n\
- `other_cores_busy`: the machine's CPU time that neither server nor client used: the kernel's own \
threads and other programs.\n\
- `client_cpu`: the load generator's own, or that of `redis-benchmark`.\n\
- Open loop: arrivals are random (Poisson) at half of what stock does in the closed loop of the \
same run; latency counts from the moment a request was due. `client_lag`: how late the generator \
itself was. `machine_stall`: how late a thread that only slept woke up, in the same stretch and \
counted in the same way: no server can be better than that.\n\
- `device_*`: the whole device below the directory, after everything dirty was written out; other \
programs' writes count too. `process_write_bytes`: what the kernel accounts to the server.\n\
- `log_bytes_per_payload_byte`: growth of the append-only files (stock), `log_area_bytes` of INFO \
(SlimIO), over keys and values sent. `..._per_record_byte`: over the bytes of the records; the \
stock log is nothing but its records, so it is 1 there.\n\
- `pss`: memory of the server, shared pages by their share.\n\
- Rows on elements: all requests at one set, hash or list (`SINTER`: two sets), values of 64 B. `SADD` and \
`SPOP` change how large the data set is, so each server gets the same count of them; the other rows run \
by the clock.\n\
- System calls are counted in a separate stretch after the measured one.\n\
- `replay`: payload over the time from start to the first PONG, after SIGKILL (SlimIO) or SHUTDOWN \
(stock), with the files dropped from this machine's page cache (a virtual machine's host may still \
hold them); `file_read`: the same files read afterwards by one thread, buffered.\n\
- `recovery`: as `replay`, with everything in the snapshot that the log goes on from. \
`device_read`: the same files read afterwards with direct I/O, several reads in flight, by the \
device's counters.\n\
- Snapshots: the data set is filled and the log rewritten. Then clients write at full rate: \
without a snapshot, during `BGSAVE`, and without one again. Then the log is rewritten again, and \
requests arrive at random (Poisson), at half of stock's full rate without a snapshot: first \
without a snapshot, then during one. The average (`requests_per_s`) is over all of the full rate. \
`snapshot_s`: from the command until INFO says that it is complete. `closed_latency_…`: at full \
rate. `pss`: the server and its children, sampled; for that the kernel walks through all their \
memory, which takes a core for milliseconds, so it is done at full rate only, with a snapshot and \
without. `write_rate_per_snapshot_rate`: bytes written while the snapshot ran, over the data set. \
`command_thread_away_ms_max`: `latest_fork_usec` (stock), the longest step (SlimIO), by the clock; \
`..._cpu_ms_max`: in CPU time, but for stock, which does not report it, by the clock too.\n\
- Slowest command: the longest time without a break; a command that yields to others counts anew \
after that. In CPU time by `command-cpu-tracking` (SlimIO only), by the clock from `SLOWLOG`, \
which begins at 0.5 ms. A hash is filled twice, and a snapshot begun, single fields written, and \
the hash expires or is deleted; `was_during_snapshot`: the snapshots were still running then.\n\
- `wait_ms_…`: while one client runs this command on two sets that share half of their members, \
another sends `PING` every 0.2 ms; the longest time until a reply, by the clock. The commands of \
both clients need cores, too, so differences of a millisecond say little.\n\
- `saver_*`: what the child that saves (stock) or the snapshot thread (SlimIO) did, as far as it \
was seen alive. User mode is work in memory. Work that the kernel does for it in its own threads \
is not included. `saver_waits`: it neither ran nor waited for a core, so it waited for the device \
or for data.\n";

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
