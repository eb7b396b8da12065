//! Jobs that may have to wait for a disk. They run on a thread of their own while the client waits,
//! so that the command thread never waits for a disk.

use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::clients::Client;
use crate::connections::Connections;
use crate::engine::Engine;
use crate::net::ConnId;
use crate::waiting::{Reason, Then};
use crate::worker::{Waker, WorkerThread};

/// The outcome of a job: `OK`, or the error to reply with.
pub(crate) type Outcome = Result<(), String>;

/// Jobs that run on a thread of their own, one after the other, in the order in which they were
/// requested.
#[derive(Debug)]
pub(crate) struct BackgroundJobs {
    /// `None` until the first job.
    thread: Option<WorkerThread<Job>>,
    sender: Sender<(ConnId, Outcome)>,
    done: Receiver<(ConnId, Outcome)>,
    /// Wakes the command thread when a job is done. If this is `None`, jobs run on the thread that
    /// requests them.
    waker: Option<Waker>,
}

type Job = (ConnId, Box<dyn FnOnce() -> Outcome + Send>);

impl Default for BackgroundJobs {
    fn default() -> Self {
        let (sender, done) = channel();
        Self { thread: None, sender, done, waker: Waker::new().ok() }
    }
}

impl BackgroundJobs {
    /// A descriptor that is readable when [`Connections::end_background_jobs`] must be called.
    pub(crate) fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.waker.as_ref().map(Waker::readiness)
    }

    /// Hands `work` to the background thread. Returns false if there is no such thread.
    fn start(&mut self, conn: ConnId, work: impl FnOnce() -> Outcome + Send + 'static) -> bool {
        let Some(waker) = &self.waker else { return false };
        if self.thread.is_none() {
            let (sender, waker) = (self.sender.clone(), waker.clone());
            let run = move |jobs: Receiver<Job>| {
                for (conn, work) in jobs {
                    // Sending fails only if the server has ended in the meantime.
                    let _ = sender.send((conn, work()));
                    waker.wake();
                }
            };
            self.thread = WorkerThread::start("background", run).ok();
        }
        self.thread.as_ref().is_some_and(|thread| thread.give((conn, Box::new(work))).is_ok())
    }
}

impl Connections {
    /// Runs `work` on the background thread and replies with the outcome. Within a transaction, or
    /// if there is no background thread, runs `work` at once on this thread.
    pub(crate) fn run_in_background(
        &mut self,
        engine: &mut Engine,
        client: &mut Client,
        work: impl Fn() -> Outcome + Send + Clone + 'static,
    ) {
        if engine.data.transaction.is_none()
            && self.background_jobs.start(client.conn, work.clone())
        {
            self.wait(engine, client, Reason::Job, Then::Answer);
        } else {
            reply(client, work());
        }
    }

    /// Answers the clients whose jobs are done.
    pub(crate) fn end_background_jobs(&mut self, engine: &mut Engine) {
        if let Some(waker) = &self.background_jobs.waker {
            waker.woken();
        }
        while let Ok((conn, outcome)) = self.background_jobs.done.try_recv() {
            let Some(mut client) = self.clients.take(conn) else { continue };
            self.answer(engine, &mut client, |_, client| reply(client, outcome));
            self.put_back(engine, client);
        }
    }
}

fn reply(client: &mut Client, outcome: Outcome) {
    match outcome {
        Ok(()) => client.out.ok(),
        Err(text) => client.out.error(&text),
    }
}
