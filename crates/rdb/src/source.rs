//! Reads the bytes of a file once, from front to back, and adds them to the checksum.

use std::io::Read;

use crate::checksum::Crc64;
use crate::error::Error;
use crate::integer::Decimal;
use crate::length::{self, Input, StringHead};
use crate::lzf::decompress;

/// Largest number of bytes that one read from the reader returns.
const BUFFER_SIZE: usize = 128 * 1024;
/// Largest size in bytes of a string that is read whole, such as an element, a key or a packed
/// collection. Redis makes no larger listpack. By default, it refuses to store a longer string.
pub const WHOLE_SIZE_MAX: u64 = 1 << 30;

/// Reads from `R` in large pieces.
#[derive(Debug)]
pub(crate) struct Source<R> {
    reader: R,
    buffer: Vec<u8>,
    /// The unread bytes of the buffer lie between `start` and `end`.
    start: usize,
    end: usize,
    /// The bytes of the buffer from here on are not yet in the checksum.
    unsummed: usize,
    checksum: Crc64,
    /// Where the buffer begins in the file.
    base: u64,
    /// Memory for the compressed bytes of the string that is being read.
    compressed: Vec<u8>,
}

impl<R: Read> Source<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self::sized(reader, BUFFER_SIZE)
    }

    /// Like [`new`](Self::new), but for a reader that has at most `size` bytes.
    pub(crate) fn sized(reader: R, size: usize) -> Self {
        Self {
            reader,
            buffer: vec![0; size.clamp(1, BUFFER_SIZE)],
            start: 0,
            end: 0,
            unsummed: 0,
            checksum: Crc64::new(),
            base: 0,
            compressed: Vec::new(),
        }
    }

    /// The checksum of everything that was read.
    pub(crate) fn checksum(&mut self) -> u64 {
        self.checksum.update(&self.buffer[self.unsummed..self.start]);
        self.unsummed = self.start;
        self.checksum.value()
    }

    /// Refills the buffer, which must be empty.
    fn refill(&mut self) -> Result<(), Error> {
        debug_assert_eq!(self.start, self.end);
        self.checksum();
        self.base += self.end as u64;
        (self.start, self.end, self.unsummed) = (0, 0, 0);
        loop {
            match self.reader.read(&mut self.buffer) {
                Ok(0) => return Err(Error::Truncated { offset: self.base }),
                Ok(size) => {
                    self.end = size;
                    return Ok(());
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// As many of the next `size` bytes as the buffer has: at least one unless `size` is 0. Refills
    /// the buffer if it is empty.
    fn some(&mut self, size: u64) -> Result<&[u8], Error> {
        if self.start == self.end && size > 0 {
            self.refill()?;
        }
        let there = (self.end - self.start) as u64;
        let now = there.min(size) as usize;
        self.start += now;
        Ok(&self.buffer[self.start - now..self.start])
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Error> {
        self.array().map(|[byte]| byte)
    }

    /// Appends the next `size` bytes to `out`, which grows as they come.
    pub(crate) fn append(&mut self, mut size: u64, out: &mut Vec<u8>) -> Result<(), Error> {
        out.reserve(size.min(BUFFER_SIZE as u64) as usize);
        while size > 0 {
            let some = self.some(size)?;
            size -= some.len() as u64;
            out.extend_from_slice(some);
        }
        Ok(())
    }

    pub(crate) fn skip(&mut self, mut size: u64) -> Result<(), Error> {
        while size > 0 {
            size -= self.some(size)?.len() as u64;
        }
        Ok(())
    }

    pub(crate) fn length(&mut self) -> Result<u64, Error> {
        length::decode(self)
    }

    pub(crate) fn string_head(&mut self) -> Result<StringHead, Error> {
        length::decode_string_head(self)
    }

    /// Reads a whole string. Its memory grows as bytes arrive, whatever size the file claims.
    pub(crate) fn string(&mut self) -> Result<Vec<u8>, Error> {
        let offset = self.offset();
        let head = self.string_head()?;
        self.string_behind(head, offset)
    }

    /// The whole string with this head. The head began at `offset`.
    pub(crate) fn string_behind(
        &mut self,
        head: StringHead,
        offset: u64,
    ) -> Result<Vec<u8>, Error> {
        let mut out = Vec::new();
        match head {
            StringHead::Plain(size) => {
                check_whole(size, offset)?;
                self.append(size, &mut out)?;
            }
            StringHead::Integer(value) => {
                out.extend_from_slice(Decimal::new().format(value).as_bytes());
            }
            StringHead::Lzf { compressed_size, size } => {
                check_whole(compressed_size.max(size), offset)?;
                let mut compressed = std::mem::take(&mut self.compressed);
                compressed.clear();
                self.append(compressed_size, &mut compressed)?;
                decompress(&compressed, size as usize, &mut out).map_err(|what| what.at(offset))?;
                // The memory of a large string is not kept for later strings.
                if compressed.capacity() <= BUFFER_SIZE {
                    self.compressed = compressed;
                }
            }
        }
        Ok(out)
    }

    /// Skips a string.
    pub(crate) fn skip_string(&mut self) -> Result<(), Error> {
        match self.string_head()? {
            StringHead::Integer(_) => Ok(()),
            StringHead::Plain(size) | StringHead::Lzf { compressed_size: size, .. } => {
                self.skip(size)
            }
        }
    }
}

impl<R: Read> Input for Source<R> {
    fn offset(&self) -> u64 {
        self.base + self.start as u64
    }

    fn array<const SIZE: usize>(&mut self) -> Result<[u8; SIZE], Error> {
        if let Some(bytes) = self.buffer[self.start..self.end].first_chunk() {
            self.start += SIZE;
            return Ok(*bytes);
        }
        let mut bytes = [0; SIZE];
        let mut filled = 0;
        while filled < SIZE {
            let some = self.some((SIZE - filled) as u64)?;
            bytes[filled..filled + some.len()].copy_from_slice(some);
            filled += some.len();
        }
        Ok(bytes)
    }
}

/// Refuses a string that is too long to be held whole.
fn check_whole(size: u64, offset: u64) -> Result<(), Error> {
    if size <= WHOLE_SIZE_MAX {
        return Ok(());
    }
    let what = format!("a string of {size} bytes, where the limit is {WHOLE_SIZE_MAX}");
    Err(Error::Unsupported { offset, what })
}
