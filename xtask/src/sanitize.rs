//! `cargo x sanitize`: runs the tests of the crates that have `unsafe` code. They run under tools
//! that detect errors of such code.
//!
//! Miri runs the tests whose system calls it can emulate, and tracks what each pointer may point
//! to. The address sanitizer and the thread sanitizer run all tests of these crates on the real
//! kernel, and see only the errors that occur in that run. The sanitizers don't look for leaks,
//! because the crates leak memory on purpose if a kernel may still write to it.

use std::process::Command;

use slimio_host::Failure;
use slimio_host::process::{command, is_installed, run, run_seeing, succeeds, target_dir};
use slimio_host::report::Report;

const PACKAGES: &[&str] = &["--package", "slimio-ring", "--package", "slimio-device"];
const TOOLCHAIN: &str = "nightly";
const COMPONENTS: &[&str] = &["miri", "rust-src"];

/// For each crate, the unit tests that Miri runs. Without names, Miri runs all unit tests. The
/// other tests of `device` make files, map files or ask for priorities, which Miri does not
/// support.
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

/// Adds missing components to the nightly toolchain. If that fails, the error says what is skipped,
/// and why.
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
        // The tests read /proc and the clock, which Miri refuses unless its isolation is off.
        .env("MIRIFLAGS", "-Zmiri-disable-isolation");
    run_seeing(&mut test, |line| report.see(line))
}

fn sanitized(report: &mut Report, sanitizer: &str) -> Result<(), Failure> {
    let host = host()?;
    let mut test = nightly(sanitizer);
    test.args(["test", "--lib", "--tests", "--target", &host]).args(PACKAGES);
    if sanitizer == "thread" {
        // The standard library is built with the sanitizer, too, because otherwise the sanitizer
        // would not see synchronisation within the library.
        test.arg("-Zbuild-std");
    }
    test.env("RUSTFLAGS", format!("-Zsanitizer={sanitizer}"));
    test.env("ASAN_OPTIONS", "detect_leaks=0");
    run_seeing(&mut test, |line| report.see(line))
}

/// A cargo of the nightly toolchain, which builds in a separate folder.
fn nightly(kind: &str) -> Command {
    let mut cargo = command("rustup");
    cargo.args(["run", TOOLCHAIN, "cargo"]);
    cargo.env("CARGO_TARGET_DIR", target_dir().join("sanitize").join(kind));
    cargo
}

/// The target triple of this machine.
fn host() -> Result<String, Failure> {
    let output = command("rustup")
        .args(["run", TOOLCHAIN, "rustc", "--print", "host-tuple"])
        .output()
        .map_err(|error| format!("rustc did not start: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
