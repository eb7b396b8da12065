//! Reads from a log that is taken, that is, written by the short path. The last bytes of such a log
//! may be only in the stage, the memory with the bytes that are not in the file yet.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::OFlags;
use rustix::io::Errno;
use slimio_planted::is_planted;

use crate::LogFile;
use crate::staged::Staged;

impl<F: AsFd> LogFile<F> {
    /// Reads bytes at an offset, as pread(2) does. Also finds bytes that were written but are not
    /// durable yet. Returns the number of bytes, or `None` if the file is not taken.
    ///
    /// # Errors
    /// If the file is not open for reading, if the bytes can't be read, or if staged bytes had to
    /// be written first and that write failed.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        {
            let staged = self.stage.staged()?;
            if !staged.is_taken() {
                return Ok(None);
            }
            check_readable(&staged)?;
            let bytes = up_to_end(&staged, bytes, offset);
            if staged.copy(bytes, offset) {
                return Ok(Some(bytes.len()));
            }
        }
        let _writing = self.stage.writing()?;
        let mut staged = self.stage.staged()?;
        if !staged.is_taken() {
            return Ok(None);
        }
        self.read_by_kernel(&mut staged, bytes, offset).map(Some)
    }

    /// Reads bytes at the file's position, as read(2) does, and moves the position. Returns the
    /// number of bytes, or `None` if the file is not taken.
    ///
    /// # Errors
    /// Those of [`read_at`](Self::read_at).
    pub fn read(&self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        let _writing = self.stage.writing()?;
        let mut staged = self.stage.staged()?;
        if !staged.is_taken() {
            return Ok(None);
        }
        check_readable(&staged)?;
        let position = staged.position();
        let count = self.read_by_kernel(&mut staged, bytes, position)?;
        staged.set_position(position + count as u64);
        Ok(Some(count))
    }

    /// Reads through the page cache, because programs read pieces of any size, and often read the
    /// same bytes again. Cached pages are never dirty, and a direct write drops the pages that it
    /// makes stale.
    fn read_by_kernel(
        &self,
        staged: &mut Staged<'_>,
        bytes: &mut [u8],
        offset: u64,
    ) -> io::Result<usize> {
        let bytes = up_to_end(staged, bytes, offset);
        let end = offset + bytes.len() as u64;
        if bytes.is_empty() {
            return Ok(0);
        }
        let is_unwritten = end > staged.written() && offset < staged.staged_to();
        if is_unwritten && !is_planted("staged-not-read") {
            self.write_staged(staged)?;
        }
        if !staged.is_buffered() {
            let flags = rustix::fs::fcntl_getfl(&self.file)?;
            rustix::fs::fcntl_setfl(&self.file, flags - OFlags::DIRECT)?;
            staged.set_buffered(true);
        }
        let mut read = 0;
        while read < bytes.len() {
            match rustix::io::pread(&self.file, &mut bytes[read..], offset + read as u64) {
                Err(Errno::INTR) => {}
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(read)
    }
}

/// Fails as the kernel would, if the file is not open for reading.
fn check_readable(staged: &Staged<'_>) -> io::Result<()> {
    if staged.is_readable() { Ok(()) } else { Err(Errno::BADF.into()) }
}

/// The part of `bytes` that a read at `offset` fills: the read ends at the log's end.
fn up_to_end<'a>(staged: &Staged<'_>, bytes: &'a mut [u8], offset: u64) -> &'a mut [u8] {
    let count = staged.length().saturating_sub(offset).min(bytes.len() as u64);
    &mut bytes[..count as usize]
}
