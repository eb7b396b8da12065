//! Two threads that do the work on snapshots in turns. The work is the same in both threads, but
//! the two threads affect other threads differently.
//!
//! The first thread has the idle class (`SCHED_IDLE`, sched(7)): it runs when no other thread wants
//! its core. When Linux places a waking thread, it treats the core of an idle thread as free, and
//! the waking thread runs there at once. So the command thread and its clients do not wait for the
//! idle thread. But on a machine with no core to spare, the idle thread starves, and without
//! CAP_SYS_NICE it cannot leave its class. So there is a second thread, which is merely nice
//! (nice(2)). If the idle thread has lost too much time, or if the work is urgent, the nice thread
//! takes a turn. It hands the work back after a while.
//!
//! The [`Worker`] itself is passed back and forth, so that only one thread has it at a time.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use slimio_device::waited_for_core;
use slimio_planted::is_planted;

use super::thread::Order;
use super::worker::Worker;
use crate::worker::WorkerThread;

/// Niceness of the nice thread (nice(2)). With a higher niceness, the thread might starve as well,
/// while the log grows.
const NICENESS: i32 = 10;
/// The idle thread's turn ends if three conditions hold for the time since the thread's wait for a
/// core was last sampled:
///
/// - The work has lost more time than this. Time that the work will still make up for is not
///   counted.
/// - The lost time is more than the passed time divided by [`LOST_SHARE_MAX`].
/// - The idle thread has waited longer than this for a core.
const LOST_MAX: Duration = Duration::from_millis(20);
/// See [`LOST_MAX`]. A smaller loss slows only the snapshot, and only by the lost share of the
/// time. For everybody else, it is better that the idle thread keeps its turn: when the nice thread
/// ran instead, it cost clients under `appendfsync always` another tenth of their throughput.
const LOST_SHARE_MAX: u32 = 4;
/// Shortest turn of the nice thread, unless the work ends.
const NICE_TURN_MIN: Duration = Duration::from_millis(200);
/// The time that the idle thread waited for a core in its last turn is multiplied by this number.
/// The nice thread's turn lasts at least as long as the product. As a result, the work loses little
/// time while the idle thread hardly gets a core.
const NICE_PER_WAITED: u32 = 5;

/// The work, and for how long the idle thread waited for a core in the turn that has ended.
type Returned = (Box<Worker>, Duration);

/// Starts both threads. `work` makes the [`Worker`], which takes its orders from the given queue.
/// The nice thread, which is returned, ends only when the idle thread has ended.
///
/// # Errors
/// When a thread cannot be started.
pub(super) fn start(
    work: impl FnOnce(Receiver<Order>) -> Box<Worker> + Send + 'static,
) -> std::io::Result<WorkerThread<Order>> {
    let (give_back, returned) = channel();
    let idle = WorkerThread::start("snapshot-idle", move |turns: Receiver<Box<Worker>>| {
        slimio_device::give_way_entirely();
        take_idle_turns(&turns, &give_back);
    })?;
    // If this thread cannot be started, the idle thread ends, because nobody lends it the work.
    WorkerThread::start("snapshot", move |orders| {
        slimio_device::give_way(NICENESS);
        nice_turns(work(orders), &idle, &returned);
    })
}

/// Does the work until no more orders can come. To spare other threads, lends the work to the idle
/// thread.
fn nice_turns(
    mut worker: Box<Worker>,
    idle: &WorkerThread<Box<Worker>>,
    returned: &Receiver<Returned>,
) {
    // The first turn has no minimum, because nothing is known yet of how busy the cores are.
    let mut turn_ends = Instant::now();
    while worker.work(|worker| worker.is_paced() && Instant::now() >= turn_ends) {
        // The worker does not come back if the idle thread has panicked.
        let Ok(Ok((back, waited))) = idle.give(worker).map(|()| returned.recv()) else { return };
        worker = back;
        turn_ends = Instant::now() + NICE_TURN_MIN.max(waited * NICE_PER_WAITED);
    }
}

/// Does the work whenever it is lent to this thread, until this thread starves or the work is
/// urgent.
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

/// Measures how much the calling thread starves for a core.
struct Starvation {
    /// Time that the thread's work has lost, for any reason, since the last sample of `waited`.
    lost: Duration,
    /// When the last sample of `waited` was taken.
    looked_at: Instant,
    /// Total time that the thread had waited for a core at the last sample; `None` if the kernel
    /// does not tell.
    waited: Option<Duration>,
    /// Sum of the times that the thread has waited for a core. The sum begins anew at each sample
    /// at which little time was lost.
    total: Duration,
}

impl Starvation {
    fn new() -> Self {
        let (lost, total) = (Duration::ZERO, Duration::ZERO);
        Self { lost, looked_at: Instant::now(), waited: waited_for_core(), total }
    }

    /// Whether the thread starves, now that its work has lost this much more time.
    fn is_too_much(&mut self, lost: Duration) -> bool {
        self.lost += lost;
        if self.lost <= LOST_MAX {
            return false;
        }
        // The time may have been lost to a slow device, or because there was nothing to do, so the
        // time spent waiting for a core is sampled. If the kernel does not tell that time, all lost
        // time counts as time spent waiting for a core, so the nice thread may take a turn.
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

    /// Counts a sample, and returns whether the thread starves. In the time `since` the last
    /// sample, the thread's work has lost the time `lost`, and the thread has waited for a core for
    /// the time `waited`.
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
        assert!(
            !hunger.count(25 * MS, 100 * MS, 60 * MS),
            "a loss of a quarter of the time does not count"
        );
        assert!(
            !hunger.count(25 * MS, 50 * MS, 10 * MS),
            "the time was not lost to waiting for a core"
        );
        assert!(hunger.count(25 * MS, 50 * MS, 30 * MS));
        assert_eq!(hunger.total, 40 * MS, "only the waits since the last small loss are added up");
        assert!(
            !hunger.count(25 * MS, 1000 * MS, 500 * MS),
            "a loss of a fortieth of the time does not count"
        );
        assert_eq!(hunger.total, Duration::ZERO);
    }
}
