//! How long this machine keeps a runnable thread waiting: the part of every latency that no server
//! causes.
//!
//! A thread sleeps for a millisecond at a time and notes how late it wakes. If it is so late that
//! it has missed further wake-ups, these are counted as late, too. (In an open loop, the requests
//! that were due during a stall are counted likewise.) So the percentiles are the latencies of an
//! imaginary server that takes no time at all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::error::{Doing as _, Result};

const STEP: Duration = Duration::from_millis(1);

/// A running meter. Its thread ends on drop.
#[derive(Debug)]
pub struct StallMeter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    is_over: AtomicBool,
    /// How late the thread woke, in nanoseconds.
    late: Mutex<Histogram<u64>>,
}

impl StallMeter {
    /// Starts to measure.
    ///
    /// # Errors
    /// When the thread that measures can't be started.
    pub fn start() -> Result<Self> {
        let late = Histogram::new(3).expect("a histogram can have three significant digits");
        let shared = Arc::new(Shared { is_over: AtomicBool::new(false), late: Mutex::new(late) });
        let its_own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("stalls".into())
            .spawn(move || its_own.measure())
            .doing("starting the thread that measures stalls")?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The lateness that one wake-up in a thousand has exceeded so far, in microseconds.
    pub fn p999_us(&self) -> f64 {
        let late = self.shared.late.lock().unwrap_or_else(PoisonError::into_inner);
        late.value_at_percentile(99.9) as f64 / 1000.0
    }
}

impl Shared {
    fn measure(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let began = Instant::now();
            std::thread::sleep(STEP);
            let late = began.elapsed().saturating_sub(STEP);
            let (late, step) = (late.as_nanos() as u64, STEP.as_nanos() as u64);
            let mut histogram = self.late.lock().unwrap_or_else(PoisonError::into_inner);
            histogram.record_correct(late, step).expect("the histogram grows with its values");
        }
    }
}

impl Drop for StallMeter {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_wakes_late_but_not_by_much_more_than_it_sleeps() {
        let meter = StallMeter::start().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let samples = || meter.shared.late.lock().unwrap().len();
        while samples() < 20 {
            assert!(Instant::now() < deadline, "the thread has not woken 20 times in 20 seconds");
            std::thread::yield_now();
        }
        assert!(meter.p999_us() > 0.0);
        assert!(meter.p999_us() < 20e6);
    }
}
