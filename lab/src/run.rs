//! One run: one scenario against one server in a fresh directory. Each scenario is a row of the
//! tables of results.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{fs, io, thread};

use crate::address::Address;
use crate::client::Client;
use crate::elements::{Fill, make_short_list, make_two_sets};
use crate::error::{BenchError, Doing, Result};
use crate::keys::KeyDistribution;
use crate::load::{Arrival, Generator, LoadConfig, PhaseReport, Until};
use crate::measure::{Metrics, Window, phase_metrics};
use crate::mix::Mix;
use crate::request::{KEY_SIZE, RequestWriter};
use crate::scenario::{Scale, Scenario, Work};
use crate::series::Series;
use crate::server::{Server, ServerConfig, ServerKind};
use crate::syscalls::SyscallCounter;
use crate::values::ValuePool;
use crate::{beside, middle, recovery, replay, server, slowest, snapshot, waiters};

/// Share of a value that a compressor can save.
const COMPRESSIBLE: f64 = 0.5;
/// Number of connections that fill the key range, and requests in flight on each of them.
const PRELOAD_CLIENTS: usize = 16;
const PRELOAD_PIPELINE: usize = 16;
/// Number of connections in the rows of [`Work::Elements`], and size of a field's value in bytes.
const ELEMENT_CLIENTS: usize = 50;
const ELEMENT_VALUE_SIZE: usize = 64;
const CURVE: &[f64] =
    &[0.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99, 99.999, 100.0];

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct RunResult {
    /// The value of each metric.
    pub metrics: Metrics,
    /// How the numbers were measured, if the method varies between runs. Also the fields of
    /// `INFO slimio`.
    pub notes: BTreeMap<&'static str, String>,
    /// Pairs of a percentile and its latency in microseconds.
    pub curve: Vec<(f64, f64)>,
    /// Requests per second over time; `None` for rows without a snapshot.
    pub series: Option<Series>,
}

impl RunResult {
    /// Adds the fields of `INFO slimio`, if the server is SlimIO.
    pub(crate) fn add_notes(&mut self, server: &Server) -> Result<()> {
        if server.config().kind == ServerKind::SlimIO {
            let info = server.client()?.info("slimio")?;
            let fields: Vec<String> =
                info.iter().map(|(name, value)| format!("{name}:{value}")).collect();
            self.notes.insert("info_slimio", fields.join(" "));
            self.notes.extend(info.get("io_path").map(|path| ("io_path", path.clone())));
        }
        Ok(())
    }
}

/// Runs `scenario`. `open_rate` is the number of arrivals per second in an open loop.
/// [`Work::HalfOpen`] needs this number. Rows with a snapshot can do without it, because they can
/// measure a rate themselves.
pub fn run(
    scenario: &Scenario,
    server: &ServerConfig,
    scale: &Scale,
    open_rate: Option<f64>,
    seed: u64,
) -> Result<RunResult> {
    match scenario.work {
        Work::Closed { mix, clients, pipeline, value_size } => {
            let load = Load { clients, pipeline, value_size, mix, arrival: Arrival::Closed, seed };
            steady(&load, scenario, server, scale)
        }
        Work::Elements { mix, pipeline } => {
            let (clients, value_size) = (ELEMENT_CLIENTS, ELEMENT_VALUE_SIZE);
            let load = Load { clients, pipeline, value_size, mix, arrival: Arrival::Closed, seed };
            let scale = Scale { key_count: scale.element_count, ..*scale };
            steady(&load, scenario, server, &scale)
        }
        Work::HalfOpen { clients, value_size } => {
            let per_s = open_rate.ok_or_else(|| {
                BenchError::Usage("an open loop needs a measured capacity".into())
            })?;
            let arrival = Arrival::Poisson { per_s };
            let load = Load { clients, pipeline: 1, value_size, mix: "set", arrival, seed };
            let mut result = steady(&load, scenario, server, scale)?;
            result.metrics.insert("offered_per_s", per_s);
            Ok(result)
        }
        Work::RedisBenchmark { clients, value_size } => {
            redis_benchmark(scenario, server, scale, (clients, value_size), seed)
        }
        Work::LogBytes { clients, value_size } => counted(server, scale, clients, value_size, seed),
        Work::Replay { value_size } => {
            let count = scale.replay_payload_bytes / (KEY_SIZE + value_size) as u64;
            replay::run(server, count.max(1), &writer(value_size, seed), seed)
        }
        Work::Snapshot(work) => snapshot::run(&work, server, scale, open_rate, seed),
        Work::Slowest(grows) => slowest::run(grows, server, scale.slowest_count, seed),
        Work::Beside => beside::run(server, scale.element_count),
        Work::Waiters { has_one_key } => {
            waiters::run(server, has_one_key, Duration::from_secs_f64(scale.measured_s))
        }
        Work::Middle => middle::run(server, scale.slowest_count),
        Work::Recovery { value_size, compressible } => {
            let count = scale.snapshot_payload_bytes / (KEY_SIZE + value_size) as u64;
            let writer = RequestWriter::new(ValuePool::new(value_size, compressible, seed));
            recovery::run(server, count.max(1), &writer, seed)
        }
    }
}

struct Load {
    clients: usize,
    pipeline: usize,
    value_size: usize,
    mix: &'static str,
    arrival: Arrival,
    seed: u64,
}

impl Load {
    fn config(&self, address: &Address) -> LoadConfig {
        LoadConfig {
            address: address.clone(),
            clients: self.clients,
            pipeline: self.pipeline,
            arrival: self.arrival,
            check_values: true,
            seed: self.seed,
        }
    }
}

fn writer(value_size: usize, seed: u64) -> RequestWriter {
    RequestWriter::new(ValuePool::new(value_size, COMPRESSIBLE, seed))
}

/// Creates the data that the requests of `mix` need, as fast as possible.
pub fn fill(mix: &Mix, address: &Address, writer: &RequestWriter, seed: u64) -> Result<()> {
    let by = match mix.fill() {
        Fill::Nothing => return Ok(()),
        Fill::TwoSets => return make_two_sets(&mut Client::connect(address)?),
        Fill::ShortList => return make_short_list(&mut Client::connect(address)?),
        Fill::Keys => "set",
        Fill::Set => "sadd",
        Fill::Hash => "hset",
        Fill::List => "rpush",
    };
    run_in_order(by, address, mix.key_count(), writer, seed)?;
    Ok(())
}

/// Sets keys `0..key_count` in order, as fast as possible; returns the report of this load.
///
/// Rows are measured on a key range that is full, so that every read finds its key, and memory does
/// not grow during the measurement.
pub fn preload(
    address: &Address,
    key_count: u64,
    writer: &RequestWriter,
    seed: u64,
) -> Result<PhaseReport> {
    run_in_order("set", address, key_count, writer, seed)
}

/// Sends one request of a mix for each key, member or field below `count`.
fn run_in_order(
    mix: &str,
    address: &Address,
    count: u64,
    writer: &RequestWriter,
    seed: u64,
) -> Result<PhaseReport> {
    let config = LoadConfig {
        address: address.clone(),
        clients: PRELOAD_CLIENTS,
        pipeline: PRELOAD_PIPELINE,
        arrival: Arrival::Closed,
        check_values: true,
        seed: seed ^ 1,
    };
    let mix = Mix::named(mix, count, Some(KeyDistribution::Sequential))?;
    let mut generator = Generator::connect(config, mix, writer.clone())?;
    without_errors(generator.run(Until::Requests(count))?)
}

/// Fails if there were error replies, because they make a result void.
pub fn without_errors(report: PhaseReport) -> Result<PhaseReport> {
    match &report.first_error {
        None => Ok(report),
        Some(text) => {
            Err(BenchError::Reply(format!("{} error replies; the first: {text}", report.errors)))
        }
    }
}

/// Starts a server. If the row is aged, also writes `aged_payload_bytes` of data, and deletes them.
fn start(
    scenario: &Scenario,
    config: &ServerConfig,
    scale: &Scale,
    writer: &RequestWriter,
    (value_size, seed): (usize, u64),
) -> Result<Server> {
    let server = Server::start(config)?;
    if scenario.is_aged {
        let mut left = scale.aged_payload_bytes / (KEY_SIZE + value_size) as u64;
        while left > 0 {
            let count = left.min(scale.key_count);
            preload(server.address(), count, writer, seed)?;
            left -= count;
        }
        server.client()?.expect(&["FLUSHALL"])?;
    }
    Ok(server)
}

fn steady(
    load: &Load,
    scenario: &Scenario,
    config: &ServerConfig,
    scale: &Scale,
) -> Result<RunResult> {
    let writer = writer(load.value_size, load.seed);
    let server = start(scenario, config, scale, &writer, (load.value_size, load.seed))?;
    let mix = Mix::named(load.mix, scale.key_count, None)?;
    fill(&mix, server.address(), &writer, load.seed)?;
    let phases = Phases::of(&mix, scale);
    let mut generator = Generator::connect(load.config(server.address()), mix, writer)?;
    without_errors(generator.run(phases.warmup)?)?;

    let window = Window::open(&server)?;
    let report = generator.run(phases.measured)?;
    let cost = window.cost()?;
    let report = without_errors(report)?;
    let mut metrics = window.close(&server, cost, report.requests, report.payload_bytes)?;
    metrics.extend(phase_metrics(&report));
    let mut result = RunResult { metrics, curve: curve(&report), ..RunResult::default() };
    count_syscalls(&server, &mut generator, phases.counted, &mut result)?;
    result.add_notes(&server)?;
    drop(generator);
    server.stop()?;
    Ok(result)
}

/// The lengths of a row's phases.
struct Phases {
    warmup: Until,
    measured: Until,
    /// The phase in which system calls are counted.
    counted: Until,
}

impl Phases {
    fn of(mix: &Mix, scale: &Scale) -> Self {
        if mix.is_once() {
            // The three phases together pop seven eighths of the set's members.
            let part = scale.key_count / 8;
            return Self {
                warmup: Until::Requests(part),
                measured: Until::Requests(5 * part),
                counted: Until::Requests(part),
            };
        }
        let elapsed = |seconds| Until::Elapsed(Duration::from_secs_f64(seconds));
        Self {
            warmup: elapsed(scale.warmup_s),
            measured: elapsed(scale.measured_s),
            counted: elapsed(scale.counted_s),
        }
    }
}

fn curve(report: &PhaseReport) -> Vec<(f64, f64)> {
    CURVE.iter().map(|&percentile| (percentile, report.latency_us(percentile))).collect()
}

/// Counts system calls in a separate stretch of load, so that counting does not slow down the
/// stretch that is measured.
fn count_syscalls(
    server: &Server,
    generator: &mut Generator,
    until: Until,
    result: &mut RunResult,
) -> Result<()> {
    let directory = &server.config().directory;
    let Some(counter) = SyscallCounter::attach(server.pid(), directory) else {
        result.notes.insert("syscalls", "not measured: neither perf nor strace works".into());
        return Ok(());
    };
    result.notes.insert("syscalls", counter.tool().to_owned());
    let report = generator.run(until)?;
    let per_request = counter.finish()? as f64 / report.requests.max(1) as f64;
    result.metrics.insert("syscalls_per_request", per_request);
    Ok(())
}

/// Runs a fixed number of SETs on an empty server, to see how many bytes of log they leave.
fn counted(
    config: &ServerConfig,
    scale: &Scale,
    clients: usize,
    value_size: usize,
    seed: u64,
) -> Result<RunResult> {
    let server = Server::start(config)?;
    let load =
        Load { clients, pipeline: 1, value_size, mix: "set", arrival: Arrival::Closed, seed };
    let mix = Mix::named("set", scale.key_count, None)?;
    let config = load.config(server.address());
    let mut generator = Generator::connect(config, mix, writer(value_size, seed))?;
    let window = Window::open(&server)?;
    let report = without_errors(generator.run(Until::Requests(scale.log_requests))?)?;
    let cost = window.cost()?;
    let mut metrics = window.close(&server, cost, report.requests, report.payload_bytes)?;
    metrics.extend(phase_metrics(&report));
    drop(generator);
    server.stop()?;
    Ok(RunResult { metrics, curve: curve(&report), ..RunResult::default() })
}

fn redis_benchmark(
    scenario: &Scenario,
    config: &ServerConfig,
    scale: &Scale,
    (clients, value_size): (usize, usize),
    seed: u64,
) -> Result<RunResult> {
    let Some(program) = server::find_program("redis-benchmark") else {
        return Err(BenchError::Server("redis-benchmark is not installed".into()));
    };
    let writer = writer(value_size, seed);
    let server = start(scenario, config, scale, &writer, (value_size, seed))?;
    preload(server.address(), scale.key_count, &writer, seed)?;
    let requests = scale.redis_benchmark_requests;
    let window = Window::open(&server)?;
    let text =
        run_redis_benchmark(&program, &server, scale.key_count, requests, clients, value_size)?;
    let cost = window.cost()?;
    let payload_bytes = requests * (KEY_SIZE + value_size) as u64;
    let mut metrics = window.close(&server, cost, requests, payload_bytes)?;
    metrics.extend(parse_redis_benchmark(&text)?);
    metrics.insert("requests", requests as f64);
    server.stop()?;
    Ok(RunResult { metrics, ..RunResult::default() })
}

fn run_redis_benchmark(
    program: &Path,
    server: &Server,
    key_count: u64,
    requests: u64,
    clients: usize,
    value_size: usize,
) -> Result<String> {
    let Address::Tcp(address) = server.address() else {
        return Err(BenchError::Usage("redis-benchmark needs a server with a TCP port".into()));
    };
    let output = Command::new(program)
        .args(["-h", &address.ip().to_string(), "-p", &address.port().to_string()])
        .args(["-t", "set", "-P", "1", "--csv"])
        .args(["-c", &clients.to_string(), "-d", &value_size.to_string()])
        .args(["-r", &key_count.to_string(), "-n", &requests.to_string()])
        .output()
        .doing("running redis-benchmark")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(BenchError::Server(format!("redis-benchmark failed: {said}{text}")))
}

/// Reads the line `"SET","rps","avg","min","p50","p95","p99","max"`. Its latencies are in
/// milliseconds.
fn parse_redis_benchmark(text: &str) -> Result<Metrics> {
    let line = text.lines().find(|line| line.starts_with("\"SET\"")).unwrap_or_default();
    let numbers: Vec<f64> =
        line.split(',').skip(1).filter_map(|field| field.trim_matches('"').parse().ok()).collect();
    let [per_s, _avg, _min, p50, _p95, p99, max] = numbers[..] else {
        return Err(BenchError::Server(format!(
            "redis-benchmark's output is not understood: {text}"
        )));
    };
    Ok(Metrics::from([
        ("requests_per_s", per_s),
        ("latency_us_p50", p50 * 1000.0),
        ("latency_us_p99", p99 * 1000.0),
        ("latency_us_max", max * 1000.0),
    ]))
}

/// Makes `directory`. If it exists already, its contents are removed.
pub fn fresh_directory(directory: &Path) -> Result<()> {
    let what = || format!("making {} anew", directory.display());
    let mut tries = 100;
    while directory.exists() {
        match fs::remove_dir_all(directory) {
            // A program of an earlier run that was killed may be just ending, and may have made a
            // file meanwhile.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && tries > 0 => {
                tries -= 1;
                thread::sleep(Duration::from_millis(20));
            }
            removed => removed.doing(what())?,
        }
    }
    fs::create_dir_all(directory).doing(what())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_benchmark_is_understood() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\"\n\
            \"SET\",\"109011.62\",\"0.389\",\"0.104\",\"0.287\",\"1.007\",\"1.543\",\"5.439\"\n";
        let metrics = parse_redis_benchmark(text).unwrap();
        assert!((metrics["requests_per_s"] - 109_011.62).abs() < 1e-6);
        assert!((metrics["latency_us_p99"] - 1543.0).abs() < 1e-6);
        assert!(parse_redis_benchmark("Could not connect").is_err());
    }
}
