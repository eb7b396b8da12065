//! Measures how long a drive takes to open after its process was killed. The process is killed when
//! the journal is almost as long as it can get.
//!
//! `restart FOLDER [SIZE]` makes a drive in the folder. The size is 2G if none is given. A child
//! process fills the drive and overwrites it at random, and then is killed. The drive is removed at
//! the end.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use slimio_device::{Buffer, Lba, Op, PlacementId, Token, WholeDevice};
use slimio_sim::Random;
use slimio_ssd::{Clock, DriveOptions, EmulatedDrive};

/// Number of rounds. Each round kills the process after a different number of writes.
const ROUNDS: u64 = 8;

fn open(file: &Path, size: &str) -> std::io::Result<EmulatedDrive> {
    let spec = format!("{},size={size},timing=none", file.display());
    let options = DriveOptions::parse(&spec, Clock::Real).map_err(std::io::Error::other)?;
    EmulatedDrive::open(options).map_err(std::io::Error::other)
}

/// The child process: writes to the drive, prints a line, and then waits to be killed. In the first
/// round, it fills the drive before these writes.
fn write(file: &Path, size: &str, round: u64) -> std::io::Result<()> {
    let drive = open(file, size)?;
    let lbas = drive.lba_count();
    let (mut queue, mut random) = (drive.open_queue(), Random::new(round));
    let mut buffer = Some(Buffer::zeroed(1));
    let mut completions = Vec::new();
    let mut write = |lba| {
        let buffer = buffer.take().unwrap_or_else(|| Buffer::zeroed(1));
        let placement = PlacementId((lba % 8) as u16);
        let op = Op::Write { lba: Lba(lba), buffer, placement, durable: false };
        queue.begin(Token(0), op, Instant::now());
        queue.poll(&mut completions);
    };
    if round == 0 {
        (0..lbas).for_each(&mut write);
    }
    // The drive makes a checkpoint each time an eighth of its blocks were written. The journal is
    // longest just before a checkpoint.
    for _ in 0..lbas / 8 * (round + 1) - round * 100 - 100 {
        write(random.below(lbas));
    }
    let mut out = std::io::stdout();
    writeln!(out, "done")?;
    out.flush()?;
    loop {
        std::thread::park();
    }
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let argument = |index: usize| arguments.get(index).map(String::as_str);
    let folder = argument(1).unwrap_or(".");
    let (file, size) = (PathBuf::from(folder).join("restart-drive"), argument(2).unwrap_or("2G"));
    if let Some(round) = argument(3).and_then(|round| round.parse().ok()) {
        return write(&file, size, round);
    }
    let mut out = std::io::stdout().lock();
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe()?)
            .args([folder, size, &round.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        child.kill()?;
        child.wait()?;
        let begin = Instant::now();
        let drive = open(&file, size)?;
        let took = begin.elapsed();
        writeln!(
            out,
            "opening took {took:?} after {} written bytes",
            drive.counters().host_bytes()
        )?;
        let begin = Instant::now();
        drop(drive);
        writeln!(out, "closing took {:?}", begin.elapsed())?;
    }
    std::fs::remove_file(file.with_extension("mapping"))?;
    std::fs::remove_file(file)
}
