//! Pictures of numbers, as SVG. Text stays text, set in a font of the reader's, so a picture is the
//! same file on every machine.

mod canvas;
mod chart;

pub use canvas::{Canvas, Ink};
pub use chart::{Axis, Chart, Curve, Mark, Panel, Scale};
