//! Memory that several processes share, with locks that other processes can still take after the
//! holder has died.
//!
//! The memory is mapped from a file. The file's first block holds a lock for each part. The parts
//! follow, each of whole blocks. If the holder of a lock dies, the next thread can take the lock
//! (`PTHREAD_MUTEX_ROBUST`), and finds the part as the dead holder left it. So the contents of a
//! part must be valid after every single store.

#![expect(unsafe_code, reason = "mapped memory and its locks are accessed through raw pointers")]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use slimio_planted::is_planted;

use crate::{LBA_SIZE, sys};

/// Bytes from one lock to the next. With this distance, each lock has a cache line of its own.
const LOCK_STRIDE: usize = 64;
/// Offsets of two counters, from the start of a lock. They count how often the mutex was unlocked,
/// and how many threads wait for an unlock.
const UNLOCKED: usize = 48;
const WAITERS: usize = 52;
const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= UNLOCKED);
/// A holder that dies wakes no thread. So a waiting thread checks again after this time.
static LOOK_AGAIN: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Memory in several parts, which several processes share.
#[derive(Debug)]
pub struct SharedMemory {
    memory: NonNull<u8>,
    /// The byte range of each part.
    parts: Box<[Range<usize>]>,
    /// A bit for each part whose lock is [held](Self::hold).
    held: AtomicU32,
}

// SAFETY: the memory is mapped until this value is dropped, and its contents are accessed only
// under locks.
unsafe impl Send for SharedMemory {}
// SAFETY: the contents are accessed only under locks.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Size in bytes of a file whose parts have these numbers of blocks.
    pub fn size(parts: &[usize]) -> u64 {
        ((1 + parts.iter().sum::<usize>()) * LBA_SIZE) as u64
    }

    /// Makes the parts in a file and fills them with zeros. The old contents of the file are lost.
    /// No other process may use the file yet.
    ///
    /// # Errors
    /// If the file can't get the needed length, or can't be mapped.
    pub fn create(file: &File, parts: &[usize]) -> io::Result<Self> {
        file.set_len(0)?;
        // Space is allocated now, so a lack of space is an error here. Otherwise a later store to
        // the mapping would end the process.
        sys::allocate(file, 0, 0, Self::size(parts))?;
        let shared = Self::open(file, parts)?;
        for part in 0..parts.len() {
            shared.make_lock(part)?;
        }
        Ok(shared)
    }

    /// Makes memory whose file has no name, so that no other process can open it.
    ///
    /// # Errors
    /// If the kernel has no memory for the parts.
    pub fn private(name: &CStr, parts: &[usize]) -> io::Result<Self> {
        Self::create(&sys::memfd(name)?, parts)
    }

    /// Maps a file that [`create`](Self::create) has made with the same parts. The contents stay as
    /// they are.
    ///
    /// # Errors
    /// If the file has another size (`InvalidData`), or can't be mapped.
    pub fn open(file: &File, parts: &[usize]) -> io::Result<Self> {
        let size = Self::size(parts);
        assert!(parts.len() * LOCK_STRIDE <= LBA_SIZE, "the locks fit into the first block");
        if file.metadata()?.len() != size {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the file's size is not that of its parts",
            ));
        }
        let memory = sys::map_shared(file, 0, size as usize)?;
        // SAFETY: these are the pages that were just mapped.
        unsafe { sys::populate(memory, size as usize) };
        let mut end = LBA_SIZE;
        let parts = parts.iter().map(|lbas| {
            let start = end;
            end += lbas * LBA_SIZE;
            start..end
        });
        Ok(Self { memory, parts: parts.collect(), held: AtomicU32::new(0) })
    }

    /// Waits for the lock of a part.
    ///
    /// # Errors
    /// If this thread holds the lock already (`EDEADLK`).
    pub fn lock(&self, part: usize) -> io::Result<Part<'_>> {
        // SAFETY: `create` has made this lock, in memory that is mapped.
        let result = unsafe { libc::pthread_mutex_lock(self.mutex(part)) };
        self.locked(part, result)
    }

    /// Waits for the lock of a part, but no longer than `patience`. Returns `None` if the lock is
    /// still held after this time.
    pub fn lock_for(&self, part: usize, patience: Duration) -> Option<Part<'_>> {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the calls store and read a time at the pointer, which points to a `timespec`.
        // `create` has made the lock, in memory that is mapped.
        let result = unsafe {
            libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now);
            let end = Duration::new(now.tv_sec as u64, now.tv_nsec as u32) + patience;
            now.tv_sec = end.as_secs() as libc::time_t;
            now.tv_nsec = libc::c_long::from(end.subsec_nanos());
            libc::pthread_mutex_timedlock(self.mutex(part), &raw const now)
        };
        self.locked(part, result).ok()
    }

    /// Takes the lock of a part. Returns `None` if the lock is held.
    pub fn try_lock(&self, part: usize) -> Option<Part<'_>> {
        // SAFETY: `create` has made this lock, in memory that is mapped.
        let result = unsafe { libc::pthread_mutex_trylock(self.mutex(part)) };
        self.locked(part, result).ok()
    }

    /// Takes the lock of a part. If the lock is held, returns `None`, but only after the lock was
    /// unlocked, or some time has passed. The caller then tries again.
    pub fn lock_or_wait(&self, part: usize) -> Option<Part<'_>> {
        let [unlocked, waiters] = self.counters(part);
        let before = unlocked.load(Ordering::SeqCst);
        if let Some(locked) = self.try_lock(part) {
            return Some(locked);
        }
        waiters.fetch_add(1, Ordering::SeqCst);
        let (address, timeout) = (unlocked.as_ptr(), &raw const LOOK_AGAIN);
        // SAFETY: the kernel reads a number and a time at the pointers, which point to them.
        unsafe { libc::syscall(libc::SYS_futex, address, libc::FUTEX_WAIT, before, timeout) };
        waiters.fetch_sub(1, Ordering::SeqCst);
        None
    }

    /// Counts an unlock of a part, and wakes the threads that wait for it.
    fn unlocked(&self, part: usize) {
        let [unlocked, waiters] = self.counters(part);
        unlocked.fetch_add(1, Ordering::SeqCst);
        if waiters.load(Ordering::SeqCst) > 0 {
            let (address, all) = (unlocked.as_ptr(), libc::c_int::MAX);
            // SAFETY: the kernel uses the address only to find the waiting threads.
            unsafe { libc::syscall(libc::SYS_futex, address, libc::FUTEX_WAKE, all) };
        }
    }

    fn counters(&self, part: usize) -> [&AtomicU32; 2] {
        let lock = self.mutex(part).cast::<u8>();
        // SAFETY: both counters are after the mutex, in mapped memory, and are accessed only as
        // atomics.
        [UNLOCKED, WAITERS].map(|offset| unsafe { AtomicU32::from_ptr(lock.add(offset).cast()) })
    }

    /// Takes the lock of a part, and holds it until this value is dropped or this thread ends in
    /// any way.
    ///
    /// # Errors
    /// If this thread holds the lock already (`EDEADLK`).
    pub fn hold(&self, part: usize) -> io::Result<()> {
        self.lock(part).map(std::mem::forget)?;
        self.held.fetch_or(1 << part, Ordering::Relaxed);
        Ok(())
    }

    /// Whether a living thread holds the lock of a part. Makes a system call only if a thread waits
    /// for the lock.
    pub fn is_held(&self, part: usize) -> bool {
        self.try_lock(part).is_none()
    }

    fn locked(&self, part: usize, result: libc::c_int) -> io::Result<Part<'_>> {
        match result {
            0 => {}
            libc::EOWNERDEAD => {
                // SAFETY: this thread holds the lock, and the previous holder has died.
                unsafe { libc::pthread_mutex_consistent(self.mutex(part)) };
            }
            error => return Err(io::Error::from_raw_os_error(error)),
        }
        Ok(Part { shared: self, number: part, _thread: PhantomData })
    }

    fn make_lock(&self, part: usize) -> io::Result<()> {
        let check = |result| match result {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        };
        let mut kind = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let kind = kind.as_mut_ptr();
        // SAFETY: the attributes are initialised before they are changed and used, and are
        // destroyed last. The lock's memory is mapped, and nothing uses it yet.
        unsafe {
            check(libc::pthread_mutexattr_init(kind))?;
            let made = check(libc::pthread_mutexattr_settype(kind, libc::PTHREAD_MUTEX_ERRORCHECK))
                .and_then(|()| {
                    check(libc::pthread_mutexattr_setpshared(kind, libc::PTHREAD_PROCESS_SHARED))
                })
                .and_then(|()| {
                    check(libc::pthread_mutexattr_setrobust(kind, libc::PTHREAD_MUTEX_ROBUST))
                })
                .and_then(|()| check(libc::pthread_mutex_init(self.mutex(part), kind)));
            libc::pthread_mutexattr_destroy(kind);
            made
        }
    }

    fn mutex(&self, part: usize) -> *mut libc::pthread_mutex_t {
        assert!(part < self.parts.len(), "the memory has no such part");
        // SAFETY: the first block is mapped, and has the locks of all parts.
        unsafe { self.memory.add(part * LOCK_STRIDE) }.as_ptr().cast()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let held = if is_planted("held-unmapped") { 0 } else { self.held.load(Ordering::Relaxed) };
        for part in (0..self.parts.len()).filter(|part| held & (1 << part) != 0) {
            // SAFETY: `create` has made this lock, in memory that is mapped.
            if unsafe { libc::pthread_mutex_unlock(self.mutex(part)) } != 0 {
                // Another thread holds the lock. The C library keeps a linked list of the locks
                // that a thread holds, and the links are in this memory. So the memory must stay
                // mapped.
                return;
            }
            self.unlocked(part);
        }
        let size = self.parts.last().map_or(LBA_SIZE, |part| part.end);
        // SAFETY: the memory was mapped in `open` with this size. Every `Part` borrows this value.
        unsafe { sys::unmap(self.memory, size) };
    }
}

/// The bytes of a part. The lock of the part is held until this value is dropped.
#[derive(Debug)]
pub struct Part<'a> {
    shared: &'a SharedMemory,
    number: usize,
    /// Keeps this value on its thread, because only the thread that took the lock may unlock it.
    _thread: PhantomData<*mut u8>,
}

impl Part<'_> {
    fn bytes(&self) -> NonNull<[u8]> {
        let range = &self.shared.parts[self.number];
        // SAFETY: the part is inside the mapping.
        NonNull::slice_from_raw_parts(unsafe { self.shared.memory.add(range.start) }, range.len())
    }
}

impl Deref for Part<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are mapped while `shared` is borrowed. Only the holder of the lock
        // accesses them.
        unsafe { self.bytes().as_ref() }
    }
}

impl DerefMut for Part<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the bytes are mapped while `shared` is borrowed. Only the holder of the lock
        // accesses them.
        unsafe { self.bytes().as_mut() }
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread holds the lock.
        unsafe { libc::pthread_mutex_unlock(self.shared.mutex(self.number)) };
        self.shared.unlocked(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: &[usize] = &[1, 2, 0];

    #[test]
    fn parts_are_apart_and_each_is_locked() {
        let file = sys::memfd(c"shared").unwrap();
        let shared = SharedMemory::create(&file, PARTS).unwrap();
        let other = SharedMemory::open(&file, PARTS).unwrap();
        let mut first = shared.lock(0).unwrap();
        first.fill(1);
        let mut second = shared.lock(1).unwrap();
        second.fill(2);
        assert_eq!([first.len(), second.len()], [LBA_SIZE, 2 * LBA_SIZE]);
        assert!(
            second.as_ptr().addr().is_multiple_of(LBA_SIZE),
            "a part is aligned for direct I/O"
        );
        assert!(other.try_lock(0).is_none());
        assert!(other.lock_for(0, Duration::from_millis(5)).is_none());
        let error = shared.lock(0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EDEADLK));
        drop(first);
        assert!(other.lock(0).unwrap().iter().all(|byte| *byte == 1));
        assert!(other.lock_for(0, Duration::from_millis(5)).is_some());
        drop(second);
        assert!(other.lock(1).unwrap().iter().all(|byte| *byte == 2));
    }

    #[test]
    fn a_lock_whose_holder_has_died_is_taken_by_the_next() {
        let shared = SharedMemory::private(c"shared", PARTS).unwrap();
        std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                shared.lock(0).unwrap()[0] = 7;
                shared.hold(0).unwrap();
                assert!(shared.is_held(0));
            });
            holder.join().unwrap();
        });
        assert!(!shared.is_held(0), "the holder has died");
        assert_eq!(shared.lock(0).unwrap()[0], 7);
        assert!(!shared.is_held(2));
    }

    /// The C library keeps a thread's locks in a linked list whose links are in the locks' memory.
    /// The list must stay valid when the memory of one of the locks is dropped.
    #[test]
    fn memory_whose_lock_is_held_can_be_dropped() {
        for dropped in 0..3 {
            let mut all: Vec<SharedMemory> =
                (0..3).map(|_| SharedMemory::private(c"shared", PARTS).unwrap()).collect();
            for shared in &all {
                shared.hold(2).unwrap();
            }
            drop(all.remove(dropped));
            for shared in &all {
                shared.lock(0).unwrap()[0] = 1;
            }
            let new = SharedMemory::private(c"shared", PARTS).unwrap();
            new.hold(2).unwrap();
            all.push(new);
            for shared in &all {
                shared.lock(0).unwrap()[0] = 1;
                assert!(shared.is_held(2));
            }
        }
        // A thread that can't unlock the lock must leave the memory mapped.
        let held = SharedMemory::private(c"shared", PARTS).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| held.hold(2).unwrap());
        });
        drop(held);
    }

    #[test]
    fn who_waits_goes_on_when_the_lock_is_given_up() {
        let shared = SharedMemory::private(c"shared", PARTS).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let mut part = std::iter::repeat_with(|| shared.lock_or_wait(0))
                            .find_map(|locked| locked)
                            .unwrap();
                        let count = u32::from_le_bytes(part[..4].try_into().unwrap());
                        part[..4].copy_from_slice(&(count + 1).to_le_bytes());
                    }
                });
            }
        });
        assert_eq!(shared.lock(0).unwrap()[..4], 4000_u32.to_le_bytes());
    }

    #[test]
    fn a_file_of_another_size_is_refused() {
        let file = sys::memfd(c"shared").unwrap();
        file.set_len(SharedMemory::size(PARTS) - 1).unwrap();
        assert_eq!(
            SharedMemory::open(&file, PARTS).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
}
