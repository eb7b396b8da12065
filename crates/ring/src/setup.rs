//! Makes rings with the best setup that the kernel supports. On an older kernel, the setup has
//! fewer features. On a kernel that is too old, no ring is made.

use io_uring::{IoUring, Probe, opcode};

use slimio_planted::is_planted;

use crate::{Errno, EventFd, Narrow, Refused, Ring, Wide, Width};

/// The largest number of entries in a submission queue (the kernel's own limit).
pub const SUBMISSIONS_MAX: u32 = 32_768;

/// Size of a ring, and which features it may use.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// How many operations can be handed to the kernel with one system call, rounded up to a power
    /// of two. Further operations can be queued at any time. They wait in memory.
    pub submissions: u32,
    /// How many completions fit into the ring's queue. Further completions wait in the kernel,
    /// which costs more time.
    pub completions: u32,
    /// Features that the ring does not use even if the kernel has them.
    pub avoid: Features,
    /// The events that the ring polls for.
    pub polling: Polling,
}

/// The events that a ring polls for. Polling replaces system calls or interrupts, but costs
/// processor time. With either kind of polling, a ring has neither [`Features::deferred`] nor
/// [`Features::cooperative`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polling {
    /// If set, a kernel thread polls for submissions (`IORING_SETUP_SQPOLL`). If there is no
    /// submission for this many milliseconds, the thread sleeps.
    pub submissions_idle_ms: Option<u32>,
    /// Whether the ring polls the device for completions instead of using interrupts
    /// (`IORING_SETUP_IOPOLL`). Such a ring accepts only direct reads, direct writes and commands
    /// to a driver, and only for devices whose driver has queues for polling. If a kernel thread
    /// polls for submissions, it also polls the device, and a wait sleeps. Without such a thread, a
    /// wait spins until there is a completion, and ignores its timeout.
    pub completions: bool,
}

impl Polling {
    fn is_any(self) -> bool {
        self.completions || self.submissions_idle_ms.is_some()
    }

    /// Whether the device is polled only during our own calls.
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

/// Optional features of the kernel's io_uring. If a feature is missing, the ring does the same work
/// with more system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each feature is probed on its own")]
pub struct Features {
    /// The kernel handles completions when the ring's thread waits, instead of interrupting that
    /// thread (kernel 6.1).
    pub deferred: bool,
    /// The kernel does not interrupt a running thread to handle completions (5.19).
    pub cooperative: bool,
    /// One accept operation yields many connections, and a cancel can name a descriptor (5.19).
    pub multishot_accept: bool,
    /// One receive operation yields many buffers, each taken from a pool when data arrives (6.0).
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

/// Finds out whether io_uring works here, and with which features. For this, it runs an operation
/// through a ring.
///
/// ```
/// match slimio_ring::probe() {
///     Ok(features) => println!("io_uring works: {features:?}"),
///     Err(refused) => println!("only plain system calls can be used, because {refused}"),
/// }
/// ```
///
/// # Errors
/// Why io_uring does not work here.
pub fn probe() -> Result<Features, Refused> {
    let ring = trial::<Narrow>(Polling::default())?;
    Ok(ring.features())
}

/// Makes a ring and runs an operation on it, because a seccomp filter may allow making a ring but
/// refuse its use.
fn trial<W: Width>(polling: Polling) -> Result<Ring<(), Vec<u8>, W>, Refused> {
    let setup = Setup { submissions: 4, completions: 8, polling, ..Setup::default() };
    let mut ring = Ring::new(setup)?;
    if !is_planted("probe-runs-nothing") {
        // The rings of a volume's paths hold a file (have it registered with the kernel), so the
        // trial tests this, too.
        let file = EventFd::new().map_err(Refused::diagnose)?;
        ring.hold(&file).map_err(Refused::diagnose)?;
        ring.try_out()?;
    }
    Ok(ring)
}

/// Finds out whether rings for commands to the NVMe driver can be made (kernel 5.19).
///
/// # Errors
/// Why no such ring can be made.
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

/// Finds out whether rings with this kind of polling can be made.
///
/// # Errors
/// Why no such ring can be made.
pub fn probe_polling(polling: Polling) -> Result<(), Refused> {
    trial::<Narrow>(polling).map(drop)
}

/// A ring whose entries have the width `W`.
type Uring<W> = IoUring<<W as Width>::Submission, <W as Width>::Completion>;

/// Makes a ring. The ring is disabled at first, because the thread that enables a ring owns it.
pub(crate) fn build<W: Width>(setup: Setup) -> Result<(Uring<W>, Features), Refused> {
    if cfg!(miri) {
        // Miri does not support io_uring, and stops at an unknown system call.
        return Err(Refused::diagnose(Errno::new(libc::ENOSYS)));
    }
    let wanted = Features::ALL.without(setup.avoid);
    // If the kernel does not know a flag, it returns `EINVAL`. Then the next smaller set of flags
    // is tried.
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

/// Checks that a ring has the features that every ring needs, and finds the optional ones.
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
    // There is no feature bit for multishot operations. So this function checks for opcodes that
    // were added in the same kernel versions.
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
            // Other tests check what happens when the kernel refuses io_uring.
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
                .expect("the kernel accepts a setup with fewer features");
            assert_eq!(features, all.without(avoid));
        }
    }
}
