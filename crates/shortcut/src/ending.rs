//! Whether a process was killed but has not ended yet. Such a process may be waiting for a write in
//! flight, and this write still reaches the file.

use std::fs;
use std::os::fd::AsFd;

use rustix::process::{Flock, FlockType, Pid, fcntl_getlk};
use slimio_planted::is_planted;

/// The bit of SIGKILL in a set of signals.
const KILL: u64 = 1 << (9 - 1);

/// Whether the process that has this file locked (`F_SETLK`) was killed but has not ended yet.
pub(crate) fn is_holder_ending(file: impl AsFd) -> bool {
    let holder = fcntl_getlk(file, &Flock::from(FlockType::WriteLock)).ok().flatten();
    let holder = holder.and_then(|lock| lock.pid);
    holder.is_some_and(is_ending) && !is_planted("ending-not-waited-for")
}

/// Whether a process was killed but has not ended yet.
fn is_ending(process: Pid) -> bool {
    let folder = format!("/proc/{}/task", process.as_raw_nonzero());
    let threads = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut states = threads.filter_map(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        Some(is_killed(&status))
    });
    states.any(|is_killed| is_killed)
}

/// Whether the status of a thread says that the thread was killed, or that it has ended while the
/// process has not.
fn is_killed(status: &str) -> bool {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let has_kill = |name| {
        let set = field(name).and_then(|set| u64::from_str_radix(set, 16).ok());
        set.is_some_and(|set| set & KILL != 0)
    };
    let has_ended = field("State:").is_some_and(|state| state.starts_with(['Z', 'X']));
    has_ended || has_kill("SigPnd:") || has_kill("ShdPnd:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_thread_is_known_by_its_status() {
        let status = |state: &str, own: &str, shared: &str| {
            format!("Name:\tx\nState:\t{state}\nSigPnd:\t{own}\nShdPnd:\t{shared}\n")
        };
        let (none, kill, term) = ("0000000000000000", "0000000000000100", "0000000000004000");
        assert!(!is_killed(&status("S (sleeping)", none, term)));
        assert!(is_killed(&status("D (disk sleep)", kill, none)));
        assert!(is_killed(&status("D (disk sleep)", none, kill)));
        assert!(is_killed(&status("Z (zombie)", none, none)));
        assert!(!is_ending(rustix::process::getpid()));
    }
}
