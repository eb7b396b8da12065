//! Measures what registered buffers save: processor time of a direct write, with buffers that the
//! kernel looks up each time and with registered ones, by turns; and whether memory that a file is
//! mapped to can be registered at all.
//!
//! `cargo run --release --package slimio-ring --example registered_buffers -- FILE_OR_DEVICE`
//!
//! What is in the first 64 MiB of it is lost.

#![expect(unsafe_code, reason = "the kernel is handed what points to memory")]
#![expect(clippy::print_stdout, reason = "it prints what it has measured")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::ptr::{NonNull, null_mut};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};

/// Bytes that are written over and over.
const SPACE: usize = 64 << 20;
/// Buffers in flight.
const IN_FLIGHT: usize = 4;
/// Rounds of each kind, by turns.
const ROUNDS: usize = 7;
/// Time of a round, at least.
const ROUND: Duration = Duration::from_millis(500);

fn main() -> io::Result<()> {
    let path = std::env::args().nth(1).expect("the file or device to write to");
    let is_device = !std::path::Path::new(&path).metadata().map_or(true, |of| of.is_file());
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(!is_device).open(&path)?;
    // Written before: no metadata changes below.
    for offset in (0..SPACE).step_by(1 << 20) {
        file.write_all_at(&vec![1; 1 << 20], offset as u64)?;
    }
    file.sync_all()?;
    let shared = map(IN_FLIGHT * 4096, Some(&file))?;
    println!(
        "memory that it is mapped to: {}",
        match register(shared, 4096) {
            Ok(_) => "can be registered".into(),
            Err(error) => format!("can't be registered: {error}"),
        }
    );
    let direct = options.create(false).custom_flags(libc::O_DIRECT).open(&path)?;
    for size in [4 << 10, 64 << 10, 512 << 10] {
        let memory = map(IN_FLIGHT * size, None)?;
        let mut rings = [register(memory, size)?, register(memory, size)?];
        let mut medians = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (is_registered, ring) in [false, true].into_iter().zip(&mut rings) {
                medians[usize::from(is_registered)].push(round(
                    ring,
                    &direct,
                    memory,
                    size,
                    is_registered,
                )?);
            }
        }
        let [plain, registered] = medians.map(|mut rounds| {
            rounds.sort_by(f64::total_cmp);
            rounds[ROUNDS / 2]
        });
        println!(
            "{:>4} KiB: {plain:>6.2} us of processor time per write, registered {registered:>6.2} \
             ({:+.0} %)",
            size >> 10,
            100.0 * (registered / plain - 1.0)
        );
    }
    Ok(())
}

/// Memory, private or a file's.
fn map(size: usize, file: Option<&File>) -> io::Result<NonNull<u8>> {
    let (flags, descriptor) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, wherever the kernel likes.
    let memory = unsafe { libc::mmap(null_mut(), size, protection, flags, descriptor, 0) };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let memory = NonNull::new(memory.cast::<u8>()).expect("a mapping is not at zero");
    // SAFETY: `size` bytes were just mapped, and nothing else points there.
    unsafe { memory.as_ptr().write_bytes(2, size) };
    Ok(memory)
}

/// A ring with so many buffers of this size.
fn register(memory: NonNull<u8>, size: usize) -> io::Result<IoUring> {
    let ring = IoUring::new(IN_FLIGHT as u32 * 2)?;
    let buffers: Vec<libc::iovec> = (0..IN_FLIGHT)
        .map(|index| {
            let start = memory.as_ptr().wrapping_add(index * size);
            libc::iovec { iov_base: start.cast(), iov_len: size }
        })
        .collect();
    // SAFETY: the memory is mapped until the process ends.
    unsafe { ring.submitter().register_buffers(&buffers)? };
    Ok(ring)
}

/// Writes for a while; returns microseconds of processor time for each write.
fn round(
    ring: &mut IoUring,
    file: &File,
    memory: NonNull<u8>,
    size: usize,
    is_registered: bool,
) -> io::Result<f64> {
    let fd = types::Fd(file.as_raw_fd());
    let mut free: Vec<usize> = (0..IN_FLIGHT).collect();
    let (mut offset, mut written) = (0, 0_u32);
    let (began, used) = (Instant::now(), processor_time());
    while began.elapsed() < ROUND || free.len() < IN_FLIGHT {
        while began.elapsed() < ROUND
            && let Some(index) = free.pop()
        {
            let start = memory.as_ptr().wrapping_add(index * size);
            let entry = if is_registered {
                let write = opcode::WriteFixed::new(fd, start, size as u32, index as u16);
                write.offset(offset as u64).build()
            } else {
                opcode::Write::new(fd, start, size as u32).offset(offset as u64).build()
            };
            // SAFETY: the buffer is this write's until it ends, and its memory stays.
            unsafe { ring.submission().push(&entry.user_data(index as u64)) }
                .expect("the queue has room for all");
            offset = (offset + size) % SPACE;
        }
        ring.submit_and_wait(1)?;
        for completion in ring.completion() {
            assert_eq!(completion.result(), size as i32, "a write moves all of it");
            free.push(completion.user_data() as usize);
            written += 1;
        }
    }
    Ok(processor_time().saturating_sub(used).as_secs_f64() * 1e6 / f64::from(written))
}

/// What this process has used.
fn processor_time() -> Duration {
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills in one `timespec`.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut used) };
    assert_eq!(result, 0, "each process has such a clock");
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}
