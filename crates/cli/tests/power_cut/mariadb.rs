//! Power cuts under MariaDB. It has its default settings, with two exceptions: a smaller log, which
//! keeps the images of the disk small, and an option that the short path needs.

use std::path::{Path, PathBuf};
use std::process::Command;

use slimio_testing::server::find_program;

use super::place::{Place, Running, text, wait_for};
use super::{Client, Lines, Program, SUMMARY, is_installed, outlives_power_cuts, summed_up};

/// The path of the server's program.
struct MariaDb(PathBuf);

/// A server takes this as the user of its process. Without this option, MariaDB refuses to run as
/// root. A client takes it as the user in the database.
const USER: &str = "--user=root";
const LOG_SIZE: &str = "--innodb-log-file-size=8M";

impl MariaDb {
    /// Starts the server, and waits until it answers.
    fn serve(&self, place: &Place, is_stock: bool) -> Result<Running, String> {
        let mut serve =
            if is_stock { place.stock(None, &self.0) } else { place.run(None, &self.0) };
        serve.args(["--no-defaults", USER, LOG_SIZE, "--skip-networking"]).arg(data(place));
        serve.arg(temporary(place));
        if place.is_short() {
            // Without this option, MariaDB would write its log with `O_DIRECT`, and such a log does
            // not take the short path.
            serve.arg("--innodb-log-file-buffering");
        }
        let socket = socket(place);
        let mut running = Running::new(
            serve.arg(&socket).arg(socket.replace("--socket=", "--pid-file=") + ".pid"),
        );
        let mut has_ended = false;
        wait_for("an answer of MariaDB", || {
            has_ended = running.child.try_wait().unwrap().is_some();
            has_ended || ask(place, "SELECT 1").is_ok()
        });
        if has_ended { Err("the server does not start".into()) } else { Ok(running) }
    }
}

fn data(place: &Place) -> String {
    format!("--datadir={}", place.mounted().join("data").display())
}

/// Each server gets a temporary folder of its own. At its start, a server removes all temporary
/// tables in its temporary folder, even those of other servers.
fn temporary(place: &Place) -> String {
    format!("--tmpdir={}", place.memory().display())
}

fn socket(place: &Place) -> String {
    format!("--socket={}", place.memory().join("socket").display())
}

fn client(place: &Place) -> Command {
    let mut client = place.stock(None, Path::new("mariadb"));
    client.args(["--no-defaults", USER, "--batch", "--skip-column-names", "--unbuffered"]);
    client.arg(socket(place));
    client
}

fn ask(place: &Place, statement: &str) -> Result<String, String> {
    text(client(place).args(["--execute", statement]))
}

impl Program for MariaDb {
    const SIZE: u64 = 192 << 20;
    const CLIENTS: usize = 3;
    const WRITES: u64 = 80;
    const CUTS: usize = 5;

    fn prepare(&self, place: &Place) {
        let mut make = place.stock(None, Path::new("mariadb-install-db"));
        make.args(["--no-defaults", USER, LOG_SIZE, "--skip-test-db", "--skip-name-resolve"]);
        make.args(["--auth-root-authentication-method=normal".into(), data(place)]);
        make.arg(temporary(place));
        if let Err(error) = text(&mut make) {
            panic!("{error}: {}", place.last_said());
        }
    }

    fn start(&self, place: &Place) -> (Running, Vec<Box<dyn Client>>) {
        let running = self.serve(place, false).unwrap();
        let table = "client integer, number integer, value text, PRIMARY KEY (client, number)";
        ask(place, &format!("CREATE DATABASE d; CREATE TABLE d.t ({table})")).unwrap();
        let client = |number_of_client| {
            let insert = move |number| {
                let value = format!("repeat('v', {number} * 397 % 1500)");
                let values = format!("{number_of_client}, {number}, {value}");
                format!("INSERT INTO t VALUES ({values}) RETURNING number;")
            };
            Box::new(Lines::new(client(place).arg("d"), insert)) as _
        };
        (running, (0..Self::CLIENTS).map(client).collect())
    }

    fn recover(&self, place: &Place) -> Result<Vec<u64>, String> {
        let _running = self.serve(place, true)?;
        summed_up(&text(client(place).args(["d", "--execute", SUMMARY]))?, Self::CLIENTS)
    }
}

fn mariadb() -> Option<MariaDb> {
    let beside = || Some(PathBuf::from("/usr/sbin/mariadbd")).filter(|path| path.is_file());
    let program = find_program("mariadbd").or_else(beside);
    is_installed(program.as_deref(), "MariaDB").then(|| MariaDb(program.unwrap()))
}

#[test]
fn mariadb_as_it_comes() {
    let Some(mariadb) = mariadb() else { return };
    outlives_power_cuts(&mariadb, None);
}

#[test]
fn mariadb_with_the_short_path() {
    let Some(mariadb) = mariadb() else { return };
    outlives_power_cuts(&mariadb, Some("mariadb"));
}
