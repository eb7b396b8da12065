//! Keeps the process that serves a drive out of the kernel's way when memory is short.
//!
//! If a file system on the drive is mounted on the same machine, the kernel may write to the drive
//! to get memory, and waits for this process. So this process must not wait for memory itself: its
//! pages stay in memory, and what the kernel allocates for it starts no writing.

use std::io;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, configure_io_flusher_behavior, geteuid, getrlimit};

/// Does both, or says what it could not do.
pub(super) fn keep_out_of_reclaim() {
    let wanted = [
        ("its memory can't be locked", lock_memory()),
        ("it can't be marked as one that writes to a disk", mark_as_writer()),
    ];
    for (what, result) in wanted {
        if let Err(error) = result {
            log::warn!(
                "{what}: {error}. Do not mount the drive on this machine: if memory is short, the \
                 mount and the drive can wait for each other. Start it as root, or on another \
                 machine"
            );
        }
    }
}

fn lock_memory() -> io::Result<()> {
    // Below a limit, locking would work now, and later allocations would fail.
    let limit = getrlimit(Resource::Memlock).current;
    if limit.is_some() && !geteuid().is_root() {
        return Err(io::Error::other("there is a limit (ulimit -l)"));
    }
    Ok(mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)?)
}

fn mark_as_writer() -> io::Result<()> {
    Ok(configure_io_flusher_behavior(true)?)
}
