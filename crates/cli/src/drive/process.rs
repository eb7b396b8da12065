//! Keeps the process that serves a drive from waiting for memory when memory is short.
//!
//! If a file system on the drive is mounted on the same machine, the kernel may write to the drive
//! to free memory, and then waits for this process. So this process must not wait for memory
//! itself. Its pages are locked in memory. When the kernel allocates memory for this process, the
//! kernel writes nothing to disk to make room.

use std::io;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, configure_io_flusher_behavior, geteuid, getrlimit};

/// Locks the process's memory, and marks the process as one that serves a disk. If either fails,
/// a warning is logged.
pub(super) fn keep_out_of_reclaim() {
    let wanted = [
        ("the drive's memory can't be locked", lock_memory()),
        ("the drive's process can't be marked as one that serves a disk", mark_as_writer()),
    ];
    for (what, result) in wanted {
        if let Err(error) = result {
            log::warn!(
                "{what}: {error}. Do not mount the drive on this machine: if memory is short, the \
                 mount and the drive can wait for each other. Start the drive as root, or on \
                 another machine"
            );
        }
    }
}

fn lock_memory() -> io::Result<()> {
    // With a limit, locking might succeed now, but later allocations could fail.
    let limit = getrlimit(Resource::Memlock).current;
    if limit.is_some() && !geteuid().is_root() {
        return Err(io::Error::other("locked memory is limited (ulimit -l)"));
    }
    Ok(mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)?)
}

fn mark_as_writer() -> io::Result<()> {
    Ok(configure_io_flusher_behavior(true)?)
}
