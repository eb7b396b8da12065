//! `slimio-lab load`: puts load on a running server.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::address::Address;
use crate::error::{BenchError, Result};
use crate::keys::KeyDistribution;
use crate::load::{Arrival, Generator, LoadConfig, PhaseReport, Until};
use crate::mix::Mix;
use crate::proc::{CpuTime, ThreadsUse};
use crate::request::RequestWriter;
use crate::run::{fill, without_errors};
use crate::values::ValuePool;

/// The help text of `slimio-lab load`.
pub const HELP: &str = include_str!("../../help/load.txt");

/// The flags.
#[derive(Debug, Args)]
pub struct Load {
    #[arg(long, default_value_t = 6379)]
    port: u16,
    #[arg(long)]
    host: Option<SocketAddr>,
    #[arg(long)]
    socket: Option<PathBuf>,
    #[arg(long, default_value_t = 50)]
    clients: usize,
    #[arg(long, default_value_t = 1)]
    pipeline: usize,
    #[arg(long, default_value = "set")]
    mix: String,
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    #[arg(long, value_enum)]
    distribution: Option<KeyDistribution>,
    #[arg(long, default_value_t = 4096)]
    value_size: usize,
    #[arg(long, default_value_t = 0.5)]
    compressible: f64,
    #[arg(long)]
    rate: Option<f64>,
    #[arg(long, value_enum, default_value_t = ArrivalName::Poisson)]
    arrival: ArrivalName,
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    #[arg(long)]
    requests: Option<u64>,
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    #[arg(long)]
    preload: bool,
    #[arg(long)]
    check_values: bool,
    #[arg(long)]
    allow_errors: bool,
    #[arg(long)]
    server_pid: Option<u32>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ArrivalName {
    Poisson,
    Fixed,
}

/// Runs the load. Returns the text to print.
pub fn run(args: &Load) -> Result<String> {
    let &Load { value_size, compressible, seed, server_pid: server, .. } = args;
    let key_count = args.keys.max(1);
    if !(0.0..=1.0).contains(&compressible) {
        return Err(BenchError::Usage("--compressible must be between 0 and 1".into()));
    }
    let mix = Mix::named(&args.mix, key_count, args.distribution)?;
    let config = LoadConfig {
        address: address(args),
        clients: args.clients,
        pipeline: args.pipeline,
        arrival: arrival(args)?,
        check_values: args.check_values,
        seed,
    };
    let warmup = seconds(args.warmup)?;
    let length = seconds(args.seconds)?;
    let until = args.requests.map_or(Until::Elapsed(length), Until::Requests);

    let writer = RequestWriter::new(ValuePool::new(value_size, compressible, seed));
    if args.preload {
        fill(&mix, &config.address, &writer, seed)?;
    }
    let mut generator = Generator::connect(config, mix, writer)?;
    if !warmup.is_zero() && matches!(until, Until::Elapsed(_)) {
        generator.run(Until::Elapsed(warmup))?;
    }
    let before = Use::now(server)?;
    let report = generator.run(until)?;
    let used = Use::now(server)?.since(before);
    let report = if args.allow_errors { report } else { without_errors(report)? };
    Ok(describe(&report, used))
}

/// CPU time of this process, and CPU time and context switches of the server. Counted up to one
/// moment, or between two moments.
#[derive(Clone, Copy)]
struct Use {
    own: Duration,
    server: Option<ThreadsUse>,
}

impl Use {
    fn now(server: Option<u32>) -> Result<Self> {
        Ok(Self {
            own: CpuTime::of_self()?.total(),
            server: server.map(ThreadsUse::of_process).transpose()?,
        })
    }

    fn since(self, earlier: Self) -> Self {
        let server = self.server.zip(earlier.server);
        Self {
            own: self.own.saturating_sub(earlier.own),
            server: server.map(|(now, earlier)| now.since(earlier)),
        }
    }
}

fn describe(report: &PhaseReport, used: Use) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<26}{value}");
    };
    line("requests", report.requests.to_string());
    line("seconds", format!("{:.3}", report.elapsed.as_secs_f64()));
    line("requests/s", format!("{:.0}", report.requests_per_s()));
    for percentile in [50.0, 99.0, 99.9] {
        line(&format!("p{percentile} us"), format!("{:.1}", report.latency_us(percentile)));
    }
    line("max us", format!("{:.1}", report.latency_us_max()));
    if !report.own_lag.is_empty() {
        let lag_us = report.own_lag.value_at_percentile(99.9) as f64 / 1000.0;
        line("generator lag p99.9 us", format!("{lag_us:.1}"));
        line("never sent", report.never_sent.to_string());
    }
    line("hits, misses, errors", format!("{} {} {}", report.hits, report.misses, report.errors));
    let requests = report.requests.max(1) as f64;
    let per_request = |cpu: Duration| format!("{:.2}", cpu.as_secs_f64() * 1e6 / requests);
    line("generator CPU us/request", per_request(used.own));
    if let Some(server) = used.server {
        line("server CPU us/request", per_request(server.cpu));
        line("server switches/request", format!("{:.2}", server.switches as f64 / requests));
    }
    text
}

fn address(args: &Load) -> Address {
    match (&args.socket, args.host) {
        (Some(path), _) => Address::Unix(path.clone()),
        (None, Some(host)) => Address::Tcp(host),
        (None, None) => Address::local(args.port),
    }
}

fn arrival(args: &Load) -> Result<Arrival> {
    let Some(per_s) = args.rate else { return Ok(Arrival::Closed) };
    if !(per_s > 0.0 && per_s.is_finite()) {
        return Err(BenchError::Usage("--rate must be above zero".into()));
    }
    Ok(match args.arrival {
        ArrivalName::Poisson => Arrival::Poisson { per_s },
        ArrivalName::Fixed => Arrival::Fixed { per_s },
    })
}

fn seconds(value: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| BenchError::Usage(format!("{value} is not a valid number of seconds")))
}
