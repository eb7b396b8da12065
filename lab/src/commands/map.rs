//! `slimio-lab map`: draws which lifetimes have data in which reclaim units of an emulated SSD. A
//! lifetime is a kind of data that is deleted together, such as the log.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use slimio_plot::{Canvas, Ink};
use slimio_ssd::{Clock, DriveOptions, PREFIX};
use slimio_storage::inspect;
use slimio_volume::{OWNERS, Unit, open_watched, summary, units};

use crate::error::{BenchError, Doing, Result};

/// A colour for each possible owner of a block, in the order of [`OWNERS`].
const INKS: [Ink; OWNERS.len()] = [Ink::Violet, Ink::Blue, Ink::Green, Ink::Orange, Ink::Red];

const COLUMNS: usize = 24;
const CELL: (i32, i32) = (40, 16);
const GAP: i32 = 4;
const MARGIN: i32 = 20;
const HEAD: i32 = 90;

/// The help text of `slimio-lab map`.
pub const HELP: &str = include_str!("../../help/map.txt");

/// The arguments.
#[derive(Debug, Args)]
pub struct Map {
    /// File for the picture
    #[arg(long, value_name = "SVG")]
    out: PathBuf,
    /// The emulated SSD, as emulated:FILE; no server may be using the SSD
    #[arg(long)]
    volume: String,
}

impl Map {
    /// Draws the picture. Returns the text to print.
    pub fn run(&self) -> Result<String> {
        let volume = &self.volume;
        let refused = |why: &dyn std::fmt::Display| {
            BenchError::Usage(format!("cannot open the volume {volume}: {why}"))
        };
        let options = volume.strip_prefix(PREFIX).ok_or_else(|| {
            refused(&format!(
                "only an emulated SSD ({PREFIX}FILE) shows what its reclaim units hold"
            ))
        })?;
        let options =
            DriveOptions::parse(options, Clock::Virtual).map_err(|error| refused(&error))?;
        let opened = open_watched(Path::new(volume), options).map_err(|error| refused(&error))?;
        let (mut storage, watch) = opened;
        if !storage.exists {
            return Err(refused(&"the SSD holds no volume; start a server on the SSD first"));
        }
        let found = inspect(&mut *storage.media).map_err(|error| refused(&error))?;
        let units = watch.with_ftl(|ftl| units(ftl, &found));
        let summary = summary(&watch, &found);
        fs::write(&self.out, draw(volume, &summary, &units))
            .doing(format!("writing {}", self.out.display()))?;
        Ok(format!("{summary}\n{}\n", storage.why_not_better))
    }
}

fn draw(volume: &str, summary: &str, units: &[Unit]) -> String {
    let rows = units.len().div_ceil(COLUMNS) as i32;
    let (cell_width, cell_height) = CELL;
    let width = 2 * MARGIN + COLUMNS as i32 * (cell_width + GAP);
    Canvas::svg(width, HEAD + rows * (cell_height + GAP) + MARGIN, |canvas| {
        canvas.title(MARGIN, 10, volume);
        canvas.text(MARGIN, 36, summary);
        let others = [("not valid", Ink::Grey), ("not written", Ink::Pale)];
        canvas.legend(MARGIN, 62, OWNERS.into_iter().zip(INKS).chain(others));
        for (index, unit) in units.iter().enumerate() {
            let column = (index % COLUMNS) as i32;
            let row = (index / COLUMNS) as i32;
            let corner = (MARGIN + column * (cell_width + GAP), HEAD + row * (cell_height + GAP));
            draw_unit(canvas, corner, unit);
        }
    })
}

/// Draws a unit as a bar. From left to right, the bar shows valid pages by owner, written pages
/// that are no longer valid, and pages that are not yet written.
fn draw_unit(canvas: &Canvas<'_, '_>, (x, y): (i32, i32), unit: &Unit) {
    let (width, height) = CELL;
    canvas.bar((x, y), CELL, Ink::Pale);
    let pixels = |pages: u32| (u64::from(pages) * width as u64 / u64::from(unit.pages)) as i32;
    canvas.bar((x, y), (pixels(unit.written), height), Ink::Grey);
    let mut before = 0;
    for (valid, ink) in unit.valid.into_iter().zip(INKS) {
        let (from, to) = (pixels(before), pixels(before + valid));
        canvas.bar((x + from, y), (to - from, height), ink);
        before += valid;
    }
}

#[cfg(test)]
mod tests {
    use slimio_ssd::UnitState;

    use super::*;

    #[test]
    fn each_lifetime_has_its_part_of_a_units_bar() {
        let valid = [0, 10, 0, 5, 0];
        let unit = Unit { state: UnitState::Open, pages: 40, written: 30, valid };
        let picture = Canvas::svg(CELL.0, CELL.1, |canvas| draw_unit(canvas, (0, 0), &unit));
        let bars = picture.lines().filter_map(|line| line.strip_prefix("<rect x=\""));
        let bars: Vec<&str> = bars.filter_map(|bar| bar.split(" height").next()).collect();
        let [_white, all, written, first, second] = bars[..] else { panic!("{picture}") };
        assert!(all.ends_with("width=\"40\"") && written.ends_with("width=\"30\""), "{bars:?}");
        assert_eq!(first, "0\" y=\"0\" width=\"10\"");
        assert_eq!(second, "10\" y=\"0\" width=\"5\"");
    }
}
