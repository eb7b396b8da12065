//! `cargo x lab compare`: boots a virtual machine once, and there runs stock Redis and SlimIO in
//! turn on the same namespace. Each ratio that it reports is between two measurements of the same
//! round.

use std::fs;
use std::path::Path;
use std::time::Duration;

use slimio_host::Failure;
use slimio_host::process::{cargo, root, run, target_dir};

use crate::guest::{Guest, Task, said, unpack_results};
use crate::machine::{self, Plan, RESULTS};
use crate::namespaces::Namespace;
use crate::tables::{self, Measured};
use crate::tools::{self, Kernel, lab_dir};
use crate::{folder, names, rounds};

const SCRIPT: &str = include_str!("compare.sh");
const TIME_LIMIT: Duration = Duration::from_secs(1200);
/// Parameters of the script, besides the number of rounds.
const LOAD_SECONDS: u32 = 2;
const SNAPSHOT_KEYS: u32 = 40_000;
const SNAPSHOT_ROUNDS: usize = 3;
const TRACED_WRITES: u32 = 300;

/// Runs the whole comparison, and writes the tables to the lab's folder. The number of rounds is
/// the only argument, and may be left out.
pub(super) fn run_all(args: &[String]) -> Result<(), Failure> {
    let rounds = rounds(args, "compare")?;
    let tools = tools::install(Kernel::Cloud)?;
    let release = target_dir().join("release");
    let build = ["build", "--release", "--package", "slimio-cli", "--package", "slimio-lab"];
    run(&mut cargo(build))?;
    let build = ["build", "--release", "--package", "slimio-device", "--example", "write_time"];
    run(&mut cargo(build))?;
    let mut guest = Guest::new(&tools)?;
    for program in ["slimio", "slimio-lab", "examples/write_time"] {
        guest.program(&release.join(program))?;
    }
    for program in ["redis-server", "redis-cli", "mkfs.xfs"] {
        let path = tools::find(program).ok_or_else(|| format!("{program} is not installed"))?;
        guest.program(&path)?;
    }
    guest.program(&root().join("tests/lab/lab-test"))?;
    guest.optional_modules(&tools, &["xfs"])?;
    let folder = folder("compare")?;
    let namespaces = vec![Namespace::parse("PLAIN=2G")?];
    let plan = Plan::new(&tools, &folder, &namespaces, TIME_LIMIT);
    let script = format!(
        "rounds={rounds} load_seconds={LOAD_SECONDS} traced_writes={TRACED_WRITES} \
         snapshot_keys={SNAPSHOT_KEYS} snapshot_rounds={SNAPSHOT_ROUNDS}\n{SCRIPT}"
    );
    guest.finish(&plan.archive, &names(&namespaces), &Task::Script(script))?;
    let mut measured = Measured::default();
    let status = machine::run(&plan, &mut |line| {
        println!("{line}");
        measured.take(line);
    })?;
    let results = folder.join("results");
    unpack_results(&folder.join(RESULTS), &results)?;
    measured.take_traces(&results, rounds, TRACED_WRITES)?;
    if status != 0 || !measured.is_complete(rounds, rounds.min(SNAPSHOT_ROUNDS)) {
        let why =
            format!("the script failed, or a round lacks a measurement; see {}", results.display());
        return Err(why.into());
    }
    let text = tables::all(&measured).ok_or("a server or a way to write was not measured")?;
    println!("\n{text}");
    write(&lab_dir().join("compare.md"), &text)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| said(path, &error))
}
