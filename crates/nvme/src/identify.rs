//! The structures that Identify returns. Source: base specification 2.1, 5.1.13; NVM command set
//! 1.1, 4.1.5.

use crate::{Ascii, Command, Name, opcode};

/// Size in bytes of each structure that Identify returns.
pub const IDENTIFY_SIZE: usize = 4096;

/// Which structure Identify is asked for (CNS). Source: base specification 2.1, figure 310.
pub mod cns {
    /// What the NVM command set says about a namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// What is true of the controller in every command set.
    pub const CONTROLLER: u8 = 0x01;
    /// The active namespaces above a given number.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// The identifiers of a namespace.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// What a given command set says about a namespace.
    pub const COMMAND_SET_NAMESPACE: u8 = 0x05;
    /// What a given command set says about the controller.
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
    /// The active namespaces of a given command set, above a given number.
    pub const COMMAND_SET_ACTIVE_NAMESPACES: u8 = 0x07;
    /// What is true of a namespace in every command set.
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
    /// The endurance groups above a given number.
    pub const ENDURANCE_GROUPS: u8 = 0x19;
    /// The combinations of command sets that can be used together.
    pub const COMMAND_SETS: u8 = 0x1c;
}

/// The NVM command set's number (CSI).
pub const CSI_NVM: u8 = 0;

/// What an Identify asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identify {
    /// Which structure. [`cns`] has the structures that this crate knows.
    pub cns: u8,
    /// Identifier of the controller. Only some structures need it.
    pub cntid: u16,
    /// A further identifier, which only some structures need.
    pub cns_specific: u16,
    /// The command set. Only some structures need it.
    pub csi: u8,
}

impl Identify {
    /// Takes the fields from an Identify command.
    pub const fn of(command: &Command) -> Self {
        let [cdw10, cdw11, ..] = command.cdw10_to_15;
        Self {
            cns: cdw10 as u8,
            cntid: (cdw10 >> 16) as u16,
            cns_specific: cdw11 as u16,
            csi: (cdw11 >> 24) as u8,
        }
    }

    /// Makes the command. The caller adds the namespace, and the descriptor of where the data goes.
    pub fn command(&self, cid: u16) -> Command {
        Command::new(opcode::admin::IDENTIFY, cid)
            .cdw(10, u32::from(self.cns) | u32::from(self.cntid) << 16)
            .cdw(11, u32::from(self.cns_specific) | u32::from(self.csi) << 24)
    }
}

layout! {
    /// Identify Controller. Source: base specification 2.1, figure 312.
    pub struct Controller [4096] {
        /// PCI vendor identifier.
        vid: u16 = 0,
        /// PCI subsystem vendor identifier.
        ssvid: u16 = 2,
        /// Serial number.
        sn: Ascii<20> = 4,
        /// Model.
        mn: Ascii<40> = 24,
        /// Firmware revision.
        fr: Ascii<8> = 64,
        /// Recommended arbitration burst.
        rab: u8 = 72,
        /// IEEE identifier of the vendor.
        ieee: [u8; 3] = 73,
        /// Whether the subsystem may have several ports or several controllers.
        cmic: u8 = 76,
        /// The longest transfer, in pages of 4 KiB, as a power of two. Zero means no limit.
        mdts: u8 = 77,
        /// Identifier of the controller.
        cntlid: u16 = 78,
        /// Version of the specification.
        ver: u32 = 80,
        /// The longest time to resume from power state D3, in µs.
        rtd3r: u32 = 84,
        /// The longest time to enter power state D3, in µs.
        rtd3e: u32 = 88,
        /// The optional asynchronous events that the controller may send.
        oaes: u32 = 92,
        /// Attributes.
        ctratt: u32 = 96,
        /// Type: 1 is I/O, 2 is discovery, 3 is administrative.
        cntrltype: u8 = 111,
        /// GUID of the field-replaceable unit.
        fguid: [u8; 16] = 112,
        /// The optional admin commands that the controller supports.
        oacs: u16 = 256,
        /// The most Abort commands at the same time, less one.
        acl: u8 = 258,
        /// The most Asynchronous Event Requests at the same time, less one.
        aerl: u8 = 259,
        /// Firmware slots.
        frmw: u8 = 260,
        /// Attributes of log pages.
        lpa: u8 = 261,
        /// Number of entries of the error log, less one.
        elpe: u8 = 262,
        /// Number of power states, less one.
        npss: u8 = 263,
        /// Format of vendor specific admin commands.
        avscc: u8 = 264,
        /// Whether the controller changes its power state by itself.
        apsta: u8 = 265,
        /// Temperature from which the controller warns, in kelvin.
        wctemp: u16 = 266,
        /// Critical temperature, in kelvin.
        cctemp: u16 = 268,
        /// Total capacity, in bytes.
        tnvmcap: u128 = 280,
        /// Unallocated capacity, in bytes.
        unvmcap: u128 = 296,
        /// Granularity of the keep alive timer, in units of 100 ms. Zero means that the controller
        /// has no such timer.
        kas: u16 = 320,
        /// What the controller can do to sanitize the media.
        sanicap: u32 = 328,
        /// Highest number of an NVM set.
        nsetidmax: u16 = 338,
        /// Highest number of an endurance group.
        endgidmax: u16 = 340,
        /// Size of a submission queue entry, as powers of two. The lower four bits are the minimum,
        /// the upper four bits the maximum.
        sqes: u8 = 512,
        /// Size of a completion queue entry, encoded like `sqes`.
        cqes: u8 = 513,
        /// The most commands that a queue may have at the same time.
        maxcmd: u16 = 514,
        /// Highest number of a namespace.
        nn: u32 = 516,
        /// The optional NVM commands that the controller supports.
        oncs: u16 = 520,
        /// The fused operations that the controller supports.
        fuses: u16 = 522,
        /// Attributes of Format NVM.
        fna: u8 = 524,
        /// Whether the drive has a volatile write cache.
        vwc: u8 = 525,
        /// Atomic write unit, in blocks, less one.
        awun: u16 = 526,
        /// Atomic write unit at power failure, in blocks, less one.
        awupf: u16 = 528,
        /// Format of vendor specific I/O commands.
        icsvscc: u8 = 530,
        /// The kinds of write protection that a namespace may have.
        nwpc: u8 = 531,
        /// Atomic compare and write unit, in blocks, less one.
        acwu: u16 = 532,
        /// The SGLs that the controller supports.
        sgls: u32 = 536,
        /// The most namespaces. Zero means as many as `nn` says.
        mnan: u32 = 540,
        /// The subsystem's name.
        subnqn: Name<256> = 768,
        /// Size of a command capsule of an I/O queue, in units of 16 bytes.
        ioccsz: u32 = 1792,
        /// Size of a response capsule, in units of 16 bytes.
        iorcsz: u32 = 1796,
        /// Offset of in-capsule data after the submission queue entry, in units of 16 bytes.
        icdoff: u16 = 1800,
        /// Fabrics attributes. Bit 0: the static controller model.
        fcatt: u8 = 1802,
        /// The most SGL descriptors that a capsule may have.
        msdbd: u8 = 1803,
        /// The optional Fabrics commands that the controller supports. Bit 0: Disconnect.
        ofcs: u16 = 1804,
        /// Kind of discovery controller: 1 is direct, 2 is central.
        dctype: u8 = 1806,
        /// The most power that power state 0 takes, in centiwatts.
        psd0_mp: u16 = 2048,
    }
}

/// Bits of [`Controller::ctratt`].
pub mod ctratt {
    /// Host identifiers of 128 bits.
    pub const HOST_ID_128: u32 = 1 << 0;
    /// Endurance groups.
    pub const ENDURANCE_GROUPS: u32 = 1 << 4;
    /// Any command restarts the keep alive timer (TBKAS).
    pub const TRAFFIC_BASED_KEEP_ALIVE: u32 = 1 << 6;
    /// Flexible data placement.
    pub const FDPS: u32 = 1 << 19;
}

/// Bits of [`Controller::oacs`].
pub mod oacs {
    /// Directive Send and Directive Receive.
    pub const DIRECTIVES: u16 = 1 << 5;
}

/// Bits of [`Controller::oncs`].
pub mod oncs {
    /// Compare.
    pub const COMPARE: u16 = 1 << 0;
    /// Dataset Management.
    pub const DSM: u16 = 1 << 2;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// The field Save in Set Features, and the field Select in Get Features.
    pub const FEATURE_SELECT: u16 = 1 << 4;
    /// Timestamp.
    pub const TIMESTAMP: u16 = 1 << 6;
    /// Verify.
    pub const VERIFY: u16 = 1 << 7;
}

/// Bits of [`Controller::lpa`].
pub mod lpa {
    /// Each namespace has a SMART log page of its own.
    pub const SMART_PER_NAMESPACE: u8 = 1 << 0;
    /// Commands Supported and Effects.
    pub const EFFECTS: u8 = 1 << 1;
    /// Offsets and lengths of 32 bits.
    pub const EXTENDED_DATA: u8 = 1 << 2;
    /// The log pages that list what is supported, such as Supported Log Pages.
    pub const SUPPORTED_LOG_PAGES: u8 = 1 << 5;
}

/// Types of controllers ([`Controller::cntrltype`]).
pub mod cntrltype {
    /// An I/O controller: one with namespaces.
    pub const IO: u8 = 1;
    /// A discovery controller.
    pub const DISCOVERY: u8 = 2;
}

layout! {
    /// A format of blocks. Source: NVM command set 1.1, figure 116.
    pub struct LbaFormat [4] {
        /// Bytes of metadata.
        ms: u16 = 0,
        /// Size of a block in bytes, as a power of two.
        lbads: u8 = 2,
        /// Relative performance: 0 is best.
        rp: u8 = 3,
    }
}

layout! {
    /// Identify Namespace of the NVM command set. Source: NVM command set 1.1, figure 114.
    pub struct Namespace [4096] {
        /// Size, in blocks.
        nsze: u64 = 0,
        /// Capacity, in blocks.
        ncap: u64 = 8,
        /// Number of allocated blocks.
        nuse: u64 = 16,
        /// Features. Bit 4: the preferred and optimal sizes, from `npwg` to `nows`, are valid.
        nsfeat: u8 = 24,
        /// Number of formats, less one.
        nlbaf: u8 = 25,
        /// The format in use.
        flbas: u8 = 26,
        /// How the namespace can transfer metadata.
        mc: u8 = 27,
        /// The kinds of protection information that the namespace may have.
        dpc: u8 = 28,
        /// The kind of protection information in use.
        dps: u8 = 29,
        /// Bit 0: several controllers may have the namespace at the same time.
        nmic: u8 = 30,
        /// The reservations that the namespace supports.
        rescap: u8 = 31,
        /// Progress of a Format NVM command.
        fpi: u8 = 32,
        /// Bits 0 to 2: what deallocated blocks read as. 0 is not reported, 1 is zeros, 2 is ones.
        /// Bit 3: Write Zeroes may deallocate blocks.
        dlfeat: u8 = 33,
        /// Atomic write unit, in blocks, less one.
        nawun: u16 = 34,
        /// Atomic write unit at power failure, in blocks, less one.
        nawupf: u16 = 36,
        /// Atomic compare and write unit, in blocks, less one.
        nacwu: u16 = 38,
        /// Boundary that I/O should not cross, in blocks.
        noiob: u16 = 46,
        /// Capacity, in bytes.
        nvmcap: u128 = 48,
        /// Preferred granularity of writes, in blocks, less one.
        npwg: u16 = 64,
        /// Preferred alignment of writes, in blocks, less one.
        npwa: u16 = 66,
        /// Preferred granularity of deallocations, in blocks, less one.
        npdg: u16 = 68,
        /// Preferred alignment of deallocations, in blocks, less one.
        npda: u16 = 70,
        /// Optimal size of writes, in blocks, less one.
        nows: u16 = 72,
        /// Asymmetric namespace access (ANA) group.
        anagrpid: u32 = 92,
        /// Attributes. Bit 0: the namespace is write protected.
        nsattr: u8 = 99,
        /// NVM set.
        nvmsetid: u16 = 100,
        /// Endurance group.
        endgid: u16 = 102,
        /// Namespace Globally Unique Identifier, most significant byte first.
        nguid: [u8; 16] = 104,
        /// IEEE Extended Unique Identifier, most significant byte first.
        eui64: [u8; 8] = 120,
        /// The first format.
        lbaf0: [u8; 4] = 128,
    }
}

layout! {
    /// Identify Namespace, for every command set. Source: base specification 2.1, figure 319.
    pub struct IndependentNamespace [4096] {
        /// Features.
        nsfeat: u8 = 0,
        /// Bit 0: several controllers may have the namespace at the same time.
        nmic: u8 = 1,
        /// The reservations that the namespace supports.
        rescap: u8 = 2,
        /// Progress of a Format NVM command.
        fpi: u8 = 3,
        /// Asymmetric namespace access (ANA) group.
        anagrpid: u32 = 4,
        /// Attributes.
        nsattr: u8 = 8,
        /// NVM set.
        nvmsetid: u16 = 10,
        /// Endurance group.
        endgid: u16 = 12,
        /// Status. Bit 0: the namespace is ready.
        nstat: u8 = 14,
    }
}

layout! {
    /// Identify Controller of the NVM command set. Source: NVM command set 1.1, figure 119.
    pub struct NvmController [4096] {
        /// The longest Verify, encoded like `mdts`. Zero means no limit.
        vsl: u8 = 0,
        /// The longest Write Zeroes, encoded like `mdts`. Zero means no limit.
        wzsl: u8 = 1,
        /// The longest Write Uncorrectable, encoded like `mdts`.
        wusl: u8 = 2,
        /// The most ranges of a Dataset Management. Zero means no limit.
        dmrl: u8 = 3,
        /// The most blocks of one such range. Zero means no limit.
        dmrsl: u32 = 4,
        /// The most blocks of all ranges of a Dataset Management together. Zero means no limit.
        dmsl: u64 = 8,
    }
}

/// Kinds of identifiers of a namespace (NIDT). Source: base specification 2.1, figure 316.
pub mod nidt {
    /// EUI64, 8 bytes.
    pub const EUI64: u8 = 1;
    /// NGUID, 16 bytes.
    pub const NGUID: u8 = 2;
    /// UUID, 16 bytes.
    pub const UUID: u8 = 3;
    /// Command set, 1 byte.
    pub const CSI: u8 = 4;
}

/// Appends an identifier of a namespace: its kind, its length, and its bytes.
pub fn push_descriptor(out: &mut Vec<u8>, kind: u8, identifier: &[u8]) {
    out.extend([kind, identifier.len() as u8, 0, 0]);
    out.extend(identifier);
}

/// The identifiers of a namespace, each with its kind. The iterator ends at the first identifier
/// that is empty or incomplete.
pub fn descriptors(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [kind, size, _, _, rest @ ..] = bytes else { return None };
        let size = usize::from(*size);
        if size == 0 || size > rest.len() {
            return None;
        }
        let (identifier, after) = rest.split_at(size);
        bytes = after;
        Some((*kind, identifier))
    })
}

/// The numbers of a list of namespaces, up to the first zero.
pub fn namespace_list(bytes: &[u8]) -> impl Iterator<Item = u32> {
    let numbers = bytes
        .chunks_exact(4)
        .map(|four| u32::from_le_bytes(four.try_into().expect("a chunk of four has four bytes")));
    numbers.take_while(|&nsid| nsid != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identify_names_its_structure_and_command_set() {
        let identify = Identify { cns: cns::COMMAND_SET_NAMESPACE, csi: 2, ..Identify::default() };
        let bytes = identify.command(1).encode();
        assert_eq!(bytes[40..48], [5, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(Identify::of(&Command::decode(&bytes)), identify);
    }

    #[test]
    fn the_controller_has_its_fields_where_figure_312_has_them() {
        let controller = Controller {
            sn: Ascii::new("123"),
            mdts: 5,
            ver: 0x0002_0100,
            ctratt: ctratt::FDPS | ctratt::ENDURANCE_GROUPS,
            cntrltype: cntrltype::IO,
            kas: 10,
            endgidmax: 1,
            sqes: 0x66,
            nn: 1,
            subnqn: Name::new("nqn.x").expect("it fits"),
            ioccsz: 516,
            msdbd: 1,
            ofcs: 1,
            ..Controller::default()
        };
        let bytes = controller.encode();
        assert_eq!(&bytes[4..8], b"123 ");
        assert_eq!(bytes[23], b' ');
        assert_eq!((bytes[77], bytes[111], bytes[512]), (5, 1, 0x66));
        assert_eq!(bytes[80..84], [0, 1, 2, 0]);
        assert_eq!(bytes[96..100], [0x10, 0, 0x08, 0]);
        assert_eq!(bytes[320..322], [10, 0]);
        assert_eq!(bytes[340..342], [1, 0]);
        assert_eq!(&bytes[768..774], b"nqn.x\0");
        assert_eq!(bytes[1792..1796], [4, 2, 0, 0]);
        assert_eq!((bytes[1803], bytes[1804]), (1, 1));
        assert_eq!(Controller::decode(&bytes), Ok(controller));
    }

    #[test]
    fn the_namespace_has_its_fields_where_figure_114_has_them() {
        let format = LbaFormat { ms: 0, lbads: 12, rp: 0 };
        let namespace = Namespace {
            nsze: 0x1000,
            dlfeat: 9,
            endgid: 1,
            nguid: [9; 16],
            lbaf0: format.encode(),
            ..Namespace::default()
        };
        let bytes = namespace.encode();
        assert_eq!(bytes[..8], [0, 0x10, 0, 0, 0, 0, 0, 0]);
        assert_eq!((bytes[33], bytes[102], bytes[104], bytes[119]), (9, 1, 9, 9));
        assert_eq!(bytes[128..132], [0, 0, 12, 0]);
        assert_eq!(Namespace::decode(&bytes), Ok(namespace));
    }

    #[test]
    fn descriptors_come_one_after_the_other() {
        let mut bytes = Vec::new();
        push_descriptor(&mut bytes, nidt::UUID, &[1; 16]);
        push_descriptor(&mut bytes, nidt::CSI, &[CSI_NVM]);
        assert_eq!(bytes[..5], [3, 16, 0, 0, 1]);
        assert_eq!(bytes[20..], [4, 1, 0, 0, 0]);
        let found = |bytes: &[u8]| {
            descriptors(bytes).map(|(kind, id)| (kind, id.len())).collect::<Vec<_>>()
        };
        assert_eq!(found(&bytes), [(3, 16), (4, 1)]);
        bytes.resize(4096, 0);
        assert_eq!(found(&bytes), [(3, 16), (4, 1)]);
        assert_eq!(found(&bytes[..19]), []);
    }

    #[test]
    fn a_list_of_namespaces_ends_with_a_zero() {
        assert_eq!(
            namespace_list(&[1, 0, 0, 0, 7, 1, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0]).collect::<Vec<_>>(),
            [1, 263]
        );
    }
}
