//! The status of a command. Source: base specification 2.1, 4.2.3.

use std::fmt;

/// What became of a command: a type and a code, and whether the host may try again.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Status(u16);

/// The bit of Do Not Retry, with the phase bit in bit 0.
const DNR: u16 = 1 << 15;
/// The bit of More: the error log has more about it.
const MORE: u16 = 1 << 14;

macro_rules! statuses {
    ($($(#[$about:meta])* $name:ident = $kind:literal, $code:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$about])* pub const $name: Self = Self::new($kind, $code);)*

            /// What it says, in words.
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
    /// The command has done what it should.
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
    /// The queue ended.
    ABORTED_SQ_DELETION = 0, 0x08, "aborted, as its queue was deleted";
    /// No such namespace, or its format does not fit.
    INVALID_NAMESPACE = 0, 0x0b, "invalid namespace or format";
    /// The command came when it may not.
    COMMAND_SEQUENCE_ERROR = 0, 0x0c, "command sequence error";
    /// A data descriptor has a wrong length.
    DATA_SGL_LENGTH_INVALID = 0, 0x0f, "data SGL length invalid";
    /// A data descriptor has a type that is not supported.
    SGL_TYPE_INVALID = 0, 0x11, "SGL descriptor type invalid";
    /// A data descriptor has an offset beyond the capsule.
    SGL_OFFSET_INVALID = 0, 0x16, "SGL offset invalid";
    /// The host's identifier is not as before.
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
    /// There is no room.
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
    /// Of Connect: the format of its record is not supported.
    CONNECT_INCOMPATIBLE_FORMAT = 1, 0x80, "connect incompatible format";
    /// Of Connect: no more controllers can be had, or the controller is in use.
    CONNECT_CONTROLLER_BUSY = 1, 0x81, "connect controller busy";
    /// Of Connect: a parameter is wrong; the result says which.
    CONNECT_INVALID_PARAMETERS = 1, 0x82, "connect invalid parameters";
    /// Of Connect: the host is not allowed.
    CONNECT_INVALID_HOST = 1, 0x84, "connect invalid host";
    /// Of a Fabrics command: it is not for this queue.
    INVALID_QUEUE_TYPE = 1, 0x85, "invalid queue type";
    /// Data could not be written.
    WRITE_FAULT = 2, 0x80, "write fault";
    /// Data could not be read.
    UNRECOVERED_READ_ERROR = 2, 0x81, "unrecovered read error";
    /// What is there is not what was compared with it.
    COMPARE_FAILURE = 2, 0x85, "compare failure";
}

impl Status {
    /// A status of a type (0 to 7) and a code. Bit 0, the phase, is zero on all fabrics.
    ///
    /// # Panics
    /// When there is no such type.
    pub const fn new(kind: u8, code: u8) -> Self {
        assert!(kind < 8, "a status has a type of three bits");
        Self((kind as u16) << 9 | (code as u16) << 1)
    }

    /// The status type: 0 generic, 1 of the command, 2 of the media, 3 of the path.
    pub const fn kind(self) -> u8 {
        (self.0 >> 9 & 7) as u8
    }

    /// The status code.
    pub const fn code(self) -> u8 {
        (self.0 >> 1) as u8
    }

    /// The same, and the host shall not retry.
    #[must_use]
    pub const fn dnr(self) -> Self {
        Self(self.0 | DNR)
    }

    /// The same, and the error log has more about it.
    #[must_use]
    pub const fn more(self) -> Self {
        Self(self.0 | MORE)
    }

    /// Whether the host shall not retry.
    pub const fn is_dnr(self) -> bool {
        self.0 & DNR != 0
    }

    /// Whether it is a success.
    pub const fn is_success(self) -> bool {
        self.kind() == 0 && self.code() == 0
    }

    /// Whether both have the same type and code.
    pub const fn is_same(self, other: Self) -> bool {
        self.kind() == other.kind() && self.code() == other.code()
    }

    /// As it is in a completion, with the phase bit.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// From a completion. The phase bit is ignored.
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
