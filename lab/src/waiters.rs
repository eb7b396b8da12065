//! Many clients that wait in `BLPOP`: what it costs to serve them, and how much memory they take.

use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::client::{Client, Reply, encode};
use crate::error::{BenchError, Result};
use crate::proc::{CpuTime, pss_bytes};
use crate::run::RunResult;
use crate::server::{Server, ServerConfig};

/// Number of clients that wait.
const COUNT: usize = 10_000;
/// Number of elements that one pipeline pushes, each for a different client.
const BATCH: usize = 100;
/// Number of open files that this process and the server each need besides the clients'
/// connections.
const FILES_BESIDE: u64 = 200;

/// Lets clients wait, all for one key or each for its own key, and pushes elements for `duration`.
/// A client that is served waits again.
pub fn run(config: &ServerConfig, has_one_key: bool, duration: Duration) -> Result<RunResult> {
    allow_files(COUNT as u64 + FILES_BESIDE)?;
    let mut config = config.clone();
    config.extra.extend(["--maxclients".to_owned(), (COUNT + 10).to_string()]);
    let server = Server::start(&config)?;
    let mut result = RunResult::default();
    let mut pusher = server.client()?;
    let before = pss_bytes(server.pid())?;
    let mut clients = Vec::with_capacity(COUNT);
    for index in 0..COUNT {
        let mut client = server.client()?;
        client.send(&blpop(&key_of(has_one_key, index)))?;
        clients.push(client);
    }
    all_wait(&mut pusher)?;
    let memory = pss_bytes(server.pid())?.saturating_sub(before);
    result.metrics.insert("bytes_per_waiter", memory as f64 / COUNT as f64);

    let cpu = CpuTime::of_process(server.pid())?;
    let (began, mut pushed) = (Instant::now(), 0);
    while began.elapsed() < duration {
        // Clients that wait for one key are served in the order in which they wait.
        let range = pushed % COUNT..pushed % COUNT + BATCH;
        let mut requests = Vec::new();
        for index in range.clone() {
            encode(&[b"RPUSH", key_of(has_one_key, index).as_bytes(), b"v"], &mut requests);
        }
        pusher.send(&requests)?;
        for _ in range.clone() {
            expect(&pusher.receive()?, |reply| matches!(reply, Reply::Integer(_)))?;
        }
        for index in range {
            expect(&clients[index].receive()?, |reply| matches!(reply, Reply::Array(_)))?;
            clients[index].send(&blpop(&key_of(has_one_key, index)))?;
        }
        pushed += BATCH;
    }
    let elapsed = began.elapsed().as_secs_f64();
    let cpu = CpuTime::of_process(server.pid())?.since(cpu).total();
    result.metrics.insert("pushes_per_s", pushed as f64 / elapsed);
    result.metrics.insert("server_cpu_us_per_push", cpu.as_secs_f64() * 1e6 / pushed as f64);
    result.add_notes(&server)?;
    server.stop()?;
    Ok(result)
}

fn key_of(has_one_key: bool, index: usize) -> String {
    if has_one_key { "k".to_owned() } else { format!("k{index}") }
}

fn blpop(key: &str) -> Vec<u8> {
    let mut request = Vec::new();
    encode(&[b"BLPOP", key.as_bytes(), b"0"], &mut request);
    request
}

fn expect(reply: &Reply, is_right: impl Fn(&Reply) -> bool) -> Result<()> {
    if is_right(reply) {
        return Ok(());
    }
    Err(BenchError::Reply(format!("a push, or a client that waits, got the wrong reply {reply:?}")))
}

/// Waits until all clients wait.
fn all_wait(client: &mut Client) -> Result<()> {
    loop {
        let clients = client.info("clients")?;
        if clients.get("blocked_clients").is_some_and(|count| count.trim() == COUNT.to_string()) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Lets this process, and the servers that it starts, have `count` open files.
fn allow_files(count: u64) -> Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= count) {
        return Ok(());
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum }).map_err(|errno| {
        let hint = "raise the limit of open files (ulimit -n)";
        BenchError::Usage(format!(
            "{count} open files are needed, but the kernel refuses them ({errno}): {hint}"
        ))
    })
}
