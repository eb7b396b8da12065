//! A file system with a single file, which is also the root of the file system. This module
//! implements only as much of the kernel's FUSE protocol as that file needs. The crate fuser is not
//! used: it can mount only over folders, its trait would need as many lines as this module, and it
//! brings thirty crates.
//!
//! Requests are answered one at a time, in the order in which the kernel sends them.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use crate::error::{Doing, Result};

/// The operations of the file. Their errors are returned to the process that uses the file.
pub(super) trait OneFile {
    /// Size in bytes, which never changes.
    fn size(&self) -> u64;
    /// Fills all of `bytes`.
    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
    /// Writes all of `bytes`.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes a range read as zeros. `is_hole` says that the range was deallocated.
    fn zero(&mut self, offset: u64, size: u64, is_hole: bool) -> io::Result<()>;
    /// Called when the file's user asks that all earlier writes become durable.
    fn flush(&mut self) -> io::Result<()>;
}

/// Version of the protocol, which Linux has supported since 5.2.
const MAJOR: u32 = 7;
const MINOR: u32 = 31;
const ROOT: u64 = 1;
/// Longest write that the kernel sends.
const WRITE_SIZE_MAX: usize = 1 << 20;
const PAGE_SIZE: usize = 4096;
/// Size of a request's header.
const REQUEST_SIZE: usize = 40;
/// Size of the fields between the header of a write and its data.
const WRITE_FIELDS_SIZE: usize = 40;
const REPLY_SIZE: usize = 16;
const MODE: u32 = 0o100_600;

/// Kinds of requests. All other kinds are answered with `ENOSYS`, after which the kernel does not
/// send them again.
mod opcode {
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const DESTROY: u32 = 38;
    pub(super) const BATCH_FORGET: u32 = 42;
    pub(super) const FALLOCATE: u32 = 43;
}

/// Flags of the reply to INIT: writes may be longer than a page, and `max_pages` is valid.
const INIT_FLAGS: u32 = 1 << 5 | 1 << 22;
/// Bypasses the page cache, so this process gets requests for the file at once and unchanged.
const OPEN_DIRECT_IO: u32 = 1;
const FALLOCATE_KEEP_SIZE: u32 = 1;
const FALLOCATE_PUNCH_HOLE: u32 = 2;
const FALLOCATE_ZERO_RANGE: u32 = 16;

/// Mounts the file system over the file at `path`. Requests wait until [`serve`] answers them.
pub(super) fn mount_over(path: &Path) -> Result<File> {
    let fuse = File::options().read(true).write(true).open("/dev/fuse");
    let fuse = fuse.doing("opening /dev/fuse")?;
    let options = format!("fd={},rootmode={MODE:o},user_id=0,group_id=0", fuse.as_raw_fd());
    let options = CString::new(options).expect("the options have no zero byte");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("slimio-trace", path, "fuse", flags, options.as_c_str())
        .doing(format!("mounting over {}", path.display()))?;
    Ok(fuse)
}

/// Answers requests until the file system is unmounted.
pub(super) fn serve(mut fuse: File, file: &mut dyn OneFile) -> io::Result<()> {
    let mut request = vec![0; REQUEST_SIZE + WRITE_FIELDS_SIZE + WRITE_SIZE_MAX + PAGE_SIZE];
    loop {
        let size = match fuse.read(&mut request) {
            Ok(size) => size,
            // The file system was unmounted.
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => break,
            // A request was withdrawn before it was read.
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => continue,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let Some(reply) = answer(&request[..size], file) else { continue };
        match fuse.write(&reply) {
            Ok(_) => {}
            // Nobody waits for the reply any more.
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The reply to a request. `None` if the kernel expects no reply.
fn answer(request: &[u8], file: &mut dyn OneFile) -> Option<Vec<u8>> {
    let opcode = word(request, 4);
    if matches!(opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT) {
        return None;
    }
    let mut reply = vec![0; REPLY_SIZE];
    let result = fill_reply(opcode, &request[REQUEST_SIZE..], file, &mut reply);
    let code = match result {
        Ok(()) => 0,
        Err(error) => {
            reply.truncate(REPLY_SIZE);
            -error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
        }
    };
    let size = reply.len() as u32;
    reply[..4].copy_from_slice(&size.to_le_bytes());
    reply[4..8].copy_from_slice(&code.to_le_bytes());
    reply[8..16].copy_from_slice(&request[8..16]);
    Some(reply)
}

fn fill_reply(
    opcode: u32,
    body: &[u8],
    file: &mut dyn OneFile,
    reply: &mut Vec<u8>,
) -> io::Result<()> {
    match opcode {
        opcode::INIT => put_init(word(body, 8), reply),
        opcode::GETATTR | opcode::SETATTR => {
            // How long the kernel may cache the attributes: without a limit, because only the
            // kernel changes them.
            put(reply, &[u64::MAX >> 1, 0]);
            put_attributes(file.size(), reply);
        }
        opcode::OPEN => put(reply, &[0, u64::from(OPEN_DIRECT_IO)]),
        opcode::READ => {
            let (offset, size) = (long(body, 8), u64::from(word(body, 16)));
            let size = size.min(file.size().saturating_sub(offset));
            reply.resize(REPLY_SIZE + size as usize, 0);
            file.read(offset, &mut reply[REPLY_SIZE..])?;
        }
        opcode::WRITE => {
            let (offset, size) = (long(body, 8), word(body, 16));
            file.write(offset, &body[WRITE_FIELDS_SIZE..][..size as usize])?;
            put(reply, &[u64::from(size)]);
        }
        opcode::FALLOCATE => {
            let (offset, size, mode) = (long(body, 8), long(body, 16), word(body, 24));
            let is_hole = match mode & !FALLOCATE_KEEP_SIZE {
                FALLOCATE_PUNCH_HOLE => true,
                FALLOCATE_ZERO_RANGE => false,
                _ => return Err(Errno::OPNOTSUPP.into()),
            };
            file.zero(offset, size, is_hole)?;
        }
        opcode::FSYNC => file.flush()?,
        opcode::STATFS => {
            let pages = file.size() / PAGE_SIZE as u64;
            // `fuse_kstatfs`: blocks, bfree, bavail, files, ffree, bsize with namelen, frsize.
            put(reply, &[pages, 0, 0, 1, 0, PAGE_SIZE as u64 | 255 << 32, PAGE_SIZE as u64]);
            put(reply, &[0; 3]);
        }
        // Closing and unmounting need nothing, because nothing is buffered here.
        opcode::FLUSH | opcode::RELEASE | opcode::DESTROY => {}
        _ => return Err(Errno::NOSYS.into()),
    }
    Ok(())
}

fn put_init(readahead_max: u32, reply: &mut Vec<u8>) {
    let pages_max = (WRITE_SIZE_MAX / PAGE_SIZE) as u64;
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    put(reply, &[pair(MAJOR, MINOR), pair(readahead_max, INIT_FLAGS)]);
    // Zero sets no limits for background requests, so the kernel's own limits hold. The 1 is the
    // granularity of times, in nanoseconds.
    put(reply, &[pair(0, WRITE_SIZE_MAX as u32), pair(1, 0) | pages_max << 32]);
    put(reply, &[0; 4]);
}

fn put_attributes(size: u64, reply: &mut Vec<u8>) {
    put(reply, &[ROOT, size, size / 512, 0, 0, 0]);
    // `fuse_attr`: nanoseconds of the three times, mode, link count, uid, gid, rdev, block size,
    // padding.
    let words = [0, 0, 0, MODE, 1, 0, 0, 0, PAGE_SIZE as u32, 0];
    reply.extend(words.into_iter().flat_map(u32::to_le_bytes));
}

fn put(reply: &mut Vec<u8>, numbers: &[u64]) {
    reply.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
