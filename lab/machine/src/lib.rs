//! `cargo x lab`: runs programs in QEMU, on a real Linux with real NVMe namespaces.
#![expect(clippy::print_stdout, reason = "`cargo x lab` prints to a terminal")]

mod compare;
mod cpio;
mod drive;
mod fabrics;
mod fio;
mod guest;
mod machine;
mod modules;
mod namespaces;
mod power_cut;
mod qmp;
mod record;
mod rungs;
mod running;
mod steer;
mod suite;
mod tables;
pub mod tools;
mod trace;
mod trim;
mod verdicts;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use slimio_host::process::target_dir;
use slimio_host::report::Report;
use slimio_host::{Failure, is_ci};

use guest::{Guest, Task, quoted, said};
use machine::Plan;
use namespaces::{KINDS, Namespace};
pub use suite::Suite;
use tools::{Kernel, Tools, lab_dir};

const USAGE: &str =
    "cargo x lab [WORD]…    runs the sessions of tests/lab, or only those whose name contains a word
       cargo x lab --long     runs all sessions, also those that need the general kernel
       cargo x lab run [--namespace NAME[=SIZE]]… [--with FILE]… [--record NAME[=SIZE]]… [--seconds N]
                       [--kernel general] [--module NAME]… [--drive OPTIONS] -- CMD ARG…
       cargo x lab compare [ROUNDS]
       cargo x lab shortcut [ROUNDS]
       cargo x lab fabrics [ROUNDS]
       cargo x lab trim
       cargo x lab shell (the flags of run)";
const SECONDS_DEFAULT: u64 = 600;
const ROUNDS_DEFAULT: usize = 5;

/// Runs `cargo x lab` with these arguments.
pub fn verb(args: &[String]) -> Result<(), Failure> {
    match args.split_first() {
        Some((verb, rest)) if verb == "run" => Order::parse(rest)?.run(),
        Some((verb, rest)) if verb == "shell" => Order::parse(rest)?.shell(),
        Some((verb, rest)) if verb == "compare" => compare::run_all(rest),
        Some((verb, rest)) if verb == "shortcut" => rungs::run_all(rest),
        Some((verb, rest)) if verb == "fabrics" => fabrics::run_all(rest),
        Some((verb, rest)) if verb == "trim" => trim::run_all(rest),
        Some((flag, [])) if flag == "--long" => sessions(&[], true),
        Some((flag, _)) if flag.starts_with('-') => Err(help().into()),
        _ => sessions(args, false),
    }
}

/// Runs the sessions that [`Suite::prepare`] chooses.
fn sessions(words: &[String], is_long: bool) -> Result<(), Failure> {
    let mut report = Report::default();
    report.step("lab", |report| Suite::prepare(words, is_long, report)?.run(report));
    report.finish()
}

/// Reads the number of rounds, the only argument of the comparison `verb`. The default is
/// `ROUNDS_DEFAULT`.
fn rounds(args: &[String], verb: &str) -> Result<usize, Failure> {
    match args {
        [] => Ok(ROUNDS_DEFAULT),
        [rounds] => {
            rounds.parse().map_err(|_| format!("`{rounds}` is not a number of rounds").into())
        }
        _ => Err(format!("usage: cargo x lab {verb} [ROUNDS]").into()),
    }
}

/// Prepares the sessions that do not need the general kernel, as one part of a larger run. If the
/// lab can't be installed, the sessions are skipped, except in CI, where a missing lab is a
/// failure.
pub fn prepare(report: &mut Report) -> Result<Option<Suite>, Failure> {
    match tools::install(Kernel::Cloud) {
        Ok(_) => Suite::prepare(&[], false, report).map(Some),
        Err(Failure(why)) if !is_ci() => {
            report.skip(&format!("the lab: {why}"));
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

/// The usage, with a list of the namespaces.
pub fn help() -> String {
    let lines = KINDS.iter().map(|kind| format!("  {:<11} {}\n", kind.name, kind.doc));
    format!(
        "{USAGE}\n\nnamespaces (without --namespace and --record, the machine has all of them, with 1 GiB each):\n{}",
        lines.collect::<String>()
    )
}

/// The options of `run` and `shell`.
struct Order {
    namespaces: Vec<Namespace>,
    with: Vec<PathBuf>,
    kernel: Kernel,
    modules: Vec<String>,
    drive: Option<String>,
    time_limit: Duration,
    command: Vec<String>,
}

impl Order {
    fn parse(args: &[String]) -> Result<Self, Failure> {
        let mut order = Self {
            namespaces: Vec::new(),
            with: Vec::new(),
            kernel: Kernel::Cloud,
            modules: Vec::new(),
            drive: None,
            time_limit: Duration::from_secs(SECONDS_DEFAULT),
            command: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            if flag == "--" {
                order.command = args.cloned().collect();
                break;
            }
            let value = args.next().ok_or_else(|| format!("{flag} needs a value; {USAGE}"))?;
            match flag.as_str() {
                "--namespace" => order.namespaces.push(Namespace::parse(value)?),
                "--record" => {
                    let namespace = Namespace::parse(value)?;
                    order.namespaces.push(Namespace { recorded: true, ..namespace });
                }
                "--kernel" if value == "general" => order.kernel = Kernel::General,
                "--module" => order.modules.push(value.clone()),
                "--drive" => order.drive = Some(value.clone()),
                "--with" => order.with.push(built_or_given(value)),
                "--seconds" => {
                    let seconds = value.parse().map_err(|_| format!("{value} is not a number"))?;
                    order.time_limit = Duration::from_secs(seconds);
                }
                _ => return Err(format!("{flag} {value} is not known; {USAGE}").into()),
            }
        }
        if order.namespaces.is_empty() {
            order.namespaces = Namespace::all();
        }
        Ok(order)
    }

    fn run(&self) -> Result<(), Failure> {
        let (program, arguments) = self.command.split_first().ok_or(USAGE)?;
        let tools = tools::install(self.kernel)?;
        let mut guest = self.guest(&tools)?;
        let built = built_or_given(program);
        let mut line = quoted(program);
        if built.is_file() {
            guest.program(&built)?;
            line = quoted(&built.file_name().unwrap_or_default().to_string_lossy());
        }
        for argument in arguments {
            line += " ";
            line += &quoted(argument);
        }
        let folder = folder("run")?;
        let plan = self.plan(&tools, &folder, false);
        guest.finish(&plan.archive, &names(&self.namespaces), &Task::Script(line))?;
        let status = machine::run(&plan, &mut |line| println!("{line}"))?;
        guest::unpack_results(&folder.join(machine::RESULTS), &folder.join("results"))?;
        if status == 0 {
            return Ok(());
        }
        Err(format!("`{}` ended with {status} in the machine", self.command.join(" ")).into())
    }

    fn shell(&self) -> Result<(), Failure> {
        let tools = tools::install(self.kernel)?;
        let guest = self.guest(&tools)?;
        let folder = folder("shell")?;
        let plan =
            Plan { time_limit: Duration::from_secs(86_400), ..self.plan(&tools, &folder, true) };
        let welcome = "Each namespace has two devices. For PLAIN, $SLIMIO_NVME_PLAIN is the generic device, and \
            $SLIMIO_NVME_PLAIN_BLOCK is the block device.\r\nThe machine ends when this shell ends.\r\n";
        let task = Task::Shell { welcome: welcome.into() };
        guest.finish(&plan.archive, &names(&self.namespaces), &task)?;
        machine::run(&plan, &mut |_| {}).map(drop)
    }

    fn guest(&self, tools: &Tools) -> Result<Guest, Failure> {
        let mut guest = Guest::new(tools)?;
        for path in &self.with {
            guest.program(path)?;
        }
        let modules: Vec<&str> = self.modules.iter().map(String::as_str).collect();
        guest.optional_modules(tools, &modules)?;
        if self.drive.is_some() {
            guest.network(tools)?;
        }
        Ok(guest)
    }

    fn plan<'a>(&self, tools: &'a Tools, folder: &Path, interactive: bool) -> Plan<'a> {
        Plan {
            drive: self.drive.clone(),
            interactive,
            ..Plan::new(tools, folder, &self.namespaces, self.time_limit)
        }
    }
}

/// The path of the program that cargo has built with this name. If `program` is not a bare name, or
/// cargo has built no such program, returns `program` itself.
fn built_or_given(program: &str) -> PathBuf {
    let built = target_dir().join("debug").join(program);
    if !program.contains('/') && built.is_file() { built } else { program.into() }
}

fn names(namespaces: &[Namespace]) -> Vec<String> {
    namespaces.iter().map(|namespace| namespace.kind.name.to_owned()).collect()
}

/// Makes the folder `name` for one machine, and empties it if it exists.
fn folder(name: &str) -> Result<PathBuf, Failure> {
    let folder = lab_dir().join(name);
    drop(fs::remove_dir_all(&folder));
    fs::create_dir_all(&folder).map_err(|error| said(&folder, &error))?;
    Ok(folder)
}
