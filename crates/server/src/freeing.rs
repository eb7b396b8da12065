//! The thread that frees large values, so that no client waits while they are freed.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;

use slimio_keyspace::Garbage;

use crate::worker::WorkerThread;

/// An object to drop, with the number of values and databases to add to `freed` afterwards.
type Order = (u64, Box<dyn Any + Send>);

/// Hands garbage to a thread that frees it. If that thread could not be started, the caller frees
/// the garbage.
#[derive(Debug)]
pub(crate) struct Freeing {
    thread: Option<WorkerThread<Order>>,
    /// Count of the values and databases that [`free`](Self::free) was given.
    given: u64,
    /// Count of the values and databases that have been freed.
    freed: Arc<AtomicU64>,
}

impl Freeing {
    pub(crate) fn start() -> Self {
        let freed = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&freed);
        let run = move |orders: Receiver<Order>| {
            for (count, garbage) in orders {
                drop(garbage);
                counter.fetch_add(count, Ordering::Relaxed);
            }
        };
        Self { thread: WorkerThread::start("free", run).ok(), given: 0, freed }
    }

    pub(crate) fn free(&mut self, garbage: Garbage) {
        let count = garbage.len() as u64;
        self.given += count;
        if !self.send(count, Box::new(garbage)) {
            self.freed.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Lets the thread drop something large. The dropped object is not data, so it is not counted.
    pub(crate) fn drop_elsewhere(&self, large: Box<dyn Any + Send>) {
        self.send(0, large);
    }

    fn send(&self, count: u64, garbage: Box<dyn Any + Send>) -> bool {
        // If there is no thread, the garbage is dropped here, which frees it.
        self.thread.as_ref().is_some_and(|thread| thread.give((count, garbage)).is_ok())
    }

    /// Values and databases that wait to be freed.
    pub(crate) fn pending(&self) -> u64 {
        self.given.saturating_sub(self.freed.load(Ordering::Relaxed))
    }

    pub(crate) fn freed(&self) -> u64 {
        self.freed.load(Ordering::Relaxed)
    }
}

impl Drop for Freeing {
    fn drop(&mut self) {
        // Does not wait for the thread, because the end of the process frees all memory faster.
        if let Some(thread) = self.thread.take() {
            thread.leave_alone();
        }
    }
}
