//! Tests those rows of the comparison that measure snapshots, recovery and the slowest command. A
//! real stock server (unmodified Redis) is measured.

#![expect(clippy::unwrap_used, reason = "if a helper fails, the test fails")]

mod common;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::Scratch;
use slimio_lab::client::{Client, Reply};
use slimio_lab::compare::{CompareConfig, Comparison, Contender, RUNS_FILE, compare};
use slimio_lab::load::{Arrival, Generator, LoadConfig, Until};
use slimio_lab::mix::Mix;
use slimio_lab::plot;
use slimio_lab::proc;
use slimio_lab::request::RequestWriter;
use slimio_lab::run::preload;
use slimio_lab::scenario::{self, Scale};
use slimio_lab::server::{Policy, Server, ServerKind};
use slimio_lab::snapshot::{Kind, take};
use slimio_lab::values::ValuePool;
use slimio_lab::watch::Watch;
use slimio_lab::{markdown, targets};

/// The data set is so large that more than one poll sees the snapshot still running.
const PAYLOAD_BYTES: u64 = 64 << 20;
const VALUE_SIZE: usize = 4096;

fn writer() -> RequestWriter {
    RequestWriter::new(ValuePool::new(VALUE_SIZE, 0.5, 1))
}

#[test]
fn children_are_found_while_they_live() {
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let children = || proc::children(std::process::id()).unwrap();
    assert!(children().contains(&child.id()));
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(!children().contains(&child.id()));
}

#[test]
fn a_snapshot_is_over_when_the_server_has_it() {
    let scratch = Scratch::new();
    let Some(config) = scratch.stock(Policy::EverySec) else { return };
    let server = Server::start(&config).unwrap();
    let key_count = PAYLOAD_BYTES / VALUE_SIZE as u64;
    preload(server.address(), key_count, &writer(), 1).unwrap();
    let mut client = server.client().unwrap();
    let dump = config.data_directory().join("dump.rdb");
    assert!(!dump.exists());
    let Reply::Integer(saved_before) = client.expect(&["LASTSAVE"]).unwrap() else { panic!() };

    let watch = Watch::start(&server).unwrap();
    let took = take(&mut client, Kind::Save).unwrap();
    let seen = watch.finish();
    let size = dump.metadata().unwrap().len();
    assert!(size > PAYLOAD_BYTES / 2, "the file has too few bytes: {size}");
    assert!(took > Duration::from_millis(10), "{took:?}");
    let Reply::Integer(saved_after) = client.expect(&["LASTSAVE"]).unwrap() else { panic!() };
    assert!(saved_after >= saved_before);
    assert!(seen.pss_bytes_before > PAYLOAD_BYTES, "{seen:?}");
    assert!(seen.pss_bytes_peak >= seen.pss_bytes_before, "{seen:?}");
    assert!(seen.saver.is_some(), "the watch saw no child that saves, within {took:?}");

    take(&mut client, Kind::Rewrite).unwrap();
    let logs = std::fs::read_dir(config.data_directory().join("appendonlydir")).unwrap();
    let bases = logs.flatten().filter(|file| {
        let is_base = file.file_name().to_string_lossy().ends_with(".base.rdb");
        is_base && file.metadata().unwrap().len() > PAYLOAD_BYTES / 2
    });
    assert_eq!(bases.count(), 1);
}

#[test]
fn a_snapshot_that_fails_is_an_error() {
    let scratch = Scratch::new();
    let Some(config) = scratch.stock(Policy::Off) else { return };
    let server = Server::start(&config).unwrap();
    let mut client = server.client().unwrap();
    client.expect(&["SET", "key", "value"]).unwrap();
    // Redis renames its finished file to dump.rdb. That fails if a directory has this name.
    std::fs::create_dir(config.data_directory().join("dump.rdb")).unwrap();
    let error = take(&mut client, Kind::Save).unwrap_err().to_string();
    assert!(error.contains("BGSAVE"), "{error}");
}

#[test]
fn a_phase_ends_when_told_in_both_loops() {
    let scratch = Scratch::new();
    let Some(config) = scratch.stock(Policy::Off) else { return };
    let server = Server::start(&config).unwrap();
    for arrival in [Arrival::Closed, Arrival::Poisson { per_s: 2000.0 }] {
        let config = LoadConfig {
            address: server.address().clone(),
            clients: 4,
            pipeline: 1,
            arrival,
            check_values: true,
            seed: 1,
        };
        let mix = Mix::named("set", 100, None).unwrap();
        let mut generator = Generator::connect(config, mix, writer()).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let mut client = server.client().unwrap();
        let teller = std::thread::spawn(move || {
            // The phase is told to end only after the server has executed SETs of the load.
            let before = calls_of_set(&mut client);
            while calls_of_set(&mut client) < before + 200 {
                std::thread::sleep(Duration::from_millis(1));
            }
            told.store(true, Ordering::Relaxed);
        });
        let report = generator.run(Until::Stopped(is_over)).unwrap();
        teller.join().unwrap();
        assert!(report.requests > 100, "{arrival:?}: {}", report.requests);
        assert_eq!(report.timeline.iter().sum::<u64>(), report.requests);
        assert_eq!((report.never_sent, report.read_latency.len()), (0, 0));
        assert_eq!(report.write_latency.len(), report.requests);
    }
}

/// The number of SETs that the server has run. Reading this number runs no SET.
fn calls_of_set(client: &mut Client) -> u64 {
    let stats = client.info("commandstats").unwrap();
    let Some(of_set) = stats.get("cmdstat_set") else { return 0 };
    let calls = of_set.split(',').find_map(|field| field.strip_prefix("calls="));
    calls.unwrap().parse().unwrap()
}

fn compared(scratch: &Scratch, names: &[&str], scale: Scale) -> Option<Comparison> {
    let server = scratch.stock(Policy::Off)?;
    let out = scratch.path.join("results");
    let config = CompareConfig {
        servers: vec![Contender::only(ServerKind::Stock, server.program)],
        extra: Vec::new(),
        scenarios: names.iter().map(|name| scenario::named(name).unwrap()).collect(),
        scale,
        work: out.join("work"),
        out,
        seed: 1,
    };
    let comparison = compare(config).unwrap();
    assert_eq!(comparison.errors(), Vec::<String>::new());
    Some(comparison)
}

#[test]
fn snapshot_rows_leave_their_numbers_tables_and_pictures() {
    let scratch = Scratch::new();
    let names = ["snapshot-everysec", "snapshot-everysec-plain", "snapshot-ycsb-a-always"];
    let Some(comparison) = compared(&scratch, &names, Scale::QUICK) else { return };
    let median = |name, metric| {
        let runs = comparison.runs(name, ServerKind::Stock).unwrap();
        runs.median(metric).unwrap_or_else(|| panic!("{name} has no {metric}"))
    };
    for name in names {
        for metric in ["requests_per_s", "requests_per_s_without", "requests_per_s_during"] {
            assert!(median(name, metric) > 0.0, "{name}, {metric}");
        }
        let during = median(name, "requests_per_s_during");
        let ratio = during / median(name, "requests_per_s_without");
        assert!((median(name, "during_per_without") / ratio - 1.0).abs() < 1e-6, "{name}");
        assert!(median(name, "snapshot_s") > 0.005, "{name}");
        assert!(median(name, "pss_peak_per_before") >= 1.0, "{name}");
        assert!(median(name, "write_rate_per_snapshot_rate") > 0.0, "{name}");
        assert!(median(name, "command_thread_away_ms_max") > 0.0, "{name}: the fork took no time");
        assert!(median(name, "set_p999_during_per_without") > 0.0, "{name}");
        let offered = median(name, "offered_per_s");
        let capacity = median(name, "requests_per_s_without");
        assert!(
            (offered / capacity - 0.5).abs() < 1e-6,
            "{name}: {offered} is not half of {capacity}"
        );
    }
    assert!(median("snapshot-ycsb-a-always", "get_p999_during_per_without") > 0.0);
    let set_only = comparison.runs("snapshot-everysec", ServerKind::Stock).unwrap();
    assert_eq!(set_only.median("get_p999_during_per_without"), None);

    let out = &comparison.config.out;
    let lines = std::fs::read_to_string(out.join(RUNS_FILE)).unwrap();
    let line: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    let [from, to] =
        [0, 1].map(|at| line["series"]["snapshots_from_to_s"][0][at].as_f64().unwrap());
    let points = line["series"]["requests_per_s_by_s"].as_array().unwrap();
    let last = points.last().unwrap()[0].as_f64().unwrap();
    assert!(0.0 < from && from < to && to < last, "snapshot: {from} to {to} s; end: {last} s");

    let plots = plot::draw(out).unwrap();
    for name in ["during.svg", "snapshot.svg", "memory.svg", "over-time-snapshot-everysec.svg"] {
        assert!(plots.iter().any(|plot| plot == name), "{name} is not among {plots:?}");
    }
    let picture = std::fs::read_to_string(out.join("over-time-snapshot-everysec.svg")).unwrap();
    assert_eq!(picture.matches("opacity=\"0.1\"").count(), 1, "not exactly one tint: {picture}");

    let report = markdown::render(&comparison, "this test");
    for expected in [
        "## Snapshots: full rate and memory",
        "| SET, snapshot, stock | everysec |",
        "## Snapshots: latency at half load",
        "| YCSB A, 2 KiB, snapshot, stock | always |",
    ] {
        assert!(report.contains(expected), "{expected} is missing in:\n{report}");
    }
    let verdicts = targets::verdicts(&comparison);
    let plain = verdicts.iter().find(|verdict| verdict.title.contains("without compression"));
    let plain_s = median("snapshot-everysec-plain", "snapshot_s");
    assert_eq!(plain.unwrap().stock, Some(plain_s), "stock's number must come from its own row");
    assert!(verdicts.iter().all(|verdict| verdict.met.is_none()), "SlimIO was not measured");
}

#[test]
fn recovery_rows_leave_their_numbers() {
    let scratch = Scratch::new();
    let scale = Scale { snapshot_payload_bytes: 8 << 20, ..Scale::QUICK };
    let names = ["recovery", "recovery-64"];
    let Some(comparison) = compared(&scratch, &names, scale) else { return };
    for name in names {
        let runs = comparison.runs(name, ServerKind::Stock).unwrap();
        let median = |metric| runs.median(metric).unwrap_or_else(|| panic!("no {metric}"));
        assert!(median("recovery_mb_per_s") > 0.0, "{name}");
        let by_time = median("keys") / median("recovery_s");
        assert!((median("recovery_keys_per_s") / by_time - 1.0).abs() < 1e-6, "{name}");
        if let Some(device) = runs.median("device_read_mb_per_s") {
            let share = median("recovery_mb_per_s") / device;
            let found = median("recovery_share_of_device_read");
            assert!((found / share - 1.0).abs() < 1e-6, "{name}");
        } else {
            eprintln!("SKIPPED: this machine does not count the bytes read from the device");
        }
    }
    let report = markdown::render(&comparison, "this test");
    assert!(report.contains("## Recovery\n"), "{report}");
}

#[test]
fn rows_about_the_slowest_command_leave_their_numbers() {
    let scratch = Scratch::new();
    let scale = Scale { slowest_count: 20_000, ..Scale::QUICK };
    let names = ["slowest-keys", "slowest-hash"];
    let Some(comparison) = compared(&scratch, &names, scale) else { return };
    for name in names {
        let runs = comparison.runs(name, ServerKind::Stock).unwrap();
        assert!(runs.median("command_ms_max_by_clock").is_some(), "{name}");
        assert!(runs.median("command_cpu_ms_max").is_none(), "stock must report no CPU time");
    }
    let report = markdown::render(&comparison, "this test");
    assert!(report.contains("## The slowest command\n"), "{report}");
}
