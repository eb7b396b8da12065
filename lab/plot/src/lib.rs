//! Pictures of numbers, as SVG. Text stays text in the file, and the program that shows the picture
//! chooses the font. So a picture is the same file on every machine.

mod canvas;
mod chart;

pub use canvas::{Canvas, Ink};
pub use chart::{Axis, Chart, Curve, Mark, Panel, Scale};
