//! The thread that frees large values, so that no client waits while they are freed.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};

use slimio_keyspace::Garbage;

/// Hands garbage to a thread that frees it. If that thread could not be started, the caller frees
/// the garbage.
#[derive(Debug)]
pub(crate) struct Freeing {
    sender: Option<Sender<(u64, Box<dyn Any + Send>)>>,
    /// Count of values and databases handed over.
    given: u64,
    /// How many of the values and databases handed over have been freed.
    freed: Arc<AtomicU64>,
}

impl Freeing {
    pub(crate) fn start() -> Self {
        let (sender, receiver) = channel::<(u64, Box<dyn Any + Send>)>();
        let freed = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&freed);
        let run = move || {
            for (count, garbage) in receiver {
                drop(garbage);
                counter.fetch_add(count, Ordering::Relaxed);
            }
        };
        let thread = std::thread::Builder::new().name("free".into()).spawn(run);
        Self { sender: thread.ok().map(|_| sender), given: 0, freed }
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
        self.sender.as_ref().is_some_and(|sender| sender.send((count, garbage)).is_ok())
    }

    /// Values and databases that wait to be freed.
    pub(crate) fn pending(&self) -> u64 {
        self.given.saturating_sub(self.freed.load(Ordering::Relaxed))
    }

    pub(crate) fn freed(&self) -> u64 {
        self.freed.load(Ordering::Relaxed)
    }
}
