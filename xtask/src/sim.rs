//! `cargo x sim`: runs the storage and the whole server with random requests and crashes on
//! simulated disks, for a chosen number of minutes.

use std::process::Child;

use slimio_host::Failure;
use slimio_host::process::{cargo, run};

/// The environment variable that tells a test for how many seconds to try new cases.
const VARIABLE: &str = "SLIMIO_SIM_SECONDS";

/// Duration of a run in minutes, unless the argument says otherwise.
const MINUTES: u64 = 10;

/// Each test: its package, its test target and its name. Each test runs in a separate process.
const LIVES: &[[&str; 3]] = &[
    ["slimio-storage", "suite", "model::what_comes_back_is_what_was_promised"],
    ["slimio-server", "serve", "crashes::what_comes_back_was_in_memory_and_was_promised"],
];

/// `cargo x sim [minutes]`: a failure prints the seed that reproduces it.
pub(crate) fn verb(args: &[String]) -> Result<(), Failure> {
    let minutes = match args {
        [] => MINUTES,
        [minutes] => minutes
            .parse()
            .map_err(|_| format!("want a number of minutes, as in `cargo x sim 60`: {minutes}"))?,
        _ => return Err("the only argument is the number of minutes: `cargo x sim 60`".into()),
    };
    for [package, target, _] in LIVES {
        run(&mut cargo(["test", "--no-run", "--package", package, "--test", target]))?;
    }
    let lives: Vec<(&str, Child)> = LIVES
        .iter()
        .map(|[package, target, test]| {
            let mut command = cargo(["test", "--quiet", "--package", package, "--test", target]);
            command.args(["--", "--exact", test, "--nocapture"]);
            command.env(VARIABLE, (minutes * 60).to_string());
            let child = command.spawn().map_err(|error| format!("cargo did not start: {error}"))?;
            Ok((*test, child))
        })
        .collect::<Result<_, Failure>>()?;
    let mut failed = Vec::new();
    for (test, mut child) in lives {
        let status = child.wait().map_err(|error| format!("{test}: {error}"))?;
        if !status.success() {
            failed.push(test);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}
