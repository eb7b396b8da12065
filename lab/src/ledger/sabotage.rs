//! Damage done on purpose between a server's death and its restart. The ledger compares the data
//! after the restart with what clients wrote down. If it did not notice such damage, it would be
//! worth nothing.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use crate::error::{BenchError, Doing, Result};
use crate::server::{ServerConfig, ServerKind};
use crate::tree::tree_files;

/// Damage that is done to the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// No damage.
    None,
    /// The stock server's log loses its last bytes.
    TruncateLog {
        /// Number of bytes that are lost.
        bytes: u64,
    },
    /// The data is replaced by a copy that was made before the server's last start.
    StaleData,
}

impl Sabotage {
    /// Reads `none`, `truncate:BYTES` or `stale`.
    pub fn named(name: &str) -> Result<Self> {
        let bytes = name.strip_prefix("truncate:").map(str::parse);
        match (name, bytes) {
            ("none", _) => Ok(Self::None),
            ("stale", _) => Ok(Self::StaleData),
            (_, Some(Ok(bytes))) => Ok(Self::TruncateLog { bytes }),
            _ => Err(BenchError::Usage(format!(
                "unknown sabotage {name}; use none, truncate:BYTES or stale"
            ))),
        }
    }
}

/// If the sabotage needs a copy of the data, makes this copy. The server must not be running.
pub(super) fn before_life(sabotage: Sabotage, server: &ServerConfig) -> Result<Option<PathBuf>> {
    if sabotage != Sabotage::StaleData {
        return Ok(None);
    }
    let kept = server.directory.join("kept");
    replace(&kept, &server.data_directory())?;
    Ok(Some(kept))
}

/// Damages the data. The server must be dead.
pub(super) fn after_death(
    sabotage: Sabotage,
    server: &ServerConfig,
    kept: Option<PathBuf>,
) -> Result<()> {
    match (sabotage, kept) {
        (Sabotage::TruncateLog { bytes }, _) => truncate_log(server, bytes),
        (Sabotage::StaleData, Some(kept)) => replace(&server.data_directory(), &kept),
        _ => Ok(()),
    }
}

fn truncate_log(server: &ServerConfig, bytes: u64) -> Result<()> {
    if server.kind != ServerKind::Stock {
        return Err(BenchError::Usage("only the stock server's log can be truncated".into()));
    }
    for path in tree_files(&server.data_directory().join("appendonlydir"))? {
        if path.to_string_lossy().ends_with(".incr.aof") {
            let what = || format!("truncating {}", path.display());
            let file = OpenOptions::new().write(true).open(&path).doing(what())?;
            let size = file.metadata().doing(what())?.len();
            file.set_len(size.saturating_sub(bytes)).doing(what())?;
        }
    }
    Ok(())
}

/// Makes `target` a copy of `source`. If `source` does not exist, `target` becomes empty.
fn replace(target: &Path, source: &Path) -> Result<()> {
    let what = || format!("copying {} to {}", source.display(), target.display());
    if target.exists() {
        fs::remove_dir_all(target).doing(what())?;
    }
    fs::create_dir_all(target).doing(what())?;
    if !source.exists() {
        return Ok(());
    }
    for path in tree_files(source)? {
        let Ok(below) = path.strip_prefix(source) else { continue };
        let copy = target.join(below);
        if let Some(directory) = copy.parent() {
            fs::create_dir_all(directory).doing(what())?;
        }
        fs::copy(&path, &copy).doing(what())?;
    }
    Ok(())
}
