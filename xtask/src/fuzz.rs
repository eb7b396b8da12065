//! `cargo x fuzz`: random damage to payloads of `RESTORE` and to RDB files.

use slimio_host::Failure;
use slimio_host::process::{cargo, run};

/// Tells a test for how many seconds to go on.
pub(crate) const SECONDS: &str = "SLIMIO_FUZZ_SECONDS";

/// Tells a test which case to begin with.
const SEED: &str = "SLIMIO_SEED";

/// Seconds of a run, unless a flag says otherwise.
const SECONDS_DEFAULT: u64 = 60;

/// Seconds of each test within `cargo x test`.
pub(crate) const SECONDS_SHORT: u64 = 10;

/// Package, test target and test.
const TESTS: &[[&str; 3]] = &[
    ["slimio-keyspace", "payloads", "random_damage_is_survived"],
    ["slimio-rdb", "suite", "fuzz::random_damage_is_survived"],
];

/// `cargo x fuzz [--seconds N] [--seed N]`: the tests share the seconds. A failure prints the seed
/// that reproduces it.
pub(crate) fn verb(args: &[String]) -> Result<(), Failure> {
    let (mut seconds, mut seed) = (SECONDS_DEFAULT, None);
    for pair in args.chunks(2) {
        let number = pair.get(1).and_then(|text| text.parse().ok());
        match (pair[0].as_str(), number) {
            ("--seconds", Some(number)) => seconds = number,
            ("--seed", Some(number)) => seed = Some(number),
            _ => return Err("want numbers: cargo x fuzz --seconds 60 --seed 1".into()),
        }
    }
    let each = seconds.div_ceil(TESTS.len() as u64);
    for [package, target, test] in TESTS {
        let mut command = cargo(["test", "--quiet", "--package", package, "--test", target]);
        command.args(["--", "--exact", test, "--nocapture"]).env(SECONDS, each.to_string());
        if let Some(seed) = seed {
            command.env(SEED, seed.to_string());
        }
        run(&mut command)?;
    }
    Ok(())
}
