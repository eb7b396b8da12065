//! Measures how long commands on the middle of a large list take. The times are the server's own:
//! they leave out the network and the clients.

use crate::client::{Reply, encode};
use crate::error::{BenchError, Result};
use crate::run::RunResult;
use crate::server::{Server, ServerConfig};
use crate::slowest::{Elements, fill};

/// How often each command runs.
const TIMES: u64 = 10_000;
/// Requests that are sent before the first reply is read. If each request waited for the reply
/// before it, the server would sleep in between. The time would then also contain the cost of cold
/// caches after each sleep.
const PIPELINE: u64 = 100;

/// Each command: the column's title, the metric, and the command's name in INFO.
pub const COMMANDS: &[(&str, &str, &str)] =
    &[("LINDEX", "us_per_lindex", "cmdstat_lindex"), ("LSET", "us_per_lset", "cmdstat_lset")];

/// Makes a list of `count` elements, and reads and writes elements around its middle. The servers
/// themselves measure the time within the commands.
pub fn run(config: &ServerConfig, count: u64) -> Result<RunResult> {
    let server = Server::start(config)?;
    let mut result = RunResult::default();
    let mut client = server.client()?;
    fill(&mut client, "RPUSH", &Elements { key: "l", range: 0..count, value: None })?;
    client.expect(&["CONFIG", "RESETSTAT"])?;
    for words in [&["LINDEX", "l"][..], &["LSET", "l"]] {
        for first in (0..TIMES).step_by(PIPELINE as usize) {
            let mut requests = Vec::new();
            for number in first..first + PIPELINE {
                // The indexes are in the middle tenth of the list.
                let from_middle = number.wrapping_mul(2_654_435_761) % (count / 10).max(1);
                let index = (count / 2 - count / 20 + from_middle).to_string();
                let mut request = vec![words[0].as_bytes(), words[1].as_bytes(), index.as_bytes()];
                if words[0] == "LSET" {
                    request.push(b"another");
                }
                encode(&request, &mut requests);
            }
            client.send(&requests)?;
            for _ in 0..PIPELINE {
                if let Reply::Error(text) = client.receive()? {
                    return Err(BenchError::Reply(format!("{}: {text}", words[0])));
                }
            }
        }
    }
    let stats = client.info("commandstats")?;
    for (_, metric, name) in COMMANDS {
        let line = stats.get(*name).map_or("", |line| line.trim());
        let us = line.split(',').find_map(|field| field.strip_prefix("usec_per_call="));
        let us = us.and_then(|us| us.parse::<f64>().ok());
        let us = us.ok_or_else(|| BenchError::Reply(format!("{name}: {line}")))?;
        result.metrics.insert(metric, us);
    }
    result.add_notes(&server)?;
    server.stop()?;
    Ok(result)
}
