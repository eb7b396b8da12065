//! A picture with the few things that pictures consist of which are no curves over axes.

use std::io;

use plotters::coord::Shift;
use plotters::prelude::{
    Color, DrawingArea, DrawingAreaErrorKind, FontStyle, IntoDrawingArea, RGBColor, Rectangle,
    SVGBackend, TextStyle, WHITE,
};

/// Colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// Grid lines.
    Pale,
    /// The stock server.
    Grey,
    /// SlimIO.
    Blue,
    /// A second of a kind.
    Red,
    /// A third.
    Green,
    /// A fourth.
    Orange,
    /// A fifth.
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

/// What the SVG backend divides a size by to get the font size that it writes.
const LINE_PER_FONT: f64 = 1.24;

/// Text as it stands everywhere but in titles.
pub(crate) fn plain() -> TextStyle<'static> {
    ("sans-serif", 16.0 * LINE_PER_FONT).into()
}

/// Text of titles.
pub(crate) fn bold() -> TextStyle<'static> {
    ("sans-serif", 18.0 * LINE_PER_FONT, FontStyle::Bold).into()
}

/// A white picture of this size in pixels, drawn on.
pub(crate) fn svg(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Drawn) -> String {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
    let drawn = area.fill(&WHITE).and_then(|()| draw(&area)).and_then(|()| area.present());
    drawn.expect("a string takes everything");
    drop(area);
    text
}

/// A picture to draw on, in pixels from its upper left corner.
pub struct Canvas<'a, 'b>(pub(crate) &'a Area<'b>);

impl Canvas<'_, '_> {
    /// The SVG of a white picture of this size, drawn on.
    pub fn svg(width: i32, height: i32, draw: impl FnOnce(&Canvas<'_, '_>)) -> String {
        svg((width as u32, height as u32), |area| {
            draw(&Canvas(area));
            Ok(())
        })
    }

    /// A line of text; its upper left corner is at `x`, `y`.
    pub fn text(&self, x: i32, y: i32, text: &str) {
        self.write((x, y), text, &plain());
    }

    /// As [`text`](Self::text), larger.
    pub fn title(&self, x: i32, y: i32, text: &str) {
        self.write((x, y), text, &bold());
    }

    fn write(&self, at: (i32, i32), text: &str, style: &TextStyle<'_>) {
        self.0.draw_text(text, style, at).expect("a string takes everything");
    }

    /// Names of colours beside one another; the upper left corner is at `x`, `y`.
    pub fn legend<'n>(&self, mut x: i32, y: i32, names: impl IntoIterator<Item = (&'n str, Ink)>) {
        for (name, ink) in names {
            self.bar((x, y + 2), (16, 12), ink);
            self.text(x + 22, y, name);
            let size = self.0.estimate_text_size(name, &plain());
            x += 44 + size.expect("its size is a product").0 as i32;
        }
    }

    /// A filled rectangle from its upper left corner; none where it has no extent.
    pub fn bar(&self, (x, y): (i32, i32), (width, height): (i32, i32), ink: Ink) {
        if width > 0 && height > 0 {
            let bar = Rectangle::new([(x, y), (x + width, y + height)], ink.color().filled());
            self.0.draw(&bar).expect("a string takes everything");
        }
    }
}
