//! Helpers for the tests of this crate.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use slimio_ring::{Completion, Fd, Features, Polling, Ring, Setup};

/// A test fails if it has waited this long for an event that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a test once for each setup: with all features that the kernel has, without some or all of
/// them, and with a kernel thread that takes submissions. The test itself makes its rings.
pub(crate) fn with_each_setup(mut test: impl FnMut(Setup)) {
    if let Err(refused) = slimio_ring::probe() {
        eprintln!("SKIPPED: {refused}");
        return;
    }
    let no_deferred = Features { deferred: true, ..Features::NONE };
    let no_multishot =
        Features { multishot_accept: true, multishot_receive: true, ..Features::NONE };
    for avoid in [Features::NONE, no_deferred, no_multishot, Features::ALL] {
        eprintln!("without {avoid:?}");
        test(Setup { submissions: 8, completions: 16, avoid, ..Setup::default() });
    }
    eprintln!("with a kernel thread that takes submissions");
    let polling = Polling { submissions_idle_ms: Some(1), completions: false };
    test(Setup { submissions: 8, completions: 16, polling, ..Setup::default() });
}

pub(crate) fn ring<T: Copy>(setup: Setup) -> Ring<T> {
    Ring::new(setup).expect("the probe was successful")
}

/// The two ends of a connection. The ring has adopted the first end.
pub(crate) fn connection<T: Copy>(ring: &mut Ring<T>) -> (Fd, UnixStream) {
    let (near, far) = UnixStream::pair().expect("sockets can be made");
    far.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    (ring.adopt(OwnedFd::from(near)), far)
}

/// Waits until at least `count` completions have arrived. This waits on the ring again and again,
/// because such a wait may end without a completion, when only a part of an operation has ended.
pub(crate) fn wait_for<T: Copy + Debug>(ring: &mut Ring<T>, count: usize) -> Vec<Completion<T>> {
    let deadline = Instant::now() + PATIENCE;
    let mut completions = Vec::new();
    while completions.len() < count {
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "only these completions arrived: {completions:?}");
        ring.submit_and_wait(1, Some(left)).expect("the ring works");
        ring.reap(&mut completions);
    }
    completions
}

/// Waits for exactly one completion.
pub(crate) fn wait_for_one<T: Copy + Debug>(ring: &mut Ring<T>) -> Completion<T> {
    let mut completions = wait_for(ring, 1);
    assert_eq!(completions.len(), 1, "{completions:?}");
    completions.remove(0)
}
