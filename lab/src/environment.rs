//! What a result depends on besides the servers: kernel, CPU, file system, device.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::block::BlockDevice;
use crate::error::{Doing, Result};
use crate::proc::CpuTime;

/// Before a run, the machine's other load is watched for this long.
pub const BUSY_LOOK: Duration = Duration::from_millis(500);
/// If other work keeps more than this number of cores busy, the results are worth little.
const BUSY_CORES_MAX: f64 = 0.2;
const UNKNOWN: &str = "unknown";

/// The machine, and the file system where the servers keep their data, as texts for people.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// The name and the value of each fact, in the order to show them.
    facts: Vec<(String, String)>,
}

impl Environment {
    /// Looks at the machine and at the file system of `directory`, which must exist.
    pub fn of(directory: &Path) -> Result<Self> {
        let mount = Mount::of(directory)?;
        let device = BlockDevice::below(directory)?;
        let queue = |name: &str| {
            device.as_ref().and_then(|device| device.queue(name)).unwrap_or_else(|| UNKNOWN.into())
        };
        let device_name =
            device.as_ref().map_or_else(|| "no single device".to_owned(), BlockDevice::name);
        let discard = if mount.has_option("discard") { "on" } else { "off" };
        let commit = first_line(Command::new("git").args(["rev-parse", "--short=12", "HEAD"]));
        let facts = [
            ("kernel", read_line("/proc/sys/kernel/osrelease")),
            ("cpu", cpu()),
            ("cores", std::thread::available_parallelism().map_or(0, usize::from).to_string()),
            ("memory", memory()),
            ("file_system", mount.kind.clone()),
            ("journal", mount.journal(&device_name)),
            ("discard", discard.to_owned()),
            ("mount_options", mount.options.clone()),
            ("device", device_name),
            ("write_cache", queue("write_cache")),
            ("fua", queue("fua")),
            ("scheduler", queue("scheduler")),
            ("commit", commit.unwrap_or_else(|| UNKNOWN.into())),
        ];
        Ok(Self { facts: facts.map(|(name, text)| (name.to_owned(), text)).into() })
    }

    /// Adds how busy the machine is with other work. Call this while no server or load of this run
    /// is active. The call takes [`BUSY_LOOK`].
    pub fn add_other_load(&mut self) -> Result<()> {
        let before = CpuTime::of_machine()?;
        thread::sleep(BUSY_LOOK);
        let busy = CpuTime::of_machine()?.since(before).total();
        let cores = busy.as_secs_f64() / BUSY_LOOK.as_secs_f64();
        if cores > BUSY_CORES_MAX {
            eprintln!("{cores:.1} cores are busy with other work: expect noisy results");
        }
        self.facts.push(("other_work_before".to_owned(), format!("{cores:.2} cores busy")));
        Ok(())
    }

    /// Adds the version of a server's program, as a fact called `name`.
    pub fn add_server(&mut self, name: &str, program: &Path) {
        let version = first_line(Command::new(program).arg("--version"));
        self.facts.push((name.to_owned(), version.unwrap_or_else(|| UNKNOWN.into())));
    }

    /// The name and the value of each fact, in the order to show them.
    pub fn facts(&self) -> &[(String, String)] {
        &self.facts
    }

    /// All facts as one JSON object.
    pub fn to_json(&self) -> Value {
        let facts = self.facts.iter();
        Value::Object(
            facts.map(|(name, text)| (name.clone(), text.clone().into())).collect::<Map<_, _>>(),
        )
    }
}

/// A line of `/proc/self/mountinfo`.
struct Mount {
    kind: String,
    options: String,
}

impl Mount {
    fn of(directory: &Path) -> Result<Self> {
        let directory = fs::canonicalize(directory).doing("looking for the file system")?;
        let text = fs::read_to_string("/proc/self/mountinfo").doing("reading the mounts")?;
        // The directory's file system has the longest mount point above the directory. If several
        // file systems have the same mount point, the last one mounted covers the others.
        let best = text
            .lines()
            .filter_map(|line| line.split_once(" - "))
            .filter_map(|(place, what)| Some((place.split(' ').nth(4)?, place, what)))
            .filter(|(point, ..)| directory.starts_with(point))
            .max_by_key(|(point, ..)| point.len());
        let Some((_, place, what)) = best else {
            return Ok(Self { kind: UNKNOWN.into(), options: UNKNOWN.into() });
        };
        let fields: Vec<&str> = what.split(' ').collect();
        let options = format!(
            "{},{}",
            place.split(' ').nth(5).unwrap_or_default(),
            fields.get(2).unwrap_or(&"")
        );
        Ok(Self { kind: fields.first().unwrap_or(&UNKNOWN).to_string(), options })
    }

    fn has_option(&self, name: &str) -> bool {
        self.options.split(',').any(|option| option == name)
    }

    fn journal(&self, device_name: &str) -> String {
        if !matches!(self.kind.as_str(), "ext4" | "ext3") {
            return format!("part of {}", self.kind);
        }
        // A journal in use has a directory `<device>-<inode>` in `/proc/fs/jbd2`.
        let prefix = format!("{device_name}-");
        let journals = fs::read_dir("/proc/fs/jbd2").into_iter().flatten().flatten();
        let here = journals
            .into_iter()
            .any(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
        let mode = self.options.split(',').find_map(|option| option.strip_prefix("data="));
        match (here, mode) {
            (false, _) => "none".to_owned(),
            (true, mode) => format!("yes, data={}", mode.unwrap_or("ordered")),
        }
    }
}

fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let model = field("model name").unwrap_or_else(|| UNKNOWN.into());
    let virtual_machine = field("flags").is_some_and(|flags| flags.contains(" hypervisor"));
    if virtual_machine { format!("{model} (virtual machine)") } else { model }
}

fn memory() -> String {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok());
    kib.map_or_else(|| UNKNOWN.into(), |kib| format!("{:.1} GiB", kib as f64 / f64::from(1 << 20)))
}

fn read_line(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| UNKNOWN.into(), |text| text.trim().to_owned())
}

fn first_line(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_named() {
        let environment = Environment::of(Path::new("/proc")).unwrap();
        let fact = |name| {
            let mut facts = environment.facts().iter();
            facts.find(|(fact, _)| *fact == name).map(|(_, text)| text.clone()).unwrap()
        };
        assert_eq!(fact("file_system"), "proc");
        assert_eq!(fact("device"), "no single device");
        assert!(fact("kernel").contains('.'), "{}", fact("kernel"));
        assert_ne!(fact("cores"), "0");
    }
}
