//! Shows the latency monitor's samples to people: `LATENCY GRAPH` and `LATENCY DOCTOR`.

use std::fmt::Write as _;

use super::{Latency, Sample, Series};
use crate::config::Config;

/// A graph shows at most this many samples, the newest ones.
const COLUMNS_MAX: usize = 80;
/// Number of lines of a graph.
const ROWS: usize = 4;
/// The characters for the top of a column, from the lowest to the highest within a line.
const TOPS: [char; 3] = ['_', 'o', '#'];

/// Draws the newest samples of an event as columns. Below each column, the sample's age is written
/// from top to bottom.
pub(crate) fn graph(event: &str, series: &Series, now_s: i64) -> String {
    let skipped = series.samples.len().saturating_sub(COLUMNS_MAX);
    let shown: Vec<Sample> = series.samples.iter().skip(skipped).copied().collect();
    let high = shown.iter().map(|sample| sample.ms).max().unwrap_or(0);
    let low = shown.iter().map(|sample| sample.ms).min().unwrap_or(0);
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{event} - high {high} ms, low {low} ms (all time high {} ms)\n{}",
        series.ms_max,
        "-".repeat(COLUMNS_MAX)
    );
    let steps = ROWS * TOPS.len() - 1;
    let heights: Vec<usize> = shown
        .iter()
        .map(|sample| (sample.ms - low) as usize * steps / ((high - low).max(1) as usize))
        .collect();
    for row in (0..ROWS).rev() {
        let line = heights.iter().map(|height| match (height / TOPS.len()).cmp(&row) {
            std::cmp::Ordering::Less => ' ',
            std::cmp::Ordering::Equal => TOPS[height % TOPS.len()],
            std::cmp::Ordering::Greater => '|',
        });
        text.extend(line);
        text.push('\n');
    }
    text.push('\n');
    let ages: Vec<String> = shown.iter().map(|sample| age(now_s - sample.at_s)).collect();
    for row in 0..ages.iter().map(String::len).max().unwrap_or(0) {
        text.extend(ages.iter().map(|age| age.chars().nth(row).unwrap_or(' ')));
        text.push('\n');
    }
    text
}

/// A length of time in the form `12s`, `3m`, `4h` or `5d`.
fn age(seconds: i64) -> String {
    match seconds.max(0) {
        s @ 0..60 => format!("{s}s"),
        s @ 60..3600 => format!("{}m", s / 60),
        s @ 3600..86_400 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

/// Says which delays were observed, and what can be done about them.
pub(crate) fn doctor(latency: &Latency, config: &Config) -> String {
    if config.int("latency-monitor-threshold") == 0 {
        return "The latency monitor is off. Turn it on with CONFIG SET latency-monitor-threshold \
                <milliseconds>, and ask again after a while.\n"
            .into();
    }
    if latency.events().len() == 0 {
        return "No latency spike was observed since the monitor was turned on or reset.\n".into();
    }
    let mut text = String::from("Latency spikes were observed:\n\n");
    let mut advice = Vec::new();
    for (number, (event, series)) in latency.events().enumerate() {
        let _ = writeln!(text, "{}. {event}: {}", number + 1, summary(series));
        for line in advice_on(event, config) {
            if !advice.contains(&line) {
                advice.push(line);
            }
        }
    }
    text.push_str("\nWhat can be done:\n\n");
    for line in advice {
        let _ = writeln!(text, "- {line}");
    }
    text
}

fn summary(series: &Series) -> String {
    let count = series.samples.len() as u64;
    let mean = series.samples.iter().map(|sample| sample.ms).sum::<u64>() / count.max(1);
    let deviation =
        series.samples.iter().map(|sample| sample.ms.abs_diff(mean)).sum::<u64>() / count.max(1);
    let span = match (series.samples.front(), series.samples.back()) {
        (Some(first), Some(last)) => (last.at_s - first.at_s).max(1),
        _ => 1,
    };
    format!(
        "{count} latency spikes (average {mean}ms, mean deviation {deviation}ms, period {:.2} \
         sec). Worst all time event {}ms.",
        span as f64 / count.max(1) as f64,
        series.ms_max
    )
}

fn advice_on(event: &str, config: &Config) -> Vec<String> {
    let threshold_us = config.int("latency-monitor-threshold") * 1000;
    let slower_than_us = config.int("slowlog-log-slower-than");
    let mut lines = Vec::new();
    match event {
        "command" | "fast-command" => {
            if slower_than_us < 0 || slower_than_us > threshold_us {
                lines.push(format!(
                    "SLOWLOG lacks some commands that this monitor counts as slow. To see all of \
                     them, use CONFIG SET slowlog-log-slower-than {threshold_us}."
                ));
            }
            lines.push("SLOWLOG GET names the commands that took long.".into());
            lines.push(
                "If a fast command took long, it was interrupted: check that the machine has idle \
                 processors, and that it does not swap."
                    .into(),
            );
        }
        "expire-cycle" => lines.push(
            "Many keys expire at the same time: spread their expiry times, or lower \
             active-expire-effort."
                .into(),
        ),
        "eviction-cycle" | "eviction-del" => lines
            .push("Keys are evicted all the time: raise maxmemory, or write fewer bytes.".into()),
        name if name.starts_with("aof-") => {
            lines.push(
                "The device is slow to make writes durable: INFO slimio shows the I/O path in use, \
                 and why no better path is used. Check what else writes to the device."
                    .into(),
            );
            if config.choice("appendfsync") == "always" {
                lines.push(
                    "If losing a second of writes is acceptable, use CONFIG SET appendfsync \
                     everysec."
                        .into(),
                );
            }
        }
        _ => {}
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn latency(samples: &[(i64, u64)]) -> Latency {
        let mut latency = Latency::default();
        for &(at_s, ms) in samples {
            let took = Duration::from_millis(ms);
            latency.note("command", at_s, took, Some(Duration::ZERO));
        }
        latency
    }

    #[test]
    fn a_graph_rises_with_its_samples() {
        let latency = latency(&[(0, 10), (3600, 20), (4000, 120)]);
        let (name, series) = latency.event(b"command").unwrap();
        let text = graph(name, series, 4000);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "command - high 120 ms, low 10 ms (all time high 120 ms)");
        assert_eq!(lines[2..6], ["  #", "  |", "  |", "_o|"]);
        assert_eq!(lines[7..], ["160", "hms", "   "][..2]);
    }

    #[test]
    fn the_doctor_says_what_it_saw() {
        let mut config = Config::default();
        assert!(doctor(&Latency::default(), &config).contains("is off"));
        config.set("latency-monitor-threshold", "5").unwrap();
        assert!(doctor(&Latency::default(), &config).contains("No latency spike"));
        let text = doctor(&latency(&[(0, 10), (100, 30)]), &config);
        assert!(text.contains("2 latency spikes (average 20ms, mean deviation 10ms"), "{text}");
        assert!(text.contains("slowlog-log-slower-than 5000"), "{text}");
    }
}
