//! Runs a command under a seccomp filter that forbids io_uring, as Docker's default filter does.
//!
//! `cargo run --package slimio-device --example without_io_uring -- COMMAND [ARGUMENT]…`

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Some(command) = arguments.next() else {
        eprintln!("usage: without_io_uring COMMAND [ARGUMENT]...");
        return ExitCode::FAILURE;
    };
    forbid_io_uring();
    let error = Command::new(&command).args(arguments).exec();
    eprintln!("{}: {error}", command.display());
    ExitCode::FAILURE
}

/// Makes every system call of io_uring fail with `EPERM`, in this thread and in the threads and
/// processes that it starts.
///
/// # Panics
/// If the kernel refuses the filter.
pub(crate) fn forbid_io_uring() {
    let calls = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    fail(&calls, libc::EPERM);
}

/// Makes system calls fail with an error number, in this thread and in the threads and processes
/// that it starts.
///
/// # Panics
/// If the kernel refuses the filter.
pub(crate) fn fail(calls: &[i64], errno: i32) {
    let filter = SeccompFilter::new(
        calls.iter().map(|&call| (call, Vec::new())).collect::<BTreeMap<_, _>>(),
        SeccompAction::Allow,
        SeccompAction::Errno(errno.unsigned_abs()),
        ARCH.try_into().expect("seccompiler knows this architecture"),
    );
    let program: BpfProgram =
        filter.and_then(TryInto::try_into).expect("the filter can be compiled");
    seccompiler::apply_filter(&program).expect("the kernel accepts the filter");
}
