//! Commands of NVMe over Fabrics: Connect, properties, Disconnect. Source: base specification 2.1,
//! sections 6 and 3.1.4.

use crate::{Command, Name, Status, opcode};

/// A Connect command. Source: base specification 2.1, 6.3, figure 571.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connect {
    /// Format of the record: zero.
    pub recfmt: u16,
    /// The queue to create: 0 is the admin queue, any other number is an I/O queue.
    pub qid: u16,
    /// Number of entries in the queue, less one.
    pub sqsize: u16,
    /// Attributes. Bit 2: the submission queue has no flow control.
    pub cattr: u8,
    /// Keep alive timeout in milliseconds, or zero for none. Only the admin queue has one.
    pub kato: u32,
}

/// The bit of [`Connect::cattr`] that turns flow control of the submission queue off.
pub const CATTR_NO_SQ_FLOW_CONTROL: u8 = 1 << 2;
/// The controller id that asks for any controller. Source: base specification 2.1, 6.3.
pub const CNTLID_ANY: u16 = 0xffff;

impl Connect {
    /// The type of a Fabrics command.
    pub const fn fabrics_type(command: &Command) -> u8 {
        command.nsid as u8
    }

    /// Makes the command. The caller adds the descriptor of its data.
    pub fn command(&self, cid: u16) -> Command {
        fabrics_command(opcode::fabrics::CONNECT, cid)
            .cdw(10, u32::from(self.recfmt) | u32::from(self.qid) << 16)
            .cdw(11, u32::from(self.sqsize) | u32::from(self.cattr) << 16)
            .cdw(12, self.kato)
    }

    /// Takes the fields from a Connect command.
    pub const fn of(command: &Command) -> Self {
        let [cdw10, cdw11, kato, ..] = command.cdw10_to_15;
        Self {
            recfmt: cdw10 as u16,
            qid: (cdw10 >> 16) as u16,
            sqsize: cdw11 as u16,
            cattr: (cdw11 >> 16) as u8,
            kato,
        }
    }
}

fn fabrics_command(kind: u8, cid: u16) -> Command {
    Command::new(opcode::FABRICS, cid).nsid(kind.into())
}

layout! {
    /// The data of a Connect command. Source: base specification 2.1, 6.3, figure 572.
    pub struct ConnectData [1024] {
        /// The host's identifier.
        hostid: [u8; 16] = 0,
        /// The controller. FFFFh asks for any controller.
        cntlid: u16 = 16,
        /// The subsystem's name.
        subnqn: Name<256> = 256,
        /// The host's name.
        hostnqn: Name<256> = 512,
    }
}

/// Which parameter of a Connect is wrong. A completion with the status
/// [`CONNECT_INVALID_PARAMETERS`](Status::CONNECT_INVALID_PARAMETERS) says this in its result.
/// Source: base specification 2.1, figure 573.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidParameter {
    /// Offset of the parameter's first byte.
    pub offset: u16,
    /// Whether the parameter is in the command's data. Otherwise it is in the submission queue
    /// entry.
    pub is_in_data: bool,
}

impl InvalidParameter {
    /// Field of the submission queue entry: the queue's number.
    pub const QID: Self = Self { offset: 42, is_in_data: false };
    /// Field of the submission queue entry: the queue's size.
    pub const SQSIZE: Self = Self { offset: 44, is_in_data: false };
    /// Field of the data: the controller.
    pub const CNTLID: Self = Self { offset: 16, is_in_data: true };
    /// Field of the data: the subsystem.
    pub const SUBNQN: Self = Self { offset: 256, is_in_data: true };
    /// Field of the data: the host.
    pub const HOSTNQN: Self = Self { offset: 512, is_in_data: true };

    /// Encodes the parameter as the result of a completion.
    pub const fn result(self) -> u64 {
        self.offset as u64 | (self.is_in_data as u64) << 16
    }

    /// Decodes the result of a completion.
    pub const fn of_result(result: u64) -> Self {
        Self { offset: result as u16, is_in_data: result >> 16 & 1 != 0 }
    }
}

/// A property of a controller. Source: base specification 2.1, 3.1.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    /// Controller Capabilities, 8 bytes.
    Cap,
    /// Version, 4 bytes.
    Vs,
    /// Controller Configuration, 4 bytes.
    Cc,
    /// Controller Status, 4 bytes.
    Csts,
    /// NVM Subsystem Reset, 4 bytes.
    Nssr,
    /// Controller Ready Timeouts, 4 bytes.
    Crto,
}

impl Property {
    /// The offset that names the property.
    pub const fn offset(self) -> u32 {
        match self {
            Self::Cap => 0x00,
            Self::Vs => 0x08,
            Self::Cc => 0x14,
            Self::Csts => 0x1c,
            Self::Nssr => 0x20,
            Self::Crto => 0x68,
        }
    }

    /// Whether the property has eight bytes. Otherwise it has four.
    pub const fn is_8_bytes(self) -> bool {
        matches!(self, Self::Cap)
    }

    /// The property at an offset, if this crate knows one.
    pub fn at(offset: u32) -> Option<Self> {
        [Self::Cap, Self::Vs, Self::Cc, Self::Csts, Self::Nssr, Self::Crto]
            .into_iter()
            .find(|property| property.offset() == offset)
    }
}

/// A Property Get or Property Set. Source: base specification 2.1, 6.5 and 6.6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertyAccess {
    /// `Some(true)` for a property of eight bytes, `Some(false)` for one of four bytes, `None` for
    /// any other size.
    pub is_8_bytes: Option<bool>,
    /// The property's offset.
    pub offset: u32,
    /// The value to set. Only Property Set has one.
    pub value: u64,
}

impl PropertyAccess {
    /// Takes the fields from a Property Get or Property Set command.
    pub const fn of(command: &Command) -> Self {
        let [attrib, offset, low, high, ..] = command.cdw10_to_15;
        let is_8_bytes = match attrib & 7 {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        Self { is_8_bytes, offset, value: low as u64 | (high as u64) << 32 }
    }

    /// Makes the command that reads a property.
    pub fn get(property: Property, cid: u16) -> Command {
        fabrics_command(opcode::fabrics::PROPERTY_GET, cid)
            .cdw(10, property.is_8_bytes().into())
            .cdw(11, property.offset())
    }

    /// Makes the command that sets a property.
    pub fn set(property: Property, value: u64, cid: u16) -> Command {
        fabrics_command(opcode::fabrics::PROPERTY_SET, cid)
            .cdw(10, property.is_8_bytes().into())
            .cdw(11, property.offset())
            .cdw(12, value as u32)
            .cdw(13, (value >> 32) as u32)
    }
}

/// Makes the command that ends an I/O queue. Source: base specification 2.1, 6.4.
pub fn disconnect(cid: u16) -> Command {
    fabrics_command(opcode::fabrics::DISCONNECT, cid)
}

/// Controller Capabilities. Source: base specification 2.1, 3.1.4.1, figure 36.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The most entries that a queue may have, less one (MQES).
    pub mqes: u16,
    /// Whether queues must be contiguous in memory (CQR). Always set on fabrics.
    pub cqr: bool,
    /// The longest time that the controller takes to become ready, in units of 500 ms (TO).
    pub to: u8,
    /// Supported command sets (CSS). Bit 0: the NVM command set. Bit 6: the command sets that
    /// Identify reports.
    pub css: u8,
    /// Whether the controller waits for its media before it becomes ready (CRWMS, Controller Ready
    /// With Media Support).
    pub crwms: bool,
}

impl Capabilities {
    /// The register's value.
    pub const fn bits(self) -> u64 {
        self.mqes as u64
            | (self.cqr as u64) << 16
            | (self.to as u64) << 24
            | (self.css as u64) << 37
            | (self.crwms as u64) << 59
    }

    /// Decodes the register's value.
    pub const fn of_bits(bits: u64) -> Self {
        Self {
            mqes: bits as u16,
            cqr: bits >> 16 & 1 != 0,
            to: (bits >> 24) as u8,
            css: (bits >> 37) as u8,
            crwms: bits >> 59 & 1 != 0,
        }
    }
}

/// Controller Configuration. Source: base specification 2.1, 3.1.4.5, figure 41.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Configuration(pub u32);

impl Configuration {
    /// What a host writes to enable a controller: entries of 64 bytes in submission queues and of
    /// 16 bytes in completion queues, and pages of 4 KiB.
    pub const ENABLED: Self = Self(1 | 6 << 16 | 4 << 20);

    /// Whether the controller is enabled.
    pub const fn en(self) -> bool {
        self.0 & 1 != 0
    }

    /// The selected command sets: 0 is the NVM command set, 6 is all command sets that Identify
    /// reports.
    pub const fn css(self) -> u8 {
        (self.0 >> 4 & 7) as u8
    }

    /// Size of a memory page: 2 to the power of (12 + this value), in bytes.
    pub const fn mps(self) -> u8 {
        (self.0 >> 7 & 0xf) as u8
    }

    /// Arbitration: 0 is round robin.
    pub const fn ams(self) -> u8 {
        (self.0 >> 11 & 7) as u8
    }

    /// Shutdown notification: 0 is none, 1 is normal, 2 is abrupt.
    pub const fn shn(self) -> u8 {
        (self.0 >> 14 & 3) as u8
    }

    /// Returns the configuration with this shutdown notification.
    #[must_use]
    pub const fn with_shn(self, shn: u8) -> Self {
        Self(self.0 & !(3 << 14) | (shn as u32 & 3) << 14)
    }

    /// Size of an I/O submission queue entry, as a power of two.
    pub const fn iosqes(self) -> u8 {
        (self.0 >> 16 & 0xf) as u8
    }

    /// Size of an I/O completion queue entry, as a power of two.
    pub const fn iocqes(self) -> u8 {
        (self.0 >> 20 & 0xf) as u8
    }
}

/// Controller Status. Source: base specification 2.1, 3.1.4.6, figure 42.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerStatus {
    /// Whether the controller is ready.
    pub rdy: bool,
    /// Whether the controller has failed and can't go on (Controller Fatal Status).
    pub cfs: bool,
    /// Shutdown status: 0 is none, 1 is under way, 2 is complete.
    pub shst: u8,
}

impl ControllerStatus {
    /// The register's value.
    pub const fn bits(self) -> u32 {
        self.rdy as u32 | (self.cfs as u32) << 1 | (self.shst as u32 & 3) << 2
    }

    /// Decodes the register's value.
    pub const fn of_bits(bits: u32) -> Self {
        Self { rdy: bits & 1 != 0, cfs: bits & 2 != 0, shst: (bits >> 2 & 3) as u8 }
    }
}

/// Whether a Connect with this status may be tried again, later or elsewhere.
pub fn is_busy(status: Status) -> bool {
    status.is_same(Status::CONNECT_CONTROLLER_BUSY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DISCOVERY_NQN;

    #[test]
    fn connect_has_its_fields_at_bytes_40_to_51() {
        let connect = Connect { recfmt: 0, qid: 3, sqsize: 127, cattr: 4, kato: 5000 };
        let bytes = connect.command(9).encode();
        assert_eq!(bytes[..8], [0x7f, 0x40, 9, 0, 0x01, 0, 0, 0]);
        assert_eq!(bytes[40..52], [0, 0, 3, 0, 127, 0, 4, 0, 0x88, 0x13, 0, 0]);
        let command = Command::decode(&bytes);
        assert_eq!(Connect::of(&command), connect);
        assert_eq!(Connect::fabrics_type(&command), opcode::fabrics::CONNECT);
    }

    #[test]
    fn connect_data_has_names_at_256_and_512() {
        let data = ConnectData {
            hostid: [7; 16],
            cntlid: CNTLID_ANY,
            subnqn: Name::new(DISCOVERY_NQN).expect("it fits"),
            hostnqn: Name::new("nqn.host").expect("it fits"),
        };
        let bytes = data.encode();
        assert_eq!(bytes[16..18], [0xff, 0xff]);
        assert_eq!(&bytes[256..260], b"nqn.");
        assert_eq!(&bytes[512..521], b"nqn.host\0");
        assert_eq!(ConnectData::decode(&bytes), Ok(data));
    }

    #[test]
    fn properties_are_addressed_by_offset_and_size() {
        let get = PropertyAccess::get(Property::Cap, 1).encode();
        assert_eq!((get[4], &get[40..48]), (0x04, &[1, 0, 0, 0, 0, 0, 0, 0][..]));
        let set = PropertyAccess::set(Property::Cc, 0x0046_0001, 1);
        let bytes = set.encode();
        assert_eq!(bytes[4], 0x00);
        assert_eq!(bytes[40..56], [0, 0, 0, 0, 0x14, 0, 0, 0, 1, 0, 0x46, 0, 0, 0, 0, 0]);
        let access = PropertyAccess::of(&set);
        let wanted = PropertyAccess { is_8_bytes: Some(false), offset: 0x14, value: 0x0046_0001 };
        assert_eq!(access, wanted);
        assert_eq!(Property::at(0x1c), Some(Property::Csts));
        assert_eq!(Property::at(0x0c), None);
    }

    #[test]
    fn registers_are_as_their_figures_have_them() {
        let cap = Capabilities { mqes: 127, cqr: true, to: 15, css: 0x41, crwms: false };
        assert_eq!(cap.bits(), 0x0000_0820_0f01_007f);
        assert_eq!(Capabilities::of_bits(cap.bits()), cap);
        let cc = Configuration::ENABLED;
        assert_eq!(cc.0, 0x0046_0001);
        assert_eq!((cc.en(), cc.shn(), cc.iosqes(), cc.iocqes()), (true, 0, 6, 4));
        assert_eq!(cc.with_shn(1).0, 0x0046_4001);
        let status = ControllerStatus { rdy: true, cfs: false, shst: 2 };
        assert_eq!(status.bits(), 0b1001);
        assert_eq!(ControllerStatus::of_bits(0b1001), status);
    }

    #[test]
    fn a_wrong_parameter_is_named_by_its_place() {
        assert_eq!(InvalidParameter::SUBNQN.result(), 0x0001_0100);
        assert_eq!(InvalidParameter::of_result(0x0001_0100), InvalidParameter::SUBNQN);
        assert_eq!(InvalidParameter::SQSIZE.result(), 44);
    }
}
