//! The summary of a long run: each step with its time, all failures, and everything that was
//! skipped.

use std::panic::resume_unwind;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::Failure;

/// If a line of a test's output starts with this word, the summary of the run repeats the line.
pub const SKIP_MARK: &str = "SKIPPED";

/// Collects the steps of a run. A failed step does not keep the next from running.
#[derive(Debug, Default)]
pub struct Report {
    steps: Vec<Step>,
    skips: Vec<String>,
    counts: Counts,
}

/// A step that [`Report::together`] runs.
pub type Run<'a> = Box<dyn FnOnce(&mut Report) -> Result<(), Failure> + Send + 'a>;

#[derive(Debug)]
struct Step {
    name: String,
    took: Duration,
    failure: Option<Failure>,
}

/// Sums over the `test result:` lines that cargo and the black-box runner print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    ignored: u64,
}

impl Report {
    /// Runs a step, and records its time and its failure. Returns whether the step succeeded.
    pub fn step(&mut self, name: &str, run: impl FnOnce(&mut Self) -> Result<(), Failure>) -> bool {
        eprintln!("\n=== {name}");
        let started = Instant::now();
        let failure = run(self).err();
        if let Some(Failure(sentence)) = &failure {
            eprintln!("{name}: {sentence}");
        }
        let succeeded = failure.is_none();
        self.steps.push(Step { name: name.to_owned(), took: started.elapsed(), failure });
        succeeded
    }

    /// Runs steps at the same time, and waits for all of them. Use this for steps that leave the
    /// processor idle for much of their time. Their output is mixed.
    pub fn together<'a>(&mut self, steps: Vec<(&'a str, Run<'a>)>) {
        let one = |name, run| {
            let mut part = Self::default();
            part.step(name, run);
            part
        };
        let parts: Vec<Self> = thread::scope(|scope| {
            let steps = steps.into_iter();
            let parts: Vec<_> =
                steps.map(|(name, run)| scope.spawn(move || one(name, run))).collect();
            let parts = parts.into_iter().map(ScopedJoinHandle::join);
            parts.map(|part| part.unwrap_or_else(|panic| resume_unwind(panic))).collect()
        });
        for Self { steps, skips, counts } in parts {
            self.steps.extend(steps);
            self.skips.extend(skips);
            self.counts.add(counts);
        }
    }

    /// Adds a line to the summary: `what` says what was not tested, and why.
    pub fn skip(&mut self, what: &str) {
        self.skips.push(what.to_owned());
    }

    /// Reads a line of output. If the line has counts of tests, adds the counts to the summary. If
    /// the line starts with [`SKIP_MARK`], adds the rest of the line to the summary.
    pub fn see(&mut self, line: &str) {
        if let Some(what) = line.strip_prefix(SKIP_MARK) {
            self.skip(what.trim_start_matches(':').trim());
        }
        if let Some(counts) = Counts::parse(line) {
            self.counts.add(counts);
        }
    }

    /// Prints the summary. Fails if a step failed.
    pub fn finish(self) -> Result<(), Failure> {
        println!("\n=== summary");
        for step in &self.steps {
            let verdict = if step.failure.is_none() { "ok" } else { "FAILED" };
            println!("{:>7.1} s  {:<38} {verdict}", step.took.as_secs_f64(), step.name);
        }
        for what in &self.skips {
            println!("SKIPPED: {what}");
        }
        let Counts { passed, failed, ignored } = self.counts;
        println!(
            "{passed} tests passed, {failed} failed, {ignored} ignored, {} things skipped",
            self.skips.len()
        );
        // The last message repeats the reasons of all failures, because often only the end of a
        // long run's output is kept.
        let failed: Vec<String> = self
            .steps
            .into_iter()
            .filter_map(|step| step.failure.map(|Failure(why)| format!("{}: {why}", step.name)))
            .collect();
        if failed.is_empty() {
            println!("all green");
            return Ok(());
        }
        Err(format!("not green: {}", failed.join("; ")).into())
    }
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// Parses `test result: ok. 12 passed; 0 failed; 1 ignored; …`.
    pub fn parse(line: &str) -> Option<Self> {
        let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let mut counts = Self::default();
        for part in numbers.split("; ") {
            let Some((number, what)) = part.split_once(' ') else { continue };
            let Ok(number) = number.parse() else { continue };
            match what {
                "passed" => counts.passed = number,
                "failed" => counts.failed = number,
                "ignored" => counts.ignored = number,
                _ => {}
            }
        }
        Some(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_come_from_the_line_that_cargo_prints() {
        let line =
            "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out";
        assert_eq!(Counts::parse(line), Some(Counts { passed: 12, failed: 3, ignored: 1 }));
        assert_eq!(Counts::parse("test wal::tests::torn ... ok"), None);
    }

    #[test]
    fn a_failed_step_fails_the_run_and_the_next_one_still_runs() {
        let mut report = Report::default();
        assert!(!report.step("first", |_| Err("broken".into())));
        assert!(report.step("second", |report| {
            report.see("SKIPPED: dm-flakey: the kernel has no device-mapper");
            Ok(())
        }));
        assert_eq!(report.skips, ["dm-flakey: the kernel has no device-mapper"]);
        let Failure(sentence) = report.finish().unwrap_err();
        assert_eq!(sentence, "not green: first: broken");
    }
}
