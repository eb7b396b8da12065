//! Tests the load generator, the measurements and the comparison, each against a real stock server.

#![expect(clippy::unwrap_used, reason = "if a helper fails, the test fails")]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::Scratch;
use slimio_lab::address::Address;
use slimio_lab::client::Reply;
use slimio_lab::compare::{CompareConfig, Contender, RUNS_FILE, compare};
use slimio_lab::load::{Arrival, Generator, LoadConfig, PhaseReport, Until};
use slimio_lab::markdown;
use slimio_lab::measure::Window;
use slimio_lab::mix::Mix;
use slimio_lab::plot;
use slimio_lab::request::RequestWriter;
use slimio_lab::run::preload;
use slimio_lab::scenario::{self, SCENARIOS, Scale, Scenario, Work};
use slimio_lab::server::{Policy, Server, ServerKind};
use slimio_lab::syscalls::SyscallCounter;
use slimio_lab::values::ValuePool;

const KEY_COUNT: u64 = 500;

fn writer(value_size: usize) -> RequestWriter {
    RequestWriter::new(ValuePool::new(value_size, 0.5, 1))
}

fn generator(address: &Address, mix: &str, pipeline: usize) -> Generator {
    let config = LoadConfig {
        address: address.clone(),
        clients: 8,
        pipeline,
        arrival: Arrival::Closed,
        check_values: true,
        seed: 7,
    };
    Generator::connect(config, Mix::named(mix, KEY_COUNT, None).unwrap(), writer(1000)).unwrap()
}

fn drive(server: &Server, mix: &str, requests: u64) -> PhaseReport {
    let report = generator(server.address(), mix, 4).run(Until::Requests(requests)).unwrap();
    assert_eq!((report.requests, report.errors), (requests, 0), "{mix}");
    report
}

/// How often a command was called, according to the server.
fn calls(server: &Server, command: &str) -> u64 {
    let stats = server.client().unwrap().info("commandstats").unwrap();
    let line = stats.get(&format!("cmdstat_{command}")).cloned().unwrap_or_default();
    line.trim_start_matches("calls=").split(',').next().unwrap().parse().unwrap_or(0)
}

#[test]
fn servers_do_not_outlive_their_handles() {
    let scratch = Scratch::new();
    let Some(config) = scratch.stock(Policy::Off) else { return };
    let is_there = |pid: u32| Path::new(&format!("/proc/{pid}")).exists();

    let dropped = Server::start(&config).unwrap();
    let pid = dropped.pid();
    assert!(is_there(pid));
    drop(dropped);
    assert!(!is_there(pid));

    let stopped = Server::start(&config).unwrap();
    let pid = stopped.pid();
    stopped.stop().unwrap();
    assert!(!is_there(pid));

    let refused = Server::start(&slimio_lab::server::ServerConfig {
        extra: vec!["--no-such-directive".into(), "1".into()],
        under: Vec::new(),
        ..config
    });
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("no-such-directive"), "the error quotes the server: {message}");
}

/// Processes whose command line names `directory`.
fn processes_at(directory: &Path) -> Vec<u32> {
    let named = directory.display().to_string();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_at = |&pid: &u32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(&named)
    };
    pids.filter(is_at).collect()
}

/// Polls until `is_so` holds, half a minute at most.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what} did not come in 30 seconds");
        std::thread::yield_now();
    }
}

#[test]
fn servers_die_with_a_benchmark_that_is_killed() {
    let scratch = Scratch::new();
    if scratch.stock(Policy::Off).is_none() {
        return;
    }
    if !Path::new("/usr/bin/setpriv").exists() {
        eprintln!(
            "SKIPPED: setpriv is not installed, so a server outlives a benchmark that is killed"
        );
        return;
    }
    let directory = scratch.path.join("ledger");
    let mut bench = Command::new(env!("CARGO_BIN_EXE_slimio-lab"))
        .args(["ledger", "--server", "stock", "--lives", "1000000", "--dir"])
        .arg(&directory)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // A process does not count before it runs the server's program. Until then, it is a copy of the
    // benchmark, or it runs setpriv.
    let is_server = |pid: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.trim() == "redis-server"
    };
    until("a server", || processes_at(&directory).iter().any(is_server));
    bench.kill().unwrap();
    bench.wait().unwrap();
    until("the end of the server", || processes_at(&directory).is_empty());
}

#[test]
fn the_server_counts_what_the_generator_counts() {
    let scratch = Scratch::new();
    let Some(config) = scratch.stock(Policy::EverySec) else { return };
    let server = Server::start(&config).unwrap();
    let misses = drive(&server, "get", 100);
    assert_eq!((misses.hits, misses.misses), (0, 100));

    preload(server.address(), KEY_COUNT, &writer(1000), 1).unwrap();
    let mut client = server.client().unwrap();
    assert_eq!(client.expect(&["DBSIZE"]).unwrap(), Reply::Integer(KEY_COUNT as i64));

    let hits = drive(&server, "get", 1000);
    assert_eq!((hits.hits, hits.misses), (1000, 0));
    assert_eq!(calls(&server, "get"), 1100);
    drive(&server, "mset:10", 300);
    assert_eq!(calls(&server, "mset"), 300);

    let before = (calls(&server, "get"), calls(&server, "set"));
    let report = drive(&server, "ycsb-f", 1000);
    let (gets, sets) = (calls(&server, "get") - before.0, calls(&server, "set") - before.1);
    assert_eq!((gets, report.hits), (1000, 1000), "every operation of YCSB F reads");
    assert!((400..600).contains(&sets), "half of the operations also write: {sets}");

    let before = calls(&server, "set");
    let report = drive(&server, "ycsb-e", 500);
    let inserts = calls(&server, "set") - before;
    assert_eq!(calls(&server, "mget") + inserts, 500);
    assert!(report.hits > 500 * 30, "each scan reads many values: {}", report.hits);
    let size = client.expect(&["DBSIZE"]).unwrap();
    assert_eq!(size, Reply::Integer((KEY_COUNT + inserts) as i64), "each insert makes a key");
}

#[test]
fn unix_sockets_work_and_errors_are_quoted() {
    let scratch = Scratch::new();
    let Some(mut config) = scratch.stock(Policy::Off) else { return };
    let socket = scratch.path.join("socket");
    config.extra = vec!["--unixsocket".into(), socket.display().to_string()];
    let server = Server::start(&config).unwrap();
    let address = Address::Unix(socket);
    preload(&address, KEY_COUNT, &writer(1000), 1).unwrap();
    let mut generator = generator(&address, "ycsb-a", 2);
    let report = generator.run(Until::Requests(1000)).unwrap();
    assert_eq!((report.requests, report.misses, report.errors), (1000, 0, 0));

    server.client().unwrap().expect(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let report = generator.run(Until::Requests(100)).unwrap();
    assert!(report.errors > 20, "{} errors", report.errors);
    assert!(report.first_error.unwrap().starts_with("OOM"));
}

#[test]
fn values_compress_by_half_in_the_servers_own_compressor() {
    let scratch = Scratch::new();
    let Some(mut config) = scratch.stock(Policy::Off) else { return };
    config.extra = vec!["--enable-debug-command".into(), "local".into()];
    let server = Server::start(&config).unwrap();
    preload(server.address(), 20, &writer(4096), 1).unwrap();
    let mut client = server.client().unwrap();
    for key in 0..20 {
        let reply = client.expect(&["DEBUG", "OBJECT", &format!("key:{key:012}")]).unwrap();
        let Reply::Status(text) = reply else { panic!("{reply:?}") };
        let length =
            text.split_whitespace().find_map(|word| word.strip_prefix("serializedlength:"));
        let share = length.unwrap().parse::<f64>().unwrap() / 4096.0;
        assert!((0.45..0.60).contains(&share), "LZF compresses a value to {share} of its size");
    }
}

#[test]
fn measurements_agree_with_what_is_known() {
    let scratch = Scratch::new();
    let Some(config) = scratch.stock(Policy::Always) else { return };
    let server = Server::start(&config).unwrap();
    let mut generator = generator(server.address(), "set", 1);
    let window = Window::open(&server).unwrap();
    let report = generator.run(Until::Requests(3000)).unwrap();
    let cost = window.cost().unwrap();
    let metrics = window.close(&server, cost, report.requests, report.payload_bytes).unwrap();

    assert_eq!(report.payload_bytes, 3000 * 1016);
    // A SET in the log has 29 bytes of protocol. Its key and its value have 1016 bytes together.
    let log = metrics["log_bytes_per_payload_byte"];
    assert!((1.02..1.05).contains(&log), "{log}");
    assert!(metrics["pss_mib"] > 2.0, "{}", metrics["pss_mib"]);
    let cores = metrics["server_cores_busy"];
    assert!(cores > 0.0 && cores < 2.0, "{cores}");

    let count = |counter: slimio_lab::error::Result<SyscallCounter>, generator: &mut Generator| {
        let counter = counter.inspect_err(|error| eprintln!("SKIPPED: {error}")).ok()?;
        let report = generator.run(Until::Requests(2000)).unwrap();
        Some(counter.finish().unwrap() as f64 / report.requests as f64)
    };
    let pid = server.pid();
    // A request needs one read, one write, and a share of the calls that wait, write the log, and
    // sync the log.
    let is_right = |counted: &f64| (2.0..5.0).contains(counted);
    let by_perf = count(SyscallCounter::with_perf(pid, &scratch.path), &mut generator);
    // On a busy machine, strace reports that it is attached, but begins to count only later. So
    // there are three counts, and a count below the number of requests is replaced by the next one.
    let by_strace = (0..3)
        .map_while(|_| count(SyscallCounter::with_strace(pid, &scratch.path), &mut generator))
        .reduce(|before, now| if before < 1.0 { now } else { before });
    assert!(by_perf.as_ref().is_none_or(is_right), "perf counts {by_perf:?} calls per request");
    assert!(by_strace.as_ref().is_none_or(is_right), "strace counts {by_strace:?} per request");
}

#[test]
fn rows_on_elements_get_the_replies_that_they_ask_for() {
    let scratch = Scratch::new();
    let Some(server) = scratch.stock(Policy::Off) else { return };
    let is_on_elements = |row: &&Scenario| matches!(row.work, Work::Elements { pipeline: 16, .. });
    let config = CompareConfig {
        servers: vec![Contender::only(ServerKind::Stock, server.program)],
        extra: Vec::new(),
        scenarios: SCENARIOS.iter().filter(is_on_elements).collect(),
        scale: Scale { measured_s: 0.1, ..Scale::QUICK },
        work: scratch.path.join("work"),
        out: scratch.path.clone(),
        seed: 1,
    };
    let comparison = compare(config).unwrap();
    assert_eq!(comparison.errors(), Vec::<String>::new());
    let report = markdown::render(&comparison, "this test");
    assert!(report.contains("\n| SPOP, pipeline 16 |"), "{report}");
}

#[test]
fn a_comparison_leaves_its_results() {
    let scratch = Scratch::new();
    let Some(server) = scratch.stock(Policy::Off) else { return };
    let names = ["set-64-p16", "open-everysec", "log-always-10", "replay"];
    let out = scratch.path.join("results");
    let config = CompareConfig {
        servers: vec![Contender::only(ServerKind::Stock, server.program)],
        extra: Vec::new(),
        scenarios: names.iter().map(|name| scenario::named(name).unwrap()).collect(),
        scale: Scale { rounds: 2, ..Scale::QUICK },
        work: out.join("work"),
        out: out.clone(),
        seed: 1,
    };
    let comparison = compare(config).unwrap();
    assert_eq!(comparison.errors(), Vec::<String>::new());
    assert!(!out.join("work").exists(), "the servers' data is removed");

    let lines = std::fs::read_to_string(out.join(RUNS_FILE)).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2 * names.len());
    for line in &lines {
        assert!(line["environment"]["kernel"].is_string());
        assert!(line["metrics"].is_object(), "{line}");
    }
    let median = |name, metric| {
        let runs = comparison.runs(name, ServerKind::Stock).unwrap();
        runs.median(metric).unwrap_or_else(|| panic!("{name} has no {metric}"))
    };
    assert!(median("set-64-p16", "requests_per_s") > 0.0);
    assert!(median("open-everysec", "latency_us_p999") > 1.0);
    let offered = median("open-everysec", "offered_per_s");
    // All requests that were due are counted, even those that were not sent, because a busy machine
    // may serve less than half of them.
    let due = median("open-everysec", "requests") + median("open-everysec", "never_sent");
    let due = due / Scale::QUICK.measured_s;
    assert!((due / offered - 1.0).abs() < 0.4, "{due} per second were due, not {offered}");
    assert!((1.1..1.4).contains(&median("log-always-10", "log_bytes_per_payload_byte")));
    assert!(median("replay", "replay_mb_per_s") > 0.0);

    let plots = plot::draw(&out).unwrap();
    assert_eq!(plots, ["throughput.svg", "cpu.svg", "tail.svg", "replay.svg", "latency.svg"]);
    for name in plots {
        let picture = std::fs::read_to_string(out.join(&name)).unwrap();
        // Stock's colour is grey.
        assert!(picture.contains("#6E6E6E"), "{name} lacks the curve of stock Redis");
    }

    let report = markdown::render(&comparison, "this test");
    for expected in
        ["| kernel |", "| journal |", "| fua |", "set-64-p16", "## What the numbers are"]
    {
        assert!(report.contains(expected), "{expected} is missing in:\n{report}");
    }
}
