//! Configuration files, and the files that they `include`.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use slimio_keyspace::Glob;

use super::{Config, ConfigError, split};

/// Limit of the nesting of `include`.
const DEPTH_MAX: usize = 16;

impl Config {
    /// Reads the file that the command line names.
    pub(super) fn read_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let is_stdin = path == Path::new("-");
        let text = if is_stdin {
            let mut text = Vec::new();
            io::stdin().read_to_end(&mut text).map(|_| text)
        } else {
            fs::read(path)
        };
        let text = text.map_err(|e| {
            ConfigError(format!("cannot read the configuration file {}: {e}", path.display()))
        })?;
        // Empty if the configuration came through a pipe, because a configuration cannot be written
        // back into a pipe.
        self.file =
            if is_stdin { PathBuf::new() } else { fs::canonicalize(path).unwrap_or_default() };
        self.read_lines(path, &text, 0)
    }

    pub(super) fn read_lines(
        &mut self,
        path: &Path,
        text: &[u8],
        depth: usize,
    ) -> Result<(), ConfigError> {
        for (index, line) in lines(text).enumerate() {
            let line = line.trim_ascii();
            // Comments are skipped before anything is decoded, because comments may be in any
            // encoding.
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let place =
                |what: &str| ConfigError(format!("{}:{}: {what}", path.display(), index + 1));
            let words = split(line).ok_or_else(|| place("unbalanced quotes"))?;
            let Some((name, values)) = words.split_first() else { continue };
            let name = String::from_utf8_lossy(name);
            let applied = self.apply(&name, values, depth).map_err(|e| place(&e.0));
            applied.or_else(|e| self.put_off(&name, e))?;
        }
        Ok(())
    }

    /// `include FILE`. The name of the file may be a pattern.
    pub(super) fn include(&mut self, words: &[Vec<u8>], depth: usize) -> Result<(), ConfigError> {
        let [word] = words else {
            return Err(ConfigError(
                "include takes one file, or one pattern: quote a name with blanks".into(),
            ));
        };
        let path = self.in_dir(word);
        if depth >= DEPTH_MAX {
            return Err(ConfigError(format!(
                "include {}: nested too deep, or in a circle",
                path.display()
            )));
        }
        // A pattern that no file matches is no error, because the directory may be empty for now.
        let files = if is_pattern(path.as_os_str()) { matching(&path)? } else { vec![path] };
        for file in files {
            let text = fs::read(&file).map_err(|e| {
                ConfigError(format!("cannot read the included file {}: {e}", file.display()))
            })?;
            self.read_lines(&file, &text, depth + 1)?;
        }
        Ok(())
    }

    /// Resolves a path relative to the value that the directive `dir` has after the lines that were
    /// read so far.
    pub(super) fn in_dir(&self, path: &[u8]) -> PathBuf {
        let (dir, path) = (self.path("dir"), Path::new(OsStr::from_bytes(path)));
        if dir == Path::new(".") || path.as_os_str().is_empty() {
            path.to_owned()
        } else {
            dir.join(path)
        }
    }
}

/// The lines of a file, without their line ends.
pub(super) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').map(|line| {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        line.strip_suffix(b"\r").unwrap_or(line)
    })
}

fn is_pattern(name: &OsStr) -> bool {
    name.as_bytes().iter().any(|byte| b"*?[".contains(byte))
}

/// The files that a shell pattern matches, sorted. A directory that can't be read counts as empty.
fn matching(pattern: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let mut found = vec![PathBuf::new()];
    for part in pattern.components() {
        let part = part.as_os_str();
        if !is_pattern(part) {
            for path in &mut found {
                path.push(part);
            }
            continue;
        }
        let glob = shell_glob(part)
            .ok_or_else(|| ConfigError(format!("include {}: too long", pattern.display())))?;
        let is_hidden = |name: &OsStr| name.as_bytes().starts_with(b".");
        let mut within = Vec::new();
        for folder in &found {
            let is_here = folder.as_os_str().is_empty();
            let folder_read = if is_here { Path::new(".") } else { folder };
            let Ok(entries) = fs::read_dir(folder_read) else { continue };
            let names = entries.flatten().map(|entry| entry.file_name());
            let names = names.filter(|name| !is_hidden(name) || is_hidden(part));
            let names = names.filter(|name| glob.matches(name.as_bytes()));
            within.extend(names.map(|name| folder.join(name)));
        }
        found = within;
    }
    found.retain(|path| path.symlink_metadata().is_ok() && !path.is_dir());
    found.sort_by(|a, b| a.as_os_str().cmp(b.as_os_str()));
    Ok(found)
}

/// A part of a path as a pattern. `[!a]` is the shell's way to write `[^a]`.
fn shell_glob(part: &OsStr) -> Option<Glob> {
    let mut pattern = part.as_bytes().to_vec();
    for at in 1..pattern.len() {
        if pattern[at] == b'!' && pattern[at - 1] == b'[' {
            pattern[at] = b'^';
        }
    }
    Glob::new(&pattern).ok()
}
