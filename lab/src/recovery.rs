//! How fast a server recovers from a snapshot: the time from its start to the first PONG, with none
//! of its files in the page cache.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use rustix::fs::OFlags;

use crate::block::{BlockDevice, DeviceCounters};
use crate::error::{Doing as _, Result};
use crate::measure::Metrics;
use crate::replay::{evict, start_with_keys};
use crate::request::RequestWriter;
use crate::run::{RunResult, preload};
use crate::server::{Server, ServerConfig};
use crate::snapshot::{Kind, take};
use crate::tree::tree_files;

/// Number of reads in flight while the device's own speed is measured.
const READER_COUNT: usize = 8;
/// Length in bytes of each read in the measurement of the device's own speed.
const READ_SIZE: usize = 1 << 20;
/// Alignment of buffers for direct I/O, in bytes.
const ALIGNMENT: usize = 4096;

/// Writes `key_count` keys, rewrites the log so that all of them are in a snapshot, kills the
/// server, drops its files from the page cache, and starts it again.
pub fn run(
    config: &ServerConfig,
    key_count: u64,
    writer: &RequestWriter,
    seed: u64,
) -> Result<RunResult> {
    let server = Server::start(config)?;
    let written = preload(server.address(), key_count, writer, seed)?;
    take(&mut server.client()?, Kind::Rewrite)?;
    server.kill()?;

    let data = config.data_directory();
    let mut result = RunResult::default();
    result.notes.insert("cold", evict(&data)?);
    let device = BlockDevice::below(&data)?;
    let counters = || device.as_ref().and_then(BlockDevice::counters);
    let before = counters();
    let server = start_with_keys(config, key_count)?;
    let read_bytes = read_since(before, counters());
    let recovery_s = server.ready_after().as_secs_f64();
    result.add_notes(&server)?;
    server.stop()?;

    let payload_mb = written.payload_bytes as f64 / 1e6;
    result.metrics = Metrics::from([
        ("recovery_s", recovery_s),
        ("recovery_mb_per_s", payload_mb / recovery_s),
        ("recovery_keys_per_s", key_count as f64 / recovery_s),
        ("payload_mb", payload_mb),
        ("keys", key_count as f64),
    ]);
    if let Some(read_bytes) = read_bytes {
        let read_mb_per_s = read_bytes as f64 / 1e6 / recovery_s;
        result.metrics.insert("recovery_device_read_mb_per_s", read_mb_per_s);
    }
    // The device's own speed is measured last, because that measurement warms the caches of the
    // device.
    evict(&data)?;
    let before = counters();
    if let Some(seconds) = read_directly(&data)?
        && let Some(read_bytes) = read_since(before, counters()).filter(|&bytes| bytes > 0)
    {
        let mb_per_s = read_bytes as f64 / 1e6 / seconds;
        let share = payload_mb / recovery_s / mb_per_s;
        result.metrics.insert("device_read_mb_per_s", mb_per_s);
        result.metrics.insert("recovery_share_of_device_read", share);
    }
    Ok(result)
}

fn read_since(before: Option<DeviceCounters>, after: Option<DeviceCounters>) -> Option<u64> {
    Some(after?.since(before?).read_bytes)
}

/// Reads the files below `directory` as fast as the device can: with direct I/O, several reads in
/// flight. Returns the number of seconds that the reads took; `None` if the file system has no
/// direct I/O. Reads of preallocated blocks that were never written do not reach the device, so
/// only the device's counters say how many bytes came from the device.
fn read_directly(directory: &Path) -> Result<Option<f64>> {
    let mut pieces = Vec::new();
    for path in tree_files(directory)? {
        let mut options = File::options();
        options.read(true).custom_flags(OFlags::DIRECT.bits() as i32);
        let Ok(file) = options.open(&path) else { return Ok(None) };
        let size = file.metadata().doing(format!("looking at {}", path.display()))?.len();
        pieces.push((file, size.div_ceil(READ_SIZE as u64)));
    }
    let next = AtomicU64::new(0);
    let started = Instant::now();
    let results: Vec<Result<()>> = thread::scope(|scope| {
        let reader = || scope.spawn(|| read_pieces(&pieces, &next));
        let readers: Vec<_> = (0..READER_COUNT).map(|_| reader()).collect();
        readers.into_iter().map(|reader| reader.join().expect("a reader does not panic")).collect()
    });
    results.into_iter().collect::<Result<Vec<()>>>()?;
    Ok(Some(started.elapsed().as_secs_f64()))
}

/// Reads pieces until none is left. `next` is the number of the next piece, counted over all files.
fn read_pieces(files: &[(File, u64)], next: &AtomicU64) -> Result<()> {
    let mut memory = vec![0; READ_SIZE + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    let buffer = &mut memory[start..start + READ_SIZE];
    loop {
        let mut piece = next.fetch_add(1, Ordering::Relaxed);
        let mut files = files.iter();
        let file = loop {
            let Some((file, count)) = files.next() else { return Ok(()) };
            if piece < *count {
                break file;
            }
            piece -= count;
        };
        file.read_at(buffer, piece * READ_SIZE as u64).doing("reading directly")?;
    }
}
