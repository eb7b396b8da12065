//! Measures the rate of durable overwrites of a file. The measurement is repeated with several
//! engines, sizes, and numbers of operations in flight.
//!
//! `cargo run --release --package slimio-device --example durable_writes -- DIRECTORY`

#![expect(clippy::print_stdout, reason = "the program prints its measurements")]

use std::path::Path;
use std::time::{Duration, Instant};

use slimio_device::{
    Buffer, Device, Directory, EngineChoice, LBA_SIZE, Lba, Op, OpenError, PathOptions,
    PlacementId, Token,
};

/// Number of blocks of the file that is overwritten.
const FILE_LBAS: u64 = 16_384;

/// Duration of each measurement.
const MEASURED: Duration = Duration::from_secs(1);

fn main() -> Result<(), OpenError> {
    let place = std::env::args_os().nth(1).unwrap_or_else(|| ".".into());
    let place = tempfile::tempdir_in(place).expect("the directory can be written to");
    for engine in [EngineChoice::Best, EngineChoice::Plain] {
        measure(place.path(), engine)?;
    }
    Ok(())
}

fn measure(place: &Path, engine: EngineChoice) -> Result<(), OpenError> {
    let mut directory = Directory::open(place, PathOptions { engine, ..PathOptions::default() })?;
    if !directory.has_file("file") {
        directory.create_file("file", FILE_LBAS)?;
        fill(&mut *directory.open_path("file")?);
    }
    let mut path = directory.open_path("file")?;
    println!("{}", directory.describe());
    for lbas in [1, 4, 50] {
        let kib = lbas * LBA_SIZE / 1024;
        for (depth, is_kicked, how) in [(1, false, ""), (1, true, ", kicked"), (8, true, "")] {
            let rate = rate(&mut *path, lbas, depth, is_kicked);
            println!("  {kib:>4} KiB, {depth} in flight{how:<8}: {rate:>8.0} writes/s");
        }
    }
    Ok(())
}

/// Writes every block once, so that all later writes overwrite blocks that the file system has
/// allocated.
fn fill(device: &mut dyn Device) {
    let mut buffer = Some(Buffer::zeroed(256));
    let mut completions = Vec::new();
    for lba in (0..FILE_LBAS).step_by(256) {
        let buffer_now = buffer.take().expect("a write returns its buffer");
        device.submit(Token(0), write(lba, buffer_now)).expect("nothing is in flight");
        device.wait(None, &mut completions);
        buffer = completions.pop().and_then(|completion| completion.buffer);
    }
}

fn write(lba: u64, buffer: Buffer) -> Op {
    Op::Write { lba: Lba(lba), buffer, placement: PlacementId::default(), durable: true }
}

/// Measures durable writes per second. While this thread waits for a queued write, it may perform
/// the write itself, with a plain system call. If `is_kicked` is set, the thread hands the queued
/// writes to the engine before it waits. It then can't perform a write itself, unless the engine is
/// [`EngineChoice::Plain`] and its worker thread has not begun the write.
fn rate(device: &mut dyn Device, lbas: usize, depth: usize, is_kicked: bool) -> f64 {
    let mut idle: Vec<Buffer> = (0..depth).map(|_| Buffer::zeroed(lbas)).collect();
    let mut completions = Vec::new();
    let (mut lba, mut written) = (0, 0);
    let begin = Instant::now();
    while begin.elapsed() < MEASURED {
        while let Some(buffer) = idle.pop() {
            if lba + lbas as u64 > FILE_LBAS {
                lba = 0;
            }
            device
                .submit(Token(lba), write(lba, buffer))
                .expect("fewer writes are in flight than the device allows");
            lba += lbas as u64;
        }
        if is_kicked {
            device.kick();
        }
        device.wait(None, &mut completions);
        for completion in completions.drain(..) {
            completion.result.expect("the device works");
            idle.extend(completion.buffer);
            written += 1;
        }
    }
    let elapsed = begin.elapsed();
    while device.in_flight() > 0 {
        device.wait(None, &mut completions);
    }
    f64::from(written) / elapsed.as_secs_f64()
}
