//! The staged part of a log: a header, and bytes that a program has appended. The program shares
//! the memory of this part with its keeper, the process `slimio shortcut run`. The last staged
//! bytes may not be in the file yet. If the program is killed then, another process *mends* the
//! log: it writes the missing bytes to the file. After the staged bytes, the memory may also hold
//! *loaded* bytes, which were read from the file.
//!
//! The header is in the first block, in little-endian order:
//!
//! | offset | bytes | |
//! |---:|---:|---|
//! | 0 | 8 | `SlimIOst` while there is a log |
//! | 8 | 8 | device of the file: major number in the upper half, minor number in the lower half |
//! | 16 | 8 | inode number of the file |
//! | 24 | 8 | offset in the file of the first staged byte, a multiple of the block size |
//! | 32 | 8 | offset in the file after the last staged byte |
//! | 40 | 8 | offset in the file after the staged bytes that were written to the file |
//! | 48 | 8 | 1 if some of the bytes in the file need a flush to be durable |
//! | 56 | 8 | offset in the file after the blocks that were written, perhaps only with zeros |
//! | 64 | 8 | the error of the first write or flush that failed, or zero |
//! | 72 | 8 | 1 if the file was opened with `O_APPEND` |
//! | 80 | 8 | bits: 1 if the keeper was told of an append; 2 if it was told of something to do |
//! | 88 | 8 | offset of the file's position, as lseek(2) would tell it |
//! | 96 | 8 | 1 if the file is left to the kernel for good |
//! | 104 | 8 | length of the file's path in bytes |
//! | 112 | 8 | offset up to which the file may have been filled with zeros |
//! | 120 | 8 | when the file was made, in nanoseconds since 1970 |
//! | 128 | 8 | length of the log in bytes, as far as it is in the file |
//! | 136 | 8 | offset in the file after the last loaded byte |
//! | 144 | 8 | 1 while the staged bytes are replaced by others; the old bytes are all in the file |
//! | 152 | 8 | 1 if the file is open for reading, too |
//! | 160 | 8 | 1 if direct I/O is off because of a read |
//! | 168 | 8 | 1 if the records of the log say where the log ends |
//! | 176 | 8 | offset in the file up to which a call under way may have replaced loaded bytes |
//! | 256 | | the file's path |

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, compiler_fence};

use rustix::io::Errno;
use slimio_device::{LBA_SIZE, Part};
use slimio_planted::is_planted;

use crate::Identity;
use crate::log_file::BLOCK;

const MAGIC: [u8; 8] = *b"SlimIOst";
/// Number of blocks in which the stage keeps bytes.
pub(crate) const STAGE_LBAS: usize = 256;
/// Number of bytes that the stage has room for.
const STAGE_SIZE: u64 = STAGE_LBAS as u64 * BLOCK;
/// The largest number of bytes that are loaded at once.
const LOAD_SIZE: u64 = 64 * BLOCK;

/// Fields of the header, by their offsets.
const DEVICE: usize = 8;
const INODE: usize = 16;
const START: usize = 24;
const STAGED_TO: usize = 32;
const WRITTEN: usize = 40;
const UNFLUSHED: usize = 48;
const ZEROED: usize = 56;
const FAILED: usize = 64;
const IS_APPEND: usize = 72;
const TOLD: usize = 80;
const POSITION: usize = 88;
const GIVEN_UP: usize = 96;
const PATH_LENGTH: usize = 104;
const REACH: usize = 112;
const BORN: usize = 120;
const SIZE: usize = 128;
const LOADED: usize = 136;
const IS_MOVING: usize = 144;
const IS_READABLE: usize = 152;
const IS_BUFFERED: usize = 160;
const IS_SELF_ENDING: usize = 168;
const PUT_TO: usize = 176;
const PATH: usize = 256;

/// Bits of what the keeper was told: that something was appended, and that the keeper has something
/// to do.
const APPENDED: u64 = 1;
const URGENT: u64 = 2;

/// The staged bytes and the header, locked.
#[derive(Debug)]
pub(crate) struct Staged<'a> {
    memory: Part<'a>,
}

impl<'a> Staged<'a> {
    /// The part of the stage that holds the header and the staged bytes.
    pub(crate) fn new(memory: Part<'a>) -> Self {
        Self { memory }
    }

    /// Begins a log in a file whose bytes are all durable. `tail` has the bytes of the file's last
    /// block if that block is not full.
    pub(crate) fn begin(&mut self, of: Identity, length: u64, tail: &[u8]) {
        self.end();
        self.memory[LBA_SIZE..][..LBA_SIZE].fill(0);
        self.memory[LBA_SIZE..][..tail.len()].copy_from_slice(tail);
        let start = length - tail.len() as u64;
        let fields = [
            (DEVICE, of.device),
            (INODE, of.inode),
            (BORN, of.born),
            (START, start),
            (STAGED_TO, length),
            (WRITTEN, length),
            (SIZE, length),
            (LOADED, 0),
            (PUT_TO, 0),
            (IS_MOVING, 0),
            (IS_BUFFERED, 0),
            (UNFLUSHED, 0),
            (ZEROED, start),
            (REACH, length.next_multiple_of(BLOCK)),
            (FAILED, 0),
            (TOLD, 0),
        ];
        for (field, value) in fields {
            self.set(field, value);
        }
        compiler_fence(Ordering::SeqCst);
        self.memory[..MAGIC.len()].copy_from_slice(&MAGIC);
    }

    /// Whether the records of the log say where the log ends.
    pub(crate) fn is_self_ending(&self) -> bool {
        self.get(IS_SELF_ENDING) != 0
    }

    pub(crate) fn set_self_ending(&mut self, is_self_ending: bool) {
        self.set(IS_SELF_ENDING, is_self_ending.into());
    }

    /// The path that the file had when its log began.
    pub(crate) fn path(&self) -> PathBuf {
        let length = (self.get(PATH_LENGTH) as usize).min(LBA_SIZE - PATH);
        OsStr::from_bytes(&self.memory[PATH..PATH + length]).into()
    }

    /// Notes where the file is, for a process that may have to mend it.
    pub(crate) fn set_path(&mut self, path: &Path) {
        let path = path.as_os_str().as_bytes();
        let path = &path[..path.len().min(LBA_SIZE - PATH)];
        self.memory[PATH..][..path.len()].copy_from_slice(path);
        self.set(PATH_LENGTH, path.len() as u64);
    }

    /// Ends the log: the file needs no mending any more.
    pub(crate) fn end(&mut self) {
        self.memory[..MAGIC.len()].fill(0);
        compiler_fence(Ordering::SeqCst);
    }

    /// The file whose log is staged; `None` if there is no log.
    pub(crate) fn file(&self) -> Option<Identity> {
        let [device, inode, born] = [DEVICE, INODE, BORN].map(|field| self.get(field));
        self.is_taken().then_some(Identity { device, inode, born })
    }

    /// Whether there is a log.
    pub(crate) fn is_taken(&self) -> bool {
        self.memory[..MAGIC.len()] == MAGIC
    }

    /// Offset in the file of the first staged byte.
    pub(crate) fn start(&self) -> u64 {
        self.get(START)
    }

    /// Offset in the file after the last staged byte.
    pub(crate) fn staged_to(&self) -> u64 {
        self.get(STAGED_TO)
    }

    /// Offset in the file after the staged bytes that were written to the file.
    pub(crate) fn written(&self) -> u64 {
        self.get(WRITTEN)
    }

    /// Length of the log in bytes, as far as it is in the file.
    pub(crate) fn size(&self) -> u64 {
        self.get(SIZE).max(self.written())
    }

    /// Length of the log in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.get(SIZE).max(self.staged_to())
    }

    /// Whether bytes in the file need a flush to be durable.
    pub(crate) fn needs_flush(&self) -> bool {
        self.get(UNFLUSHED) != 0
    }

    pub(crate) fn set_needs_flush(&mut self, needs: bool) {
        self.set(UNFLUSHED, needs.into());
    }

    /// Offset in the file, a multiple of the block size. All blocks before it were written, perhaps
    /// only with zeros, so writing them again changes no metadata.
    pub(crate) fn zeroed(&self) -> u64 {
        self.get(ZEROED)
    }

    pub(crate) fn set_zeroed(&mut self, end: u64) {
        self.set(ZEROED, end);
    }

    /// Notes that zeros may be written to the file from now on, up to the offset `end`.
    pub(crate) fn reaches(&mut self, end: u64) {
        let reach = self.get(REACH).max(end);
        self.set(REACH, reach);
        compiler_fence(Ordering::SeqCst);
    }

    /// Whether a file of this size is longer than the short path can have made it. If so, somebody
    /// else has appended to it.
    pub(crate) fn is_longer(&self, size: u64) -> bool {
        size > self.get(REACH)
    }

    /// Fails with the error of the first write or flush that failed, if any has failed.
    pub(crate) fn failed(&self) -> Result<(), Errno> {
        match self.get(FAILED) {
            0 => Ok(()),
            error => Err(Errno::from_raw_os_error(error as i32)),
        }
    }

    pub(crate) fn set_failed(&mut self, error: Errno) {
        self.set(FAILED, error.raw_os_error() as u64);
    }

    /// Notes whether the file was opened with `O_APPEND`, whether it was opened for reading, and
    /// the file's position.
    pub(crate) fn set_opened(&mut self, is_append: bool, is_readable: bool, position: u64) {
        self.set(IS_APPEND, is_append.into());
        self.set(IS_READABLE, is_readable.into());
        self.set(POSITION, position);
    }

    /// Whether the file was opened for reading, too.
    pub(crate) fn is_readable(&self) -> bool {
        self.get(IS_READABLE) != 0
    }

    /// Whether direct I/O is off, because somebody has read through the page cache.
    pub(crate) fn is_buffered(&self) -> bool {
        self.get(IS_BUFFERED) != 0
    }

    pub(crate) fn set_buffered(&mut self, is_buffered: bool) {
        self.set(IS_BUFFERED, is_buffered.into());
    }

    /// The file's position. With `O_APPEND`, the position is at the log's end only after something
    /// was appended.
    pub(crate) fn position(&self) -> u64 {
        self.get(POSITION)
    }

    pub(crate) fn set_position(&mut self, position: u64) {
        self.set(POSITION, position);
    }

    /// Whether the file is left to the kernel for good.
    pub(crate) fn is_given_up(&self) -> bool {
        self.get(GIVEN_UP) != 0
    }

    pub(crate) fn give_up(&mut self) {
        self.set(GIVEN_UP, 1);
    }

    /// Whether the file was opened with `O_APPEND`.
    pub(crate) fn is_append(&self) -> bool {
        self.get(IS_APPEND) != 0
    }

    /// Whether the keeper must be told of an append. There are two reasons to tell it: the keeper
    /// does not look at the log by itself, or the log needs the keeper's work (`is_urgent`). For
    /// each of the two reasons, the keeper is told only once until it looks at the log
    /// ([`heard`](Self::heard)).
    pub(crate) fn tell(&mut self, is_urgent: bool) -> bool {
        let told = self.get(TOLD);
        let telling = told | APPENDED | if is_urgent { URGENT } else { 0 };
        self.set(TOLD, telling);
        telling != told
    }

    /// Notes that the keeper looks at the log now. `looks_again` says whether it will look again
    /// without being told.
    pub(crate) fn heard(&mut self, looks_again: bool) {
        self.set(TOLD, if looks_again { APPENDED } else { 0 });
    }

    /// The number of bytes that can be staged before staged bytes must be written to the file.
    pub(crate) fn room(&self) -> u64 {
        self.start() + STAGE_SIZE - self.staged_to()
    }

    /// Whether enough bytes are staged that they should be written, even if they need not be
    /// durable yet.
    pub(crate) fn is_filling(&self) -> bool {
        self.staged_to() - self.written() > STAGE_SIZE / 4
    }

    /// The number of bytes that can be staged before more bytes of the file must be
    /// [loaded](Self::loading). Only whole blocks are written. So if the staged bytes end within a
    /// block that the file already has, that block must be filled up with the file's own bytes.
    pub(crate) fn loaded(&self) -> u64 {
        let is_whole = self.staged_to() >= self.size() || self.get(LOADED) >= self.size();
        if is_whole { u64::MAX } else { self.get(LOADED).saturating_sub(self.staged_to()) }
    }

    /// The memory into which the file's next bytes can be loaded, and their offset in the file.
    /// After loading, [`is_loaded`](Self::is_loaded) must be called.
    pub(crate) fn loading(&mut self) -> (u64, &mut [u8]) {
        let from = self.get(LOADED).max(self.staged_to() - self.staged_to() % BLOCK);
        let end = self.size().next_multiple_of(BLOCK).min(self.start() + STAGE_SIZE);
        let size = end.saturating_sub(from).min(LOAD_SIZE) as usize;
        let at = LBA_SIZE + (from - self.start()) as usize;
        (from, &mut self.memory[at..at + size])
    }

    pub(crate) fn is_loaded(&mut self, end: u64) {
        self.set(LOADED, end);
    }

    /// Stages the first of these bytes: as many as there is room for, but none past the loaded
    /// bytes. Returns the number of staged bytes.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> usize {
        let at = self.staged_to();
        let staged = (at - self.start()) as usize;
        let count = (bytes.len() as u64).min(self.room()).min(self.loaded()) as usize;
        let end = staged + count;
        let is_loaded = self.get(LOADED) >= (at + count as u64).next_multiple_of(BLOCK);
        // Until `STAGED_TO` covers the new bytes, the loaded bytes in their place may be
        // overwritten in part.
        self.set(PUT_TO, at + count as u64);
        compiler_fence(Ordering::SeqCst);
        let staged_bytes = &mut self.memory[LBA_SIZE..];
        staged_bytes[staged..end].copy_from_slice(&bytes[..count]);
        // The rest of the block in which the log ended has zeros. Later blocks may have old bytes.
        let is_new_block = end > staged.next_multiple_of(LBA_SIZE);
        if is_new_block && !is_loaded && !is_planted("old-bytes-behind") {
            staged_bytes[end..end.next_multiple_of(LBA_SIZE)].fill(0);
        }
        compiler_fence(Ordering::SeqCst);
        self.set(STAGED_TO, at + count as u64);
        count
    }

    /// Begins to stage bytes for another place in the file. All bytes that were staged must be in
    /// the file. The caller must then [load](Self::loading) the file's bytes at the new place, and
    /// call [`has_moved`](Self::has_moved).
    pub(crate) fn move_to(&mut self, offset: u64) {
        self.set(SIZE, self.size());
        self.set(IS_MOVING, 1);
        compiler_fence(Ordering::SeqCst);
        let start = offset - offset % BLOCK;
        for (field, value) in
            [(START, start), (STAGED_TO, offset), (WRITTEN, offset), (LOADED, start)]
        {
            self.set(field, value);
        }
    }

    pub(crate) fn has_moved(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.set(IS_MOVING, 0);
        compiler_fence(Ordering::SeqCst);
    }

    /// Whether the staged bytes are being replaced, or a process was killed while it replaced them.
    /// The old bytes are all in the file.
    pub(crate) fn is_moving(&self) -> bool {
        self.get(IS_MOVING) != 0 && !is_planted("move-not-seen")
    }

    /// The byte that the file has, or will have, at an offset in the staged blocks; `None` if it is
    /// not known.
    pub(crate) fn byte_at(&self, offset: u64) -> Option<u8> {
        let is_staged = offset < self.staged_to();
        let is_loaded = offset >= self.get(PUT_TO) && offset < self.get(LOADED);
        let is_known =
            offset >= self.start() && (is_staged || is_loaded || is_planted("put-forgotten"));
        is_known.then(|| self.memory[LBA_SIZE + (offset - self.start()) as usize])
    }

    /// Copies staged bytes. Returns `false` if some of the requested bytes are not staged.
    pub(crate) fn copy(&self, bytes: &mut [u8], offset: u64) -> bool {
        // After a failed or interrupted move, the memory still has bytes of another place.
        if self.is_moving() {
            return false;
        }
        if offset < self.start() || offset + bytes.len() as u64 > self.staged_to() {
            return false;
        }
        let at = LBA_SIZE + (offset - self.start()) as usize;
        bytes.copy_from_slice(&self.memory[at..at + bytes.len()]);
        true
    }

    /// The blocks with bytes that are not in the file yet, and the offset of these blocks in the
    /// file.
    pub(crate) fn unwritten(&self) -> (u64, &[u8]) {
        let first = self.written() - self.written() % BLOCK;
        self.blocks(first, self.staged_to())
    }

    /// The block in which the staged bytes end, if it is not full, and its offset in the file.
    pub(crate) fn last(&self) -> (u64, &[u8]) {
        self.blocks(self.staged_to() - self.staged_to() % BLOCK, self.staged_to())
    }

    fn blocks(&self, from: u64, to: u64) -> (u64, &[u8]) {
        let size = to.next_multiple_of(BLOCK) - from;
        (from, &self.memory[LBA_SIZE + (from - self.start()) as usize..][..size as usize])
    }

    /// Notes that the staged bytes up to `end` are in the file. Full blocks that are in the file
    /// leave the stage only once they fill half of the stage, so that little is copied.
    pub(crate) fn is_written(&mut self, end: u64) {
        self.set(WRITTEN, end);
        self.set(SIZE, self.size());
        compiler_fence(Ordering::SeqCst);
        let (old, start) = (self.start(), end - end % BLOCK);
        if start - old < STAGE_SIZE / 2 {
            return;
        }
        // The bytes that fill up the last block are copied too, and so are the loaded bytes. Source
        // and target do not overlap, so one of the two is whole at any time.
        let from = LBA_SIZE + (start - old) as usize;
        let size = self.staged_to().next_multiple_of(BLOCK).max(self.get(LOADED)) - start;
        if !is_planted("tail-forgotten") {
            self.memory.copy_within(from..from + size as usize, LBA_SIZE);
        }
        compiler_fence(Ordering::SeqCst);
        self.set(START, start);
        compiler_fence(Ordering::SeqCst);
    }

    fn get(&self, field: usize) -> u64 {
        u64::from_le_bytes(self.memory[field..][..8].try_into().expect("eight bytes"))
    }

    fn set(&mut self, field: usize, value: u64) {
        self.memory[field..][..8].copy_from_slice(&value.to_le_bytes());
    }
}
