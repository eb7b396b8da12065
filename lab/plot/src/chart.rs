//! Curves over two axes, in panels below one another. Curves to be compared are in one panel.

use std::iter::once;
use std::ops::Range;

use plotters::coord::ranged1d::{BoldPoints, DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::{ChartBuilder, Circle, Color, PathElement, Rectangle};

use crate::canvas::{Area, Canvas, Drawn, Ink, bold, plain, svg};

/// A title and its panels.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The title of the chart.
    pub title: String,
    /// The panels, from the top down.
    pub panels: Vec<Panel>,
}

/// Curves that share their axes.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// The title of the panel.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Whether the panel is half as high as other panels.
    pub is_low: bool,
    /// The curves. Later curves are drawn over earlier curves.
    pub curves: Vec<Curve>,
}

/// An axis, which ends at the largest of its numbers.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    /// The quantity on the axis, with its unit.
    pub title: String,
    /// The number at which the axis begins; `None` for the smallest of the numbers.
    pub from: Option<f64>,
    /// How numbers become places on this axis.
    pub scale: Scale,
}

/// How numbers become places on an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences take the same width.
    #[default]
    Linear,
    /// Each factor of ten takes the same width. Numbers below 1 lie where 1 lies.
    Log,
    /// For percentiles: each further nine (90, 99, 99.9, …) takes the same width.
    Nines,
}

/// Points that belong together, which are drawn in one colour.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The curve's name in the legend. If the name is empty, the curve is not in the legend.
    pub name: String,
    /// The colour of the curve.
    pub ink: Ink,
    /// How the points are drawn.
    pub mark: Mark,
    /// Pairs of x and y; pairs that are not finite are left out.
    pub points: Vec<(f64, f64)>,
    /// Ranges of x that are tinted in the curve's colour. A separate bar at the top also shows
    /// them.
    pub spans: Vec<(f64, f64)>,
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Each point joined with the next.
    Line,
    /// A dot for each point.
    Dots,
}

const WIDTH: u32 = 1100;
/// Space to the left and to the right of a panel's curves.
const LEFT: i32 = 106;
const RIGHT: i32 = 30;
/// Space to the left of the vertical axis's title.
const EDGE: i32 = 10;
/// Space for the chart's title.
const HEAD_HEIGHT: u32 = 36;
/// Space for a panel's title and its legend.
const LEGEND_HEIGHT: u32 = 80;
const PANEL_HEIGHT: u32 = 370;
/// Space below a panel's curves, for the numbers and the title of the axis.
const BELOW: u32 = 56;
/// Height of a bar of spans, as a fraction of the height of the curves. Below each bar, a space of
/// the same height is free. Directly above the curves, a space of twice this height is free.
const LANE: f64 = 0.025;
const MARKS_MAX: usize = 8;

impl Chart {
    /// Draws the chart. Returns the SVG.
    pub fn svg(&self) -> String {
        let height: u32 = self.panels.iter().map(Panel::height).sum();
        svg((WIDTH, HEAD_HEIGHT + height), |area| {
            area.draw_text(&self.title, &bold(), (LEFT, 14))?;
            let (_, mut rest) = area.split_vertically(HEAD_HEIGHT);
            for panel in &self.panels {
                let (above, below) = rest.split_vertically(panel.height());
                panel.draw(&above)?;
                rest = below;
            }
            Ok(())
        })
    }
}

impl Panel {
    fn height(&self) -> u32 {
        LEGEND_HEIGHT + BELOW + if self.is_low { PANEL_HEIGHT / 2 } else { PANEL_HEIGHT }
    }

    fn draw(&self, area: &Area<'_>) -> Drawn {
        let (head, body) = area.split_vertically(LEGEND_HEIGHT);
        head.draw_text(&self.title, &plain(), (LEFT, 22))?;
        let named = self.curves.iter().filter(|curve| !curve.name.is_empty());
        Canvas(&head).legend(LEFT, 52, named.map(|curve| (curve.name.as_str(), curve.ink)));
        let points = || self.curves.iter().flat_map(Curve::numbers);
        let x = self.x.range(points().map(|(x, _)| x));
        let y = self.y.range(points().map(|(_, y)| y));
        let with_spans = self.curves.iter().filter(|curve| !curve.spans.is_empty());
        let lane = LANE * (y.end - y.start);
        let mut top = y.end + 2.0 * lane * (1 + with_spans.clone().count()) as f64;
        let y = y.start..top;
        let mut chart = ChartBuilder::on(&body)
            .margin_left(EDGE)
            .margin_right(RIGHT)
            .x_label_area_size(BELOW)
            .y_label_area_size(LEFT - EDGE)
            .build_cartesian_2d(Scaled(self.x.scale, x.clone()), Scaled(self.y.scale, y.clone()))?;
        chart
            .configure_mesh()
            .bold_line_style(Ink::Pale.color())
            .axis_style(Ink::Grey.color())
            .label_style(plain())
            .axis_desc_style(plain())
            .x_desc(&self.x.title)
            .y_desc(&self.y.title)
            .x_label_formatter(&|number| label(*number))
            .y_label_formatter(&|number| label(*number))
            .draw()?;
        for curve in with_spans {
            for &(from, to) in &curve.spans {
                let [from, to] = [from, to].map(|at| at.clamp(x.start, x.end));
                let span = |above, below, opacity| {
                    let style = curve.ink.color().mix(opacity).filled();
                    Rectangle::new([(from, above), (to, below)], style)
                };
                chart.draw_series([span(y.end, y.start, 0.1), span(top, top - lane, 0.8)])?;
            }
            top -= 2.0 * lane;
        }
        for curve in &self.curves {
            let (points, color) = (curve.numbers(), curve.ink.color());
            match curve.mark {
                Mark::Line => {
                    let line = PathElement::new(points.collect::<Vec<_>>(), color.stroke_width(2));
                    chart.draw_series(once(line))?;
                }
                Mark::Dots => {
                    chart.draw_series(points.map(|at| Circle::new(at, 4, color.filled())))?;
                }
            }
        }
        Ok(())
    }
}

impl Axis {
    /// An axis with this title that begins at this number.
    pub fn from(from: f64, title: impl Into<String>) -> Self {
        Self { title: title.into(), from: Some(from), scale: Scale::Linear }
    }

    /// The range of the axis, which is not empty even if all numbers are the same.
    fn range(&self, numbers: impl Iterator<Item = f64>) -> Range<f64> {
        let (least, most) = numbers
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), it| {
                (least.min(it), most.max(it))
            });
        let from = self.from.unwrap_or(if least.is_finite() { least } else { 0.0 });
        from..if most > from { most } else { from + 1.0 }
    }
}

impl Scale {
    fn place(self, number: f64) -> f64 {
        match self {
            Self::Linear => number,
            Self::Log => number.max(1.0).log10(),
            Self::Nines => -(1.0 - (number / 100.0).min(0.999_99)).log10(),
        }
    }

    /// The number that lies at `place` on the axis.
    fn number(self, place: i32) -> f64 {
        match self {
            Self::Linear => f64::from(place),
            Self::Log => 10f64.powi(place),
            Self::Nines => 100.0 * (1.0 - 10f64.powi(-place)),
        }
    }
}

/// The numbers of an axis, as a type that the library `plotters` can draw.
struct Scaled(Scale, Range<f64>);

impl Scaled {
    fn places(&self) -> RangedCoordf64 {
        (self.0.place(self.1.start)..self.0.place(self.1.end)).into()
    }
}

impl Ranged for Scaled {
    type ValueType = f64;
    type FormatOption = DefaultFormatting;

    fn map(&self, number: &f64, limit: (i32, i32)) -> i32 {
        self.places().map(&self.0.place(*number), limit)
    }

    /// Round numbers, each of which gets a label and a line.
    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        let range = self.places().range();
        if hint.weight().allow_light_points() {
            return Vec::new();
        }
        match self.0 {
            Scale::Linear => self.places().key_points(BoldPoints(MARKS_MAX)),
            scale => {
                let places = range.start.ceil() as i32..=range.end.floor() as i32;
                places.map(|place| scale.number(place)).collect()
            }
        }
    }

    fn range(&self) -> Range<f64> {
        self.1.clone()
    }
}

/// A number with commas between thousands.
fn label(number: f64) -> String {
    // Rounding hides the errors of binary fractions, and adding 0.0 turns -0.0 into 0.0.
    let text = ((number * 1000.0).round() / 1000.0 + 0.0).to_string();
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (index, digit) in whole.char_indices() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + fraction
}

impl Curve {
    /// A line without spans.
    pub fn line(name: impl Into<String>, ink: Ink, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), ink, mark: Mark::Line, points, spans: Vec::new() }
    }

    fn numbers(&self) -> impl Iterator<Item = (f64, f64)> {
        self.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_numbers() {
        let labels = |scale, range| {
            let marks = Scaled(scale, range).key_points(BoldPoints(MARKS_MAX));
            marks.into_iter().map(label).collect::<Vec<_>>()
        };
        assert_eq!(labels(Scale::Linear, 0.0..70_000.0)[..2], ["0", "10,000"]);
        assert_eq!(
            labels(Scale::Linear, 1.0..1.3),
            ["1", "1.05", "1.1", "1.15", "1.2", "1.25", "1.3"]
        );
        assert_eq!(labels(Scale::Log, 1.0..3000.0), ["1", "10", "100", "1,000"]);
        assert_eq!(labels(Scale::Nines, 0.0..100.0), ["0", "90", "99", "99.9", "99.99", "99.999"]);
        assert_eq!(label(-100.0), "-100");
    }

    #[test]
    fn an_axis_reaches_from_its_first_number_to_the_last_one() {
        let numbers = [3.0, 2.0, 5.0];
        let axis = Axis::default();
        assert_eq!(axis.range(numbers.into_iter()), 2.0..5.0);
        assert_eq!(Axis::from(0.0, "").range(numbers.into_iter()), 0.0..5.0);
        assert_eq!(
            axis.range([2.0, 2.0].into_iter()),
            2.0..3.0,
            "an axis must have a length even if all its numbers are the same"
        );
        assert_eq!(axis.range([].into_iter()), 0.0..1.0);
    }

    #[test]
    fn what_is_compared_is_in_one_panel_with_titles() {
        let curve = |name, ink, points| Curve::line(name, ink, points);
        let mut blue = curve("one <A>", Ink::Blue, vec![(0.0, 1.0), (10.0, 2.0), (5.0, f64::NAN)]);
        let orange = curve("two", Ink::Orange, vec![(0.0, 2.0), (5.0, 3.0)]);
        let drawn = |blue: &Curve| {
            let curves = vec![blue.clone(), orange.clone()];
            let (x, y) = (Axis::from(0.0, "time (s)"), Axis::from(0.0, "rate (1/s)"));
            let panel = Panel { title: "panel".into(), x, y, is_low: false, curves };
            Chart { title: "chart".into(), panels: vec![panel] }.svg()
        };
        let picture = drawn(&blue);
        for text in ["chart", "panel", "one &lt;A&gt;", "two", "time (s)", "rate (1/s)", "10"] {
            assert!(picture.contains(&format!(">\n{text}\n</text>")), "{text}: {picture}");
        }
        assert!(picture.contains("font-size=\"16\""), "{picture}");
        let lines = |ink: &str| picture.matches(&format!("stroke=\"{ink}\"")).count();
        assert_eq!((lines("#1E64C8"), lines("#E18214")), (1, 1), "each colour must have one curve");
        blue.spans = vec![(2.0, 4.0)];
        let filled = |picture: &str| picture.matches("fill=\"#1E64C8\"").count();
        assert_eq!(
            (filled(&picture), filled(&drawn(&blue))),
            (1, 3),
            "a span must add a tint and a bar"
        );
        blue.mark = Mark::Dots;
        assert_eq!(drawn(&blue).matches("<circle").count(), 2);
    }
}
