//! A stock server (`redis-server`) for a test.

use std::io::{self, Write as _};

use tempfile::TempDir;

use crate::server::{Policy, ServerConfig, ServerKind, find_program};

/// Makes a temporary folder, and the configuration of a stock server that runs in this folder. The
/// server writes no log, and gets `flags` in addition. If no stock server is installed, prints that
/// the test is skipped, and returns `None`.
///
/// # Panics
/// When no folder can be made.
pub fn stock(flags: &[&str]) -> Option<(TempDir, ServerConfig)> {
    let Some(program) = find_program("redis-server") else {
        // This is not `eprintln!`, because the output of `eprintln!` is hidden if the test passes.
        let text = b"SKIPPED: redis-server is not installed, so nothing was compared with it\n";
        let _: io::Result<()> = io::stderr().write_all(text);
        return None;
    };
    let folder = tempfile::tempdir().expect("a folder for temporary files can be made");
    let config = ServerConfig {
        kind: ServerKind::Stock,
        program,
        directory: folder.path().to_path_buf(),
        policy: Policy::Off,
        extra: flags.iter().map(|&flag| flag.to_owned()).collect(),
        under: Vec::new(),
    };
    Some((folder, config))
}
