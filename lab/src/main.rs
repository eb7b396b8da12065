//! `slimio-lab`: the benchmark and the ledger on the command line.
#![expect(clippy::print_stdout, reason = "a command-line program prints")]

use std::process::ExitCode;

use clap::Parser;
use slimio_lab::args::Args;
use slimio_lab::commands::map::Map;
use slimio_lab::commands::tenants::Tenants;
use slimio_lab::commands::validate::Validate;
use slimio_lab::commands::{compare, ledger, load, map, runtime, tenants, trace, validate, waf};
use slimio_lab::error::{BenchError, Result};

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let verb = words.next().unwrap_or_default();
    match run(&verb, words) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("slimio-lab: {error}");
            ExitCode::from(if matches!(error, BenchError::Usage(_)) { 2 } else { 1 })
        }
    }
}

/// What needs no server but a drive in memory, or its file.
#[derive(Debug, Parser)]
#[command(disable_help_subcommand = true, disable_help_flag = true)]
enum Picture {
    Map(Map),
    Tenants(Tenants),
    Validate(Validate),
}

impl Picture {
    fn run(&self) -> Result<String> {
        match self {
            Self::Map(map) => map.run(),
            Self::Tenants(tenants) => tenants.run(),
            Self::Validate(validate) => validate.run(),
        }
    }
}

const VERBS: [(&str, &str); 9] = [
    ("compare", compare::HELP),
    ("ledger", ledger::HELP),
    ("load", load::HELP),
    ("map", map::HELP),
    ("runtime", runtime::HELP),
    ("tenants", tenants::HELP),
    ("trace", trace::HELP),
    ("validate", validate::HELP),
    ("waf", waf::HELP),
];

fn run(verb: &str, words: impl Iterator<Item = String>) -> Result<String> {
    let words: Vec<String> = words.collect();
    if words.iter().any(|word| word == "--help" || word == "-h")
        && let Some((_, help)) = VERBS.iter().find(|(name, _)| *name == verb)
    {
        return Ok((*help).to_owned());
    }
    let words = words.into_iter();
    match verb {
        "compare" => compare::run(Args::parse(words, compare::SWITCHES)?, &command_line()),
        "ledger" => ledger::run(Args::parse(words, ledger::SWITCHES)?),
        "load" => load::run(Args::parse(words, load::SWITCHES)?),
        "map" | "tenants" | "validate" => Picture::parse().run(),
        "runtime" => runtime::run(Args::parse(words, runtime::SWITCHES)?),
        "trace" => trace::run(Args::parse(words, trace::SWITCHES)?),
        "waf" => waf::run(Args::parse(words, waf::SWITCHES)?),
        "help" | "--help" | "-h" => Ok(help()),
        _ => Err(BenchError::Usage(format!("what shall I do?\n\n{}", help()))),
    }
}

fn help() -> String {
    VERBS.map(|(_, help)| help).join("\n")
}

/// This command, as it can be given again.
fn command_line() -> String {
    let words: Vec<String> = std::env::args().skip(1).collect();
    format!("slimio-lab {}", words.join(" "))
}
