//! Writes zeros to blocks of a file that are allocated but were never written.

use std::fs::File;
use std::io::{self, IoSlice};
use std::sync::LazyLock;

use rustix::fs::OFlags;
use rustix::io::Errno;
use slimio_device::{Buffer, Extents, LBA_SIZE, WriteLease};
use slimio_planted::is_planted;

const ZEROS_LBAS: usize = 256;
/// If more bytes than this would have to be filled, nothing is filled, because the program that has
/// opened the file waits meanwhile.
const FILLED_MAX: u64 = 1 << 30;

/// Writes zeros to the blocks of a file that are allocated but were never written, so that an
/// overwrite changes no metadata. The content stays the same, because such blocks read as zeros.
/// Returns the number of bytes that were filled. If the file is open anywhere else, fills nothing,
/// because another process might write to these blocks meanwhile.
///
/// # Errors
/// If the file can't be examined or written. The file's content is still the same then.
pub(crate) fn fill(file: &File) -> io::Result<u64> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    if flags.contains(OFlags::APPEND) {
        // With `O_APPEND`, the kernel would ignore the offset of a write.
        return Ok(0);
    }
    let lease = WriteLease::take(file)?;
    if lease.is_none() && !is_planted("filled-while-open") {
        return Ok(0);
    }
    let size = file.metadata()?.len();
    let mut unwritten = Vec::new();
    // Before the kernel lists the extents, it writes the file's dirty pages. The blocks of these
    // pages are then no longer unwritten.
    for extent in Extents::new(file, 0..size, true) {
        let extent = extent?;
        if extent.is_unwritten() {
            unwritten.push(extent.start..extent.end().min(size - size % LBA_SIZE as u64));
        }
    }
    let sum = unwritten.iter().map(|range| range.end.saturating_sub(range.start)).sum();
    if sum == 0 || sum > FILLED_MAX {
        return Ok(0);
    }
    for range in unwritten {
        let mut offset = range.start;
        while offset < range.end {
            let count = (range.end - offset).min(ZEROS.len() as u64) as usize;
            offset += match rustix::io::pwritev(file, &[IoSlice::new(&ZEROS[..count])], offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => written as u64,
                Err(Errno::INTR) => 0,
                Err(error) => return Err(error.into()),
            };
        }
    }
    rustix::fs::fdatasync(file)?;
    Ok(sum)
}

static ZEROS: LazyLock<Buffer> = LazyLock::new(|| Buffer::zeroed(ZEROS_LBAS));

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt as _;
    use std::time::{Duration, Instant};

    use rustix::fs::FallocateFlags;
    use slimio_testing::loops::Mounted;

    use super::*;
    use crate::Probe;

    const SIZE: u64 = 4 << 20;

    #[test]
    fn a_file_that_others_have_open_is_not_filled() {
        for mkfs in [["mkfs.ext4", "-q"], ["mkfs.xfs", "-q"]] {
            let Some(mounted) = Mounted::new(&mkfs, 320 << 20, "defaults") else { continue };
            let path = mounted.path().join("log");
            let open = |is_append| {
                let mut options = OpenOptions::new();
                options.create(true).append(is_append).write(true).open(&path).unwrap()
            };
            let file = open(false);
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, SIZE).unwrap();
            file.write_all_at(b"at the start", 0).unwrap();
            file.write_all_at(b"in the middle", SIZE / 2).unwrap();
            let other = open(true);
            assert_eq!(fill(&file).unwrap(), 0);
            assert!(Probe::of(&path).unwrap().space.unwrap().unwritten > 0);
            drop(file);
            assert_eq!(fill(&other).unwrap(), 0, "a file whose writes append must not be filled");
            drop(other);
            let file = open(false);
            // Another test may start a process. From its fork to its exec, the new process still
            // has the files open that are closed here. So this test tries again.
            let begin = Instant::now();
            let filled = loop {
                let filled = fill(&file).unwrap();
                if filled > 0 || begin.elapsed() > Duration::from_secs(20) {
                    break filled;
                }
            };
            assert!(filled >= SIZE - 3 * LBA_SIZE as u64, "{filled}");
            assert_eq!(Probe::of(&path).unwrap().space.unwrap().written, SIZE);
            assert_eq!(fill(&file).unwrap(), 0, "no unwritten block must be left");
            let seen = std::fs::read(&path).unwrap();
            assert!(seen.starts_with(b"at the start"));
            assert!(seen[SIZE as usize / 2..].starts_with(b"in the middle"));
            let others = seen.into_iter().filter(|byte| *byte != 0).count();
            assert_eq!(others, b"at the start".len() + b"in the middle".len());
        }
    }
}
