//! Threads that give way to other threads.

use std::time::Duration;

use crate::sys;

/// Longest time, in nanoseconds, that a background thread keeps a core when another thread wants
/// the core. Linux accepts no shorter time.
///
/// From Linux 6.6 on, a thread that wakes does not preempt a running thread whose time slice has
/// not ended, no matter how nice the running thread is. By default, a slice is 3 ms. A durable
/// write is a chain of wake-ups, so it loses much time in this way. The effect was measured on two
/// cores, with one other thread computing. In three of four runs, `appendfsync always` reached only
/// 0.5 to 0.6 of its usual rate. With the short slice for the computing thread, the server reached
/// 0.9 to 1.0 of its usual rate.
const SLICE_NS: u64 = 100_000;

/// The highest niceness, on the scale of nice(2).
const NICENESS_MAX: i32 = 19;

/// Makes the calling thread give way to others. The thread gets this `niceness`, on the scale of
/// nice(2). From Linux 6.12 on, the thread also gives up its core within 0.1 ms when another thread
/// wants the core. On older kernels, only the niceness has an effect.
///
/// If the kernel refuses, nothing changes. The thread then disturbs other threads more, but its
/// results are the same.
pub fn give_way(niceness: i32) {
    // A refusal is ignored, because the thread works correctly anyway.
    let _ = sys::set_schedule(libc::SCHED_OTHER, niceness, SLICE_NS);
}

/// Lets the calling thread run only while no other thread wants its core (`SCHED_IDLE`, sched(7)).
/// So the thread may starve. Without CAP_SYS_NICE, a thread cannot undo this.
///
/// If the kernel refuses, nothing changes.
pub fn give_way_entirely() {
    // A refusal is ignored, as in `give_way`. The time slice also applies under `SCHED_IDLE`.
    give_way(NICENESS_MAX);
    let _ = sys::set_schedule(libc::SCHED_IDLE, NICENESS_MAX, SLICE_NS);
}

/// The total time that the calling thread has been runnable without getting a core; `None` if the
/// kernel keeps no such statistics.
pub fn waited_for_core() -> Option<Duration> {
    // This file has three numbers: the time on a core, the time waiting for a core, and the number
    // of time slices (Documentation/scheduler/sched-stats).
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let waited_ns = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(waited_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field of the calling thread's `stat`, numbered as in proc(5).
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
            eprintln!("SKIPPED: the kernel does not report how long a thread waited for a core");
            return;
        };
        // Other threads compete for every core, so this thread has to wait for a core sooner or
        // later.
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
        // Kernels before 6.12 report a slice of 0 ns, and ignore the slice that the thread asked
        // for.
        let slice_ns = slice_ns.unwrap();
        assert!(slice_ns == 0 || slice_ns == SLICE_NS, "the slice is {slice_ns} ns");
    }
}
