//! Which lifetime lives in which reclaim unit of an emulated SSD.

use std::path::{Path, PathBuf};

use clap::Args;
use slimio_plot::{Canvas, Ink, write_png};
use slimio_server::explain;
use slimio_ssd::{Clock, DriveOptions, DriveWatch, EmulatedDrive, Ftl, PREFIX, UnitState};
use slimio_storage::{Area, ExtentMap, Inspection, SnapshotKind, Storage, inspect};

use crate::tools::say;
use crate::volume;

/// What a block may belong to, with its colour.
const LIFETIMES: [(&str, Ink); 5] = [
    ("superblock", Ink::Violet),
    ("log", Ink::Blue),
    ("WAL-snapshot", Ink::Green),
    ("on-demand snapshot", Ink::Orange),
    ("nobody's any more", Ink::Red),
];

/// A block in no area, or in a snapshot slot that holds no snapshot.
const NOBODY: usize = 4;

const COLUMNS: usize = 24;
const CELL: (i32, i32) = (40, 16);
const GAP: i32 = 4;
const MARGIN: i32 = 20;
const HEAD: i32 = 90;

/// Flags for a picture.
#[derive(Debug, Args)]
pub(crate) struct Map {
    /// Draw which lifetime lives in which reclaim unit of the emulated SSD that --volume names
    #[arg(long, value_name = "PNG", requires = "volume", conflicts_with_all = ["files", "model"])]
    map: Option<PathBuf>,
    /// The emulated SSD: emulated:FILE
    #[arg(long, requires = "map", help_heading = "Picture")]
    volume: Option<String>,
}

impl Map {
    pub(crate) fn is_wanted(&self) -> bool {
        self.map.is_some()
    }

    /// Draws it.
    ///
    /// # Errors
    /// A sentence with a remedy.
    pub(crate) fn run(&self) -> Result<(), String> {
        let (Some(picture), Some(volume)) = (&self.map, &self.volume) else {
            return Err("a map wants both --map and --volume".into());
        };
        let (mut storage, watch) = open(volume)?.ok_or_else(|| {
            format!("{volume} is no emulated SSD: only of one ({PREFIX}FILE) the inside is known")
        })?;
        let found = inspect(&mut *storage.media).map_err(|error| explain(&error))?;
        let units = watch.with_ftl(|ftl| units(ftl, &found));
        say(&summary(&watch, &found));
        say(&storage.why_not_better);
        write_png(&draw(volume, &summary(&watch, &found), &units), picture)
            .map_err(|error| format!("cannot write {}: {error}", picture.display()))
    }
}

/// Opens an existing emulated SSD, with a view into it; `None` when `spec` does not name one.
pub(crate) fn open(spec: &str) -> Result<Option<(Storage, DriveWatch)>, String> {
    let Some(options) = spec.strip_prefix(PREFIX) else { return Ok(None) };
    let options = DriveOptions::parse(options, Clock::Virtual)
        .map_err(|error| format!("cannot open the volume {spec}: {error}"))?;
    let refused = |error| volume::explain(&error, spec);
    options.check_exists().map_err(refused)?;
    let drive = EmulatedDrive::open(options).map_err(refused)?;
    let watch = drive.watch();
    let storage =
        slimio_volume::open_on(Path::new(spec), Box::new(drive), u64::MAX).map_err(refused)?;
    if !storage.exists {
        return Err(format!("there is no SlimIO volume in {spec}; serve one from it first"));
    }
    Ok(Some((storage, watch)))
}

/// Contents of a reclaim unit, in pages.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unit {
    state: UnitState,
    pages: u32,
    written: u32,
    /// Valid pages of each lifetime.
    valid: [u32; LIFETIMES.len()],
}

fn units(ftl: &Ftl, found: &Inspection) -> Vec<Unit> {
    let pages = ftl.config().geometry.unit_pages();
    let unit = |report: slimio_ssd::UnitReport| {
        let slimio_ssd::UnitReport { state, written, .. } = report;
        Unit { state, pages, written, valid: [0; LIFETIMES.len()] }
    };
    let mut units: Vec<Unit> = ftl.units().map(unit).collect();
    for lba in 0..ftl.config().lba_count {
        if let Some(page) = ftl.page_of(lba) {
            units[(page.0 / pages) as usize].valid[lifetime(lba, found)] += 1;
        }
    }
    units
}

/// The lifetime of what a block holds.
fn lifetime(lba: u64, found: &Inspection) -> usize {
    let extents = found.superblock.as_ref().and_then(|superblock| superblock.extents.as_ref());
    match extents.map_or(Some(Area::Superblock), |extents| owner(extents, lba)) {
        Some(Area::Superblock) => 0,
        Some(Area::Wal) => 1,
        Some(Area::Snapshot(slot)) => {
            let held = found.slots.iter().find(|(held, _)| held.slot == slot);
            held.map_or(NOBODY, |(held, _)| match held.kind {
                SnapshotKind::Wal => 2,
                SnapshotKind::OnDemand => 3,
            })
        }
        None => NOBODY,
    }
}

/// The area of a block. A block in no extent is the superblock's.
fn owner(extents: &ExtentMap, lba: u64) -> Option<Area> {
    let extent = lba.checked_sub(extents.first_lba).map(|behind| behind / extents.extent_lbas);
    let owner = extent.and_then(|extent| extents.owners.get(extent as usize));
    owner.map_or(Some(Area::Superblock), |owner| owner.map(|(area, _)| area))
}

/// A drive's counters and units, in a line.
pub(crate) fn summary(watch: &DriveWatch, found: &Inspection) -> String {
    let (units, waf) = watch.with_ftl(|ftl| (units(ftl, found), ftl.counters().waf()));
    let of_state = |state| units.iter().filter(|unit| unit.state == state).count();
    let lifetimes = |unit: &Unit| unit.valid.iter().filter(|valid| **valid > 0).count();
    let apart = units.iter().filter(|unit| lifetimes(unit) == 1).count();
    let mixed = units.iter().filter(|unit| lifetimes(unit) > 1).count();
    let waf = waf.map_or_else(|| "unknown: nothing was written".into(), |waf| format!("{waf:.3}"));
    format!(
        "{} reclaim units: {} free, {} open, {} filled; {apart} hold one lifetime, {mixed} several; \
         write amplification {waf}",
        units.len(),
        of_state(UnitState::Free),
        of_state(UnitState::Open),
        of_state(UnitState::Closed),
    )
}

fn draw(volume: &str, summary: &str, units: &[Unit]) -> Canvas {
    let rows = units.len().div_ceil(COLUMNS) as i32;
    let (cell_width, cell_height) = CELL;
    let width = 2 * MARGIN + COLUMNS as i32 * (cell_width + GAP);
    let mut canvas = Canvas::new(width, HEAD + rows * (cell_height + GAP) + MARGIN);
    canvas.title(MARGIN, 10, volume);
    canvas.text(MARGIN, 32, summary);
    let others = [("not valid", Ink::Grey), ("not written", Ink::Pale)];
    for (index, (name, ink)) in LIFETIMES.into_iter().chain(others).enumerate() {
        let x = MARGIN + index as i32 * 148;
        canvas.bar((x, 58), (12, 12), ink);
        canvas.text(x + 16, 58, name);
    }
    for (index, unit) in units.iter().enumerate() {
        let column = (index % COLUMNS) as i32;
        let row = (index / COLUMNS) as i32;
        let corner = (MARGIN + column * (cell_width + GAP), HEAD + row * (cell_height + GAP));
        draw_unit(&mut canvas, corner, unit);
    }
    canvas
}

/// A bar as long as a unit: valid pages by lifetime, then pages not valid, then pages not written.
fn draw_unit(canvas: &mut Canvas, (x, y): (i32, i32), unit: &Unit) {
    let (width, height) = CELL;
    canvas.bar((x, y), CELL, Ink::Pale);
    let pixels = |pages: u32| (u64::from(pages) * width as u64 / u64::from(unit.pages)) as i32;
    canvas.bar((x, y), (pixels(unit.written), height), Ink::Grey);
    let mut before = 0;
    for (valid, (_, ink)) in unit.valid.into_iter().zip(LIFETIMES) {
        let (from, to) = (pixels(before), pixels(before + valid));
        canvas.bar((x + from, y), (to - from, height), ink);
        before += valid;
    }
}

#[cfg(test)]
mod tests {
    use slimio_storage::SlotName;

    use super::*;

    #[test]
    fn a_block_belongs_to_the_area_of_its_extent() {
        let owners = vec![Some((Area::Wal, 0)), None, Some((Area::Snapshot(SlotName::B), 3))];
        let extents = ExtentMap { device_lbas: 1000, first_lba: 100, extent_lbas: 50, owners };
        let found = [0, 99, 100, 149, 150, 200, 249, 250].map(|lba| owner(&extents, lba));
        let (head, log) = (Some(Area::Superblock), Some(Area::Wal));
        let slot = Some(Area::Snapshot(SlotName::B));
        assert_eq!(found, [head, head, log, log, None, slot, slot, head]);
    }

    #[test]
    fn each_lifetime_has_its_part_of_a_units_bar() {
        let mut canvas = Canvas::new(CELL.0, CELL.1);
        let valid = [0, 10, 0, 5, 0];
        draw_unit(
            &mut canvas,
            (0, 0),
            &Unit { state: UnitState::Open, pages: 40, written: 30, valid },
        );
        let pixel = |x: usize| &canvas.bytes()[x * 3..][..3];
        let mut colours: Vec<(&[u8], usize)> = Vec::new();
        for x in 0..CELL.0 as usize {
            match colours.last_mut() {
                Some((colour, count)) if *colour == pixel(x) => *count += 1,
                _ => colours.push((pixel(x), 1)),
            }
        }
        let counts: Vec<usize> = colours.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [10, 5, 15, 10]);
    }
}
