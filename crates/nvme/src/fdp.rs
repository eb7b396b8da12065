//! Flexible Data Placement (FDP): log pages 20h to 23h, and the I/O Management commands. Source:
//! base specification 2.1, 5.1.12.1.27 to 5.1.12.1.30, 7.3, 7.4 and 8.1.10.

use crate::{Command, opcode};

layout! {
    /// The head of the FDP Configurations log. Source: base specification 2.1, figure 279.
    pub struct ConfigurationsHead [16] {
        /// Number of configurations, less one.
        numfdpc: u16 = 0,
        /// Version of the log: zero.
        version: u8 = 2,
        /// Size of the whole log, in bytes.
        size: u32 = 4,
    }
}

layout! {
    /// The head of a configuration. Its handles follow. Source: base specification 2.1, figure 280.
    pub struct Configuration [64] {
        /// Size of this configuration with its handles, in bytes.
        dsze: u16 = 0,
        /// Attributes. Bits 0 to 3: RGIF, how many bits of a placement identifier name the reclaim
        /// group. Bit 4: a volatile write cache for FDP. Bit 7: valid.
        fdpa: u8 = 2,
        /// Size of the vendor specific part, in bytes.
        vss: u8 = 3,
        /// Number of reclaim groups.
        nrg: u32 = 4,
        /// Number of reclaim unit handles.
        nruh: u16 = 8,
        /// The most placement handles that a namespace may have, less one.
        maxpids: u16 = 10,
        /// The most namespaces that may exist.
        nns: u32 = 12,
        /// Nominal size of a reclaim unit, in bytes.
        runs: u64 = 16,
        /// Time in which a reclaim unit has to be written, in seconds. Zero means no limit.
        erutl: u32 = 24,
    }
}

/// The bit of [`Configuration::fdpa`] that is set if the configuration is valid.
pub const FDPA_VALID: u8 = 1 << 7;

layout! {
    /// A reclaim unit handle in a configuration. Source: base specification 2.1, figure 281.
    pub struct HandleDescriptor [4] {
        /// Type: 1 is initially isolated, 2 is persistently isolated.
        ruht: u8 = 0,
    }
}

layout! {
    /// The head of the Reclaim Unit Handle Usage log. Source: base specification 2.1, figure 282.
    pub struct UsageHead [8] {
        /// Number of handles.
        nruh: u16 = 0,
    }
}

layout! {
    /// Who uses a reclaim unit handle. Source: base specification 2.1, figure 283.
    pub struct HandleUsage [8] {
        /// 0 is nobody, 1 is hosts, 2 is the controller.
        ruha: u8 = 0,
    }
}

layout! {
    /// FDP Statistics. Source: base specification 2.1, figure 284.
    pub struct Statistics [64] {
        /// Bytes that hosts wrote, metadata included.
        hbmw: u128 = 0,
        /// Bytes that the drive wrote to the media.
        mbmw: u128 = 16,
        /// Bytes that the drive erased on the media.
        mbe: u128 = 32,
    }
}

layout! {
    /// The head of the FDP Events log. Source: base specification 2.1, figure 285.
    pub struct EventsHead [64] {
        /// Number of events.
        nevents: u32 = 0,
    }
}

layout! {
    /// An FDP event. Source: base specification 2.1, figure 286.
    pub struct Event [64] {
        /// What happened.
        kind: u8 = 0,
        /// Which fields are valid. Bit 0: the placement identifier. Bit 1: the namespace. Bit 2:
        /// the reclaim group and the handle. [`event_flags`] has the names.
        flags: u8 = 1,
        /// Placement identifier.
        pid: u16 = 2,
        /// The time in milliseconds in the lower six bytes. The upper two bytes say where the time
        /// comes from.
        timestamp: u64 = 4,
        /// Namespace.
        nsid: u32 = 12,
        /// Further data, which depends on the kind.
        specific: [u8; 16] = 16,
        /// Reclaim group.
        rgid: u16 = 32,
        /// Reclaim unit handle.
        ruhid: u8 = 34,
    }
}

/// Bits of [`Event::flags`].
pub mod event_flags {
    /// The placement identifier is valid.
    pub const PIV: u8 = 1 << 0;
    /// The namespace is valid.
    pub const NSIDV: u8 = 1 << 1;
    /// The reclaim group and the handle are valid.
    pub const LV: u8 = 1 << 2;
}

layout! {
    /// The head of Reclaim Unit Handle Status. Source: base specification 2.1, figure 556.
    pub struct HandleStatusHead [16] {
        /// Number of descriptors that follow.
        nruhsd: u16 = 14,
    }
}

layout! {
    /// A placement handle of a namespace, and the reclaim unit that it fills. Source: base
    /// specification 2.1, figure 557.
    pub struct HandleStatus [32] {
        /// Placement identifier.
        pid: u16 = 0,
        /// Reclaim unit handle.
        ruhid: u16 = 2,
        /// Time that is left to write the reclaim unit, in seconds. Zero means no limit.
        earutr: u32 = 4,
        /// Number of blocks that can still be written to the reclaim unit.
        ruamw: u64 = 8,
    }
}

/// The operation (MO) on reclaim unit handles. I/O Management Receive returns their status, and I/O
/// Management Send updates them.
pub const OPERATION_HANDLES: u8 = 1;

/// The most placement identifiers that one I/O Management Send may have.
pub const PLACEMENTS_MAX: usize = 128;

/// An I/O Management Receive or Send. Source: base specification 2.1, 7.3 and 7.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoManagement {
    /// The operation (MO).
    pub operation: u8,
    /// A value for the operation (MOS). For an update, it is the number of placement identifiers,
    /// less one.
    pub specific: u16,
    /// Number of bytes to return, a multiple of four. Only Receive has it.
    pub size: u64,
}

impl IoManagement {
    /// Takes the fields from an I/O Management command.
    pub const fn of(command: &Command) -> Self {
        let [cdw10, numd, ..] = command.cdw10_to_15;
        Self { operation: cdw10 as u8, specific: (cdw10 >> 16) as u16, size: (numd as u64 + 1) * 4 }
    }

    /// Makes the command that asks for the status of all handles, in `size` bytes.
    ///
    /// # Panics
    /// If `size` is zero, or not a multiple of four.
    pub fn status(cid: u16, size: u32) -> Command {
        assert!(size > 0 && size.is_multiple_of(4), "the status is read in dwords");
        Command::new(opcode::nvm::IO_MANAGEMENT_RECEIVE, cid)
            .cdw(10, OPERATION_HANDLES.into())
            .cdw(11, size / 4 - 1)
    }

    /// Makes the command that moves the handles of `count` placement identifiers to fresh reclaim
    /// units. The placement identifiers are the command's data.
    ///
    /// # Panics
    /// If `count` is zero, or more than [`PLACEMENTS_MAX`].
    pub fn update(cid: u16, count: usize) -> Command {
        assert!((1..=PLACEMENTS_MAX).contains(&count), "invalid number of placements: {count}");
        Command::new(opcode::nvm::IO_MANAGEMENT_SEND, cid)
            .cdw(10, u32::from(OPERATION_HANDLES) | (count as u32 - 1) << 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_as_its_figures_have_it() {
        let configuration = Configuration {
            dsze: 96,
            fdpa: FDPA_VALID | 1,
            nrg: 2,
            nruh: 8,
            maxpids: 15,
            nns: 1,
            runs: 64 << 20,
            ..Configuration::default()
        };
        let bytes = configuration.encode();
        assert_eq!(bytes[..12], [96, 0, 0x81, 0, 2, 0, 0, 0, 8, 0, 15, 0]);
        assert_eq!(bytes[12..24], [1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0]);
        assert_eq!(Configuration::decode(&bytes), Ok(configuration));
        let head = ConfigurationsHead { numfdpc: 0, version: 0, size: 112 };
        assert_eq!(head.encode()[..8], [0, 0, 0, 0, 112, 0, 0, 0]);
        assert_eq!(HandleDescriptor { ruht: 2 }.encode(), [2, 0, 0, 0]);
        assert_eq!(HandleUsage { ruha: 1 }.encode(), [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(UsageHead { nruh: 8 }.encode(), [8, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn statistics_are_three_numbers_of_16_bytes() {
        let statistics = Statistics { hbmw: 1, mbmw: 2, mbe: 3 };
        let bytes = statistics.encode();
        assert_eq!((bytes[0], bytes[16], bytes[32]), (1, 2, 3));
        assert_eq!(bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>(), 6);
    }

    #[test]
    fn an_event_is_as_its_figure_has_it() {
        let event = Event {
            kind: 3,
            flags: event_flags::PIV | event_flags::NSIDV,
            pid: 0x0102,
            timestamp: 0x0807_0605_0403_0201,
            nsid: 1,
            specific: [5; 16],
            rgid: 0x0a,
            ruhid: 0x0b,
        };
        let bytes = event.encode();
        assert_eq!(bytes[..12], [3, 3, 2, 1, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[12..17], [1, 0, 0, 0, 5]);
        assert_eq!(bytes[32..35], [0x0a, 0, 0x0b]);
        assert_eq!(Event::decode(&bytes), Ok(event));
    }

    #[test]
    fn handles_are_asked_for_and_updated_by_operation_1() {
        let receive = IoManagement::status(1, 48);
        assert_eq!((receive.opcode, receive.cdw10_to_15[..2].to_vec()), (0x12, vec![1, 11]));
        assert_eq!(IoManagement::of(&receive).size, 48);
        let send = IoManagement::update(1, 3);
        assert_eq!((send.opcode, send.cdw10_to_15[0]), (0x1d, 0x0002_0001));
        assert_eq!(IoManagement::of(&send).specific, 2);
        let status = HandleStatus { pid: 1, ruhid: 2, earutr: 3, ruamw: 4 };
        let bytes = status.encode();
        assert_eq!(bytes[..9], [1, 0, 2, 0, 3, 0, 0, 0, 4]);
        assert_eq!(HandleStatusHead { nruhsd: 8 }.encode()[14..], [8, 0]);
    }
}
