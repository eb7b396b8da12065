//! `cargo x sanitize`: the crates with `unsafe` in them under the tools that see what it does.
//!
//! Miri runs the tests whose system calls it can emulate, and tracks what each pointer may point
//! to; the address and the thread sanitizer run all tests of these crates on the real kernel, and
//! see the errors of that run. Memory that a kernel may still write to is leaked on purpose, so
//! leaks are not looked for.

use std::process::Command;

use slimio_host::Failure;
use slimio_host::process::{command, is_installed, run, run_seeing, succeeds, target_dir};
use slimio_host::report::Report;

const PACKAGES: &[&str] = &["--package", "slimio-ring", "--package", "slimio-device"];
const TOOLCHAIN: &str = "nightly";
const COMPONENTS: &[&str] = &["miri", "rust-src"];

/// What Miri runs of each crate's unit tests. The others of `device` make files, map them or ask for
/// priorities, which Miri can't.
const UNDER_MIRI: &[(&str, &[&str])] = &[
    ("slimio-ring", &[]),
    (
        "slimio-device",
        &["buffer::", "pool::", "nvme::data", "nvme::wire", "nvme::status", "polling::"],
    ),
];

/// `cargo x sanitize [miri|address|thread]…`: without a word, all three.
pub(crate) fn verb(words: &[String]) -> Result<(), Failure> {
    const KINDS: &[&str] = &["miri", "address", "thread"];
    if let Some(word) = words.iter().find(|word| !KINDS.contains(&word.as_str())) {
        return Err(format!("`{word}` is none of {}", KINDS.join(", ")).into());
    }
    let mut report = Report::default();
    if let Err(Failure(why)) = install() {
        report.skip(&why);
        return report.finish();
    }
    let is_wanted = |kind: &str| words.is_empty() || words.iter().any(|word| word == kind);
    if is_wanted("miri") {
        for (package, filters) in UNDER_MIRI {
            report.step(&format!("miri {package}"), |report| miri(report, package, filters));
        }
    }
    for sanitizer in ["address", "thread"] {
        if is_wanted(sanitizer) {
            report.step(&format!("{sanitizer} sanitizer"), |report| sanitized(report, sanitizer));
        }
    }
    report.finish()
}

/// Adds missing components to the nightly toolchain. The error says what is skipped, and why.
fn install() -> Result<(), Failure> {
    let by_hand = "Miri and the sanitizers need rustup and a nightly toolchain: `rustup toolchain \
                   install nightly --component miri --component rust-src`";
    if !is_installed("rustup")
        || !succeeds(command("rustup").args(["run", TOOLCHAIN, "rustc", "--version"]))
    {
        return Err(by_hand.into());
    }
    let mut add = command("rustup");
    run(add.args(["component", "add", "--toolchain", TOOLCHAIN]).args(COMPONENTS))
        .map_err(|Failure(why)| format!("{by_hand}; {why}").into())
}

fn miri(report: &mut Report, package: &str, filters: &[&str]) -> Result<(), Failure> {
    let mut test = nightly("miri");
    test.args(["miri", "test", "--package", package, "--lib", "--"])
        .args(filters)
        // The tests look into /proc and read the clock.
        .env("MIRIFLAGS", "-Zmiri-disable-isolation");
    run_seeing(&mut test, |line| report.see(line))
}

fn sanitized(report: &mut Report, sanitizer: &str) -> Result<(), Failure> {
    let host = host()?;
    let mut test = nightly(sanitizer);
    test.args(["test", "--lib", "--tests", "--target", &host]).args(PACKAGES);
    if sanitizer == "thread" {
        // Synchronisation within a standard library that is not built with it would not be seen.
        test.arg("-Zbuild-std");
    }
    test.env("RUSTFLAGS", format!("-Zsanitizer={sanitizer}"));
    test.env("ASAN_OPTIONS", "detect_leaks=0");
    run_seeing(&mut test, |line| report.see(line))
}

/// A cargo of the nightly toolchain, with a folder of its own for what it builds.
fn nightly(kind: &str) -> Command {
    let mut cargo = command("rustup");
    cargo.args(["run", TOOLCHAIN, "cargo"]);
    cargo.env("CARGO_TARGET_DIR", target_dir().join("sanitize").join(kind));
    cargo
}

/// The name of this machine as a target.
fn host() -> Result<String, Failure> {
    let output = command("rustup")
        .args(["run", TOOLCHAIN, "rustc", "--print", "host-tuple"])
        .output()
        .map_err(|error| format!("rustc did not start: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
