//! How fast a server replays its log: the time from its start to the first PONG. When the server
//! starts, none of its files is in the page cache.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use rustix::fs::{Advice, fadvise};

use crate::block::sync_file_system;
use crate::client::Reply;
use crate::error::{BenchError, Doing, Result};
use crate::measure::{LogSize, Metrics};
use crate::request::RequestWriter;
use crate::run::{RunResult, preload};
use crate::server::{Server, ServerConfig, ServerKind};
use crate::tree::tree_files;

/// A start counts as cold if at most this share of the files' bytes is still in memory.
const RESIDENT_SHARE_MAX: f64 = 0.01;
/// Length in bytes of each read while the speed of reading the files is measured.
const READ_SIZE: usize = 1 << 20;

/// Writes `key_count` keys, ends the server, drops its files from memory, and starts it again.
pub fn run(
    config: &ServerConfig,
    key_count: u64,
    writer: &RequestWriter,
    seed: u64,
) -> Result<RunResult> {
    let server = Server::start(config)?;
    let empty_start_s = server.ready_after().as_secs_f64();
    let written = preload(server.address(), key_count, writer, seed)?;
    let log_bytes = LogSize::of(&server)?.bytes;
    match config.kind {
        // Stock Redis is not killed, because it would lose writes that it has acknowledged but not
        // yet written. While its background thread flushes the log, these can be the writes of up
        // to two seconds.
        ServerKind::Stock => server.stop()?,
        ServerKind::SlimIO => server.kill()?,
    }

    let data = config.data_directory();
    let mut result = RunResult::default();
    result.notes.insert("cold", evict(&data)?);

    let server = start_with_keys(config, key_count)?;
    let replay_s = server.ready_after().as_secs_f64();
    server.stop()?;
    // The speed of reading the files is measured after the replay, because reading warms caches
    // below the kernel (in a controller, or in the host of a virtual machine).
    evict(&data)?;
    let read_mb_per_s = read_speed(&data)?;

    let payload_mb = written.payload_bytes as f64 / 1e6;
    result.metrics = Metrics::from([
        ("replay_mb_per_s", payload_mb / replay_s),
        ("replay_s", replay_s),
        ("empty_start_s", empty_start_s),
        ("payload_mb", payload_mb),
        ("file_read_mb_per_s", read_mb_per_s),
        ("replay_share_of_file_read", payload_mb / replay_s / read_mb_per_s),
    ]);
    if let Some(bytes) = log_bytes {
        result.metrics.insert("log_mb", bytes as f64 / 1e6);
    }
    Ok(result)
}

/// Starts a server again, and checks that it has `key_count` keys.
pub(crate) fn start_with_keys(config: &ServerConfig, key_count: u64) -> Result<Server> {
    let server = Server::start(config)?;
    let found = server.client()?.expect(&["DBSIZE"])?;
    if found == Reply::Integer(key_count as i64) {
        return Ok(server);
    }
    let text = format!("{key_count} keys were written, but after the restart DBSIZE is {found:?}");
    Err(BenchError::Broken(text))
}

/// Drops the files below `directory` from the page cache. Returns a text that says how they were
/// dropped, or that they are still in memory.
pub(crate) fn evict(directory: &Path) -> Result<String> {
    sync_file_system(directory)?;
    for path in tree_files(directory)? {
        let what = || format!("dropping {} from memory", path.display());
        let file = File::open(&path).doing(what())?;
        fadvise(&file, 0, None, Advice::DontNeed).doing(what())?;
    }
    let how = match resident_share(directory)? {
        None => "posix_fadvise; not checked, because fincore does not work".to_owned(),
        Some(share) if share <= RESIDENT_SHARE_MAX => "posix_fadvise, checked by fincore".into(),
        Some(_) if fs::write("/proc/sys/vm/drop_caches", "1").is_ok() => "drop_caches".into(),
        Some(share) => format!("not cold: {:.0} % of the data is still in memory", share * 100.0),
    };
    Ok(how)
}

/// Share of the files' bytes that is in memory; `None` if `fincore` does not work.
fn resident_share(directory: &Path) -> Result<Option<f64>> {
    let files = tree_files(directory)?;
    let mut fincore = Command::new("fincore");
    fincore.args(["-b", "-n", "-r", "-o", "RES,SIZE"]).args(files);
    let Ok(output) = fincore.output() else { return Ok(None) };
    if !output.status.success() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (mut resident, mut size) = (0.0, 0.0);
    for line in text.lines() {
        let mut numbers = line.split_whitespace().map(str::parse::<f64>);
        let (Some(Ok(here)), Some(Ok(whole))) = (numbers.next(), numbers.next()) else {
            return Ok(None);
        };
        resident += here;
        size += whole;
    }
    Ok(Some(if size > 0.0 { resident / size } else { 0.0 }))
}

/// Speed, in MB per second, at which one thread reads the files from the device with buffered
/// reads.
fn read_speed(directory: &Path) -> Result<f64> {
    let mut buffer = vec![0; READ_SIZE];
    let mut read_bytes = 0;
    let started = Instant::now();
    for path in tree_files(directory)? {
        let what = || format!("reading {}", path.display());
        let mut file = File::open(&path).doing(what())?;
        loop {
            let count = file.read(&mut buffer).doing(what())?;
            if count == 0 {
                break;
            }
            read_bytes += count;
        }
    }
    Ok(read_bytes as f64 / 1e6 / started.elapsed().as_secs_f64())
}
