//! The messages between a program's process and the keeper, the process that looks after the
//! program's logs.
//!
//! The process connects to an abstract socket that keeps messages apart (`SOCK_SEQPACKET`). A
//! message has one letter and a number of four bytes. A token and descriptors may follow:
//!
//! | | letter | number | token | descriptors | answer |
//! |---|---|---|---|---|---|
//! | take this file | `t` | 1 if self-ending, otherwise 0 | yes | the open file | `s` and then `y` or `n`; or only `n` |
//! | the log has this stage, and the file is taken now | `s` | the log's number | | the file of the stage | |
//! | yes | `y` | the log's number, if any | | the file of the table of debts, if asked for it | |
//! | no, the kernel must write the file | `n` | 0 | | | |
//! | something was appended | `a` | the log's number | | | |
//! | this process closes the log | `c` | the log's number | | | `d` |
//! | done | `d` | the log's number, if any | | | |
//! | guard this log | `g` | the log's number | | the open file, the stage's file | `d` |
//! | tell where debts are noted | `m` | 0 | yes | | `y` or `n` |
//! | prepare this file of whole blocks | `w` | 0 | yes | the open file | `d` |
//!
//! A file is self-ending if its records say where it ends. A stage has the bytes of a log that are
//! not in the log's file yet. A file has a debt if it has changes that only the kernel can make
//! durable. The keeper sends `g` to its [guard](crate::guard), the process that gives the logs back
//! to the kernel if the keeper is killed. An environment variable tells the program's process where
//! to connect, and which files take the short path.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::{Kind, Pattern};

/// The name of the environment variable. The lines of its value are the socket's name, the token,
/// and the patterns, each after the letter of its kind.
pub const VARIABLE: &str = "SLIMIO_SHORTCUT";
/// Size of the token in bytes.
const TOKEN_SIZE: usize = 32;
/// The largest number of descriptors in a message.
const DESCRIPTORS_MAX: usize = 2;
const NUMBER: std::ops::Range<usize> = 1..5;
const SIZE_MAX: usize = NUMBER.end + TOKEN_SIZE;

/// A message, without its descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Take this file.
    Take {
        /// The token, which shows that the keeper started the sender's program.
        token: String,
        /// Whether the records of the file say where it ends.
        is_self_ending: bool,
    },
    /// Asks where the debts of files of whole blocks are noted. The token is as in `Take`.
    Debts(String),
    /// Prepare this file of whole blocks, which was opened for the first time. The token is as in
    /// `Take`.
    Whole(String),
    /// The log of this number has this stage. The keeper begins to take the file only after this
    /// message (the first answer to `Take`), so that the process can give the file back if the
    /// keeper is killed meanwhile.
    Stage(u32),
    /// The file is taken (the second answer to `Take`), or there is a table of debts (answer to
    /// `Debts`).
    Yes(u32),
    /// The file is left to the kernel.
    No,
    /// The process has appended something, or there is other work for the keeper.
    Appended(u32),
    /// The process has released the file, and closes it now.
    Closed(u32),
    /// The sender has done what the other side asked for: it has closed, prepared or guarded the
    /// file.
    Done(u32),
    /// Give this log back to the kernel when the keeper has ended.
    Guard(u32),
}

/// The contents of the environment variable [`VARIABLE`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// The name of the abstract socket.
    pub name: String,
    /// The token that a process has to show.
    pub token: String,
    /// Patterns for the paths of the files. The first pattern that matches a path says how the file
    /// is written.
    pub patterns: Vec<Pattern>,
}

impl Meeting {
    /// The value of [`VARIABLE`].
    pub fn to_text(&self) -> String {
        let mut lines = vec![self.name.clone(), self.token.clone()];
        lines.extend(
            self.patterns.iter().map(|Pattern { kind, text }| format!("{}{text}", kind.letter())),
        );
        lines.join("\n")
    }

    /// Reads the value of [`VARIABLE`].
    pub fn of_text(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(str::to_owned);
        let (name, token) = (lines.next()?, lines.next()?);
        let patterns = lines.map(|line| {
            let kind = Kind::ALL.into_iter().find(|kind| line.starts_with(kind.letter()))?;
            Some(Pattern { kind, text: line[1..].to_owned() })
        });
        Some(Self { name, token, patterns: patterns.collect::<Option<_>>()? })
    }
}

impl Message {
    fn encode(&self) -> Vec<u8> {
        let (letter, number) = match self {
            Self::Take { is_self_ending, .. } => (b't', u32::from(*is_self_ending)),
            Self::Debts(_) => (b'm', 0),
            Self::Whole(_) => (b'w', 0),
            Self::Stage(id) => (b's', *id),
            Self::Yes(id) => (b'y', *id),
            Self::No => (b'n', 0),
            Self::Appended(id) => (b'a', *id),
            Self::Closed(id) => (b'c', *id),
            Self::Done(id) => (b'd', *id),
            Self::Guard(id) => (b'g', *id),
        };
        let mut bytes = vec![letter];
        bytes.extend(number.to_le_bytes());
        if let Self::Take { token, .. } | Self::Debts(token) | Self::Whole(token) = self {
            bytes.extend(token.as_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let id = u32::from_le_bytes(bytes.get(NUMBER)?.try_into().ok()?);
        let token = || String::from_utf8(bytes[NUMBER.end..].to_vec()).ok();
        Some(match bytes[0] {
            b't' => Self::Take { token: token()?, is_self_ending: id == 1 },
            b'm' => Self::Debts(token()?),
            b'w' => Self::Whole(token()?),
            b's' => Self::Stage(id),
            b'y' => Self::Yes(id),
            b'n' => Self::No,
            b'a' => Self::Appended(id),
            b'c' => Self::Closed(id),
            b'd' => Self::Done(id),
            b'g' => Self::Guard(id),
            _ => return None,
        })
    }

    /// Sends the message. If `is_patient`, waits until the other side can take the message.
    ///
    /// # Errors
    /// If the other side has closed its socket, or if it takes no more messages now and
    /// `is_patient` is `false`.
    pub fn send(
        &self,
        socket: impl AsFd,
        descriptors: &[BorrowedFd<'_>],
        is_patient: bool,
    ) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::DONTWAIT, !is_patient);
        let bytes = self.encode();
        retry(|| rustix::net::sendmsg(&socket, &[IoSlice::new(&bytes)], &mut ancillary, flags))?;
        Ok(())
    }

    /// Receives a message. If `is_patient`, waits for the message. Returns `None` if the other side
    /// has closed its socket.
    ///
    /// # Errors
    /// If the bytes received are no message (`InvalidData`), or if no message has come and
    /// `is_patient` is `false` (`WouldBlock`).
    pub fn receive(
        socket: impl AsFd,
        is_patient: bool,
    ) -> io::Result<Option<(Self, Vec<OwnedFd>)>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; SIZE_MAX];
        let mut flags = RecvFlags::CMSG_CLOEXEC;
        flags.set(RecvFlags::DONTWAIT, !is_patient);
        let received = retry(|| {
            let mut buffers = [IoSliceMut::new(&mut bytes)];
            rustix::net::recvmsg(&socket, &mut buffers, &mut ancillary, flags)
        })?;
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        let message = Self::decode(&bytes[..received.bytes])
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a message"))?;
        Ok(Some((message, descriptors)))
    }
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            // If the other side has ended with unread messages, the kernel reports `CONNRESET` once,
            // even before it hands out messages that the other side has sent.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_message_arrives_although_its_sender_has_ended() {
        let (here, there) = pair();
        Message::Appended(1).send(&here, &[], true).unwrap();
        Message::Stage(7).send(&there, &[], true).unwrap();
        drop(there);
        let (received, _) = Message::receive(&here, true).unwrap().unwrap();
        assert_eq!(received, Message::Stage(7));
        assert!(Message::receive(&here, true).unwrap().is_none());
    }

    #[test]
    fn every_message_arrives_with_its_descriptor() {
        let (here, there) = pair();
        let token = "0123456789abcdef0123456789abcdef".to_owned();
        let messages = [
            Message::Take { token: token.clone(), is_self_ending: false },
            Message::Take { token: token.clone(), is_self_ending: true },
            Message::Debts(token.clone()),
            Message::Whole(token),
            Message::Stage(6),
            Message::Yes(7),
            Message::No,
            Message::Appended(u32::MAX),
            Message::Closed(1),
            Message::Done(1),
            Message::Guard(2),
        ];
        for (number, message) in messages.into_iter().enumerate() {
            let descriptors = vec![here.as_fd(); number % 3];
            message.send(&here, &descriptors, true).unwrap();
            let (received, descriptors) = Message::receive(&there, true).unwrap().unwrap();
            assert_eq!(received, message);
            assert_eq!(descriptors.len(), number % 3);
        }
        let error = Message::receive(&there, false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        rustix::net::send(&here, b"x", SendFlags::empty()).unwrap();
        let error = Message::receive(&there, true).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        drop(here);
        assert_eq!(Message::receive(&there, true).unwrap().map(|_| ()), None);
    }

    #[test]
    fn a_meeting_is_read_as_it_was_written() {
        let pattern = |kind, text: &str| Pattern { kind, text: text.to_owned() };
        let patterns = vec![pattern(Kind::Log, "*.incr.aof"), pattern(Kind::WholeBlocks, "*/a b")];
        let meeting = Meeting { name: "name".into(), token: "token".into(), patterns };
        assert_eq!(Meeting::of_text(&meeting.to_text()), Some(meeting));
        assert_eq!(Meeting::of_text("name"), None);
        assert_eq!(Meeting::of_text("name\ntoken\n?*"), None);
    }
}
