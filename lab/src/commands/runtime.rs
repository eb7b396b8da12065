//! `slimio-lab runtime`: throughput over time on an emulated SSD, with and without data placement,
//! as a table and pictures.

use std::fs;
use std::path::PathBuf;

use clap::Args;

use crate::environment::Environment;
use crate::error::{BenchError, Doing as _, Result};
use crate::recorder::{FileSystemKind, can_record};
use crate::runtime::{
    Drive, Host, Outcome, Setup, chart, folder_in_memory, middle_rounds, remove, table,
};
use crate::server::{Policy, find_program};

/// The help text of `slimio-lab runtime`.
pub const HELP: &str = include_str!("../../help/runtime.txt");

/// The highest WAF that SlimIO with data placement may have.
const WAF_MAX: f64 = 1.005;

/// A drive, and the servers that run on it, one after the other.
struct Case {
    name: &'static str,
    spare_percent: u32,
    background_percent: u32,
    fill_percent: u64,
    hosts: &'static [Host],
}

/// `paper` is the SlimIO paper's drive. `full` has less spare NAND. The data fills this drive as
/// far as SlimIO allows; a file system would allow less. `lazy` is like `full`, but its collector
/// begins later, when fewer units are free.
const CASES: &[Case] = &[
    Case {
        name: "paper",
        spare_percent: 25,
        background_percent: 25,
        fill_percent: 100,
        hosts: &[
            Host::WithPlacement,
            Host::WithoutPlacement,
            Host::Stock { file_system: FileSystemKind::Ext4, discard: false },
            Host::Stock { file_system: FileSystemKind::Ext4, discard: true },
        ],
    },
    Case {
        name: "full",
        spare_percent: 15,
        background_percent: 25,
        fill_percent: 115,
        hosts: &[Host::WithPlacement, Host::WithoutPlacement],
    },
    Case {
        name: "lazy",
        spare_percent: 15,
        background_percent: 10,
        fill_percent: 115,
        hosts: &[Host::WithPlacement, Host::WithoutPlacement],
    },
];

/// The flags.
#[derive(Debug, Args)]
pub struct Runtime {
    #[arg(long)]
    slimio: Option<PathBuf>,
    #[arg(long)]
    redis: Option<PathBuf>,
    #[arg(long, default_value = "./runtime")]
    out: PathBuf,
    #[arg(long)]
    folder: Option<PathBuf>,
    #[arg(long)]
    size: Option<u64>,
    #[arg(long)]
    ru: Option<u64>,
    #[arg(long)]
    repetitions: Option<u32>,
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    #[arg(long)]
    drive: Option<String>,
    #[arg(long)]
    spare: Option<u32>,
    #[arg(long)]
    background: Option<u32>,
    #[arg(long)]
    fill: Option<u64>,
    #[arg(long)]
    snapshot_rate: Option<String>,
    #[arg(long, value_parser = Policy::named)]
    policy: Option<Policy>,
    #[arg(long, default_value = "")]
    host: String,
    #[arg(long)]
    quick: bool,
}

/// Runs the experiment. Returns the text to print.
pub fn run(args: &Runtime) -> Result<String> {
    let is_quick = args.quick;
    let missing =
        || BenchError::Usage("slimio is not installed; give its path with --slimio".into());
    let slimio = args.slimio.clone().or_else(|| find_program("slimio"));
    let redis = args.redis.clone().or_else(|| find_program("redis-server"));
    let folder = args.folder.clone().unwrap_or_else(folder_in_memory);
    let mut experiment = Experiment {
        slimio: slimio.ok_or_else(missing)?,
        redis,
        out: args.out.clone(),
        folder: folder.join(format!("slimio-runtime-{}", std::process::id())),
        drive_bytes: args.size.unwrap_or(if is_quick { 384 } else { 2880 }) << 20,
        repetitions: args.repetitions.unwrap_or(if is_quick { 2 } else { 4 }),
        snapshot_rate: args.snapshot_rate.clone(),
        machine: String::new(),
        outcomes: Vec::new(),
        skipped: None,
    };
    let only_drive = args.drive.as_deref().or(is_quick.then_some("paper"));
    let unit_mib = args.ru.or(is_quick.then_some(8));
    let only_policy = args.policy.or(is_quick.then_some(Policy::EverySec));

    fs::create_dir_all(&experiment.out).doing(format!("making {}", experiment.out.display()))?;
    experiment.machine = machine(&experiment, is_quick)?;
    for case in CASES.iter().filter(|case| only_drive.is_none_or(|it| it == case.name)) {
        let drive = Drive {
            name: case.name,
            size_bytes: experiment.drive_bytes,
            unit_bytes: unit_mib.map(|mib| mib << 20),
            spare_percent: args.spare.unwrap_or(case.spare_percent),
            background_percent: args.background.unwrap_or(case.background_percent),
            fill_percent: args.fill.unwrap_or(case.fill_percent),
        };
        let policies = [Policy::EverySec, Policy::Always];
        for policy in policies.into_iter().filter(|it| only_policy.is_none_or(|only| only == *it)) {
            let hosts = case.hosts.iter().copied();
            let mut hosts: Vec<Host> = hosts
                .filter(|host| {
                    host.to_string().contains(&args.host) && !(is_quick && host.is_stock())
                })
                .collect();
            for _ in 0..args.rounds {
                for &host in &hosts {
                    experiment.run(host, drive, policy)?;
                }
                // The same host must not come first in every round.
                hosts.reverse();
            }
        }
    }
    if is_quick {
        experiment.check()?;
    }
    let skipped = experiment.skipped.map(|why| format!("SKIPPED: stock Redis: {why}\n"));
    Ok(table(&experiment.outcomes) + &experiment.machine + &skipped.unwrap_or_default())
}

/// The line below the table: facts about the machine and the programs, because the numbers depend
/// on them, too.
fn machine(experiment: &Experiment, is_quick: bool) -> Result<String> {
    let mut environment = Environment::of(&experiment.out)?;
    if let Some(redis) = &experiment.redis {
        environment.add_server("redis", redis);
    }
    if !is_quick {
        environment.add_other_load()?;
    }
    let wanted = ["kernel", "cpu", "cores", "memory", "commit", "redis", "other_work_before"];
    let facts = environment.facts().iter().filter(|(name, _)| wanted.contains(&name.as_str()));
    let facts: Vec<String> = facts.map(|(name, text)| format!("{name}: {text}")).collect();
    Ok(format!("\n{}\n", facts.join("; ")))
}

struct Experiment {
    slimio: PathBuf,
    redis: Option<PathBuf>,
    out: PathBuf,
    folder: PathBuf,
    drive_bytes: u64,
    repetitions: u32,
    snapshot_rate: Option<String>,
    /// The line about the machine that the experiment runs on.
    machine: String,
    outcomes: Vec<Outcome>,
    /// The reason why stock Redis was left out, if it was.
    skipped: Option<String>,
}

impl Experiment {
    fn run(&mut self, host: Host, drive: Drive, policy: Policy) -> Result<()> {
        let program = match (host.is_stock(), &self.redis, can_record()) {
            (false, ..) => self.slimio.clone(),
            (true, Some(redis), Ok(())) => redis.clone(),
            (true, None, _) => {
                self.skipped = Some("redis-server is not installed".into());
                return Ok(());
            }
            (true, _, Err(why)) => {
                self.skipped = Some(format!("no block device can be made on this machine: {why}"));
                return Ok(());
            }
        };
        eprintln!("running {host} on the {} drive with appendfsync {policy}", drive.name);
        let (repetitions, snapshot_rate) = (self.repetitions, self.snapshot_rate.clone());
        let setup = Setup { host, policy, drive, repetitions, snapshot_rate };
        let outcome = setup.run(&program, &self.folder);
        remove(&self.folder)?;
        self.outcomes.push(outcome?);
        // The results so far are written to files now, because the next run may fail.
        self.write(drive, policy)
    }

    fn write(&self, drive: Drive, policy: Policy) -> Result<()> {
        let path = self.out.join("runtime.md");
        let text = table(&self.outcomes) + &self.machine;
        fs::write(&path, text).doing(format!("writing {}", path.display()))?;
        let is_shown = |outcome: &&Outcome| {
            outcome.setup.policy == policy && outcome.setup.drive.name == drive.name
        };
        let shown: Vec<&Outcome> =
            middle_rounds(&self.outcomes).into_iter().filter(is_shown).collect();
        let path = self.out.join(format!("runtime-{}-{policy}.svg", drive.name));
        fs::write(&path, chart(&shown).svg()).doing(format!("writing {}", path.display()))
    }

    /// Checks that the collector copies hardly anything with data placement. How much it copies
    /// without data placement is not checked, because that depends on this machine's speed.
    fn check(&self) -> Result<()> {
        for outcome in self.outcomes.iter().filter(|it| it.setup.host == Host::WithPlacement) {
            let waf = outcome.waf();
            if waf > WAF_MAX {
                let text = format!("the WAF of SlimIO with FDP is {waf:.4}, above {WAF_MAX}");
                return Err(BenchError::Broken(text));
            }
        }
        Ok(())
    }
}
