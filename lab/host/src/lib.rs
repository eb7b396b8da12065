//! The machine that a developer works on, for `cargo x` and what it starts: its programs and packages,
//! what cargo builds, and what a long run says at its end. No dependency, so that `cargo x` is there in
//! seconds.
#![expect(clippy::print_stdout, reason = "for a program of the terminal")]

pub mod apt;
pub mod process;
pub mod programs;
pub mod report;
pub mod server;
mod services;

use std::fs;
use std::os::unix::fs::MetadataExt;

pub use services::NoServiceStarts;

/// Why a verb did not succeed, as a sentence for the person who typed it.
#[derive(Debug)]
pub struct Failure(pub String);

impl<T: Into<String>> From<T> for Failure {
    fn from(sentence: T) -> Self {
        Self(sentence.into())
    }
}

/// Whether this is a run in which nothing may be missing.
pub fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty())
}

/// Whether this process is root: the owner of what it creates in `/proc`.
pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}
