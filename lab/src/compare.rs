//! Stock and SlimIO in turn, in one run on one file system: medians and ratios.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::environment::Environment;
use crate::error::{Doing, Result};
use crate::measure::Metrics;
use crate::run::{self, RunResult, fresh_directory};
use crate::scenario::{self, Scale, Scenario, Work};
use crate::server::{Policy, ServerConfig, ServerKind};

/// Name of the file with one JSON line per run.
pub const RUNS_FILE: &str = "runs.jsonl";

/// What to compare.
#[derive(Clone, Debug)]
pub struct CompareConfig {
    /// Servers in the order of a round, with their programs.
    pub servers: Vec<(ServerKind, PathBuf)>,
    /// Flags given to both.
    pub extra: Vec<String>,
    /// Rows of the report.
    pub scenarios: Vec<&'static Scenario>,
    /// Length and size.
    pub scale: Scale,
    /// Directory for results.
    pub out: PathBuf,
    /// Directory for the servers' data; its file system is what is compared on.
    pub work: PathBuf,
    /// Source of every random choice.
    pub seed: u64,
}

/// All runs of one row on one server.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    /// Runs that went well.
    pub results: Vec<RunResult>,
    /// Errors of the others.
    pub errors: Vec<String>,
}

impl Runs {
    /// Median over the rounds; `None` when no round measured it.
    pub fn median(&self, metric: &str) -> Option<f64> {
        median(self.values(metric))
    }

    /// How far the rounds lie apart: (largest - smallest) / median.
    pub fn spread(&self, metric: &str) -> Option<f64> {
        let values = self.values(metric);
        let largest = values.iter().copied().fold(f64::MIN, f64::max);
        let smallest = values.iter().copied().fold(f64::MAX, f64::min);
        let median = self.median(metric)?;
        (median > 0.0).then(|| (largest - smallest) / median)
    }

    /// Names of everything that some round measured.
    pub fn metric_names(&self) -> Vec<&'static str> {
        let all: Metrics = self.results.iter().flat_map(|result| result.metrics.clone()).collect();
        all.into_keys().collect()
    }

    /// Latency in microseconds by percentile, the median of the rounds at each.
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let Some(first) = self.results.first() else { return Vec::new() };
        let median_at = |at: usize| {
            let curves = self.results.iter().filter_map(|result| result.curve.get(at));
            median(curves.map(|&(_, us)| us).collect())
        };
        let points = first.curve.iter().enumerate();
        points.filter_map(|(at, &(percentile, _))| Some((percentile, median_at(at)?))).collect()
    }

    fn values(&self, metric: &str) -> Vec<f64> {
        self.results.iter().filter_map(|result| result.metrics.get(metric)).copied().collect()
    }
}

/// The middle value, or the mean of the two in the middle; `None` without values.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// Everything that a comparison found.
#[derive(Debug)]
pub struct Comparison {
    /// Where it ran.
    pub environment: Environment,
    /// What it compared.
    pub config: CompareConfig,
    /// By position of the scenario in `config.scenarios`, and server.
    pub runs: BTreeMap<(usize, ServerKind), Runs>,
}

impl Comparison {
    /// Runs of a row on a server.
    pub fn runs(&self, scenario_name: &str, kind: ServerKind) -> Option<&Runs> {
        let mut scenarios = self.config.scenarios.iter();
        let index = scenarios.position(|scenario| scenario.name == scenario_name)?;
        self.runs.get(&(index, kind))
    }

    /// Median of SlimIO over median of stock.
    pub fn ratio(&self, scenario_name: &str, metric: &str) -> Option<f64> {
        let median = |kind| self.runs(scenario_name, kind)?.median(metric);
        let stock = median(ServerKind::Stock)?;
        (stock > 0.0).then_some(median(ServerKind::SlimIO)? / stock)
    }

    /// What went wrong, a line each.
    pub fn errors(&self) -> Vec<String> {
        let of_runs = |(&(index, kind), runs): (&(usize, ServerKind), &Runs)| {
            let name = self.config.scenarios[index].name;
            runs.errors.iter().map(|error| format!("{name}, {kind}: {error}")).collect::<Vec<_>>()
        };
        self.runs.iter().flat_map(of_runs).collect()
    }
}

/// Runs the rounds of every row; each run's line is in the file as soon as the run is over.
pub fn compare(config: CompareConfig) -> Result<Comparison> {
    fs::create_dir_all(&config.out).doing(format!("making {}", config.out.display()))?;
    fresh_directory(&config.work)?;
    let mut environment = Environment::of(&config.work)?;
    environment.add_strangers()?;
    for (kind, program) in &config.servers {
        let name = if *kind == ServerKind::Stock { "stock_version" } else { "slimio_version" };
        environment.add_server(name, program);
    }
    let mut lines = File::create(config.out.join(RUNS_FILE)).doing("making the file of results")?;
    let mut comparison = Comparison { environment, runs: BTreeMap::new(), config };
    let mut capacity = Capacity::default();
    for index in 0..comparison.config.scenarios.len() {
        for round in 0..comparison.config.scale.rounds {
            for server in 0..comparison.config.servers.len() {
                let line = comparison.run_one(index, round, server, &mut capacity);
                writeln!(lines, "{line}").doing("writing a result")?;
            }
        }
    }
    fs::remove_dir_all(&comparison.config.work).doing("removing the servers' data")?;
    Ok(comparison)
}

/// The stock server's throughput in a closed loop, by policy. It sets the rate of the open loop.
#[derive(Debug, Default)]
struct Capacity {
    per_s: BTreeMap<Policy, f64>,
}

impl Comparison {
    fn run_one(
        &mut self,
        index: usize,
        round: u32,
        server: usize,
        capacity: &mut Capacity,
    ) -> Value {
        let scenario = self.config.scenarios[index];
        let (kind, _) = self.config.servers[server];
        let seed = self.config.seed + u64::from(round);
        let outcome = self.open_rate(scenario, kind, seed, capacity).and_then(|rate| {
            let server = self.server_config(server, scenario.policy);
            fresh_directory(&server.directory)?;
            run::run(scenario, &server, &self.config.scale, rate, seed)
        });
        let mut line = json!({
            "scenario": scenario.name,
            "server": kind.to_string(),
            "policy": scenario.policy.to_string(),
            "round": round,
            "seed": seed,
            "environment": self.environment.to_json(),
        });
        let runs = self.runs.entry((index, kind)).or_default();
        match outcome {
            Ok(result) => {
                let headline = result.metrics.get(scenario.headline).copied().unwrap_or(f64::NAN);
                eprintln!(
                    "{} {kind} round {round}: {headline:.2} {}",
                    scenario.name, scenario.headline
                );
                line["metrics"] = json!(result.metrics);
                line["notes"] = json!(result.notes);
                line["latency_us_by_percentile"] = json!(result.curve);
                if let Some(series) = &result.series {
                    line["series"] = series.to_json();
                }
                runs.results.push(result);
            }
            Err(error) => {
                eprintln!("{} {kind} round {round}: {error}", scenario.name);
                line["error"] = error.to_string().into();
                runs.errors.push(error.to_string());
            }
        }
        line
    }

    fn server_config(&self, server: usize, policy: Policy) -> ServerConfig {
        let (kind, program) = self.config.servers[server].clone();
        let directory = self.config.work.join(kind.to_string());
        ServerConfig { kind, program, directory, policy, extra: self.config.extra.clone() }
    }

    /// Half of the stock server's capacity for rows with an open loop. It comes from the
    /// closed-loop row of this run; without that row it is measured here.
    fn open_rate(
        &self,
        scenario: &Scenario,
        kind: ServerKind,
        seed: u64,
        capacity: &mut Capacity,
    ) -> Result<Option<f64>> {
        if matches!(scenario.work, Work::Snapshot(_)) {
            // Stock measures its own rate first; without stock, SlimIO does.
            let stock = self.runs(scenario.name, ServerKind::Stock);
            let per_s = stock.and_then(|runs| runs.median("requests_per_s_without"));
            return Ok(per_s.filter(|_| kind == ServerKind::SlimIO).map(|per_s| per_s / 2.0));
        }
        if !matches!(scenario.work, Work::HalfOpen { .. }) {
            return Ok(None);
        }
        if let Some(per_s) = capacity.per_s.get(&scenario.policy) {
            return Ok(Some(per_s / 2.0));
        }
        let name = format!("set-{}", scenario.policy);
        let known =
            self.runs(&name, ServerKind::Stock).and_then(|runs| runs.median("requests_per_s"));
        let per_s = match known {
            Some(per_s) => per_s,
            None => self.measure_capacity(&name, seed)?,
        };
        eprintln!("{}: stock does {per_s:.0} requests/s", scenario.name);
        capacity.per_s.insert(scenario.policy, per_s);
        Ok(Some(per_s / 2.0))
    }

    fn measure_capacity(&self, name: &str, seed: u64) -> Result<f64> {
        let scenario = scenario::named(name).expect("every policy compared has a closed-loop row");
        let stock = self.config.servers.iter().position(|(kind, _)| *kind == ServerKind::Stock);
        let server = self.server_config(stock.unwrap_or(0), scenario.policy);
        fresh_directory(&server.directory)?;
        let result = run::run(scenario, &server, &self.config.scale, None, seed)?;
        Ok(result.metrics["requests_per_s"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(values: &[f64]) -> Runs {
        let result = |&value: &f64| RunResult {
            metrics: Metrics::from([("m", value)]),
            curve: vec![(50.0, value)],
            ..RunResult::default()
        };
        Runs { results: values.iter().map(result).collect(), errors: Vec::new() }
    }

    #[test]
    fn medians_and_spreads() {
        assert_eq!(runs(&[3.0, 1.0, 2.0]).median("m"), Some(2.0));
        assert_eq!(runs(&[4.0, 2.0]).median("m"), Some(3.0));
        assert_eq!(runs(&[]).median("m"), None);
        assert_eq!(runs(&[1.0]).median("other"), None);
        assert_eq!(runs(&[1.0, 2.0, 4.0]).spread("m"), Some(1.5));
        assert_eq!(runs(&[1.0, 2.0, 4.0]).curve(), [(50.0, 2.0)]);
    }
}
