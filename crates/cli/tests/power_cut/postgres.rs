//! Power cuts under PostgreSQL with its default settings.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::place::{Place, Running, text, wait_for};
use super::{Client, Lines, Program, SUMMARY, is_installed, outlives_power_cuts, summed_up};

/// The folder in which Debian puts PostgreSQL's programs, with a folder for each version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// The user that PostgreSQL's package makes, because PostgreSQL refuses to run as root.
const USER: &str = "postgres";

/// The folder of the programs.
struct Postgres(PathBuf);

impl Postgres {
    fn settings<'a>(place: &Place, command: &'a mut Command) -> &'a mut Command {
        command.env("PGHOST", place.memory()).env("PGUSER", USER).env("PGDATABASE", USER)
    }

    fn client(&self, place: &Place, program: &str) -> Command {
        let mut client = place.stock(Some(USER), &self.0.join(program));
        Self::settings(place, &mut client);
        client
    }

    /// Starts the server, and waits until it answers.
    fn serve(&self, place: &Place, is_stock: bool) -> Result<Running, String> {
        let program = self.0.join("postgres");
        let mut serve = if is_stock {
            place.stock(Some(USER), &program)
        } else {
            place.run(Some(USER), &program)
        };
        serve.arg("-D").arg(data(place)).arg("-k").arg(place.memory());
        serve.args(["-c", "listen_addresses="]).stdout(Stdio::null());
        // SIGQUIT makes PostgreSQL stop at once, without writing anything more.
        let mut running = Running::ended_by(Signal::QUIT, &mut serve);
        let mut has_ended = false;
        wait_for("an answer of PostgreSQL", || {
            has_ended = running.child.try_wait().unwrap().is_some();
            has_ended || text(&mut self.client(place, "pg_isready")).is_ok()
        });
        if has_ended {
            return Err(format!("the server does not start: {}", place.last_said()));
        }
        Ok(running)
    }

    fn ask(&self, place: &Place, statement: &str) -> Result<String, String> {
        text(self.client(place, "psql").args(["-q", "-A", "-t", "-c", statement]))
    }
}

fn data(place: &Place) -> PathBuf {
    place.mounted().join("data")
}

impl Program for Postgres {
    const SIZE: u64 = 192 << 20;
    const CLIENTS: usize = 3;
    const WRITES: u64 = 80;
    const CUTS: usize = 5;

    fn prepare(&self, place: &Place) {
        let owned = std::os::unix::fs::chown(place.mounted(), Some(user_id()), None);
        owned.unwrap();
        let mut make = self.client(place, "initdb");
        make.args(["--no-sync", "--username", USER, "--auth", "trust", "--pgdata"]);
        text(make.arg(data(place))).unwrap();
    }

    fn start(&self, place: &Place) -> (Running, Vec<Box<dyn Client>>) {
        let running = self.serve(place, false).unwrap();
        let table = "client integer, number integer, value text, PRIMARY KEY (client, number)";
        self.ask(place, &format!("CREATE TABLE t ({table})")).unwrap();
        let client = |client| {
            let insert = move |number| {
                let checkpoint = if (client, number) == (0, 40) { "CHECKPOINT; " } else { "" };
                let values = format!("{client}, {number}, repeat('v', {number} * 397 % 1500)");
                format!("{checkpoint}INSERT INTO t VALUES ({values}) RETURNING number;")
            };
            let mut psql = self.client(place, "psql");
            Box::new(Lines::new(psql.args(["-q", "-A", "-t"]), insert)) as _
        };
        (running, (0..Self::CLIENTS).map(client).collect())
    }

    fn recover(&self, place: &Place) -> Result<Vec<u64>, String> {
        // This file has the process id of the server that ran before the cut. By now, a process of
        // another test may have that id. Then the new server would refuse to start.
        let _ = fs::remove_file(data(place).join("postmaster.pid"));
        let _running = self.serve(place, true)?;
        summed_up(&self.ask(place, SUMMARY)?, Self::CLIENTS)
    }
}

/// The numeric id of [`USER`].
fn user_id() -> u32 {
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let user = users.lines().find_map(|line| line.strip_prefix("postgres:x:")).unwrap();
    user.split(':').next().unwrap().parse().unwrap()
}

fn postgres() -> Option<Postgres> {
    let versions = fs::read_dir(VERSIONS).into_iter().flatten().flatten();
    let number = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.map(|entry| entry.path()).max_by_key(|path| number(path));
    let programs = newest.map(|path| path.join("bin")).filter(|it| it.join("initdb").is_file());
    is_installed(programs.as_deref(), "PostgreSQL").then(|| Postgres(programs.unwrap()))
}

#[test]
fn postgres_as_it_comes() {
    let Some(postgres) = postgres() else { return };
    outlives_power_cuts(&postgres, None);
}

#[test]
fn postgres_with_the_short_path() {
    let Some(postgres) = postgres() else { return };
    outlives_power_cuts(&postgres, Some("postgres"));
}
