//! `slimio-lab ledger`: checks that a killed server keeps everything that it acknowledged.

use std::fs;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};

use crate::error::{BenchError, Doing, Result};
use crate::ledger::{self, Death, LedgerConfig, Sabotage};
use crate::run::fresh_directory;
use crate::server::{Policy, ServerConfig, ServerKind, find_program};

/// The help text of `slimio-lab ledger`.
pub const HELP: &str = include_str!("../../help/ledger.txt");

/// The flags of `slimio-lab ledger`.
#[derive(Debug, Args)]
pub struct Ledger {
    #[arg(long, value_enum, default_value_t = KindName::Slimio)]
    server: KindName,
    #[arg(long)]
    program: Option<PathBuf>,
    #[arg(long, value_parser = Policy::named, default_value = "always")]
    policy: Policy,
    #[arg(long, default_value_t = 10)]
    lives: u32,
    #[arg(long, default_value_t = 8)]
    clients: usize,
    #[arg(long, default_value_t = 5000)]
    units: u64,
    #[arg(long, value_enum, default_value_t = DeathName::Kill)]
    death: DeathName,
    #[arg(long)]
    snapshots: bool,
    #[arg(long, value_parser = Sabotage::named, default_value = "none")]
    sabotage: Sabotage,
    #[arg(long)]
    dir: Option<PathBuf>,
    #[arg(long)]
    keep: bool,
    #[arg(long, allow_hyphen_values = true, default_value = "")]
    extra: String,
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum KindName {
    Stock,
    Slimio,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DeathName {
    Kill,
    Term,
}

/// Runs the ledger, and returns the text to print.
pub fn run(args: &Ledger) -> Result<String> {
    let config = config(args)?;
    eprintln!("seed {}", config.seed);
    fresh_directory(&config.server.directory)?;
    let report = ledger::run(&config).inspect_err(|_| {
        eprintln!("the server's data is left in {}", config.server.directory.display());
    })?;
    if !args.keep {
        fs::remove_dir_all(&config.server.directory).doing("removing the server's data")?;
    }
    Ok(format!(
        "{} lives of {} under {}, seed {}: {} commands and transactions \
         acknowledged, and all of them found; of those in flight at a death, {} were found and {} were not; \
         {} values that clients read from each other's keys; {} keys at the end; {} snapshots begun\n",
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

fn config(args: &Ledger) -> Result<LedgerConfig> {
    let (kind, default_program) = match args.server {
        KindName::Stock => (ServerKind::Stock, find_program("redis-server")),
        KindName::Slimio => (ServerKind::SlimIO, Some(PathBuf::from("target/release/slimio"))),
    };
    let program = args.program.clone().or(default_program);
    let program = program
        .filter(|program| program.is_file())
        .ok_or_else(|| BenchError::Usage(format!("the program of {kind} does not exist")))?;
    if args.policy == Policy::Off {
        return Err(BenchError::Usage(
            "without a log, a server promises nothing that can be checked".into(),
        ));
    }
    let directory = args.dir.clone().unwrap_or_else(|| ledger::scratch_directory("ledger"));
    let directory = std::path::absolute(directory).doing("looking for the directory")?;
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(LedgerConfig {
        server: ServerConfig {
            kind,
            program: std::path::absolute(program).doing("looking for the program")?,
            directory,
            policy: args.policy,
            extra: args.extra.split_whitespace().map(str::to_owned).collect(),
            under: Vec::new(),
        },
        lives: args.lives,
        clients: args.clients,
        units_per_life_max: args.units,
        death: match args.death {
            DeathName::Kill => Death::Kill,
            DeathName::Term => Death::Terminate,
        },
        snapshots: args.snapshots,
        sabotage: args.sabotage,
        seed: args.seed.unwrap_or(clock.as_nanos() as u64),
    })
}
