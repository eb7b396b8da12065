//! Writes blocks one after the other, each durable before the next, and prints how long one write
//! takes. Each write either appends to a file and then flushes the file, as many programs write a
//! log, or overwrites a block through one of this crate's back ends.
//!
//! `cargo run --release --package slimio-device --example write_time -- WAY PATH [COUNT [MARKER]]`
//!
//! `WAY` is `append`, `preallocated`, `block` or `passthrough`. For `append` and `preallocated`,
//! `PATH` is an empty directory. For `block` and `passthrough`, `PATH` is a device, whose contents
//! are lost. `MARKER` is the kernel's file `trace_marker`. The program writes `begin` to this file
//! before the first write, and `end` after the last.

#![expect(clippy::print_stdout, reason = "the program prints its measurements")]

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use slimio_device::{
    BlockDevice, Buffer, Device, Directory, LBA_SIZE, Lba, NvmeDevice, Op, PathOptions,
    PlacementId, Token, WholeDevice as _,
};

/// Number of blocks that are overwritten again and again, like the segments of a log.
const LBA_COUNT: u64 = 1024;
const FILE_NAME: &str = "log";

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [way, path, rest @ ..] = words.as_slice() else {
        return Err("usage: write_time WAY PATH [COUNT [MARKER]]".into());
    };
    let (path, options) = (Path::new(path), PathOptions::default());
    let count = rest.first().map_or(Ok(1000), |count| count.parse())?;
    let marker = rest.get(1).map(Path::new);
    match way.as_str() {
        "append" => append(path, count, marker),
        "preallocated" => {
            let mut directory = Directory::open_or_create(path, options)?;
            directory.create_file(FILE_NAME, LBA_COUNT)?;
            overwrite(&mut *directory.open_path(FILE_NAME)?, count, marker)
        }
        "block" => overwrite(&mut *BlockDevice::open(path, options)?.open_path()?, count, marker),
        "passthrough" => {
            overwrite(&mut *NvmeDevice::open(path, options)?.open_path()?, count, marker)
        }
        _ => Err(format!("unknown way: {way}").into()),
    }
}

/// Appends to a file through the page cache.
fn append(directory: &Path, count: u64, marker: Option<&Path>) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(directory)?;
    let path = directory.join(FILE_NAME);
    let mut file = OpenOptions::new().append(true).create_new(true).open(path)?;
    let block = [7; LBA_SIZE];
    timed(count, marker, |_| {
        file.write_all(&block)?;
        Ok(file.sync_data()?)
    })
}

/// Overwrites blocks, bypassing the page cache. The blocks are written once before the measurement.
fn overwrite(
    device: &mut dyn Device,
    count: u64,
    marker: Option<&Path>,
) -> Result<(), Box<dyn Error>> {
    let step = 64;
    for at in (0..LBA_COUNT).step_by(step) {
        run(device, Lba(at), Buffer::zeroed(step))?;
    }
    let mut kept = Some(Buffer::zeroed(1));
    timed(count, marker, |index| {
        let buffer = kept.take().ok_or("the previous write did not return its buffer")?;
        kept = run(device, Lba(index % LBA_COUNT), buffer)?;
        Ok(())
    })
}

/// Makes one durable write and waits for it.
fn run(
    device: &mut dyn Device,
    lba: Lba,
    buffer: Buffer,
) -> Result<Option<Buffer>, Box<dyn Error>> {
    let op = Op::Write { lba, buffer, placement: PlacementId::default(), durable: true };
    device
        .submit(Token(0), op)
        .map_err(|_| "the device refused the write, although no other write is in flight")?;
    let mut completions = Vec::new();
    while completions.is_empty() {
        device.wait(None, &mut completions);
    }
    let completion = completions.remove(0);
    completion.result?;
    Ok(completion.buffer)
}

fn timed(
    count: u64,
    marker: Option<&Path>,
    mut write: impl FnMut(u64) -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let mark = |text: &str| marker.map_or(Ok(()), |path| fs::write(path, text));
    mark("begin")?;
    let began = Instant::now();
    for index in 0..count {
        write(index)?;
    }
    let took = began.elapsed();
    mark("end")?;
    println!("{:.1} us per write", took.as_secs_f64() * 1e6 / count as f64);
    Ok(())
}
