//! Asks the file system where a file's bytes are on the device (`FS_IOC_FIEMAP`; see the kernel's
//! Documentation/filesystems/fiemap.rst).

#![expect(unsafe_code, reason = "system calls are foreign functions")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::sys::check;

/// `FS_IOC_FIEMAP`
const FS_IOC_FIEMAP: libc::Ioctl = 0xc020_660b_u32 as libc::Ioctl;
/// `FIEMAP_FLAG_SYNC`: the kernel first writes out the file's dirty pages, so that their bytes have
/// a place on the device.
const SYNC: u32 = 0x1;

/// Number of extents that one system call asks for.
const EXTENTS_COUNT: usize = 128;

/// The largest number of extents that [`has_shared`] looks at.
const LOOKED_AT_MAX: usize = 64 * EXTENTS_COUNT;

const LAST: u32 = 0x1;
const UNKNOWN: u32 = 0x2;
const DELAYED: u32 = 0x4;
const ENCODED: u32 = 0x8;
const ENCRYPTED: u32 = 0x80;
const NOT_ALIGNED: u32 = 0x100;
const INLINE: u32 = 0x200;
const TAIL: u32 = 0x400;
const UNWRITTEN: u32 = 0x800;
const SHARED: u32 = 0x2000;

/// A range of a file's bytes that is contiguous on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the file, in bytes.
    pub start: u64,
    /// Length in bytes. Never zero.
    pub length: u64,
    flags: u32,
}

impl Extent {
    /// Offset in the file right after the last byte.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.length)
    }

    /// Whether the blocks were allocated but never written. Reads return zeros, whatever the blocks
    /// hold. The first write to the blocks changes metadata.
    pub fn is_unwritten(&self) -> bool {
        self.flags & UNWRITTEN != 0
    }

    /// Whether the blocks also belong to another file. If so, an overwrite goes to new blocks.
    pub fn is_shared(&self) -> bool {
        self.flags & SHARED != 0
    }

    /// Whether the bytes have no blocks of their own, for example because the file system has
    /// compressed them or has not chosen a place for them yet.
    pub fn is_special(&self) -> bool {
        let special = UNKNOWN | DELAYED | ENCODED | ENCRYPTED | NOT_ALIGNED | INLINE | TAIL;
        self.flags & special != 0
    }
}

/// The extents of a file in the order of its bytes. Holes are left out.
///
/// The iterator ends after the first error. `ErrorKind::Unsupported` (`EOPNOTSUPP`) means that the
/// file system can't report extents.
#[derive(Debug)]
pub struct Extents<'a> {
    file: &'a File,
    next: u64,
    end: u64,
    flags: u32,
    found: std::vec::IntoIter<Extent>,
    is_over: bool,
}

impl<'a> Extents<'a> {
    /// The extents that overlap this range. If `sync` is set, the kernel first writes out the
    /// file's dirty pages.
    pub fn new(file: &'a File, range: std::ops::Range<u64>, sync: bool) -> Self {
        let flags = if sync { SYNC } else { 0 };
        let found = Vec::new().into_iter();
        let is_over = range.is_empty();
        Self { file, next: range.start, end: range.end, flags, found, is_over }
    }

    fn ask(&mut self) -> io::Result<()> {
        // SAFETY: both structures consist of integers, for which zero is a valid value.
        let mut map: ExtentMap = unsafe { std::mem::zeroed() };
        (map.start, map.length) = (self.next, self.end - self.next);
        (map.flags, map.extent_count) = (self.flags, EXTENTS_COUNT as u32);
        // SAFETY: the kernel writes at most `extent_count` extents after the header.
        check(unsafe { libc::ioctl(self.file.as_raw_fd(), FS_IOC_FIEMAP, &raw mut map) })?;
        let found = &map.extents[..map.mapped_extents as usize];
        match found.last() {
            Some(last) if last.flags & LAST == 0 => {
                self.next = last.logical.saturating_add(last.length);
                self.is_over = self.next >= self.end;
            }
            _ => self.is_over = true,
        }
        let kept = found.iter().filter(|extent| extent.length > 0 && extent.logical < self.end);
        let kept =
            kept.map(|raw| Extent { start: raw.logical, length: raw.length, flags: raw.flags });
        self.found = kept.collect::<Vec<_>>().into_iter();
        Ok(())
    }
}

impl Iterator for Extents<'_> {
    type Item = io::Result<Extent>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(extent) = self.found.next() {
                return Some(Ok(extent));
            }
            if self.is_over {
                return None;
            }
            if let Err(error) = self.ask() {
                self.is_over = true;
                return Some(Err(error));
            }
        }
    }
}

/// Whether some of a file's blocks also belong to another file. Looks at no more than the first
/// [`LOOKED_AT_MAX`] extents. Returns `false` if the file system can't report extents, because
/// files on such a file system share no blocks.
pub(crate) fn has_shared(file: &File) -> bool {
    let mut first = Extents::new(file, 0..u64::MAX, false).take(LOOKED_AT_MAX);
    first.any(|extent| extent.is_ok_and(|extent| extent.is_shared()))
}

/// The kernel's `struct fiemap`, with room for the extents that the kernel returns.
#[repr(C)]
struct ExtentMap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [RawExtent; EXTENTS_COUNT],
}

/// The kernel's `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

const _: () =
    assert!(std::mem::offset_of!(ExtentMap, extents) == 32 && size_of::<RawExtent>() == 56);
