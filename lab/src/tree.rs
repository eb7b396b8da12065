//! The files of a directory and of all directories below it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Doing, Result};

/// Total size of the files below `directory`, in bytes.
pub fn tree_size(directory: &Path) -> Result<u64> {
    let mut size = 0;
    for path in tree_files(directory)? {
        size += path.metadata().doing(format!("looking at {}", path.display()))?.len();
    }
    Ok(size)
}

/// The files below `directory`.
pub fn tree_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let what = || format!("listing {}", directory.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).doing(what())? {
        let entry = entry.doing(what())?;
        if entry.file_type().doing(what())?.is_dir() {
            files.extend(tree_files(&entry.path())?);
        } else {
            files.push(entry.path());
        }
    }
    Ok(files)
}
