//! The status of a command. Source: base specification 2.1, 4.2.3.

use std::fmt;

/// Whether a command succeeded, and if not, why: a type, a code, and whether the host may try
/// again.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Status(u16);

/// The bit Do Not Retry. Bits are counted as in a completion, where the phase bit is bit 0.
const DNR: u16 = 1 << 15;
/// The bit More: the error log has more about this status.
const MORE: u16 = 1 << 14;

macro_rules! statuses {
    ($($(#[$about:meta])* $name:ident = $kind:literal, $code:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$about])* pub const $name: Self = Self::new($kind, $code);)*

            /// The status in words.
            pub fn text(self) -> &'static str {
                match (self.kind(), self.code()) {
                    $(($kind, $code) => $text,)*
                    _ => "unknown status",
                }
            }
        }
    };
}

statuses! {
    /// The command succeeded.
    SUCCESS = 0, 0x00, "success";
    /// No such command.
    INVALID_OPCODE = 0, 0x01, "invalid opcode";
    /// A field has a value that is reserved or not supported.
    INVALID_FIELD = 0, 0x02, "invalid field in command";
    /// A command with this identifier is under way.
    COMMAND_ID_CONFLICT = 0, 0x03, "command id conflict";
    /// Data could not be transferred.
    DATA_TRANSFER_ERROR = 0, 0x04, "data transfer error";
    /// The controller failed.
    INTERNAL_ERROR = 0, 0x06, "internal error";
    /// The command was aborted by an Abort.
    ABORT_REQUESTED = 0, 0x07, "command abort requested";
    /// The command was aborted because its queue ended.
    ABORTED_SQ_DELETION = 0, 0x08, "aborted, as its queue was deleted";
    /// There is no such namespace, or its format does not suit the command.
    INVALID_NAMESPACE = 0, 0x0b, "invalid namespace or format";
    /// The command came at a point where the protocol does not allow it.
    COMMAND_SEQUENCE_ERROR = 0, 0x0c, "command sequence error";
    /// A data descriptor has a wrong length.
    DATA_SGL_LENGTH_INVALID = 0, 0x0f, "data SGL length invalid";
    /// A data descriptor has a type that is not supported.
    SGL_TYPE_INVALID = 0, 0x11, "SGL descriptor type invalid";
    /// A data descriptor has an offset beyond the capsule.
    SGL_OFFSET_INVALID = 0, 0x16, "SGL offset invalid";
    /// Host identifiers of 64 bits and of 128 bits are in use at the same time.
    HOST_ID_INCONSISTENT = 0, 0x18, "host identifier inconsistent format";
    /// The keep alive timer ran out.
    KEEP_ALIVE_EXPIRED = 0, 0x19, "keep alive timer expired";
    /// The keep alive timeout is not supported.
    KEEP_ALIVE_INVALID = 0, 0x1a, "keep alive timeout invalid";
    /// The transport failed.
    TRANSIENT_TRANSPORT_ERROR = 0, 0x22, "transient transport error";
    /// Data placement is not enabled.
    FDP_DISABLED = 0, 0x29, "FDP disabled";
    /// A list of placement handles is not valid.
    INVALID_PLACEMENT_HANDLE_LIST = 0, 0x2a, "invalid placement handle list";
    /// The range is beyond the namespace.
    LBA_OUT_OF_RANGE = 0, 0x80, "LBA out of range";
    /// There is no room for the data.
    CAPACITY_EXCEEDED = 0, 0x81, "capacity exceeded";
    /// The namespace is not ready.
    NAMESPACE_NOT_READY = 0, 0x82, "namespace not ready";
    /// No such queue.
    INVALID_QUEUE_ID = 1, 0x01, "invalid queue identifier";
    /// The queue's size is zero or too large.
    INVALID_QUEUE_SIZE = 1, 0x02, "invalid queue size";
    /// Too many Aborts are under way.
    ABORT_LIMIT_EXCEEDED = 1, 0x03, "abort command limit exceeded";
    /// Too many requests for asynchronous events are outstanding.
    ASYNC_EVENT_LIMIT_EXCEEDED = 1, 0x05, "asynchronous event request limit exceeded";
    /// No such log page.
    INVALID_LOG_PAGE = 1, 0x09, "invalid log page";
    /// The feature can't be saved.
    FEATURE_NOT_SAVEABLE = 1, 0x0d, "feature identifier not saveable";
    /// The feature can't be changed.
    FEATURE_NOT_CHANGEABLE = 1, 0x0e, "feature not changeable";
    /// The feature does not belong to a namespace.
    FEATURE_NOT_NAMESPACE_SPECIFIC = 1, 0x0f, "feature not namespace specific";
    /// Connect only: the format of its record is not supported.
    CONNECT_INCOMPATIBLE_FORMAT = 1, 0x80, "connect incompatible format";
    /// Connect only: no controller is free, or the controller that the host asked for is in use.
    CONNECT_CONTROLLER_BUSY = 1, 0x81, "connect controller busy";
    /// Connect only: a parameter is wrong. The result says which.
    CONNECT_INVALID_PARAMETERS = 1, 0x82, "connect invalid parameters";
    /// Connect only: the host is not allowed.
    CONNECT_INVALID_HOST = 1, 0x84, "connect invalid host";
    /// Fabrics commands only: the command is not allowed on this queue.
    INVALID_QUEUE_TYPE = 1, 0x85, "invalid queue type";
    /// Data could not be written.
    WRITE_FAULT = 2, 0x80, "write fault";
    /// Data could not be read.
    UNRECOVERED_READ_ERROR = 2, 0x81, "unrecovered read error";
    /// The compared data differs from what the blocks hold.
    COMPARE_FAILURE = 2, 0x85, "compare failure";
}

impl Status {
    /// A status with this type (0 to 7) and this code. The phase bit is zero, as it is on all
    /// fabrics.
    ///
    /// # Panics
    /// If `kind` is above 7.
    pub const fn new(kind: u8, code: u8) -> Self {
        assert!(kind < 8, "the type of a status must fit in three bits");
        Self((kind as u16) << 9 | (code as u16) << 1)
    }

    /// The status type: 0 is generic, 1 belongs to the command, 2 to the media, 3 to the path.
    pub const fn kind(self) -> u8 {
        (self.0 >> 9 & 7) as u8
    }

    /// The status code.
    pub const fn code(self) -> u8 {
        (self.0 >> 1) as u8
    }

    /// Returns the status with the bit Do Not Retry: the host shall not retry.
    #[must_use]
    pub const fn dnr(self) -> Self {
        Self(self.0 | DNR)
    }

    /// Returns the status with the bit More: the error log has more about this status.
    #[must_use]
    pub const fn more(self) -> Self {
        Self(self.0 | MORE)
    }

    /// Whether the host shall not retry.
    pub const fn is_dnr(self) -> bool {
        self.0 & DNR != 0
    }

    /// Whether the command succeeded.
    pub const fn is_success(self) -> bool {
        self.kind() == 0 && self.code() == 0
    }

    /// Whether both statuses have the same type and code.
    pub const fn is_same(self, other: Self) -> bool {
        self.kind() == other.kind() && self.code() == other.code()
    }

    /// The status as a completion has it, with a phase bit of zero.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Decodes the status of a completion. The phase bit is ignored.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & !1)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}:{:02x}h", self.text(), self.kind(), self.code())?;
        f.write_str(if self.is_dnr() { ", do not retry)" } else { ")" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_where_figure_99_of_the_base_specification_has_them() {
        assert_eq!(Status::INVALID_FIELD.bits(), 0x0004);
        assert_eq!(Status::INVALID_LOG_PAGE.dnr().bits(), 0x8212);
        assert_eq!(Status::COMPARE_FAILURE.more().bits(), 0x450a);
        assert_eq!(Status::from_bits(0x8213), Status::INVALID_LOG_PAGE.dnr());
        assert!(Status::INVALID_LOG_PAGE.dnr().is_same(Status::INVALID_LOG_PAGE));
        assert!(!Status::INVALID_LOG_PAGE.is_success() && Status::SUCCESS.is_success());
        assert_eq!(
            format!("{:?}", Status::LBA_OUT_OF_RANGE.dnr()),
            "LBA out of range (0:80h, do not retry)"
        );
    }
}
