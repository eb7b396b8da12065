//! Measures how fast snapshots are written and read. Each snapshot is written once over blocks that
//! were only reserved, and once over blocks that were written before. A second part measures how
//! registered buffers and polling change the speed and the processor time.
//!
//! `cargo run --release --package slimio-volume --example snapshot_speed -- PLACE [MiB [poll]]`
//!
//! PLACE is a directory or a device. The example overwrites a device's contents. MiB is the size of
//! each snapshot. With `poll`, only the second part runs.

#![expect(clippy::print_stdout, reason = "the example prints its measurements")]

use std::path::Path;
use std::time::{Duration, Instant};

use slimio_device::{LBA_SIZE, PathOptions, Polling};
use slimio_storage::{
    Chunk, Error, FormatOptions, Policy, READ_AHEAD_CHUNKS, Record, RecoverOptions, RecoverSink,
    SlotReader, SlotWriter, SnapshotKind, Storage, Volume, VolumeId, WriterOptions, format,
    recover,
};

/// Number of rounds. Each round measures one snapshot with every kind of path. A path hands
/// operations to the device, and the kinds of paths differ in their [`PathOptions`].
const ROUNDS: usize = 5;

/// Bytes of a chunk's payload.
const CHUNK_SIZE: usize = 256 << 10;

fn main() {
    let mut args = std::env::args().skip(1);
    let place = args.next().unwrap_or_else(|| ".".into());
    let mib = args.next().and_then(|mib| mib.parse().ok()).unwrap_or(1024);
    let only_polling = args.next().is_some_and(|word| word == "poll");
    let place = Path::new(&place);
    let folder =
        place.is_dir().then(|| tempfile::tempdir_in(place).expect("PLACE can be written to"));
    let volume = folder.as_ref().map_or(place.to_owned(), |folder| folder.path().join("volume"));
    if !only_polling {
        measure(&volume, mib).expect("the volume can be used");
    }
    compare_paths(&volume, mib).expect("the volume can be used");
}

/// Drops recovered data. The volume is empty, so recovery has no data to deliver.
struct Nothing;

impl RecoverSink for Nothing {
    fn chunk(&mut self, _: Chunk) -> Result<(), Error> {
        Ok(())
    }

    fn record(&mut self, _: Record<'_>) -> Result<(), String> {
        Ok(())
    }
}

/// Makes an empty volume. `volume_id` must be new: if an earlier volume in this place had the same
/// id, its remains would count as data of the new volume.
fn open(place: &Path, options: PathOptions, volume_id: VolumeId) -> Result<Storage, Error> {
    let mut storage = slimio_volume::open(place, options, true, u64::MAX)?;
    let layout = FormatOptions {
        volume_id,
        segment_lbas: 1024,
        batch_lbas_max: 64,
        wal_slots_max: 8,
        replace: true,
    };
    format(&mut *storage.media, &layout)?;
    Ok(storage)
}

fn options() -> RecoverOptions {
    RecoverOptions::new(Policy::No, 4, Instant::now())
}

fn payload() -> Vec<u8> {
    (0..CHUNK_SIZE).map(|at| ((at * 31) >> 3) as u8).collect()
}

/// Processor time that this process has used, including the kernel's threads for its rings.
fn processor_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// Writes snapshots with each kind of path in turn, and prints the median of the rounds.
fn compare_paths(place: &Path, mib: usize) -> Result<(), Error> {
    let idle = Some(Duration::from_millis(10));
    let kinds = [
        (false, None, false),
        (true, None, false),
        (true, idle, false),
        (false, None, true),
        (true, None, true),
        (true, idle, true),
    ];
    let kinds = kinds.map(|(registered, submissions_idle, completions)| {
        let polling = Polling { submissions_idle, completions };
        PathOptions { registered, polling, ..PathOptions::default() }
    });
    let name = |options: &PathOptions| {
        let buffers = if options.registered { "registered" } else { "unregistered" };
        format!("{buffers}, polls for {}", options.polling)
    };
    let mut rounds = kinds.map(|_| Vec::new());
    let mut ids = (2..).map(VolumeId);
    for round in 0..ROUNDS {
        for ((options_now, rounds), id) in kinds.iter().zip(&mut rounds).zip(&mut ids) {
            let mut storage = open(place, *options_now, id)?;
            let mut volume = recover(&mut *storage.media, &options(), &mut Nothing)?;
            if round == 0 {
                let (io_path, why_not) = storage.media.io_path().unwrap_or_default();
                println!("{}: {io_path}; {why_not}", name(options_now));
            }
            // The first snapshot is not measured, because it is written over blocks that were only
            // reserved.
            write(&mut volume, &payload(), mib, WriterOptions::default())?;
            let before = processor_time();
            let (whole, _) = write(&mut volume, &payload(), mib, WriterOptions::default())?;
            rounds
                .push((whole.as_secs_f64(), processor_time().saturating_sub(before).as_secs_f64()));
        }
    }
    for (options, mut rounds) in kinds.iter().zip(rounds) {
        let median = |values: &mut Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let (mut whole, mut used): (Vec<_>, Vec<_>) = rounds.drain(..).unzip();
        let (whole, used) = (median(&mut whole), median(&mut used));
        println!(
            "{:<69} {:>6.0} MB/s, {:.3} s of processor time per GiB",
            name(options) + ":",
            mib as f64 * 1.048_576 / whole,
            used * 1024.0 / mib as f64
        );
    }
    Ok(())
}

fn measure(place: &Path, mib: usize) -> Result<(), Error> {
    let mut storage = open(place, PathOptions::default(), VolumeId(1))?;
    println!("{}", storage.io_path);
    let options = options();
    let payload = payload();
    for (write_kib, in_flight) in [(256, 4), (512, 2), (512, 4), (512, 8), (1024, 4), (1024, 8)] {
        let mut volume = recover(&mut *storage.media, &options, &mut Nothing)?;
        let writer = WriterOptions {
            write_lbas: (write_kib << 10) / LBA_SIZE as u32,
            in_flight,
            ..WriterOptions::default()
        };
        let device = volume.slot_paths.get(slimio_storage::SlotName::A);
        device.shrink(0).map_err(|error| Error::Device { doing: "shrinking", error })?;
        for how in ["reserved", "written before"] {
            let (whole, flush) = write(&mut volume, &payload, mib, writer)?;
            println!(
                "{write_kib:>5} KiB x {in_flight}, blocks {how:<14}: {:>6.0} MB/s ({:.2} s, of \
                 which the snapshot's end and the flush took {:.2} s)",
                mib as f64 * 1.048_576 / whole.as_secs_f64(),
                whole.as_secs_f64(),
                flush.as_secs_f64()
            );
        }
    }
    let mut volume = recover(&mut *storage.media, &options, &mut Nothing)?;
    read(&mut volume, &payload, mib)
}

/// Writes a snapshot, but does not adopt it. Returns how long all of the writing took, and how long
/// its last step (the snapshot's end and the flush) took.
fn write(
    volume: &mut Volume,
    payload: &[u8],
    mib: usize,
    options: WriterOptions,
) -> Result<(Duration, Duration), Error> {
    let plan =
        volume.log.begin_snapshot(SnapshotKind::Wal, 0).expect("no other snapshot is under way");
    let device = volume.slot_paths.get(plan.slot);
    let began = Instant::now();
    let mut writer = SlotWriter::begin(device, plan, options)?;
    for _ in 0..mib * (1 << 20) / payload.len() {
        writer.chunk(device, payload, 64)?;
    }
    let ended = Instant::now();
    writer.finish(device)?;
    volume.log.snapshot_failed();
    Ok((began.elapsed(), ended.elapsed()))
}

/// Writes one more snapshot, and measures how fast this snapshot is read.
fn read(volume: &mut Volume, payload: &[u8], mib: usize) -> Result<(), Error> {
    let plan =
        volume.log.begin_snapshot(SnapshotKind::Wal, 0).expect("no other snapshot is under way");
    let device = volume.slot_paths.get(plan.slot);
    let mut writer = SlotWriter::begin(device, plan, WriterOptions::default())?;
    for _ in 0..mib * (1 << 20) / payload.len() {
        writer.chunk(device, payload, 64)?;
    }
    let summary = writer.finish(device)?;
    for (ahead, is_checked) in
        [(1, false), (4, false), (READ_AHEAD_CHUNKS, false), (READ_AHEAD_CHUNKS, true)]
    {
        let began = Instant::now();
        let mut reader = SlotReader::open(device, VolumeId(1), summary, ahead)?;
        while let Some(chunk) = reader.next_chunk(device)? {
            if is_checked {
                chunk.payload()?;
            }
            reader.give_back(chunk.into_buffer());
        }
        let how = if is_checked { ", checked" } else { "" };
        println!(
            "read, {ahead} chunks ahead{how}: {:.0} MB/s",
            mib as f64 * 1.048_576 / began.elapsed().as_secs_f64()
        );
    }
    Ok(())
}
