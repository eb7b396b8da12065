//! Stock MariaDB under `slimio shortcut run`. The redo log takes the short path to the device
//! (direct overwrites of blocks that were written before) if MariaDB itself would write the log
//! with buffered I/O.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::{Signal, kill_process};
use slimio_testing::server::find_program;

use super::sql::{check, insert_until_killed, kill_all, run, wait_for_rows};
use super::{Place, Running, child_of, pid, text, wait_for};

/// An installed MariaDB, and a folder with an empty database.
struct MariaDb {
    folder: PathBuf,
    program: PathBuf,
}

impl MariaDb {
    /// Makes an empty database. `None` if MariaDB is not installed.
    fn new(place: &Place) -> Option<Self> {
        let program = find_program("mariadbd")
            .or_else(|| Some(PathBuf::from("/usr/sbin/mariadbd")).filter(|path| path.is_file()));
        let needed = ["mariadb", "mariadb-install-db"];
        let is_there = needed.iter().all(|name| find_program(name).is_some());
        let Some(program) = program.filter(|_| is_there) else {
            eprintln!("SKIPPED: mariadbd is not installed");
            return None;
        };
        let folder = place.path().join("my");
        fs::create_dir(&folder).unwrap();
        let mut made = Command::new("mariadb-install-db");
        made.args(["--no-defaults", "--user=root", "--skip-test-db"]);
        made.arg("--auth-root-authentication-method=normal");
        made.arg(format!("--datadir={}", folder.join("data").display()));
        // Each server gets a temporary folder of its own, because a server that starts removes all
        // temporary tables in its folder, those of other servers included.
        made.arg(format!("--tmpdir={}", folder.display()));
        text(&made.output().unwrap());
        Some(Self { folder, program })
    }

    fn arguments(&self) -> Vec<String> {
        let option =
            |name: &str, path: &str| format!("--{name}={}", self.folder.join(path).display());
        let mut words: Vec<String> = ["--no-defaults", "--user=root", "--skip-networking"]
            .into_iter()
            .map(str::to_owned)
            .collect();
        words.extend([
            option("datadir", "data"),
            option("tmpdir", ""),
            option("socket", "sock"),
            option("pid-file", "pid"),
        ]);
        words
    }

    /// A client that runs each line of its input.
    fn client(&self) -> Command {
        let mut command = Command::new("mariadb");
        command.args(["--no-defaults", "-u", "root", "-N", "-B", "-n", "-S"]);
        command.arg(self.folder.join("sock"));
        command
    }

    fn wait(&self) {
        wait_for("server", || {
            let mut tried = self.client();
            let tried = tried.args(["-e", "select 1"]).output().unwrap();
            tried.status.success()
        });
    }
}

#[test]
fn what_was_committed_outlives_a_killed_server() {
    let Some(place) = Place::of_size(1 << 30) else { return };
    let Some(mariadb) = MariaDb::new(&place) else { return };
    let mut command = place.run(&[&"--", &mariadb.program]);
    command.args(mariadb.arguments()).arg("--innodb-log-file-buffering").stdout(Stdio::null());
    let mut running = Running(command.spawn().unwrap());
    mariadb.wait();
    run(mariadb.client(), "create database t; create table t.a (c int, n int) engine=innodb");
    let inserting = insert_until_killed(|| mariadb.client());
    wait_for_rows(&place, || mariadb.client());
    kill_all(child_of(pid(&running)));
    let acknowledged: Vec<usize> =
        inserting.into_iter().map(|thread| thread.join().unwrap()).collect();
    running.wait().unwrap();
    assert!(acknowledged.iter().all(|count| *count > 0), "{acknowledged:?}");
    let said = place.said();
    // MariaDB only allocates the blocks of a new log. A log takes the short path only if its blocks
    // were written before. So `slimio shortcut run` filled this log with zeros when MariaDB opened
    // the log.
    assert_eq!(said.matches("ib_logfile0: written by the short path\n").count(), 1, "{said}");
    // Without `slimio shortcut run`, the server starts and has every row.
    let mut command = Command::new(&mariadb.program);
    command.args(mariadb.arguments()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = Running(command.spawn().unwrap());
    mariadb.wait();
    check(|| mariadb.client(), &acknowledged);
    kill_process(pid(&running), Signal::TERM).unwrap();
    assert!(running.wait().unwrap().success());
}

#[test]
fn a_log_that_is_written_directly_is_filled_and_left_to_the_server() {
    let Some(place) = Place::of_size(1 << 30) else { return };
    let Some(mariadb) = MariaDb::new(&place) else { return };
    let probed = || {
        let log = mariadb.folder.join("data/ib_logfile0");
        slimio_shortcut::Probe::of(&log).unwrap().space.unwrap().unwritten
    };
    assert!(probed() > 0, "MariaDB has already written all blocks of its new log");
    let mut command = place.run(&[&"--", &mariadb.program]);
    let mut running =
        Running(command.args(mariadb.arguments()).stdout(Stdio::null()).spawn().unwrap());
    mariadb.wait();
    run(mariadb.client(), "create database t; create table t.a (c int, n int) engine=innodb");
    let said = place.said();
    let left = "ib_logfile0: left to the kernel: the program itself uses direct I/O\n";
    assert_eq!(said.matches(left).count(), 1, "{said}");
    assert!(place.status().contains(" 0 writes took the short path"), "{}", place.status());
    assert_eq!(probed(), 0);
    kill_process(pid(&running), Signal::TERM).unwrap();
    assert!(running.wait().unwrap().success());
}
