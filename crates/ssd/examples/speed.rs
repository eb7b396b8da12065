//! Measures how many page writes per second the simulation reaches on one core while the collector
//! works. The writes overwrite uniformly random blocks of a full drive. The simulation keeps only
//! the mapping of the blocks, and none of their bytes. The last measurement also simulates how long
//! the drive takes: every die and every channel has a clock.

use std::io::Write;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use slimio_sim::Random;
use slimio_ssd::{Clocked, Config, Ftl, Victims};

/// Number of pages of a reclaim unit.
const UNIT_PAGES: u32 = 1024;

/// Number of pages that the host writes during a measurement.
const WRITES: u64 = 20_000_000;

/// The CPU time of this process, in seconds. CPU time is used so that other processes do not affect
/// the measurement.
fn cpu_seconds() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 * 1e-9
}

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{:>12} {:>7} {:>12} {:>8} {:>10}",
        "victims", "spare", "writes/s", "WAF", "drive"
    )?;
    for victims in [Victims::Greedy, Victims::Fifo, Victims::CostBenefit] {
        for spare_percent in [25_u32, 10] {
            let units = 1024;
            let exported = units - units * spare_percent / 100;
            let mut drive = Ftl::new(Config::model(exported, units, UNIT_PAGES, victims))
                .map_err(std::io::Error::other)?;
            let lbas = drive.config().lba_count;
            let mut random = Random::new(1);
            let mut write = |drive: &mut Ftl, count: u64| {
                for _ in 0..count {
                    drive.write(random.below(lbas), 0).expect("the block is within the drive");
                }
            };
            for lba in 0..lbas {
                drive.write(lba, 0).expect("the block is within the drive");
            }
            // Before the measurement, the drive must reach its steady state.
            write(&mut drive, 2 * lbas);
            let before = drive.counters().clone();
            let start = cpu_seconds();
            write(&mut drive, WRITES);
            let seconds = cpu_seconds() - start;
            let after = drive.counters();
            let media = after.media_bytes() - before.media_bytes();
            writeln!(
                out,
                "{:>12} {spare_percent:>6}% {:>12.0} {:>8.4} {:>7} MiB",
                format!("{victims:?}"),
                WRITES as f64 / seconds,
                media as f64 / (after.host_bytes() - before.host_bytes()) as f64,
                (lbas * 4096) >> 20,
            )?;
        }
    }
    with_clocks(&mut out)
}

/// Measures the drive of the SlimIO paper, which has 180 GiB and is full here. The collector starts
/// at the paper's thresholds of free units.
fn with_clocks(out: &mut impl Write) -> std::io::Result<()> {
    let mut drive = Clocked::new(Config::paper()).map_err(std::io::Error::other)?;
    let lbas = drive.ftl().config().lba_count;
    let mut random = Random::new(1);
    let mut now = Duration::ZERO;
    let start = cpu_seconds();
    for lba in (0..lbas).step_by(64) {
        now = drive.write(now, lba, 64, 0).expect("the block is within the drive");
    }
    for _ in 0..WRITES {
        now = drive.write(now, random.below(lbas), 1, 0).expect("the block is within the drive");
    }
    let seconds = cpu_seconds() - start;
    let counters = drive.ftl().counters();
    writeln!(
        out,
        "with clocks, 180 GiB: {:.0} writes/s, {:.0} pages/s to the media, WAF {:.4}; {:.0} s of the \
         drive's time in {seconds:.1} s of CPU time",
        counters.host_pages() as f64 / seconds,
        (counters.media_bytes() / 4096) as f64 / seconds,
        counters.waf().unwrap_or(1.0),
        now.as_secs_f64(),
    )
}
