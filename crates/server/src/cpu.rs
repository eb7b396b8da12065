//! CPU time of the command thread: the time that its work takes, without the time for which the
//! thread waits.

use std::time::Duration;

use rustix::time::{ClockId, DynamicClockId, clock_gettime_dynamic};

/// CPU time of the calling thread so far; zero if a system-call filter refuses the call. Costs a
/// system call of some 0.3 µs.
pub(crate) fn thread_cpu_time() -> Duration {
    // rustix's simpler `clock_gettime` would panic if a filter refused the call.
    match clock_gettime_dynamic(DynamicClockId::Known(ClockId::ThreadCPUTime)) {
        // Neither field is ever negative.
        Ok(time) => Duration::new(time.tv_sec as u64, time.tv_nsec as u32),
        Err(_) => Duration::ZERO,
    }
}

/// A stopwatch of CPU time. A lap is one command or a part of one.
#[derive(Debug)]
pub(crate) struct CpuLap {
    began: Duration,
}

impl CpuLap {
    pub(crate) fn begin() -> Self {
        Self { began: thread_cpu_time() }
    }

    /// Ends the lap and returns its CPU time; the next lap begins.
    pub(crate) fn end(&mut self) -> Duration {
        let now = thread_cpu_time();
        now.saturating_sub(std::mem::replace(&mut self.began, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_work_takes_cpu_time() {
        let mut lap = CpuLap::begin();
        std::thread::sleep(Duration::from_millis(50));
        assert!(lap.end() < Duration::from_millis(40), "sleeping takes hardly any CPU time");
        let until = thread_cpu_time() + Duration::from_millis(2);
        while thread_cpu_time() < until {}
        assert!(lap.end() >= Duration::from_millis(2));
    }
}
