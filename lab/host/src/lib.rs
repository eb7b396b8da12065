//! Tools for `cargo x` and the lab on the developer's machine: child processes, Debian packages,
//! programs that cargo builds, images of a device after a power cut, and the summary of a long run.
//! This crate has no dependencies, so that `cargo x` builds in seconds.
#![expect(clippy::print_stdout, reason = "`cargo x` prints to a terminal")]

pub mod apt;
pub mod power_cut;
pub mod process;
pub mod programs;
pub mod report;
pub mod server;
mod services;

use std::fs;
use std::os::unix::fs::MetadataExt;

pub use services::NoServiceStarts;

/// Why a verb of `cargo x` failed, as a sentence for the person who typed the verb.
#[derive(Debug)]
pub struct Failure(pub String);

impl<T: Into<String>> From<T> for Failure {
    fn from(sentence: T) -> Self {
        Self(sentence.into())
    }
}

/// Whether this is a CI run, that is, whether `CI` is set. In CI, a missing tool is a failure.
pub fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty())
}

/// Whether this process runs as root, judged by the owner of `/proc/self`.
pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}
