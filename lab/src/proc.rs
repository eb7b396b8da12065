//! What `/proc` says of a process and of the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{BenchError, Doing, Result};

/// CPU time used, as the kernel accounts for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// In user mode.
    pub user: Duration,
    /// In the kernel on the process's behalf.
    pub system: Duration,
}

impl CpuTime {
    /// Of all threads of a process, ended ones and io_uring workers included, and of the children it
    /// has waited for. In steps of 10 ms. Work that the kernel does in its own threads (writeback,
    /// block completions, other interrupts) is not in it: see [`CpuTime::of_machine`].
    pub fn of_process(pid: u32) -> Result<Self> {
        let fields = stat_fields(&format!("/proc/{pid}"))?;
        Ok(Self { user: ticks(fields[11] + fields[13]), system: ticks(fields[12] + fields[14]) })
    }

    /// Of this process, without its children.
    pub fn of_self() -> Result<Self> {
        let fields = stat_fields("/proc/self")?;
        Ok(Self { user: ticks(fields[11]), system: ticks(fields[12]) })
    }

    /// Of the children that this process has waited for.
    pub fn of_reaped_children() -> Result<Self> {
        let fields = stat_fields("/proc/self")?;
        Ok(Self { user: ticks(fields[13]), system: ticks(fields[14]) })
    }

    /// Of everything on the machine: every process, the kernel's own threads and interrupts.
    pub fn of_machine() -> Result<Self> {
        let text = read("/proc/stat")?;
        let line = text.lines().next().unwrap_or_default();
        let fields: Vec<u64> =
            line.split_whitespace().skip(1).map(|field| field.parse().unwrap_or(0)).collect();
        if fields.len() < 7 {
            return Err(BenchError::Server(format!("cannot read /proc/stat: {line}")));
        }
        // user nice system idle iowait irq softirq
        Ok(Self {
            user: ticks(fields[0] + fields[1]),
            system: ticks(fields[2] + fields[5] + fields[6]),
        })
    }

    /// User and system time together.
    pub fn total(self) -> Duration {
        self.user + self.system
    }

    /// What was used since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
        }
    }
}

/// What a thread or process did with its time since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    /// On a core.
    pub cpu: CpuTime,
    /// Ready, while others had the cores; zero where the kernel does not say.
    pub core_wait: Duration,
}

impl RunTime {
    /// Of a process of one thread.
    pub fn of_process(pid: u32) -> Result<Self> {
        Self::below(&format!("/proc/{pid}"))
    }

    /// The sum over the threads of a process whose names begin with `name`; `None` without one.
    pub fn of_threads(pid: u32, name: &str) -> Result<Option<Self>> {
        let mut sum: Option<Self> = None;
        for thread in numbered_entries(&format!("/proc/{pid}/task"))? {
            let directory = format!("/proc/{pid}/task/{thread}");
            // A thread may end between two looks.
            let comm = fs::read_to_string(format!("{directory}/comm")).unwrap_or_default();
            if comm.starts_with(name) {
                let thread = Self::below(&directory)?;
                sum = Some(sum.map_or(thread, |sum| sum.and(thread)));
            }
        }
        Ok(sum)
    }

    fn below(directory: &str) -> Result<Self> {
        let fields = stat_fields(directory)?;
        let cpu = CpuTime { user: ticks(fields[11]), system: ticks(fields[12]) };
        let schedule = fs::read_to_string(format!("{directory}/schedstat")).unwrap_or_default();
        let waited_ns = schedule.split_whitespace().nth(1).and_then(|text| text.parse().ok());
        Ok(Self { cpu, core_wait: Duration::from_nanos(waited_ns.unwrap_or(0)) })
    }

    /// The sum of both.
    fn and(self, other: Self) -> Self {
        let cpu = CpuTime {
            user: self.cpu.user + other.cpu.user,
            system: self.cpu.system + other.cpu.system,
        };
        Self { cpu, core_wait: self.core_wait + other.core_wait }
    }

    /// What was done since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        let core_wait = self.core_wait.saturating_sub(earlier.core_wait);
        Self { cpu: self.cpu.since(earlier.cpu), core_wait }
    }
}

/// What the threads of a process that are alive have used since they began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadsUse {
    /// CPU time, to the nanosecond. What the kernel does in threads of its own is not in it.
    pub cpu: Duration,
    /// How often a thread lost its core, voluntarily or not.
    pub switches: u64,
}

impl ThreadsUse {
    /// Of the process's threads and those that io_uring has made for it.
    pub fn of_process(pid: u32) -> Result<Self> {
        let mut sum = Self::default();
        for thread in numbered_entries(&format!("/proc/{pid}/task"))? {
            let directory = format!("/proc/{pid}/task/{thread}");
            // A thread may end between two looks.
            let schedule = fs::read_to_string(format!("{directory}/schedstat")).unwrap_or_default();
            let status = fs::read_to_string(format!("{directory}/status")).unwrap_or_default();
            let cpu_ns = schedule.split_whitespace().next().and_then(|text| text.parse().ok());
            sum.cpu += Duration::from_nanos(cpu_ns.unwrap_or(0));
            sum.switches += switches(&status);
        }
        Ok(sum)
    }

    /// What was used since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            switches: self.switches.saturating_sub(earlier.switches),
        }
    }
}

/// `voluntary_ctxt_switches` and `nonvoluntary_ctxt_switches` of `/proc/PID/status`.
fn switches(status: &str) -> u64 {
    let lines = status.lines().filter_map(|line| line.split_once("_ctxt_switches:"));
    lines.map(|(_, count)| count.trim().parse().unwrap_or(0)).sum()
}

/// Processes that `pid` has started and not yet waited for.
pub fn children(pid: u32) -> Result<Vec<u32>> {
    let mut children = numbered_entries("/proc")?;
    // A process that is gone by now is nobody's child.
    children.retain(|child| {
        stat_fields(&format!("/proc/{child}"))
            .is_ok_and(|fields| fields.get(1) == Some(&u64::from(pid)))
    });
    Ok(children)
}

/// Files that the process has open although they were deleted, so that their space is not free yet.
/// Shared memory, whose files seem to lie in `/`, is left out.
pub fn deleted_files(pid: u32) -> Result<Vec<PathBuf>> {
    const DELETED: &str = " (deleted)";
    let folder = format!("/proc/{pid}/fd");
    let entries = fs::read_dir(&folder).doing(format!("listing {folder}"))?.flatten();
    // A file that was closed meanwhile has no link any more.
    let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    let names = links.filter_map(|link| link.to_str()?.strip_suffix(DELETED).map(PathBuf::from));
    Ok(names.filter(|path| path.parent() != Some(Path::new("/"))).collect())
}

fn numbered_entries(directory: &str) -> Result<Vec<u32>> {
    let entries = fs::read_dir(directory).doing(format!("listing {directory}"))?.flatten();
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Fields of `stat` in `/proc/PID` or `/proc/PID/task/TID` from the state on, so index 11 is
/// `utime`, 13 `cutime`; a field that is no number is 0.
fn stat_fields(directory: &str) -> Result<Vec<u64>> {
    let text = read(&format!("{directory}/stat"))?;
    // The name in parentheses may hold anything, a parenthesis too.
    let after_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<u64> =
        after_name.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
    if fields.len() < 15 {
        return Err(BenchError::Server(format!("cannot read {directory}/stat: {text}")));
    }
    Ok(fields)
}

fn ticks(count: u64) -> Duration {
    let per_s = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_nanos(count * (1_000_000_000 / per_s))
}

/// Proportional set size in bytes: memory of the process, shared pages counted by their share.
pub fn pss_bytes(pid: u32) -> Result<u64> {
    let text = read(&format!("/proc/{pid}/smaps_rollup"))?;
    field_kib(&text, "Pss:")
        .map(|kib| kib * 1024)
        .ok_or_else(|| BenchError::Server("smaps_rollup has no Pss".into()))
}

/// Bytes that the process caused to be written to storage; `None` where the kernel does not say.
pub fn written_bytes(pid: u32) -> Option<u64> {
    field_kib(&read(&format!("/proc/{pid}/io")).ok()?, "write_bytes:")
}

fn field_kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).doing(format!("reading {path}"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_deleted_file_is_there_until_it_is_closed() {
        let path = std::env::temp_dir().join(format!("slimio-lab-deleted-{}", std::process::id()));
        let file = fs::File::create(&path).unwrap();
        let is_deleted = || deleted_files(std::process::id()).unwrap().contains(&path);
        assert!(!is_deleted());
        fs::remove_file(&path).unwrap();
        assert!(is_deleted());
        drop(file);
        assert!(!is_deleted());
    }

    #[test]
    fn work_shows_as_cpu_time() {
        let before = CpuTime::of_self().unwrap();
        let machine_before = CpuTime::of_machine().unwrap();
        let mut x = 1u64;
        while CpuTime::of_self().unwrap().since(before).total() < Duration::from_millis(50) {
            for _ in 0..100_000 {
                x = crate::rng::mix64(x);
            }
        }
        assert_ne!(x, 0);
        let machine = CpuTime::of_machine().unwrap().since(machine_before);
        assert!(machine.total() >= Duration::from_millis(30), "{machine:?}");
    }

    /// In a process of its own: the use of a thread is gone when it ends, and threads of other
    /// tests end at any time.
    #[test]
    fn work_and_sleep_show_in_the_use_of_threads() {
        let script =
            "read go; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo done; read end";
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let before = ThreadsUse::of_process(shell.id()).unwrap();
        let mut orders = shell.stdin.take().unwrap();
        orders.write_all(b"go\n").unwrap();
        let mut said = [0; 5];
        shell.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        let use_so_far = || ThreadsUse::of_process(shell.id()).unwrap().since(before);
        let deadline = Instant::now() + Duration::from_secs(20);
        // Soon it waits for the next order.
        while use_so_far().switches == 0 && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let used = use_so_far();
        drop(orders);
        shell.wait().unwrap();
        assert_eq!(&said, b"done\n");
        assert!(used.cpu >= Duration::from_millis(10), "{used:?}");
        assert!(used.switches > 0, "{used:?}");
        let status = "x: 1\nvoluntary_ctxt_switches:\t30\nnonvoluntary_ctxt_switches:\t12\n";
        assert_eq!(switches(status), 42);
    }

    #[test]
    fn memory_shows_as_pss() {
        let pid = std::process::id();
        let before = pss_bytes(pid).unwrap();
        let held = vec![1u8; 64 << 20];
        let after = pss_bytes(pid).unwrap();
        assert_eq!(held[held.len() - 1], 1);
        assert!(after >= before + (60 << 20), "{before} {after}");
    }
}
