//! Times durable appends to a log file, one after the other, on each rung: as a program does it
//! (*stock*), with its blocks allocated or filled with zeros before, and the short way (*file*).
//!
//! ```console
//! $ cargo run --release -p slimio-shortcut --example rungs -- FOLDER [ROUNDS [TRACING]]
//! ```
//!
//! The rungs take turns in each round; the table has medians over the rounds. A folder on ext4 with
//! journal or on XFS shows most. With the folder of the kernel's tracing (`/sys/kernel/tracing`, needs
//! root), it also counts the kernel's functions that one append calls.
#![expect(clippy::print_stdout, reason = "it prints a table")]

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use slimio_shortcut::{Appended, LogFile, Stage};

/// Durable appends in each round, and while functions are counted.
const WRITES: usize = 200;
const TRACED_WRITES: usize = 20;
const ROUNDS: usize = 7;
const RUNGS: [&str; 4] = ["stock", "fallocate only", "zeroed, buffered", "file"];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("name a folder to write in")?;
    let rounds = args.next().map_or(Ok(ROUNDS), |rounds| rounds.parse())?;
    let tracing = args.next();
    let path = Path::new(&folder).join("rung.log");
    println!(
        "| bytes | rung | us | to stock | to zeroed, buffered | kernel functions | to zeroed, buffered |"
    );
    println!("|---:|---|---:|---:|---:|---:|---:|");
    for size in [100, 4096, 16384] {
        let mut times = RUNGS.map(|_| Vec::new());
        for _ in 0..rounds {
            for (rung, times) in times.iter_mut().enumerate() {
                let took = appended(&path, rung, size, WRITES, |append| {
                    let began = Instant::now();
                    append()?;
                    Ok(began.elapsed())
                })?;
                times.push(took.as_secs_f64() * 1e6 / WRITES as f64);
            }
        }
        let medians = times.map(median);
        let mut functions = [None; RUNGS.len()];
        for (rung, functions) in functions.iter_mut().enumerate() {
            let Some(tracing) = &tracing else { break };
            let tracing = Path::new(tracing);
            let called =
                appended(&path, rung, size, TRACED_WRITES, |append| traced(tracing, append))?;
            *functions = Some(called as f64 / TRACED_WRITES as f64);
        }
        for (rung, name) in RUNGS.iter().enumerate() {
            let us = medians[rung];
            let (stock, zeroed) = (us / medians[0], us / medians[2]);
            let called = functions[rung].zip(functions[2]);
            let called = called.map(|(called, zeroed)| (format!("{called:.0}"), called / zeroed));
            let (called, share) = called
                .map_or((String::new(), String::new()), |(called, share)| {
                    (called, format!("{share:.2}"))
                });
            println!(
                "| {size} | {name} | {us:.0} | {stock:.2} | {zeroed:.2} | {called} | {share} |"
            );
        }
    }
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Makes a log, and has `measure` make `writes` durable appends of `size` bytes to it.
fn appended<T>(
    path: &Path,
    rung: usize,
    size: usize,
    writes: usize,
    measure: impl FnOnce(&mut dyn FnMut() -> io::Result<()>) -> Result<T>,
) -> Result<T> {
    let _ = fs::remove_file(path);
    let mut file = File::create_new(path)?;
    let (bytes, whole) = (vec![1; size], writes * size);
    match rung {
        1 => rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, whole as u64)?,
        2 => {
            file.write_all(&vec![0; whole])?;
            rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
        }
        _ => {}
    }
    file.sync_all()?;
    let measured = if rung == 3 {
        let log = LogFile::new(file, Stage::private()?);
        log.take().map_err(|why| format!("not taken: {why:?}"))?;
        let measured = measure(&mut || {
            (0..writes).try_for_each(|_| {
                if log.append(&bytes)? == Appended::TellKeeper {
                    while log.keep_up()? {}
                }
                log.sync().map(|_| ())
            })
        })?;
        log.release()?;
        measured
    } else {
        measure(&mut || {
            (0..writes).try_for_each(|_| file.write_all(&bytes).and_then(|()| file.sync_data()))
        })?
    };
    fs::remove_file(path)?;
    // What is left of this file shall not be written during the next measurement.
    std::thread::sleep(Duration::from_millis(20));
    Ok(measured)
}

/// How many functions of the kernel this process calls meanwhile.
fn traced(tracing: &Path, append: &mut dyn FnMut() -> io::Result<()>) -> Result<usize> {
    let set = |file: &str, value: &str| fs::write(tracing.join(file), value);
    set("tracing_on", "0")?;
    set("buffer_size_kb", "16384")?;
    set("set_ftrace_pid", &std::process::id().to_string())?;
    set("current_tracer", "function")?;
    set("trace", "")?;
    set("tracing_on", "1")?;
    let appended = append();
    set("tracing_on", "0")?;
    let text = fs::read_to_string(tracing.join("trace"))?;
    set("current_tracer", "nop")?;
    set("set_ftrace_pid", "")?;
    appended?;
    Ok(text.lines().filter(|line| !line.starts_with('#')).count())
}
