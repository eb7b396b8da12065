//! Measures how long a drive stays locked. One thread looks at the drive again and again; the
//! result is the longest time that such a look waits. Meanwhile, a second thread fills the drive,
//! writes at random places so that the drive makes checkpoints, and deallocates the whole drive.
//!
//! `locked FOLDER [SIZE] [yes|no]` makes a drive in the folder. The size is 2G if none is given.
//! `yes` or `no` is the value of the drive's setting `sync=`; `no` if none is given. The drive is
//! removed at the end.

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use slimio_device::{Buffer, Lba, LbaRange, Op, PlacementId, Token, WholeDevice};
use slimio_sim::Random;
use slimio_ssd::{Clock, DriveOptions, DriveQueue, DriveWatch, EmulatedDrive};

fn run(queue: &mut DriveQueue, op: Op) -> Option<Buffer> {
    queue.begin(Token(0), op, Instant::now());
    let mut completions = Vec::new();
    while completions.is_empty() {
        queue.poll(&mut completions);
    }
    completions.remove(0).buffer
}

/// The longest time that a look at the drive takes while `work` runs.
fn longest(watch: &DriveWatch, work: impl FnOnce()) -> Duration {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let look = || {
            let mut longest = Duration::ZERO;
            while !is_over.load(Ordering::Relaxed) {
                let begin = Instant::now();
                watch.with_ftl(|_| ());
                longest = longest.max(begin.elapsed());
                std::thread::sleep(Duration::from_micros(50));
            }
            longest
        };
        let looks = scope.spawn(look);
        work();
        is_over.store(true, Ordering::Relaxed);
        looks.join().unwrap_or_default()
    })
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let argument = |index: usize| arguments.get(index).map(String::as_str);
    let file = PathBuf::from(argument(1).unwrap_or(".")).join("locked-drive");
    let (size, sync) = (argument(2).unwrap_or("2G"), argument(3).unwrap_or("no"));
    let spec = format!("{},size={size},timing=none,sync={sync}", file.display());
    let options = DriveOptions::parse(&spec, Clock::Real).map_err(std::io::Error::other)?;
    let drive = EmulatedDrive::open(options).map_err(std::io::Error::other)?;
    let (lbas, watch) = (drive.lba_count(), drive.watch());
    let (mut queue, mut random) = (drive.open_queue(), Random::new(1));
    let mut out = std::io::stdout().lock();
    let mut buffer = Some(Buffer::zeroed(1));
    let mut write = |queue: &mut DriveQueue, lba| {
        let buffer_now = buffer.take().unwrap_or_else(|| Buffer::zeroed(1));
        let placement = PlacementId((lba % 8) as u16);
        let op = Op::Write { lba: Lba(lba), buffer: buffer_now, placement, durable: false };
        buffer = run(queue, op);
    };
    let filling = longest(&watch, || (0..lbas).for_each(|lba| write(&mut queue, lba)));
    writeln!(out, "longest wait during the filling: {filling:?}")?;
    let begin = Instant::now();
    let checkpoints =
        longest(&watch, || (0..lbas).for_each(|_| write(&mut queue, random.below(lbas))));
    writeln!(
        out,
        "longest wait during random writes with checkpoints: {checkpoints:?}; the writes took {:?}",
        begin.elapsed()
    )?;
    let begin = Instant::now();
    let range = LbaRange { start: Lba(0), end: Lba(lbas) };
    let deallocating = longest(&watch, || drop(run(&mut queue, Op::Deallocate { range })));
    writeln!(
        out,
        "longest wait during the deallocation of all blocks: {deallocating:?}; it took {:?}",
        begin.elapsed()
    )?;
    drop((queue, watch, drive));
    std::fs::remove_file(file.with_extension("mapping"))?;
    std::fs::remove_file(file)
}
