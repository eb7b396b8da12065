//! A stock server for a test.

use std::io::{self, Write as _};

use tempfile::TempDir;

use crate::server::{Policy, ServerConfig, ServerKind, find_program};

/// A stock server that is not started yet, without a log, in a folder that removes itself; `flags` are
/// given to it besides. If none is installed, says loudly that something is skipped.
///
/// # Panics
/// When no folder can be made.
pub fn stock(flags: &[&str]) -> Option<(TempDir, ServerConfig)> {
    let Some(program) = find_program("redis-server") else {
        // Not `eprintln!`: the output of a passing test is swallowed. If this fails, so would that.
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
    };
    Some((folder, config))
}
