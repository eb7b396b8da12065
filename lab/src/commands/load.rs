//! `slimio-lab load`: drives one running server.

use std::fmt::Write as _;
use std::time::Duration;

use crate::address::Address;
use crate::args::Args;
use crate::error::{BenchError, Result};
use crate::keys::KeyDistribution;
use crate::load::{Arrival, Generator, LoadConfig, PhaseReport, Until};
use crate::mix::Mix;
use crate::proc::{CpuTime, ThreadsUse};
use crate::request::RequestWriter;
use crate::run::{preload, without_errors};
use crate::values::ValuePool;

/// Flags without a value.
pub const SWITCHES: &[&str] = &["preload", "check-values", "allow-errors"];

/// What the flags of `load` mean.
pub const HELP: &str = include_str!("../../help/load.txt");

/// Runs the load that `args` describe; the result is the text to print.
pub fn run(mut args: Args) -> Result<String> {
    let address = address(&mut args)?;
    let key_count = args.value("keys", 1_000_000u64)?.max(1);
    let seed = args.value("seed", 1)?;
    let value_size = args.value("value-size", 4096)?;
    let compressible: f64 = args.value("compressible", 0.5)?;
    if !(0.0..=1.0).contains(&compressible) {
        return Err(BenchError::Usage("--compressible is between 0 and 1".into()));
    }
    let mix_name: String = args.value("mix", "set".to_owned())?;
    let mix = Mix::named(&mix_name, key_count, distribution(&mut args)?)?;
    let arrival = arrival(&mut args)?;
    let fill_first = args.switch("preload");
    let config = LoadConfig {
        address,
        clients: args.value("clients", 50)?,
        pipeline: args.value("pipeline", 1)?,
        arrival,
        check_values: args.switch("check-values"),
        seed,
    };
    let warmup = seconds(args.value("warmup", 1.0)?)?;
    let length = seconds(args.value("seconds", 10.0)?)?;
    let until = match args.optional("requests")? {
        Some(count) => Until::Requests(count),
        None => Until::Elapsed(length),
    };
    let allow_errors = args.switch("allow-errors");
    let server = args.optional("server-pid")?;
    args.finish()?;

    let writer = RequestWriter::new(ValuePool::new(value_size, compressible, seed));
    if fill_first {
        preload(&config.address, key_count, &writer, seed)?;
    }
    let mut generator = Generator::connect(config, mix, writer)?;
    if !warmup.is_zero() && matches!(until, Until::Elapsed(_)) {
        generator.run(Until::Elapsed(warmup))?;
    }
    let before = Use::now(server)?;
    let report = generator.run(until)?;
    let used = Use::now(server)?.since(before);
    let report = if allow_errors { report } else { without_errors(report)? };
    Ok(describe(&report, used))
}

/// CPU time, and the server's context switches, used until some moment.
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
        line("own lag p99.9 us", format!("{lag_us:.1}"));
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

fn address(args: &mut Args) -> Result<Address> {
    if let Some(path) = args.text("socket") {
        return Ok(Address::Unix(path.into()));
    }
    if let Some(host) = args.optional("host")? {
        return Ok(Address::Tcp(host));
    }
    Ok(Address::local(args.value("port", 6379)?))
}

fn distribution(args: &mut Args) -> Result<Option<KeyDistribution>> {
    let Some(name) = args.text("distribution") else { return Ok(None) };
    Ok(Some(match name.as_str() {
        "uniform" => KeyDistribution::Uniform,
        "zipfian" => KeyDistribution::Zipfian,
        "latest" => KeyDistribution::Latest,
        "sequential" => KeyDistribution::Sequential,
        _ => return Err(BenchError::Usage(format!("unknown distribution {name}"))),
    }))
}

fn arrival(args: &mut Args) -> Result<Arrival> {
    let kind = args.value("arrival", "poisson".to_owned())?;
    let Some(per_s) = args.optional::<f64>("rate")? else { return Ok(Arrival::Closed) };
    match kind.as_str() {
        _ if !(per_s > 0.0 && per_s.is_finite()) => {
            Err(BenchError::Usage("--rate must be above zero".into()))
        }
        "poisson" => Ok(Arrival::Poisson { per_s }),
        "fixed" => Ok(Arrival::Fixed { per_s }),
        _ => Err(BenchError::Usage(format!("unknown arrival {kind}"))),
    }
}

fn seconds(value: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| BenchError::Usage(format!("{value} is not a length of time")))
}
