//! Finds out which of SlimIO's system calls a filter (seccomp) refuses.
//!
//! A filter refuses a call before the kernel looks at the call's arguments. So each call is tried
//! with arguments that have no effect. If the filter allows the call, the kernel rejects these
//! arguments or does nothing.

#![expect(unsafe_code, reason = "system calls are foreign functions")]

use std::fmt;
use std::io;

/// Why SlimIO makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Volumes, threads or sockets need the call, with and without io_uring. No other call does the
    /// same.
    Serving,
    /// Without io_uring, sockets need the call. No other call does the same.
    Epoll,
    /// SlimIO works without the call, but less well.
    Better {
        /// The consequence of doing without the call, as the end of a sentence.
        without: &'static str,
    },
}

/// A system call that this process may not make, because a filter refuses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedCall {
    /// Name of the call, as filter profiles spell it.
    pub name: &'static str,
    /// Why SlimIO makes the call.
    pub purpose: Purpose,
    /// `EPERM` or `ENOSYS`.
    pub errno: i32,
}

/// "fallocate is refused: Operation not permitted (os error 1)", followed by the consequence, if
/// there is one.
impl fmt::Display for RefusedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = io::Error::from_raw_os_error(self.errno);
        write!(f, "{} is refused: {error}", self.name)?;
        match self.purpose {
            Purpose::Better { without } => write!(f, ": {without}"),
            Purpose::Serving | Purpose::Epoll => Ok(()),
        }
    }
}

/// A call's name, purpose and number, and arguments with which the call does nothing.
struct Call(&'static str, Purpose, libc::c_long, [libc::c_long; 6]);

/// A number that is never a valid descriptor, address family, resource or set of flags.
const NONE: libc::c_long = -1;

/// Arguments for a call whose first argument is a descriptor, an address family or a set of flags.
/// The call then fails because that argument is not valid.
const NO_FILE: [libc::c_long; 6] = [NONE, 0, 0, 0, 0, 0];

/// Arguments for a call that takes pointers. The call then fails because the pointers are null.
const NULLS: [libc::c_long; 6] = [0, 0, 0, 0, 0, 0];

const fn better(without: &'static str) -> Purpose {
    Purpose::Better { without }
}

/// The calls that a trace of a server shows. `tests/faults/test_refused_calls.py` traces a server
/// again, and refuses each call in turn.
const CALLS: &[Call] = &[
    Call("flock", Purpose::Serving, libc::SYS_flock, NO_FILE),
    Call("ftruncate", Purpose::Serving, libc::SYS_ftruncate, NO_FILE),
    Call("lseek", Purpose::Serving, libc::SYS_lseek, NO_FILE),
    Call("fsync", Purpose::Serving, libc::SYS_fsync, NO_FILE),
    Call("fdatasync", Purpose::Serving, libc::SYS_fdatasync, NO_FILE),
    Call("pread64", Purpose::Serving, libc::SYS_pread64, NO_FILE),
    Call("pwrite64", Purpose::Serving, libc::SYS_pwrite64, NO_FILE),
    Call("preadv", Purpose::Serving, libc::SYS_preadv, NO_FILE),
    #[cfg(target_arch = "x86_64")]
    Call("readlink", Purpose::Serving, libc::SYS_readlink, NULLS),
    #[cfg(target_arch = "x86_64")]
    Call("mkdir", Purpose::Serving, libc::SYS_mkdir, NULLS),
    #[cfg(target_arch = "x86_64")]
    Call("rename", Purpose::Serving, libc::SYS_rename, NULLS),
    #[cfg(not(target_arch = "x86_64"))]
    Call("readlinkat", Purpose::Serving, libc::SYS_readlinkat, NO_FILE),
    #[cfg(not(target_arch = "x86_64"))]
    Call("mkdirat", Purpose::Serving, libc::SYS_mkdirat, NO_FILE),
    #[cfg(not(target_arch = "x86_64"))]
    Call("renameat", Purpose::Serving, libc::SYS_renameat, NO_FILE),
    Call("clone3", Purpose::Serving, libc::SYS_clone3, NULLS),
    Call("eventfd2", Purpose::Serving, libc::SYS_eventfd2, [0, NONE, 0, 0, 0, 0]),
    Call("fcntl", Purpose::Serving, libc::SYS_fcntl, [NONE, DUPLICATE, 0, 0, 0, 0]),
    Call("socket", Purpose::Serving, libc::SYS_socket, NO_FILE),
    Call("socketpair", Purpose::Serving, libc::SYS_socketpair, NO_FILE),
    Call("bind", Purpose::Serving, libc::SYS_bind, NO_FILE),
    Call("listen", Purpose::Serving, libc::SYS_listen, NO_FILE),
    Call("setsockopt", Purpose::Serving, libc::SYS_setsockopt, NO_FILE),
    Call("getsockname", Purpose::Serving, libc::SYS_getsockname, NO_FILE),
    Call("epoll_create1", Purpose::Epoll, libc::SYS_epoll_create1, NO_FILE),
    Call("epoll_ctl", Purpose::Epoll, libc::SYS_epoll_ctl, NO_FILE),
    Call("epoll_pwait", Purpose::Epoll, libc::SYS_epoll_pwait, NO_FILE),
    Call("accept4", Purpose::Epoll, libc::SYS_accept4, NO_FILE),
    Call("sendto", Purpose::Epoll, libc::SYS_sendto, NO_FILE),
    Call("sendmsg", Purpose::Epoll, libc::SYS_sendmsg, NO_FILE),
    Call("ioctl", Purpose::Epoll, libc::SYS_ioctl, [NONE, libc::FIONBIO as _, 0, 0, 0, 0]),
    Call(
        "pwritev2",
        better("a separate flush of all written data follows each durable write"),
        libc::SYS_pwritev2,
        NO_FILE,
    ),
    Call(
        "fallocate",
        better("space is reserved by writing zeros, and freed space is not given back to a device"),
        libc::SYS_fallocate,
        NO_FILE,
    ),
    Call(
        "madvise",
        better("freed memory stays with the process"),
        libc::SYS_madvise,
        [0, 0, libc::MADV_DONTNEED as _, 0, 0, 0],
    ),
    Call(
        "sched_setattr",
        better("threads that write snapshots do not give way to other threads"),
        libc::SYS_sched_setattr,
        NULLS,
    ),
    Call(
        "prlimit64",
        better("the limit of open files stays as it is"),
        libc::SYS_prlimit64,
        [0, NONE, 0, 0, 0, 0],
    ),
];

const DUPLICATE: libc::c_long = libc::F_DUPFD_CLOEXEC as libc::c_long;

impl Call {
    fn refusal(&self) -> Option<RefusedCall> {
        let Self(name, purpose, number, arguments) = *self;
        let [first, second, third, fourth, fifth, sixth] = arguments;
        // SAFETY: if an argument is a descriptor, it is not open; if it is a pointer, it is null;
        // if it is a length, it is zero.
        if unsafe { libc::syscall(number, first, second, third, fourth, fifth, sixth) } != -1 {
            return None;
        }
        let errno = io::Error::last_os_error().raw_os_error()?;
        let is_refused = match errno {
            libc::EPERM => true,
            // If `clone3` fails with `ENOSYS`, the C library makes threads with an older call.
            libc::ENOSYS => name != "clone3",
            _ => false,
        };
        is_refused.then_some(RefusedCall { name, purpose, errno })
    }
}

/// Returns the calls that a filter does not let the calling thread make. Tries only calls that
/// `is_wanted` chooses by their purpose. Makes a few dozen system calls, which change nothing.
pub fn refused_calls(is_wanted: impl Fn(Purpose) -> bool) -> Vec<RefusedCall> {
    CALLS.iter().filter(|call| is_wanted(call.1)).filter_map(Call::refusal).collect()
}

/// Notes for the user. Each names a refused call that SlimIO can do without, and says what is worse
/// without the call.
pub(crate) fn notes() -> impl Iterator<Item = String> {
    let is_better = |purpose| matches!(purpose, Purpose::Better { .. });
    refused_calls(is_better).into_iter().map(|call| call.to_string())
}

/// A sentence without a full stop that names the refused calls for these purposes and says what to
/// do about them. `None` if all calls are allowed.
pub fn explain_refused_calls(purposes: &[Purpose]) -> Option<String> {
    let refused = refused_calls(|purpose| purposes.contains(&purpose));
    let last = refused.last()?;
    let names: Vec<_> = refused.iter().map(|call| call.name).collect();
    Some(format!(
        "a filter (seccomp) refuses {} to this process ({}): allow {} in its profile",
        names.join(", "),
        io::Error::from_raw_os_error(last.errno),
        if names.len() == 1 { "it" } else { "them" }
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_is_not_called_refused() {
        assert_eq!(refused_calls(|_| true), []);
        assert_eq!(explain_refused_calls(&[Purpose::Serving, Purpose::Epoll]), None);
    }
}
