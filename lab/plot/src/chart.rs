//! Curves over two axes, in panels below one another.

use crate::{Canvas, Ink};

/// A title and its panels.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// From the top.
    pub panels: Vec<Panel>,
}

/// Curves that share their axes. The x axis begins at the least x of any of them.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// What it shows.
    pub title: String,
    /// The title of the x axis, with its unit.
    pub x_title: String,
    /// The y at the bottom; at least one curve must rise above it.
    pub y_min: f64,
    /// The x and y that the axes reach at least, so that panels can be compared. If set, the x axis
    /// begins at 0.
    pub reach: Option<(f64, f64)>,
    /// Stretches of x that are shaded.
    pub shades: Vec<(f64, f64)>,
    /// Whether it is a third as high as others.
    pub is_low: bool,
    /// The curves, later ones above earlier ones.
    pub curves: Vec<Curve>,
}

/// Points of one kind.
#[derive(Clone, Debug)]
pub struct Curve {
    /// In the legend; a curve without a name is not in it.
    pub name: String,
    /// Its colour.
    pub ink: Ink,
    /// How it is drawn.
    pub mark: Mark,
    /// Pairs of x and y; pairs that are not finite are left out.
    pub points: Vec<(f64, f64)>,
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Each point joined with the next.
    Line,
    /// A square for each point.
    Squares,
}

const WIDTH: i32 = 1100;
const LEFT: i32 = 90;
const RIGHT: i32 = WIDTH - 30;
const HEAD_HEIGHT: i32 = 60;
/// Height of the axis below a panel, and of the next panel's title and legend.
const GAP: i32 = 110;
const PANEL_HEIGHT: i32 = 300;
const LEGEND_GAP: i32 = 40;
/// Width of a letter of the font.
const LETTER: i32 = 7;
const SQUARE: i32 = 7;
/// About how many lines the grid has in each direction.
const GRID_COUNT: f64 = 6.0;

impl Chart {
    /// The picture.
    pub fn draw(&self) -> Canvas {
        let height: i32 = self.panels.iter().map(|panel| panel.height() + GAP).sum();
        let mut canvas = Canvas::new(WIDTH, HEAD_HEIGHT + height);
        canvas.title(30, 18, &self.title);
        let mut top = HEAD_HEIGHT + 50;
        for panel in &self.panels {
            panel.draw(&mut canvas, top);
            top += panel.height() + GAP;
        }
        canvas
    }
}

impl Panel {
    fn height(&self) -> i32 {
        if self.is_low { PANEL_HEIGHT / 3 } else { PANEL_HEIGHT }
    }

    fn draw(&self, canvas: &mut Canvas, top: i32) {
        canvas.text(LEFT, top - 42, &self.title);
        self.legend(canvas, top - 22);
        let Some(scale) = Scale::of(self, top) else {
            canvas.text(LEFT, top, "nothing to show");
            return;
        };
        let bottom = top + self.height();
        for &(from, to) in &self.shades {
            let [left, right] = [from, to].map(|x| scale.x(x.clamp(scale.x_min, scale.x_max)));
            canvas.bar((left, top), ((right - left).max(1), self.height()), Ink::Shade);
        }
        for y in grid(self.y_min, scale.y_max) {
            canvas.line((LEFT, scale.y(y)), (RIGHT, scale.y(y)), Ink::Pale);
            canvas.text(20, scale.y(y) - 6, &rounded(y).to_string());
        }
        for x in grid(scale.x_min, scale.x_max) {
            canvas.line((scale.x(x), top), (scale.x(x), bottom), Ink::Pale);
            canvas.text(scale.x(x) - 8, bottom + 8, &rounded(x).to_string());
        }
        canvas.text(RIGHT - self.x_title.len() as i32 * LETTER, bottom + 26, &self.x_title);
        for curve in &self.curves {
            curve.draw(canvas, &scale);
        }
    }

    fn legend(&self, canvas: &mut Canvas, y: i32) {
        let mut x = LEFT;
        for curve in self.curves.iter().filter(|curve| !curve.name.is_empty()) {
            match curve.mark {
                Mark::Line => canvas.line((x, y + 6), (x + 14, y + 6), curve.ink),
                Mark::Squares => canvas.bar((x + 4, y + 3), (SQUARE, SQUARE), curve.ink),
            }
            canvas.text(x + 20, y, &curve.name);
            x += 20 + curve.name.len() as i32 * LETTER + LEGEND_GAP;
        }
    }
}

impl Curve {
    fn numbers(&self) -> impl Iterator<Item = (f64, f64)> {
        self.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite())
    }

    fn draw(&self, canvas: &mut Canvas, scale: &Scale) {
        let places = self.numbers().map(|(x, y)| (scale.x(x), scale.y(y)));
        match self.mark {
            Mark::Line => {
                let mut before = None;
                for place in places {
                    canvas.line(before.unwrap_or(place), place, self.ink);
                    before = Some(place);
                }
            }
            Mark::Squares => {
                for (x, y) in places {
                    canvas.bar((x - SQUARE / 2, y - SQUARE / 2), (SQUARE, SQUARE), self.ink);
                }
            }
        }
    }
}

/// Maps numbers to pixels.
struct Scale {
    bottom: i32,
    height: i32,
    x_min: f64,
    x_max: f64,
    y_min: f64,
    y_max: f64,
}

impl Scale {
    /// `None` if all points have the same x, or none lies above the panel's `y_min`.
    fn of(panel: &Panel, top: i32) -> Option<Self> {
        let points = || panel.curves.iter().flat_map(Curve::numbers);
        let x_min = points().map(|(x, _)| x).fold(f64::INFINITY, f64::min);
        let x_max = points().map(|(x, _)| x).fold(f64::NEG_INFINITY, f64::max);
        let y_max = points().map(|(_, y)| y).fold(f64::NEG_INFINITY, f64::max);
        let (x_reach, y_reach) = panel.reach.unwrap_or((f64::NEG_INFINITY, f64::NEG_INFINITY));
        let (x_max, y_max) = (x_max.max(x_reach), y_max.max(y_reach));
        let x_min = if panel.reach.is_some() { x_min.min(0.0) } else { x_min };
        let has_extent = x_max > x_min && y_max > panel.y_min;
        let height = panel.height();
        let bottom = top + height;
        has_extent.then_some(Self { bottom, height, x_min, x_max, y_min: panel.y_min, y_max })
    }

    fn x(&self, x: f64) -> i32 {
        LEFT + ((x - self.x_min) / (self.x_max - self.x_min) * f64::from(RIGHT - LEFT)) as i32
    }

    fn y(&self, y: f64) -> i32 {
        let share = (y - self.y_min) / (self.y_max - self.y_min);
        self.bottom - (share * f64::from(self.height)) as i32
    }
}

/// About six round numbers from `min` to `max`.
pub fn grid(min: f64, max: f64) -> impl Iterator<Item = f64> {
    let rough = (max - min) / GRID_COUNT;
    let decade = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * decade);
    let step = step.into_iter().find(|&step| step >= rough).unwrap_or(rough);
    // A rounding error must not take away the first or last.
    let [first, last] = [(min / step - 1e-9).ceil(), (max / step + 1e-9).floor()];
    (0..=(last - first) as u32).map(move |index| (first + f64::from(index)) * step)
}

/// Rounds to three decimals, which hides the rounding errors of binary fractions.
pub fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_has_round_numbers() {
        let lines = |min, max| grid(min, max).map(rounded).collect::<Vec<_>>();
        assert_eq!(lines(0.0, 60.0), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
        assert_eq!(lines(0.0, 70_000.0), [0.0, 20_000.0, 40_000.0, 60_000.0]);
        assert_eq!(lines(0.0, 0.9), [0.0, 0.2, 0.4, 0.6, 0.8]);
        assert_eq!(lines(0.014, 8.1), [2.0, 4.0, 6.0, 8.0]);
        assert_eq!(lines(1.0, 1.9), [1.0, 1.2, 1.4, 1.6, 1.8]);
    }

    #[test]
    fn a_point_lies_where_its_numbers_say() {
        let points = vec![(0.0, 1.0), (10.0, 2.0), (5.0, f64::NAN)];
        let curve = Curve { name: String::new(), ink: Ink::Blue, mark: Mark::Squares, points };
        let panel = Panel { y_min: 1.0, curves: vec![curve], ..Panel::default() };
        let scale = Scale::of(&panel, 0).unwrap();
        assert_eq!((scale.x(0.0), scale.x(10.0)), (LEFT, RIGHT));
        assert_eq!((scale.y(1.0), scale.y(2.0)), (PANEL_HEIGHT, 0));
        let drawn = Chart { title: String::new(), panels: vec![panel.clone()] }.draw();
        let empty = Chart { title: String::new(), panels: vec![Panel { curves: vec![], ..panel }] };
        assert_ne!(drawn.bytes(), empty.draw().bytes());
    }

    #[test]
    fn panels_that_reach_as_far_have_the_same_axes() {
        let line = |points| Curve { name: String::new(), ink: Ink::Blue, mark: Mark::Line, points };
        let curves = vec![line(vec![(1.0, 0.0), (5.0, 50.0)])];
        let panel = Panel { curves, reach: Some((10.0, 20.0)), ..Panel::default() };
        let scale = Scale::of(&panel, 0).unwrap();
        assert_eq!((scale.x(0.0), scale.x(10.0)), (LEFT, RIGHT));
        assert_eq!(scale.y(50.0), 0, "what is there is shown");
        let low = Panel { is_low: true, ..panel.clone() };
        assert_eq!(Scale::of(&low, 0).unwrap().y(0.0), PANEL_HEIGHT / 3);
        let draw = |panel| Chart { title: String::new(), panels: vec![panel] }.draw();
        let shaded = draw(Panel { shades: vec![(6.0, 7.0)], ..panel.clone() });
        assert_ne!(shaded.bytes(), draw(panel).bytes());
    }
}
