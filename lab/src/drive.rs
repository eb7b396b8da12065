//! Compares the emulated SSD over NVMe/TCP with the same drive in this process.

mod served;
mod way;

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

pub use served::Served;
pub use way::{InProcess, OverTcp, Way};

use crate::error::{BenchError, Result};

/// Size of a block, in bytes.
pub const LBA_SIZE: usize = 4096;
/// Number of commands in flight, unless a measurement has a number of its own.
pub const DEPTH: usize = 32;
/// The largest number of operations that warm up the caches before a measurement begins.
const WARM_UP_MAX: u64 = 2000;

/// The result of one measurement.
#[derive(Debug)]
pub struct Measured {
    /// Operations per second.
    pub iops: f64,
    /// Times from submission to outcome, in nanoseconds.
    pub latency: Histogram<u64>,
}

impl Measured {
    /// A percentile of the latency, in microseconds.
    pub fn micros(&self, percentile: f64) -> f64 {
        self.latency.value_at_percentile(percentile) as f64 / 1000.0
    }
}

/// Reads or writes blocks of the whole drive at random, `depth` at a time, for `time`.
pub fn measure(way: &mut dyn Way, writes: bool, depth: usize, time: Duration) -> Result<Measured> {
    let mut rng = fastrand::Rng::with_seed(7);
    let lbas = way.lba_count();
    let mut latency = Histogram::new(3).expect("three digits are a valid precision");
    let mut begun_at = vec![Instant::now(); depth];
    let mut free: Vec<usize> = (0..depth).collect();
    let mut ended = Vec::new();
    let (mut all, mut counted, mut start) = (0, 0, None);
    loop {
        let now = Instant::now();
        let is_over = start.is_some_and(|start| now >= start + time);
        if is_over && free.len() == depth {
            break;
        }
        while !is_over && let Some(name) = free.pop() {
            begun_at[name] = Instant::now();
            way.begin(name, writes, rng.u64(..lbas), (name % 8) as u16)?;
        }
        way.wait(&mut ended)?;
        let now = Instant::now();
        for name in ended.drain(..) {
            free.push(name);
            all += 1;
            if let Some(start) = start {
                if now < start + time {
                    counted += 1;
                }
                let taken = now.duration_since(begun_at[name]).as_nanos() as u64;
                latency.record(taken).expect("the histogram resizes itself");
            }
        }
        // With few operations in flight, the warm-up has fewer operations. Otherwise, the warm-up
        // would take very long on a slow drive.
        if start.is_none() && all >= WARM_UP_MAX.min(50 * depth as u64) {
            start = Some(Instant::now());
        }
    }
    Ok(Measured { iops: f64::from(counted) / time.as_secs_f64(), latency })
}

/// Writes each block once, in order.
pub fn fill(way: &mut dyn Way) -> Result<()> {
    let lbas = way.lba_count();
    write_all(way, lbas, |at| at)
}

/// Overwrites random blocks. The number of writes is `rounds` times the number of blocks.
pub fn overwrite(way: &mut dyn Way, rounds: u64) -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(11);
    let lbas = way.lba_count();
    write_all(way, lbas * rounds, |_| rng.u64(..lbas))
}

fn write_all(way: &mut dyn Way, count: u64, mut lba_of: impl FnMut(u64) -> u64) -> Result<()> {
    let mut free: Vec<usize> = (0..DEPTH).collect();
    let (mut begun, mut ended) = (0, Vec::new());
    while begun < count || free.len() < DEPTH {
        while begun < count
            && let Some(name) = free.pop()
        {
            let lba = lba_of(begun);
            // Neighbouring blocks share a placement, like data that dies together.
            way.begin(name, true, lba, (lba / 64 % 8) as u16)?;
            begun += 1;
        }
        way.wait(&mut ended)?;
        free.append(&mut ended);
    }
    Ok(())
}

/// How long the measurements take, and how large the drives are.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Duration of each row's measurement.
    pub time: Duration,
    /// Size of the drive whose operations are counted, in MiB.
    pub size_mib: u64,
    /// Size of the drive that is killed, in MiB.
    pub killed_mib: u64,
    /// How long the host polls before it sleeps.
    pub spin: Duration,
}

/// Runs all measurements. Returns the results as Markdown.
///
/// # Errors
/// When the program does not start, or a command fails. When the write amplification in process
/// differs by more than 0.5 % from that over NVMe/TCP. When a drive's counters are lower after a
/// kill than before.
pub fn run(program: &Path, folder: &Path, extent: Extent) -> Result<String> {
    let mut text = String::from(
        "| timing | 4 KiB | in flight | in process | over NVMe/TCP | share | in process: p50, p99, \
         p99.9 | over NVMe/TCP: p50, p99, p99.9 |\n|---|---|---|---|---|---|---|---|\n",
    );
    for timing in ["none", "paper"] {
        let spec = format!("{}M,timing={timing}", extent.size_mib);
        let mut alone = InProcess::open(&spec)?;
        let served = Served::start(program, &spec)?;
        let mut remote = OverTcp::connect(&served, extent.spin)?;
        fill(&mut alone)?;
        fill(&mut remote)?;
        for writes in [false, true] {
            for depth in [1, DEPTH] {
                let [here, there] = [&mut alone as &mut dyn Way, &mut remote]
                    .map(|way| measure(way, writes, depth, extent.time));
                let (here, there) = (here?, there?);
                let verb = if writes { "writes" } else { "reads" };
                let micros = |measured: &Measured| {
                    let all = [50.0, 99.0, 99.9].map(|at| format!("{:.1}", measured.micros(at)));
                    format!("{} µs", all.join(", "))
                };
                let _ = writeln!(
                    text,
                    "| {timing} | {verb} | {depth} | {:.0} /s | {:.0} /s | {:.2} | {} | {} |",
                    here.iops,
                    there.iops,
                    there.iops / here.iops,
                    micros(&here),
                    micros(&there),
                );
            }
        }
    }
    text.push_str(&amplification(program, extent)?);
    text.push_str(&restart(program, folder, extent.killed_mib)?);
    Ok(text)
}

/// Compares the write amplification of the same writes in process and over NVMe/TCP.
fn amplification(program: &Path, extent: Extent) -> Result<String> {
    let spec = format!("{}M,timing=none,spare=20%", extent.size_mib);
    let mut alone = InProcess::open(&spec)?;
    let served = Served::start(program, &spec)?;
    let mut remote = OverTcp::connect(&served, extent.spin)?;
    for way in [&mut alone as &mut dyn Way, &mut remote] {
        fill(way)?;
        overwrite(way, 4)?;
    }
    let (here, there) = (alone.counters()?, remote.counters()?);
    let waf = |(host, media): (u128, u128)| media as f64 / host as f64;
    let (a, b) = (waf(here), waf(there));
    if (a / b - 1.0).abs() > 0.005 {
        let text = format!("write amplification is {a:.4} in process and {b:.4} over NVMe/TCP");
        return Err(BenchError::Broken(text));
    }
    Ok(format!(
        "\nWrite amplification of the same writes: {a:.4} in process, {b:.4} over NVMe/TCP ({} and \
         {} media bytes).\n",
        here.1, there.1
    ))
}

/// Kills a drive's process while writes are in flight, and starts the drive again.
fn restart(program: &Path, folder: &Path, size_mib: u64) -> Result<String> {
    let file = folder.join("drive");
    let spec = format!("{},size={size_mib}M,timing=none", file.display());
    let served = Served::start(program, &spec)?;
    let mut remote = OverTcp::connect(&served, Duration::ZERO)?;
    fill(&mut remote)?;
    overwrite(&mut remote, 1)?;
    let before = remote.counters()?;
    for name in 0..DEPTH {
        remote.begin(name, true, name as u64, 0)?;
    }
    // When the drive is killed, some of the writes have ended, and some have not.
    remote.wait(&mut Vec::new())?;
    served.kill()?;
    let start = Instant::now();
    let served = Served::start(program, &spec)?;
    let taken = start.elapsed();
    let after = OverTcp::connect(&served, Duration::ZERO)?.counters()?;
    if after.0 < before.0 || after.1 < before.1 {
        let text = format!("after a kill, the counters went back from {before:?} to {after:?}");
        return Err(BenchError::Broken(text));
    }
    Ok(format!(
        "\nA full drive of {size_mib} MiB was killed during writes, and served again after {:.3} s. \
         Its counter of host bytes went on from {} to {}.\n",
        taken.as_secs_f64(),
        before.0,
        after.0
    ))
}
