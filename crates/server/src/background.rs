//! Jobs that may wait for a disk. They run on a thread of their own while the client waits, so that
//! the command thread never waits for a disk.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};

use crate::clients::Client;
use crate::core::Core;
use crate::net::ConnId;
use crate::waiting::{Reason, Then};

/// The outcome of a job: `OK`, or the error to reply with.
pub(crate) type Outcome = Result<(), String>;

/// Jobs that run on a thread of their own, one after the other, in the order in which they were
/// requested.
#[derive(Debug)]
pub(crate) struct BackgroundJobs {
    /// Sends jobs to the thread; `None` until the thread is started.
    jobs: Option<Sender<Job>>,
    sender: Sender<(ConnId, Outcome)>,
    done: Receiver<(ConnId, Outcome)>,
    /// Readable when a job is done. If this is `None`, jobs run on the thread that requests them.
    wake: Option<Arc<OwnedFd>>,
}

type Job = (ConnId, Box<dyn FnOnce() -> Outcome + Send>);

impl Default for BackgroundJobs {
    fn default() -> Self {
        let (sender, done) = channel();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Self { jobs: None, sender, done, wake: wake.ok().map(Arc::new) }
    }
}

impl BackgroundJobs {
    /// A descriptor that is readable when [`Core::end_background_jobs`] has something to do.
    pub(crate) fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(|wake| wake.as_fd())
    }

    /// Hands `work` to the thread. Returns false if there is no thread.
    fn start(&mut self, conn: ConnId, work: impl FnOnce() -> Outcome + Send + 'static) -> bool {
        let Some(wake) = &self.wake else { return false };
        if self.jobs.is_none() {
            let (sender, wake) = (self.sender.clone(), Arc::clone(wake));
            let (jobs, receiver) = channel::<Job>();
            let run = move || {
                for (conn, work) in receiver {
                    // Fails only if the server has ended meanwhile.
                    let _ = sender.send((conn, work()));
                    // The write cannot fail, because the counter cannot overflow.
                    let _ = rustix::io::write(&wake, &1u64.to_ne_bytes());
                }
            };
            let thread = std::thread::Builder::new().name("background".into()).spawn(run);
            self.jobs = thread.ok().map(|_| jobs);
        }
        self.jobs.as_ref().is_some_and(|jobs| jobs.send((conn, Box::new(work))).is_ok())
    }
}

impl Core {
    /// Runs `work` on the background thread and replies with the outcome. Within a transaction, or
    /// if there is no background thread, runs `work` at once on this thread.
    pub(crate) fn run_in_background(
        &mut self,
        client: &mut Client,
        work: impl Fn() -> Outcome + Send + Clone + 'static,
    ) {
        if self.transaction.is_none() && self.background_jobs.start(client.conn, work.clone()) {
            self.wait(client, Reason::Job, Then::Answer);
        } else {
            reply(client, work());
        }
    }

    /// Answers the clients whose jobs are done.
    pub(crate) fn end_background_jobs(&mut self) {
        if let Some(wake) = &self.background_jobs.wake {
            // Fails if an earlier turn has read the counter already.
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        while let Ok((conn, outcome)) = self.background_jobs.done.try_recv() {
            let Some(mut client) = self.clients.take(conn) else { continue };
            self.answer(&mut client, |_, client| reply(client, outcome));
            self.put_back(client);
        }
    }
}

fn reply(client: &mut Client, outcome: Outcome) {
    match outcome {
        Ok(()) => client.out.ok(),
        Err(text) => client.out.error(&text),
    }
}
