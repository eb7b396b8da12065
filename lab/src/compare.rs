//! Compares stock servers with SlimIO. In each round, the servers take turns, all on the same file
//! system. Results are medians and ratios.

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

/// A server that is compared.
#[derive(Clone, Debug)]
pub struct Contender {
    /// Whether the server is stock or SlimIO.
    pub kind: ServerKind,
    /// The server's name: one word, different for each contender.
    pub name: String,
    /// Path of the server's program.
    pub program: PathBuf,
}

impl Contender {
    /// The only contender of its kind, named after the kind.
    pub fn only(kind: ServerKind, program: PathBuf) -> Self {
        Self { kind, name: kind.to_string(), program }
    }

    /// The server's name in tables.
    pub fn title(&self) -> &str {
        match self.kind {
            ServerKind::Stock => &self.name,
            ServerKind::SlimIO => "SlimIO",
        }
    }
}

/// Settings of a comparison.
#[derive(Clone, Debug)]
pub struct CompareConfig {
    /// The servers, in the order in which each round runs them.
    pub servers: Vec<Contender>,
    /// Flags that every server gets.
    pub extra: Vec<String>,
    /// Rows of the report.
    pub scenarios: Vec<&'static Scenario>,
    /// How long the runs take, and how much data they have.
    pub scale: Scale,
    /// Directory for results.
    pub out: PathBuf,
    /// Directory for the servers' data.
    pub work: PathBuf,
    /// Source of every random choice.
    pub seed: u64,
}

/// All runs of one row on one server.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    /// Results of the runs that succeeded.
    pub results: Vec<RunResult>,
    /// Errors of the runs that failed.
    pub errors: Vec<String>,
}

impl Runs {
    /// Median of a metric over the rounds; `None` if no round measured the metric.
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

    /// Names of the metrics that at least one round measured.
    pub fn metric_names(&self) -> Vec<&'static str> {
        let all: Metrics = self.results.iter().flat_map(|result| result.metrics.clone()).collect();
        all.into_keys().collect()
    }

    fn values(&self, metric: &str) -> Vec<f64> {
        self.results.iter().filter_map(|result| result.metrics.get(metric)).copied().collect()
    }
}

/// The middle value, or the mean of the two in the middle; `None` if there are no values.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// Whether a larger or a smaller value of a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// The larger value is better: for example a rate.
    More,
    /// The smaller value is better: time, memory, bytes.
    Less,
}

impl Better {
    /// Decides by the metric's name.
    pub fn of(metric: &str) -> Self {
        let is_rate = metric.contains("_per_s") || metric.contains("share");
        if is_rate || metric == "during_per_without" { Self::More } else { Self::Less }
    }

    fn is(self, value: f64, than: f64) -> bool {
        match self {
            Self::More => value > than,
            Self::Less => value < than,
        }
    }
}

/// Everything that a comparison found.
#[derive(Debug)]
pub struct Comparison {
    /// The machine and the file system that the comparison ran on.
    pub environment: Environment,
    /// The settings of the comparison.
    pub config: CompareConfig,
    /// The runs, by the position of the scenario in `config.scenarios` and of the server in
    /// `config.servers`.
    pub runs: BTreeMap<(usize, usize), Runs>,
}

impl Comparison {
    /// Runs of a row on the first server of a kind.
    pub fn runs(&self, scenario_name: &str, kind: ServerKind) -> Option<&Runs> {
        let mut scenarios = self.config.scenarios.iter();
        let index = scenarios.position(|scenario| scenario.name == scenario_name)?;
        self.of_kind(kind).find_map(|server| self.runs.get(&(index, server)))
    }

    /// For a row and a metric: the stock server with the best median, and that median. SlimIO is
    /// compared with this server.
    pub fn best_stock(
        &self,
        scenario_name: &str,
        metric: &str,
        better: Better,
    ) -> Option<(&Contender, f64)> {
        let mut scenarios = self.config.scenarios.iter();
        let index = scenarios.position(|scenario| scenario.name == scenario_name)?;
        let medians = self.of_kind(ServerKind::Stock).filter_map(|server| {
            let median = self.runs.get(&(index, server))?.median(metric)?;
            Some((&self.config.servers[server], median))
        });
        medians.reduce(|best, next| if better.is(next.1, best.1) { next } else { best })
    }

    /// The median of SlimIO, divided by the median of the best stock server.
    pub fn ratio(&self, scenario_name: &str, metric: &str) -> Option<f64> {
        let (_, stock) = self.best_stock(scenario_name, metric, Better::of(metric))?;
        let slimio = self.runs(scenario_name, ServerKind::SlimIO)?.median(metric)?;
        (stock > 0.0).then_some(slimio / stock)
    }

    /// The number of stock servers in the comparison.
    pub fn stock_count(&self) -> usize {
        self.of_kind(ServerKind::Stock).count()
    }

    /// Positions of the servers of a kind.
    fn of_kind(&self, kind: ServerKind) -> impl Iterator<Item = usize> {
        let servers = self.config.servers.iter().enumerate();
        servers.filter(move |(_, server)| server.kind == kind).map(|(index, _)| index)
    }

    /// One line for each error of a run.
    pub fn errors(&self) -> Vec<String> {
        let of_runs = |(&(index, server), runs): (&(usize, usize), &Runs)| {
            let name = self.config.scenarios[index].name;
            let server = &self.config.servers[server].name;
            runs.errors.iter().map(|error| format!("{name}, {server}: {error}")).collect::<Vec<_>>()
        };
        self.runs.iter().flat_map(of_runs).collect()
    }
}

/// Runs the rounds of every row. As soon as a run has ended, its line is written to [`RUNS_FILE`].
pub fn compare(config: CompareConfig) -> Result<Comparison> {
    fs::create_dir_all(&config.out).doing(format!("making {}", config.out.display()))?;
    fresh_directory(&config.work)?;
    let mut environment = Environment::of(&config.work)?;
    environment.add_other_load()?;
    for Contender { name, program, .. } in &config.servers {
        environment.add_server(&format!("{name}_version"), program);
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

/// For each policy, the best stock server's throughput in a closed loop. If the comparison has no
/// stock server, SlimIO's throughput. The rate of the open loop is half of this throughput.
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
        let Contender { kind, name, .. } = self.config.servers[server].clone();
        let seed = self.config.seed + u64::from(round);
        let outcome = self.open_rate(scenario, kind, seed, capacity).and_then(|rate| {
            let server = self.server_config(server, scenario.policy);
            fresh_directory(&server.directory)?;
            run::run(scenario, &server, &self.config.scale, rate, seed)
        });
        let mut line = json!({
            "scenario": scenario.name,
            "server": name,
            "policy": scenario.policy.to_string(),
            "round": round,
            "seed": seed,
            "environment": self.environment.to_json(),
        });
        let runs = self.runs.entry((index, server)).or_default();
        match outcome {
            Ok(result) => {
                let headline = result.metrics.get(scenario.headline).copied().unwrap_or(f64::NAN);
                eprintln!(
                    "{} {name} round {round}: {headline:.2} {}",
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
                eprintln!("{} {name} round {round}: {error}", scenario.name);
                line["error"] = error.to_string().into();
                runs.errors.push(error.to_string());
            }
        }
        line
    }

    fn server_config(&self, server: usize, policy: Policy) -> ServerConfig {
        let Contender { kind, name, program } = self.config.servers[server].clone();
        let directory = self.config.work.join(name);
        let extra = self.config.extra.clone();
        ServerConfig { kind, program, directory, policy, extra, under: Vec::new() }
    }

    /// The rate for a row with an open loop: half of the capacity of the best stock server. The
    /// capacity comes from this comparison's row with a closed loop. If that row was not run, this
    /// function measures the capacity. If the comparison has no stock server, the function measures
    /// SlimIO's capacity. Returns `None` if `scenario` is to be run without a given rate.
    fn open_rate(
        &self,
        scenario: &Scenario,
        kind: ServerKind,
        seed: u64,
        capacity: &mut Capacity,
    ) -> Result<Option<f64>> {
        if matches!(scenario.work, Work::Snapshot(_)) {
            // A stock server measures its own rate first, so it gets `None`. SlimIO gets half of
            // the best stock server's rate. If the comparison has no stock server, SlimIO measures
            // its own rate.
            let best = self.best_stock(scenario.name, "requests_per_s_without", Better::More);
            let best = best.filter(|_| kind == ServerKind::SlimIO);
            return Ok(best.map(|(_, per_s)| per_s / 2.0));
        }
        if !matches!(scenario.work, Work::HalfOpen { .. }) {
            return Ok(None);
        }
        if let Some(per_s) = capacity.per_s.get(&scenario.policy) {
            return Ok(Some(per_s / 2.0));
        }
        let name = format!("set-{}", scenario.policy);
        let per_s = match self.best_stock(&name, "requests_per_s", Better::More) {
            Some((_, per_s)) => per_s,
            None => self.measure_capacity(&name, seed)?,
        };
        eprintln!("{}: a closed loop reaches {per_s:.0} requests/s", scenario.name);
        capacity.per_s.insert(scenario.policy, per_s);
        Ok(Some(per_s / 2.0))
    }

    fn measure_capacity(&self, name: &str, seed: u64) -> Result<f64> {
        let scenario = scenario::named(name).expect("there is a closed-loop row for each policy");
        let mut stocks: Vec<usize> = self.of_kind(ServerKind::Stock).collect();
        if stocks.is_empty() {
            stocks.push(0);
        }
        let mut best = 0.0_f64;
        for stock in stocks {
            let server = self.server_config(stock, scenario.policy);
            fresh_directory(&server.directory)?;
            let result = run::run(scenario, &server, &self.config.scale, None, seed)?;
            best = best.max(result.metrics["requests_per_s"]);
        }
        Ok(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(values: &[f64]) -> Runs {
        let result = |&value: &f64| RunResult {
            metrics: Metrics::from([("m", value)]),
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
    }

    #[test]
    fn the_best_stock_server_is_the_yardstick() {
        let row = scenario::named("set-always").unwrap();
        let server =
            |kind, name: &str| Contender { kind, name: name.to_owned(), program: PathBuf::new() };
        let comparison = Comparison {
            environment: Environment::default(),
            config: CompareConfig {
                servers: vec![
                    server(ServerKind::Stock, "old"),
                    server(ServerKind::Stock, "new"),
                    Contender::only(ServerKind::SlimIO, PathBuf::new()),
                ],
                extra: Vec::new(),
                scenarios: vec![row],
                scale: Scale::QUICK,
                out: PathBuf::new(),
                work: PathBuf::new(),
                seed: 1,
            },
            runs: [10.0, 20.0, 40.0]
                .into_iter()
                .enumerate()
                .map(|(index, value)| {
                    let metrics = Metrics::from([("requests_per_s", value), ("pss_mib", value)]);
                    let results = vec![RunResult { metrics, ..RunResult::default() }];
                    ((0, index), Runs { results, errors: Vec::new() })
                })
                .collect(),
        };
        assert_eq!(
            comparison.ratio(row.name, "requests_per_s"),
            Some(2.0),
            "SlimIO must be compared with the fastest stock server"
        );
        assert_eq!(
            comparison.ratio(row.name, "pss_mib"),
            Some(4.0),
            "SlimIO must be compared with the stock server that takes the least memory"
        );
        let best = comparison.best_stock(row.name, "requests_per_s", Better::More).unwrap();
        assert_eq!((best.0.title(), comparison.stock_count()), ("new", 2));
        assert_eq!(comparison.config.servers[2].title(), "SlimIO");
        let report = crate::markdown::render(&comparison, "a test");
        assert!(report.contains("| old | new | SlimIO | ratio to the best |"), "{report}");
        assert!(report.contains("| 20.0 (new) | 40.0 | 2.00× |"), "{report}");
    }
}
