//! CPU time of the command thread: the time that its work takes, without the time it has to wait.

use std::time::Duration;

use rustix::time::{ClockId, DynamicClockId, clock_gettime_dynamic};

/// CPU time of the calling thread so far; zero where a system-call filter refuses to tell. Costs a
/// system call of some 0.3 µs.
pub(crate) fn thread_cpu_time() -> Duration {
    // The other function of this name panics where the call is refused.
    match clock_gettime_dynamic(DynamicClockId::Known(ClockId::ThreadCPUTime)) {
        // Neither is ever negative.
        Ok(time) => Duration::new(time.tv_sec as u64, time.tv_nsec as u32),
        Err(_) => Duration::ZERO,
    }
}

/// Laps of CPU time, one per command or part of one.
#[derive(Debug, Default)]
pub(crate) struct CpuLap {
    began: Duration,
}

impl CpuLap {
    pub(crate) fn begin(&mut self) {
        self.began = thread_cpu_time();
    }

    /// What the lap took; the next one begins.
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
        let mut lap = CpuLap::default();
        lap.begin();
        std::thread::sleep(Duration::from_millis(50));
        assert!(lap.end() < Duration::from_millis(40), "sleeping is no work");
        let until = thread_cpu_time() + Duration::from_millis(2);
        while thread_cpu_time() < until {}
        assert!(lap.end() >= Duration::from_millis(2));
    }
}
