//! Redis and Valkey with `appendfsync always`.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use slimio_testing::address::Address;
use slimio_testing::client::{Client as Connection, Reply};
use slimio_testing::error::ServerError;
use slimio_testing::server::find_program;

use super::place::{Place, Running, command, text, wait_for};
use super::{Client, Program, is_installed, outlives_power_cuts};

struct Redis {
    program: PathBuf,
    /// How many power cuts the server has recovered from.
    recoveries: Cell<u32>,
}

/// A client: its number, and its connection.
struct Setter(usize, Connection);

impl Redis {
    fn new(program: PathBuf) -> Self {
        Self { program, recoveries: Cell::new(0) }
    }

    /// Starts a server, and makes a connection when the server answers.
    fn server(&self, place: &Place, is_stock: bool) -> Result<(Running, Connection), String> {
        let mut serve = if is_stock {
            place.stock(None, &self.program)
        } else {
            place.run(None, &self.program)
        };
        serve
            .args(["--port", "0", "--save", "", "--appendonly", "yes", "--unixsocket"])
            .arg(socket(place));
        serve.args(["--appendfsync", "always", "--dir"]).arg(place.mounted());
        let mut running = Running::new(serve.stdout(Stdio::null()));
        let mut connection = None;
        let mut has_ended = false;
        wait_for("an answer of the server", || {
            has_ended = running.child.try_wait().unwrap().is_some();
            let connected = connect(place).ok();
            connection = connected.filter(|_| !has_ended);
            let answer = connection.as_mut().map(|it| it.expect(&["PING"]));
            has_ended || answer.is_some_and(|answer| answer.is_ok())
        });
        let connection = connection.ok_or("the server does not start")?;
        Ok((running, connection))
    }
}

fn socket(place: &Place) -> PathBuf {
    place.memory().join("socket")
}

fn connect(place: &Place) -> Result<Connection, ServerError> {
    Connection::connect(&Address::Unix(socket(place)))
}

fn key(client: usize, number: u64) -> String {
    format!("key:{client}:{number}")
}

/// Values have many lengths, so that records end anywhere in a block.
fn value(number: u64) -> String {
    format!("{number}:{}", "v".repeat((number * 397 % 1500) as usize))
}

impl Program for Redis {
    const SIZE: u64 = 64 << 20;
    const CLIENTS: usize = 3;
    const WRITES: u64 = 70;
    const CUTS: usize = 8;

    fn start(&self, place: &Place) -> (Running, Vec<Box<dyn Client>>) {
        let (running, _) = self.server(place, false).unwrap();
        let client = |client| Box::new(Setter(client, connect(place).unwrap())) as _;
        (running, (0..Self::CLIENTS).map(client).collect())
    }

    fn recover(&self, place: &Place) -> Result<Vec<u64>, String> {
        // The short path has added zeros to the end of the server's append-only file. They have to
        // be cut off. `slimio shortcut run` does so for the server that it starts, and `slimio
        // shortcut repair` for the stock server. The recoveries alternate between the two.
        let is_stock = self.recoveries.replace(self.recoveries.get() + 1).is_multiple_of(2);
        if place.is_short() && is_stock {
            let mut repair = command(place.slimio());
            let log = place.mounted().join("appendonlydir/appendonly.aof.1.incr.aof");
            text(repair.args(["shortcut", "repair"]).arg(log))?;
        }
        let (_running, mut connection) = self.server(place, is_stock)?;
        let mut ask = |words: &[&str]| connection.expect(words).map_err(|it| it.to_string());
        let mut all = Vec::new();
        for client in 0..Self::CLIENTS {
            let mut number = 1;
            while ask(&["GET", &key(client, number)])? == Reply::Bulk(value(number).into()) {
                number += 1;
            }
            all.push(number - 1);
        }
        let (count, sum) = (ask(&["DBSIZE"])?, all.iter().sum::<u64>());
        if count == Reply::Integer(sum as i64) {
            Ok(all)
        } else {
            Err(format!("the clients have {all:?} keys, but DBSIZE replied {count:?}"))
        }
    }
}

impl Client for Setter {
    fn write(&mut self, number: u64) {
        self.1.expect(&["SET", &key(self.0, number), &value(number)]).unwrap();
    }
}

fn redis() -> Option<Redis> {
    let program = find_program("redis-server");
    is_installed(program.as_deref(), "redis-server").then(|| Redis::new(program.unwrap()))
}

/// The system's Valkey, or the one that `cargo x peers` gets.
fn valkey() -> Option<Redis> {
    let peer = || {
        let folder = slimio_host::process::target_dir();
        Some(folder.join("peers/valkey-9/server")).filter(|path: &PathBuf| Path::is_file(path))
    };
    let program = find_program("valkey-server").or_else(peer);
    is_installed(program.as_deref(), "valkey-server").then(|| Redis::new(program.unwrap()))
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
