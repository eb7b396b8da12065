//! `cargo x fuzz`: random damage to payloads of `RESTORE`, to RDB files, and to the messages of
//! NVMe/TCP hosts and targets.

use slimio_host::Failure;
use slimio_host::process::{cargo, run};

/// The environment variable that tells a test for how many seconds to run.
pub(crate) const SECONDS: &str = "SLIMIO_FUZZ_SECONDS";

/// The environment variable that tells a test which case to begin with.
const SEED: &str = "SLIMIO_SEED";

/// Duration of a run in seconds, unless a flag says otherwise.
const SECONDS_DEFAULT: u64 = 60;

/// Duration of each test within `cargo x test`, in seconds.
pub(crate) const SECONDS_SHORT: u64 = 10;

/// Seconds for which `cargo x test` fuzzes the NVMe/TCP target's sessions. This is longer than for
/// the other tests, because sessions read bytes from a network.
const SECONDS_OF_TARGET: u64 = 60;

/// Each fuzz test: its package, its test target and its name.
const TESTS: &[[&str; 3]] = &[
    ["slimio-keyspace", "payloads", "random_damage_is_survived"],
    ["slimio-rdb", "suite", "fuzz::random_damage_is_survived"],
    ["slimio-nvme", "fuzz", "random_bytes_are_survived"],
    ["slimio-initiator", "fuzz", "random_targets_are_survived"],
    TARGET,
];

const TARGET: [&str; 3] = ["slimio-target", "fuzz", "random_hosts_are_survived"];

/// `cargo x fuzz [word]… [--seconds N] [--seed N]`: runs all fuzz tests, which together take the
/// given seconds. With words, only the packages whose names contain one of the words are tested. A
/// failure prints the seed that reproduces it.
pub(crate) fn verb(args: &[String]) -> Result<(), Failure> {
    let (mut seconds, mut seed, mut words) = (SECONDS_DEFAULT, None, Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if !arg.starts_with('-') {
            words.push(arg.as_str());
            continue;
        }
        let number = args.next().and_then(|text| text.parse().ok());
        match (arg.as_str(), number) {
            ("--seconds", Some(number)) => seconds = number,
            ("--seed", Some(number)) => seed = Some(number),
            _ => return Err("--seconds and --seed take a number, and there are no other flags: cargo x fuzz --seconds 60 --seed 1".into()),
        }
    }
    let is_wanted =
        |test: &&[&str; 3]| words.is_empty() || words.iter().any(|word| test[0].contains(word));
    let tests: Vec<&[&str; 3]> = TESTS.iter().filter(is_wanted).collect();
    if tests.is_empty() {
        return Err(format!(
            "no package with a fuzz test has one of these words in its name: {}",
            words.join(" ")
        )
        .into());
    }
    let each = seconds.div_ceil(tests.len() as u64);
    tests.into_iter().try_for_each(|test| run_test(test, each, seed))
}

/// Runs the test of the target's sessions, for [`SECONDS_OF_TARGET`].
pub(crate) fn target() -> Result<(), Failure> {
    run_test(&TARGET, SECONDS_OF_TARGET, None)
}

fn run_test(test: &[&str; 3], seconds: u64, seed: Option<u64>) -> Result<(), Failure> {
    let [package, target, test] = test;
    let mut command = cargo(["test", "--quiet", "--package", package, "--test", target]);
    command.args(["--", "--exact", test, "--nocapture"]).env(SECONDS, seconds.to_string());
    if let Some(seed) = seed {
        command.env(SEED, seed.to_string());
    }
    run(&mut command)
}
