//! Judges what a session reports: whether it ran tests, and whether all of them passed.

use slimio_host::report::{Counts, SKIP_MARK};

#[derive(Debug, Default)]
pub(super) struct Verdicts {
    count: usize,
    /// The first line that shows a failure, with the reason.
    wrong: Option<String>,
}

impl Verdicts {
    pub(super) fn see(&mut self, line: &str) {
        let wrong = match Counts::parse(line) {
            Some(counts) => {
                self.count += 1;
                if counts.failed > 0 {
                    Some("tests failed")
                } else if counts.passed == 0 {
                    Some("a test program has run no test: has the test been renamed?")
                } else {
                    None
                }
            }
            None if line.starts_with(SKIP_MARK) => Some("the lab does not allow skipped tests"),
            None => None,
        };
        if let Some(wrong) = wrong.filter(|_| self.wrong.is_none()) {
            self.wrong = Some(format!("{wrong} (`{line}`)"));
        }
    }

    /// Checks that the session has tested something, and that all its tests passed. `status` is the
    /// session's exit status.
    ///
    /// # Errors
    /// If a test failed or was skipped, if no test ran, or if `status` is not 0. The error is a
    /// sentence that says why.
    pub(super) fn finish(self, status: i32) -> Result<(), String> {
        match self.wrong {
            Some(wrong) => Err(wrong),
            None if status != 0 => Err(format!("the session ended with status {status}")),
            None if self.count == 0 => Err("the session ended without a test result".into()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finish(lines: &[&str], status: i32) -> Result<(), String> {
        let mut verdicts = Verdicts::default();
        for line in lines {
            verdicts.see(line);
        }
        verdicts.finish(status)
    }

    const GOOD: &str = "test result: ok. 3 passed; 0 failed; 0 ignored";

    #[test]
    fn a_session_that_has_checked_nothing_has_failed() {
        assert_eq!(finish(&["hello", GOOD, GOOD], 0), Ok(()));
        assert_eq!(finish(&["hello"], 0), Err("the session ended without a test result".into()));
        assert_eq!(finish(&[GOOD], 3), Err("the session ended with status 3".into()));
        let filtered = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out";
        assert!(finish(&[GOOD, filtered, GOOD], 0).unwrap_err().contains("has run no test"));
        let skipped = "SKIPPED: a namespace: SLIMIO_NVME_PLAIN is not set";
        assert!(finish(&[skipped, GOOD], 0).unwrap_err().contains("SLIMIO_NVME_PLAIN"));
    }

    /// A session with a failed test has failed, even if its exit status is 0. The exit status is
    /// only that of the script's last command.
    #[test]
    fn a_failure_counts_whatever_comes_behind_it() {
        let bad = "test result: FAILED. 2 passed; 1 failed; 0 ignored";
        assert!(finish(&[bad, GOOD], 0).unwrap_err().contains("tests failed"));
    }
}
