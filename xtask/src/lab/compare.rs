//! `cargo x lab compare`: stock Redis and SlimIO on the same namespace in one boot, as ratios.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::guest::{Guest, Task, said, unpack_results};
use super::machine::{self, Plan, RESULTS};
use super::namespaces::Namespace;
use super::tools::{self, lab_dir};
use super::{MEMORY_MIB, folder, names};
use crate::Failure;
use crate::process::{cargo, root, run, target_dir};

const SCRIPT: &str = include_str!("compare.sh");
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// What everything is a ratio of.
const BASE: &str = "stock-ext4";
const SERVERS: usize = 5;

#[derive(Debug, PartialEq)]
struct Row {
    name: String,
    clients: u64,
    rate: f64,
    cpu_us: f64,
    calls: f64,
}

/// Runs all servers and writes the table to the lab's folder.
pub(super) fn run_all() -> Result<(), Failure> {
    let tools = tools::install()?;
    run(&mut cargo([
        "build",
        "--release",
        "--package",
        "slimio-cli",
        "--package",
        "slimio-bench",
    ]))?;
    let mut guest = Guest::new(&tools)?;
    for program in ["slimio", "slimio-bench"] {
        guest.program(&target_dir().join("release").join(program))?;
    }
    for program in ["redis-server", "redis-cli", "mkfs.xfs"] {
        let path = tools::find(program).ok_or_else(|| format!("{program} is not installed"))?;
        guest.program(&path)?;
    }
    guest.program(&root().join("tests/lab/lab-test"))?;
    guest.optional_modules(&tools, &["lib/libcrc32c", "fs/xfs/xfs"])?;
    let folder = folder("compare")?;
    let namespaces = vec![Namespace::parse("PLAIN=2G")?];
    let plan = Plan {
        tools: &tools,
        archive: folder.join("archive"),
        folder: folder.clone(),
        namespaces: namespaces.clone(),
        memory_mib: MEMORY_MIB,
        time_limit: TIME_LIMIT,
        keep_flushes: false,
        interactive: false,
    };
    guest.finish(&plan.archive, &names(&namespaces), &Task::Script(SCRIPT.into()))?;
    let mut rows = Vec::new();
    let status = machine::run(&plan, &mut |line| {
        println!("{line}");
        rows.extend(parse_row(line));
    })?;
    unpack_results(&folder.join(RESULTS), &folder.join("results"))?;
    if status != 0 || rows.len() != 2 * SERVERS {
        let logs = folder.join("results");
        return Err(format!("not every server was measured; see {}", logs.display()).into());
    }
    write_table(&rows, &lab_dir().join("compare.md"))
}

/// `row NAME CLIENTS RATE CPU CALLS`
fn parse_row(line: &str) -> Option<Row> {
    let mut words = line.strip_prefix("row ")?.split_whitespace();
    let name = words.next()?.to_owned();
    let clients = words.next()?.parse().ok()?;
    let mut number = || words.next()?.parse::<f64>().ok();
    Some(Row { name, clients, rate: number()?, cpu_us: number()?, calls: number()? })
}

fn write_table(rows: &[Row], path: &Path) -> Result<(), Failure> {
    let table = table(rows).ok_or_else(|| format!("nothing to compare with: no {BASE}"))?;
    println!("\n{table}");
    fs::write(path, table).map_err(|error| said(path, &error))
}

/// Ratios to the base with as many clients. `None` without it.
fn table(rows: &[Row]) -> Option<String> {
    let mut lines = vec![
        "| server, `always` | clients | writes/s | CPU per write | system calls per write |".into(),
        "|---|---|---|---|---|".to_owned(),
    ];
    for row in rows {
        let base = rows.iter().find(|base| base.name == BASE && base.clients == row.clients)?;
        lines.push(format!(
            "| {} | {} | {:.2} × | {:.2} × | {:.2} |",
            row.name,
            row.clients,
            row.rate / base.rate,
            row.cpu_us / base.cpu_us,
            row.calls
        ));
    }
    Some(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_ratios_to_stock_with_as_many_clients() {
        let said = ["row stock-ext4 50 1000 200 3.00", "noise", "row slimio-block 50 2500 50 0.40"];
        let rows: Vec<Row> = said.iter().filter_map(|line| parse_row(line)).collect();
        let table = table(&rows).unwrap();
        assert!(table.contains("| slimio-block | 50 | 2.50 × | 0.25 × | 0.40 |"), "{table}");
        assert!(super::table(&rows[1..]).is_none());
    }
}
