//! A snapshot while clients write: how the snapshot affects throughput, memory and latency, all in
//! one run.
//!
//! ```text
//!  fill ─ rewrite ─┬─ closed loop, full rate ────────────┬─ rewrite ─┬─ open loop, half rate ───┐
//!                  │ without │ during BGSAVE │ without   │           │ without │ during BGSAVE  │
//! ```
//!
//! The log is rewritten before each part. So each of the compared servers, SlimIO and stock Redis,
//! begins a part with a log that has been rewritten, and the disk holds no more than one part's
//! writes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Client, Reply};
use crate::error::{BenchError, Result};
use crate::load::{Arrival, Generator, LoadConfig, PhaseReport, Until};
use crate::measure::{CPU_MEASURABLE_MIN, Metrics};
use crate::mix::Mix;
use crate::persistence::Persistence;
use crate::request::{KEY_SIZE, RequestWriter};
use crate::run::{RunResult, preload, without_errors};
use crate::scenario::Scale;
use crate::series::Series;
use crate::server::{Policy, Server, ServerConfig, ServerKind};
use crate::stalls::StallMeter;
use crate::values::ValuePool;
use crate::watch::{Seen, Watch};

/// Interval between polls of a running snapshot.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// If a snapshot takes longer than this, the run fails.
const SNAPSHOT_MAX: Duration = Duration::from_secs(1800);

/// What the clients do around and during the snapshot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SnapshotWork {
    /// Name of the mix.
    pub mix: &'static str,
    /// Number of connections.
    pub clients: usize,
    /// Size of a value, in bytes.
    pub value_size: usize,
    /// Share of a value that a compressor can save.
    pub compressible: f64,
    /// Value of `rdbcompression`.
    pub compresses: bool,
    /// The kind of snapshot.
    pub kind: Kind,
}

/// The kinds of snapshots, by their cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `BGSAVE`.
    Save,
    /// `BGREWRITEAOF`.
    Rewrite,
    /// The server rewrites its log by itself, because the log has grown.
    Growth,
}

impl Kind {
    fn begin(self, client: &mut Client) -> Result<()> {
        match self {
            Self::Save => client.expect(&["BGSAVE"])?,
            Self::Rewrite => client.expect(&["BGREWRITEAOF"])?,
            Self::Growth => set_growth(client, "1")?,
        };
        Ok(())
    }
}

/// Sets by how much the log grows, in percent, before the server rewrites it. With "0", the server
/// never rewrites the log by itself.
fn set_growth(client: &mut Client, percent: &str) -> Result<Reply> {
    Ok(client.expect(&["CONFIG", "SET", "auto-aof-rewrite-percentage", percent])?)
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str(match self {
            Self::Save => "BGSAVE",
            Self::Rewrite => "BGREWRITEAOF",
            Self::Growth => "rewriting the log",
        })
    }
}

/// Takes a snapshot and waits until the server says that it is complete; returns how long that
/// took.
pub fn take(client: &mut Client, kind: Kind) -> Result<Duration> {
    let count_before = SnapshotState::of(client, kind)?.count;
    let began = Instant::now();
    kind.begin(client)?;
    let mut is_growth_allowed = kind == Kind::Growth;
    loop {
        let state = SnapshotState::of(client, kind)?;
        if is_growth_allowed && (state.is_running || state.count > count_before) {
            // The server must not begin a second snapshot after this one.
            set_growth(client, "0")?;
            is_growth_allowed = false;
        }
        let took = began.elapsed();
        // A snapshot is counted when it begins, so a postponed snapshot is neither running nor
        // counted.
        if !state.is_running && state.count > count_before {
            return Ok(took);
        }
        if took > SNAPSHOT_MAX {
            return Err(BenchError::Server(format!("{kind} takes longer than {SNAPSHOT_MAX:?}")));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

struct SnapshotState {
    is_running: bool,
    /// Number of snapshots so far.
    count: u64,
}

impl SnapshotState {
    fn of(client: &mut Client, kind: Kind) -> Result<Self> {
        let said = Persistence::of(client)?;
        said.check(kind)?;
        let [running, count] = match kind {
            Kind::Save => ["rdb_bgsave_in_progress", "rdb_saves"],
            Kind::Rewrite | Kind::Growth => ["aof_rewrite_in_progress", "aof_rewrites"],
        };
        Ok(Self { is_running: said.number(running)? != 0, count: said.number(count)? })
    }
}

/// A phase of load, with the time at which it began and the stalls of the machine during the phase.
struct Stretch {
    /// When the phase began, counted from the beginning of the run.
    began: Duration,
    report: PhaseReport,
    stall_us_p999: f64,
}

/// A phase during which a snapshot was taken.
struct Snapshot {
    load: Stretch,
    took: Duration,
}

struct Run<'a> {
    server: &'a Server,
    generator: Generator,
    /// The moment at which the series' time is zero.
    began: Instant,
}

impl Run<'_> {
    fn stretch(&mut self, until: Until) -> Result<Stretch> {
        let began = self.began.elapsed();
        let stalls = StallMeter::start()?;
        let report = without_errors(self.generator.run(until)?)?;
        Ok(Stretch { began, report, stall_us_p999: stalls.p999_us() })
    }

    /// Like `stretch`, but samples memory, as `watched_snapshot` does. Sampling takes a core for
    /// milliseconds, so memory is sampled with and without a snapshot. Otherwise, the two could not
    /// be compared.
    fn watched(&mut self, until: Until) -> Result<Stretch> {
        let _watch = Watch::start(self.server)?;
        self.stretch(until)
    }

    /// Takes a snapshot under load. Meanwhile, samples the server's memory and the times of the
    /// child or threads that save.
    fn watched_snapshot(&mut self, kind: Kind) -> Result<(Snapshot, Seen)> {
        let watch = Watch::start(self.server)?;
        let snapshot = self.snapshot(kind);
        let seen = watch.finish();
        Ok((snapshot?, seen))
    }

    /// Takes a snapshot under load. The load begins when the snapshot is asked for, and ends when
    /// the snapshot is complete.
    fn snapshot(&mut self, kind: Kind) -> Result<Snapshot> {
        let mut client = self.server.client()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (load, took) = thread::scope(|scope| {
            let until = Until::Stopped(Arc::clone(&is_over));
            let taking = scope.spawn(move || {
                let took = take(&mut client, kind);
                is_over.store(true, Ordering::Relaxed);
                took
            });
            let load = self.stretch(until);
            (load, taking.join().expect("the thread that waits for a snapshot does not panic"))
        });
        Ok(Snapshot { took: took?, load: load? })
    }

    /// Adds the longest time for which a snapshot kept the command thread from running commands, as
    /// the server reports it. There are two numbers: the time by the clock, and the CPU time. Stock
    /// Redis does not report CPU time, so both of its numbers are the time by the clock.
    fn away(&self, metrics: &mut Metrics) -> Result<()> {
        let mut client = self.server.client()?;
        let (section, by_clock, cpu) = match self.server.config().kind {
            ServerKind::Stock => ("stats", "latest_fork_usec", "latest_fork_usec"),
            ServerKind::SlimIO => ("slimio", "snapshot_step_us_max", "snapshot_step_cpu_us_max"),
        };
        let info = client.info(section)?;
        for (metric, field) in
            [("command_thread_away_ms_max", by_clock), ("command_thread_away_cpu_ms_max", cpu)]
        {
            if let Some(us) = info.get(field).and_then(|text| text.trim().parse::<f64>().ok()) {
                let ms_max = metrics.entry(metric).or_insert(0.0);
                *ms_max = ms_max.max(us / 1000.0);
            }
        }
        Ok(())
    }
}

/// Runs both parts. `open_rate` is the number of arrivals per second in the second part; `None`
/// stands for half of the server's rate in the first part without a snapshot.
pub fn run(
    work: &SnapshotWork,
    config: &ServerConfig,
    scale: &Scale,
    open_rate: Option<f64>,
    seed: u64,
) -> Result<RunResult> {
    let mut config = config.clone();
    let compression = if work.compresses { "yes" } else { "no" };
    config.extra.extend(["--rdbcompression".to_owned(), compression.to_owned()]);
    let writer = RequestWriter::new(ValuePool::new(work.value_size, work.compressible, seed));
    let pair_size = (KEY_SIZE + work.value_size) as u64;
    let key_count = (scale.snapshot_payload_bytes / pair_size).max(1);

    let server = Server::start(&config)?;
    preload(server.address(), key_count, &writer, seed)?;
    rewrite_log(&server)?;
    let load = LoadConfig {
        address: server.address().clone(),
        clients: work.clients,
        pipeline: 1,
        arrival: Arrival::Closed,
        check_values: true,
        seed,
    };
    let mix = Mix::named(work.mix, key_count, None)?;
    let generator = Generator::connect(load, mix.clone(), writer)?;
    let mut run = Run { server: &server, generator, began: Instant::now() };
    let warmup = Until::Elapsed(Duration::from_secs_f64(scale.warmup_s));
    let measured = Until::Elapsed(Duration::from_secs_f64(scale.measured_s));
    run.stretch(warmup)?;
    if work.kind == Kind::Growth {
        // Two rounds are not measured. In these rounds, the log becomes longer than before and
        // allocates new disk space, which later logs reuse. One round is not enough: the log of the
        // second round begins with the records that were logged during the first round's snapshot,
        // and so becomes even longer.
        for _ in 0..2 {
            run.stretch(measured.clone())?;
            run.snapshot(work.kind)?;
        }
    }

    run.began = Instant::now();
    let before = run.watched(measured.clone())?;
    let (snapshot, seen) = run.watched_snapshot(work.kind)?;
    let after = run.watched(measured.clone())?;
    let mut result = RunResult::default();
    let data_bytes = (key_count * pair_size) as f64;
    closed_metrics(&[&before, &after], &snapshot, &seen, data_bytes, &mut result.metrics);
    result.series = Some(series(&[&before, &snapshot.load, &after], &snapshot));
    run.away(&mut result.metrics)?;

    rewrite_log(&server)?;
    let per_s = open_rate.unwrap_or(result.metrics["requests_per_s_without"] / 2.0);
    run.generator.set_mix(mix, Arrival::Poisson { per_s });
    let quiet = run.stretch(measured)?;
    let snapshot = run.snapshot(work.kind)?;
    open_metrics(&quiet, &snapshot.load, per_s, &mut result.metrics);
    run.away(&mut result.metrics)?;
    let found = server.client()?.expect(&["DBSIZE"])?;
    if found != Reply::Integer(key_count as i64) {
        return Err(BenchError::Broken(format!(
            "{key_count} keys were set, but DBSIZE is {found:?}"
        )));
    }
    drop(run);
    result.add_notes(&server)?;
    server.stop()?;
    Ok(result)
}

/// Rewrites the log, so that SlimIO and stock Redis both begin with a log that goes on from a
/// snapshot.
fn rewrite_log(server: &Server) -> Result<()> {
    if server.config().policy != Policy::Off {
        take(&mut server.client()?, Kind::Rewrite)?;
    }
    Ok(())
}

fn closed_metrics(
    without: &[&Stretch],
    snapshot: &Snapshot,
    seen: &Seen,
    data_bytes: f64,
    metrics: &mut Metrics,
) {
    let during = &snapshot.load.report;
    let sum = |of: fn(&PhaseReport) -> f64| -> f64 {
        without.iter().map(|stretch| of(&stretch.report)).sum()
    };
    let elapsed_s = sum(|report| report.elapsed.as_secs_f64());
    let requests = sum(|report| report.requests as f64);
    let without_per_s = requests / elapsed_s;
    let during_s = during.elapsed.as_secs_f64();
    let took_s = snapshot.took.as_secs_f64();
    // The stretches before and after the snapshot have the same load, so the mean of the two is the
    // best estimate.
    let tails = without.iter().map(|stretch| stretch.report.latency_us(99.9));
    let (without_us, during_us) =
        (tails.sum::<f64>() / without.len() as f64, during.latency_us(99.9));
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    metrics.extend([
        ("requests_per_s", (requests + during.requests as f64) / (elapsed_s + during_s)),
        ("requests_per_s_without", without_per_s),
        ("requests_per_s_during", during.requests_per_s()),
        ("during_per_without", during.requests_per_s() / without_per_s),
        ("snapshot_s", took_s),
        ("snapshot_mb_per_s", data_bytes / 1e6 / took_s),
        ("data_mb", data_bytes / 1e6),
        ("pss_mib_before", mib(seen.pss_bytes_before)),
        ("pss_mib_peak", mib(seen.pss_bytes_peak)),
        ("pss_peak_per_before", seen.pss_bytes_peak as f64 / seen.pss_bytes_before as f64),
        // Bytes written during the snapshot, as a share of the data set. The more is written, the
        // more additional memory the server needs.
        ("write_rate_per_snapshot_rate", during.payload_bytes as f64 / data_bytes),
        ("closed_latency_us_p999_without", without_us),
        ("closed_latency_us_p999_during", during_us),
        ("closed_p999_during_per_without", during_us / without_us),
        ("closed_latency_us_max_during", during.latency_us_max()),
    ]);
    if let Some(saver) = seen.saver.filter(|saver| saver.cpu.total() >= CPU_MEASURABLE_MIN) {
        let busy = saver.cpu.total() + saver.core_wait;
        metrics.extend([
            ("saver_user_s", saver.cpu.user.as_secs_f64()),
            ("saver_system_s", saver.cpu.system.as_secs_f64()),
            ("saver_waits_for_core_s", saver.core_wait.as_secs_f64()),
            ("saver_waits_s", snapshot.took.saturating_sub(busy).as_secs_f64()),
        ]);
    }
}

fn open_metrics(quiet: &Stretch, during: &Stretch, per_s: f64, metrics: &mut Metrics) {
    metrics.insert("offered_per_s", per_s);
    let lag_us =
        |stretch: &Stretch| stretch.report.own_lag.value_at_percentile(99.9) as f64 / 1000.0;
    metrics.extend([
        ("machine_stall_us_p999_without", quiet.stall_us_p999),
        ("machine_stall_us_p999_during", during.stall_us_p999),
        ("client_lag_us_p999_without", lag_us(quiet)),
        ("client_lag_us_p999_during", lag_us(during)),
        ("never_sent_during", during.report.never_sent as f64),
    ]);
    let p999_us = |histogram: &hdrhistogram::Histogram<u64>| {
        (!histogram.is_empty()).then(|| histogram.value_at_percentile(99.9) as f64 / 1000.0)
    };
    let (quiet, during) = (&quiet.report, &during.report);
    let rows = [
        (
            [&quiet.write_latency, &during.write_latency],
            [
                "set_latency_us_p999_without",
                "set_latency_us_p999_during",
                "set_p999_during_per_without",
            ],
        ),
        (
            [&quiet.read_latency, &during.read_latency],
            [
                "get_latency_us_p999_without",
                "get_latency_us_p999_during",
                "get_p999_during_per_without",
            ],
        ),
    ];
    for ([quiet, during], [name_without, name_during, name_ratio]) in rows {
        if let (Some(without_us), Some(during_us)) = (p999_us(quiet), p999_us(during)) {
            metrics.insert(name_without, without_us);
            metrics.insert(name_during, during_us);
            metrics.insert(name_ratio, during_us / without_us);
        }
    }
}

fn series(stretches: &[&Stretch], snapshot: &Snapshot) -> Series {
    let mut series = Series::default();
    for stretch in stretches {
        series.add(stretch.began, &stretch.report);
    }
    let began = snapshot.load.began;
    series.snapshots.push((began.as_secs_f64(), (began + snapshot.took).as_secs_f64()));
    series
}
