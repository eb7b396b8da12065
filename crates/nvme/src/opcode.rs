//! Opcodes. The two lowest bits of an opcode say in which direction the command's data goes.

/// The admin command set. Source: base specification 2.1, figure 142.
pub mod admin {
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Directive Send.
    pub const DIRECTIVE_SEND: u8 = 0x19;
    /// Directive Receive.
    pub const DIRECTIVE_RECEIVE: u8 = 0x1a;
}

/// The NVM command set. Source: NVM command set specification 1.1, figure 20. For the two I/O
/// Management commands: base specification 2.1, figure 553.
pub mod nvm {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Verify.
    pub const VERIFY: u8 = 0x0c;
    /// I/O Management Receive.
    pub const IO_MANAGEMENT_RECEIVE: u8 = 0x12;
    /// I/O Management Send.
    pub const IO_MANAGEMENT_SEND: u8 = 0x1d;
}

/// The opcode that all Fabrics commands share. Byte 4 of such a command states the command's type.
/// Source: base specification 2.1, section 6.
pub const FABRICS: u8 = 0x7f;

/// The types of Fabrics commands. Source: base specification 2.1, figure 567.
pub mod fabrics {
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    /// Disconnect.
    pub const DISCONNECT: u8 = 0x08;
}

/// Whether a command with this opcode has data from the host. For a Fabrics command, pass its type
/// instead of its opcode.
pub const fn is_from_host(opcode_or_type: u8) -> bool {
    opcode_or_type & 0b11 == 0b01
}

/// Whether a command with this opcode has data for the host. For a Fabrics command, pass its type
/// instead of its opcode.
pub const fn is_to_host(opcode_or_type: u8) -> bool {
    opcode_or_type & 0b11 == 0b10
}
