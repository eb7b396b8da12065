//! Makes rings with the best setup that the kernel supports. An older kernel gets a poorer setup,
//! and a kernel that is too old gets none.

use io_uring::{IoUring, Probe, opcode};

use slimio_planted::is_planted;

use crate::{Errno, EventFd, Narrow, Refused, Ring, Wide, Width};

/// How many entries a submission queue may have (the kernel's own limit).
pub const SUBMISSIONS_MAX: u32 = 32_768;

/// How large a ring is to be, and what it may use.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// How many operations can be handed over with one system call. More operations may be queued
    /// at any time, and wait in memory. The number is rounded up to a power of two.
    pub submissions: u32,
    /// How many completions can wait in the ring. Further completions wait in the kernel, which
    /// costs more time.
    pub completions: u32,
    /// Features that the ring does not use even if the kernel has them.
    pub avoid: Features,
    /// What the ring polls for, instead of waiting for it.
    pub polling: Polling,
}

/// What a ring polls for. Polling replaces system calls or interrupts, but costs processor time.
/// With either kind of polling, a ring has neither [`Features::deferred`] nor
/// [`Features::cooperative`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polling {
    /// If set, a kernel thread takes submissions (`IORING_SETUP_SQPOLL`). If there is no submission
    /// for this many milliseconds, the thread sleeps.
    pub submissions_idle_ms: Option<u32>,
    /// Whether completions are fetched from the device when a call asks for them
    /// (`IORING_SETUP_IOPOLL`). Such a ring takes only direct reads and writes and a driver's
    /// commands, all to devices whose driver has queues for polling. Without a kernel thread that
    /// takes submissions, a wait ends with a completion, never with its timeout. With such a
    /// thread, a wait sleeps, because the thread polls the device.
    pub completions: bool,
}

impl Polling {
    fn is_any(self) -> bool {
        self.completions || self.submissions_idle_ms.is_some()
    }

    /// Whether a completion comes only when a call of ours polls the device for it.
    pub(crate) fn is_ours_to_ask(self) -> bool {
        self.completions && self.submissions_idle_ms.is_none()
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            submissions: 256,
            completions: 2048,
            avoid: Features::NONE,
            polling: Polling::default(),
        }
    }
}

/// Features of the kernel's io_uring beyond what every ring needs. If a feature is missing, the
/// ring does the same with more system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is probed on its own")]
pub struct Features {
    /// The kernel handles completions when the ring's thread waits, instead of interrupting that
    /// thread (kernel 6.1).
    pub deferred: bool,
    /// Completions do not interrupt a running thread (5.19).
    pub cooperative: bool,
    /// One accept yields connection after connection; a cancel can name a descriptor (5.19).
    pub multishot_accept: bool,
    /// One receive yields buffer after buffer, taken from a pool when data arrives (6.0).
    pub multishot_receive: bool,
}

impl Features {
    /// No feature.
    pub const NONE: Self = Self {
        deferred: false,
        cooperative: false,
        multishot_accept: false,
        multishot_receive: false,
    };

    /// All features.
    pub const ALL: Self =
        Self { deferred: true, cooperative: true, multishot_accept: true, multishot_receive: true };

    fn without(self, avoid: Self) -> Self {
        Self {
            deferred: self.deferred && !avoid.deferred,
            cooperative: self.cooperative && !avoid.cooperative,
            multishot_accept: self.multishot_accept && !avoid.multishot_accept,
            multishot_receive: self.multishot_receive && !avoid.multishot_receive,
        }
    }
}

/// Finds out whether io_uring works here, and with which features, by running an operation through
/// a ring.
///
/// ```
/// match slimio_ring::probe() {
///     Ok(features) => println!("io_uring works: {features:?}"),
///     Err(refused) => println!("plain system calls it is: {refused}"),
/// }
/// ```
///
/// # Errors
/// Why io_uring does not work here.
pub fn probe() -> Result<Features, Refused> {
    let ring = trial::<Narrow>(Polling::default())?;
    Ok(ring.features())
}

/// Makes a ring and runs an operation on it, because a filter may allow a ring to be made but
/// refuse its use.
fn trial<W: Width>(polling: Polling) -> Result<Ring<(), Vec<u8>, W>, Refused> {
    let setup = Setup { submissions: 4, completions: 8, polling, ..Setup::default() };
    let mut ring = Ring::new(setup)?;
    if !is_planted("probe-runs-nothing") {
        // Paths to a volume let their rings hold a file, so this is tried, too.
        let file = EventFd::new().map_err(Refused::diagnose)?;
        ring.hold(&file).map_err(Refused::diagnose)?;
        ring.try_out()?;
    }
    Ok(ring)
}

/// Finds out whether the kernel makes rings that take commands of the NVMe driver (kernel 5.19).
///
/// # Errors
/// Why there are none.
pub fn probe_wide() -> Result<Features, Refused> {
    let ring = trial::<Wide>(Polling::default())?;
    let mut probe = Probe::new();
    let probed = ring.uring.submitter().register_probe(&mut probe);
    probed.map_err(|error| Refused::diagnose(Errno::of(&error)))?;
    if !probe.is_supported(opcode::UringCmd80::CODE) {
        return Err(Refused::too_old("commands of a driver"));
    }
    Ok(ring.features())
}

/// Finds out whether the kernel makes rings with this kind of polling.
///
/// # Errors
/// Why there are none.
pub fn probe_polling(polling: Polling) -> Result<(), Refused> {
    trial::<Narrow>(polling).map(drop)
}

/// A ring whose entries have the width `W`.
type Uring<W> = IoUring<<W as Width>::Submission, <W as Width>::Completion>;

/// Makes a ring. It is disabled at first, because it belongs to the thread that enables it.
pub(crate) fn build<W: Width>(setup: Setup) -> Result<(Uring<W>, Features), Refused> {
    if cfg!(miri) {
        // Miri has no io_uring, and stops at a call that it does not know.
        return Err(Refused::diagnose(Errno::new(libc::ENOSYS)));
    }
    let wanted = Features::ALL.without(setup.avoid);
    // If a kernel does not know a flag, it returns `EINVAL`. In this case, the next poorer set of
    // flags is tried.
    let mut last = Errno::new(libc::EINVAL);
    for (deferred, cooperative) in [(true, true), (false, true), (false, false)] {
        let is_polled = setup.polling.is_any();
        if (deferred && (!wanted.deferred || is_polled))
            || (cooperative && (!wanted.cooperative || is_polled))
        {
            continue;
        }
        let mut builder = Uring::<W>::builder();
        builder
            .setup_clamp()
            .setup_r_disabled()
            .setup_cqsize(setup.completions.max(setup.submissions.next_power_of_two()));
        if deferred {
            builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        } else if cooperative {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        }
        if let Some(idle_ms) = setup.polling.submissions_idle_ms {
            builder.setup_sqpoll(idle_ms);
        }
        if setup.polling.completions {
            builder.setup_iopoll();
        }
        match builder.build(setup.submissions.clamp(1, SUBMISSIONS_MAX)) {
            Ok(uring) => {
                let found = examine::<W>(&uring)?;
                let features = Features { deferred, cooperative, ..found.without(setup.avoid) };
                return Ok((uring, features));
            }
            Err(error) => last = Errno::of(&error),
        }
        if last.number() != libc::EINVAL {
            break;
        }
    }
    Err(Refused::diagnose(last))
}

/// Checks that a ring has what every ring needs, and finds the kernel's other features.
fn examine<W: Width>(uring: &Uring<W>) -> Result<Features, Refused> {
    let parameters = uring.params();
    if !parameters.is_feature_nodrop() {
        return Err(Refused::too_old("keeping completions that find no room"));
    }
    if !parameters.is_feature_ext_arg() {
        return Err(Refused::too_old("waiting with a timeout"));
    }
    let mut probe = Probe::new();
    let probed = uring.submitter().register_probe(&mut probe);
    probed.map_err(|error| Refused::diagnose(Errno::of(&error)))?;
    for (code, missing) in [
        (opcode::Read::CODE, "reading"),
        (opcode::Write::CODE, "writing"),
        (opcode::Fsync::CODE, "flushing"),
        (opcode::Fallocate::CODE, "allocating"),
        (opcode::PollAdd::CODE, "polling"),
        (opcode::Accept::CODE, "accepting"),
        (opcode::Recv::CODE, "receiving"),
        (opcode::Send::CODE, "sending"),
        (opcode::SendMsg::CODE, "sending several pieces"),
        (opcode::AsyncCancel::CODE, "cancelling"),
    ] {
        if !probe.is_supported(code) {
            return Err(Refused::too_old(missing));
        }
    }
    // No feature bit stands for multishot operations. They are there if the opcodes that are probed
    // here are there, because both came in the same kernel versions.
    Ok(Features {
        deferred: true,
        cooperative: true,
        multishot_accept: probe.is_supported(opcode::Socket::CODE),
        multishot_receive: probe.is_supported(opcode::SendZc::CODE),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setup_can_be_had_alone() {
        let Ok(all) = probe() else {
            // Other tests provoke a refusal, and check it.
            eprintln!("SKIPPED: no io_uring here");
            return;
        };
        for avoid in [
            Features::NONE,
            Features { deferred: true, ..Features::NONE },
            Features { deferred: true, cooperative: true, ..Features::NONE },
            Features::ALL,
        ] {
            let (_, features) = build::<Narrow>(Setup { avoid, ..Setup::default() })
                .expect("the poorer setups work too");
            assert_eq!(features, all.without(avoid));
        }
    }
}
