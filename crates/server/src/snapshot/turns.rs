//! Two threads that do the work on snapshots in turns: which of them does it makes no difference to
//! the work, but to everybody else.
//!
//! A thread of idle class (`SCHED_IDLE`, sched(7)) runs when nobody else wants its core, and Linux
//! takes that core for a free one when it places a thread that wakes, which then runs there at once:
//! the command thread and its clients wait for nobody. But on a machine with no core to spare it
//! starves, and without CAP_SYS_NICE a thread that has entered that class cannot leave it. So there
//! are two: when the idle thread has lost too much time, or haste is wanted, the other one, which is
//! merely nice, has its turn, and gives the work away again after a while.
//!
//! The [`Worker`] itself goes back and forth, so that it is never in two hands.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use slimio_planted::is_planted;

use super::worker::Worker;

/// How nice to others the nice thread is, as nice(2) has it. Nicer than this, it may starve as well,
/// and the log grows meanwhile.
const NICENESS: i32 = 10;
/// The idle thread's turn is over when so much time was lost in it that can't be made up for.
const LOST_MAX: Duration = Duration::from_millis(20);
/// How long a turn of the nice thread is, unless the work ends: long beside `LOST_MAX`, so that
/// little is lost where the idle thread's turns are over at once.
const NICE_TURN: Duration = Duration::from_millis(200);

/// The two threads. Dropping this waits until they have ended, which they do when nobody can give
/// orders any more.
#[derive(Debug)]
pub(super) struct TurnThreads {
    threads: Vec<JoinHandle<()>>,
}

impl TurnThreads {
    /// Starts them.
    ///
    /// # Errors
    /// When one cannot be made.
    pub(super) fn start(worker: Box<Worker>) -> std::io::Result<Self> {
        let (lend, idle_turns) = channel();
        let (give_back, returned) = channel();
        let nice = Builder::new().name("snapshot".into()).spawn(move || {
            slimio_device::give_way(NICENESS);
            nice_turns(worker, &lend, &returned);
        })?;
        // If this fails, the nice thread ends because nobody gives orders.
        let idle = Builder::new().name("snapshot-idle".into()).spawn(move || {
            slimio_device::give_way_entirely();
            take_idle_turns(&idle_turns, &give_back);
        })?;
        Ok(Self { threads: vec![nice, idle] })
    }
}

impl Drop for TurnThreads {
    fn drop(&mut self) {
        for thread in self.threads.drain(..) {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Does the work, and lends it where that may be good for others, until nobody gives orders.
fn nice_turns(
    mut worker: Box<Worker>,
    lend: &Sender<Box<Worker>>,
    returned: &Receiver<Box<Worker>>,
) {
    // Nothing is known yet of how busy the cores are.
    let mut turn_ends = Instant::now();
    while worker.work(|worker| worker.is_paced() && Instant::now() >= turn_ends) {
        // It does not come back if the idle thread has panicked.
        worker = match lend.send(worker).map(|()| returned.recv()) {
            Ok(Ok(worker)) => worker,
            _ => return,
        };
        turn_ends = Instant::now() + NICE_TURN;
    }
}

/// Does the work whenever it is lent, as long as that is good for it.
fn take_idle_turns(turns: &Receiver<Box<Worker>>, give_back: &Sender<Box<Worker>>) {
    while let Ok(mut worker) = turns.recv() {
        let mut lost = Duration::ZERO;
        worker.take_lost();
        worker.work(|worker| {
            lost += worker.take_lost();
            !worker.is_paced() || (lost > LOST_MAX && !is_planted("starves"))
        });
        if give_back.send(worker).is_err() {
            return;
        }
    }
}
