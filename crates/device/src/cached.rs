//! How much of a file the page cache holds (`cachestat`, Linux 6.5).

#![expect(unsafe_code, reason = "system calls are foreign functions")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `__NR_cachestat`, the same on every architecture.
const CACHESTAT: libc::c_long = 451;

/// The kernel's `struct cachestat_range`. A length of zero means up to the end of the file.
#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// The kernel's `struct cachestat`.
#[repr(C)]
#[derive(Default)]
struct Counts {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Number of a file's pages in the page cache; `None` if the kernel can't report it. The more pages
/// there are, the longer the call takes.
pub fn cached_pages(file: impl AsFd) -> Option<u64> {
    let range = Range { offset: 0, length: 0 };
    let mut counts = Counts::default();
    let (fd, range, found) = (file.as_fd().as_raw_fd(), &raw const range, &raw mut counts);
    // SAFETY: the kernel reads a range at one pointer, and stores five numbers at the other.
    let result = unsafe { libc::syscall(CACHESTAT, fd, range, found, 0) };
    if result == -1 {
        debug_assert_ne!(io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
        return None;
    }
    Some(counts.cached)
}
