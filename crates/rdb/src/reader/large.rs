//! Decompresses a string piece by piece if it is too large to be held whole.

use std::io::Read;

use super::STRING_PIECE_SIZE;
use crate::error::{Error, Malformed};
use crate::lzf::{LITERALS_MAX, MATCH_MAX, WINDOW, decode};
use crate::source::Source;

/// The largest number of compressed bytes that one fetch reads.
const INPUT_SIZE: u64 = 64 * 1024;
/// If `input` has fewer bytes than this, the next literals or match in it may be incomplete.
const INPUT_SIZE_MIN: usize = 1 + LITERALS_MAX;
/// Size in bytes of `out`. There is room for the output that matches may still refer to, for one
/// piece, and for one match beyond the piece.
const OUT_SIZE: usize = WINDOW + STRING_PIECE_SIZE + MATCH_MAX;

/// The state between two pieces: less than half a megabyte, however long the string is.
#[derive(Debug)]
pub(super) struct LargeLzf {
    /// Where the string begins in the file.
    offset: u64,
    /// Count of compressed bytes that are not fetched yet.
    unfetched: u64,
    /// Fetched bytes that are not decompressed yet.
    input: Vec<u8>,
    out: Vec<u8>,
    /// The end, in `out`, of the bytes that were handed out.
    given: usize,
    /// The end, in `out`, of the decompressed bytes.
    written: usize,
    /// Count of the string's bytes that are not handed out yet.
    rest: u64,
}

impl LargeLzf {
    pub(super) fn new(offset: u64, compressed_size: u64, size: u64) -> Self {
        let out = vec![0; OUT_SIZE];
        let (unfetched, rest) = (compressed_size, size);
        Self { offset, unfetched, input: Vec::new(), out, given: 0, written: 0, rest }
    }

    pub(super) fn rest(&self) -> u64 {
        self.rest
    }

    /// The next piece: [`STRING_PIECE_SIZE`] bytes, or the rest of the string if it is shorter.
    pub(super) fn piece<R: Read>(&mut self, source: &mut Source<R>) -> Result<Vec<u8>, Error> {
        let wanted = self.rest.min(STRING_PIECE_SIZE as u64) as usize;
        // Keeps the bytes that matches can refer to, and drops all bytes before them.
        let gone = self.given.saturating_sub(WINDOW);
        self.out.copy_within(gone..self.written, 0);
        self.given -= gone;
        self.written -= gone;
        while self.written - self.given < wanted {
            self.go_on(source)?;
        }
        let piece = self.out[self.given..self.given + wanted].to_vec();
        self.given += wanted;
        self.rest -= wanted as u64;
        if self.rest == 0 {
            self.check_end()?;
        }
        Ok(piece)
    }

    /// Decompresses some more of the string. Fails if no more of the input can be read.
    fn go_on<R: Read>(&mut self, source: &mut Source<R>) -> Result<(), Error> {
        // Bytes are fetched only if few are left, because one fetch may be enough for several
        // pieces.
        if self.input.len() < INPUT_SIZE_MIN {
            let fetched = self.unfetched.min(INPUT_SIZE);
            source.append(fetched, &mut self.input)?;
            self.unfetched -= fetched;
        }
        let progress = decode(&self.input, &mut self.out, self.written)
            .map_err(|what| what.at(self.offset))?;
        if progress.read == 0 {
            return Err(self.wrong_size());
        }
        self.input.drain(..progress.read);
        self.written = progress.written;
        Ok(())
    }

    /// Checks that no input is left when the string is complete.
    fn check_end(&self) -> Result<(), Error> {
        if self.unfetched > 0 || !self.input.is_empty() || self.written != self.given {
            return Err(self.wrong_size());
        }
        Ok(())
    }

    fn wrong_size(&self) -> Error {
        Malformed("a compressed string is not as long as it says").at(self.offset)
    }
}
