//! Redis and Valkey with `appendfsync always`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use slimio_testing::address::{Address, free_port};
use slimio_testing::client::{Client as Connection, Reply};
use slimio_testing::server::find_program;

use super::place::{Place, Running, command, text, wait_for};
use super::{Client, Program, is_installed, outlives_power_cuts};

/// The program of a server.
struct Redis(PathBuf);

struct Server {
    connection: Connection,
    _running: Running,
}

impl Redis {
    fn server(&self, place: &Place, is_stock: bool) -> Result<Server, String> {
        let port = free_port().unwrap();
        let mut serve =
            if is_stock { place.stock(None, &self.0) } else { place.run(None, &self.0) };
        serve.args(["--port", &port.to_string(), "--save", "", "--appendonly", "yes"]);
        serve.args(["--appendfsync", "always", "--dir"]).arg(place.mounted());
        let mut running = Running::new(serve.stdout(Stdio::null()));
        let mut connection = None;
        let mut has_ended = false;
        wait_for("no answer", || {
            has_ended = running.child.try_wait().unwrap().is_some();
            let connected = Connection::connect(&Address::local(port)).ok();
            connection = connected.filter(|_| !has_ended);
            let answer = connection.as_mut().map(|it| it.expect(&["PING"]));
            has_ended || answer.is_some_and(|answer| answer.is_ok())
        });
        let connection = connection.ok_or("the server does not start")?;
        Ok(Server { connection, _running: running })
    }
}

fn key(number: u64) -> String {
    format!("key:{number}")
}

/// Values are of many lengths, so that records end anywhere in a block.
fn value(number: u64) -> String {
    format!("{number}:{}", "v".repeat((number * 397 % 1500) as usize))
}

impl Program for Redis {
    const SIZE: u64 = 64 << 20;
    const WRITES: u64 = 150;
    const CUTS: usize = 8;

    fn start(&self, place: &Place) -> Box<dyn Client> {
        Box::new(self.server(place, false).unwrap())
    }

    fn recover(&self, place: &Place) -> Result<u64, String> {
        if place.is_short() {
            let mut repair = command(place.slimio());
            let log = place.mounted().join("appendonlydir/appendonly.aof.1.incr.aof");
            text(repair.args(["shortcut", "repair"]).arg(log))?;
        }
        let mut server = self.server(place, true)?;
        let mut ask = |words: &[&str]| server.connection.expect(words).map_err(|it| it.to_string());
        let Reply::Integer(count) = ask(&["DBSIZE"])? else { return Err("no number".into()) };
        for number in 1..=count as u64 {
            let found = ask(&["GET", &key(number)])?;
            if found != Reply::Bulk(value(number).into()) {
                return Err(format!("of {count} keys, number {number} is {found:?}"));
            }
        }
        Ok(count as u64)
    }
}

impl Client for Server {
    fn write(&mut self, number: u64) {
        self.connection.expect(&["SET", &key(number), &value(number)]).unwrap();
    }
}

fn redis() -> Option<Redis> {
    let program = find_program("redis-server");
    is_installed(program.as_deref(), "redis-server").then(|| Redis(program.unwrap()))
}

/// That of the system, or the one that `cargo x peers` gets.
fn valkey() -> Option<Redis> {
    let peer = || {
        let folder = slimio_host::process::target_dir();
        Some(folder.join("peers/valkey-9/server")).filter(|path: &PathBuf| Path::is_file(path))
    };
    let program = find_program("valkey-server").or_else(peer);
    is_installed(program.as_deref(), "valkey-server").then(|| Redis(program.unwrap()))
}

#[test]
fn redis_as_it_comes() {
    let Some(redis) = redis() else { return };
    outlives_power_cuts(&redis, None);
}

#[test]
fn redis_with_the_short_path() {
    let Some(redis) = redis() else { return };
    outlives_power_cuts(&redis, Some("redis"));
}

#[test]
fn valkey_with_the_short_path() {
    let Some(valkey) = valkey() else { return };
    outlives_power_cuts(&valkey, Some("valkey"));
}
