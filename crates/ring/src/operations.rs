//! The operations of a ring, and how each is handed to the kernel.

#![expect(unsafe_code, reason = "the kernel is handed entries that point to memory")]

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::{self, CancelBuilder, FsyncFlags};

use crate::files::Fd;
use crate::nvme::NVME_URING_CMD_IO;
use crate::reap::{Completion, ending};
use crate::ring::{OpId, Ring};
use crate::table::Name;
use crate::{Errno, Memory, NvmeCommand, Segments, Wide, Width, pool, registered};

/// The largest number of bytes of one transfer. This is the kernel's own limit: `INT_MAX`, rounded
/// down to a page.
pub(crate) const TRANSFER_SIZE_MAX: usize = 0x7fff_f000;

/// User data of entries whose completion is ignored. All bits are set; no [`Name`] has this value.
pub(crate) const NOBODY: u64 = u64::MAX;

/// An operation that has not ended, with everything that it owns.
pub(crate) struct InFlight<T, M> {
    pub(crate) payload: T,
    pub(crate) fd: Fd,
    pub(crate) is_cancelled: bool,
    /// The number of the operation's entry, counting all entries in the order in which they were
    /// queued.
    pub(crate) queued_as: u64,
    pub(crate) kind: Kind<M>,
}

/// The kind of an operation, with the memory that it needs.
pub(crate) enum Kind<M> {
    Accept,
    Receive,
    ReceiveInto { bytes: Vec<u8>, limit: usize },
    Send { bytes: Vec<u8>, sent: usize },
    SendSegments { segments: Segments },
    Poll { events: u32, is_multishot: bool },
    Read { memory: M, offset: u64 },
    Write { memory: M, offset: u64, is_durable: bool, stream: u8 },
    Flush { with_metadata: bool },
    Allocate { offset: u64, size: u64, mode: i32 },
    Command { command: NvmeCommand, memory: Option<M> },
    Shutdown,
    Nothing,
}

/// The event that a [`Ring::poll`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Data can be read, or the stream has ended.
    Readable,
    /// Data can be written, or a write would fail.
    Writable,
    /// The other end of a socket sends nothing more, or the socket is broken. There may still be
    /// data to read.
    HungUp,
}

impl<T: Copy, M: Memory> Ring<T, M, Wide> {
    /// Hands an I/O command to the NVMe driver; `namespace` is a generic device (`/dev/ng0n1`).
    /// Completes with [`Outcome::Commanded`](crate::Outcome::Commanded). If the operation is
    /// cancelled, the device may still execute the command.
    ///
    /// # Safety
    /// The command must transfer no more bytes than `memory` has. Without `memory`, the command
    /// must transfer nothing. The driver does not check the command's size.
    pub unsafe fn command(
        &mut self,
        namespace: Fd,
        command: NvmeCommand,
        memory: Option<M>,
        payload: T,
    ) -> OpId {
        self.begin(namespace, payload, Kind::Command { command, memory })
    }
}

impl<T: Copy, M: Memory, W: Width> Ring<T, M, W> {
    /// Accepts connections until the accept fails or is cancelled. For each connection there is a
    /// completion with [`Outcome::Accepted`](crate::Outcome::Accepted). The last completion has an
    /// error. For example, the accept fails when the process is out of descriptors (`EMFILE`).
    pub fn accept(&mut self, listener: Fd, payload: T) -> OpId {
        self.begin(listener, payload, Kind::Accept)
    }

    /// Receives until the end of the stream, an error or a cancel. Each time data arrives, there is
    /// a completion with [`Outcome::Received`](crate::Outcome::Received), and the data is in a
    /// buffer of the ring. While all buffers are handed out, the receive waits until a buffer is
    /// given back.
    ///
    /// # Panics
    /// When [`provide_buffers`](Self::provide_buffers) was not called.
    pub fn receive(&mut self, socket: Fd, payload: T) -> OpId {
        assert!(self.pool.is_some(), "there are no buffers to receive into");
        self.begin(socket, payload, Kind::Receive)
    }

    /// Receives once, as soon as data has arrived, and appends it to `bytes`: at most `limit`
    /// bytes, and never more than fit into the capacity of `bytes`. Completes with
    /// [`Outcome::ReceivedInto`](crate::Outcome::ReceivedInto).
    ///
    /// # Panics
    /// When there is no room for even one byte.
    pub fn receive_into(&mut self, socket: Fd, bytes: Vec<u8>, limit: usize, payload: T) -> OpId {
        let limit = limit.min(bytes.capacity() - bytes.len()).min(TRANSFER_SIZE_MAX);
        assert!(limit > 0, "there is no room to receive into");
        self.begin(socket, payload, Kind::ReceiveInto { bytes, limit })
    }

    /// Sends all of `bytes`, with as many calls as needed. Then completes with
    /// [`Outcome::Sent`](crate::Outcome::Sent).
    ///
    /// # Panics
    /// When there is nothing to send.
    pub fn send(&mut self, socket: Fd, bytes: Vec<u8>, payload: T) -> OpId {
        assert!(!bytes.is_empty(), "there is nothing to send");
        self.begin(socket, payload, Kind::Send { bytes, sent: 0 })
    }

    /// Sends everything that is left in `segments`, with as many calls as needed. Then completes
    /// with [`Outcome::SentSegments`](crate::Outcome::SentSegments).
    ///
    /// # Panics
    /// When there is nothing to send.
    pub fn send_segments(&mut self, socket: Fd, segments: Segments, payload: T) -> OpId {
        assert!(!segments.is_empty(), "there is nothing to send");
        self.begin(socket, payload, Kind::SendSegments { segments })
    }

    /// Completes once, with [`Outcome::Polled`](crate::Outcome::Polled), when the descriptor is
    /// ready. If it is ready already, completes at once.
    pub fn poll(&mut self, fd: Fd, interest: Interest, payload: T) -> OpId {
        self.begin(fd, payload, Kind::Poll { events: interest.events(), is_multishot: false })
    }

    /// Completes with [`Outcome::Polled`](crate::Outcome::Polled) each time the descriptor becomes
    /// ready. Ends with a completion that [is the last](crate::Completion::is_last).
    pub fn poll_repeatedly(&mut self, fd: Fd, interest: Interest, payload: T) -> OpId {
        self.begin(fd, payload, Kind::Poll { events: interest.events(), is_multishot: true })
    }

    /// Fills `memory` with the bytes of the file from byte `offset` on. Completes with
    /// [`Outcome::Transferred`](crate::Outcome::Transferred).
    pub fn read(&mut self, file: Fd, memory: M, offset: u64, payload: T) -> OpId {
        assert!(
            memory.size() <= TRANSFER_SIZE_MAX,
            "a read of {} bytes is too large",
            memory.size()
        );
        self.begin(file, payload, Kind::Read { memory, offset })
    }

    /// Writes all of `memory` to the file, from byte `offset` on. If `is_durable` is set
    /// (`RWF_DSYNC`), the write completes only when these bytes are on stable media. Completes with
    /// [`Outcome::Transferred`](crate::Outcome::Transferred).
    pub fn write(
        &mut self,
        file: Fd,
        memory: M,
        offset: u64,
        is_durable: bool,
        payload: T,
    ) -> OpId {
        self.write_to_stream(file, memory, offset, is_durable, 0, payload)
    }

    /// Like [`write`](Self::write), but to one of a block device's write streams (kernel 6.16).
    /// Streams are counted from one; zero means no stream. If the device does not have the stream,
    /// the write fails (`EINVAL`).
    pub fn write_to_stream(
        &mut self,
        file: Fd,
        memory: M,
        offset: u64,
        is_durable: bool,
        stream: u8,
        payload: T,
    ) -> OpId {
        assert!(
            memory.size() <= TRANSFER_SIZE_MAX,
            "a write of {} bytes is too large",
            memory.size()
        );
        self.begin(file, payload, Kind::Write { memory, offset, is_durable, stream })
    }

    /// Brings all completed writes to the file to stable media (`fdatasync`, or `fsync` if
    /// `with_metadata` is set). Completes with [`Outcome::Done`](crate::Outcome::Done).
    pub fn flush(&mut self, file: Fd, with_metadata: bool, payload: T) -> OpId {
        self.begin(file, payload, Kind::Flush { with_metadata })
    }

    /// Runs `fallocate` with this `mode`. Completes with [`Outcome::Done`](crate::Outcome::Done).
    pub fn allocate(&mut self, file: Fd, mode: i32, offset: u64, size: u64, payload: T) -> OpId {
        self.begin(file, payload, Kind::Allocate { offset, size, mode })
    }

    /// Ends both directions of a connection. Bytes that were already sent are still delivered.
    /// Completes with [`Outcome::Done`](crate::Outcome::Done).
    pub fn shutdown(&mut self, socket: Fd, payload: T) -> OpId {
        self.begin(socket, payload, Kind::Shutdown)
    }

    /// Does nothing, and completes with [`Outcome::Done`](crate::Outcome::Done) like any other
    /// operation. A caller can use this to report a result of its own through the ring.
    pub fn nothing(&mut self, fd: Fd, payload: T) -> OpId {
        self.begin(fd, payload, Kind::Nothing)
    }

    /// Asks the kernel to cancel an operation. The operation always has a last completion. If the
    /// operation ended before the cancel, the last completion has the operation's result.
    /// Otherwise, it has the error [`Errno::CANCELED`].
    pub fn cancel(&mut self, op: OpId) {
        let Some(in_flight) = self.in_flight.get_mut(op.0) else { return };
        in_flight.is_cancelled = true;
        if let Some(place) = self.starved.iter().position(|&name| name == op.0) {
            self.starved.swap_remove(place);
            self.end_cancelled(op.0);
            return;
        }
        let entry = opcode::AsyncCancel::new(op.0.to_u64()).build().user_data(NOBODY);
        // SAFETY: the entry points to nothing.
        unsafe { self.push(entry.into()) };
    }

    /// Cancels every operation on the descriptor, and closes the descriptor when the last operation
    /// has ended. These operations still have their completions. After this, no operation may be
    /// begun on the descriptor.
    ///
    /// # Panics
    /// When the descriptor was closed before.
    pub fn close(&mut self, fd: Fd) {
        if !self.files.close(fd) {
            return;
        }
        while let Some(place) = self
            .starved
            .iter()
            .position(|name| self.in_flight.get(*name).is_some_and(|op| op.fd == fd))
        {
            let name = self.starved.swap_remove(place);
            self.end_cancelled(name);
        }
        if self.files.borrow(fd).is_none() {
            return;
        }
        if self.features.multishot_accept {
            let number = types::Fd(self.files.number(fd));
            let entry = opcode::AsyncCancel2::new(CancelBuilder::fd(number).all());
            // SAFETY: the entry points to nothing.
            unsafe { self.push(entry.build().user_data(NOBODY).into()) };
            return;
        }
        let names = self.in_flight.iter_mut().filter(|(_, op)| op.fd == fd).map(|(name, _)| name);
        for name in names.collect::<Vec<_>>() {
            self.cancel(OpId(name));
        }
    }

    /// Cancels all operations in flight.
    pub(crate) fn cancel_all(&mut self) {
        let names = self.in_flight.iter_mut().map(|(name, _)| name);
        for name in names.collect::<Vec<_>>() {
            self.cancel(OpId(name));
        }
    }

    /// Ends a cancelled operation that was not handed to the kernel.
    fn end_cancelled(&mut self, name: Name) {
        self.end_made(name, Errno::CANCELED);
    }

    /// Ends an operation that was not handed to the kernel, with an error.
    pub(crate) fn end_made(&mut self, name: Name, errno: Errno) {
        let op = self.in_flight.remove(name).expect("the operation is in flight");
        self.files.end(op.fd);
        let payload = op.payload;
        let outcome = ending(op, -errno.number());
        self.made.push(Completion { op: OpId(name), payload, is_last: true, outcome });
    }

    fn begin(&mut self, fd: Fd, payload: T, kind: Kind<M>) -> OpId {
        self.files.begin(fd);
        let op = InFlight { payload, fd, is_cancelled: false, queued_as: self.queued, kind };
        let name = self.in_flight.insert(op);
        self.put(name);
        OpId(name)
    }

    /// Queues an operation, or the rest of an operation, for the kernel.
    pub(crate) fn put(&mut self, name: Name) {
        if let Some(errno) = self.refused() {
            self.end_made(name, errno);
            return;
        }
        let in_flight = self.in_flight.get_mut(name).expect("the operation is in flight");
        in_flight.queued_as = self.queued;
        let fd = types::Fd(self.files.number(in_flight.fd));
        let is_multishot = self.features;
        let fixed = |address, size| self.registered.as_ref()?.find(address, size);
        let entry = match &mut in_flight.kind {
            Kind::Accept if is_multishot.multishot_accept => {
                opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build()
            }
            Kind::Accept => {
                let nowhere = std::ptr::null_mut();
                opcode::Accept::new(fd, nowhere, nowhere.cast()).flags(libc::SOCK_CLOEXEC).build()
            }
            Kind::Receive if is_multishot.multishot_receive => {
                opcode::RecvMulti::new(fd, pool::GROUP).build()
            }
            // This entry only polls. A receive would need a buffer now, and would keep it while the
            // connection is idle. So the receive follows when the poll reports data to read.
            Kind::Receive => opcode::PollAdd::new(fd, Interest::Readable.events()).build(),
            Kind::ReceiveInto { bytes, limit } => {
                let address = bytes.spare_capacity_mut().as_mut_ptr().cast();
                opcode::Recv::new(fd, address, *limit as u32).build()
            }
            Kind::Send { bytes, sent } => {
                let left = &bytes[*sent..];
                opcode::Send::new(fd, left.as_ptr(), left.len().min(TRANSFER_SIZE_MAX) as u32)
                    .flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL)
                    .build()
            }
            Kind::SendSegments { segments } => opcode::SendMsg::new(fd, segments.describe())
                .flags((libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32)
                .build(),
            Kind::Poll { events, is_multishot } => {
                opcode::PollAdd::new(fd, *events).multi(*is_multishot).build()
            }
            Kind::Read { memory, offset } => {
                let (address, size) = (memory.address(), memory.size());
                match fixed(address, size) {
                    Some(fixed) => {
                        opcode::ReadFixed::new(fd, fixed, size as u32, registered::INDEX)
                            .offset(*offset)
                            .build()
                    }
                    None => opcode::Read::new(fd, address, size as u32).offset(*offset).build(),
                }
            }
            Kind::Write { memory, offset, is_durable, stream } => {
                let flags = if *is_durable { libc::RWF_DSYNC } else { 0 };
                let (address, size) = (memory.address(), memory.size());
                match fixed(address, size) {
                    Some(fixed) => {
                        opcode::WriteFixed::new(fd, fixed, size as u32, registered::INDEX)
                            .offset(*offset)
                            .rw_flags(flags)
                            .write_stream(*stream)
                            .build()
                    }
                    None => opcode::Write::new(fd, address, size as u32)
                        .offset(*offset)
                        .rw_flags(flags)
                        .write_stream(*stream)
                        .build(),
                }
            }
            Kind::Flush { with_metadata } => {
                let flags = if *with_metadata { FsyncFlags::empty() } else { FsyncFlags::DATASYNC };
                opcode::Fsync::new(fd).flags(flags).build()
            }
            Kind::Allocate { offset, size, mode } => {
                opcode::Fallocate::new(fd, *size).offset(*offset).mode(*mode).build()
            }
            Kind::Shutdown => opcode::Shutdown::new(fd, libc::SHUT_RDWR).build(),
            Kind::Command { command, memory } => {
                let (address, size) = match memory {
                    Some(memory) => (memory.address(), memory.size()),
                    None => (std::ptr::null_mut(), 0),
                };
                let found = fixed(address, size);
                let command = command.encode(found.unwrap_or(address) as u64, size as u32);
                let entry = opcode::UringCmd80::new(fd, NVME_URING_CMD_IO)
                    .buf_index(found.map(|_| registered::INDEX))
                    .cmd(command)
                    .build()
                    .user_data(name.to_u64());
                // SAFETY: the entry points only to memory of this operation, which keeps it
                // unchanged until the completion is reaped.
                unsafe { self.push(W::command(entry)) };
                return;
            }
            Kind::Nothing => opcode::Nop::new().build(),
        };
        let entry: Entry = entry.user_data(name.to_u64());
        // SAFETY: the entry points only to memory of the operation that its user data names. The
        // operation keeps this memory unchanged until the completion is reaped.
        unsafe { self.push(entry.into()) };
    }
}

impl Interest {
    fn events(self) -> u32 {
        let events = match self {
            Self::Readable => libc::POLLIN | libc::POLLRDHUP,
            Self::Writable => libc::POLLOUT,
            Self::HungUp => libc::POLLRDHUP,
        };
        events as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;

    /// Moves the operations, then reads and writes their memory at the addresses that the kernel
    /// was given. The addresses must still be valid.
    #[test]
    fn what_the_kernel_was_told_of_stays_when_operations_move() {
        let mut table: Table<Kind<Vec<u8>>> = Table::new();
        let mut segments = Segments::new();
        segments.push(b"ab".to_vec());
        segments.push_shared(std::sync::Arc::new(b"-cd-".to_vec()), 1..3);
        let kinds = [
            Kind::Read { memory: vec![0; 4], offset: 0 },
            Kind::ReceiveInto { bytes: Vec::with_capacity(4), limit: 4 },
            Kind::Send { bytes: b"abcd".to_vec(), sent: 0 },
            Kind::SendSegments { segments },
        ];
        let names = kinds.map(|kind| table.insert(kind));
        let mut written = Vec::new();
        let mut read = Vec::new();
        for name in names {
            match table.get_mut(name).expect("the operation was just inserted") {
                Kind::Read { memory, .. } => written.push(memory.address()),
                Kind::ReceiveInto { bytes, .. } => {
                    written.push(bytes.spare_capacity_mut().as_mut_ptr().cast());
                }
                Kind::Send { bytes, .. } => read.push((bytes.as_ptr(), 4)),
                Kind::SendSegments { segments } => {
                    let header = segments.describe();
                    for index in 0..2 {
                        // SAFETY: the header and its vectors do not move as long as the segments
                        // live.
                        let vector = unsafe { *(*header).msg_iov.add(index) };
                        read.push((vector.iov_base.cast_const().cast(), vector.iov_len));
                    }
                }
                _ => unreachable!("the test inserted no other kind"),
            }
        }
        for _ in 0..100 {
            table.insert(Kind::Accept);
        }
        let mut moved =
            names.map(|name| table.remove(name).expect("the operation is in the table"));
        for address in written {
            // SAFETY: the four bytes at `address` belong to the operation.
            unsafe { std::ptr::copy_nonoverlapping(b"wxyz".as_ptr(), address, 4) };
        }
        // SAFETY: the `size` bytes at `at` belong to the operation.
        let seen = read.iter().map(|&(at, size)| unsafe { std::slice::from_raw_parts(at, size) });
        assert_eq!(seen.collect::<Vec<_>>().concat(), b"abcdabcd");
        let Kind::Read { memory, .. } = &moved[0] else { panic!("the first operation is a read") };
        assert_eq!(memory, b"wxyz");
        let Kind::ReceiveInto { bytes, .. } = &mut moved[1] else {
            panic!("the second operation is a receive")
        };
        // SAFETY: the four bytes were written above.
        unsafe { bytes.set_len(4) };
        assert_eq!(bytes, b"wxyz");
    }
}
