//! Which files of known programs are logs.

use std::ffi::OsStr;
use std::path::Path;

/// A program whose logs are known.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// What it is called.
    pub name: &'static str,
    /// Names of its executable files.
    programs: &'static [&'static str],
    /// Its logs, as patterns of fnmatch(3) for absolute paths.
    pub patterns: &'static [&'static str],
}

/// The append-only file: of one piece before Redis 7, and then the pieces that grow.
const AOF: &[&str] = &["*.incr.aof", "*/appendonly.aof"];

/// All profiles.
pub const PROFILES: &[Profile] = &[
    Profile { name: "redis", programs: &["redis-server"], patterns: AOF },
    Profile { name: "valkey", programs: &["valkey-server"], patterns: AOF },
];

impl Profile {
    /// The profile of this name.
    pub fn named(name: &str) -> Option<Self> {
        PROFILES.iter().copied().find(|profile| profile.name == name)
    }

    /// The profile of a program.
    pub fn of(program: &OsStr) -> Option<Self> {
        let name = Path::new(program).file_name()?.to_str()?;
        PROFILES.iter().copied().find(|profile| profile.programs.contains(&name))
    }
}
