//! SQLite with its write-ahead log and `synchronous=FULL`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Stdio};

use super::place::{Place, Running, command, text};
use super::{Client, Program, is_installed, outlives_power_cuts};

/// A Python with the module of SQLite.
struct Sqlite(PathBuf);

struct Writer {
    answers: BufReader<ChildStdout>,
    requests: ChildStdin,
    _running: Running,
}

/// The log begins anew every 40 pages, so that it is copied to the database and written over, too.
const WRITE: &str = "\
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute('PRAGMA journal_mode=WAL')
db.execute('PRAGMA synchronous=FULL')
db.execute('PRAGMA wal_autocheckpoint=40')
db.execute('CREATE TABLE t (id INTEGER PRIMARY KEY, value TEXT)')
for line in sys.stdin:
    number = int(line)
    db.execute('INSERT INTO t VALUES (?, ?)', (number, 'v' * (number * 397 % 1500)))
    print(number, flush=True)
";

const READ: &str = "\
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
assert db.execute('PRAGMA integrity_check').fetchall() == [('ok',)], 'not integer'
rows = db.execute('SELECT id, value FROM t ORDER BY id').fetchall()
for number, row in enumerate(rows, 1):
    assert row == (number, 'v' * (number * 397 % 1500)), (number, len(rows), row)
print(len(rows))
";

fn path(place: &Place) -> PathBuf {
    place.mounted().join("rows.db")
}

impl Program for Sqlite {
    const SIZE: u64 = 64 << 20;
    const WRITES: u64 = 200;
    const CUTS: usize = 8;

    fn start(&self, place: &Place) -> Box<dyn Client> {
        let mut write = place.run(None, &self.0);
        write.args(["-c", WRITE]).arg(path(place));
        let mut running = Running::new(write.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let requests = running.child.stdin.take().unwrap();
        let answers = BufReader::new(running.child.stdout.take().unwrap());
        Box::new(Writer { answers, requests, _running: running })
    }

    fn recover(&self, place: &Place) -> Result<u64, String> {
        let read = text(command(&self.0).args(["-c", READ]).arg(path(place)))?;
        read.trim().parse().map_err(|_| read)
    }
}

impl Client for Writer {
    fn write(&mut self, number: u64) {
        writeln!(self.requests, "{number}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert_eq!(answer.trim(), number.to_string());
    }
}

fn sqlite() -> Option<Sqlite> {
    // What the path has may be a script that looks for a Python first.
    let found =
        text(command("python3").args(["-c", "import sqlite3, sys; print(sys.executable)"])).ok();
    let program = found.as_deref().map(|found| Path::new(found.trim()));
    is_installed(program, "python3 with sqlite3").then(|| Sqlite(program.unwrap().to_owned()))
}

#[test]
fn sqlite_as_it_comes() {
    let Some(sqlite) = sqlite() else { return };
    outlives_power_cuts(&sqlite, None);
}

#[test]
fn sqlite_with_the_short_path() {
    let Some(sqlite) = sqlite() else { return };
    outlives_power_cuts(&sqlite, Some("sqlite"));
}
