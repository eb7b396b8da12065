//! Which files of known programs are logs, and how the programs write these files.
//!
//! Logs can take the *short path*: the log's file already has zeros where the next records go, so a
//! record becomes durable by one direct write.

use std::ffi::OsStr;
use std::path::Path;

/// How a program writes a log. This decides which form of the short path the log takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One process writes the log, mostly at its end. The log never ends with a zero byte, so after
    /// a power cut, zeros at its end are cut off.
    Log,
    /// One process writes the log, and the log's records say where the log ends. So zeros after the
    /// last record may stay.
    SelfEnding,
    /// The file is filled before it is used. Then any number of processes overwrite whole blocks of
    /// it.
    WholeBlocks,
}

/// A pattern for the files that take the short path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// How these files are written.
    pub kind: Kind,
    /// A pattern of fnmatch(3) for their absolute paths.
    pub text: String,
}

/// A program whose logs are known.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// The profile's name.
    pub name: &'static str,
    /// Names of the program's executable files.
    programs: &'static [&'static str],
    /// How the program writes its logs.
    kind: Kind,
    /// The program's logs, as patterns of fnmatch(3) for absolute paths.
    patterns: &'static [&'static str],
}

/// The append-only file of Redis. Before Redis 7, it is one file. Since then it is several files,
/// of which only the incremental ones grow.
const AOF: &[&str] = &["*.incr.aof", "*/appendonly.aof"];
/// Segments of PostgreSQL's WAL, whose names have 24 hexadecimal digits. `xlogtemp.*` and the files
/// in `archive_status` have other names.
const WAL: &[&str] = &["*/pg_wal/[0-9A-F][0-9A-F][0-9A-F][0-9A-F][0-9A-F][0-9A-F][0-9A-F][0-9A-F]\
    [0-9A-F][0-9A-F][0-9A-F][0-9A-F][0-9A-F][0-9A-F][0-9A-F][0-9A-F]\
    [0-9A-F][0-9A-F][0-9A-F][0-9A-F][0-9A-F][0-9A-F][0-9A-F][0-9A-F]"];
/// The redo log of InnoDB.
const REDO: &[&str] = &["*/ib_logfile[0-9]*"];

/// The write-ahead log of an SQLite database in WAL mode. Each frame has a checksum that also
/// covers the frames before it. So the log ends before the first frame whose checksum is wrong.
const SQLITE_WAL: &[&str] = &["*-wal"];
/// RocksDB's log. RocksDB skips records of zeros at the end of a log, because it may have allocated
/// blocks there itself.
const ROCKSDB_LOG: &[&str] = &["*/[0-9][0-9][0-9][0-9][0-9][0-9]*.log"];

/// All profiles.
pub const PROFILES: &[Profile] = &[
    Profile { name: "redis", programs: &["redis-server"], kind: Kind::Log, patterns: AOF },
    Profile { name: "valkey", programs: &["valkey-server"], kind: Kind::Log, patterns: AOF },
    Profile {
        name: "sqlite",
        programs: &["sqlite3"],
        kind: Kind::SelfEnding,
        patterns: SQLITE_WAL,
    },
    Profile {
        name: "rocksdb",
        programs: &["db_bench"],
        kind: Kind::SelfEnding,
        patterns: ROCKSDB_LOG,
    },
    Profile {
        name: "postgres",
        programs: &["postgres", "postmaster", "pg_ctl"],
        kind: Kind::WholeBlocks,
        patterns: WAL,
    },
    Profile {
        name: "mariadb",
        programs: &["mariadbd", "mysqld", "mariadbd-safe", "mysqld_safe"],
        kind: Kind::WholeBlocks,
        patterns: REDO,
    },
];

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Log, Self::SelfEnding, Self::WholeBlocks];

    /// The letter for this kind in the environment variable that the preloaded library reads
    /// ([`VARIABLE`](crate::protocol::VARIABLE)).
    pub(crate) fn letter(self) -> char {
        match self {
            Self::Log => 'l',
            Self::SelfEnding => 's',
            Self::WholeBlocks => 'w',
        }
    }
}

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

    /// The patterns for the program's logs.
    pub fn patterns(&self) -> Vec<Pattern> {
        let pattern = |text: &&str| Pattern { kind: self.kind, text: (*text).to_owned() };
        self.patterns.iter().map(pattern).collect()
    }
}
