//! `cargo x lint`: formatting, clippy, house rules, and two optional tools if they are installed.

use slimio_host::Failure;
use slimio_host::process::{cargo, command, is_installed, run};
use slimio_host::report::Report;

use crate::tidy;

/// `cargo x lint`.
pub(crate) fn verb(_args: &[String]) -> Result<(), Failure> {
    let mut report = Report::default();
    steps(&mut report);
    report.finish()
}

/// Adds the steps of `cargo x lint` to a report, which may hold other steps, too.
pub(crate) fn steps(report: &mut Report) {
    report.step("fmt", |_| run(&mut cargo(["fmt", "--all", "--check"])));
    report.step("clippy", |_| {
        run(&mut cargo([
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ]))
    });
    report.step("tidy", |_| tidy::verb(&[]));
    if is_installed("cargo-deny") {
        report.step("deny", |_| run(&mut cargo(["deny", "check"])));
    } else {
        report.skip("cargo-deny is not installed (cargo install cargo-deny)");
    }
    if is_installed("typos") {
        report.step("typos", |_| run(&mut command("typos")));
    } else {
        report.skip("typos is not installed (cargo install typos-cli)");
    }
}
