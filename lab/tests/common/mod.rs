//! Stock servers in separate directories, for the tests that need one.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use slimio_lab::run::fresh_directory;
use slimio_lab::server::{Policy, ServerConfig, ServerKind, find_program};

/// A directory that is removed when its `Scratch` is dropped.
pub(crate) struct Scratch {
    /// Path of the directory.
    pub(crate) path: PathBuf,
}

impl Scratch {
    /// A new and empty directory.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("slimio-lab-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fresh_directory(&path).expect("a temporary directory can be made");
        Self { path }
    }

    /// The configuration of a stock server in the directory. If no stock server is installed,
    /// prints loudly that the test is skipped.
    pub(crate) fn stock(&self, policy: Policy) -> Option<ServerConfig> {
        let Some(program) = find_program("redis-server") else {
            eprintln!("SKIPPED: this test needs redis-server, which is not installed");
            return None;
        };
        Some(ServerConfig {
            kind: ServerKind::Stock,
            program,
            directory: self.path.join("server"),
            policy,
            extra: Vec::new(),
            under: Vec::new(),
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
