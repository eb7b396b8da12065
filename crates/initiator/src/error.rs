//! Errors of this crate, and the names of commands in error messages.

use std::borrow::Cow;
use std::time::Duration;
use std::{fmt, io};

use slimio_nvme::pdu::{Fes, PduError, TermReq};
use slimio_nvme::{Command, Status, TooShort, opcode};

/// An error of a command or a connection. After [`Status`](Self::Status), the connection can still
/// be used. After any other error, the caller has to connect again.
#[derive(Debug)]
pub enum Error {
    /// A command was refused or failed.
    Status {
        /// The command's name.
        command: Cow<'static, str>,
        /// The command's status.
        status: Status,
        /// Dwords 0 and 1 of the command's completion.
        result: u64,
    },
    /// The target closed the connection because of a PDU that the host sent. The target's
    /// termination request says why.
    Terminated(TermReq),
    /// The target sent a PDU that the protocol does not allow.
    Pdu(PduError),
    /// The target returned fewer bytes than a structure has.
    Short(TooShort),
    /// The target closed the connection.
    Closed,
    /// The target did not answer within this time limit.
    TimedOut(Duration),
    /// The controller did not become ready, and its status says that it failed.
    NotReady,
    /// A name is too long for NVMe.
    Name(String),
    /// The socket failed.
    Io(io::Error),
}

impl Error {
    /// The command's status, if this is a [`Status`](Self::Status) error.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status { command, status, .. } => write!(f, "{command}: {status}"),
            Self::Terminated(request) => {
                f.write_str("the target ended the connection: ")?;
                let (number, fei) = (request.fes, request.fei);
                match Fes::of(number) {
                    Some(fes) => write!(f, "{fes:?} ({number}), information {fei:#x}"),
                    None => write!(f, "unknown reason {number}, information {fei:#x}"),
                }
            }
            Self::Pdu(error) => write!(f, "the target sent a wrong PDU: {error}"),
            Self::Short(error) => write!(f, "the target returned too little data: {error}"),
            Self::Closed => f.write_str("the target closed the connection"),
            Self::TimedOut(limit) => write!(f, "the target did not answer within {limit:?}"),
            Self::NotReady => f.write_str("the controller failed before it became ready"),
            Self::Name(name) => write!(f, "{name:?} is longer than an NVMe name may be"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Pdu(error) => Some(error),
            Self::Short(error) => Some(error),
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<PduError> for Error {
    fn from(error: PduError) -> Self {
        Self::Pdu(error)
    }
}

impl From<TooShort> for Error {
    fn from(error: TooShort) -> Self {
        Self::Short(error)
    }
}

/// The name of a command. It depends on whether the command runs on an admin queue or on an I/O
/// queue.
pub(crate) fn name_of(command: &Command, is_admin: bool) -> Cow<'static, str> {
    use opcode::{admin, fabrics, nvm};

    let name = match (command.opcode, is_admin) {
        (opcode::FABRICS, _) => match command.nsid as u8 {
            fabrics::CONNECT => "connect",
            fabrics::PROPERTY_GET => "property get",
            fabrics::PROPERTY_SET => "property set",
            fabrics::DISCONNECT => "disconnect",
            kind => return format!("fabrics command {kind:02x}h").into(),
        },
        (admin::GET_LOG_PAGE, true) => "get log page",
        (admin::IDENTIFY, true) => "identify",
        (admin::ABORT, true) => "abort",
        (admin::SET_FEATURES, true) => "set features",
        (admin::GET_FEATURES, true) => "get features",
        (admin::ASYNC_EVENT_REQUEST, true) => "asynchronous event request",
        (admin::KEEP_ALIVE, true) => "keep alive",
        (nvm::FLUSH, false) => "flush",
        (nvm::WRITE, false) => "write",
        (nvm::READ, false) => "read",
        (nvm::COMPARE, false) => "compare",
        (nvm::WRITE_ZEROES, false) => "write zeroes",
        (nvm::DATASET_MANAGEMENT, false) => "dataset management",
        (nvm::IO_MANAGEMENT_RECEIVE, false) => "I/O management receive",
        (nvm::IO_MANAGEMENT_SEND, false) => "I/O management send",
        (number, true) => return format!("admin command {number:02x}h").into(),
        (number, false) => return format!("I/O command {number:02x}h").into(),
    };
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_in_words_what_the_target_said_in_numbers() {
        let error = |opcode: u8, is_admin: bool| Error::Status {
            command: name_of(&Command::new(opcode, 3), is_admin),
            status: Status::LBA_OUT_OF_RANGE.dnr(),
            result: 0,
        };
        let status = "LBA out of range (0:80h, do not retry)";
        assert_eq!(error(opcode::nvm::READ, false).to_string(), format!("read: {status}"));
        let text = format!("get log page: {status}");
        assert_eq!(error(opcode::admin::GET_LOG_PAGE, true).to_string(), text);
        assert_eq!(error(0x33, false).to_string(), format!("I/O command 33h: {status}"));
        let error = Error::Terminated(TermReq { fes: 2, fei: 0 });
        let text = "the target ended the connection: SequenceError (2), information 0x0";
        assert_eq!(error.to_string(), text);
        let error = Error::Terminated(TermReq { fes: 99, fei: 16 });
        let text = "the target ended the connection: unknown reason 99, information 0x10";
        assert_eq!(error.to_string(), text);
    }
}
