//! Measures how many operations per second a queue in this process can do. The operations read and
//! write 4 KiB at random blocks, on a drive whose NAND takes no time. For comparison, the same
//! reads and writes go to a plain file. A drive whose own work cost nothing would be as fast as the
//! file.
//!
//! `queue [SPEC]` measures the drive that SPEC names, which should have `timing=none`. Without
//! SPEC, it measures a drive of 1 GiB in a temporary file.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use slimio_device::{Buffer, LBA_SIZE, Lba, Op, PlacementId, Token, WholeDevice};
use slimio_sim::Random;
use slimio_ssd::{Clock, DriveOptions, EmulatedDrive};

const DEPTH: u64 = 32;

/// Number of operations in a measurement.
const OPS: u64 = 2_000_000;

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let spec = std::env::args().nth(1).unwrap_or_else(|| "1G,timing=none".into());
    let options = DriveOptions::parse(&spec, Clock::Real).map_err(std::io::Error::other)?;
    let drive = EmulatedDrive::open(options).map_err(std::io::Error::other)?;
    let lbas = drive.lba_count();
    let mut queue = drive.open_queue();
    let mut buffers: Vec<Buffer> = (0..DEPTH).map(|_| Buffer::zeroed(1)).collect();
    let mut completions = Vec::new();
    let mut random = Random::new(1);
    let mut measure = |writes: bool, lba_of: &mut dyn FnMut(u64) -> u64, ops: u64| {
        let begin = Instant::now();
        let mut begun = 0;
        while begun < ops {
            let now = Instant::now();
            while let Some(buffer) = buffers.pop() {
                let lba = Lba(lba_of(begun));
                let placement = PlacementId((begun % 8) as u16);
                let op = if writes {
                    Op::Write { lba, buffer, placement, durable: false }
                } else {
                    Op::Read { lba, buffer }
                };
                queue.begin(Token(begun), op, now);
                begun += 1;
            }
            queue.poll(&mut completions);
            for completion in completions.drain(..) {
                completion.result.expect("the drive works");
                buffers.extend(completion.buffer);
            }
        }
        begun as f64 / begin.elapsed().as_secs_f64()
    };
    let fill = measure(true, &mut |begun| begun % lbas, lbas);
    let writes = measure(true, &mut |_| random.below(lbas), OPS);
    let reads = measure(false, &mut |_| random.below(lbas), OPS);
    writeln!(out, "drive, first writes in order: {fill:.0} a second")?;
    writeln!(out, "drive, writes at random:      {writes:.0} a second")?;
    writeln!(out, "drive, reads at random:       {reads:.0} a second")?;
    drop(queue);
    drop(drive);

    let file = tempfile::tempfile()?;
    let mut block = Buffer::zeroed(1);
    let mut measure = |writes: bool, lba_of: &mut dyn FnMut(u64) -> u64, ops: u64| {
        let begin = Instant::now();
        for op in 0..ops {
            let at = lba_of(op) * LBA_SIZE as u64;
            if writes {
                file.write_all_at(&block, at)
            } else {
                file.read_exact_at(&mut block, at)
            }?;
        }
        std::io::Result::Ok(ops as f64 / begin.elapsed().as_secs_f64())
    };
    measure(true, &mut |op| op % lbas, lbas)?;
    let writes = measure(true, &mut |_| random.below(lbas), OPS)?;
    let reads = measure(false, &mut |_| random.below(lbas), OPS)?;
    writeln!(out, "file, writes at random:       {writes:.0} a second")?;
    writeln!(out, "file, reads at random:        {reads:.0} a second")
}
