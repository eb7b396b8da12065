//! `slimio drive serve` with `sync=yes`: data that a host has flushed outlives a power cut of the
//! machine that serves the drive.
//!
//! ```text
//!   host ── NVMe/TCP ── slimio drive serve ── ext4 ── recording disk ──► images ── ext4 ── drive
//! ```
//!
//! The host writes, deallocates and flushes, one command after the other. The server is killed and
//! restarted twice. After a cut, each block must be as its last durable command left it, or as a
//! later command left it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use slimio_device::{Buffer, LBA_SIZE, Lba, Op, Token, WholeDevice as _};
use slimio_host::power_cut::{Entry, Survivors, write_image};
use slimio_initiator::{Host, IoQueue, Options, Placed};
use slimio_lab::drive::Served;
use slimio_lab::recorder::{KeptDisk, can_record};
use slimio_ssd::{Clock, DriveOptions, EmulatedDrive, Ftl};

use super::place::{Mount, Place, command, text};

/// Size of the file system in bytes.
const SIZE: u64 = 64 << 20;

/// Number of the host's commands. There are enough commands for checkpoints: the drive makes a
/// checkpoint after each 4096 entries of its journal.
const COMMANDS: usize = 10_000;

/// Number of the drive's blocks that the host uses.
const BLOCKS: u64 = 2048;

const CUTS: usize = 24;

/// A command of the host, and how many requests the disk had received when the command was
/// acknowledged.
#[derive(Clone, Copy, Debug)]
struct Asked {
    command: HostCommand,
    told: usize,
}

#[derive(Clone, Copy, Debug)]
enum HostCommand {
    Write { lba: u64, count: u32, durable: bool },
    Deallocate { lba: u64, count: u32 },
    Flush,
}

impl HostCommand {
    fn random(random: &mut fastrand::Rng) -> Self {
        let (lba, count) = (random.u64(..BLOCKS - 64), random.u32(1..5));
        match random.u32(..300) {
            0..3 => Self::Flush,
            3 => Self::Write { lba, count, durable: true },
            4..20 => Self::Deallocate { lba, count: 8 * count },
            _ => Self::Write { lba, count, durable: false },
        }
    }

    /// Runs the command. A write fills its blocks with `stamp`.
    fn run(self, queue: &mut IoQueue, stamp: u64) {
        match self {
            Self::Write { lba, count, durable } => {
                let data = stamp.to_le_bytes().repeat(count as usize * LBA_SIZE / 8);
                let placed = Placed { durable, placement: Some((lba % 8) as u16) };
                queue.write(lba, &data, placed).unwrap();
            }
            Self::Deallocate { lba, count } => queue.deallocate(&[(lba, count)]).unwrap(),
            Self::Flush => queue.flush().unwrap(),
        }
    }
}

/// A drive that is served, and its host. The server is killed on drop.
struct Connected {
    queue: IoQueue,
    _host: Host,
    _server: Served,
}

impl Connected {
    fn start(place: &Place) -> Self {
        let mut serve = place.stock(None, Path::new(env!("CARGO_BIN_EXE_slimio")));
        let server = Served::spawn(serve.args(["drive", "serve"]).arg(spec(place))).unwrap();
        let mut host = Host::connect(&Options::new(server.address, &server.nqn)).unwrap();
        let queue = host.open_queue(1, 8).unwrap();
        Self { queue, _host: host, _server: server }
    }
}

fn spec(place: &Place) -> String {
    format!("{},size=12M,timing=none,sync=yes", place.mounted().join("drive").display())
}

/// The requests to the disk, the host's commands to the drive, and how many requests the disk had
/// received before the drive was made.
struct Recorded {
    entries: Vec<Entry>,
    asked: Vec<Asked>,
    made: usize,
}

fn record(place: &Place) -> Recorded {
    let disk = KeptDisk::new(place.folder(), SIZE).unwrap();
    let mut make = command("mkfs.ext4");
    make.args(["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-J", "size=4"]);
    text(make.arg(disk.device())).unwrap();
    let mounted = Mount::new(disk.device(), "noatime", &place.mounted());
    text(command("sync").arg("--file-system").arg(place.mounted())).unwrap();
    let made = disk.count();
    let mut random = fastrand::Rng::with_seed(18);
    let mut asked = Vec::new();
    for _ in 0..3 {
        let mut served = Connected::start(place);
        for _ in 0..COMMANDS / 3 {
            let command = HostCommand::random(&mut random);
            command.run(&mut served.queue, asked.len() as u64 + 1);
            asked.push(Asked { command, told: disk.count() });
        }
    }
    mounted.finish();
    Recorded { entries: disk.finish().unwrap(), asked, made }
}

/// What a drive may hold after a cut, and how many written blocks it may count.
struct Allowed {
    /// The stamps that each block may have. Stamp 0 stands for a block without data.
    stamps: Vec<Vec<u64>>,
    /// The smallest and the largest number of written blocks that the drive may count.
    written: (u64, u64),
}

impl Recorded {
    fn allowed(&self, cut: usize) -> Allowed {
        let ended = self.asked.partition_point(|asked| asked.told <= cut);
        let is_flush = |asked: &Asked| matches!(asked.command, HostCommand::Flush);
        let flushed = self.asked[..ended].iter().rposition(is_flush).unwrap_or(0);
        let mut allowed = Allowed { stamps: vec![vec![0]; BLOCKS as usize], written: (0, 0) };
        // One more command may have had its effect: the command that was under way at the cut.
        for (index, asked) in self.asked.iter().enumerate().take(ended + 1) {
            let (lba, count, stamp, is_durable) = match asked.command {
                HostCommand::Write { lba, count, durable } => (lba, count, index + 1, durable),
                HostCommand::Deallocate { lba, count } => (lba, count, 0, false),
                HostCommand::Flush => continue,
            };
            let is_stable = index < flushed || is_durable && index < ended;
            for stamps in &mut allowed.stamps[lba as usize..][..count as usize] {
                if is_stable {
                    stamps.clear();
                }
                stamps.push(stamp as u64);
            }
            if stamp != 0 {
                allowed.written.0 += if index < flushed { u64::from(count) } else { 0 };
                allowed.written.1 += u64::from(count);
            }
        }
        allowed
    }
}

/// Opens the drive on the image of a power cut. The error says what is wrong.
fn check(
    place: &Place,
    entries: &[Entry],
    cut: usize,
    survivors: Survivors,
    allowed: &Allowed,
) -> Result<(), String> {
    let image: PathBuf = place.memory().join("image");
    write_image(entries, cut, survivors, SIZE, &image).unwrap();
    let mounted = Mount::new(&image, "loop,noatime", &place.mounted());
    let checked = check_drive(place, survivors, allowed);
    mounted.finish();
    std::fs::remove_file(&image).unwrap();
    checked
}

fn check_drive(place: &Place, survivors: Survivors, allowed: &Allowed) -> Result<(), String> {
    let options = DriveOptions::parse(&spec(place), Clock::Real).map_err(|why| why.to_string())?;
    let drive = EmulatedDrive::open(options).map_err(|why| why.to_string())?;
    drive.with_ftl(Ftl::check);
    let notes = drive.notes();
    // If all unflushed requests survive, or if none of them survives, the mapping's journal has no
    // gap. The drive then cuts nothing off the journal's end.
    let may_be_cut = matches!(survivors, Survivors::Some(_));
    let is_told = |note: &String| may_be_cut && note.starts_with("the end of the SSD's mapping");
    if !notes[1..].iter().all(is_told) {
        return Err(format!(
            "the drive reports a loss that must not happen at this cut: {notes:?}"
        ));
    }
    let written = drive.counters().host_pages();
    if !(allowed.written.0..=allowed.written.1).contains(&written) {
        return Err(format!(
            "the drive counts {written} written blocks, not {:?}",
            allowed.written
        ));
    }
    let mut queue = drive.open_queue();
    for (lba, stamps) in (0..).zip(&allowed.stamps) {
        let read = Op::Read { lba: Lba(lba), buffer: Buffer::zeroed(1) };
        queue.begin(Token(0), read, Instant::now());
        let mut completions = Vec::new();
        while completions.is_empty() {
            queue.poll(&mut completions);
        }
        let read = completions.remove(0).buffer.unwrap();
        // A write that was not durable may be torn: then each of its words is old or new.
        let words = read.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        if let Some(word) = words.into_iter().find(|word| !stamps.contains(word)) {
            return Err(format!(
                "block {lba} has the stamp {word:x}, but only these are allowed: {stamps:x?}"
            ));
        }
    }
    Ok(())
}

#[test]
fn a_drive_that_syncs() {
    if let Err(why) = can_record() {
        eprintln!("SKIPPED: no power was cut: {why}");
        return;
    }
    let place = Place::new(None);
    let recorded = record(&place);
    let Recorded { entries, asked, made } = &recorded;
    assert!(
        asked.len() > 9000 && entries.len() > made + 500,
        "the disk received only {} requests",
        entries.len()
    );
    // The first cuts come while the drive is being made.
    let begin = (asked[0].told - made).min(8);
    let evenly = (1..=CUTS).map(|cut| asked[0].told + (entries.len() - asked[0].told) * cut / CUTS);
    for cut in (*made..made + begin).chain(evenly) {
        let allowed = recorded.allowed(cut);
        for survivors in [Survivors::None, Survivors::All, Survivors::Some(cut as u64 * 0x9e37)] {
            let checked = check(&place, entries, cut, survivors, &allowed);
            assert_eq!(
                checked,
                Ok(()),
                "cut after {cut} of {} requests, {survivors:?}",
                entries.len()
            );
        }
    }
    // The check is done once more, on a disk that has flushed nothing since the first command. On
    // such a disk, the check must fail.
    let (before, behind) = entries.split_at(asked[0].told);
    let volatile = behind.iter().cloned().filter_map(Entry::without_stability);
    let volatile = [before, &volatile.collect::<Vec<_>>()].concat();
    let allowed = recorded.allowed(entries.len());
    let checked = check(&place, &volatile, volatile.len(), Survivors::None, &allowed);
    assert!(checked.is_err(), "the check finds no loss on a disk that has flushed nothing");
}
