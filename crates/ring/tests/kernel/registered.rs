//! Tests of transfers from and to registered memory.

#![expect(unsafe_code, reason = "memory is mapped and shared with the ring")]

use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use slimio_ring::{Errno, Memory, Outcome, Ring, Setup, TransferError};

use crate::common::PATIENCE;

const SIZE: usize = 16 << 12;

/// Mapped memory.
struct Mapped(NonNull<u8>);

// SAFETY: the memory is read and written through raw pointers, by one thread.
unsafe impl Send for Mapped {}
// SAFETY: the memory is read and written through raw pointers, by one thread.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps `file`, or private memory if there is no file.
    fn new(file: Option<&std::fs::File>) -> Arc<Self> {
        let flags = match file {
            Some(_) => libc::MAP_SHARED,
            None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        };
        let fd = file.map_or(-1, std::os::fd::AsRawFd::as_raw_fd);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so no existing mapping is touched.
        let memory = unsafe { libc::mmap(null_mut(), SIZE, protection, flags, fd, 0) };
        assert!(memory != libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Arc::new(Self(NonNull::new(memory.cast()).expect("the address of a mapping is not zero")))
    }

    fn fill(&self, byte: u8) {
        // SAFETY: `SIZE` bytes are mapped, and nothing is in flight.
        unsafe { self.0.as_ptr().write_bytes(byte, SIZE) };
    }

    /// Gives the process new pages, full of zeros, at these addresses. The old pages stay
    /// registered.
    fn change_pages(&self) {
        // SAFETY: the pages are our own private mapping.
        let advised = unsafe { libc::madvise(self.0.as_ptr().cast(), SIZE, libc::MADV_DONTNEED) };
        assert_eq!(advised, 0, "{}", std::io::Error::last_os_error());
    }

    fn register<T: Copy>(self: &Arc<Self>, ring: &mut Ring<T, Piece>) -> Result<(), Errno> {
        // SAFETY: the memory stays mapped until the last clone of `self` is dropped, and the ring
        // gets a clone.
        unsafe { ring.register(self.0, SIZE, self.clone()) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nothing points to the mapping any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), SIZE) };
    }
}

/// A part of a [`Mapped`].
#[derive(Clone)]
struct Piece(Arc<Mapped>, Range<usize>);

// SAFETY: only one piece is in flight at a time, and its `Arc` keeps the memory mapped.
unsafe impl Memory for Piece {
    fn address(&mut self) -> *mut u8 {
        self.0.0.as_ptr().wrapping_add(self.1.start)
    }

    fn size(&self) -> usize {
        self.1.len()
    }
}

fn ring() -> Option<Ring<(), Piece>> {
    match Ring::new(Setup { submissions: 8, completions: 16, ..Setup::default() }) {
        Ok(ring) => Some(ring),
        Err(refused) => {
            eprintln!("SKIPPED: {refused}");
            None
        }
    }
}

fn transferred(ring: &mut Ring<(), Piece>) -> Result<(), TransferError> {
    let mut completions = Vec::new();
    while completions.is_empty() {
        ring.submit_and_wait(1, Some(PATIENCE)).expect("the ring works");
        ring.reap(&mut completions);
    }
    let Outcome::Transferred { result, .. } = completions.remove(0).outcome else {
        panic!("the outcome is not that of a transfer")
    };
    result
}

/// Registered pages stay registered, even if the process later gets other pages at the same
/// addresses. So the test changes the pages after registering them. A transfer that looked up the
/// pages at its addresses would use the new pages, and the test would fail.
#[test]
fn transfers_within_registered_memory_use_the_pages_that_were_registered() {
    let Some(mut ring) = ring() else { return };
    let file = tempfile::tempfile().expect("a file for the test");
    let fd = ring.adopt(file.try_clone().expect("descriptors are left").into());
    let mapped = Mapped::new(None);
    mapped.fill(7);
    if let Err(errno) = mapped.register(&mut ring) {
        eprintln!("SKIPPED: no more memory can be locked ({errno})");
        return;
    }
    mapped.change_pages();
    let within = Piece(mapped.clone(), 4096..3 * 4096);
    ring.write(fd, within.clone(), 0, false, ());
    assert_eq!(transferred(&mut ring), Ok(()));
    let mut found = vec![0; 2 * 4096];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut found, 0).expect("the file was written");
    assert!(found.iter().all(|&byte| byte == 7), "the transfer has used the new pages");
    ring.read(fd, within.clone(), 0, ());
    assert_eq!(transferred(&mut ring), Ok(()));
    // SAFETY: the byte is within the mapped memory, and nothing is in flight.
    assert_eq!(unsafe { *mapped.0.as_ptr().add(4096) }, 0, "the transfer has used the new pages");
}

#[test]
fn transfers_of_other_memory_go_on_as_before() {
    let Some(mut ring) = ring() else { return };
    let file = tempfile::tempfile().expect("a file for the test");
    let fd = ring.adopt(file.try_clone().expect("descriptors are left").into());
    let (mapped, other) = (Mapped::new(None), Mapped::new(None));
    if mapped.register(&mut ring).is_err() {
        eprintln!("SKIPPED: no more memory can be locked");
        return;
    }
    other.fill(3);
    ring.write(fd, Piece(other.clone(), 0..SIZE), 0, true, ());
    assert_eq!(transferred(&mut ring), Ok(()));
    other.fill(0);
    ring.read(fd, Piece(other.clone(), 0..SIZE), 0, ());
    assert_eq!(transferred(&mut ring), Ok(()));
    // SAFETY: the byte is within the mapped memory, and nothing is in flight.
    assert_eq!(unsafe { *other.0.as_ptr().add(SIZE - 1) }, 3);
}

#[test]
fn memory_that_a_file_is_mapped_to_is_refused() {
    let Some(mut ring) = ring() else { return };
    let place = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).expect("a file for the test");
    place.set_len(SIZE as u64).expect("the file can be made longer");
    let mapped = Mapped::new(Some(&place));
    mapped.fill(5);
    // If the file system is in memory, registering may succeed. Transfers must work in either case.
    if let Err(errno) = mapped.register(&mut ring) {
        assert!([libc::EFAULT, libc::EOPNOTSUPP].contains(&errno.number()), "{errno}");
    }
    let fd = ring.adopt(tempfile::tempfile().expect("a file for the test").into());
    ring.write(fd, Piece(mapped.clone(), 0..4096), 0, false, ());
    assert_eq!(transferred(&mut ring), Ok(()));
}
