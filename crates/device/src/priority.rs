//! Threads that give way to others.

use std::time::Duration;

use crate::sys;

/// Longest time that a thread in the background keeps a core when another wants it, in nanoseconds:
/// the least that Linux accepts.
///
/// A thread that wakes does not preempt one that is within its slice (Linux from 6.6 on), however
/// nice that is, and a slice is 3 ms. A durable write is a chain of wake-ups: with one computing
/// thread beside it on two cores, `always` reached 0.5 to 0.6 of its rate in three runs of four,
/// with this slice 0.9 to 1.0.
const SLICE_NS: u64 = 100_000;

/// The highest niceness, as nice(2) has it.
const NICENESS_MAX: i32 = 19;

/// Makes the calling thread give way to others: `niceness` as nice(2) has it, and cores are given
/// up within 0.1 ms (Linux from 6.12 on; before, only the niceness counts).
///
/// Where the kernel refuses, the thread stays as it is: less considerate, but as correct.
pub fn give_way(niceness: i32) {
    // See above: nothing depends on it.
    let _ = sys::set_schedule(libc::SCHED_OTHER, niceness, SLICE_NS);
}

/// Lets the calling thread run only while nobody else wants its core (`SCHED_IDLE`, sched(7)): it
/// may starve. Without CAP_SYS_NICE, a thread cannot take that back.
///
/// Where the kernel refuses, the thread stays as it is.
pub fn give_way_entirely() {
    // As above. The slice stays in force in the new class.
    give_way(NICENESS_MAX);
    let _ = sys::set_schedule(libc::SCHED_IDLE, NICENESS_MAX, SLICE_NS);
}

/// For how long the calling thread has waited for a core while it could have run, since it began;
/// `None` where the kernel keeps no such statistics.
pub fn waited_for_core() -> Option<Duration> {
    // Documentation/scheduler/sched-stats: time on a core, time that it waited for one, turns.
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let waited_ns = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(waited_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field of the calling thread's stat, counted from behind its name (proc(5)).
    fn stat_field(number: usize) -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        fields.split_whitespace().nth(number - 3).unwrap().parse().unwrap()
    }

    fn niceness() -> i32 {
        stat_field(19)
    }

    #[test]
    fn a_thread_that_gives_way_entirely_is_of_idle_class_and_the_others_are_as_before() {
        let policy = || stat_field(41);
        let before = policy();
        let thread = std::thread::spawn(move || {
            give_way_entirely();
            policy()
        });
        assert_eq!((policy(), thread.join().unwrap()), (before, libc::SCHED_IDLE));
    }

    #[test]
    fn what_a_thread_waits_for_a_core_is_told() {
        let begun = std::time::Instant::now();
        let Some(before) = waited_for_core() else {
            eprintln!("SKIPPED: the kernel does not tell");
            return;
        };
        // Other threads that compete for a core: sooner or later it waits for one of them.
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let is_relaxed = std::sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().unwrap().get() {
                scope.spawn(|| {
                    while !is_over.load(is_relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            while waited_for_core().unwrap() == before {}
            is_over.store(true, is_relaxed);
        });
        assert!(waited_for_core().unwrap() <= before + begun.elapsed());
    }

    #[test]
    fn a_thread_that_gives_way_is_nicer_and_the_others_are_as_before() {
        let before = niceness();
        let wanted = (before + 7).min(19);
        let thread = std::thread::spawn(move || {
            give_way(wanted);
            (niceness(), sys::slice_ns())
        });
        let (nicer, slice_ns) = thread.join().unwrap();
        assert_eq!((niceness(), nicer), (before, wanted));
        // Kernels before 6.12 report 0, and keep their own slice.
        let slice_ns = slice_ns.unwrap();
        assert!(slice_ns == 0 || slice_ns == SLICE_NS, "{slice_ns} ns");
    }
}
