//! System calls that the standard library does not offer. Most of these functions are safe to call.

#![expect(unsafe_code, reason = "system calls are foreign functions")]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::Buffer;
use crate::attributes::{flags, statx};

/// `BLKGETSIZE64`: size of a block device in bytes.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272_u32 as libc::Ioctl;

/// `FS_IOC_SETFLAGS`: sets attributes of a file.
const FS_IOC_SETFLAGS: libc::Ioctl = 0x4008_6602;

/// `FS_NOCOW_FL`: the attribute `C` of `chattr`.
const FS_NOCOW_FL: libc::c_long = 0x0080_0000;

/// Turns the return value of a system call into a `Result`. A call that fails returns -1 and sets
/// `errno`.
pub(crate) fn check(returned: libc::c_int) -> io::Result<libc::c_int> {
    if returned == -1 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

/// A file in memory, which has a descriptor but no name.
pub(crate) fn memfd(name: &CStr) -> io::Result<File> {
    // SAFETY: `name` is a C string that lives during the call.
    let fd = check(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Size in bytes of a block device.
pub(crate) fn block_device_size(file: &File) -> io::Result<u64> {
    let mut size: u64 = 0;
    // SAFETY: BLKGETSIZE64 stores a `u64` at the pointer, which points to a `u64`.
    check(unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut size) })?;
    Ok(size)
}

/// Maps `size` bytes of `file` from `offset` on, shared with the page cache. Asks the kernel to
/// read the bytes that are not cached yet. A page counts as this process's memory from its first
/// use on.
pub(crate) fn map_shared(file: &File, offset: u64, size: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: the kernel chooses the address, so no existing mapping is touched.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            offset as libc::off_t,
        )
    };
    let memory = mapped(memory)?;
    // SAFETY: the descriptor is open. The call is only a hint.
    let _ = unsafe {
        let (offset, size) = (offset as libc::off_t, size as libc::off_t);
        libc::posix_fadvise(file.as_raw_fd(), offset, size, libc::POSIX_FADV_WILLNEED)
    };
    Ok(memory)
}

/// Makes the kernel provide the pages of a [shared mapping](map_shared) now instead of at their
/// first use. Has no effect before Linux 5.14.
///
/// # Safety
/// The `size` bytes from `memory` on are whole pages of one mapping that `map_shared` made.
pub(crate) unsafe fn populate(memory: NonNull<u8>, size: usize) {
    // SAFETY: the caller promises that the pages are mapped. The call changes no byte. If it fails,
    // only time is lost.
    let _ = unsafe { libc::madvise(memory.as_ptr().cast(), size, libc::MADV_POPULATE_WRITE) };
}

/// Maps `size` bytes of private memory, all zero.
pub(crate) fn map_private(size: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: the kernel chooses the address, so no existing mapping is touched.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    mapped(memory)
}

fn mapped(memory: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(memory.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Unmaps pages of a [shared mapping](map_shared) until they are used again. The kernel keeps the
/// contents.
///
/// # Safety
/// The `size` bytes from `memory` on are whole pages of one mapping that `map_shared` made. A
/// mapping of another kind would lose its contents.
pub(crate) unsafe fn let_go(memory: NonNull<u8>, size: usize) {
    // SAFETY: the caller promises that the pages are in a shared mapping. If the kernel refuses,
    // the pages stay mapped.
    let _ = unsafe { libc::madvise(memory.as_ptr().cast(), size, libc::MADV_DONTNEED) };
}

/// Ends a mapping that [`map_shared`] or [`map_private`] made.
///
/// # Safety
/// `memory` and `size` describe one whole mapping, and nothing points into it any more.
pub(crate) unsafe fn unmap(memory: NonNull<u8>, size: usize) {
    // SAFETY: the caller promises that nothing points into the mapping any more.
    let result = check(unsafe { libc::munmap(memory.as_ptr().cast(), size) });
    // If a filter (seccomp) refuses the call, the memory stays mapped.
    let is_refused = result
        .as_ref()
        .is_err_and(|error| matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)));
    debug_assert!(result.is_ok() || is_refused, "a mapping could not be unmapped: {result:?}");
}

/// The number of the mount that a file was opened through; `None` on kernels before 5.8.
pub(crate) fn mount_id(file: &File) -> Option<u64> {
    let found = statx(file, libc::STATX_MNT_ID).ok()?;
    (found.stx_mask & libc::STATX_MNT_ID != 0).then_some(found.stx_mnt_id)
}

/// The smallest unit, in bytes, that a block device can read and write.
pub(crate) fn logical_block_size(file: &File) -> io::Result<u64> {
    let mut size: libc::c_int = 0;
    // SAFETY: BLKSSZGET stores an `int` at the pointer, which points to an `int`.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKSSZGET, &raw mut size) })?;
    Ok(size.unsigned_abs().into())
}

/// The exclusive lock (`flock`) of a file. While the lock is held, no other open file description
/// of the file can take it, in any process.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    /// Takes the lock. Returns the file if the lock is held already.
    pub(crate) fn take(file: File) -> io::Result<Result<Self, File>> {
        // SAFETY: no pointer is passed.
        match check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }) {
            Ok(_) => Ok(Ok(Self(file))),
            Err(error) if error.raw_os_error() == Some(libc::EWOULDBLOCK) => Ok(Err(file)),
            Err(error) => Err(error),
        }
    }

    /// The locked file.
    pub(crate) fn file_ref(&self) -> &File {
        &self.0
    }

    /// The locked file, for writing.
    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.0
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing our descriptor might not release the lock, because a child process that is just
        // being started shares our descriptors for a moment. So the lock is released explicitly.
        // SAFETY: no pointer is passed.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

/// An argument of `fcntl` for a lock on a whole file. If `kind` is `F_RDLCK`, `F_OFD_SETLK` locks
/// the file for reading. If `kind` is `F_WRLCK`, `F_OFD_GETLK` returns a lock that conflicts with a
/// lock for writing.
fn lock_whole(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Locks a file for reading until the file is closed. The lock conflicts only with locks for
/// writing. [`is_locked_for_reading`] detects it.
pub(crate) fn lock_for_reading(file: &File) -> io::Result<()> {
    let lock = lock_whole(libc::F_RDLCK);
    // SAFETY: the kernel reads a `flock`.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }).map(drop)
}

/// Whether the file is [locked](lock_for_reading) through another open file description.
pub(crate) fn is_locked_for_reading(file: &File) -> io::Result<bool> {
    let mut lock = lock_whole(libc::F_WRLCK);
    // SAFETY: the kernel reads and stores a `flock`.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) })?;
    Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
}

/// `fallocate`, repeated when a signal interrupts it.
pub(crate) fn allocate(file: &File, mode: i32, offset: u64, size: u64) -> io::Result<()> {
    loop {
        // SAFETY: no pointer is passed.
        let returned = unsafe {
            libc::fallocate(file.as_raw_fd(), mode, offset as libc::off_t, size as libc::off_t)
        };
        match check(returned) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map(drop),
        }
    }
}

/// Makes everything durable that was written to a file's file system, including all names.
pub(crate) fn flush_file_system(file: &File) -> io::Result<()> {
    // SAFETY: no pointer is passed.
    check(unsafe { libc::syncfs(file.as_raw_fd()) }).map(drop)
}

/// Number of bytes that this process may still use on a file's file system; `None` if the file
/// system does not report it.
pub(crate) fn free_space(file: &File) -> io::Result<Option<u64>> {
    // SAFETY: a `statvfs` consists of integers, for which zero is a valid value.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `found` is a `statvfs` to write to.
    check(unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut found) })?;
    Ok((found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize)))
}

/// Start and end of the first range at or after `at` that is not a hole, as far as the file system
/// reports holes; `None` if there is no such range.
pub(crate) fn next_data(file: &File, at: u64) -> io::Result<Option<(u64, u64)>> {
    let seek = |at: u64, whence| {
        // SAFETY: no pointer is passed. The call changes the file position, which nothing uses.
        let found = unsafe { libc::lseek(file.as_raw_fd(), at as libc::off_t, whence) };
        if found < 0 { Err(io::Error::last_os_error()) } else { Ok(found as u64) }
    };
    match seek(at, libc::SEEK_DATA) {
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        start => {
            let start = start?;
            Ok(Some((start, seek(start, libc::SEEK_HOLE)?)))
        }
    }
}

/// Whether some part of a file has no blocks of its own, because it is a hole or because its data
/// is compressed. Blocks that are reserved but unwritten count as a hole.
pub(crate) fn has_holes(file: &File) -> io::Result<bool> {
    let metadata = file.metadata()?;
    if metadata.blocks() * 512 < metadata.len() {
        return Ok(true);
    }
    // `blocks` also counts the file system's own blocks, and perhaps blocks after the end of the
    // file. So the count can be large enough although there is a hole.
    let first = next_data(file, 0)?;
    Ok(first.is_none_or(|(start, end)| start > 0 || end < metadata.len()))
}

/// Makes btrfs overwrite the blocks of a file in place, without checksums. The file must be new and
/// empty.
pub(crate) fn set_no_copy_on_write(file: &File) -> io::Result<()> {
    let flags = flags(file)? | FS_NOCOW_FL;
    // SAFETY: the call reads a `long` at the pointer, which points to a `long`.
    check(unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_SETFLAGS, &raw const flags) })?;
    Ok(())
}

/// Reads or writes once at an offset of a file. The return value is like `res` of an io_uring
/// completion: the number of bytes moved, or a negative error number.
pub(crate) fn transfer(file: &File, buffer: &mut [u8], offset: u64, kind: Transfer) -> i32 {
    let vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let (fd, offset) = (file.as_raw_fd(), offset as libc::off_t);
    loop {
        // SAFETY: the vector describes `buffer`, which nothing else accesses during the call.
        let moved = unsafe {
            match kind {
                Transfer::Read => libc::preadv(fd, &raw const vector, 1, offset),
                Transfer::Write => libc::pwritev(fd, &raw const vector, 1, offset),
                Transfer::DurableWrite => {
                    libc::pwritev2(fd, &raw const vector, 1, offset, libc::RWF_DSYNC)
                }
            }
        };
        if moved >= 0 {
            return moved as i32;
        }
        let number = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        if number != libc::EINTR {
            return -number;
        }
    }
}

/// The kind of a [`transfer`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transfer {
    Read,
    Write,
    DurableWrite,
}

/// Checks that a file that was opened with `O_DIRECT` can be read with direct I/O. Some file
/// systems accept the flag, but then refuse to read. The error is then `EINVAL`.
pub(crate) fn try_direct_read(file: &File) -> io::Result<()> {
    let mut buffer = Buffer::zeroed(1);
    match transfer(file, &mut buffer, 0, Transfer::Read) {
        0.. => Ok(()),
        number => Err(io::Error::from_raw_os_error(-number)),
    }
}

/// Waits until a descriptor is readable, but no longer than `timeout`. Returns whether the
/// descriptor is readable.
pub fn is_readable(fd: BorrowedFd<'_>, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        let left = i32::try_from(left).unwrap_or(i32::MAX);
        // SAFETY: the pointer points to one entry.
        match check(unsafe { libc::poll(&raw mut entry, 1, left) }) {
            Ok(_) => return entry.revents & libc::POLLIN != 0,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => panic!("an open descriptor could not be polled: {error}"),
        }
    }
}

/// Sets the scheduling policy, niceness and time slice of the calling thread. The slice is in
/// nanoseconds.
pub(crate) fn set_schedule(policy: libc::c_int, niceness: i32, slice_ns: u64) -> io::Result<()> {
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: policy as u32,
        sched_flags: 0,
        sched_nice: niceness,
        sched_priority: 0,
        sched_runtime: slice_ns,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: 0 means the calling thread. The kernel reads `size` bytes.
    let returned = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    check(returned as libc::c_int).map(drop)
}

/// The time slice of the calling thread, in nanoseconds.
#[cfg(test)]
pub(crate) fn slice_ns() -> io::Result<u64> {
    // SAFETY: the structure consists of numbers, for which zero is a valid value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: 0 means the calling thread. The kernel stores at most `size` bytes.
    let returned =
        unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    check(returned as libc::c_int).map(|_| attributes.sched_runtime)
}
