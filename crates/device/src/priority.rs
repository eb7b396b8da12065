//! Threads that make way for others.

use crate::sys;

/// Longest time that a thread in the background keeps a core when another wants it, in nanoseconds:
/// the least that Linux takes.
///
/// A thread that wakes does not interrupt one that is within its slice (Linux from 6.6 on), however
/// nice that is, and a slice is 3 ms. A durable write is a chain of wake-ups: with one thread that
/// computes beside it on two cores, `always` did 0.5 to 0.6 of its rate in three runs of four, with
/// this slice 0.9 to 1.0.
const SLICE_NS: u64 = 100_000;

/// Makes the calling thread give way to others: `niceness` as nice(2) has it, and cores are given
/// up within 0.1 ms (Linux from 6.12 on; before, only the niceness counts).
///
/// Where the kernel refuses, the thread stays as it is: ruder, and as correct.
pub fn give_way(niceness: i32) {
    // See above: nothing depends on it.
    let _ = sys::set_schedule(niceness, SLICE_NS);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_gives_way_is_nicer_and_the_others_are_as_before() {
        let niceness = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let (_, fields) = stat.rsplit_once(')').unwrap();
            fields.split_whitespace().nth(16).unwrap().parse::<i32>().unwrap()
        };
        let before = niceness();
        let wanted = (before + 7).min(19);
        let thread = std::thread::spawn(move || {
            give_way(wanted);
            (niceness(), sys::slice_ns())
        });
        let (nicer, slice_ns) = thread.join().unwrap();
        assert_eq!((niceness(), nicer), (before, wanted));
        // Kernels before 6.12 say 0, and keep their own.
        let slice_ns = slice_ns.unwrap();
        assert!(slice_ns == 0 || slice_ns == SLICE_NS, "{slice_ns} ns");
    }
}
