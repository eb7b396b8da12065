//! Tests `slimio shortcut run` with stock PostgreSQL: a killed server loses no committed row.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use slimio_testing::server::find_program;

use super::sql::{check, insert_until_killed, kill_all, library_for_all, run, wait_for_rows};
use super::{Place, Running, pid, text, wait_for};

/// The server runs as this user, because PostgreSQL refuses to run as root.
const USER: &str = "postgres";

/// A folder for the database and the server's socket, and the folder of PostgreSQL's programs.
struct Postgres {
    folder: PathBuf,
    programs: PathBuf,
}

impl Postgres {
    /// Makes an empty database. `None` if PostgreSQL is not installed.
    fn new(place: &Place) -> Option<Self> {
        let Some(programs) = programs() else {
            eprintln!("SKIPPED: postgres is not installed");
            return None;
        };
        let folder = place.path().join("pg");
        fs::create_dir(&folder).unwrap();
        text(&Command::new("chown").arg(USER).arg(&folder).output().unwrap());
        let postgres = Self { folder, programs };
        let mut made = postgres.as_user("initdb");
        made.args(["--no-sync", "--auth", "trust", "--pgdata"]).arg(postgres.data());
        text(&made.output().unwrap());
        Some(postgres)
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn as_user(&self, program: &str) -> Command {
        let mut command = Command::new("runuser");
        command.args(["-u", USER, "--"]).arg(self.programs.join(program));
        command.current_dir(&self.folder);
        command
    }

    /// The command line that starts the server as [`USER`].
    fn server(&self) -> Vec<String> {
        let server = self.programs.join("postgres").display().to_string();
        let (data, folder) = (self.data().display().to_string(), self.folder.display().to_string());
        let words = ["runuser", "-u", USER, "--", &server, "-D", &data, "-k", &folder];
        let more = ["-c", "listen_addresses="];
        words.into_iter().chain(more).map(str::to_owned).collect()
    }

    /// A client that runs each line of its input in a transaction of its own.
    fn client(&self) -> Command {
        let mut command = Command::new(self.programs.join("psql"));
        command.args(["-qAtX", "-v", "ON_ERROR_STOP=1", "-U", USER, "-d", "postgres", "-h"]);
        command.arg(&self.folder);
        command
    }

    fn wait(&self) {
        wait_for("server", || {
            let mut ready = Command::new(self.programs.join("pg_isready"));
            ready.arg("-q").arg("-h").arg(&self.folder);
            ready.status().unwrap().success()
        });
    }

    /// The first of the server's processes.
    fn postmaster(&self) -> Pid {
        let text = fs::read_to_string(self.data().join("postmaster.pid")).unwrap();
        Pid::from_raw(text.lines().next().unwrap().parse().unwrap()).unwrap()
    }
}

/// Finds the folder of PostgreSQL's programs. Debian has such a folder for each version.
fn programs() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<_> = folders.map(|entry| entry.path().join("bin")).collect();
    folders.sort();
    folders.extend(find_program("postgres").and_then(|path| Some(path.parent()?.to_owned())));
    folders.into_iter().rfind(|folder: &PathBuf| is_there(folder))
}

fn is_there(folder: &Path) -> bool {
    ["postgres", "initdb", "psql", "pg_isready"].iter().all(|name| folder.join(name).is_file())
}

#[test]
fn what_was_committed_outlives_a_killed_server() {
    let Some(place) = Place::new() else { return };
    let Some(postgres) = Postgres::new(&place) else { return };
    let mut command = place.run(&[&"--profile", &"postgres", &"--"]);
    command.args(postgres.server()).current_dir(&postgres.folder).stdout(Stdio::null());
    command.env("SLIMIO_PRELOAD", library_for_all(&place));
    let mut running = Running(command.spawn().unwrap());
    postgres.wait();
    run(postgres.client(), "create schema t; create table t.a (c int, n int)");
    let inserting = insert_until_killed(|| postgres.client());
    wait_for_rows(&place, || postgres.client());
    // One process begins a new segment of the log, and then all processes write to this segment.
    run(postgres.client(), "select pg_switch_wal()");
    wait_for_rows(&place, || postgres.client());
    kill_all(postgres.postmaster());
    let acknowledged: Vec<usize> =
        inserting.into_iter().map(|thread| thread.join().unwrap()).collect();
    running.wait().unwrap();
    assert!(acknowledged.iter().all(|count| *count > 0), "{acknowledged:?}");
    let said = place.said();
    assert_eq!(said.matches(": written by the short path").count(), 1, "{said}");
    // The server is started again, without `slimio shortcut run`, and has every row.
    let words = postgres.server();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).current_dir(&postgres.folder);
    let mut running = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    postgres.wait();
    check(|| postgres.client(), &acknowledged);
    kill_process(postgres.postmaster(), Signal::INT).unwrap();
    assert!(running.wait().unwrap().success(), "{:?}", pid(&running));
}
