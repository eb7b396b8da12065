//! The slowest single command while a data set grows. A command's work must not grow with the size
//! of the data set. The time of the slowest command shows whether it does.
//!
//! SlimIO itself measures the CPU time of its commands (`command-cpu-tracking`); stock Redis does
//! not. Both servers keep in `SLOWLOG` the commands that were slowest by the clock.

use std::ops::Range;
use std::time::Instant;

use crate::client::{Client, Reply, encode};
use crate::error::{BenchError, Result};
use crate::measure::Metrics;
use crate::persistence::Persistence;
use crate::request::RequestWriter;
use crate::run::{RunResult, preload};
use crate::server::{Server, ServerConfig, ServerKind};
use crate::snapshot::{Kind, take};
use crate::values::ValuePool;

/// The data that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grows {
    /// The keyspace: new keys are inserted.
    Keyspace,
    /// One hash. While a snapshot of the hash is taken, the hash is written to, and then expires or
    /// is deleted.
    Hash,
}

/// Size in bytes of a key's value, or of a field's value.
const VALUE_SIZE: usize = 64;
const HASH: &str = "hash";
const ELEMENTS_PER_COMMAND: u64 = 100;
/// Commands that are sent before the first reply is read.
const COMMANDS_IN_FLIGHT: u64 = 16;
/// Number of `HSET`s, each of one field, while a snapshot runs.
const WRITES: u64 = 20_000;
/// `SLOWLOG` keeps commands that take at least this many microseconds.
const KEPT_FROM_US: &str = "500";

/// Makes `count` keys or fields, and returns how long the slowest command took.
pub fn run(grows: Grows, config: &ServerConfig, count: u64, seed: u64) -> Result<RunResult> {
    let mut config = config.clone();
    let flags = ["--slowlog-max-len", "100000", "--slowlog-log-slower-than", KEPT_FROM_US];
    config.extra.extend(flags.map(str::to_owned));
    if config.kind == ServerKind::SlimIO {
        config.extra.extend(["--command-cpu-tracking", "yes"].map(str::to_owned));
    }
    let server = Server::start(&config)?;
    let mut result = RunResult::default();
    let began = Instant::now();
    match grows {
        Grows::Keyspace => {
            let writer = RequestWriter::new(ValuePool::new(VALUE_SIZE, 0.5, seed));
            preload(server.address(), count, &writer, seed)?;
        }
        Grows::Hash => {
            let was_running = hash(&server, count)?;
            result.metrics.insert("was_during_snapshot", f64::from(u8::from(was_running)));
        }
    }
    result.metrics.insert("seconds", began.elapsed().as_secs_f64());
    slowest(&server, &mut result.metrics)?;
    result.add_notes(&server)?;
    server.stop()?;
    Ok(result)
}

/// Fills a hash, begins a snapshot, writes to the hash, and removes the hash; all of this twice.
/// The hash is removed by expiry the first time, and by deletion the second time. Returns whether
/// both snapshots still ran after the hash had been removed.
fn hash(server: &Server, fields: u64) -> Result<bool> {
    let mut was_running = true;
    for expires in [true, false] {
        let mut client = server.client()?;
        let elements = Elements { key: HASH, range: 0..fields, value: Some(&[b'v'; VALUE_SIZE]) };
        fill(&mut client, "HSET", &elements)?;
        let mut watcher = server.client()?;
        let saving = std::thread::spawn(move || take(&mut watcher, Kind::Save));
        while !is_saving(&mut client)? && !saving.is_finished() {
            std::thread::yield_now();
        }
        write(&mut client, fields)?;
        if expires {
            client.expect(&["PEXPIRE", HASH, "1"])?;
            while client.expect(&["EXISTS", HASH])? != Reply::Integer(0) {}
        } else {
            client.expect(&["DEL", HASH])?;
        }
        was_running &= is_saving(&mut client)?;
        saving.join().expect("the thread that waits for a snapshot does not panic")?;
    }
    Ok(was_running)
}

/// Elements of a collection.
pub(crate) struct Elements<'a> {
    pub(crate) key: &'a str,
    /// The numbers of the elements. Each element's name contains its number.
    pub(crate) range: Range<u64>,
    /// The value of each field, if the elements are fields.
    pub(crate) value: Option<&'a [u8]>,
}

/// Makes the elements by `command`, as fast as possible.
pub(crate) fn fill(client: &mut Client, command: &str, elements: &Elements<'_>) -> Result<()> {
    let Range { start, end } = elements.range;
    let mut request = Vec::new();
    let per_batch = COMMANDS_IN_FLIGHT * ELEMENTS_PER_COMMAND;
    for first in (start..end).step_by(per_batch as usize) {
        request.clear();
        let mut count = 0;
        for from in (first..end.min(first + per_batch)).step_by(ELEMENTS_PER_COMMAND as usize) {
            let names: Vec<String> =
                (from..end.min(from + ELEMENTS_PER_COMMAND)).map(name).collect();
            let mut words: Vec<&[u8]> = vec![command.as_bytes(), elements.key.as_bytes()];
            for name in &names {
                words.push(name.as_bytes());
                words.extend(elements.value);
            }
            encode(&words, &mut request);
            count += 1;
        }
        client.send(&request)?;
        for _ in 0..count {
            if let Reply::Error(text) = client.receive()? {
                return Err(BenchError::Reply(format!("{command}: {text}")));
            }
        }
    }
    Ok(())
}

/// Writes to fields all over the hash.
fn write(client: &mut Client, fields: u64) -> Result<()> {
    for i in 0..WRITES {
        // The step is a prime number, and larger than any realistic number of fields. So no field
        // is written twice before all fields are written.
        let field = name(i.wrapping_mul(2_654_435_761) % fields);
        client.expect(&["HSET", HASH, &field, "written while a snapshot runs"])?;
    }
    Ok(())
}

/// The name of an element.
fn name(element: u64) -> String {
    format!("field:{element:012}")
}

fn is_saving(client: &mut Client) -> Result<bool> {
    Ok(Persistence::of(client)?.number("rdb_bgsave_in_progress")? != 0)
}

fn slowest(server: &Server, metrics: &mut Metrics) -> Result<()> {
    let mut client = server.client()?;
    if let Some(us) = client.info("slimio")?.get("command_cpu_us_max") {
        let us: f64 = us
            .trim()
            .parse()
            .map_err(|_| BenchError::Reply(format!("command_cpu_us_max is not a number: {us}")))?;
        metrics.insert("command_cpu_ms_max", us / 1000.0);
    }
    let Reply::Array(entries) = client.expect(&["SLOWLOG", "GET", "-1"])? else {
        return Err(BenchError::Reply("the reply to SLOWLOG GET is not an array".into()));
    };
    let micros = entries.iter().filter_map(|entry| match entry {
        Reply::Array(fields) => match fields.get(2) {
            Some(Reply::Integer(us)) => Some(*us),
            _ => None,
        },
        _ => None,
    });
    let us = micros.max().unwrap_or(0);
    metrics.insert("command_ms_max_by_clock", us as f64 / 1000.0);
    Ok(())
}
