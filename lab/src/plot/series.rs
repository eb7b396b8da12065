//! Requests per second over time, a panel per server, snapshots shaded. All panels of a row have
//! the same axes. They show the first round: medians over time would hide short events.

use slimio_plot::{Canvas, Ink, grid, rounded};

use super::{HEAD_HEIGHT, MARGIN, WIDTH, head, ink};
use crate::compare::Comparison;
use crate::series::Series;

const LEFT: i32 = 90;
const PANEL_HEIGHT: i32 = 260;
/// Between a panel and the next: the axis with its numbers.
const GAP: i32 = 50;

/// `None` when the row has no series.
pub(super) fn panels(comparison: &Comparison, index: usize) -> Option<Canvas> {
    let servers = &comparison.config.servers;
    let mut panels: Vec<(usize, &Series)> = Vec::new();
    for server in 0..servers.len() {
        let results = comparison.runs.get(&(index, server)).map(|runs| &runs.results);
        let series = results.and_then(|results| results.first()?.series.as_ref());
        panels.extend(series.map(|series| (server, series)));
    }
    let points = || panels.iter().flat_map(|(_, series)| &series.points);
    let time_max = points().map(|&(time, _)| time).fold(0.0, f64::max);
    let rate_max = points().map(|&(_, rate)| rate).fold(0.0, f64::max);
    if time_max <= 0.0 || rate_max <= 0.0 {
        return None;
    }
    let scenario = comparison.config.scenarios[index];
    let height = HEAD_HEIGHT + (PANEL_HEIGHT + GAP) * panels.len() as i32;
    let mut canvas = Canvas::new(WIDTH, height);
    let title = format!("{}, {}: requests per second over time", scenario.title, scenario.policy);
    head(&mut canvas, comparison, &title);
    for (row, (server, series)) in panels.iter().enumerate() {
        let top = HEAD_HEIGHT + row as i32 * (PANEL_HEIGHT + GAP);
        let panel = Panel { top, time_max, rate_max };
        panel.draw(&mut canvas, series, ink(servers, *server));
    }
    Some(canvas)
}

struct Panel {
    top: i32,
    /// Seconds at the right edge.
    time_max: f64,
    /// Requests per second at the top.
    rate_max: f64,
}

impl Panel {
    fn x(&self, time: f64) -> i32 {
        let width = f64::from(WIDTH - MARGIN - LEFT);
        LEFT + (time.min(self.time_max) / self.time_max * width) as i32
    }

    fn y(&self, rate: f64) -> i32 {
        self.top + PANEL_HEIGHT - (rate / self.rate_max * f64::from(PANEL_HEIGHT)) as i32
    }

    fn draw(&self, canvas: &mut Canvas, series: &Series, ink: Ink) {
        let bottom = self.top + PANEL_HEIGHT;
        for &(from, to) in &series.snapshots {
            let (left, right) = (self.x(from), self.x(to));
            canvas.bar((left, self.top), ((right - left).max(1), PANEL_HEIGHT), Ink::Shade);
        }
        for rate in grid(0.0, self.rate_max) {
            canvas.line((LEFT, self.y(rate)), (WIDTH - MARGIN, self.y(rate)), Ink::Pale);
            canvas.text(10, self.y(rate) - 6, &format!("{rate:.0}"));
        }
        for time in grid(0.0, self.time_max) {
            canvas.line((self.x(time), self.top), (self.x(time), bottom), Ink::Pale);
            canvas.text(self.x(time) - 8, bottom + 8, &format!("{} s", rounded(time)));
        }
        for pair in series.points.windows(2) {
            let [from, to] = [pair[0], pair[1]].map(|(time, rate)| (self.x(time), self.y(rate)));
            canvas.line(from, to, ink);
        }
    }
}
