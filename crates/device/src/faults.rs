//! Handles faults of mapped files. A fault happens when the process accesses a page that the kernel
//! can't provide: the file system has no space for a store, the sector can't be read, the file was
//! truncated, or the device is gone. The kernel then sends the signal SIGBUS, which would end the
//! process in the middle of a store.
//!
//! If the page is in a mapping of ours, a signal handler keeps the process alive. The handler
//! replaces the page by private memory with the file's contents, as far as they can be read. Then
//! the processor repeats the access. Bytes that were stored before the fault are still in the file.
//! Bytes that are stored in the replaced page die with the process. So after each store to a
//! mapping, the caller must check the [`Faults`] of this mapping. Any other SIGBUS is passed to the
//! previous handler.

#![expect(unsafe_code, reason = "a signal handler replaces mapped memory")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence,
};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libc::{c_int, c_void, siginfo_t};
use slimio_planted::is_planted;

/// Counts of the faulty pages of a mapping, since it was mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Number of pages that were replaced by private memory. Bytes stored in them die with the
    /// process.
    pub replaced: usize,
    /// How many of the replaced pages hold zeros, because their contents could not be read.
    pub lost: usize,
}

/// A mapped range: its file or block device, its start and its end.
#[derive(Debug)]
struct Place {
    file: FileId,
    start: u64,
    end: u64,
    entry: &'static Entry,
}

/// Identifies a file or block device independently of its name. The fields are: whether it is a
/// block device, the device number, and the inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId(bool, u64, u64);

impl FileId {
    fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(if metadata.file_type().is_block_device() {
            Self(true, metadata.rdev(), 0)
        } else {
            Self(false, metadata.dev(), metadata.ino())
        })
    }
}

/// A mapping, in the list that the handler searches. Entries are never freed, because the handler
/// may read any entry at any moment. Unused entries are reused.
#[derive(Debug, Default)]
struct Entry {
    /// Odd while the entry's other fields are being changed.
    version: AtomicUsize,
    start: AtomicUsize,
    /// Zero when the entry is unused.
    size: AtomicUsize,
    descriptor: AtomicI32,
    offset: AtomicU64,
    replaced: AtomicUsize,
    lost: AtomicUsize,
    /// The next entry of the list. Set before this entry is added to the list.
    next: AtomicPtr<Entry>,
}

/// Head of the list of all entries.
static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(null_mut());

/// The present mappings, and the unused entries.
static PLACES: Mutex<(Vec<Place>, Vec<&'static Entry>)> = Mutex::new((Vec::new(), Vec::new()));

fn places() -> MutexGuard<'static, (Vec<Place>, Vec<&'static Entry>)> {
    // The lock is never poisoned, because nothing panics while it is held.
    PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this process has mapped any part of a file or block device.
pub(crate) fn is_mapped(file: &File) -> io::Result<bool> {
    let id = FileId::of(file)?;
    Ok(places().0.iter().any(|place| place.file == id))
}

/// Watches a mapping: as long as this value lives, the mapping's faults are handled and counted.
#[derive(Debug)]
pub(crate) struct Watch(&'static Entry);

impl Watch {
    /// Watches the mapping that begins at `memory` and shows `size` bytes of `file` from `offset`
    /// on. Returns `None` if some of these bytes are mapped already.
    ///
    /// # Safety
    /// The bytes are one shared mapping. The mapping and the file's descriptor live as long as the
    /// watch.
    pub(crate) unsafe fn begin(
        memory: NonNull<u8>,
        size: usize,
        file: &File,
        offset: u64,
    ) -> io::Result<Option<Self>> {
        install()?;
        let id = FileId::of(file)?;
        let end = offset + size as u64;
        let mut places = places();
        let is_other =
            |place: &Place| place.file != id || place.end <= offset || end <= place.start;
        if !places.0.iter().all(is_other) {
            return Ok(None);
        }
        let entry = places.1.pop().unwrap_or_else(|| {
            let entry: &'static Entry = Box::leak(Box::default());
            entry.next.store(ENTRIES.load(Ordering::Relaxed), Ordering::Relaxed);
            // This store can't lose an entry, because only this function changes the list, and only
            // under the lock.
            ENTRIES.store(std::ptr::from_ref(entry).cast_mut(), Ordering::Release);
            entry
        });
        entry.change(|| {
            entry.start.store(memory.as_ptr() as usize, Ordering::Relaxed);
            entry.size.store(size, Ordering::Relaxed);
            entry.descriptor.store(file.as_raw_fd(), Ordering::Relaxed);
            entry.offset.store(offset, Ordering::Relaxed);
            entry.replaced.store(0, Ordering::Relaxed);
            entry.lost.store(0, Ordering::Relaxed);
        });
        places.0.push(Place { file: id, start: offset, end, entry });
        Ok(Some(Self(entry)))
    }

    /// The faults of the mapping's pages, including those of the last store.
    pub(crate) fn faults(&self) -> Faults {
        // A store and the handling of its fault are on the same thread. So only the compiler could
        // make the following loads happen before the store.
        compiler_fence(Ordering::SeqCst);
        if is_planted("fault-still-kept") {
            return Faults::default();
        }
        Faults {
            replaced: self.0.replaced.load(Ordering::Relaxed),
            lost: self.0.lost.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut places = places();
        self.0.change(|| self.0.size.store(0, Ordering::Relaxed));
        places.0.retain(|place| !std::ptr::eq(place.entry, self.0));
        places.1.push(self.0);
    }
}

impl Entry {
    /// Changes the entry. The caller holds the lock of [`PLACES`].
    fn change(&self, change: impl FnOnce()) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        self.version.store(version + 2, Ordering::Release);
    }

    /// If the page at `page` belongs to this mapping, returns the file's descriptor and the page's
    /// offset in the file.
    fn source(&self, page: usize) -> Option<(c_int, u64)> {
        let version = self.version.load(Ordering::Acquire);
        let (start, size) = (self.start.load(Ordering::Relaxed), self.size.load(Ordering::Relaxed));
        let descriptor = self.descriptor.load(Ordering::Relaxed);
        let offset = self.offset.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        // An entry that is being changed can be skipped: the fault is in a mapping that still
        // exists, and the entry of such a mapping does not change.
        let is_whole = version.is_multiple_of(2) && version == self.version.load(Ordering::Relaxed);
        let at = page.checked_sub(start).filter(|&at| is_whole && at < size)?;
        Some((descriptor, offset + at as u64))
    }
}

/// The previous handler of the signal.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler, once.
fn install() -> io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut is_installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *is_installed {
        return Ok(());
    }
    // SAFETY: the structures consist of integers and a function's address, for which zero is a
    // valid value. The kernel stores the present settings in the first structure. The new handler
    // does only what a signal handler may do: it takes no lock, and no memory from an allocator.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        check(libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before))?;
        BEFORE.get_or_init(|| before);
        let mut ours: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_signal;
        ours.sa_sigaction = handler as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        check(libc::sigaction(libc::SIGBUS, &raw const ours, null_mut()))?;
    }
    *is_installed = true;
    Ok(())
}

fn check(returned: c_int) -> io::Result<()> {
    if returned == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

extern "C" fn on_signal(number: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the arguments that SA_SIGINFO promises, and `si_addr` is valid if
    // the signal has one of the two codes below. `errno` belongs to the interrupted code, so it is
    // restored.
    unsafe {
        let is_fault = matches!((*info).si_code, libc::BUS_ADRERR | libc::BUS_MCEERR_AR);
        let errno = *libc::__errno_location();
        if is_fault && replace((*info).si_addr() as usize) {
            *libc::__errno_location() = errno;
            return;
        }
    }
    pass_on(number, info, context);
}

/// If the page at `address` is in a mapping of ours, replaces the page by private memory. Returns
/// whether the page was replaced.
fn replace(address: usize) -> bool {
    // SAFETY: `sysconf` only returns a number.
    let page_size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let page = address & !(page_size - 1);
    let mut next = ENTRIES.load(Ordering::Acquire);
    // SAFETY: entries are never freed.
    while let Some(entry) = unsafe { next.as_ref() } {
        if let Some((descriptor, offset)) = entry.source(page) {
            // SAFETY: the page is in a shared mapping of ours, and the mapping lives as long as
            // anything can store to it.
            return match unsafe { replace_page(page, page_size, descriptor, offset) } {
                Some(is_known) => {
                    entry.lost.fetch_add(usize::from(!is_known), Ordering::Relaxed);
                    entry.replaced.fetch_add(1, Ordering::Relaxed);
                    true
                }
                None => false,
            };
        }
        next = entry.next.load(Ordering::Relaxed);
    }
    false
}

/// Replaces a page, in one step, by private memory with the file's contents. Returns whether the
/// contents could be read; `None` if the kernel has no memory.
///
/// # Safety
/// The page is in a shared mapping of the file that `descriptor` refers to, and shows the file's
/// bytes from `offset` on.
unsafe fn replace_page(
    page: usize,
    page_size: usize,
    descriptor: c_int,
    offset: u64,
) -> Option<bool> {
    // SAFETY: the kernel chooses the address, so no existing mapping is touched.
    let new = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(null_mut(), page_size, protection, flags, -1, 0)
    };
    if new == libc::MAP_FAILED {
        return None;
    }
    let mut done = 0;
    while done < page_size {
        // SAFETY: `new` has `page_size` bytes, and nothing else points at them.
        let read = unsafe {
            let (to, at) = (new.byte_add(done), offset as libc::off_t + done as libc::off_t);
            libc::pread(descriptor, to, page_size - done, at)
        };
        match read {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 | 0 => break,
            read => done += read as usize,
        }
    }
    // SAFETY: the caller promises that the replaced page is in a mapping of ours. `new` is moved to
    // that page's address.
    let moved = unsafe {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        libc::mremap(new, page_size, page_size, flags, page as *mut c_void)
    };
    (moved != libc::MAP_FAILED).then_some(done == page_size)
}

/// Passes the signal to the previous handler.
fn pass_on(number: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let before = BEFORE.get();
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: the structure consists of integers. The signal is blocked until this handler
        // returns. Then the signal ends the process.
        unsafe {
            let mut default: libc::sigaction = std::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(number, &raw const default, null_mut());
            libc::raise(number);
        }
        return;
    }
    let has_info = before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0);
    // SAFETY: `handler` was installed for this signal before, and its flags say which arguments it
    // takes.
    unsafe {
        if has_info {
            let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                std::mem::transmute(handler);
            handler(number, info, context);
        } else {
            let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
            handler(number);
        }
    }
}

/// After this call, a write beyond the process's limit for file sizes (`RLIMIT_FSIZE`) fails with
/// an error. Without this call, the kernel would send a signal that ends the process.
pub fn ignore_file_size_signal() {
    // SAFETY: the disposition "ignored" has no handler that could do anything.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// After this call, the process lives on if its terminal is closed. redis-server makes the same
/// call.
pub fn ignore_hang_up_signal() {
    // SAFETY: the disposition "ignored" has no handler that could do anything.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::process::ExitStatusExt;
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::{Buffer, Directory, LBA_SIZE, MappedFile, OpenError, PathOptions};

    const PAGES: usize = 8;
    const SIZE: usize = PAGES * LBA_SIZE;

    /// A directory with a mapped file of eight pages. Each byte of a page holds the page's number,
    /// counted from one.
    fn filled(directory: &Path) -> (Directory, MappedFile, Vec<Buffer>) {
        let mut directory = Directory::open(directory, PathOptions::default())
            .expect("no other test uses the directory");
        let mut mapped = directory.create_mapped("buffers", SIZE).expect("there is room");
        let mut buffers = mapped.buffers(SIZE / 2);
        for (index, page) in
            buffers.iter_mut().flat_map(|buffer| buffer.chunks_exact_mut(LBA_SIZE)).enumerate()
        {
            page.fill(index as u8 + 1);
        }
        (directory, mapped, buffers)
    }

    fn cut(directory: &Path, pages: usize) {
        let file = OpenOptions::new().write(true).open(directory.join("buffers"));
        let cut = file.and_then(|file| file.set_len((pages * LBA_SIZE) as u64));
        cut.expect("the length can be set");
    }

    #[test]
    fn a_page_that_is_gone_is_no_signal_and_no_longer_kept() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let (_directory, _mapped, mut buffers) = filled(place.path());
        assert_eq!(buffers[0].faults(), Faults::default());
        assert!(buffers.iter().all(Buffer::outlives_process));
        cut(place.path(), 2);
        buffers[0][0] = 9;
        assert_eq!(
            buffers[0].faults(),
            Faults::default(),
            "a page that is in the file must have no fault"
        );

        buffers[0][2 * LBA_SIZE + 7] = 9;
        assert_eq!(buffers[0].faults(), Faults { replaced: 1, lost: 1 });
        assert!(
            !buffers.iter().any(Buffer::outlives_process),
            "a fault must concern the whole mapping"
        );
        assert_eq!(buffers[0][2 * LBA_SIZE..][..9], [0, 0, 0, 0, 0, 0, 0, 9, 0]);
        buffers[0][2 * LBA_SIZE] = 3;
        assert_eq!(
            buffers[0].faults(),
            Faults { replaced: 1, lost: 1 },
            "a page must be counted once"
        );
        assert_eq!(buffers[0][..LBA_SIZE].iter().max(), Some(&9), "other pages must be unchanged");
        // Reading a page that is gone must not end the process, either.
        assert_eq!(buffers[1].iter().max(), Some(&0));
        assert_eq!(buffers[1].faults(), Faults { replaced: 5, lost: 5 });
        // `let_go` must keep replaced pages, because their bytes are in no file.
        buffers[0].let_go();
        assert_eq!(buffers[0][2 * LBA_SIZE], 3);
    }

    #[test]
    fn what_the_file_still_holds_is_there_behind_a_fault() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let (_directory, _mapped, mut buffers) = filled(place.path());
        // The file is whole in this test, as it is when a store fails for lack of space.
        let page = buffers[0].as_mut_ptr().wrapping_add(LBA_SIZE) as usize;
        assert!(replace(page + 5), "the page is in a mapping");
        assert_eq!(buffers[0].faults(), Faults { replaced: 1, lost: 0 });
        assert!(buffers[0][LBA_SIZE..2 * LBA_SIZE].iter().all(|&byte| byte == 2));
        buffers[0][LBA_SIZE] = 9;
        let file = std::fs::read(place.path().join("buffers")).expect("the file can be read");
        assert_eq!(file[LBA_SIZE], 2, "a store to a replaced page must not be in the file");
        buffers[0][2 * LBA_SIZE] = 9;
        let file = std::fs::read(place.path().join("buffers")).expect("the file can be read");
        assert_eq!(file[2 * LBA_SIZE], 9, "a store to another page must be in the file");
    }

    #[test]
    fn what_is_unmapped_is_watched_no_more() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let (mut directory, mapped, buffers) = filled(place.path());
        let again = directory.open_mapped("buffers").err();
        assert!(
            matches!(again, Some(OpenError::Unsuitable { .. })),
            "a mapped file must not be mapped again: {again:?}"
        );
        let path = directory.open_path("buffers").err();
        assert!(
            matches!(path, Some(OpenError::Unsuitable { .. })),
            "a mapped file must not get a path: {path:?}"
        );
        drop((mapped, buffers));
        let is_free = |entry: &&Entry| entry.size.load(Ordering::Relaxed) == 0;
        assert!(places().1.iter().all(is_free));
        let path = directory.open_path("buffers").expect("the file is not mapped any more");
        let mapped = directory.open_mapped("buffers").err();
        assert!(
            matches!(mapped, Some(OpenError::Unsuitable { .. })),
            "a file with an open path must not be mapped: {mapped:?}"
        );
        drop(path);
        let mapped = directory.open_mapped("buffers").expect("no path is left");
        drop(directory);
        let lock = Directory::open(place.path(), PathOptions::default()).err();
        assert!(
            matches!(lock, Some(OpenError::InUse { .. })),
            "the mapping must keep the lock: {lock:?}"
        );
        drop(mapped);
        Directory::open(place.path(), PathOptions::default()).expect("the directory is free");
    }

    /// Runs one of these tests in a process of its own, with `SLIMIO_FAULT` set.
    fn alone(name: &str) -> std::process::ExitStatus {
        let program = std::env::current_exe().expect("the test's program has a path");
        let name = format!("faults::tests::{name}");
        let mut command = Command::new(program);
        command.args(["--exact", &name]).env("SLIMIO_FAULT", name);
        command.output().expect("the test's program can be started").status
    }

    #[test]
    fn a_fault_elsewhere_ends_the_process_as_before() {
        let name = "a_fault_elsewhere_ends_the_process_as_before";
        if std::env::var_os("SLIMIO_FAULT").is_none() {
            assert_eq!(alone(name).signal(), Some(libc::SIGBUS));
            return;
        }
        let place = tempfile::tempdir().expect("a directory for the test");
        let (_directory, _mapped, _buffers) = filled(place.path());
        let file = tempfile::tempfile().expect("a file for the test");
        file.set_len(LBA_SIZE as u64).expect("the file can be made longer");
        let memory = crate::sys::map_shared(&file, 0, LBA_SIZE).expect("the file can be mapped");
        file.set_len(0).expect("the file can be truncated");
        // SAFETY: the page is mapped. The test is about the failure of this store.
        unsafe { memory.as_ptr().write_volatile(1) };
        unreachable!("the store has ended the process");
    }

    #[test]
    fn a_signal_that_somebody_sends_ends_the_process_as_before() {
        let name = "a_signal_that_somebody_sends_ends_the_process_as_before";
        if std::env::var_os("SLIMIO_FAULT").is_none() {
            assert_eq!(alone(name).signal(), Some(libc::SIGBUS));
            return;
        }
        let place = tempfile::tempdir().expect("a directory for the test");
        let (_directory, _mapped, _buffers) = filled(place.path());
        // SAFETY: no pointer is passed. The signal is sent twice, because the first one only makes
        // the previous handler (that of Rust's standard library) restore the default action.
        unsafe { (libc::raise(libc::SIGBUS), libc::raise(libc::SIGBUS)) };
        unreachable!("the signal has ended the process");
    }
}
