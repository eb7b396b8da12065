//! What a path may poll for instead of a system call or an interrupt.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// What a path polls for; each costs processor time while it does, and saves some where an operation
/// is short. Nothing unless it is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polling {
    /// A thread of the kernel's takes what is kicked, so that this costs no system call; it sleeps
    /// when there was nothing for so long (in whole milliseconds, at least one).
    pub submissions_idle: Option<Duration>,
    /// Completions are fetched from the device, which then needs no interrupt, by spinning while one
    /// is waited for: [`Device::readiness`](crate::Device::readiness) is `None`. Only a device whose
    /// driver has queues for it.
    pub completions: bool,
}

impl Polling {
    pub(crate) fn is_any(self) -> bool {
        self != Self::default()
    }

    /// As a ring takes it.
    pub(crate) fn for_ring(self) -> slimio_ring::Polling {
        let idle_ms = |idle: Duration| u32::try_from(idle.as_millis()).unwrap_or(u32::MAX).max(1);
        slimio_ring::Polling {
            submissions_idle_ms: self.submissions_idle.map(idle_ms),
            completions: self.completions,
        }
    }
}

/// "a kernel thread submits, idle for 10 ms before it sleeps (SQPOLL)", or "nothing".
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

/// What paths that may poll do, and why not more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Polled {
    pub(crate) in_force: Polling,
    /// In sentences without a full stop.
    pub(crate) why_not: Vec<String>,
}

impl Polled {
    /// From what was asked for and the `queue` directory of the device in `/sys`, where there is one.
    pub(crate) fn of_device(wanted: Polling, queue: Option<&Path>) -> Self {
        let mut polled = Self { in_force: wanted, why_not: Vec::new() };
        polled.try_out();
        if polled.in_force.completions && !queue.is_some_and(has_poll_queues) {
            polled.in_force.completions = false;
            polled.why_not.push(
                "completions are not polled for: the driver has no queues for that (of NVMe: the \
                 kernel parameter nvme.poll_queues)"
                    .into(),
            );
        }
        polled
    }

    /// Files cannot be asked for completions.
    pub(crate) fn of_files(wanted: Polling) -> Self {
        let mut polled = Self { in_force: wanted, why_not: Vec::new() };
        polled.try_out();
        if polled.in_force.completions {
            polled.in_force.completions = false;
            polled.why_not.push("completions are not polled for: the volume is files".into());
        }
        polled
    }

    fn try_out(&mut self) {
        if self.in_force.is_any()
            && let Err(refused) = slimio_ring::probe_polling(self.in_force.for_ring())
        {
            self.refuse(refused);
        }
    }

    /// None of it, and why, if any was asked for.
    pub(crate) fn refuse(&mut self, why: impl fmt::Display) {
        if self.in_force.is_any() {
            self.in_force = Polling::default();
            self.why_not.push(format!("nothing is polled for: {why}"));
        }
    }

    /// As the end of what a way of I/O is called.
    pub(crate) fn describe(&self) -> String {
        let polling = self.in_force;
        if polling.is_any() {
            format!("; for snapshots it polls for {polling}")
        } else {
            String::new()
        }
    }
}

/// Whether completions can be polled for, for people.
pub(crate) fn fact(queue: Option<&Path>) -> String {
    let has = queue.is_some_and(has_poll_queues);
    (if has { "yes (snapshot-iopoll)" } else { "no" }).into()
}

/// Whether the driver has set queues aside for completions that are polled for.
fn has_poll_queues(queue: &Path) -> bool {
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
        assert_eq!(Polled { in_force: one(None, false), ..Polled::default() }.describe(), "");
    }

    #[test]
    fn completions_are_polled_for_only_where_the_driver_has_queues() {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let set = |value| fs::write(directory.path().join("io_poll"), value).expect("it is ours");
        let without = Polling { completions: false, ..BOTH };
        for (value, in_force) in [("0\n", without), ("1\n", BOTH)] {
            set(value);
            let polled = Polled::of_device(BOTH, Some(directory.path()));
            assert_eq!(polled.in_force, in_force);
            assert_eq!(polled.why_not.is_empty(), in_force == BOTH);
        }
        let unknown = Polled::of_device(BOTH, None);
        assert_eq!(unknown.in_force, without);
        assert!(unknown.why_not[0].contains("nvme.poll_queues"), "{:?}", unknown.why_not);
        assert_eq!(Polled::of_files(BOTH).in_force, without);
        assert!(Polled::of_device(without, None).why_not.is_empty(), "it was not asked for");
    }
}
