//! What a controller has of a connection of its host.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slimio_planted::is_planted;
use slimio_ssd::Canceller;

use crate::waker::Waker;

/// A connection, as its controller knows it. The controller wakes it, and closes it to operations when
/// a host may not expect them any more.
#[derive(Debug)]
pub(crate) struct Link {
    waker: Arc<Waker>,
    canceller: Canceller,
    /// Whether the connection may begin nothing any more. It is locked while something begins.
    is_closed: Mutex<bool>,
}

impl Link {
    /// The link to a connection that `waker` wakes. `canceller` is that of its queue to the drive.
    pub(crate) fn new(waker: Arc<Waker>, canceller: Canceller) -> Self {
        Self { waker, canceller, is_closed: Mutex::new(false) }
    }

    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// To be held by the connection while it begins operations; `None` if it may begin none any more.
    pub(crate) fn enter(&self) -> Option<MutexGuard<'_, bool>> {
        Some(self.lock()).filter(|is_closed| !**is_closed)
    }

    /// Closes the connection to operations. When this returns, each operation that it has begun has
    /// changed the drive already, or never does. This waits for the one that it begins just now, and so
    /// for the disk.
    pub(crate) fn close(&self) {
        if !is_planted("reset-beside-operation") {
            *self.lock() = true;
        }
        self.canceller.cancel();
        self.wake();
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        // A panic that poisoned the lock has been reported by its thread.
        self.is_closed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
