//! Turns the kernel's completions into completions for the caller.

#![expect(unsafe_code, reason = "the kernel has made descriptors and written to memory")]

use std::os::fd::{FromRawFd, OwnedFd};

use io_uring::cqueue;

use crate::errno::{returned, transferred};
use crate::files::Fd;
use crate::operations::{InFlight, Kind, NOBODY};
use crate::ring::{OpId, Ring};
use crate::table::Name;
use crate::{Errno, Memory, NvmeStatus, Provided, Segments, TransferError, Width};

/// A result of an operation. An operation may have several results before it ends.
#[derive(Debug)]
#[must_use = "a completion may hold a connection or a buffer of the ring"]
pub struct Completion<T, M = Vec<u8>> {
    /// The operation that this completion belongs to.
    pub op: OpId,
    /// The caller's payload.
    pub payload: T,
    /// Whether the operation has ended. If so, `outcome` contains the memory that the operation
    /// owned.
    pub is_last: bool,
    /// The operation's result.
    pub outcome: Outcome<M>,
}

/// The result of an operation. Each kind of operation has its own variant.
#[derive(Debug)]
pub enum Outcome<M = Vec<u8>> {
    /// A connection, which the ring owns. Close it with [`Ring::close`].
    Accepted(Result<Fd, Errno>),
    /// Received bytes, in a buffer of the ring. Give the buffer back with [`Ring::give_back`].
    /// `None` at the end of the stream.
    Received(Result<Option<Provided>, Errno>),
    /// A receive into a vector of the caller has ended.
    ReceivedInto {
        /// The vector that was given to the operation, with the received bytes appended.
        bytes: Vec<u8>,
        /// Number of bytes that were appended; zero at the end of the stream.
        result: Result<usize, Errno>,
    },
    /// A send of a vector has ended.
    Sent {
        /// The vector that was given to the operation.
        bytes: Vec<u8>,
        /// Whether everything was sent. After an error, it is unknown how many bytes were sent.
        result: Result<(), Errno>,
    },
    /// A send of segments has ended.
    SentSegments {
        /// The segments that were given to the operation. The bytes that were sent are removed.
        segments: Segments,
        /// Whether everything was sent. An error says why the rest was not sent.
        result: Result<(), Errno>,
    },
    /// The descriptor is ready.
    Polled(Result<(), Errno>),
    /// A read or write of a file has ended.
    Transferred {
        /// The memory that was given to the operation.
        memory: M,
        /// Whether all bytes of the memory were read or written.
        result: Result<(), TransferError>,
    },
    /// An NVMe command has ended.
    Commanded {
        /// The memory that was given to the operation.
        memory: Option<M>,
        /// Whether the command succeeded. An error says why it did not.
        result: Result<(), CommandError>,
    },
    /// An operation without memory has ended.
    Done(Result<(), Errno>),
}

/// Why an NVMe command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandError {
    /// The device failed the command, with this status.
    Status(NvmeStatus),
    /// The kernel or the driver failed the command. `EINTR` means that the driver aborted the
    /// command (at a reset, at a timeout, or because the device is gone). It is then unknown how
    /// much of the command the device has executed.
    Os(Errno),
}

/// A completion from the kernel's queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub(crate) name: u64,
    pub(crate) res: i32,
    pub(crate) flags: u32,
}

/// The consequence of a completion for its operation.
enum Verdict<M> {
    /// The operation has a result, and continues.
    Yield(Outcome<M>),
    /// The operation must be queued again.
    Again,
    /// The operation must be queued again when a buffer is free.
    Starve,
    /// The operation has ended, with this `res`.
    End(i32),
}

impl<T: Copy, M: Memory, W: Width> Ring<T, M, W> {
    /// Moves all results that are available into `completions`, oldest first. Never waits. Call
    /// [`submit`](Self::submit) or [`submit_and_wait`](Self::submit_and_wait) afterwards, because
    /// this call may have queued the next parts of operations that continue.
    pub fn reap(&mut self, completions: &mut Vec<Completion<T, M>>) {
        completions.append(&mut self.made);
        self.collect_all();
        while let Some(arrived) = self.arrived.pop_front() {
            if arrived.name != NOBODY {
                self.handle(arrived, completions);
            }
        }
    }

    fn handle(&mut self, arrived: Arrived, completions: &mut Vec<Completion<T, M>>) {
        let name = Name::from_u64(arrived.name);
        let Some(op) = self.in_flight.get(name) else {
            debug_assert!(false, "{arrived:?} belongs to no operation");
            return;
        };
        let payload = op.payload;
        let is_cancelled = op.is_cancelled || self.files.is_closing(op.fd);
        let complete = |is_last, outcome| Completion { op: OpId(name), payload, is_last, outcome };
        match self.judge(name, arrived) {
            Verdict::Yield(outcome) => {
                let goes_on = cqueue::more(arrived.flags);
                let is_last = !goes_on && is_cancelled;
                completions.push(complete(is_last, outcome));
                if is_last {
                    self.remove(name);
                } else if !goes_on {
                    self.put(name);
                }
            }
            Verdict::Again | Verdict::Starve if is_cancelled => {
                let outcome = ending(self.remove(name), -libc::ECANCELED);
                completions.push(complete(true, outcome));
            }
            Verdict::Again => self.put(name),
            Verdict::Starve => {
                self.starved.push(name);
                self.feed_starved();
            }
            Verdict::End(res) => {
                let outcome = ending(self.remove(name), res);
                completions.push(complete(true, outcome));
            }
        }
    }

    fn remove(&mut self, name: Name) -> InFlight<T, M> {
        let op = self.in_flight.remove(name).expect("an operation ends once");
        self.files.end(op.fd);
        op
    }

    /// Decides what the ring does after a completion. Records the sent bytes, the descriptor or the
    /// buffer that the completion reports.
    fn judge(&mut self, name: Name, arrived: Arrived) -> Verdict<M> {
        let Arrived { res, flags, .. } = arrived;
        let op = self.in_flight.get_mut(name).expect("the operation is in flight");
        let result = returned(res);
        match &mut op.kind {
            Kind::Accept => match result {
                Ok(number) => {
                    // SAFETY: the kernel has made the descriptor for this completion, so nothing
                    // else owns it.
                    let descriptor = unsafe { OwnedFd::from_raw_fd(number as i32) };
                    Verdict::Yield(Outcome::Accepted(Ok(self.files.adopt(descriptor))))
                }
                // The connection was gone before it was accepted, or a signal interrupted the
                // accept.
                Err(Errno::ABORTED | Errno::INTERRUPTED) => Verdict::Again,
                Err(_) => Verdict::End(res),
            },
            Kind::Receive if self.features.multishot_receive => {
                let pool = self.pool.as_mut().expect("there are buffers to receive into");
                let size = *result.as_ref().unwrap_or(&0);
                let provided = cqueue::buffer_select(flags).map(|index| pool.filled(index, size));
                match (result, provided) {
                    (Ok(1..), provided @ Some(_)) => {
                        Verdict::Yield(Outcome::Received(Ok(provided)))
                    }
                    (result, provided) => {
                        if let Some(unused) = provided {
                            pool.give_back(&unused);
                        }
                        match result {
                            Err(Errno::NO_BUFFERS) => Verdict::Starve,
                            Err(Errno::INTERRUPTED) => Verdict::Again,
                            _ => Verdict::End(res),
                        }
                    }
                }
            }
            Kind::Receive if result.is_err() => Verdict::End(res),
            Kind::Receive => {
                let fd = self.files.number(op.fd);
                let pool = self.pool.as_mut().expect("there are buffers to receive into");
                match pool.fill(|address, size| receive_now(fd, address, size)) {
                    None => Verdict::Starve,
                    Some(Ok(Some(provided))) => {
                        Verdict::Yield(Outcome::Received(Ok(Some(provided))))
                    }
                    Some(Ok(None)) => Verdict::End(0),
                    Some(Err(Errno::INTERRUPTED | Errno::WOULD_BLOCK)) => Verdict::Again,
                    Some(Err(errno)) => Verdict::End(-errno.number()),
                }
            }
            Kind::Send { bytes, sent } => match result {
                Ok(0) => Verdict::End(-libc::EPIPE),
                Ok(count) => {
                    *sent += count;
                    if *sent < bytes.len() { Verdict::Again } else { Verdict::End(0) }
                }
                Err(Errno::INTERRUPTED) => Verdict::Again,
                Err(_) => Verdict::End(res),
            },
            Kind::SendSegments { segments } => match result {
                Ok(0) => Verdict::End(-libc::EPIPE),
                Ok(count) => {
                    segments.advance(count);
                    if segments.is_empty() { Verdict::End(0) } else { Verdict::Again }
                }
                Err(Errno::INTERRUPTED) => Verdict::Again,
                Err(_) => Verdict::End(res),
            },
            Kind::Poll { .. } if cqueue::more(flags) => {
                Verdict::Yield(Outcome::Polled(result.map(drop)))
            }
            // A command that the driver aborted may have reached the device, so it is not repeated.
            Kind::Command { .. } => Verdict::End(res),
            _ if result == Err(Errno::INTERRUPTED) => Verdict::Again,
            _ => Verdict::End(res),
        }
    }

    /// If a buffer is free, queues again every receive that waits for a buffer.
    pub(crate) fn feed_starved(&mut self) {
        if self.pool.as_ref().is_some_and(crate::pool::Pool::has_some) {
            for name in std::mem::take(&mut self.starved) {
                self.put(name);
            }
        }
    }
}

/// The outcome of an operation that has ended with `res`.
pub(crate) fn ending<T, M: Memory>(op: InFlight<T, M>, res: i32) -> Outcome<M> {
    let result = returned(res).map(drop);
    match op.kind {
        Kind::Accept => Outcome::Accepted(Err(result.err().unwrap_or(Errno::CANCELED))),
        Kind::Receive => Outcome::Received(result.map(|()| None)),
        Kind::ReceiveInto { mut bytes, limit } => {
            let result = returned(res);
            if let Ok(size) = result {
                assert!(size <= limit, "the kernel has written past the limit");
                // SAFETY: the kernel has written `size` bytes after the length, within the
                // capacity.
                unsafe { bytes.set_len(bytes.len() + size) };
            }
            Outcome::ReceivedInto { bytes, result }
        }
        Kind::Send { bytes, .. } => Outcome::Sent { bytes, result },
        Kind::SendSegments { segments } => Outcome::SentSegments { segments, result },
        Kind::Poll { .. } => Outcome::Polled(result),
        Kind::Read { memory, .. } | Kind::Write { memory, .. } => {
            let result = transferred(res, memory.size());
            Outcome::Transferred { memory, result }
        }
        Kind::Command { memory, .. } => Outcome::Commanded { memory, result: commanded(res) },
        Kind::Flush { .. } | Kind::Allocate { .. } | Kind::Shutdown | Kind::Nothing => {
            Outcome::Done(result)
        }
    }
}

/// Converts the `res` of an NVMe command: zero, the device's status, or a negative error number.
fn commanded(res: i32) -> Result<(), CommandError> {
    match u16::try_from(res) {
        Ok(word) => {
            NvmeStatus::new(word).map_or(Ok(()), |status| Err(CommandError::Status(status)))
        }
        Err(_) => match returned(res) {
            Ok(_) => Err(CommandError::Os(Errno::new(libc::EPROTO))),
            Err(errno) => Err(CommandError::Os(errno)),
        },
    }
}

/// Receives data that has arrived, without waiting for more.
fn receive_now(fd: std::os::fd::RawFd, address: *mut u8, size: usize) -> Result<usize, Errno> {
    // SAFETY: the caller provides `size` bytes at `address`, to which nothing else refers.
    let count = unsafe { libc::recv(fd, address.cast(), size, libc::MSG_DONTWAIT) };
    usize::try_from(count).map_err(|_| Errno::last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_ends_in_success_a_status_or_an_error_number() {
        assert_eq!(commanded(0), Ok(()));
        let status = NvmeStatus::new(0x4002).expect("the word is a failure");
        assert_eq!(commanded(0x4002), Err(CommandError::Status(status)));
        let gone = CommandError::Os(Errno::new(libc::ENODEV));
        assert_eq!(commanded(-libc::ENODEV), Err(gone));
        assert!(commanded(0x1_0000).is_err(), "a word above 16 bits must be an error");
    }
}
