//! PostgreSQL as it comes.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::Signal;

use super::place::{Place, Running, text, wait_for};
use super::{Client, Program, is_installed, outlives_power_cuts};

/// Debian has its programs here, in a folder for each version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// It does not run as root, but as the user that its package makes.
const USER: &str = "postgres";

/// The folder of the programs.
struct Postgres(PathBuf);

struct Server {
    answers: BufReader<ChildStdout>,
    requests: ChildStdin,
    _client: Running,
    _running: Running,
}

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
        // An immediate stop: nothing is written any more.
        let mut running = Running::ended_by(Signal::QUIT, &mut serve);
        let mut has_ended = false;
        wait_for("no answer", || {
            has_ended = running.child.try_wait().unwrap().is_some();
            has_ended || text(&mut self.client(place, "pg_isready")).is_ok()
        });
        if has_ended { Err("the server does not start".into()) } else { Ok(running) }
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
    const WRITES: u64 = 200;
    const CUTS: usize = 5;

    fn prepare(&self, place: &Place) {
        let owned = std::os::unix::fs::chown(place.mounted(), Some(user_id()), None);
        owned.unwrap();
        let mut make = self.client(place, "initdb");
        make.args(["--no-sync", "--username", USER, "--auth", "trust", "--pgdata"]);
        text(make.arg(data(place))).unwrap();
    }

    fn start(&self, place: &Place) -> Box<dyn Client> {
        let running = self.serve(place, false).unwrap();
        self.ask(place, "CREATE TABLE t (id integer PRIMARY KEY, value text)").unwrap();
        let mut client = self.client(place, "psql");
        client.args(["-q", "-A", "-t"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = Running::new(&mut client);
        let requests = client.child.stdin.take().unwrap();
        let answers = BufReader::new(client.child.stdout.take().unwrap());
        Box::new(Server { answers, requests, _client: client, _running: running })
    }

    fn recover(&self, place: &Place) -> Result<u64, String> {
        let _running = self.serve(place, true)?;
        let counted = self.ask(
            place,
            "SELECT count(*) || ' ' || coalesce(max(id), 0) || ' ' || \
             count(*) FILTER (WHERE length(value) = id * 397 % 1500) FROM t",
        )?;
        let numbers: Vec<&str> = counted.split_whitespace().collect();
        let [count, last, whole] = numbers[..] else { return Err(counted) };
        if count != last || count != whole {
            return Err(format!("{count} rows, {whole} of them whole, the last is {last}"));
        }
        count.parse().map_err(|_| counted)
    }
}

impl Client for Server {
    fn write(&mut self, number: u64) {
        if number == 100 {
            writeln!(self.requests, "CHECKPOINT;").unwrap();
        }
        let insert = "INSERT INTO t VALUES";
        let value = format!("repeat('v', {number} * 397 % 1500)");
        writeln!(self.requests, "{insert} ({number}, {value}) RETURNING id;").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert_eq!(answer.trim(), number.to_string());
    }
}

/// The number of the user.
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
