//! The events that a path may poll for. (A path is one way to a device, with its own queue.)
//! Polling replaces system calls or interrupts.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The events that a path polls for; none by default. Polling costs processor time, but can also
/// save processor time if operations are short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polling {
    /// If set, a kernel thread polls for operations that [`Device::kick`](crate::Device::kick)
    /// hands over, so that handing over needs no system call. The value says how long the thread
    /// must have been idle before it goes to sleep (in whole milliseconds, at least one).
    pub submissions_idle: Option<Duration>,
    /// Whether a thread that waits for a completion polls the device, so that no interrupt is
    /// needed. [`Device::readiness`](crate::Device::readiness) is then `None`. Polling is possible
    /// only if the device's driver has queues for polling. A ring that polls accepts only reads,
    /// writes and NVMe commands. So flushes and deallocations of a block device are plain system
    /// calls: [`Device::kick`](crate::Device::kick) and [`Device::wait`](crate::Device::wait) block
    /// until these calls return. Writes may be in flight meanwhile.
    pub completions: bool,
}

impl Polling {
    pub(crate) fn is_any(self) -> bool {
        self != Self::default()
    }

    /// These settings, converted for a ring.
    pub(crate) fn for_ring(self) -> slimio_ring::Polling {
        let idle_ms = |idle: Duration| u32::try_from(idle.as_millis()).unwrap_or(u32::MAX).max(1);
        slimio_ring::Polling {
            submissions_idle_ms: self.submissions_idle.map(idle_ms),
            completions: self.completions,
        }
    }
}

/// "submissions (SQPOLL, 10 ms)", "completions (IOPOLL)", both, or "nothing".
impl fmt::Display for Polling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let idle = self.submissions_idle.map(|idle| idle.as_millis().max(1));
        match (idle, self.completions) {
            (None, false) => f.write_str("nothing"),
            (Some(idle), false) => write!(f, "submissions (SQPOLL, {idle} ms)"),
            (None, true) => f.write_str("completions (IOPOLL)"),
            (Some(idle), true) => {
                write!(f, "submissions (SQPOLL, {idle} ms) and completions (IOPOLL)")
            }
        }
    }
}

/// Whether the path can poll for completions, as a text for users.
pub(crate) fn fact(queue: Option<&Path>) -> String {
    let has = queue.is_some_and(has_poll_queues);
    (if has { "yes (snapshot-iopoll)" } else { "no" }).into()
}

/// Whether the driver has set queues aside for polling.
pub(crate) fn has_poll_queues(queue: &Path) -> bool {
    fs::read_to_string(queue.join("io_poll")).is_ok_and(|text| text.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Polling =
        Polling { submissions_idle: Some(Duration::from_millis(10)), completions: true };

    #[test]
    fn what_is_polled_for_is_said() {
        let one = |submissions_idle, completions| Polling { submissions_idle, completions };
        assert_eq!(one(None, false).to_string(), "nothing");
        assert_eq!(BOTH.to_string(), "submissions (SQPOLL, 10 ms) and completions (IOPOLL)");
        assert_eq!(one(Some(Duration::ZERO), false).for_ring().submissions_idle_ms, Some(1));
    }
}
