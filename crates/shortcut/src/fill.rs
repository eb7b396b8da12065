//! Writing the blocks of a file that were only allocated.

use std::fs::File;
use std::io::{self, IoSlice};
use std::sync::LazyLock;

use rustix::fs::OFlags;
use rustix::io::Errno;
use slimio_device::{Buffer, Extents, LBA_SIZE, WriteLease};
use slimio_planted::is_planted;

const ZEROS_LBAS: usize = 256;
/// A program waits while its file is filled, so no more than this is.
const FILLED_MAX: u64 = 1 << 30;

/// Fills blocks of a file with zeros that were allocated and not written, so that an overwrite changes
/// no metadata. Nobody sees a difference, as they read as zeros before. Returns how many bytes were
/// filled: none if the file is open anywhere else, as somebody might write there meanwhile.
///
/// # Errors
/// If the file can't be looked at or written. It has the same content.
pub(crate) fn fill(file: &File) -> io::Result<u64> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    if flags.contains(OFlags::APPEND) {
        // The offset of a write would not count.
        return Ok(0);
    }
    let lease = WriteLease::take(file)?;
    if lease.is_none() && !is_planted("filled-while-open") {
        return Ok(0);
    }
    let size = file.metadata()?.len();
    let mut unwritten = Vec::new();
    // What the page cache holds of them is written first, and they are no longer unwritten.
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
