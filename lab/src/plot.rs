//! A comparison as pictures: bars per row, latency by percentile, throughput over time. A row is a
//! scenario with the runs of all servers. The pictures are drawn from the file of the comparison's
//! runs, so they can be drawn again without running anything.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use slimio_plot::{Axis, Canvas, Chart, Curve, Ink, Panel, Scale};

use crate::compare::{RUNS_FILE, median};
use crate::error::{Doing, Result};
use crate::scenario::{self, Scenario, Work};
use crate::server::ServerKind;

/// Metrics shown as bars: file, metric, title.
const BARS: &[(&str, &str, &str)] = &[
    ("throughput.svg", "requests_per_s", "requests per second (more is better)"),
    (
        "cpu.svg",
        "server_cpu_us_per_request",
        "server CPU per request, microseconds (less is better)",
    ),
    ("tail.svg", "latency_us_p999", "p99.9 latency, microseconds (less is better)"),
    ("replay.svg", "replay_mb_per_s", "log replay, MB of payload per second (more is better)"),
    (
        "during.svg",
        "during_per_without",
        "requests per second during a snapshot / without (more is better)",
    ),
    ("snapshot.svg", "snapshot_s", "seconds of a snapshot under load (less is better)"),
    ("memory.svg", "pss_peak_per_before", "memory at peak / before a snapshot (less is better)"),
    ("recovery.svg", "recovery_mb_per_s", "recovery, MB of payload per second (more is better)"),
];

const WIDTH: i32 = 1100;
const MARGIN: i32 = 30;
/// Left end of the bars. The rows' names are to the left.
const BARS_LEFT: i32 = 400;
/// Right end of the longest bar. The bar's number is to the right.
const BARS_RIGHT: i32 = 980;
const BAR_HEIGHT: i32 = 20;
const HEAD_HEIGHT: i32 = 90;

/// Draws every picture for which the runs in `out` have numbers. Writes the pictures to `out`, and
/// returns their file names.
pub fn draw(out: &Path) -> Result<Vec<String>> {
    let found = Found::read(&out.join(RUNS_FILE))?;
    let bars = BARS
        .iter()
        .filter_map(|&(file, metric, title)| Some((file.to_owned(), found.bars(metric, title)?)));
    let latency = found.latency().map(|chart| ("latency.svg".to_owned(), chart.svg()));
    let over_time = found.rows.iter().filter_map(|row| {
        Some((format!("over-time-{}.svg", row.scenario.name), found.over_time(row)?.svg()))
    });
    let pictures = bars.chain(latency).chain(over_time).map(|(name, svg)| {
        fs::write(out.join(&name), svg).doing(format!("writing {name} to {}", out.display()))?;
        Ok(name)
    });
    pictures.collect()
}

/// The contents of a file of runs.
#[derive(Default)]
struct Found {
    /// Names of the servers, in the order in which each round runs them.
    servers: Vec<String>,
    rows: Vec<Row>,
}

struct Row {
    scenario: &'static Scenario,
    /// The runs of each server, by the server's position in `servers`.
    runs: BTreeMap<usize, Vec<Value>>,
}

impl Found {
    fn read(path: &Path) -> Result<Self> {
        let doing = || format!("reading {}", path.display());
        let mut found = Self::default();
        for line in fs::read_to_string(path).doing(doing())?.lines() {
            let run: Value = serde_json::from_str(line).doing(doing())?;
            let name = run["server"].as_str().unwrap_or_default().to_owned();
            // Rows that this version does not know are left out, because they have no title.
            let Some(scenario) = run["scenario"].as_str().and_then(scenario::named) else {
                continue;
            };
            let server = found.servers.iter().position(|it| *it == name).unwrap_or_else(|| {
                found.servers.push(name);
                found.servers.len() - 1
            });
            if found.rows.last().is_none_or(|row| row.scenario.name != scenario.name) {
                found.rows.push(Row { scenario, runs: BTreeMap::new() });
            }
            if let Some(row) = found.rows.last_mut() {
                row.runs.entry(server).or_default().push(run);
            }
        }
        Ok(found)
    }

    /// The colour of a server. With more than four stock servers, colours repeat.
    fn ink(&self, server: usize) -> Ink {
        let slimio = ServerKind::SlimIO.to_string();
        if self.servers[server] == slimio {
            return Ink::Blue;
        }
        let stock = self.servers[..server].iter().filter(|name| **name != slimio).count();
        [Ink::Grey, Ink::Orange, Ink::Red, Ink::Violet][stock % 4]
    }

    /// One group of bars per row. Each group is scaled to its longest bar, because rows differ by
    /// orders of magnitude.
    fn bars(&self, metric: &str, title: &str) -> Option<String> {
        let mut groups = Vec::new();
        for Row { scenario, runs } in &self.rows {
            let of = |runs: &[Value]| {
                median(runs.iter().filter_map(|run| run["metrics"][metric].as_f64()).collect())
            };
            let values = runs.iter().filter_map(|(&server, runs)| Some((server, of(runs)?)));
            let values: Vec<(usize, f64)> = values.collect();
            // Rows that measure log bytes are left out. Their runs are too short for any other
            // metric, and log bytes have no bars.
            let is_short = matches!(scenario.work, Work::LogBytes { .. });
            if !values.is_empty() && !is_short {
                groups.push((scenario, values));
            }
        }
        if groups.is_empty() {
            return None;
        }
        let group_height = BAR_HEIGHT * self.servers.len() as i32 + 14;
        let height = HEAD_HEIGHT + group_height * groups.len() as i32 + MARGIN;
        Some(Canvas::svg(WIDTH, height, |canvas| {
            canvas.title(MARGIN, 20, title);
            let names = self.servers.iter().enumerate();
            canvas.legend(MARGIN, 53, names.map(|(server, name)| (&**name, self.ink(server))));
            let mut top = HEAD_HEIGHT;
            for (scenario, values) in groups {
                canvas.text(MARGIN, top, &format!("{}, {}", scenario.title, scenario.policy));
                let longest =
                    values.iter().map(|&(_, value)| value).fold(f64::MIN_POSITIVE, f64::max);
                for (row, &(server, value)) in values.iter().enumerate() {
                    let y = top + row as i32 * BAR_HEIGHT;
                    let length = (f64::from(BARS_RIGHT - BARS_LEFT) * value / longest) as i32;
                    canvas.bar((BARS_LEFT, y), (length.max(1), BAR_HEIGHT - 2), self.ink(server));
                    canvas.text(BARS_LEFT + length + 8, y + 2, &number(value));
                }
                top += group_height;
            }
        }))
    }

    /// Latency by percentile, for the open-loop rows. Both axes are logarithmic.
    fn latency(&self) -> Option<Chart> {
        let rows = self.rows.iter().filter(|row| row.scenario.name.starts_with("open-"));
        let curves: Vec<Curve> = rows
            .flat_map(|Row { scenario, runs }| {
                runs.iter().map(move |(&server, runs)| {
                    let name = format!("{}, {}", self.servers[server], scenario.policy);
                    Curve::line(name, self.ink(server), by_percentile(runs))
                })
            })
            .filter(|curve| !curve.points.is_empty())
            .collect();
        let x = Axis { scale: Scale::Nines, ..Axis::from(0.0, "percentile (%)") };
        let y = Axis { scale: Scale::Log, ..Axis::from(1.0, "latency (µs)") };
        let title = "open loop at half of stock's capacity: latency by percentile".into();
        let is_any = !curves.is_empty();
        is_any.then(|| Chart { title, panels: vec![Panel { x, y, curves, ..Panel::default() }] })
    }

    /// Requests per second of all servers over time, with their snapshots. Only the first round is
    /// shown, because medians over time would hide short events.
    fn over_time(&self, Row { scenario, runs }: &Row) -> Option<Chart> {
        let curves: Vec<Curve> = runs
            .iter()
            .filter_map(|(&server, runs)| {
                let series = &runs.first()?["series"];
                let points = pairs(&series["requests_per_s_by_s"]);
                let curve = Curve::line(&self.servers[server], self.ink(server), points);
                Some(Curve { spans: pairs(&series["snapshots_from_to_s"]), ..curve })
            })
            .filter(|curve| !curve.points.is_empty())
            .collect();
        let panel = Panel {
            title: "a tint with a bar at the top: the server of that colour writes a snapshot"
                .into(),
            x: Axis::from(0.0, "time (s)"),
            y: Axis::from(0.0, "requests per second"),
            is_low: false,
            curves,
        };
        let title =
            format!("{}, {}: requests per second over time", scenario.title, scenario.policy);
        (!panel.curves.is_empty()).then(|| Chart { title, panels: vec![panel] })
    }
}

/// Pairs of a percentile and a latency in microseconds, which is the median over the rounds.
fn by_percentile(runs: &[Value]) -> Vec<(f64, f64)> {
    let curves = runs.iter().map(|run| pairs(&run["latency_us_by_percentile"]));
    let mut at: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for (percentile, us) in curves.flatten() {
        // The bits of the percentile are the key, because `f64` has no total order. The bits of
        // positive numbers have the same order as the numbers.
        at.entry(percentile.to_bits()).or_default().push(us);
    }
    let medians = at.into_iter().map(|(bits, us)| Some((f64::from_bits(bits), median(us)?)));
    medians.flatten().collect()
}

/// Reads a list of pairs of numbers. The result is empty if `list` is not a list.
fn pairs(list: &Value) -> Vec<(f64, f64)> {
    let pairs = list.as_array().into_iter().flatten();
    pairs.filter_map(|pair| Some((pair[0].as_f64()?, pair[1].as_f64()?))).collect()
}

fn number(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_medians_of_rounds() {
        let run =
            |us: f64| serde_json::json!({ "latency_us_by_percentile": [[50.0, us], [99.9, 9.0]] });
        assert_eq!(by_percentile(&[1.0, 4.0, 2.0].map(run)), [(50.0, 2.0), (99.9, 9.0)]);
        assert_eq!(by_percentile(&[Value::Null]), []);
    }
}
