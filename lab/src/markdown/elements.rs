//! The table of the scenarios that work on elements of sets, hashes and lists: the CPU time of a
//! request on each server.

use std::fmt::Write as _;

use super::{number, ratio};
use crate::compare::{Comparison, Contender};
use crate::scenario::Work;

const CPU: &str = "server_cpu_us_per_request";

/// Writes one line for each scenario on elements that was run, with each server's CPU time for a
/// request. If no scenario on elements was run, writes nothing.
pub(super) fn table(comparison: &Comparison, text: &mut String) {
    let rows = comparison.config.scenarios.iter().enumerate();
    let mut rows =
        rows.filter(|(_, scenario)| matches!(scenario.work, Work::Elements { .. })).peekable();
    if rows.peek().is_none() {
        return;
    }
    let servers = &comparison.config.servers;
    let titles: Vec<&str> = servers.iter().map(Contender::title).collect();
    let to_what = if comparison.stock_count() > 1 { " to the best" } else { "" };
    let _ = writeln!(
        text,
        "## Sets, hashes and lists: server CPU us/request\n\n\
         The large set, hash and list begin with {} elements.\n\n\
         | | {} | ratio{to_what} |\n|---|{}---:|",
        comparison.config.scale.element_count,
        titles.join(" | "),
        "---:|".repeat(titles.len()),
    );
    for (index, scenario) in rows {
        let _ = write!(text, "| {} |", scenario.title);
        for server in 0..servers.len() {
            let runs = comparison.runs.get(&(index, server));
            let _ = write!(text, " {} |", number(runs.and_then(|runs| runs.median(CPU))));
        }
        let _ = writeln!(text, " {} |", ratio(comparison.ratio(scenario.name, CPU)));
    }
    text.push('\n');
}
