//! How bytes are written to a log, at its end or over earlier bytes. They are first collected in
//! the stage, which is shared memory, and then written to the log's file.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use rustix::fs::OFlags;
use rustix::io::Errno;
use slimio_planted::is_planted;

use crate::LogFile;
use crate::ahead::{ahead, end_of_block};
use crate::log_file::{flags, write};
use crate::staged::Staged;

/// The result of a write to a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// All bytes were written.
    Whole,
    /// All bytes were written. The caller must tell the keeper, which is the process that works
    /// ahead for the log, to look at the log.
    TellKeeper,
    /// No byte was written. The file is not taken, that is, not written by the short path. So the
    /// kernel must write the bytes.
    NotTaken,
    /// No byte was written. The file must be given back, because only the kernel can write the
    /// bytes. Either they would leave a gap after the log's end, or they overwrite earlier bytes in
    /// a file that is not open for reading, or their offset is not the end of a file that was
    /// opened with `O_APPEND`.
    ByKernel,
}

/// Where bytes are to be written.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// At the file's position, or at the end if the file was opened with `O_APPEND`. The position
    /// moves.
    Position,
    /// At this offset.
    Offset(u64),
}

impl<F: AsFd> LogFile<F> {
    /// Writes bytes where write(2) would: at the end of a file that was opened with `O_APPEND`, and
    /// otherwise at its position. The bytes are durable after [`sync`](Self::sync). If the stage
    /// has no room for all of them, some are written to the file at once. Staged bytes outlive the
    /// process if the stage does.
    ///
    /// # Errors
    /// * If the file can't be made longer, for example because the disk is full. None of the bytes
    ///   was written then, and later calls may succeed.
    /// * If any other write or a flush fails, or has failed before. All later writes and syncs then
    ///   fail too.
    pub fn append(&self, bytes: &[u8]) -> io::Result<Written> {
        self.append_vectored(&[IoSlice::new(bytes)])
    }

    /// Writes the bytes of several buffers, as [`append`](Self::append) does.
    ///
    /// # Errors
    /// Those of [`append`](Self::append).
    pub fn append_vectored(&self, pieces: &[IoSlice<'_>]) -> io::Result<Written> {
        self.put(pieces, Place::Position)
    }

    /// Writes the bytes of several buffers at an offset, as pwritev(2) does. The file's position
    /// stays.
    ///
    /// # Errors
    /// * Those of [`append`](Self::append).
    /// * If the file's bytes around the new bytes can't be read. All later writes and syncs then
    ///   fail too.
    pub fn write_at(&self, pieces: &[IoSlice<'_>], offset: u64) -> io::Result<Written> {
        self.put(pieces, Place::Offset(offset))
    }

    fn put(&self, pieces: &[IoSlice<'_>], place: Place) -> io::Result<Written> {
        let more: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        {
            let mut staged = self.stage.staged()?;
            staged.failed()?;
            if !staged.is_taken() {
                return Ok(Written::NotTaken);
            }
            let is_next = offset_of(&staged, place) == staged.staged_to();
            let is_room = more <= staged.room().min(staged.loaded());
            if is_next && is_room && end_of_block(&staged, more) <= staged.zeroed() {
                for piece in pieces {
                    staged.append(piece);
                }
                return Ok(has_put(&mut staged, place));
            }
        }
        // Both locks are held until all bytes are written, so nobody else writes in between.
        let _writing = self.stage.writing()?;
        let mut staged = self.stage.staged()?;
        staged.failed()?;
        if !staged.is_taken() {
            return Ok(Written::NotTaken);
        }
        let offset = offset_of(&staged, place);
        if offset != staged.staged_to() {
            // With `O_APPEND`, the kernel writes at the end, whatever offset a program gives.
            if offset > staged.length() || !staged.is_readable() || staged.is_append() {
                return Ok(Written::ByKernel);
            }
            self.move_to(&mut staged, offset)?;
        }
        self.zero_for(&mut staged, more)?;
        for piece in pieces {
            let mut piece = &piece[..];
            while !piece.is_empty() {
                if staged.room() == 0 {
                    self.write_staged(&mut staged)?;
                }
                if staged.loaded() == 0 {
                    self.load(&mut staged)?;
                }
                let count = staged.append(piece);
                piece = &piece[count..];
            }
        }
        Ok(has_put(&mut staged, place))
    }

    /// Prepares the stage for bytes at another offset, which must not be past the log's end.
    fn move_to(&self, staged: &mut Staged<'_>, offset: u64) -> io::Result<()> {
        self.write_staged(staged)?;
        staged.move_to(offset);
        self.load(staged)?;
        staged.has_moved();
        Ok(())
    }

    /// Reads into the stage the bytes that follow the staged bytes in the file.
    fn load(&self, staged: &mut Staged<'_>) -> io::Result<()> {
        let (from, memory) = staged.loading();
        let size = memory.len();
        let mut loaded = if is_planted("old-bytes-not-loaded") { size } else { 0 };
        while loaded < size {
            match rustix::io::pread(&self.file, &mut memory[loaded..], from + loaded as u64) {
                Err(Errno::INTR) => {}
                Ok(0) => return Err(failed(staged, Errno::IO)),
                Ok(count) => loaded += count,
                Err(error) => return Err(failed(staged, error)),
            }
        }
        staged.is_loaded(from + size as u64);
        Ok(())
    }

    /// Writes the staged bytes, without making them durable. Nobody else can write meanwhile,
    /// because the stage is locked.
    pub(crate) fn write_staged(&self, staged: &mut Staged<'_>) -> io::Result<()> {
        let end = staged.staged_to();
        if staged.written() == end {
            return Ok(());
        }
        self.make_direct(staged)?;
        let (offset, blocks) = staged.unwritten();
        let flags = flags(staged.is_append(), false);
        if let Err(error) = write(self.file.as_fd(), blocks, offset, flags) {
            return Err(failed(staged, error));
        }
        staged.set_needs_flush(true);
        staged.is_written(end);
        Ok(())
    }

    /// Turns direct I/O on again if a read has turned it off.
    pub(crate) fn make_direct(&self, staged: &mut Staged<'_>) -> io::Result<()> {
        if staged.is_buffered() {
            let flags = rustix::fs::fcntl_getfl(&self.file)?;
            rustix::fs::fcntl_setfl(&self.file, flags | OFlags::DIRECT)?;
            staged.set_buffered(false);
        }
        Ok(())
    }
}

/// Notes a failure, after which all later writes and syncs fail too.
fn failed(staged: &mut Staged<'_>, error: Errno) -> io::Error {
    staged.set_failed(error);
    error.into()
}

fn offset_of(staged: &Staged<'_>, place: Place) -> u64 {
    match place {
        Place::Position if staged.is_append() => staged.length(),
        Place::Position => staged.position(),
        Place::Offset(offset) => offset,
    }
}

/// If bytes were staged for the file's position, moves the position to the end of these bytes.
/// Returns the result of the write.
fn has_put(staged: &mut Staged<'_>, place: Place) -> Written {
    if matches!(place, Place::Position) {
        staged.set_position(staged.staged_to());
    }
    let ahead_of_log = staged.zeroed().saturating_sub(staged.length());
    let is_urgent = staged.is_filling() || ahead_of_log < ahead(staged.length()) / 2;
    if staged.tell(is_urgent) { Written::TellKeeper } else { Written::Whole }
}
