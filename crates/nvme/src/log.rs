//! Log pages. The log pages of data placement are in [`fdp`](crate::fdp). Source: NVM Express base
//! specification 2.1, section 5.1.12.

use crate::{Ascii, Command, Name, opcode};

/// The numbers of log pages (LID). Source: base specification 2.1, figure 206.
pub mod lid {
    /// Supported Log Pages.
    pub const SUPPORTED: u8 = 0x00;
    /// Error Information.
    pub const ERROR: u8 = 0x01;
    /// SMART / Health Information.
    pub const SMART: u8 = 0x02;
    /// Firmware Slot Information.
    pub const FIRMWARE_SLOT: u8 = 0x03;
    /// Changed Attached Namespace List.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands Supported and Effects.
    pub const EFFECTS: u8 = 0x05;
    /// Endurance Group Information.
    pub const ENDURANCE_GROUP: u8 = 0x09;
    /// Feature Identifiers Supported and Effects.
    pub const FEATURES: u8 = 0x12;
    /// FDP Configurations.
    pub const FDP_CONFIGURATIONS: u8 = 0x20;
    /// Reclaim Unit Handle Usage.
    pub const FDP_HANDLE_USAGE: u8 = 0x21;
    /// FDP Statistics.
    pub const FDP_STATISTICS: u8 = 0x22;
    /// FDP Events.
    pub const FDP_EVENTS: u8 = 0x23;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
}

/// What a Get Log Page asks for. Source: base specification 2.1, figures 201 to 205.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetLogPage {
    /// The page.
    pub lid: u8,
    /// A parameter of the page (Log Specific Parameter), 7 bits.
    pub lsp: u8,
    /// Whether the asynchronous event that belongs to this page stays pending (Retain Asynchronous
    /// Event). Otherwise the read clears it.
    pub rae: bool,
    /// Number of bytes to return, a multiple of four.
    pub size: u64,
    /// Log Specific Identifier. For some pages, it is the endurance group.
    pub lsi: u16,
    /// First byte to return.
    pub offset: u64,
    /// Whether `offset` is the index of an entry instead of a byte (Offset Type).
    pub is_index: bool,
    /// The command set.
    pub csi: u8,
}

impl GetLogPage {
    /// Takes the fields from a Get Log Page command.
    pub const fn of(command: &Command) -> Self {
        let [cdw10, cdw11, low, high, cdw14, _] = command.cdw10_to_15;
        let dwords = (cdw10 >> 16) as u64 | ((cdw11 & 0xffff) as u64) << 16;
        Self {
            lid: cdw10 as u8,
            lsp: (cdw10 >> 8 & 0x7f) as u8,
            rae: cdw10 >> 15 & 1 != 0,
            size: (dwords + 1) * 4,
            lsi: (cdw11 >> 16) as u16,
            offset: low as u64 | (high as u64) << 32,
            is_index: cdw14 >> 23 & 1 != 0,
            csi: (cdw14 >> 24) as u8,
        }
    }

    /// Makes the command. The caller adds the namespace, and the descriptor of where the data goes.
    ///
    /// # Panics
    /// If `size` is zero, or not a multiple of four.
    pub fn command(&self, cid: u16) -> Command {
        assert!(self.size > 0 && self.size.is_multiple_of(4), "a log page is read in dwords");
        let dwords = self.size / 4 - 1;
        let cdw10 = u32::from(self.lid)
            | u32::from(self.lsp & 0x7f) << 8
            | u32::from(self.rae) << 15
            | (dwords as u32 & 0xffff) << 16;
        Command::new(opcode::admin::GET_LOG_PAGE, cid)
            .cdw(10, cdw10)
            .cdw(11, (dwords >> 16) as u32 & 0xffff | u32::from(self.lsi) << 16)
            .cdw(12, self.offset as u32)
            .cdw(13, (self.offset >> 32) as u32)
            .cdw(14, u32::from(self.is_index) << 23 | u32::from(self.csi) << 24)
    }
}

layout! {
    /// An entry of the error log. Source: base specification 2.1, figure 209.
    pub struct ErrorEntry [64] {
        /// Number of the error, counted since the drive was made. Zero marks an empty entry.
        error_count: u64 = 0,
        /// The queue.
        sqid: u16 = 8,
        /// The command.
        cid: u16 = 10,
        /// The command's status, with the phase bit.
        status: u16 = 12,
        /// Which part of the command is wrong. Bits 0 to 7 are the number of the byte, bits 8 to 10
        /// the number of the bit in that byte.
        parameter_location: u16 = 14,
        /// The first block that had the error.
        lba: u64 = 16,
        /// The namespace.
        nsid: u32 = 24,
        /// The vendor's log page that tells more about the error.
        vendor_page: u8 = 28,
        /// The transport that a transport error belongs to: 3 is TCP.
        trtype: u8 = 29,
        /// Further data, which depends on the command.
        command_specific: u64 = 32,
    }
}

layout! {
    /// SMART / Health Information. Source: base specification 2.1, figure 210.
    pub struct Smart [512] {
        /// Critical warnings, one bit each.
        critical_warning: u8 = 0,
        /// Temperature, in kelvin.
        composite_temperature: u16 = 1,
        /// Spare capacity that is left, in percent.
        available_spare: u8 = 3,
        /// Spare capacity below which the drive warns, in percent.
        available_spare_threshold: u8 = 4,
        /// How much of the expected life is used, in percent.
        percentage_used: u8 = 5,
        /// Critical warnings of all endurance groups, one bit each.
        endurance_group_warning: u8 = 6,
        /// Data that hosts read, in units of 512,000 bytes.
        data_units_read: u128 = 32,
        /// Data that hosts wrote, in units of 512,000 bytes.
        data_units_written: u128 = 48,
        /// Number of read commands.
        host_read_commands: u128 = 64,
        /// Number of write commands.
        host_write_commands: u128 = 80,
        /// Time that the controller was busy, in minutes.
        controller_busy_time: u128 = 96,
        /// How often power was turned on.
        power_cycles: u128 = 112,
        /// Time that power was on, in hours.
        power_on_hours: u128 = 128,
        /// How often power was lost without a shutdown before.
        unsafe_shutdowns: u128 = 144,
        /// Number of media errors.
        media_errors: u128 = 160,
        /// Number of entries that the error log ever had.
        error_log_entries: u128 = 176,
    }
}

layout! {
    /// Firmware Slot Information. Source: base specification 2.1, figure 211.
    pub struct FirmwareSlot [512] {
        /// Bits 0 to 2: the active slot.
        afi: u8 = 0,
        /// Revision of the firmware in slot 1.
        frs1: Ascii<8> = 8,
    }
}

layout! {
    /// Endurance Group Information. Source: base specification 2.1, figure 218.
    pub struct EnduranceGroup [512] {
        /// Critical warnings, one bit each.
        critical_warning: u8 = 0,
        /// Spare capacity that is left, in percent.
        available_spare: u8 = 3,
        /// Spare capacity below which the drive warns, in percent.
        available_spare_threshold: u8 = 4,
        /// How much of the expected life is used, in percent.
        percentage_used: u8 = 5,
        /// How much can be written in the drive's whole life, in units of 10^9 bytes. Zero means
        /// not reported.
        endurance_estimate: u128 = 32,
        /// Data that hosts read, in units of 10^9 bytes.
        data_units_read: u128 = 48,
        /// Data that hosts wrote, in units of 10^9 bytes.
        data_units_written: u128 = 64,
        /// Data that the drive wrote to the media, in units of 10^9 bytes.
        media_units_written: u128 = 80,
        /// Number of read commands.
        host_read_commands: u128 = 96,
        /// Number of write commands.
        host_write_commands: u128 = 112,
        /// Number of media errors.
        media_errors: u128 = 128,
        /// Number of entries that the error log ever had.
        error_log_entries: u128 = 144,
        /// Total capacity, in bytes.
        total_capacity: u128 = 160,
        /// Unallocated capacity, in bytes.
        unallocated_capacity: u128 = 176,
    }
}

/// Size of Commands Supported and Effects, in bytes. It starts with 256 admin commands and 256 I/O
/// commands, four bytes each; the rest is reserved. Source: base specification 2.1, figure 214.
pub const EFFECTS_SIZE: usize = 4096;
/// Offset of the I/O commands in Commands Supported and Effects.
pub const EFFECTS_IO_AT: usize = 1024;
/// Size in bytes of Supported Log Pages, and of Feature Identifiers Supported and Effects: 256
/// entries of four bytes each. Source: base specification 2.1, figures 208 and 256.
pub const SUPPORTED_SIZE: usize = 1024;

/// Bits of an entry of Commands Supported and Effects. Bit 0 also has this meaning in Supported Log
/// Pages, and in Feature Identifiers Supported and Effects.
pub mod effects {
    /// The command, log page or feature is supported.
    pub const SUPPORTED: u32 = 1 << 0;
    /// The command may change the contents of logical blocks.
    pub const LBCC: u32 = 1 << 1;
}

layout! {
    /// The head of a discovery log. Source: base specification 2.1, figure 294.
    pub struct DiscoveryHead [1024] {
        /// A number that changes whenever the log changes.
        genctr: u64 = 0,
        /// Number of entries.
        numrec: u64 = 8,
        /// Format of the entries: zero.
        recfmt: u16 = 16,
    }
}

layout! {
    /// An entry of a discovery log. Source: base specification 2.1, figure 295.
    pub struct DiscoveryEntry [1024] {
        /// Transport: 3 is TCP.
        trtype: u8 = 0,
        /// Address family: 1 is IPv4, 2 is IPv6.
        adrfam: u8 = 1,
        /// Kind of subsystem: 1 is another discovery subsystem, 2 is an NVM subsystem, 3 is this
        /// discovery subsystem.
        subtype: u8 = 2,
        /// What the transport requires.
        treq: u8 = 3,
        /// The port's number.
        portid: u16 = 4,
        /// The controller. FFFFh means any controller.
        cntlid: u16 = 6,
        /// The most entries that an admin queue may have.
        asqsz: u16 = 8,
        /// Flags.
        eflags: u16 = 10,
        /// The TCP port, in decimal.
        trsvcid: Ascii<32> = 32,
        /// The subsystem's name.
        subnqn: Name<256> = 256,
        /// The address.
        traddr: Ascii<256> = 512,
        /// Security of the TCP connection: 0 is none.
        sectype: u8 = 768,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_asked_for_by_dwords_less_one() {
        let page = GetLogPage {
            lid: lid::FDP_EVENTS,
            lsp: 1,
            size: 4 * 0x2_0001,
            lsi: 0x1234,
            offset: 0x1_0000_0008,
            ..GetLogPage::default()
        };
        let command = page.command(3);
        assert_eq!(command.cdw10_to_15, [0x0000_0123, 0x1234_0002, 8, 1, 0, 0]);
        assert_eq!(GetLogPage::of(&command), page);
        let flags = GetLogPage { rae: true, is_index: true, csi: 2, size: 4, ..page };
        assert_eq!(GetLogPage::of(&flags.command(3)), flags);
    }

    #[test]
    fn smart_has_its_counters_where_figure_210_has_them() {
        let smart = Smart {
            composite_temperature: 0x0136,
            data_units_written: 0x0102,
            error_log_entries: 3,
            ..Smart::default()
        };
        let bytes = smart.encode();
        assert_eq!(bytes[..4], [0, 0x36, 0x01, 0]);
        assert_eq!(bytes[48..50], [2, 1]);
        assert_eq!(bytes[176], 3);
        assert_eq!(Smart::decode(&bytes), Ok(smart));
    }

    #[test]
    fn entries_of_errors_and_discoveries_have_their_fields_in_place() {
        let entry = ErrorEntry {
            error_count: 1,
            sqid: 2,
            cid: 3,
            status: 4,
            parameter_location: 5,
            lba: 6,
            nsid: 7,
            trtype: 3,
            ..ErrorEntry::default()
        };
        let bytes = entry.encode();
        assert_eq!(bytes[8..18], [2, 0, 3, 0, 4, 0, 5, 0, 6, 0]);
        assert_eq!((bytes[24], bytes[29]), (7, 3));
        assert_eq!(ErrorEntry::decode(&bytes), Ok(entry));
        let entry = DiscoveryEntry {
            trtype: 3,
            adrfam: 1,
            subtype: 2,
            cntlid: 0xffff,
            trsvcid: Ascii::new("4420"),
            subnqn: Name::new("nqn.x").expect("it fits"),
            traddr: Ascii::new("127.0.0.1"),
            ..DiscoveryEntry::default()
        };
        let bytes = entry.encode();
        assert_eq!(bytes[..8], [3, 1, 2, 0, 0, 0, 0xff, 0xff]);
        assert_eq!(&bytes[32..37], b"4420 ");
        assert_eq!(&bytes[512..522], b"127.0.0.1 ");
        assert_eq!(DiscoveryEntry::decode(&bytes), Ok(entry));
    }
}
