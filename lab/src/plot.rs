//! A comparison as pictures: bars per row, latency by percentile, throughput over time. Fonts are compiled in.

use std::path::Path;

use slimio_plot::{Canvas, Ink};

use crate::compare::Comparison;
use crate::compare::Contender;
use crate::error::{Doing, Result};
use crate::scenario::Work;
use crate::server::ServerKind;

mod series;

/// Metrics shown as bars: file, metric, title.
const BARS: &[(&str, &str, &str)] = &[
    ("throughput.png", "requests_per_s", "requests per second (more is better)"),
    (
        "cpu.png",
        "server_cpu_us_per_request",
        "server CPU per request, microseconds (less is better)",
    ),
    ("tail.png", "latency_us_p999", "p99.9 latency, microseconds (less is better)"),
    ("replay.png", "replay_mb_per_s", "log replay, MB of payload per second (more is better)"),
    (
        "during.png",
        "during_per_without",
        "requests per second during a snapshot / without (more is better)",
    ),
    ("snapshot.png", "snapshot_s", "seconds of a snapshot under load (less is better)"),
    ("memory.png", "pss_peak_per_before", "memory at peak / before a snapshot (less is better)"),
    ("recovery.png", "recovery_mb_per_s", "recovery, MB of payload per second (more is better)"),
];
const LATENCY_FILE: &str = "latency.png";

const WIDTH: i32 = 1100;
const MARGIN: i32 = 30;
/// Where bars begin: left of it stand the rows' names.
const BARS_LEFT: i32 = 330;
/// Where the longest bar ends: right of it stand the numbers.
const BARS_RIGHT: i32 = 950;
const BAR_HEIGHT: i32 = 16;
const HEAD_HEIGHT: i32 = 80;
const LATENCY_HEIGHT: i32 = 640;
/// Percentiles marked on the axis, on which every further nine takes the same width.
const PERCENTILES: &[f64] = &[0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999];

/// Draws every picture that the comparison has numbers for into its directory; returns the names.
pub fn draw(comparison: &Comparison) -> Result<Vec<String>> {
    let out = &comparison.config.out;
    let mut names = Vec::new();
    for &(file, metric, title) in BARS {
        if let Some(canvas) = bars(comparison, metric, title) {
            write_png(&canvas, &out.join(file))?;
            names.push(file.to_owned());
        }
    }
    if let Some(canvas) = latency(comparison) {
        write_png(&canvas, &out.join(LATENCY_FILE))?;
        names.push(LATENCY_FILE.to_owned());
    }
    for (index, scenario) in comparison.config.scenarios.iter().enumerate() {
        if let Some(canvas) = series::panels(comparison, index) {
            let file = format!("over-time-{}.png", scenario.name);
            write_png(&canvas, &out.join(&file))?;
            names.push(file);
        }
    }
    Ok(names)
}

/// The colours of stock servers, of which there are not more in a picture that can be read.
const STOCK_INKS: &[Ink] = &[Ink::Grey, Ink::Orange, Ink::Red, Ink::Violet];

/// The colour of a server, by its position.
fn ink(servers: &[Contender], server: usize) -> Ink {
    match servers[server].kind {
        ServerKind::SlimIO => Ink::Blue,
        ServerKind::Stock => {
            let before = servers[..server].iter().filter(|other| other.kind == ServerKind::Stock);
            STOCK_INKS[before.count() % STOCK_INKS.len()]
        }
    }
}

/// One group of bars per row, each scaled to its own longest: rows differ by orders of magnitude.
fn bars(comparison: &Comparison, metric: &str, title: &str) -> Option<Canvas> {
    let servers = &comparison.config.servers;
    let mut groups = Vec::new();
    for (index, scenario) in comparison.config.scenarios.iter().enumerate() {
        let of = |server| comparison.runs.get(&(index, server))?.median(metric);
        let values = (0..servers.len()).filter_map(|server| Some((server, of(server)?)));
        let values: Vec<_> = values.collect();
        // Rows about log bytes are too short for anything else.
        let is_short = matches!(scenario.work, Work::LogBytes { .. });
        if !values.is_empty() && !is_short {
            groups.push((scenario, values));
        }
    }
    if groups.is_empty() {
        return None;
    }
    let group_height = BAR_HEIGHT * servers.len() as i32 + 14;
    let height = HEAD_HEIGHT + group_height * groups.len() as i32 + MARGIN;
    let mut canvas = Canvas::new(WIDTH, height);
    head(&mut canvas, comparison, title);
    let mut top = HEAD_HEIGHT;
    for (scenario, values) in groups {
        canvas.text(MARGIN, top, &format!("{}, {}", scenario.title, scenario.policy));
        let longest = values.iter().map(|&(_, value)| value).fold(f64::MIN_POSITIVE, f64::max);
        for (row, &(server, value)) in values.iter().enumerate() {
            let y = top + row as i32 * BAR_HEIGHT;
            let length = (f64::from(BARS_RIGHT - BARS_LEFT) * value / longest) as i32;
            canvas.bar((BARS_LEFT, y), (length.max(1), BAR_HEIGHT - 2), ink(servers, server));
            canvas.text(BARS_LEFT + length + 8, y, &number(value));
        }
        top += group_height;
    }
    Some(canvas)
}

fn head(canvas: &mut Canvas, comparison: &Comparison, title: &str) {
    canvas.title(MARGIN, 20, title);
    let mut x = MARGIN;
    let servers = &comparison.config.servers;
    for (server, contender) in servers.iter().enumerate() {
        canvas.bar((x, 48), (14, 12), ink(servers, server));
        canvas.text(x + 20, 47, &contender.name);
        x += 110;
    }
}

/// Latency by percentile of the open-loop rows, both axes logarithmic. Of several rounds, the median
/// at each percentile.
fn latency(comparison: &Comparison) -> Option<Canvas> {
    let servers = &comparison.config.servers;
    let mut curves = Vec::new();
    for (index, scenario) in comparison.config.scenarios.iter().enumerate() {
        if !scenario.name.starts_with("open-") {
            continue;
        }
        for (server, Contender { name, .. }) in servers.iter().enumerate() {
            let curve = comparison.runs.get(&(index, server)).map(crate::compare::Runs::curve);
            if let Some(curve) = curve.filter(|curve| !curve.is_empty()) {
                curves.push((server, format!("{name} {}", scenario.policy), curve));
            }
        }
    }
    let highest =
        curves.iter().flat_map(|(.., curve)| curve).map(|&(_, us)| us).fold(0.0, f64::max);
    if highest <= 0.0 {
        return None;
    }
    let decades = highest.log10().ceil().max(1.0);
    let mut canvas = Canvas::new(WIDTH, LATENCY_HEIGHT);
    let (left, right, bottom) = (90, WIDTH - 200, LATENCY_HEIGHT - 60);
    let x_of = |percentile: f64| {
        let nines = -(1.0 - (percentile / 100.0).min(0.999_99)).log10();
        left + (nines / 5.0 * f64::from(right - left)) as i32
    };
    let y_of =
        |us: f64| bottom - (us.max(1.0).log10() / decades * f64::from(bottom - HEAD_HEIGHT)) as i32;
    head(&mut canvas, comparison, "open loop at half of stock's capacity: latency by percentile");
    for &percentile in PERCENTILES {
        let x = x_of(percentile);
        canvas.line((x, HEAD_HEIGHT), (x, bottom), Ink::Pale);
        canvas.text(x - 14, bottom + 10, &percentile.to_string());
    }
    for decade in 0..=decades as i32 {
        let us = 10f64.powi(decade);
        canvas.line((left, y_of(us)), (right, y_of(us)), Ink::Pale);
        canvas.text(10, y_of(us) - 6, &format!("{us} us"));
    }
    for (server, name, curve) in &curves {
        for pair in curve.windows(2) {
            let [from, to] =
                [pair[0], pair[1]].map(|(percentile, us)| (x_of(percentile), y_of(us)));
            canvas.line(from, to, ink(servers, *server));
        }
        if let Some(&(percentile, us)) = curve.last() {
            canvas.text(x_of(percentile) + 8, y_of(us) - 6, name);
        }
    }
    Some(canvas)
}

fn number(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn write_png(canvas: &Canvas, path: &Path) -> Result<()> {
    slimio_plot::write_png(canvas, path).doing(format!("writing {}", path.display()))
}
