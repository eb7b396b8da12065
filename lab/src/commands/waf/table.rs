//! Tables and the picture of `slimio-lab waf`. A lifetime is a kind of data that is deleted
//! together, such as the log.

use std::fmt::Write as _;

use slimio_plot::{Axis, Chart, Curve, Ink, Panel};

use super::{DRIVES, HANDLES, PAPER, Subject};
use crate::error::{BenchError, Result};
use crate::server::Policy;

const HEAD: &str = "\
| on the drive | `appendfsync` | fullest | host GiB | media GiB | WAF | WAF of the second half | most units \
of several lifetimes | in the paper |
|---|---|---:|---:|---:|---:|---:|---:|---|
";

const DRIVES_HEAD: &str = "\
WAF of the whole run, and WAF of its second half. Each column is a drive. Its title gives the drive's spare NAND,
and the share of free units at which the collector begins in the background.

| on the drive | `appendfsync` |";

/// A trace, replayed on one drive.
pub(super) struct Row {
    /// The name of the subject and the drive.
    pub(super) name: String,
    pub(super) subject: Subject,
    pub(super) handles: u16,
    pub(super) is_persistent: bool,
    pub(super) points: Vec<Point>,
}

/// A trace, replayed on several drives.
pub(super) struct DriveRow {
    pub(super) name: String,
    pub(super) policy: Policy,
    /// One row for each of [`DRIVES`].
    pub(super) drives: Vec<Row>,
}

/// Counters of the drive at one moment of a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    host_bytes: f64,
    media_bytes: f64,
    /// Share of the exported blocks that hold data.
    utilization: f64,
    /// Number of reclaim units that hold blocks of several lifetimes.
    mixed_units: f64,
}

impl Row {
    /// WAF of the whole run.
    pub(super) fn waf(&self) -> f64 {
        self.points.last().map_or(f64::NAN, |last| last.media_bytes / last.host_bytes)
    }

    /// WAF of the second half of the run. The half is measured in bytes that the host wrote.
    fn waf_late(&self) -> f64 {
        let Some(last) = self.points.last() else { return f64::NAN };
        let middle = self.points.iter().find(|point| point.host_bytes * 2.0 >= last.host_bytes);
        middle.map_or(f64::NAN, |middle| {
            (last.media_bytes - middle.media_bytes) / (last.host_bytes - middle.host_bytes)
        })
    }

    /// The largest number, at any moment, of reclaim units that hold several lifetimes. If a file
    /// system did the writes, the number is unknown.
    fn mixed_units_max(&self) -> String {
        if !self.subject.is_slimio {
            return "unknown".into();
        }
        self.most(|point| point.mixed_units).to_string()
    }

    fn most(&self, of: impl Fn(&Point) -> f64) -> f64 {
        self.points.iter().map(of).fold(0.0, f64::max)
    }

    fn in_paper(&self) -> String {
        let paper = PAPER.iter().find(|(policy, ..)| *policy == self.subject.policy);
        match paper.filter(|_| self.subject.is_in_paper) {
            Some((_, stock, _)) if !self.subject.is_slimio => format!("{stock} (F2FS)"),
            Some((_, _, slimio)) if self.handles > 1 => (*slimio).to_owned(),
            _ => "not reported".to_owned(),
        }
    }
}

/// Fields of a point, as `slimio waf --points` prints them, with one line per point.
const POINT_FIELDS: &str = "handles,seconds,host_bytes,media_bytes,utilization,mixed_units";

pub(super) fn points(text: &str) -> Result<Vec<Point>> {
    let mut lines = text.lines();
    if lines.next() != Some(POINT_FIELDS) {
        return Err(BenchError::Server(format!(
            "the output of slimio waf does not begin with {POINT_FIELDS}"
        )));
    }
    let unreadable =
        |line| BenchError::Server(format!("slimio waf printed a line that is not a point: {line}"));
    lines.map(|line| point(line).ok_or_else(|| unreadable(line))).collect()
}

fn point(line: &str) -> Option<Point> {
    let fields: Vec<f64> =
        line.split(',').map(str::parse).collect::<std::result::Result<_, _>>().ok()?;
    let [_, _, host_bytes, media_bytes, utilization, mixed_units] = fields[..] else { return None };
    Some(Point { host_bytes, media_bytes, utilization, mixed_units })
}

/// The table with a row for each trace on each drive.
pub(super) fn table(rows: &[Row]) -> String {
    let mut text = HEAD.to_owned();
    for row in rows {
        let Some(last) = row.points.last() else { continue };
        let gib = |bytes: f64| format!("{:.2}", bytes / f64::from(1 << 30));
        let _ = writeln!(
            text,
            "| {} | {} | {:.2} | {} | {} | {:.3} | {:.3} | {} | {} |",
            row.name,
            row.subject.policy,
            row.most(|point| point.utilization),
            gib(last.host_bytes),
            gib(last.media_bytes),
            row.waf(),
            row.waf_late(),
            row.mixed_units_max(),
            row.in_paper(),
        );
    }
    text
}

/// The table with a row for each trace and a column for each drive.
pub(super) fn drives_table(rows: &[DriveRow]) -> String {
    let mut text = DRIVES_HEAD.to_owned();
    for drive in DRIVES {
        let _ = write!(text, " {} spare, from {} free |", drive.spare, drive.background);
    }
    let _ = writeln!(text, "\n|---|---|{}", "---:|".repeat(DRIVES.len()));
    for row in rows {
        let _ = write!(text, "| {} | {} |", row.name, row.policy);
        for drive in &row.drives {
            let _ = write!(text, " {:.3}, {:.3} |", drive.waf(), drive.waf_late());
        }
        text.push('\n');
    }
    text
}

/// The picture: a panel for each policy. Each curve shows the WAF since the beginning, against the
/// bytes that the host has written.
pub(super) fn chart(rows: &[Row]) -> Chart {
    const INKS: [Ink; 6] = [Ink::Grey, Ink::Orange, Ink::Red, Ink::Violet, Ink::Green, Ink::Blue];
    let panel = |policy: Policy| {
        // SlimIO gets only two curves: one without data placement, and one with the largest number
        // of handles.
        let most = HANDLES.iter().max();
        let is_shown = |row: &&Row| {
            let is_once = row.handles == 1 || row.is_persistent && Some(&row.handles) == most;
            row.subject.policy == policy && is_once
        };
        let rows = rows.iter().filter(is_shown);
        let curves = rows.zip(INKS.into_iter().cycle()).map(|(row, ink)| {
            let waf = |point: &Point| {
                let gib = point.host_bytes / f64::from(1 << 30);
                (gib, point.media_bytes / point.host_bytes)
            };
            let points = row.points.iter().map(waf).collect();
            let name = row.name.trim_start_matches("stock Redis, ").to_owned();
            Curve::line(name, ink, points)
        });
        Panel {
            title: format!("appendfsync {policy}"),
            x: Axis::from(0.0, "written by the host (GiB)"),
            y: Axis::from(1.0, "WAF (bytes to media / host)"),
            curves: curves.collect(),
            ..Panel::default()
        }
    };
    let title = "write amplification since the beginning".into();
    let policies = PAPER.iter().map(|(policy, ..)| *policy);
    let shown = policies.filter(|policy| rows.iter().any(|row| row.subject.policy == *policy));
    Chart { title, panels: shown.map(panel).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_that_can_not_be_read_is_an_error() {
        let line = "8,1.5,4096,8192,0.25,3";
        let read = points(&format!("{POINT_FIELDS}\n{line}\n"))
            .expect("the line looks as `slimio waf` prints it");
        assert_eq!(
            read,
            [Point {
                host_bytes: 4096.0,
                media_bytes: 8192.0,
                utilization: 0.25,
                mixed_units: 3.0
            }]
        );
        for bad in ["8,1.5,4096,8192", "8,1.5,4096,much,0.25,3", "", "error"] {
            let refused = points(&format!("{POINT_FIELDS}\n{line}\n{bad}\n")).unwrap_err();
            assert_eq!(
                refused.to_string(),
                format!("slimio waf printed a line that is not a point: {bad}")
            );
        }
        points(line).expect_err("an output without the names of the fields is refused");
        points("").expect_err("an empty output is refused");
    }
}
