//! Two threads that do the work on snapshots in turns: which of them does it makes no difference to
//! the work, but it does to other threads.
//!
//! A thread of idle class (`SCHED_IDLE`, sched(7)) runs when no other thread wants its core. Linux
//! takes that core for a free one when it places a waking thread, which then runs there at once:
//! the command thread and its clients do not wait. But on a machine with no core to spare, the idle
//! thread starves, and without CAP_SYS_NICE it cannot leave that class. So there are two: when the
//! idle thread has lost too much time, or the work is urgent, the other one, which is merely nice,
//! takes a turn, and hands the work back after a while.
//!
//! The [`Worker`] itself is passed back and forth, so that only one thread has it at a time.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use slimio_device::waited_for_core;
use slimio_planted::is_planted;

use super::worker::Worker;

/// Niceness of the nice thread (nice(2)). With a higher one it may starve as well, and the log
/// grows meanwhile.
const NICENESS: i32 = 10;
/// The idle thread's turn ends when it has lost more time than this that is not made up for, more
/// than one part in [`LOST_SHARE_MAX`] of the time passed, and waited longer than this for a core.
const LOST_MAX: Duration = Duration::from_millis(20);
/// A smaller loss makes the snapshot slower by less than that, and everybody else gains: with the
/// nice thread in its place, clients under `always` lost a tenth more of their throughput.
const LOST_SHARE_MAX: u32 = 4;
/// Shortest turn of the nice thread, unless the work ends.
const NICE_TURN_MIN: Duration = Duration::from_millis(200);
/// The nice thread's turn lasts at least this many times as long as the idle thread waited for a
/// core in its last turn: little is lost while that one hardly gets a core.
const NICE_PER_WAITED: u32 = 5;

/// The work, and for how long it waited for a core in the turn that has ended.
type Returned = (Box<Worker>, Duration);

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

/// Does the work, and lends it to the idle thread to spare others, until nobody gives orders.
fn nice_turns(mut worker: Box<Worker>, lend: &Sender<Box<Worker>>, returned: &Receiver<Returned>) {
    // Nothing is known yet of how busy the cores are.
    let mut turn_ends = Instant::now();
    while worker.work(|worker| worker.is_paced() && Instant::now() >= turn_ends) {
        // It does not come back if the idle thread has panicked.
        let Ok(Ok((back, waited))) = lend.send(worker).map(|()| returned.recv()) else { return };
        worker = back;
        turn_ends = Instant::now() + NICE_TURN_MIN.max(waited * NICE_PER_WAITED);
    }
}

/// Does the work whenever it is lent, until it starves or the work is urgent.
fn take_idle_turns(turns: &Receiver<Box<Worker>>, give_back: &Sender<Returned>) {
    while let Ok(mut worker) = turns.recv() {
        let mut hunger = Starvation::new();
        worker.take_lost();
        worker.work(|worker| {
            if !worker.is_paced() {
                return true;
            }
            let is_starving = hunger.is_too_much(worker.take_lost());
            if is_starving {
                worker.count_starved_turn();
            }
            is_starving
        });
        if give_back.send((worker, hunger.total)).is_err() {
            return;
        }
    }
}

/// How much the calling thread starves for a core.
struct Starvation {
    /// Time that its work has lost, for any reason, since the reason was last looked for.
    lost: Duration,
    /// When that was.
    looked_at: Instant,
    /// How long it had waited for a core by then, in all; `None` if the kernel does not tell.
    waited: Option<Duration>,
    /// How long it has waited for a core since little was lost, as far as that was looked at.
    total: Duration,
}

impl Starvation {
    fn new() -> Self {
        let (lost, total) = (Duration::ZERO, Duration::ZERO);
        Self { lost, looked_at: Instant::now(), waited: waited_for_core(), total }
    }

    /// Whether it starves, now that its work has lost this much more time.
    fn is_too_much(&mut self, lost: Duration) -> bool {
        self.lost += lost;
        if self.lost <= LOST_MAX {
            return false;
        }
        // The time may have been lost to a slow device, or there was nothing to do. If the kernel
        // does not tell, the other thread may as well try.
        let before = std::mem::replace(&mut self.waited, waited_for_core());
        let hungry = match (before, self.waited) {
            (Some(before), Some(now)) => now.saturating_sub(before),
            _ => self.lost,
        };
        let since = self.looked_at.elapsed();
        self.looked_at += since;
        let lost = std::mem::take(&mut self.lost);
        self.count(lost, since, hungry)
    }

    /// The same, when it has `lost` part of the time `since` the last look, and `waited` for a core
    /// in that time.
    fn count(&mut self, lost: Duration, since: Duration, waited: Duration) -> bool {
        if lost * LOST_SHARE_MAX <= since {
            self.total = Duration::ZERO;
            return false;
        }
        self.total += waited;
        waited > LOST_MAX && !is_planted("starves")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_much_time_lost_to_others_on_the_core_is_hunger() {
        const MS: Duration = Duration::from_millis(1);
        let mut hunger = Starvation::new();
        assert!(!hunger.count(25 * MS, 100 * MS, 60 * MS), "a quarter");
        assert!(!hunger.count(25 * MS, 50 * MS, 10 * MS), "lost to something else");
        assert!(hunger.count(25 * MS, 50 * MS, 30 * MS));
        assert_eq!(hunger.total, 40 * MS, "since it was well fed");
        assert!(!hunger.count(25 * MS, 1000 * MS, 500 * MS), "seldom");
        assert_eq!(hunger.total, Duration::ZERO);
    }
}
