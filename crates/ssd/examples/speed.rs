//! How many page writes a second the mapping does on one core, with collection running: uniformly
//! random overwrites of a full drive, without clocks and without data.

use std::io::Write as _;
use std::time::Instant;

use slimio_sim::Random;
use slimio_ssd::{Config, Ftl, Victims};

/// Pages of a reclaim unit.
const UNIT_PAGES: u32 = 1024;

/// Pages that the host writes while it is measured.
const WRITES: u64 = 20_000_000;

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
                    drive.write(random.below(lbas), 0).expect("it is within the drive");
                }
            };
            for lba in 0..lbas {
                drive.write(lba, 0).expect("it is within the drive");
            }
            // To the steady state first.
            write(&mut drive, 2 * lbas);
            let before = drive.counters().clone();
            let start = Instant::now();
            write(&mut drive, WRITES);
            let seconds = start.elapsed().as_secs_f64();
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
    Ok(())
}
