//! Captures the crate's log messages, for tests that wait for them.

use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// How long to wait for a message.
const PATIENCE: Duration = Duration::from_secs(60);

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
static MORE: Condvar = Condvar::new();

struct Words;

impl log::Log for Words {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        say(record.args().to_string());
    }

    fn flush(&self) {}
}

/// Starts to capture log messages.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Words).expect("no other logger is set");
        log::set_max_level(log::LevelFilter::Info);
    });
}

/// Adds a message as if it had been logged.
pub(crate) fn say(text: String) {
    SAID.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    MORE.notify_all();
}

/// Forgets the messages about `subject`.
pub(crate) fn forget(subject: &str) {
    SAID.lock().unwrap_or_else(PoisonError::into_inner).retain(|text| !text.contains(subject));
}

/// Waits until there is a message about `subject`, and returns the first such message.
///
/// # Panics
/// When no such message comes within [`PATIENCE`].
pub(crate) fn first_about(subject: &str) -> String {
    let deadline = Instant::now() + PATIENCE;
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(found) = said.iter().find(|text| text.contains(subject)) {
            return found.clone();
        }
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "no message about {subject}: {said:?}");
        said = MORE.wait_timeout(said, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}
