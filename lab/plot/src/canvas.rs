//! A picture in memory, with the few things that plots consist of.

use std::convert::Infallible;

use embedded_graphics::mono_font::ascii::{FONT_7X13, FONT_9X15_BOLD};
use embedded_graphics::mono_font::{MonoFont, MonoTextStyle};
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::prelude::{
    Dimensions, DrawTarget, Drawable, Pixel, Point, Primitive, RgbColor, Size,
};
use embedded_graphics::primitives::{Line, PrimitiveStyle, Rectangle};
use embedded_graphics::text::{Baseline, Text};

/// Colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// Grid lines.
    Pale,
    /// The time of a snapshot.
    Shade,
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
    fn color(self) -> Rgb888 {
        match self {
            Self::Pale => Rgb888::new(225, 225, 225),
            Self::Shade => Rgb888::new(255, 240, 200),
            Self::Grey => Rgb888::new(130, 130, 130),
            Self::Blue => Rgb888::new(30, 100, 200),
            Self::Red => Rgb888::new(200, 40, 40),
            Self::Green => Rgb888::new(30, 140, 60),
            Self::Orange => Rgb888::new(225, 130, 20),
            Self::Violet => Rgb888::new(130, 60, 170),
        }
    }
}

/// A picture, white until drawn on. Whatever lies outside is dropped.
#[derive(Clone, Debug)]
pub struct Canvas {
    width: i32,
    height: i32,
    bytes: Vec<u8>,
}

impl Canvas {
    /// A white canvas of this size in pixels.
    pub fn new(width: i32, height: i32) -> Self {
        Self { width, height, bytes: vec![255; (width * height * 3) as usize] }
    }

    /// Width and height in pixels.
    pub fn size(&self) -> (u32, u32) {
        (self.width as u32, self.height as u32)
    }

    /// Rows from the top, three bytes per pixel.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A line of text; its upper left corner is at `x`, `y`.
    pub fn text(&mut self, x: i32, y: i32, text: &str) {
        self.write((x, y), text, &FONT_7X13);
    }

    /// As [`text`](Self::text), larger.
    pub fn title(&mut self, x: i32, y: i32, text: &str) {
        self.write((x, y), text, &FONT_9X15_BOLD);
    }

    fn write(&mut self, (x, y): (i32, i32), text: &str, font: &MonoFont<'_>) {
        let style = MonoTextStyle::new(font, Rgb888::BLACK);
        let text = Text::with_baseline(text, Point::new(x, y), style, Baseline::Top);
        let Ok(_) = text.draw(self);
    }

    /// A filled rectangle from its upper left corner.
    pub fn bar(&mut self, (x, y): (i32, i32), (width, height): (i32, i32), ink: Ink) {
        let size = Size::new(width.max(0) as u32, height.max(0) as u32);
        let style = PrimitiveStyle::with_fill(ink.color());
        let Ok(()) = Rectangle::new(Point::new(x, y), size).into_styled(style).draw(self);
    }

    /// A straight line: thin where it is pale.
    pub fn line(&mut self, from: (i32, i32), to: (i32, i32), ink: Ink) {
        let width = if ink == Ink::Pale { 1 } else { 3 };
        let style = PrimitiveStyle::with_stroke(ink.color(), width);
        let line = Line::new(Point::new(from.0, from.1), Point::new(to.0, to.1));
        let Ok(()) = line.into_styled(style).draw(self);
    }
}

impl Dimensions for Canvas {
    fn bounding_box(&self) -> Rectangle {
        let (width, height) = self.size();
        Rectangle::new(Point::zero(), Size::new(width, height))
    }
}

impl DrawTarget for Canvas {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I>(&mut self, pixels: I) -> Result<(), Infallible>
    where
        I: IntoIterator<Item = Pixel<Rgb888>>,
    {
        for Pixel(point, color) in pixels {
            if (0..self.width).contains(&point.x) && (0..self.height).contains(&point.y) {
                let at = ((point.y * self.width + point.x) * 3) as usize;
                self.bytes[at..at + 3].copy_from_slice(&[color.r(), color.g(), color.b()]);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_is_there_and_what_is_outside_is_dropped() {
        let mut canvas = Canvas::new(40, 20);
        canvas.bar((30, 10), (100, 5), Ink::Blue);
        let pixel = |canvas: &Canvas, x: usize, y: usize| canvas.bytes[(y * 40 + x) * 3];
        assert_eq!(pixel(&canvas, 29, 12), 255);
        assert_eq!(pixel(&canvas, 39, 12), 30);
        let before = canvas.bytes.clone();
        canvas.text(0, 0, "A");
        assert_ne!(canvas.bytes, before);
    }
}
