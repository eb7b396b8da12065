//! Tests of the short path with two databases: SQLite, which reads and overwrites its log, and
//! RocksDB, which finds its log's end in the log itself. The tests kill the program, its keeper
//! (the process of `run`), and the keeper's guard. The guard is a child of the keeper. If only the
//! keeper is killed, the guard gives the log back to the kernel. The module `kills` says more about
//! these processes.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::kills::{ORDERS, kill_in_order};
use super::{Place, Running, child_of, guard_of, kill, pid, text, wait_for};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shortcut/ledger.py");
const ROUNDS: usize = 6;
/// The least number of records in a round.
const RECORDS_MIN: usize = 10;

/// Whether the library of RocksDB is installed.
fn has_rocksdb() -> bool {
    let folder = fs::read_dir("/usr/lib/x86_64-linux-gnu").into_iter().flatten().flatten();
    let is_it = folder
        .into_iter()
        .any(|entry| entry.file_name().to_string_lossy().starts_with("librocksdb.so."));
    if !is_it {
        eprintln!("SKIPPED: RocksDB is not installed (rocksdb-tools)");
    }
    is_it
}

/// A database in a folder of its own.
struct Database<'a> {
    place: &'a Place,
    name: &'static str,
    folder: PathBuf,
}

impl<'a> Database<'a> {
    fn new(place: &'a Place, name: &'static str) -> Self {
        let folder = place.path().join(name);
        fs::create_dir(&folder).unwrap();
        Self { place, name, folder }
    }

    /// Starts, under `slimio shortcut run`, a program that writes records. Each line of the
    /// program's output is the number of records so far.
    fn write(&self) -> Running {
        let mut command = self.place.run(&[&"--profile", &self.name, &"--", &"python3", &"-B"]);
        command.args([SCRIPT, self.name]).arg(&self.folder).stdout(Stdio::piped());
        Running(command.spawn().unwrap())
    }

    /// The number of records that the stock program finds. Panics if a record before the last is
    /// missing.
    fn count(&self) -> usize {
        count(self.name, &self.folder)
    }
}

fn count(name: &str, folder: &Path) -> usize {
    let mut command = Command::new("python3");
    let output = command.args(["-B", SCRIPT, name]).arg(folder).arg("check").output().unwrap();
    text(&output).trim().parse().unwrap()
}

fn check_kills(name: &'static str) {
    let Some(place) = Place::new() else { return };
    let database = Database::new(&place, name);
    let mut acknowledged = 0;
    for (round, order) in ORDERS.into_iter().cycle().take(ROUNDS).enumerate() {
        let mut run = database.write();
        let mut said = BufReader::new(run.stdout.take().unwrap()).lines();
        let first = said.next().unwrap().unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let reading = std::thread::spawn(move || {
            said.map_while(Result::ok).inspect(|_| _ = counted.fetch_add(1, Relaxed)).last()
        });
        let (keeper, program) = (pid(&run), child_of(pid(&run)));
        wait_for("records", || count.load(Relaxed) >= RECORDS_MIN);
        std::thread::sleep(Duration::from_millis(40 + 23 * round as u64));
        kill_in_order(order, keeper, program, round as u64 % 3 * 9);
        let last = reading.join().unwrap().unwrap_or(first);
        run.wait().unwrap();
        wait_for("end of the program", || rustix::process::test_kill_process(program).is_err());
        acknowledged = last.parse().unwrap();
        // In every second round, the stock program reads the log before the next `run` mends the
        // log. So the acknowledged records must be in the log's file already.
        if round % 2 == 0 {
            let found = database.count();
            assert!(
                [0, 1].contains(&(found as i64 - acknowledged as i64)),
                "round {round}: {found} records are found, and {acknowledged} were acknowledged; {}",
                place.said()
            );
        }
    }
    let found = database.count();
    assert!(
        found >= acknowledged,
        "{found} records are found, and {acknowledged} were acknowledged; {}",
        place.said()
    );
    assert!(acknowledged >= ROUNDS * RECORDS_MIN, "only {acknowledged} records were acknowledged");
    assert!(place.said().contains("written by the short path"), "{}", place.said());
    assert!(fs::read_dir(place.notes()).unwrap().next().is_none(), "there is a note about a log");
}

#[test]
fn sqlite_keeps_what_it_has_acknowledged() {
    check_kills("sqlite");
}

#[test]
fn rocksdb_keeps_what_it_has_acknowledged() {
    if has_rocksdb() {
        check_kills("rocksdb");
    }
}

/// A power cut loses the stage, and leaves zeros after the end of the log. Both SQLite and RocksDB
/// can read such a log. Instead of cutting the power, the test kills all processes and removes the
/// stage.
#[test]
fn zeros_behind_a_log_that_says_where_it_ends_may_stay() {
    let Some(place) = Place::new() else { return };
    for name in ["sqlite", "rocksdb"] {
        if name == "rocksdb" && !has_rocksdb() {
            return;
        }
        let database = Database::new(&place, name);
        let mut run = database.write();
        let said = BufReader::new(run.stdout.take().unwrap()).lines();
        let last = said.take(30).last().unwrap().unwrap();
        let (keeper, program) = (pid(&run), child_of(pid(&run)));
        kill(guard_of(keeper));
        kill(keeper);
        kill(program);
        run.wait().unwrap();
        wait_for("end of the program", || rustix::process::test_kill_process(program).is_err());
        for stage in place.stages() {
            fs::remove_file(stage).unwrap();
        }
        assert!(database.count() >= last.parse().unwrap(), "{name}");
    }
}

/// A killed program leaves a log that needs mending. Then the stock program opens the database and
/// removes the log. The next `run` must forget the log.
#[test]
fn a_log_that_the_stock_program_has_removed_is_forgotten() {
    let Some(place) = Place::new() else { return };
    let database = Database::new(&place, "sqlite");
    let mut run = database.write();
    let said = BufReader::new(run.stdout.take().unwrap()).lines();
    said.take(10).last().unwrap().unwrap();
    let (keeper, program) = (pid(&run), child_of(pid(&run)));
    for process in [guard_of(keeper), keeper, program] {
        kill(process);
    }
    run.wait().unwrap();
    wait_for("end of the program", || rustix::process::test_kill_process(program).is_err());
    assert_eq!(place.stages().len(), 1);
    database.count();
    assert!(!database.folder.join("ledger.db-wal").exists());
    let mut next = place.run(&[&"--profile", &"sqlite", &"--", &"true"]);
    assert!(next.status().unwrap().success());
    assert!(place.said().contains("ledger.db-wal: was removed after"), "{}", place.said());
    assert!(place.stages().is_empty());
}

/// Every connection sees all rows that were written before. First, two connections of one process
/// write in turn. Then one of them writes alone, and connections of other processes count the rows.
#[test]
fn connections_of_sqlite_see_each_other() {
    let Some(place) = Place::new() else { return };
    let text_of = format!(
        "import sqlite3, subprocess, sys, time\n\
         path = {:?}\n\
         def connect():\n\
        \x20    c = sqlite3.connect(path, isolation_level=None)\n\
        \x20    c.execute('PRAGMA journal_mode=WAL'); c.execute('PRAGMA synchronous=' + sys.argv[1])\n\
        \x20    return c\n\
         count = 'SELECT count(*) FROM t'\n\
         a = connect()\n\
         a.execute('CREATE TABLE IF NOT EXISTS t(v)'); a.execute('DELETE FROM t')\n\
         def insert(c): c.execute('INSERT INTO t VALUES(?)', ('x' * 300,))\n\
         for n in range(1, 200): insert(a)\n\
         b = connect()\n\
         assert b.execute(count).fetchone() == (199,)\n\
         for n in range(20): insert(a); insert(b)\n\
         assert a.execute(count).fetchone() == b.execute(count).fetchone() == (239,)\n\
         b.close()\n\
         time.sleep(0.8)\n\
         for n in range(61): insert(a)\n\
         code = f'import sqlite3; print(sqlite3.connect({{path!r}}).execute({{count!r}}).fetchone()[0])'\n\
         for n in range(3):\n\
        \x20    insert(a)\n\
        \x20    seen = subprocess.run([sys.executable, '-c', code], stdout=subprocess.PIPE, check=True).stdout\n\
        \x20    assert int(seen) == 301 + n, seen\n\
         print(*a.execute('PRAGMA integrity_check').fetchone())\n",
        place.path().join("a.db")
    );
    let script = place.script(&text_of);
    for synchronous in ["FULL", "NORMAL"] {
        let mut command = place.run(&[&"--profile", &"sqlite", &"--", &"python3", &script]);
        assert_eq!(text(&command.arg(synchronous).output().unwrap()), "ok\n", "{}", place.said());
    }
    assert!(place.said().contains("a.db-wal: written by the short path"), "{}", place.said());
    assert!(place.stages().is_empty());
}

/// A log that is overwritten again and again stays on the short path, although each checkpoint
/// reads the log's frames before the log begins anew.
#[test]
fn sqlite_stays_on_the_short_way() {
    let Some(place) = Place::new() else { return };
    let script = place.script(&format!(
        "import os, sqlite3\n\
         path = {:?}\n\
         c = sqlite3.connect(path, isolation_level=None)\n\
         c.execute('PRAGMA journal_mode=WAL'); c.execute('PRAGMA synchronous=FULL')\n\
         c.execute('CREATE TABLE t(v)')\n\
         for n in range(2500): c.execute('INSERT INTO t VALUES(?)', ('x' * 300,))\n\
         # Only direct I/O shows that the log still takes the short path.\n\
         wal = [fd for fd in os.listdir('/proc/self/fd') if os.path.realpath('/proc/self/fd/' + fd) == path + '-wal']\n\
         print([bool(int(open('/proc/self/fdinfo/' + fd).read().split()[3], 8) & os.O_DIRECT) for fd in wal])\n",
        place.path().join("a.db")
    ));
    let mut command = place.run(&[&"--profile", &"sqlite", &"--", &"python3", &script]);
    let output = text(&command.output().unwrap());
    assert!(output.contains("True") && !output.contains("False"), "{output} {}", place.said());
    assert_eq!(place.said().matches("a.db-wal").count(), 1, "{}", place.said());
}
