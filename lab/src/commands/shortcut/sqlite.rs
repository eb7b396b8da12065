//! SQLite: one connection, and a transaction for each row.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::child::{Life, missing, rate, text_of};
use super::{Plan, Site, Subject};
use crate::error::Result;

/// Values of `PRAGMA synchronous`. With `NORMAL`, a power cut may lose transactions.
const ROWS: [&str; 2] = ["FULL", "NORMAL"];

/// The load, as a Python script. Python's module calls the library once for each row; a call takes
/// a few microseconds. A warm-up of a third of the time is not counted. The script reads the clock
/// only after every 16 rows.
const SCRIPT: &str = "\
import sqlite3, sys, time
path, synchronous, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
db = sqlite3.connect(path, isolation_level=None)
db.execute('PRAGMA journal_mode=WAL')
db.execute('PRAGMA synchronous=' + synchronous)
db.execute('CREATE TABLE t (id INTEGER PRIMARY KEY, value TEXT)')
value = ('x' * 100,)
def insert(seconds):
    rows, begun = 0, time.monotonic()
    while time.monotonic() - begun < seconds:
        for _ in range(16):
            db.execute('INSERT INTO t (value) VALUES (?)', value)
        rows += 16
    return rows / (time.monotonic() - begun)
insert(seconds / 3)
print('rate', insert(seconds), 'rows/s')
";

#[derive(Debug)]
pub(super) struct Sqlite {
    python: PathBuf,
}

impl Sqlite {
    pub(super) fn new() -> Result<Self> {
        // The `python3` in `PATH` may be a script that starts the real interpreter. So Python is
        // asked for the interpreter's path.
        let mut command = Command::new("python3");
        command.args(["-c", "import sqlite3, sys; print(sys.executable)"]);
        let python =
            text_of(&mut command).map_err(|_| missing("python3 with sqlite3", "python3"))?;
        Ok(Self { python: Path::new(python.trim()).to_owned() })
    }
}

impl Subject for Sqlite {
    fn profile(&self) -> &'static str {
        "sqlite"
    }

    fn plan(&self) -> Plan {
        Plan {
            heads: vec!["`synchronous`"],
            unit: "rows",
            settings: vec!["default"],
            groups: ROWS.map(|name| vec![vec![name.to_owned()]]).to_vec(),
        }
    }

    fn measure(&self, group: usize, _setting: usize, site: &Site) -> Result<Vec<f64>> {
        let mut command = Life::OURS.command(&site.under, &self.python);
        command.args(["-c", SCRIPT]).arg(site.folder.join("rows.db")).arg(ROWS[group]);
        command.arg(site.time.as_secs_f64().to_string());
        let said = text_of(&mut command)?;
        site.check(&said);
        Ok(vec![rate(&said, "rate", "rows/s")?])
    }
}
