//! Power cuts under SQLite. It uses its write-ahead log and `synchronous=FULL`.

use std::path::{Path, PathBuf};

use super::place::{Place, Running, command, text};
use super::{Client, Lines, Program, is_installed, outlives_power_cuts, summed_up};

/// The path of a Python that has the module `sqlite3`.
struct Sqlite(PathBuf);

/// The log begins anew every 40 pages, so that the test also covers copying the log to the
/// database, and overwriting the log.
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
assert db.execute('PRAGMA integrity_check').fetchall() == [('ok',)], 'damaged'
rows = db.execute('SELECT id, value FROM t ORDER BY id').fetchall()
for number, row in enumerate(rows, 1):
    assert row == (number, 'v' * (number * 397 % 1500)), (number, len(rows), row)
print(0, len(rows), len(rows), len(rows))
";

fn path(place: &Place) -> PathBuf {
    place.mounted().join("rows.db")
}

impl Program for Sqlite {
    const SIZE: u64 = 64 << 20;
    /// One client, because two would wait for each other's lock.
    const CLIENTS: usize = 1;
    const WRITES: u64 = 200;
    const CUTS: usize = 8;

    fn start(&self, place: &Place) -> (Running, Vec<Box<dyn Client>>) {
        // The program is its own client. The process that is returned beside the client does
        // nothing.
        let mut write = place.run(None, &self.0);
        let client = Lines::new(write.args(["-c", WRITE]).arg(path(place)), |it| it.to_string());
        (Running::new(&mut command("true")), vec![Box::new(client)])
    }

    fn recover(&self, place: &Place) -> Result<Vec<u64>, String> {
        let read = text(command(&self.0).args(["-c", READ]).arg(path(place)))?;
        summed_up(&read, Self::CLIENTS)
    }
}

fn sqlite() -> Option<Sqlite> {
    // The `python3` in `PATH` may be a script that starts the real Python. So the test asks Python
    // itself for its path.
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
