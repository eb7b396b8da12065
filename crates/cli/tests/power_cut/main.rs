//! Power cuts under stock programs, with and without `slimio shortcut run`: what a program has
//! acknowledged before the cut must be there after it.
//!
//! ```text
//!   program ── ext4 ── disk that records ──► all requests ──► images ── ext4 ── stock program
//!      │                                          │                                  │
//!      └── acknowledges write N ── after request M                 are 1 to N there? ┘
//! ```
//!
//! One client sends a write when the one before is acknowledged. The ledger notes how many requests the
//! disk had got by then. A cut behind a request leaves what was flushed before; of what was not, none,
//! all or some. The tests need root, FUSE and loop devices. If one of them is missing, they say so.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod place;
mod postgres;
mod redis;
mod sqlite;

use std::fs;
use std::path::{Path, PathBuf};

use slimio_host::power_cut::{Entry, Survivors, write_image};
use slimio_lab::recorder::{KeptDisk, can_record};
use slimio_shortcut::Profile;

use place::{Mount, Place, command, text};

/// A program, its client, and how it is asked what is there.
trait Program {
    /// Size of the file system, in bytes.
    const SIZE: u64;
    /// How many writes are made.
    const WRITES: u64;
    /// How many cuts there are, each with three images.
    const CUTS: usize;

    /// Makes the files that are there before the program starts.
    fn prepare(&self, _place: &Place) {}
    /// Starts the program in `place`, with a client.
    fn start(&self, place: &Place) -> Box<dyn Client>;
    /// Starts the stock program on what a power cut has left. Returns how many writes are there: all
    /// from the first to this one, and nothing else. The error says why it can't be told.
    fn recover(&self, place: &Place) -> Result<u64, String>;
}

/// The client of a program that runs. Both are killed when this is dropped.
trait Client {
    /// Makes a write. Returns when it is acknowledged.
    fn write(&mut self, number: u64);
}

/// What a disk was asked to do, and how many requests it had got when each write was acknowledged.
struct Recorded {
    entries: Vec<Entry>,
    ledger: Vec<usize>,
}

/// The whole test of a program: without a profile, of the stock program alone.
fn outlives_power_cuts<P: Program>(program: &P, profile: Option<&'static str>) {
    if let Err(why) = can_record() {
        eprintln!("SKIPPED: no power was cut: {why}");
        return;
    }
    if let Some(name) = profile.filter(|name| Profile::named(name).is_none()) {
        eprintln!("SKIPPED: no power was cut: there is no profile {name}");
        return;
    }
    let place = Place::new(profile);
    let recorded = record(program, &place);
    let Recorded { entries, ledger } = &recorded;
    for cut in recorded.cuts(P::CUTS) {
        let acknowledged = ledger.iter().filter(|position| **position <= cut).count() as u64;
        for survivors in [Survivors::None, Survivors::All, Survivors::Some(cut as u64 * 0x9e37)] {
            let found = recover(program, &place, entries, cut, survivors);
            assert!(
                is_kept(&found, acknowledged),
                "cut behind {cut} of {} requests, {survivors:?}: {acknowledged} writes were \
                 acknowledged, and there are {found:?}",
                entries.len()
            );
        }
    }
    // A check that can't fail proves nothing. So it is done once more on a disk that has not flushed
    // anything since the first write, and must fail there.
    let first = ledger[0];
    let (before, behind) = entries.split_at(first);
    let volatile = behind.iter().cloned().filter_map(Entry::without_stability);
    let entries = [before, &volatile.collect::<Vec<_>>()].concat();
    let found = recover(program, &place, &entries, entries.len(), Survivors::None);
    assert!(!is_kept(&found, P::WRITES), "without flushes, there are still {found:?}");
}

/// The last write may be there before it is acknowledged.
fn is_kept(found: &Result<u64, String>, acknowledged: u64) -> bool {
    found.as_ref().is_ok_and(|found| [acknowledged, acknowledged + 1].contains(found))
}

fn record<P: Program>(program: &P, place: &Place) -> Recorded {
    let disk = KeptDisk::new(place.folder(), P::SIZE).unwrap();
    // Nothing is left to be written in the background.
    let mut make = command("mkfs.ext4");
    make.args(["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-J", "size=4"]);
    text(make.arg(disk.device())).unwrap();
    let mounted = Mount::new(disk.device(), "noatime", &place.mounted());
    program.prepare(place);
    text(command("sync").arg("--file-system").arg(place.mounted())).unwrap();
    let mut client = program.start(place);
    let mut ledger = Vec::new();
    for number in 1..=P::WRITES {
        client.write(number);
        ledger.push(disk.count());
    }
    drop(client);
    place.check_said();
    mounted.finish();
    Recorded { entries: disk.finish().unwrap(), ledger }
}

impl Recorded {
    /// Where to cut, evenly over the acknowledged writes: in turn just when one was acknowledged, and
    /// between two.
    fn cuts(&self, count: usize) -> Vec<usize> {
        let last = self.ledger.len() - 1;
        let cut = |index: usize| {
            let write = last * (index + 1) / count;
            let next = self.ledger.get(write + 1).filter(|_| index % 2 == 1);
            next.map_or(self.ledger[write], |next| self.ledger[write].midpoint(*next))
        };
        (0..count).map(cut).collect()
    }
}

/// Starts the program on the image of a power cut.
fn recover<P: Program>(
    program: &P,
    place: &Place,
    entries: &[Entry],
    cut: usize,
    survivors: Survivors,
) -> Result<u64, String> {
    let image: PathBuf = place.folder().join("image");
    write_image(entries, cut, survivors, P::SIZE, &image).unwrap();
    let mounted = Mount::new(&image, "loop,noatime", &place.mounted());
    let found = program.recover(place);
    mounted.finish();
    let checked = text(command("e2fsck").args(["-f", "-n"]).arg(&image));
    fs::remove_file(&image).unwrap();
    found.and_then(|found| checked.map(|_| found))
}

/// Whether a program is there; if not, says loudly that it was not tested.
fn is_installed(program: Option<&Path>, name: &str) -> bool {
    if program.is_none() {
        eprintln!("SKIPPED: {name} is not installed, no power was cut under it");
    }
    program.is_some()
}
