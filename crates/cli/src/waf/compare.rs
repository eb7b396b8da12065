//! `slimio waf --model`: computes a drive's write amplification by formula, and compares it with
//! that of a simulated drive. Does so for FIFO and greedy cleaning, without trims, and for both
//! meanings of the trim ratio.

use clap::Args;
use slimio_ssd::Victims;
use slimio_ssd::model::{Trims, alpha_of_spare};
use slimio_ssd::workload::{Case, CompareError, Compared, compare, on_all_cores};

use super::SizeArgs;
use crate::tools::say;

/// Default spare factor.
const SPARE: f64 = 0.1;

/// The simulated drive, and the trims that the host sends to it.
#[derive(Debug, Args)]
#[command(next_help_heading = "By formula")]
pub(super) struct Drive {
    /// Number of trimmed pages per written page
    #[arg(long, default_value_t = 0.1, allow_negative_numbers = true)]
    trim: f64,
    #[command(flatten)]
    size: SizeArgs,
}

impl Drive {
    pub(super) fn run(&self, spare: Option<f64>) -> Result<(), String> {
        let spare = spare.unwrap_or(SPARE);
        let alpha = alpha_of_spare(spare).map_err(|error| error.to_string())?;
        // If the trimmed pages are drawn from all pages, every valid ratio has a steady state. So
        // an error means that the ratio itself is invalid.
        Trims::AnyPage.live_share(self.trim).map_err(|error| error.to_string())?;
        let writes = [
            ("no trims", Trims::AnyPage, 0.0),
            (Trims::AnyPage.name(), Trims::AnyPage, self.trim),
            (Trims::LivePage.name(), Trims::LivePage, self.trim),
        ];
        let cases: Vec<Case> = writes
            .iter()
            .flat_map(|&(_, trims, ratio)| {
                let of = |victims| Case { spare, trims, ratio, victims };
                [of(Victims::Fifo), of(Victims::Greedy)]
            })
            .collect();
        let results = on_all_cores(&cases, |case| compare(case, self.size.size(), self.size.seed));
        if let Some(Err(CompareError::Drive(error))) = results.first() {
            return Err(format!("{error} (or simulate more --units)"));
        }
        say(&format!(
            "spare factor {spare}, alpha {alpha:.4}; uniform writes, {} trims per write",
            self.trim
        ));
        say(&format!(
            "simulated: {} units of {} pages, seed {}{}",
            self.size.units,
            self.size.unit_pages,
            self.size.seed,
            rounding(spare, &results)
        ));
        say("");
        say(
            "WAF                     live   FIFO: model  simulated    error   greedy: model  simulated    error",
        );
        for ((name, trims, _), pair) in writes.iter().zip(results.chunks(2)) {
            match pair {
                [Ok(fifo), Ok(greedy)] => say(&line(name, fifo, greedy)),
                [Err(error), _] | [_, Err(error)] => {
                    say(&format!("{name:<21} {error}"));
                }
                _ => unreachable!("{trims:?} has two cases"),
            }
        }
        let settled = results.iter().flatten().map(|compared| compared.steady.settled_after).max();
        say("");
        say(&format!(
            "Measured at steady state, while the host wrote the capacity six times. The WAF is taken each \
             time that the host has written the capacity once. A drive counts as steady when three \
             successive WAFs differ by at most 0.4 % and have no trend. The slowest case was steady after \
             the host had written the capacity {} times.",
            settled.unwrap_or_default()
        ));
        Ok(())
    }
}

/// A text that names the real spare factor if rounding to whole units has changed the factor that
/// was asked for. Otherwise the text is empty.
fn rounding(asked: f64, results: &[Result<Compared, CompareError>]) -> String {
    let real = results.iter().flatten().next().map_or(asked, |compared| compared.spare);
    if (real / asked - 1.0).abs() < 1e-6 {
        return String::new();
    }
    format!("; rounded to whole units, the spare factor is {real:.5}, which the formulas use, too")
}

fn line(name: &str, fifo: &Compared, greedy: &Compared) -> String {
    let numbers = |compared: &Compared| {
        let Compared { model, steady, .. } = compared;
        format!("{model:>7.3}  {:>9.3}  {:>+5.2} %", steady.waf, compared.error() * 100.0)
    };
    let live = fifo.steady.live_share;
    format!("{name:<21} {live:>6.3}       {}        {}", numbers(fifo), numbers(greedy))
}
