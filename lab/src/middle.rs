//! What commands in the middle of a large list cost, within the command.

use crate::error::{BenchError, Result};
use crate::run::RunResult;
use crate::server::{Server, ServerConfig};
use crate::slowest::{Elements, fill};

/// How often each command runs.
const TIMES: u64 = 300;

/// Each command: the column's title, the metric, and its name in INFO.
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
    for number in 0..TIMES {
        let index = (count / 2 + number).to_string();
        client.expect(&["LINDEX", "l", &index])?;
        client.expect(&["LSET", "l", &index, "another"])?;
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
