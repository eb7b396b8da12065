//! Pictures of numbers, as PNG files. Fonts are compiled in, so a picture is the same on every machine.

mod canvas;
mod chart;

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

pub use canvas::{Canvas, Ink};
pub use chart::{Chart, Curve, Mark, Panel, grid, rounded};

/// Writes a picture to a file, which is replaced.
///
/// # Errors
/// When it can't be written.
pub fn write_png(canvas: &Canvas, path: &Path) -> io::Result<()> {
    let file = BufWriter::new(File::create(path)?);
    let (width, height) = canvas.size();
    let mut encoder = png::Encoder::new(file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(canvas.bytes())?;
    Ok(writer.finish()?)
}
