//! `slimio-lab shortcut`: stock servers with and without the short path for their logs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use slimio_testing::loops::Mounted;

use crate::commands::compare::{absolute, stocks};
use crate::compare::Contender;
use crate::error::{BenchError, Result};
use crate::load::{Arrival, Generator, LoadConfig, Until};
use crate::mix::Mix;
use crate::request::RequestWriter;
use crate::run::without_errors;
use crate::server::{Policy, Server, ServerConfig, ServerKind};
use crate::values::ValuePool;

/// What the flags of `shortcut` mean.
pub const HELP: &str = include_str!("../../help/shortcut.txt");

/// Bytes of the file system that is made if none is named.
const FILE_SYSTEM_SIZE: u64 = 4 << 30;
const KEYS: u64 = 100_000;
const VALUE_SIZE: usize = 100;
/// The rows: when writes are durable, and by how many clients they are made.
const ROWS: [(Policy, usize); 3] =
    [(Policy::Always, 1), (Policy::Always, 50), (Policy::EverySec, 50)];

/// The flags.
#[derive(Debug, Args)]
pub struct Shortcut {
    #[arg(long)]
    stock: Option<String>,
    #[arg(long, default_value = "target/release/slimio")]
    slimio: PathBuf,
    #[arg(long)]
    dir: Option<PathBuf>,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
}

/// What was measured of a server in a row, in each round.
#[derive(Debug, Default)]
struct Row {
    /// Requests per second.
    stock: Vec<f64>,
    short: Vec<f64>,
}

impl Shortcut {
    /// Measures. Returns the text to print.
    pub fn run(&self) -> Result<String> {
        let servers = stocks(self.stock.as_deref())?;
        let made;
        let dir = if let Some(dir) = &self.dir {
            absolute(dir)?
        } else {
            made = Mounted::new(&["mkfs.ext4", "-q"], FILE_SYSTEM_SIZE, "defaults");
            let made = made.as_ref().ok_or_else(|| {
                BenchError::Usage("no loop device can be made: name a folder with --dir".into())
            })?;
            made.path().to_owned()
        };
        let slimio = absolute(&self.slimio)?.display().to_string();
        let run = [&slimio, "shortcut", "run", "--profile", "redis", "--"].map(str::to_owned);
        let mut rows: Vec<Row> = Vec::new();
        rows.resize_with(servers.len() * ROWS.len(), Row::default);
        for _ in 0..self.rounds.max(1) {
            let all = servers.iter().flat_map(|server| ROWS.map(|row| (server, row)));
            for ((server, (policy, clients)), row) in all.zip(&mut rows) {
                row.stock.push(self.measure(server, policy, clients, &dir, &[])?);
                row.short.push(self.measure(server, policy, clients, &dir, &run)?);
            }
        }
        Ok(table(&servers, rows))
    }

    /// Requests per second of a server that starts with no keys.
    fn measure(
        &self,
        server: &Contender,
        policy: Policy,
        clients: usize,
        dir: &Path,
        under: &[String],
    ) -> Result<f64> {
        let directory = dir.join(&server.name);
        let config = ServerConfig {
            kind: ServerKind::Stock,
            program: server.program.clone(),
            directory: directory.clone(),
            policy,
            extra: Vec::new(),
            under: under.to_owned(),
        };
        let server = Server::start(&config)?;
        let mix = Mix::named("set", KEYS, None)?;
        let config = LoadConfig {
            address: server.address().clone(),
            clients,
            pipeline: 1,
            arrival: Arrival::Closed,
            check_values: false,
            seed: 1,
        };
        let writer = RequestWriter::new(ValuePool::new(VALUE_SIZE, 0.5, 1));
        let mut generator = Generator::connect(config, mix, writer)?;
        let time = Duration::from_secs_f64(self.seconds);
        // A third of the time is not counted: files are made, and memory is touched first.
        generator.run(Until::Elapsed(time / 3))?;
        let report = without_errors(generator.run(Until::Elapsed(time))?)?;
        drop(generator);
        server.stop()?;
        let removed = std::fs::remove_dir_all(&directory);
        removed.map_err(|error| BenchError::Usage(format!("{}: {error}", directory.display())))?;
        Ok(report.requests_per_s())
    }
}

fn table(servers: &[Contender], rows: Vec<Row>) -> String {
    let mut text = "| server | `appendfsync` | clients | SETs/s without | with | ratio |\n\
                    |---|---|---:|---:|---:|---:|\n"
        .to_owned();
    let all = servers.iter().flat_map(|server| ROWS.map(|row| (server, row)));
    for ((server, (policy, clients)), row) in all.zip(rows) {
        let (stock, short) = (median(row.stock), median(row.short));
        let name = server.title();
        let ratio = short / stock;
        let _ = writeln!(
            text,
            "| {name} | {policy} | {clients} | {stock:.0} | {short:.0} | {ratio:.2} |"
        );
    }
    text
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_its_medians() {
        let servers = [Contender::only(ServerKind::Stock, "redis-server".into())];
        let row = || Row { stock: vec![30.0, 10.0, 20.0], short: vec![50.0, 40.0, 90.0] };
        let text = table(&servers, vec![row(), row(), row()]);
        assert_eq!(text.lines().count(), 5);
        assert!(text.contains("| always | 50 | 20 | 50 | 2.50 |"), "{text}");
    }
}
