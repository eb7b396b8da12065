//! `slimio-lab`: the command-line program of the lab.
#![expect(clippy::print_stdout, reason = "a command-line program prints")]

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use slimio_lab::commands::{
    compare, drive, ledger, load, map, runtime, shortcut, tenants, trace, validate, waf,
};
use slimio_lab::error::{BenchError, Result};

/// If a flag is given twice, the later one counts. `cargo x` puts its own flags before those of its
/// caller, so the caller can override them.
#[derive(Debug, Parser)]
#[command(name = "slimio-lab", disable_help_subcommand = true, args_override_self = true)]
enum Cli {
    #[command(override_help = compare::HELP)]
    Compare(compare::Compare),
    #[command(override_help = drive::HELP)]
    Drive(drive::Drive),
    #[command(override_help = ledger::HELP)]
    Ledger(ledger::Ledger),
    #[command(override_help = load::HELP)]
    Load(load::Load),
    #[command(override_help = map::HELP)]
    Map(map::Map),
    #[command(override_help = runtime::HELP)]
    Runtime(runtime::Runtime),
    #[command(override_help = shortcut::HELP)]
    Shortcut(shortcut::Shortcut),
    #[command(override_help = tenants::HELP)]
    Tenants(tenants::Tenants),
    #[command(override_help = trace::HELP)]
    Trace(trace::Trace),
    #[command(override_help = validate::HELP)]
    Validate(validate::Validate),
    #[command(override_help = waf::HELP)]
    Waf(waf::Waf),
}

const HELPS: [&str; 11] = [
    compare::HELP,
    drive::HELP,
    ledger::HELP,
    load::HELP,
    map::HELP,
    runtime::HELP,
    shortcut::HELP,
    tenants::HELP,
    trace::HELP,
    validate::HELP,
    waf::HELP,
];

fn main() -> ExitCode {
    let given = Cli::command().override_help(HELPS.join("\n")).get_matches();
    let cli = Cli::from_arg_matches(&given).unwrap_or_else(|error| error.exit());
    match cli.run() {
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

impl Cli {
    fn run(&self) -> Result<String> {
        match self {
            Self::Compare(compare) => compare.run(&command_line()),
            Self::Drive(args) => drive::run(args),
            Self::Ledger(args) => ledger::run(args),
            Self::Load(args) => load::run(args),
            Self::Map(map) => map.run(),
            Self::Runtime(args) => runtime::run(args),
            Self::Shortcut(shortcut) => shortcut.run(),
            Self::Tenants(tenants) => tenants.run(),
            Self::Trace(args) => trace::run(args),
            Self::Validate(validate) => validate.run(),
            Self::Waf(args) => waf::run(args),
        }
    }
}

/// The command line that repeats this run.
fn command_line() -> String {
    let words: Vec<String> = std::env::args().skip(1).collect();
    format!("slimio-lab {}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_is_in_the_help_and_every_one_in_the_help_is_a_flag() {
        let mut cli = Cli::command();
        cli.build();
        assert_eq!(cli.get_subcommands().count(), HELPS.len());
        for (command, help) in cli.get_subcommands().zip(HELPS) {
            let name = command.get_name();
            assert!(help.starts_with(&format!("{name}: ")), "{help}");
            let flags: Vec<&str> =
                command.get_arguments().filter_map(clap::Arg::get_long).collect();
            for flag in flags.iter().filter(|flag| **flag != "help") {
                let is_named = |line: &str| line.split(' ').any(|word| word == format!("--{flag}"));
                assert!(help.lines().any(is_named), "{name} --{flag}");
            }
            for line in help.lines().filter_map(|line| line.strip_prefix("  --")) {
                let flag = line.split(' ').next().unwrap_or_default();
                assert!(flags.contains(&flag), "{name} --{flag}");
            }
        }
    }

    #[test]
    fn mistakes_are_named_and_the_last_of_a_flag_counts() {
        let parse = |line: &str| Cli::try_parse_from(line.split_whitespace());
        for (line, named) in [
            ("slimio-lab load clients 50", "clients"),
            ("slimio-lab load --clients", "--clients"),
            ("slimio-lab load --clients x", "--clients"),
            ("slimio-lab load --clinets 5", "--clinets"),
            ("slimio-lab compare --quick --full", "--full"),
            ("slimio-lab ledger --policy never", "unknown policy never"),
        ] {
            let error = parse(line).expect_err(line).to_string();
            assert!(error.contains(named), "{error}");
        }
        let given = parse("slimio-lab map --out a --volume=b --out c").expect("valid flags");
        assert!(format!("{given:?}").contains("out: \"c\""), "{given:?}");
    }
}
