//! `cargo x lab trim`: fio writes and trims emulated drives over NVMe/TCP. The write amplification
//! that each drive counts is compared with the value of a formula in `slimio_ssd::model`.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use slimio_host::Failure;
use slimio_ssd::model::{ModelError, Trims, Units, effective_alpha, fifo_finite, greedy};

use crate::fio;
use crate::guest::said;
use crate::tools::lab_dir;

const TIME_LIMIT: Duration = Duration::from_secs(3600);
const SCRIPT: &str = include_str!("trim.sh");
const TABLE: &str = "trim.md";
const SIZE_MIB: u32 = 64;
const UNIT_KIB: u32 = 64;
const PAGE_KIB: u32 = 4;
/// This many times the capacity is written before the first measured window.
const SETTLE: u32 = 8;
/// Number of measured windows. In each window, [`WRITES`] times the capacity is written.
const WINDOWS: usize = 4;
const WRITES: u32 = 2;
/// The drives. They differ from all drives in the tables of `docs/write-amplification.md`.
const POINTS: [Point; 6] = [
    Point { spare_percent: 14, trims_percent: 12, victims: Victims::Fifo },
    Point { spare_percent: 18, trims_percent: 25, victims: Victims::Fifo },
    Point { spare_percent: 24, trims_percent: 7, victims: Victims::Fifo },
    Point { spare_percent: 13, trims_percent: 25, victims: Victims::Greedy },
    Point { spare_percent: 17, trims_percent: 7, victims: Victims::Greedy },
    Point { spare_percent: 22, trims_percent: 15, victims: Victims::Greedy },
];

#[derive(Clone, Copy, Debug)]
enum Victims {
    Fifo,
    Greedy,
}

impl Victims {
    const fn name(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Greedy => "greedy",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Point {
    /// The drive's option `spare`, in percent. The drive keeps a part of this spare NAND free.
    spare_percent: u32,
    /// How many trims fio is asked to make for 100 writes.
    trims_percent: u32,
    victims: Victims,
}

/// Measures the drives, and writes the table to the lab's folder.
pub(super) fn run_all(args: &[String]) -> Result<(), Failure> {
    if !args.is_empty() {
        return Err("cargo x lab trim takes no arguments".into());
    }
    let points: Vec<String> = POINTS
        .iter()
        .map(|at| format!("{}:{}:{}", at.spare_percent, at.trims_percent, at.victims.name()))
        .collect();
    let script = format!(
        "size_mib={SIZE_MIB} unit_kib={UNIT_KIB} settle={SETTLE} windows={WINDOWS} writes={WRITES} points='{}'\n{SCRIPT}",
        points.join(" ")
    );
    let mut measured = Measured::default();
    fio::run("trim", &["nvme_tcp"], TIME_LIMIT, script, |line| measured.take(line))?;
    let table = measured.table().map_err(|error| error.to_string())?;
    let table = table.ok_or("the measurement of a drive lacks a window")?;
    println!("\n{table}");
    let path = lab_dir().join(TABLE);
    fs::write(&path, table).map_err(|error| said(&path, &error))
}

/// The state of a drive when a window ends. (The first row of a drive is its state before the first
/// window.)
#[derive(Clone, Copy, Debug)]
struct Row {
    written_sectors: f64,
    trimmed_sectors: f64,
    units: f64,
    units_free: f64,
    mapped_bytes: f64,
    host_bytes: f64,
    media_bytes: f64,
}

/// What the machine has printed: the rows of each point.
#[derive(Debug, Default)]
struct Measured {
    rows: [Vec<Row>; POINTS.len()],
}

impl Measured {
    fn take(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["row", point, numbers @ ..] = words.as_slice() else { return };
        let numbers: Result<Vec<f64>, _> = numbers.iter().map(|word| word.parse()).collect();
        let point = point.parse::<usize>().ok().and_then(|point| point.checked_sub(1));
        if let Some(rows) = point.and_then(|point| self.rows.get_mut(point))
            && let Ok(
                [
                    written_sectors,
                    trimmed_sectors,
                    units,
                    units_free,
                    mapped_bytes,
                    host_bytes,
                    media_bytes,
                ],
            ) = numbers.as_deref()
        {
            rows.push(Row {
                written_sectors: *written_sectors,
                trimmed_sectors: *trimmed_sectors,
                units: *units,
                units_free: *units_free,
                mapped_bytes: *mapped_bytes,
                host_bytes: *host_bytes,
                media_bytes: *media_bytes,
            });
        }
    }

    /// The results as a table. `None` if a window is missing.
    fn table(&self) -> Result<Option<String>, ModelError> {
        let mut table = "| collector | spare | trims per write | live, model | live | WAF, model | WAF | error |\n\
            |---|---:|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
        for (point, rows) in POINTS.iter().zip(&self.rows) {
            let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(None) };
            if rows.len() != WINDOWS + 1 {
                return Ok(None);
            }
            let ratio = (last.trimmed_sectors - first.trimmed_sectors)
                / (last.written_sectors - first.written_sectors);
            let waf = (last.media_bytes - first.media_bytes) / (last.host_bytes - first.host_bytes);
            let mean = |of: fn(&Row) -> f64| rows.iter().map(of).sum::<f64>() / rows.len() as f64;
            let live = mean(|row| row.mapped_bytes) / f64::from(SIZE_MIB << 20);
            let kept_free = rows.iter().map(|row| row.units_free).fold(f64::MAX, f64::min);
            let count = first.units - kept_free;
            let model = point.predicted(count, ratio)?;
            writeln!(
                table,
                "| {} | {:.1} % | {ratio:.4} | {:.4} | {live:.4} | {model:.4} | {waf:.4} | {:+.2} % |",
                point.victims.name(),
                100.0 * (1.0 - f64::from(USER_UNITS) / count),
                Trims::AnyPage.live_share(ratio)?,
                100.0 * (waf / model - 1.0),
            )
            .expect("writing to a String cannot fail");
        }
        Ok(Some(table))
    }
}

const USER_UNITS: u32 = SIZE_MIB * 1024 / UNIT_KIB;

impl Point {
    /// The write amplification by the formula, for a drive whose data may lie in `unit_count`
    /// units.
    fn predicted(&self, unit_count: f64, ratio: f64) -> Result<f64, ModelError> {
        let (user_units, unit_pages) = (USER_UNITS, UNIT_KIB / PAGE_KIB);
        let live_share = Trims::AnyPage.live_share(ratio)?;
        match self.victims {
            Victims::Fifo => {
                let unit_count = unit_count as u32;
                fifo_finite(&Units { user_units, unit_count, unit_pages, live_share })
            }
            Victims::Greedy => {
                greedy(effective_alpha(unit_count / f64::from(user_units), live_share)?, unit_pages)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_is_missing_makes_no_table() {
        let mut measured = Measured::default();
        measured.take("fio-3.33");
        measured.take("row 7 0 0 0 0 0 0 0");
        measured.take("row 1 0 0 0");
        for point in 1..=POINTS.len() {
            for window in 0..=WINDOWS {
                assert_eq!(measured.table().unwrap(), None);
                let (written, mapped) = (100 * window, 0.8 * f64::from(SIZE_MIB << 20));
                let (trimmed, media) = (written / 4, 2 * written);
                measured.take(&format!(
                    "row {point} {written} {trimmed} 1300 {} {mapped} {written} {media}",
                    60 + window
                ));
            }
        }
        let table = measured.table().unwrap().unwrap();
        assert!(
            table.contains("| 0.2500 | 0.8000 | 0.8000 | 1.6909 | 2.0000 | +18.28 %"),
            "{table}"
        );
    }
}
