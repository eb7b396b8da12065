//! Reads numbers about a process and about the machine from `/proc`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use procfs::process::{Process, Schedstat, Stat, all_processes};
use procfs::{CurrentSI as _, KernelStats, ProcResult, ticks_per_second};

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
    /// CPU time of all threads of a process (ended threads and io_uring workers included), and of
    /// the children that the process has waited for. The time is counted in steps of 10 ms. Work
    /// that the kernel does in its own threads (writeback, block completions, other interrupts) is
    /// not included: see [`CpuTime::of_machine`].
    pub fn of_process(pid: u32) -> Result<Self> {
        let stat = stat_of(pid)?;
        let (own, children) = (Self::of(&stat), Self::of_reaped(&stat));
        Ok(Self { user: own.user + children.user, system: own.system + children.system })
    }

    /// CPU time of this process, without its children.
    pub fn of_self() -> Result<Self> {
        Ok(Self::of(&stat_of(std::process::id())?))
    }

    /// CPU time of the children that this process has waited for.
    pub fn of_reaped_children() -> Result<Self> {
        Ok(Self::of_reaped(&stat_of(std::process::id())?))
    }

    /// CPU time of everything on the machine: every process, the kernel's own threads and
    /// interrupts.
    pub fn of_machine() -> Result<Self> {
        let all =
            KernelStats::current().map_err(io::Error::other).doing("reading /proc/stat")?.total;
        let interrupts = all.irq.unwrap_or(0) + all.softirq.unwrap_or(0);
        Ok(Self { user: ticks(all.user + all.nice), system: ticks(all.system + interrupts) })
    }

    fn of(stat: &Stat) -> Self {
        Self { user: ticks(stat.utime), system: ticks(stat.stime) }
    }

    fn of_reaped(stat: &Stat) -> Self {
        Self { user: ticks(stat.cutime as u64), system: ticks(stat.cstime as u64) }
    }

    /// User and system time together.
    pub fn total(self) -> Duration {
        self.user + self.system
    }

    /// The CPU time that was used between `earlier` and `self`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
        }
    }
}

/// How a thread or process has spent its time since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    /// Time on a core.
    pub cpu: CpuTime,
    /// Time in which the thread or process was ready to run, but others had the cores. Zero if the
    /// kernel does not report this time.
    pub core_wait: Duration,
}

impl RunTime {
    /// How a process of one thread has spent its time.
    pub fn of_process(pid: u32) -> Result<Self> {
        Ok(Self::of(&stat_of(pid)?, process(pid)?.schedstat()))
    }

    /// The sum over those threads of a process whose names begin with `name`. `None` if there is no
    /// such thread.
    pub fn of_threads(pid: u32, name: &str) -> Result<Option<Self>> {
        let mut sum: Option<Self> = None;
        let threads = process(pid)?
            .tasks()
            .map_err(io::Error::other)
            .doing(format!("listing the threads of {pid}"))?;
        for thread in threads.flatten() {
            // A thread may end after it was listed.
            let Ok(stat) = thread.stat() else { continue };
            if stat.comm.starts_with(name) {
                let thread = Self::of(&stat, thread.schedstat());
                sum = Some(sum.map_or(thread, |sum| sum.and(thread)));
            }
        }
        Ok(sum)
    }

    fn of(stat: &Stat, schedule: ProcResult<Schedstat>) -> Self {
        let waited_ns = schedule.map_or(0, |schedule| schedule.run_delay);
        Self { cpu: CpuTime::of(stat), core_wait: Duration::from_nanos(waited_ns) }
    }

    /// The sum of two run times.
    fn and(self, other: Self) -> Self {
        let cpu = CpuTime {
            user: self.cpu.user + other.cpu.user,
            system: self.cpu.system + other.cpu.system,
        };
        Self { cpu, core_wait: self.core_wait + other.core_wait }
    }

    /// The time that was spent between `earlier` and `self`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        let core_wait = self.core_wait.saturating_sub(earlier.core_wait);
        Self { cpu: self.cpu.since(earlier.cpu), core_wait }
    }
}

/// CPU time and context switches of the living threads of a process, since each thread began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadsUse {
    /// CPU time, to the nanosecond. Work of the kernel's own threads is not included.
    pub cpu: Duration,
    /// How often a thread lost its core, voluntarily or not.
    pub switches: u64,
}

impl ThreadsUse {
    /// The sums over the threads of a process, including the threads that io_uring has made for the
    /// process.
    pub fn of_process(pid: u32) -> Result<Self> {
        let mut sum = Self::default();
        let threads = process(pid)?
            .tasks()
            .map_err(io::Error::other)
            .doing(format!("listing the threads of {pid}"))?;
        for thread in threads.flatten() {
            // A thread may end after it was listed.
            if let Ok(schedule) = thread.schedstat() {
                sum.cpu += Duration::from_nanos(schedule.sum_exec_runtime);
            }
            if let Ok(status) = thread.status() {
                sum.switches += status.voluntary_ctxt_switches.unwrap_or(0)
                    + status.nonvoluntary_ctxt_switches.unwrap_or(0);
            }
        }
        Ok(sum)
    }

    /// The use between `earlier` and `self`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            switches: self.switches.saturating_sub(earlier.switches),
        }
    }
}

/// Processes that `pid` has started and not yet waited for.
pub fn children(pid: u32) -> Result<Vec<u32>> {
    let all = all_processes().map_err(io::Error::other).doing("listing processes")?;
    // Processes that have ended meanwhile are left out.
    let all = all.filter_map(|process| process.ok()?.stat().ok());
    Ok(all.filter(|stat| stat.ppid == pid as i32).map(|stat| stat.pid as u32).collect())
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

fn process(pid: u32) -> Result<Process> {
    Process::new(pid as i32)
        .map_err(io::Error::other)
        .doing(format!("looking for the process {pid}"))
}

fn stat_of(pid: u32) -> Result<Stat> {
    process(pid)?
        .stat()
        .map_err(io::Error::other)
        .doing(format!("reading the CPU time of process {pid}"))
}

fn ticks(count: u64) -> Duration {
    Duration::from_nanos(count * (1_000_000_000 / ticks_per_second().max(1)))
}

/// Proportional set size in bytes: the memory of the process. A page that several processes share
/// is divided by their number.
pub fn pss_bytes(pid: u32) -> Result<u64> {
    let sum = process(pid)?
        .smaps_rollup()
        .map_err(io::Error::other)
        .doing(format!("reading the memory of {pid}"))?;
    let pss = sum.memory_map_rollup.0.first().and_then(|all| all.extension.map.get("Pss").copied());
    pss.ok_or_else(|| BenchError::Server("smaps_rollup has no Pss".into()))
}

/// Bytes that the process caused to be written to storage; `None` if the kernel does not report the
/// number.
pub fn written_bytes(pid: u32) -> Option<u64> {
    Some(process(pid).ok()?.io().ok()?.write_bytes)
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

    /// A separate process is measured, because a thread's use is lost when the thread ends, and
    /// threads of other tests end at any time.
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
        // A context switch comes soon, because the shell waits for its next line of input.
        while use_so_far().switches == 0 && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let used = use_so_far();
        drop(orders);
        shell.wait().unwrap();
        assert_eq!(&said, b"done\n");
        assert!(used.cpu >= Duration::from_millis(10), "{used:?}");
        assert!(used.switches > 0, "{used:?}");
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
