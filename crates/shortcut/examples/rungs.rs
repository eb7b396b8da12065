//! Times durable appends to a log file, one after the other, on each rung: as a program does it
//! (*stock*), with its blocks allocated or filled with zeros before, and the short way.
//!
//! ```console
//! $ cargo run --release -p slimio-shortcut --example rungs -- FOLDER [ROUNDS]
//! ```
//!
//! The rungs take turns in each round; the table has medians over the rounds. A folder on ext4 with
//! journal or on XFS shows most.
#![expect(clippy::print_stdout, reason = "it prints a table")]

use std::error::Error;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use rustix::fs::FallocateFlags;
use slimio_shortcut::{LogFile, Stage};

/// Durable appends in each round.
const WRITES: usize = 200;
const ROUNDS: usize = 7;
const RUNGS: [&str; 4] = ["stock", "fallocate only", "zeroed, buffered", "file"];

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("name a folder to write in")?;
    let rounds = args.next().map_or(Ok(ROUNDS), |rounds| rounds.parse())?;
    println!("| bytes | rung | us | to stock | to zeroed, buffered |\n|---:|---|---:|---:|---:|");
    for size in [100, 4096, 16384] {
        let mut times = RUNGS.map(|_| Vec::new());
        for _ in 0..rounds {
            for (rung, times) in times.iter_mut().enumerate() {
                times.push(time(Path::new(&folder), rung, size)?);
            }
        }
        let medians = times.map(median);
        for (name, us) in RUNGS.iter().zip(medians) {
            let (stock, zeroed) = (us / medians[0], us / medians[2]);
            println!("| {size} | {name} | {us:.0} | {stock:.2} | {zeroed:.2} |");
        }
    }
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Microseconds of a durable append.
fn time(folder: &Path, rung: usize, size: usize) -> Result<f64, Box<dyn Error>> {
    let path = folder.join("rung.log");
    let _ = fs::remove_file(&path);
    let mut file = File::create_new(&path)?;
    let (bytes, whole) = (vec![1; size], WRITES * size);
    match rung {
        1 => rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, whole as u64)?,
        2 => {
            file.write_all(&vec![0; whole])?;
            rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
        }
        _ => {}
    }
    file.sync_all()?;
    let us = if rung == 3 {
        let mut log = LogFile::take(file, Stage::private())
            .map_err(|(_, why)| format!("not taken: {why:?}"))?;
        // The first write fills the file with zeros ahead.
        log.append(&bytes)?;
        log.sync()?;
        let began = Instant::now();
        for _ in 0..WRITES {
            log.append(&bytes)?;
            log.sync()?;
        }
        let took = began.elapsed();
        log.release().1?;
        took
    } else {
        let began = Instant::now();
        for _ in 0..WRITES {
            file.write_all(&bytes)?;
            file.sync_data()?;
        }
        began.elapsed()
    };
    fs::remove_file(&path)?;
    Ok(us.as_secs_f64() * 1e6 / WRITES as f64)
}
