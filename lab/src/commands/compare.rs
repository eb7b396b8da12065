//! `slimio-lab compare`: runs stock Redis and SlimIO in turn, and reports the ratios.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::compare::{CompareConfig, Comparison, Contender, RUNS_FILE, compare};
use crate::error::{BenchError, Doing, Result};
use crate::markdown;
use crate::plot;
use crate::scenario::{self, DEFAULT_SCENARIO_COUNT, SCENARIOS, Scale, Scenario};
use crate::server::{ServerKind, find_program};

/// The help text of `slimio-lab compare`.
pub const HELP: &str = include_str!("../../help/compare.txt");

const REPORT_FILE: &str = "benchmarks.md";

/// The flags of `slimio-lab compare`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each field is a flag of the command line")]
pub struct Compare {
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    #[arg(long)]
    full: bool,
    #[arg(long)]
    rounds: Option<u32>,
    #[arg(long)]
    seconds: Option<f64>,
    #[arg(long)]
    scenarios: Option<String>,
    #[arg(long, conflicts_with = "slimio_only")]
    stock_only: bool,
    #[arg(long)]
    slimio_only: bool,
    #[arg(long)]
    stock: Option<String>,
    #[arg(long, default_value = "target/release/slimio")]
    slimio: PathBuf,
    #[arg(long, default_value = "bench-results")]
    out: PathBuf,
    #[arg(long)]
    dir: Option<PathBuf>,
    #[arg(long, allow_hyphen_values = true, default_value = "")]
    extra: String,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long)]
    redraw: bool,
}

impl Compare {
    /// Runs the comparison, and returns the text to print. `command` is the command line that
    /// repeats the comparison.
    pub fn run(&self, command: &str) -> Result<String> {
        if self.scenarios.as_deref() == Some("list") {
            return Ok(list());
        }
        if self.redraw {
            let (out, names) = (self.out.display(), plot::draw(&self.out)?.join(", "));
            return Ok(format!("Written to {out}: {names}\n"));
        }
        let comparison = compare(self.config()?)?;
        write_report(&comparison, command)
    }

    fn config(&self) -> Result<CompareConfig> {
        let mut scale = match (self.quick, self.full) {
            (true, _) => Scale::QUICK,
            (_, true) => Scale::FULL,
            _ => Scale::NORMAL,
        };
        scale.rounds = self.rounds.unwrap_or(scale.rounds);
        scale.measured_s = self.seconds.unwrap_or(scale.measured_s);
        if scale.rounds == 0 || !(scale.measured_s > 0.0 && scale.measured_s < 86_400.0) {
            return Err(BenchError::Usage(
                "--rounds and --seconds must be above 0, and --seconds below 86400".into(),
            ));
        }
        let work = self.dir.clone().unwrap_or_else(|| self.out.join("work"));
        Ok(CompareConfig {
            servers: self.servers()?,
            extra: self.extra.split_whitespace().map(str::to_owned).collect(),
            scenarios: pick(self.scenarios.as_deref())?,
            scale,
            // Each server runs in its own working directory, so paths must be absolute.
            work: absolute(&work)?,
            out: absolute(&self.out)?,
            seed: self.seed,
        })
    }

    fn servers(&self) -> Result<Vec<Contender>> {
        let mut servers = Vec::new();
        if !self.slimio_only {
            servers.extend(stocks(self.stock.as_deref())?);
        }
        if !self.stock_only {
            let slimio = &self.slimio;
            if !slimio.is_file() {
                let text = format!(
                    "{} does not exist: build it with `cargo build --release`, give another path with \
                     --slimio, or run stock alone with --stock-only",
                    slimio.display()
                );
                return Err(BenchError::Usage(text));
            }
            servers.push(Contender::only(ServerKind::SlimIO, absolute(slimio)?));
        }
        Ok(servers)
    }
}

fn write_report(comparison: &Comparison, command: &str) -> Result<String> {
    let out = &comparison.config.out;
    let report = markdown::render(comparison, command);
    fs::write(out.join(REPORT_FILE), &report).doing("writing the report")?;
    let plots = plot::draw(out)?;
    let errors = comparison.errors();
    if errors.is_empty() {
        let names = [RUNS_FILE, REPORT_FILE].into_iter().chain(plots.iter().map(String::as_str));
        let files = names.collect::<Vec<_>>().join(", ");
        return Ok(format!("{report}\nWritten to {}: {files}\n", out.display()));
    }
    let text = format!("{} runs failed:\n{}", errors.len(), errors.join("\n"));
    Err(BenchError::Server(text))
}

/// The stock servers that `--stock` names: one by its path, several as `NAME=PATH,NAME=PATH`.
pub(crate) fn stocks(given: Option<&str>) -> Result<Vec<Contender>> {
    let Some(given) = given else {
        let program = find_program("redis-server").ok_or_else(|| {
            BenchError::Usage(
                "redis-server is not installed (Debian: apt-get install redis-server)".into(),
            )
        })?;
        return Ok(vec![Contender::only(ServerKind::Stock, program)]);
    };
    if !given.contains('=') {
        return Ok(vec![Contender::only(ServerKind::Stock, given.into())]);
    }
    let mut all: Vec<Contender> = Vec::new();
    for one in given.split(',') {
        let Some((name, path)) = one.split_once('=') else {
            return Err(BenchError::Usage(format!(
                "--stock {one}: if there are several servers, give each as NAME=PATH"
            )));
        };
        let is_word = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        // The server's name is also the name of a folder.
        if name.is_empty() || !name.chars().all(is_word) || all.iter().any(|it| it.name == name) {
            let text =
                format!("--stock {one}: the name must be a word, and no other server may have it");
            return Err(BenchError::Usage(text));
        }
        let (kind, name, program) = (ServerKind::Stock, name.to_owned(), absolute(path.as_ref())?);
        all.push(Contender { kind, name, program });
    }
    Ok(all)
}

fn pick(names: Option<&str>) -> Result<Vec<&'static Scenario>> {
    match names {
        None => Ok(SCENARIOS.iter().take(DEFAULT_SCENARIO_COUNT).collect()),
        Some("all") => Ok(SCENARIOS.iter().collect()),
        Some(names) => names
            .split(',')
            .map(|name| {
                scenario::named(name)
                    .ok_or_else(|| BenchError::Usage(format!("unknown row {name}\n{}", list())))
            })
            .collect(),
    }
}

fn list() -> String {
    let line = |row: &Scenario| format!("{:<34}{}, {}\n", row.name, row.title, row.policy);
    SCENARIOS.iter().map(line).collect()
}

pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).doing(format!("looking for {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_stock_servers_have_names() {
        let names = |given: &str| {
            let all = stocks(Some(given))?;
            Ok::<_, BenchError>(all.into_iter().map(|it| it.name).collect::<Vec<_>>())
        };
        assert_eq!(names("/usr/bin/redis-server").unwrap(), ["stock"]);
        assert_eq!(names("redis-7=/a,valkey-9=/b").unwrap(), ["redis-7", "valkey-9"]);
        for wrong in ["a=/a,/b", "a=/a,a=/b", "=/a", "a/b=/a"] {
            assert!(names(wrong).is_err(), "{wrong}");
        }
    }
}
