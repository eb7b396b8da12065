//! `slimio-lab ledger`: does a server keep what it acknowledged?

use std::fs;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::args::Args;
use crate::error::{BenchError, Doing, Result};
use crate::ledger::{self, Death, LedgerConfig, Sabotage};
use crate::run::fresh_directory;
use crate::server::{Policy, ServerConfig, ServerKind, find_program};

/// Flags without a value.
pub const SWITCHES: &[&str] = &["keep", "snapshots"];

/// What the flags of `ledger` mean.
pub const HELP: &str = include_str!("../../help/ledger.txt");

/// Runs the ledger that `args` describe; the result is the text to print.
pub fn run(mut args: Args) -> Result<String> {
    let config = config(&mut args)?;
    let keep = args.switch("keep");
    args.finish()?;
    eprintln!("seed {}", config.seed);
    fresh_directory(&config.server.directory)?;
    let report = ledger::run(&config).inspect_err(|_| {
        eprintln!("the server's data is left in {}", config.server.directory.display());
    })?;
    if !keep {
        fs::remove_dir_all(&config.server.directory).doing("removing the server's data")?;
    }
    Ok(format!(
        "{} lives of {} under {}, seed {}: {} units acknowledged, all there; of those in flight \
         {} were there, {} not; {} values seen by other clients; {} keys; {} snapshots begun\n",
        report.lives,
        config.server.kind,
        config.server.policy,
        config.seed,
        report.acknowledged,
        report.in_flight_kept,
        report.in_flight_gone,
        report.observed,
        report.keys,
        report.snapshots
    ))
}

fn config(args: &mut Args) -> Result<LedgerConfig> {
    let (kind, default_program) = match args.value("server", "slimio".to_owned())?.as_str() {
        "stock" => (ServerKind::Stock, find_program("redis-server")),
        "slimio" => (ServerKind::SlimIO, Some(PathBuf::from("target/release/slimio"))),
        other => return Err(BenchError::Usage(format!("unknown server {other}"))),
    };
    let program = args.text("program").map(PathBuf::from).or(default_program);
    let program = program
        .filter(|program| program.is_file())
        .ok_or_else(|| BenchError::Usage(format!("the program of {kind} is not there")))?;
    let policy =
        Policy::named(&args.value("policy", "always".to_owned())?).map_err(BenchError::Usage)?;
    if policy == Policy::Off {
        return Err(BenchError::Usage("without a log nothing is promised".into()));
    }
    let death = match args.value("death", "kill".to_owned())?.as_str() {
        "kill" => Death::Kill,
        "term" => Death::Terminate,
        other => return Err(BenchError::Usage(format!("unknown death {other}"))),
    };
    let directory =
        args.text("dir").map_or_else(|| ledger::scratch_directory("ledger"), PathBuf::from);
    let directory = std::path::absolute(directory).doing("looking for the directory")?;
    let extra = args.text("extra").unwrap_or_default();
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(LedgerConfig {
        server: ServerConfig {
            kind,
            program: std::path::absolute(program).doing("looking for the program")?,
            directory,
            policy,
            extra: extra.split_whitespace().map(str::to_owned).collect(),
        },
        lives: args.value("lives", 10)?,
        clients: args.value("clients", 8)?,
        units_per_life_max: args.value("units", 5000)?,
        death,
        snapshots: args.switch("snapshots"),
        sabotage: Sabotage::named(&args.value("sabotage", "none".to_owned())?)?,
        seed: args.value("seed", clock.as_nanos() as u64)?,
    })
}
