//! Mends the file of a killed process: adds the bytes that are in the stage (memory that processes
//! share) but not yet in the file.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use slimio_device::LBA_SIZE;
use slimio_planted::is_planted;

use crate::log_file::BLOCK;
use crate::staged::Staged;
use crate::{Identity, Stage};

/// Number of blocks that are compared at once.
const PIECE_LBAS: usize = 256;

/// What [`Stage::mend`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mended {
    /// The stage had no log, or its file is already mended.
    Nothing,
    /// The file now ends where the log ends, and all of it is durable.
    Log {
        /// Bytes that were appended, but were not in the file.
        written: u64,
        /// Length of the log in bytes.
        length: u64,
    },
}

impl fmt::Display for Mended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("there was nothing to mend"),
            Self::Log { written, length } => write!(
                f,
                "mended: {length} bytes, of which the last {written} were not in the file yet"
            ),
        }
    }
}

impl Stage {
    /// Mends the file of a process that has ended without releasing it: writes the missing bytes,
    /// cuts the file at the end of the log, and makes all of it durable.
    ///
    /// No process may have the file open for writing. If a killed process still has a write in
    /// flight, the kernel makes this call wait for the write.
    ///
    /// # Errors
    /// If `file` is not the stage's file (`InvalidInput`), or was changed by another program in the
    /// meantime (`InvalidData`): the file is then unchanged. If the file can't be read, written,
    /// cut or synced: the file may then be changed already. In each case the stage stays as it was,
    /// so that the file can be mended later.
    pub fn mend(&self, file: &File) -> io::Result<Mended> {
        let mut staged = self.staged()?;
        let Some(of) = staged.file() else { return Ok(Mended::Nothing) };
        if of != Identity::of(file)? {
            let why = "the stage belongs to another file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        if !staged.is_as_left(file)? && !is_planted("changed-mended") {
            let why = "another program has changed the file since the killed process wrote to it";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let (length, written) = (staged.length(), staged.written());
        let missing = staged.missing();
        if !is_planted("killed-unmended") {
            file.write_all_at(missing, written)?;
        }
        file.set_len(length)?;
        file.sync_all()?;
        let written = missing.len() as u64;
        staged.end();
        Ok(Mended::Log { written, length })
    }
}

impl Staged<'_> {
    /// The staged bytes that are not in the file.
    fn missing(&self) -> &[u8] {
        // While the staged bytes are being replaced by others, the old ones are all in the file.
        if self.is_moving() {
            return &[];
        }
        let (written, staged_to) = (self.written(), self.staged_to());
        let (offset, blocks) = self.unwritten();
        &blocks[(written - offset) as usize..(staged_to - offset) as usize]
    }

    /// Whether the file is as the short path left it. The check begins at the block in which the
    /// written bytes end. From there, the file must have the staged bytes, then the bytes that the
    /// stage has loaded from the file, and then zeros up to the file's end. Where a write was in
    /// flight, the file may still have its old bytes. Bytes of the file before the first checked
    /// block are not compared. The stage may have other bytes in their place, if the kill came
    /// while the last blocks were being copied to the front of the stage.
    fn is_as_left(&self, file: &File) -> io::Result<bool> {
        let size = file.metadata()?.len();
        if size < self.size() || self.is_longer(size) {
            return Ok(false);
        }
        if self.is_moving() {
            return Ok(true);
        }
        let mut at = self.written() - self.written() % BLOCK;
        let mut piece = vec![0; PIECE_LBAS * LBA_SIZE];
        while at < size {
            let piece = &mut piece[..(size - at).min(PIECE_LBAS as u64 * BLOCK) as usize];
            file.read_exact_at(piece, at)?;
            if !piece.iter().zip(at..).all(|(found, at)| self.is_expected(*found, at)) {
                return Ok(false);
            }
            at += piece.len() as u64;
        }
        Ok(true)
    }

    /// Whether the file can have this byte at this offset.
    fn is_expected(&self, found: u8, at: u64) -> bool {
        let is_under_way = at >= self.written() && at < self.staged_to();
        let is_staged = || self.byte_at(at).is_none_or(|staged| found == staged);
        if at >= self.size() {
            // Here the file had zeros, and staged bytes may just have been written over them.
            found == 0 || (is_under_way && is_staged())
        } else {
            // While a write is in flight here, any byte is possible, because the byte before the
            // write is not known.
            is_under_way || is_staged()
        }
    }
}
