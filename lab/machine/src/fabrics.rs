//! `cargo x lab fabrics`: compares the emulated drive with the kernel's own NVMe/TCP target. fio
//! measures both in one boot of the lab's virtual machine.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use slimio_host::Failure;

use crate::guest::said;
use crate::tables::{median, range};
use crate::tools::lab_dir;
use crate::{fio, rounds};

const TIME_LIMIT: Duration = Duration::from_secs(900);
const SCRIPT: &str = include_str!("fabrics.sh");
const TABLE: &str = "fabrics.md";
/// Parameters of the script, besides the number of rounds.
const SIZE_MIB: u32 = 256;
const SECONDS: u32 = 2;
const WORKLOADS: [(&str, u32); 4] =
    [("randread", 1), ("randread", 32), ("randwrite", 1), ("randwrite", 32)];
const TARGETS: [&str; 2] = ["drive", "memory"];
/// The measurement of two programs that only send each other data in turn.
const ECHO: (&str, (&str, u32)) = ("echo", ("pingpong", 1));

/// Measures, and writes the table to the lab's folder. The number of rounds is the only argument,
/// and may be left out.
pub(super) fn run_all(args: &[String]) -> Result<(), Failure> {
    let rounds = rounds(args, "fabrics")?;
    let parameters = format!("rounds={rounds} size_mib={SIZE_MIB} seconds={SECONDS}");
    let script = format!("{parameters}\n{SCRIPT}");
    let mut measured = Measured::default();
    fio::run("fabrics", &["nvmet_tcp", "nvme_tcp", "brd"], TIME_LIMIT, script, |line| {
        measured.take(line);
    })?;
    let table = measured.table(rounds).ok_or("a round lacks a measurement")?;
    println!("\n{table}");
    let path = lab_dir().join(TABLE);
    fs::write(&path, table).map_err(|error| said(&path, &error))
}

/// What the machine has printed.
#[derive(Debug, Default)]
struct Measured {
    /// Target, workload, queue depth and operations per second of each measurement, in the order of
    /// the rounds.
    rows: Vec<(String, String, u32, f64)>,
}

impl Measured {
    fn take(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["row", target, workload, depth, rate] = words.as_slice()
            && let (Ok(depth), Ok(rate)) = (depth.parse(), rate.parse())
        {
            self.rows.push(((*target).to_owned(), (*workload).to_owned(), depth, rate));
        }
    }

    /// Operations per second in each round.
    fn rates(&self, target: &str, workload: (&str, u32)) -> Vec<f64> {
        let of = |row: &&(String, String, u32, f64)| {
            row.0 == target && (row.1.as_str(), row.2) == workload
        };
        self.rows.iter().filter(of).map(|row| row.3).collect()
    }

    /// The results as a table. `None` if a round lacks a measurement.
    fn table(&self, rounds: usize) -> Option<String> {
        let mut table = "| fio, 4 KiB | depth | kernel's target, IOPS | emulated drive, IOPS | ratio | its range |\n\
            |---|---:|---:|---:|---:|---|\n"
            .to_owned();
        for workload in WORKLOADS {
            let [drive, memory] = TARGETS.map(|target| self.rates(target, workload));
            if drive.len() != rounds || memory.len() != rounds {
                return None;
            }
            let ratios: Vec<f64> = drive.iter().zip(&memory).map(|(a, b)| a / b).collect();
            let (low, high) = range(&ratios)?;
            let (name, depth) = workload;
            writeln!(
                table,
                "| {name} | {depth} | {:.0} | {:.0} | {:.2} × | {low:.2} to {high:.2} |",
                median(memory)?,
                median(drive)?,
                median(ratios)?,
            )
            .expect("writing to a String cannot fail");
        }
        let echoes = self.rates(ECHO.0, ECHO.1);
        if echoes.len() != rounds {
            return None;
        }
        writeln!(
            table,
            "\nTwo programs that only send each other 4 KiB in turn, over the same loopback: {:.0} times a second.",
            median(echoes)?,
        )
        .expect("writing to a String cannot fail");
        Some(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_measurements_of_one_round() {
        let mut measured = Measured::default();
        measured.take("round 1 of 2");
        measured.take("row echo pingpong 1 40");
        measured.take("row echo pingpong 1 60");
        for (name, depth) in WORKLOADS {
            for (drive, memory) in [(100, 200), (90, 100)] {
                measured.take(&format!("row drive {name} {depth} {drive}"));
                assert_eq!(measured.table(2), None);
                measured.take(&format!("row memory {name} {depth} {memory}"));
            }
        }
        let table = measured.table(2).unwrap();
        assert!(table.contains("| randwrite | 32 | 150 | 95 | 0.70 × | 0.50 to 0.90 |"), "{table}");
        assert!(table.contains("in turn, over the same loopback: 50 times a second"), "{table}");
        assert_eq!(measured.table(3), None);
    }
}
