//! Times durable appends to a log file on each *rung*, which is a way to append. *stock* appends as
//! a program does. *fallocate only* and *zeroed, buffered* append after the log's blocks were
//! allocated or filled with zeros. *direct overwrite* is the lower bound: a single system call per
//! append, which overwrites zeros durably. *file* does this with bytes of any length (the *short
//! path*), by a library call. If `slimio shortcut run` has started this program, two more rungs
//! take the short path by the program's own calls. The first one is *preload*. The second one is
//! *preload, from empty*: the log is empty before the measurement, and the keeper (the process
//! `slimio shortcut run`) writes zeros after the log's end during the measurement.
//!
//! ```console
//! $ cargo run --release -p slimio-shortcut --example rungs -- FOLDER [ROUNDS [TRACING]]
//! ```
//!
//! The rungs take turns in each round; the table has medians over the rounds. The differences are
//! largest in a folder on XFS, or on ext4 with a journal. If `TRACING` is the folder of the
//! kernel's tracing (`/sys/kernel/tracing`, needs root), the program also counts the kernel's
//! functions that one append calls. If `slimio shortcut run` has started the program, a second
//! table is for several threads that append to one file. The last line is then about a file that is
//! no log: how much longer a call of the preloaded function takes than the system call itself.
#![expect(clippy::print_stdout, reason = "the program prints tables")]

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, IoSlice, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::ReadWriteFlags;
use slimio_device::Buffer;
use slimio_shortcut::{LogFile, Stage, Written};

/// Number of bytes in each log before the measurement, except on the rung *preload, from empty*.
/// The keeper writes the same number of zeros after the log's end, and no more until half of these
/// zeros are used.
const BEFORE: usize = 8 << 20;
/// Number of durable appends in each round.
const WRITES: usize = 200;
/// Number of durable appends while the kernel's functions are counted.
const TRACED_WRITES: usize = 20;
const ROUNDS: usize = 7;
/// The names of the rungs. `slimio shortcut run` must be given the pattern `*/preload.log`.
const RUNGS: [&str; 7] = [
    "stock",
    "fallocate only",
    "zeroed, buffered",
    "direct overwrite",
    "file",
    "preload",
    "preload, from empty",
];
const STOCK: usize = 0;
const ALLOCATED: usize = 1;
const ZEROED: usize = 2;
const DIRECT: usize = 3;
const FILE: usize = 4;
const PRELOAD: usize = 5;
const FROM_EMPTY: usize = 6;
const THREADS: [usize; 6] = [1, 2, 4, 8, 16, 32];
const THREAD_WRITES: usize = 640;
const BLOCK: usize = 4096;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("name a folder to write in")?;
    let folder = Path::new(&folder);
    let rounds = args.next().map_or(Ok(ROUNDS), |rounds| rounds.parse())?;
    let tracing = args.next();
    let is_preloaded = std::env::var_os(slimio_shortcut::protocol::VARIABLE).is_some();
    let rungs = if is_preloaded { &RUNGS[..] } else { &RUNGS[..PRELOAD] };
    print_rungs(folder, rungs, rounds, tracing.as_deref().map(Path::new))?;
    if is_preloaded {
        print_threads(folder, rounds)?;
        print_other_call(rounds)?;
    }
    Ok(())
}

fn print_rungs(folder: &Path, rungs: &[&str], rounds: usize, tracing: Option<&Path>) -> Result<()> {
    println!(
        "| bytes | rung | us | to stock | to zeroed, buffered | kernel functions | to zeroed, buffered |"
    );
    println!("|---:|---|---:|---:|---:|---:|---:|");
    for size in [100, 4096, 16384] {
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); rungs.len()];
        for _ in 0..rounds {
            for (rung, times) in times.iter_mut().enumerate() {
                let took = appended(folder, rung, size, WRITES, |append| {
                    let began = Instant::now();
                    append()?;
                    Ok(began.elapsed())
                })?;
                times.push(took.as_secs_f64() * 1e6 / WRITES as f64);
            }
        }
        let medians: Vec<f64> = times.into_iter().map(median).collect();
        let mut functions = vec![None; rungs.len()];
        for (rung, functions) in functions.iter_mut().enumerate() {
            let Some(tracing) = tracing else { break };
            let called =
                appended(folder, rung, size, TRACED_WRITES, |append| traced(tracing, append))?;
            *functions = Some(called as f64 / TRACED_WRITES as f64);
        }
        for (rung, name) in rungs.iter().enumerate() {
            let us = medians[rung];
            let (stock, zeroed) = (us / medians[STOCK], us / medians[ZEROED]);
            let called = functions[rung].zip(functions[ZEROED]);
            let (called, share) = called.map_or_else(Default::default, |(called, zeroed)| {
                (format!("{called:.0}"), format!("{:.2}", called / zeroed))
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

/// Makes a log. `measure` gets a function that makes `writes` durable appends of `size` bytes to
/// this log.
fn appended<T>(
    folder: &Path,
    rung: usize,
    size: usize,
    writes: usize,
    measure: impl FnOnce(&mut dyn FnMut() -> io::Result<()>) -> Result<T>,
) -> Result<T> {
    let path = folder.join(if rung >= PRELOAD { "preload.log" } else { "rung.log" });
    let mut file = made(&path, rung, writes * size)?;
    let bytes = vec![1; size];
    let measured = if rung == FILE {
        let log = LogFile::new(file, Stage::private()?);
        log.take().map_err(|why| format!("the log was not taken: {why:?}"))?;
        let measured = measure(&mut || {
            (0..writes).try_for_each(|_| {
                if log.append(&bytes)? == Written::TellKeeper {
                    while log.keep_up(true)? {}
                }
                log.sync().map(|_| ())
            })
        })?;
        log.release()?;
        measured
    } else if rung == DIRECT {
        let block = BLOCK as u64;
        let blocks = Buffer::zeroed(1 + size.div_ceil(BLOCK));
        rustix::fs::fcntl_setfl(&file, OFlags::DIRECT)?;
        measure(&mut || {
            (0..writes as u64).try_for_each(|number| {
                let at = number * size as u64;
                let (start, end) = (at - at % block, (at + size as u64).next_multiple_of(block));
                let blocks = IoSlice::new(&blocks[..(end - start) as usize]);
                let offset = BEFORE as u64 + start;
                rustix::io::pwritev2(&file, &[blocks], offset, ReadWriteFlags::DSYNC)?;
                Ok(())
            })
        })?
    } else {
        let measured = measure(&mut || {
            (0..writes).try_for_each(|_| file.write_all(&bytes).and_then(|()| file.sync_data()))
        })?;
        drop(file);
        measured
    };
    fs::remove_file(path)?;
    // The kernel may still have to write data of this file. The pause keeps that out of the next
    // measurement.
    std::thread::sleep(Duration::from_millis(20));
    Ok(measured)
}

/// Makes a log to which `whole` bytes are to be appended.
fn made(path: &Path, rung: usize, whole: usize) -> Result<File> {
    let _ = fs::remove_file(path);
    let mut file = File::options().read(true).write(true).create_new(true).open(path)?;
    if rung != FROM_EMPTY {
        file.write_all(&vec![1; BEFORE])?;
    }
    match rung {
        ALLOCATED => {
            let (before, whole) = (BEFORE as u64, whole as u64);
            rustix::fs::fallocate(&file, FallocateFlags::empty(), before, whole)?;
        }
        ZEROED | DIRECT => {
            file.write_all(&vec![0; whole])?;
            rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(BEFORE as u64))?;
        }
        // During this pause, the keeper writes zeros after the log's end. The rungs `ZEROED` and
        // `DIRECT` have zeros there before the measurement, too.
        PRELOAD => std::thread::sleep(Duration::from_millis(300)),
        _ => {}
    }
    file.sync_all()?;
    Ok(file)
}

fn print_threads(folder: &Path, rounds: usize) -> Result<()> {
    println!();
    println!(
        "| threads | rung | appends/s | to zeroed, buffered | p99, us | to zeroed, buffered |"
    );
    println!("|---:|---|---:|---:|---:|---:|");
    for threads in THREADS {
        let rungs = [STOCK, ZEROED, PRELOAD];
        let mut found = rungs.map(|_| (Vec::new(), Vec::new()));
        for _ in 0..rounds {
            for (rung, found) in rungs.iter().zip(&mut found) {
                let (rate, p99) = append_by_threads(folder, *rung, threads)?;
                found.0.push(rate);
                found.1.push(p99);
            }
        }
        let found = found.map(|(rates, p99s)| (median(rates), median(p99s)));
        for (rung, (rate, p99)) in rungs.iter().zip(found) {
            let (name, to_rate, to_p99) = (RUNGS[*rung], rate / found[1].0, p99 / found[1].1);
            println!("| {threads} | {name} | {rate:.0} | {to_rate:.2} | {p99:.0} | {to_p99:.2} |");
        }
    }
    Ok(())
}

/// Several threads append durable blocks to one file. Returns the appends per second, and the 99th
/// percentile of an append's time in microseconds.
fn append_by_threads(folder: &Path, rung: usize, threads: usize) -> Result<(f64, f64)> {
    let path = folder.join(if rung >= PRELOAD { "preload.log" } else { "rung.log" });
    let file = made(&path, rung, THREAD_WRITES * BLOCK)?;
    let (file, next, bytes) = (&file, &AtomicU64::new(BEFORE as u64), &[1; BLOCK]);
    let append = move || -> io::Result<()> {
        if rung == PRELOAD {
            (&*file).write_all(bytes)?;
        } else {
            file.write_all_at(bytes, next.fetch_add(BLOCK as u64, Ordering::Relaxed))?;
        }
        file.sync_data()
    };
    let began = Instant::now();
    let times: Vec<io::Result<Vec<f64>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(move || {
                    let timed = |_| {
                        let began = Instant::now();
                        append().map(|()| began.elapsed().as_secs_f64() * 1e6)
                    };
                    (0..THREAD_WRITES / threads).map(timed).collect()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("threads do not panic")).collect()
    });
    let took = began.elapsed().as_secs_f64();
    let mut all = Vec::new();
    for times in times {
        all.extend(times?);
    }
    fs::remove_file(path)?;
    all.sort_by(f64::total_cmp);
    Ok((all.len() as f64 / took, all[all.len() * 99 / 100]))
}

/// Times a write to a file that is no log: by libc's function, which the preloaded library has
/// replaced, and by the bare system call.
fn print_other_call(rounds: usize) -> Result<()> {
    const CALLS: u32 = 1_000_000;
    let mut file = File::options().write(true).open("/dev/null")?;
    let mut differences = Vec::new();
    for _ in 0..rounds {
        let began = Instant::now();
        for _ in 0..CALLS {
            file.write_all(b"x")?;
        }
        let by_libc = began.elapsed();
        let began = Instant::now();
        for _ in 0..CALLS {
            rustix::io::write(&file, b"x")?;
        }
        let difference = by_libc.as_secs_f64() - began.elapsed().as_secs_f64();
        differences.push(difference * 1e9 / f64::from(CALLS));
    }
    println!();
    println!("a call on a file that is no log: {:.1} ns more", median(differences));
    Ok(())
}

/// How many functions of the kernel this process calls during `append`.
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
