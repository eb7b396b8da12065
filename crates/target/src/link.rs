//! Lets a controller wake a connection of its host, and keep this connection from beginning
//! operations.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slimio_planted::is_planted;
use slimio_ssd::Canceller;

use crate::waker::Waker;

/// A connection, as its controller sees it. Through the link, the controller wakes the connection.
/// When the host is told of a reset or of the controller's end, no earlier operation may change the
/// drive any more, because the host relies on that. So before the host is told, the controller
/// closes the link: from then on, the connection begins no operations.
#[derive(Debug)]
pub(crate) struct Link {
    waker: Arc<Waker>,
    canceller: Canceller,
    /// Whether the connection must not begin operations any more. The lock is held while an
    /// operation begins.
    is_closed: Mutex<bool>,
}

impl Link {
    /// The link to the connection that `waker` wakes. `canceller` belongs to the connection's queue
    /// to the drive.
    pub(crate) fn new(waker: Arc<Waker>, canceller: Canceller) -> Self {
        Self { waker, canceller, is_closed: Mutex::new(false) }
    }

    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// A guard, which the connection must hold while it begins operations. `None` if the connection
    /// must not begin operations any more.
    pub(crate) fn enter(&self) -> Option<MutexGuard<'_, bool>> {
        Some(self.lock()).filter(|is_closed| !**is_closed)
    }

    /// Closes the link, so that the connection begins no more operations. When this function
    /// returns, each operation that the connection has begun has either changed the drive already,
    /// or never will. If an operation is just beginning, the function waits until it has begun.
    /// Beginning may include an access to the disk.
    pub(crate) fn close(&self) {
        if !is_planted("reset-beside-operation") {
            *self.lock() = true;
        }
        self.canceller.cancel();
        self.wake();
    }

    /// Cancels the connection's deallocations that have begun, but have not taken effect.
    pub(crate) fn cancel(&self) {
        self.canceller.cancel();
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        // If a panic has poisoned the lock, the thread that panicked has reported the panic.
        self.is_closed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
