//! Why a command is not carried out.

use slimio_nvme::Status;

/// A status, and the byte of the command that is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: Status,
    /// Offset in the submission queue entry; [`NOWHERE`](Self::NOWHERE) if no byte is to blame.
    pub(crate) byte: u16,
}

impl Refusal {
    /// The value of `byte` if no byte is to blame. Source: base specification 2.1, figure 209.
    pub(crate) const NOWHERE: u16 = 0xffff;

    /// A refusal because of the field at an offset. A retry would get the same status.
    pub(crate) fn at(status: Status, byte: u16) -> Self {
        Self { status: status.dnr(), byte }
    }

    /// A refusal because the field at an offset has a value that is not supported.
    pub(crate) fn field(byte: u16) -> Self {
        Self::at(Status::INVALID_FIELD, byte)
    }

    /// A refusal because the target does not know the command.
    pub(crate) fn opcode() -> Self {
        Self::at(Status::INVALID_OPCODE, 0)
    }

    /// A refusal because the command's namespace does not exist.
    pub(crate) fn namespace() -> Self {
        Self::at(Status::INVALID_NAMESPACE, 4)
    }

    /// A refusal because the command is not allowed in the connection's present state.
    pub(crate) fn sequence() -> Self {
        Self::at(Status::COMMAND_SEQUENCE_ERROR, 0)
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self { status, byte: Self::NOWHERE }
    }
}
