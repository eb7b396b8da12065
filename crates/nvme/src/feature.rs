//! Features. Source: base specification 2.1, 5.1.25, figure 385.

use crate::{Command, opcode};

/// The numbers of features (FID).
pub mod fid {
    /// Arbitration.
    pub const ARBITRATION: u8 = 0x01;
    /// Power Management.
    pub const POWER_MANAGEMENT: u8 = 0x02;
    /// Temperature Threshold.
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    /// Error Recovery.
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Volatile Write Cache.
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// Number of Queues.
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    /// Write Atomicity Normal.
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    /// Asynchronous Event Configuration.
    pub const ASYNC_EVENTS: u8 = 0x0b;
    /// Timestamp.
    pub const TIMESTAMP: u8 = 0x0e;
    /// Keep Alive Timer.
    pub const KEEP_ALIVE: u8 = 0x0f;
    /// Host Behavior Support.
    pub const HOST_BEHAVIOR: u8 = 0x16;
    /// Flexible Data Placement.
    pub const FDP: u8 = 0x1d;
    /// Flexible Data Placement Events.
    pub const FDP_EVENTS: u8 = 0x1e;
    /// Host Identifier.
    pub const HOST_ID: u8 = 0x81;
}

/// The value that a Get Features command asks for (SEL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// The value in force.
    Current,
    /// The factory's default.
    Default,
    /// The saved value.
    Saved,
    /// No value, but what the feature allows. Bit 0: it can be saved. Bit 1: each namespace has its
    /// own value. Bit 2: it can be changed.
    Capabilities,
    /// A reserved number.
    Other,
}

/// A Get Features or Set Features command. Source: base specification 2.1, 5.1.11 and 5.1.25.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureAccess {
    /// The feature.
    pub fid: u8,
    /// Which value to return. Only Get Features has it.
    pub select: Select,
    /// Whether the new value outlives resets and losses of power. Only Set Features has it.
    pub save: bool,
    /// Dword 11: the value itself for most features, and a parameter for the others.
    pub cdw11: u32,
    /// Dword 12.
    pub cdw12: u32,
}

impl FeatureAccess {
    /// Takes the fields from a Get Features or Set Features command.
    pub const fn of(command: &Command) -> Self {
        let [cdw10, cdw11, cdw12, ..] = command.cdw10_to_15;
        let select = match cdw10 >> 8 & 7 {
            0 => Select::Current,
            1 => Select::Default,
            2 => Select::Saved,
            3 => Select::Capabilities,
            _ => Select::Other,
        };
        Self { fid: cdw10 as u8, select, save: cdw10 >> 31 != 0, cdw11, cdw12 }
    }

    /// Makes the command that reads the value in force. If the feature has data, the caller adds
    /// the descriptor of where the data goes.
    pub fn get(cid: u16, fid: u8, cdw11: u32) -> Command {
        Command::new(opcode::admin::GET_FEATURES, cid).cdw(10, fid.into()).cdw(11, cdw11)
    }

    /// Makes the command that sets a value until the next reset.
    pub fn set(cid: u16, fid: u8, cdw11: u32, cdw12: u32) -> Command {
        Command::new(opcode::admin::SET_FEATURES, cid)
            .cdw(10, fid.into())
            .cdw(11, cdw11)
            .cdw(12, cdw12)
    }
}

/// Decodes the value of Number of Queues: how many I/O submission queues and how many I/O
/// completion queues. The value holds each of the two numbers minus one.
pub const fn queue_counts(value: u32) -> (u32, u32) {
    ((value & 0xffff) + 1, (value >> 16) + 1)
}

/// Encodes the value of Number of Queues, for `count` queues of each kind.
///
/// # Panics
/// If `count` is zero, or more than 65,535.
pub const fn of_queue_count(count: u32) -> u32 {
    assert!(count > 0 && count <= 0xffff, "a controller has 1 to 65,535 I/O queues");
    (count - 1) | (count - 1) << 16
}

/// Types of asynchronous events, and their masks in Asynchronous Event Configuration. Source: base
/// specification 2.1, figures 147 to 150.
pub mod event {
    /// Type: an error.
    pub const ERROR: u8 = 0;
    /// Event information of the type [`ERROR`]: a transient internal error. Some commands failed,
    /// but the controller goes on. A persistent internal error would have the number 3, and hosts
    /// reset the controller after it.
    pub const ERROR_TRANSIENT: u8 = 4;
    /// Type: SMART.
    pub const SMART: u8 = 1;
    /// Type: a notice.
    pub const NOTICE: u8 = 2;
    /// Event information of the type [`NOTICE`]: the discovery log has changed.
    pub const NOTICE_DISCOVERY: u8 = 0xf0;
    /// Mask: attributes of a namespace have changed.
    pub const MASK_NAMESPACE: u32 = 1 << 8;
    /// Mask: the discovery log has changed.
    pub const MASK_DISCOVERY: u32 = 1 << 31;

    /// The result of an Asynchronous Event Request: the event's type, its information, and the log
    /// page that has more about it.
    pub const fn result(kind: u8, information: u8, lid: u8) -> u64 {
        kind as u64 | (information as u64) << 8 | (lid as u64) << 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_is_named_in_dword_10() {
        let set = FeatureAccess::set(1, fid::FDP, 1, 0x0101);
        assert_eq!((set.opcode, set.cdw10_to_15[..3].to_vec()), (0x09, vec![0x1d, 1, 0x0101]));
        let access = FeatureAccess::of(&set.cdw(10, 0x8000_031d));
        assert_eq!(
            (access.fid, access.select, access.save),
            (fid::FDP, Select::Capabilities, true)
        );
        assert_eq!((access.cdw11, access.cdw12), (1, 0x0101));
        assert_eq!(FeatureAccess::get(1, fid::FDP_EVENTS, 7).opcode, 0x0a);
    }

    #[test]
    fn queues_are_counted_from_zero() {
        assert_eq!(of_queue_count(16), 0x000f_000f);
        assert_eq!(queue_counts(0x0007_0003), (4, 8));
    }

    #[test]
    fn an_event_names_its_log_page() {
        assert_eq!(event::result(event::NOTICE, event::NOTICE_DISCOVERY, 0x70), 0x0070_f002);
    }
}
