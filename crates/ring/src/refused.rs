//! Explains why this process can't use a ring, and what would help.

use std::fmt;
use std::fs;

use crate::Errno;

/// Why io_uring can't be used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The cause; [`Cause::Other`] if the kernel's error does not reveal the cause.
    pub cause: Cause,
    /// The error that the kernel returned; `None` if this crate refuses to use the ring.
    pub errno: Option<Errno>,
}

/// Causes of a [`Refused`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The kernel was built without io_uring, or is too old for it.
    Absent,
    /// A seccomp filter forbids io_uring, as Docker's default filter does.
    Seccomp,
    /// `kernel.io_uring_disabled` is 2: no process may use io_uring.
    Disabled,
    /// `kernel.io_uring_disabled` is 1, and this process is neither privileged nor in the group
    /// that may use io_uring.
    Unprivileged,
    /// io_uring is not permitted, for an unknown reason.
    Forbidden,
    /// The kernel has too little memory, or this process may not lock more memory.
    Memory,
    /// This process has no file descriptor left, or the whole machine has none.
    Descriptors,
    /// The kernel's io_uring lacks a feature that every ring needs.
    TooOld {
        /// What is missing.
        missing: &'static str,
    },
    /// The kernel accepts an operation, but never completes it.
    Silent,
    /// Any other cause.
    Other,
}

impl Refused {
    /// Finds out why a system call of io_uring has failed.
    pub(crate) fn diagnose(errno: Errno) -> Self {
        let cause = cause(errno.number(), seccomp_filtered(), disabled_setting());
        Self { cause, errno: Some(errno) }
    }

    pub(crate) fn too_old(missing: &'static str) -> Self {
        Self { cause: Cause::TooOld { missing }, errno: None }
    }
}

/// Finds the cause. `number` is the error number, `filtered` says whether a seccomp filter checks
/// this thread's calls, and `disabled` is the value of `kernel.io_uring_disabled`.
fn cause(number: i32, filtered: bool, disabled: Option<u8>) -> Cause {
    match (number, disabled) {
        (libc::EPERM | libc::EACCES, Some(2)) => Cause::Disabled,
        (libc::EPERM | libc::EACCES | libc::ENOSYS, _) if filtered => Cause::Seccomp,
        (libc::EPERM, Some(1)) => Cause::Unprivileged,
        (libc::EPERM | libc::EACCES, _) => Cause::Forbidden,
        (libc::ENOSYS, _) => Cause::Absent,
        (libc::ENOMEM, _) => Cause::Memory,
        (libc::EMFILE | libc::ENFILE, _) => Cause::Descriptors,
        _ => Cause::Other,
    }
}

/// Whether a seccomp filter checks this thread's system calls.
fn seccomp_filtered() -> bool {
    fs::read_to_string("/proc/thread-self/status").is_ok_and(|status| {
        let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
        mode.is_some_and(|mode| mode.trim() == "2")
    })
}

/// `kernel.io_uring_disabled`; `None` on kernels before 6.6, which lack this setting.
fn disabled_setting() -> Option<u8> {
    fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?.trim().parse().ok()
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cause {
            Cause::Absent => f.write_str("this kernel has no io_uring")?,
            Cause::Seccomp => f.write_str(
                "a seccomp filter forbids io_uring, as Docker's default profile does (allow \
                 io_uring_setup, io_uring_enter and io_uring_register in the profile)",
            )?,
            Cause::Disabled => f.write_str(
                "io_uring is disabled on this machine (sysctl kernel.io_uring_disabled is 2)",
            )?,
            Cause::Unprivileged => f.write_str(
                "io_uring is for privileged processes only on this machine (sysctl \
                 kernel.io_uring_disabled is 1; add the user to kernel.io_uring_group)",
            )?,
            Cause::Forbidden => f.write_str("the kernel does not permit io_uring here")?,
            Cause::Memory => f.write_str(
                "the kernel has too little memory for io_uring, or this process may lock too \
                 little memory (ulimit -l)",
            )?,
            Cause::Descriptors => {
                f.write_str("no file descriptor is left for io_uring (ulimit -n)")?;
            }
            Cause::TooOld { missing } => write!(f, "this kernel's io_uring lacks {missing}")?,
            Cause::Silent => f.write_str("io_uring takes operations here, but completes none")?,
            Cause::Other => f.write_str("the kernel refuses io_uring")?,
        }
        match self.errno {
            Some(errno) => write!(f, ": {errno}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Refused {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_apart() {
        assert_eq!(cause(libc::EPERM, true, Some(0)), Cause::Seccomp);
        assert_eq!(cause(libc::ENOSYS, true, None), Cause::Seccomp);
        assert_eq!(cause(libc::EPERM, true, Some(2)), Cause::Disabled);
        assert_eq!(cause(libc::EPERM, false, Some(2)), Cause::Disabled);
        assert_eq!(cause(libc::EPERM, false, Some(1)), Cause::Unprivileged);
        assert_eq!(cause(libc::EPERM, false, Some(0)), Cause::Forbidden);
        assert_eq!(cause(libc::EPERM, false, None), Cause::Forbidden);
        assert_eq!(cause(libc::ENOSYS, false, None), Cause::Absent);
        assert_eq!(cause(libc::ENOMEM, false, Some(0)), Cause::Memory);
        assert_eq!(cause(libc::EMFILE, false, Some(0)), Cause::Descriptors);
        assert_eq!(cause(libc::EINVAL, false, Some(0)), Cause::Other);
    }

    #[test]
    fn says_what_the_kernel_said() {
        let refused = Refused { cause: Cause::Absent, errno: Some(Errno::new(libc::ENOSYS)) };
        let text = refused.to_string();
        assert!(
            text.starts_with("this kernel has no io_uring: Function not implemented"),
            "{text}"
        );
        let text = Refused::too_old("waiting with a timeout").to_string();
        assert_eq!(text, "this kernel's io_uring lacks waiting with a timeout");
    }
}
