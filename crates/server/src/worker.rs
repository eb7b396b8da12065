//! Threads that take orders from an owner. Each such thread has a name and a queue of orders.
//! Dropping its [`WorkerThread`] waits until the thread has ended, and logs an error if the thread
//! has panicked.
//!
//! ```text
//!  owner ── orders ──► thread ── results ──► owner
//!                         └── Waker ──► the event loop polls the owner's results
//! ```

use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// A thread that takes orders. Dropping the value ends the queue and waits until the thread has
/// obeyed all orders and has ended.
pub(crate) struct WorkerThread<O> {
    name: &'static str,
    orders: Option<Sender<O>>,
    thread: Option<JoinHandle<()>>,
}

impl<O: Send + 'static> WorkerThread<O> {
    /// Starts a thread that runs `run`. When the queue has ended, `run` must return.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(crate) fn start(
        name: &'static str,
        run: impl FnOnce(Receiver<O>) + Send + 'static,
    ) -> io::Result<Self> {
        let (orders, receiver) = channel();
        let thread = Builder::new().name(name.into()).spawn(move || run(receiver))?;
        Ok(Self { name, orders: Some(orders), thread: Some(thread) })
    }

    /// Puts an order in the queue. This never blocks.
    ///
    /// # Errors
    /// When the thread has ended by itself, because of a panic. The order is then returned.
    pub(crate) fn give(&self, order: O) -> Result<(), O> {
        match &self.orders {
            Some(orders) => orders.send(order).map_err(|refused| refused.0),
            None => Err(order),
        }
    }

    /// Lets the thread end by itself, without waiting for it. If the process ends first, the
    /// remaining orders are dropped.
    pub(crate) fn leave_alone(mut self) {
        drop(self.thread.take());
    }
}

impl<O> fmt::Debug for WorkerThread<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerThread").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<O> Drop for WorkerThread<O> {
    fn drop(&mut self) {
        drop(self.orders.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread \"{}\" has panicked", self.name);
        }
    }
}

/// Wakes the command thread from another thread.
#[derive(Clone, Debug)]
pub(crate) struct Waker(Arc<OwnedFd>);

impl Waker {
    /// # Errors
    /// When the process has no descriptor left.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// The descriptor, which is readable after [`wake`](Self::wake) was called.
    pub(crate) fn readiness(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(crate) fn wake(&self) {
        // The counter cannot overflow, so this write cannot fail.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable again.
    pub(crate) fn woken(&self) {
        match rustix::io::read(&self.0, &mut [0; 8]) {
            // An earlier turn may have read the counter already, so there may be nothing to read.
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => log::debug!("eventfd: {errno}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn all_orders_are_obeyed_before_the_owner_goes_on() {
        let (done, results) = channel();
        let worker = WorkerThread::start("test", move |orders| {
            for order in orders {
                done.send(order * 2).unwrap();
            }
        })
        .unwrap();
        (0..100).for_each(|order| worker.give(order).unwrap());
        drop(worker);
        assert_eq!(results.try_iter().count(), 100);
    }

    #[test]
    fn an_order_that_nobody_obeys_comes_back() {
        let worker = WorkerThread::start("test", |orders: Receiver<u8>| drop(orders)).unwrap();
        while worker.give(1).is_ok() {}
        assert_eq!(worker.give(7), Err(7));
    }

    #[test]
    fn who_is_woken_is_woken_until_it_has_looked() {
        let waker = Waker::new().unwrap();
        let is_readable = || {
            use rustix::event::{PollFd, PollFlags, Timespec, poll};
            let mut fds = [PollFd::from_borrowed_fd(waker.readiness(), PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
        };
        assert!(!is_readable());
        waker.clone().wake();
        waker.wake();
        assert!(is_readable());
        waker.woken();
        assert!(!is_readable());
        waker.woken();
    }
}
