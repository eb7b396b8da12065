//! What was appended to a log and is not on the disk yet.
//!
//! If the stage's memory outlives the process, so does what the process has appended: whoever is left
//! [mends](Stage::mend) the file. The kernel keeps the stores of a process that was killed, in the order
//! in which it made them; so the length is stored after the bytes, and the bytes are only moved when
//! all of them are durable.
//!
//! The first block of the memory is the header, in little-endian order:
//!
//! | offset | bytes | |
//! |---:|---:|---|
//! | 0 | 8 | `SlimIOst` while there is a log |
//! | 8 | 8 | device number of the file |
//! | 16 | 8 | inode number of the file |
//! | 24 | 8 | offset in the file of the first staged byte, a multiple of the block |
//! | 32 | 8 | length of the log in bytes |
//! | 40 | 8 | bytes of the log that are durable |

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::atomic::{Ordering, compiler_fence};

use slimio_device::{Buffer, LBA_SIZE, MappedFile};
use slimio_planted::is_planted;

const BLOCK: u64 = LBA_SIZE as u64;
const MAGIC: [u8; 8] = *b"SlimIOst";
/// Blocks of the staged bytes.
const STAGE_LBAS: usize = 64;
/// Bytes that can be staged.
const STAGE_SIZE: u64 = STAGE_LBAS as u64 * BLOCK;

/// Fields of the header, by their offsets.
const DEVICE: usize = 8;
const INODE: usize = 16;
const START: usize = 24;
const LENGTH: usize = 32;
const DURABLE: usize = 40;

/// The bytes of a log from a block's start to the log's end, the last block filled up with zeros. Behind
/// that block, there may be anything.
#[derive(Debug)]
pub struct Stage {
    /// The header, then the bytes.
    memory: Buffer,
}

/// What [`Stage::mend`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mended {
    /// The stage had no log, or its file is already mended.
    Nothing,
    /// The file ends with the log now, and all of it is durable.
    Log {
        /// Bytes that were appended, but were not in the file.
        written: u64,
        /// Length of the log in bytes.
        length: u64,
    },
}

impl Stage {
    /// Bytes of memory that a stage takes.
    pub const MEMORY: usize = (STAGE_LBAS + 1) * LBA_SIZE;

    /// A stage that dies with the process.
    pub fn private() -> Self {
        Self { memory: Buffer::zeroed(STAGE_LBAS + 1) }
    }

    /// A stage in a file of [`MEMORY`](Self::MEMORY) bytes that was mapped, with what is in it.
    ///
    /// # Panics
    /// If the file has another size, or was cut before.
    pub fn of(file: &mut MappedFile) -> Self {
        let memory = file.buffers(Self::MEMORY).pop().expect("it has the size of a stage");
        Self { memory }
    }

    /// Begins a log in `file` that ends with `tail`, the bytes of its last block that is not full. All
    /// of it is durable.
    pub(crate) fn begin(&mut self, file: &File, length: u64, tail: &[u8]) -> io::Result<()> {
        let metadata = file.metadata()?;
        self.end();
        self.memory[LBA_SIZE..].fill(0);
        self.memory[LBA_SIZE..][..tail.len()].copy_from_slice(tail);
        self.set(DEVICE, metadata.dev());
        self.set(INODE, metadata.ino());
        self.set(START, length - tail.len() as u64);
        self.set(LENGTH, length);
        self.set(DURABLE, length);
        compiler_fence(Ordering::SeqCst);
        self.memory[..MAGIC.len()].copy_from_slice(&MAGIC);
        Ok(())
    }

    /// The file needs no mending any more.
    pub(crate) fn end(&mut self) {
        self.memory[..MAGIC.len()].fill(0);
        compiler_fence(Ordering::SeqCst);
    }

    /// Device and inode number of the file whose log is staged; `None` if there is no log.
    pub fn file(&self) -> Option<(u64, u64)> {
        (self.memory[..MAGIC.len()] == MAGIC).then(|| (self.get(DEVICE), self.get(INODE)))
    }

    /// Offset in the file of the first staged byte.
    fn start(&self) -> u64 {
        self.get(START)
    }

    /// Length of the log in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.get(LENGTH)
    }

    /// Bytes of the log that are durable.
    pub(crate) fn durable(&self) -> u64 {
        self.get(DURABLE)
    }

    /// Appends as many of these bytes as there is room for. Returns how many.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> usize {
        let length = self.length();
        let staged = (length - self.start()) as usize;
        let count = bytes.len().min(STAGE_SIZE as usize - staged);
        let end = staged + count;
        let staged_bytes = &mut self.memory[LBA_SIZE..];
        staged_bytes[staged..end].copy_from_slice(&bytes[..count]);
        // Behind the end of the block that the log ended in are zeros. Later blocks may have old bytes.
        let is_new_block = end > staged.next_multiple_of(LBA_SIZE);
        if is_new_block && !is_planted("old-bytes-behind") {
            staged_bytes[end..end.next_multiple_of(LBA_SIZE)].fill(0);
        }
        compiler_fence(Ordering::SeqCst);
        self.set(LENGTH, length + count as u64);
        count
    }

    /// The blocks that have something that is not durable, and their offset in the file.
    pub(crate) fn undurable(&self) -> (u64, &[u8]) {
        let first = self.durable() - self.durable() % BLOCK;
        self.blocks(first, self.length())
    }

    /// The block that the log ends in, unless it is full, and its offset in the file.
    pub(crate) fn last(&self) -> (u64, &[u8]) {
        self.blocks(self.length() - self.length() % BLOCK, self.length())
    }

    fn blocks(&self, from: u64, to: u64) -> (u64, &[u8]) {
        let size = to.next_multiple_of(BLOCK) - from;
        (from, &self.memory[LBA_SIZE + (from - self.start()) as usize..][..size as usize])
    }

    /// All that was appended is durable. What is in full blocks leaves the stage when it is half full,
    /// so that little is copied.
    pub(crate) fn is_durable(&mut self) {
        let length = self.length();
        self.set(DURABLE, length);
        compiler_fence(Ordering::SeqCst);
        let (old, start) = (self.start(), length - length % BLOCK);
        if start - old < STAGE_SIZE / 2 {
            return;
        }
        // The last block has zeros behind the log's end, which come along.
        let last = LBA_SIZE + (start - old) as usize;
        if length > start && !is_planted("tail-forgotten") {
            self.memory.copy_within(last..last + LBA_SIZE, LBA_SIZE);
        }
        self.set(START, start);
        compiler_fence(Ordering::SeqCst);
    }

    /// Mends the file of a process that has ended without releasing it: writes what is missing, cuts
    /// the file behind the log, and makes all of it durable.
    ///
    /// No process may have the file open for writing. If one that was killed still has a write in
    /// flight, this waits for it, because the kernel does.
    ///
    /// # Errors
    /// If `file` is not the stage's file (`InvalidInput`), or can't be written. The stage stays as it
    /// was then.
    pub fn mend(&mut self, file: &File) -> io::Result<Mended> {
        let Some(staged) = self.file() else { return Ok(Mended::Nothing) };
        let metadata = file.metadata()?;
        if staged != (metadata.dev(), metadata.ino()) {
            let why = "it is not the file that the stage belongs to";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let (length, durable) = (self.length(), self.durable());
        let (offset, blocks) = self.undurable();
        let missing = &blocks[(durable - offset) as usize..(length - offset) as usize];
        if !is_planted("killed-unmended") {
            file.write_all_at(missing, durable)?;
        }
        file.set_len(length)?;
        file.sync_all()?;
        let written = missing.len() as u64;
        self.end();
        Ok(Mended::Log { written, length })
    }

    fn get(&self, field: usize) -> u64 {
        u64::from_le_bytes(self.memory[field..][..8].try_into().expect("eight bytes"))
    }

    fn set(&mut self, field: usize, value: u64) {
        self.memory[field..][..8].copy_from_slice(&value.to_le_bytes());
    }
}
