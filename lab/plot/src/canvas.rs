//! A picture, with everything that is drawn on it other than curves: text, legends and bars.

use std::io;

use plotters::coord::Shift;
use plotters::prelude::{
    Color, DrawingArea, DrawingAreaErrorKind, FontStyle, IntoDrawingArea, RGBColor, Rectangle,
    SVGBackend, TextStyle, WHITE,
};

/// The colours of curves, bars and lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// Grid lines.
    Pale,
    /// The stock server.
    Grey,
    /// SlimIO.
    Blue,
    /// A second curve or bar.
    Red,
    /// A third curve or bar.
    Green,
    /// A fourth curve or bar.
    Orange,
    /// A fifth curve or bar.
    Violet,
}

impl Ink {
    pub(crate) fn color(self) -> RGBColor {
        match self {
            Self::Pale => RGBColor(225, 225, 225),
            Self::Grey => RGBColor(110, 110, 110),
            Self::Blue => RGBColor(30, 100, 200),
            Self::Red => RGBColor(200, 40, 40),
            Self::Green => RGBColor(30, 140, 60),
            Self::Orange => RGBColor(225, 130, 20),
            Self::Violet => RGBColor(130, 60, 170),
        }
    }
}

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Drawn = Result<(), DrawingAreaErrorKind<io::Error>>;

/// The SVG backend divides a given font size by this number, and writes the result into the SVG.
const LINE_PER_FONT: f64 = 1.24;

/// Style of all text but titles.
pub(crate) fn plain() -> TextStyle<'static> {
    ("sans-serif", 16.0 * LINE_PER_FONT).into()
}

/// Style of titles.
pub(crate) fn bold() -> TextStyle<'static> {
    ("sans-serif", 18.0 * LINE_PER_FONT, FontStyle::Bold).into()
}

/// The SVG of a white picture of this size in pixels, on which `draw` has drawn.
pub(crate) fn svg(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Drawn) -> String {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
    let drawn = area.fill(&WHITE).and_then(|()| draw(&area)).and_then(|()| area.present());
    drawn.expect("writing to a string cannot fail");
    drop(area);
    text
}

/// A picture to draw on. Places are given in pixels from its upper left corner.
pub struct Canvas<'a, 'b>(pub(crate) &'a Area<'b>);

impl Canvas<'_, '_> {
    /// The SVG of a white picture of this size, on which `draw` has drawn.
    pub fn svg(width: i32, height: i32, draw: impl FnOnce(&Canvas<'_, '_>)) -> String {
        svg((width as u32, height as u32), |area| {
            draw(&Canvas(area));
            Ok(())
        })
    }

    /// Draws a line of text, whose upper left corner is at `x`, `y`.
    pub fn text(&self, x: i32, y: i32, text: &str) {
        self.write((x, y), text, &plain());
    }

    /// Draws text as [`text`](Self::text) does, but larger and bold.
    pub fn title(&self, x: i32, y: i32, text: &str) {
        self.write((x, y), text, &bold());
    }

    fn write(&self, at: (i32, i32), text: &str, style: &TextStyle<'_>) {
        self.0.draw_text(text, style, at).expect("writing to a string cannot fail");
    }

    /// Draws a legend in one row: small rectangles in the given colours, each with its name to the
    /// right. The row's upper left corner is at `x`, `y`.
    pub fn legend<'n>(&self, mut x: i32, y: i32, names: impl IntoIterator<Item = (&'n str, Ink)>) {
        for (name, ink) in names {
            self.bar((x, y + 2), (16, 12), ink);
            self.text(x + 22, y, name);
            let size = self.0.estimate_text_size(name, &plain());
            x += 44 + size.expect("computing the size cannot fail").0 as i32;
        }
    }

    /// Draws a filled rectangle, whose upper left corner is at `x`, `y`. If its width or height is
    /// not positive, draws nothing.
    pub fn bar(&self, (x, y): (i32, i32), (width, height): (i32, i32), ink: Ink) {
        if width > 0 && height > 0 {
            let bar = Rectangle::new([(x, y), (x + width, y + height)], ink.color().filled());
            self.0.draw(&bar).expect("writing to a string cannot fail");
        }
    }
}
