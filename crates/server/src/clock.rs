//! The time of day, which is the system's or is set from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The source of the wall-clock time.
#[derive(Clone, Debug)]
pub enum WallClock {
    /// The system's clock.
    System,
    /// Milliseconds since 1970, set from outside.
    Given(Arc<AtomicI64>),
}

impl WallClock {
    /// Milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> i64 {
        match self {
            Self::System => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                since.as_millis() as i64
            }
            Self::Given(clock) => clock.load(Ordering::SeqCst),
        }
    }
}
