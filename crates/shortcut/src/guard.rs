//! The guard of a keeper. The keeper is the process that looks after another program's logs: above
//! all, it adds zeros to the ends of their files, ahead of the next records. The guard is a second
//! process that has the same logs open. If the keeper is killed, the guard gives the logs back: it
//! cuts each log's file at the log's end. From then on, the program's writes go to the kernel, as
//! they do without a keeper.
//!
//! If the keeper is killed, it can no longer give a log back when another process opens the log.
//! That process would wait until the kernel takes the keeper's file lease away, and would then see
//! zeros after the log's end. The program that writes the log notices the keeper's end only at its
//! next call. The guard notices it at once.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use slimio_device::end_lease;
use slimio_planted::is_planted;

use crate::log::is_late;
use crate::protocol::Message;
use crate::run::PASSED;
use crate::{LogFile, Stage};

/// How long the guard waits for a process that is in the middle of a call, and how long the keeper
/// waits for the guard.
const PATIENCE: Duration = Duration::from_millis(20);
const PATIENCE_WITH_GUARD: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The guard, as its keeper sees it. When this value is dropped, the guard ends.
pub(crate) struct Guard {
    socket: OwnedFd,
}

impl Guard {
    /// Starts the guard by this command. The new process must call [`guard`] with its standard
    /// input.
    ///
    /// # Errors
    /// If the guard can't be started.
    pub(crate) fn start(command: &[OsString]) -> io::Result<Self> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (socket, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        let words = command.split_first();
        let (program, words) = words.ok_or(io::ErrorKind::InvalidInput)?;
        // In a process group of its own, the guard gets no signals from a terminal.
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::from(theirs)).stdout(Stdio::null()).process_group(0);
        // This function does not reap the guard, because the keeper's process reaps all its
        // children before it ends.
        command.spawn()?;
        Ok(Self { socket })
    }

    /// Hands a log to the guard.
    ///
    /// # Errors
    /// If the guard has ended, or does not answer.
    pub(crate) fn add(&self, number: u32, file: impl AsFd, stage: impl AsFd) -> io::Result<()> {
        self.ask(&Message::Guard(number), &[file.as_fd(), stage.as_fd()])
    }

    /// Makes the guard close a log, and waits until the log is closed. While the guard has the file
    /// open, nobody can get a lease on the file.
    ///
    /// # Errors
    /// If the guard has ended, or does not answer.
    pub(crate) fn remove(&self, number: u32) -> io::Result<()> {
        self.ask(&Message::Closed(number), &[])
    }

    fn ask(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        message.send(&self.socket, descriptors, false)?;
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        while let Err(error) = poll(&mut polled, Some(&PATIENCE_WITH_GUARD)) {
            if error != rustix::io::Errno::INTR {
                return Err(error.into());
            }
        }
        let answer = Message::receive(&self.socket, false)?;
        answer.map(|_| ()).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// Guards the logs that a keeper hands over by this socket, until the keeper has ended. Then gives
/// the logs back, and reports this by `say`.
///
/// # Errors
/// If the handlers for signals can't be set.
pub fn guard(socket: impl AsFd, say: impl Fn(&str)) -> io::Result<()> {
    slimio_device::ignore_file_size_signal();
    // The guard ignores these signals, because a service manager may send them to all processes,
    // and the guard must outlive the keeper.
    for (signal, _) in PASSED {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    let mut logs: HashMap<u32, LogFile> = HashMap::new();
    while let Ok(Some((message, descriptors))) = Message::receive(&socket, true) {
        let number = match message {
            Message::Guard(number) => {
                if let Ok([file, stage]) = <[OwnedFd; 2]>::try_from(descriptors)
                    && let Ok(stage) = Stage::open(&stage.into())
                {
                    logs.insert(number, LogFile::new(file.into(), stage.with_patience(PATIENCE)));
                }
                number
            }
            Message::Closed(number) => {
                logs.remove(&number);
                number
            }
            _ => continue,
        };
        // If the keeper has ended, the next `receive` reports that.
        let _ = Message::Done(number).send(&socket, &[], true);
    }
    if !logs.is_empty() && !is_planted("guard-asleep") {
        say("the keeper is gone: its logs are left to the kernel");
    }
    while !logs.is_empty() && !is_planted("guard-asleep") {
        // If giving back fails, the log's stage (the memory that the program shares with its
        // keeper) holds the error, and the program finds the error there. If the keeper had only
        // begun to take the file, the file may have direct I/O and a lease already.
        logs.retain(|_, log| {
            is_late(&log.by_kernel(|| {
                let _ = log.end_direct();
                end_lease(log.file());
            }))
        });
    }
    Ok(())
}
