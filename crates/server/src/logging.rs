//! Writes messages to standard error or a file, one line each, dated in UTC.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::config::ConfigError;

/// Sends messages of at least `level` (a word of `loglevel`) to the file, or to standard error if
/// the file's name is empty. A second call in one process changes only the level.
///
/// # Errors
/// If the file cannot be opened.
pub fn init(level: &str, file: &Path) -> Result<(), ConfigError> {
    let file = if file.as_os_str().is_empty() {
        None
    } else {
        let mut options = OpenOptions::new();
        let opened = options.create(true).append(true).mode(0o600).open(file).map_err(|e| {
            ConfigError(format!("cannot open the log file {}: {e}; check logfile", file.display()))
        })?;
        Some(Mutex::new(opened))
    };
    set_level(level);
    // This fails only if the process runs several servers, and another has set a logger already.
    let _ = log::set_boxed_logger(Box::new(Lines { file }));
    Ok(())
}

/// Sets the level to `level`, a word of `loglevel`.
pub fn set_level(level: &str) {
    log::set_max_level(match level {
        "debug" => LevelFilter::Trace,
        "verbose" => LevelFilter::Debug,
        "warning" => LevelFilter::Warn,
        "nothing" => LevelFilter::Off,
        _ => LevelFilter::Info,
    });
}

struct Lines {
    file: Option<Mutex<File>>,
}

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let word = match record.level() {
            Level::Error => "error  ",
            Level::Warn => "warning",
            Level::Info => "notice ",
            Level::Debug => "verbose",
            Level::Trace => "debug  ",
        };
        let line = format!(
            "{} {} {word} {}\n",
            std::process::id(),
            date(SystemTime::now()),
            record.args()
        );
        // If a message cannot be written, the error cannot be reported either.
        let _ = match &self.file {
            Some(file) => file
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .write_all(line.as_bytes()),
            None => std::io::stderr().write_all(line.as_bytes()),
        };
    }

    fn flush(&self) {}
}

/// A time in the form `2026-02-28T23:59:58.123Z`.
fn date(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    // Days are counted from 1 March of year 0, so that a leap day is the last day of its year. The
    // calendar repeats every 400 years.
    let day = seconds / 86_400 + 719_468;
    let (cycle, day_of_cycle) = (day / 146_097, day % 146_097);
    let year_of_cycle =
        (day_of_cycle - day_of_cycle / 1460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year =
        day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = cycle * 400 + year_of_cycle + carry;
    format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z",
        since.subsec_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |ms: u64| date(UNIX_EPOCH + Duration::from_millis(ms));
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_399_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(at(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(at(1_772_323_199_000), "2026-02-28T23:59:59.000Z");
        assert_eq!(at(1_772_323_200_000), "2026-03-01T00:00:00.000Z");
        assert_eq!(at(1_798_761_599_001), "2026-12-31T23:59:59.001Z");
    }
}
