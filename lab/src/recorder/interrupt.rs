//! SIGINT and SIGTERM end the run of a [`Workload`](super::Workload) in good order, so that the run
//! can take down its mounts and loop devices.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::{BenchError, Doing, Result};

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// After this call, the first SIGINT or SIGTERM only sets a flag, which [`check`] reads. A second
/// signal ends the process at once.
pub(crate) fn heed() -> Result<()> {
    if ASKED.get().is_some() {
        return Ok(());
    }
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Handlers run in the order of their registration. So at the first signal, the handler that
        // ends the process still finds the flag unset.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&asked))
            .and_then(|_| flag::register(signal, Arc::clone(&asked)))
            .doing("handling signals")?;
    }
    // If another thread was faster, `ASKED` keeps the flag of that thread. That flag is set by the
    // handlers that the other thread has registered.
    drop(ASKED.set(asked));
    Ok(())
}

/// Fails once SIGINT or SIGTERM has arrived.
pub(crate) fn check() -> Result<()> {
    if ASKED.get().is_some_and(|asked| asked.load(Ordering::Relaxed)) {
        return Err(BenchError::Server("interrupted".into()));
    }
    Ok(())
}
