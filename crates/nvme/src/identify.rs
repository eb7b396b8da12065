//! What Identify returns. Source: base specification 2.1, 5.1.13; NVM command set 1.1, 4.1.5.

use crate::{Ascii, Command, Name, opcode};

/// Size in bytes of everything that Identify returns.
pub const IDENTIFY_SIZE: usize = 4096;

/// Which structure Identify is asked for (CNS). Source: base specification 2.1, figure 310.
pub mod cns {
    /// The namespace, for the NVM command set.
    pub const NAMESPACE: u8 = 0x00;
    /// The controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Active namespaces above a number.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// The namespace's identifiers.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// The namespace, for a command set.
    pub const COMMAND_SET_NAMESPACE: u8 = 0x05;
    /// The controller, for a command set.
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
    /// Active namespaces of a command set above a number.
    pub const COMMAND_SET_ACTIVE_NAMESPACES: u8 = 0x07;
    /// The namespace, for all command sets alike.
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
    /// Endurance groups above a number.
    pub const ENDURANCE_GROUPS: u8 = 0x19;
    /// Combinations of command sets.
    pub const COMMAND_SETS: u8 = 0x1c;
}

/// The NVM command set's number (CSI).
pub const CSI_NVM: u8 = 0;

/// What an Identify asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identify {
    /// Which structure; [`cns`] has those that this crate knows.
    pub cns: u8,
    /// The controller, for some structures.
    pub cntid: u16,
    /// More about which one, for some structures.
    pub cns_specific: u16,
    /// The command set, for some structures.
    pub csi: u8,
}

impl Identify {
    /// From its command.
    pub const fn of(command: &Command) -> Self {
        let [cdw10, cdw11, ..] = command.cdw10_to_15;
        Self {
            cns: cdw10 as u8,
            cntid: (cdw10 >> 16) as u16,
            cns_specific: cdw11 as u16,
            csi: (cdw11 >> 24) as u8,
        }
    }

    /// The command for it. The caller adds the namespace and where its data goes.
    pub fn command(&self, cid: u16) -> Command {
        Command::new(opcode::admin::IDENTIFY, cid)
            .cdw(10, u32::from(self.cns) | u32::from(self.cntid) << 16)
            .cdw(11, u32::from(self.cns_specific) | u32::from(self.csi) << 24)
    }
}

layout! {
    /// Identify Controller. Source: base specification 2.1, figure 312.
    pub struct Controller [4096] {
        /// PCI vendor.
        vid: u16 = 0,
        /// PCI subsystem vendor.
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
        /// Several ports, several controllers.
        cmic: u8 = 76,
        /// Longest transfer: 2 to this power, in pages of 4 KiB; zero: no limit.
        mdts: u8 = 77,
        /// The controller.
        cntlid: u16 = 78,
        /// Version.
        ver: u32 = 80,
        /// Time to resume, in µs.
        rtd3r: u32 = 84,
        /// Time to shut down, in µs.
        rtd3e: u32 = 88,
        /// Asynchronous events that it may send.
        oaes: u32 = 92,
        /// Attributes.
        ctratt: u32 = 96,
        /// Type: 1 I/O, 2 discovery, 3 administrative.
        cntrltype: u8 = 111,
        /// GUID of the field-replaceable unit.
        fguid: [u8; 16] = 112,
        /// Optional admin commands.
        oacs: u16 = 256,
        /// Most Aborts at once, less one.
        acl: u8 = 258,
        /// Most requests for asynchronous events at once, less one.
        aerl: u8 = 259,
        /// Firmware slots.
        frmw: u8 = 260,
        /// Attributes of log pages.
        lpa: u8 = 261,
        /// Entries of the error log, less one.
        elpe: u8 = 262,
        /// Power states, less one.
        npss: u8 = 263,
        /// Format of vendor specific admin commands.
        avscc: u8 = 264,
        /// Power state transitions.
        apsta: u8 = 265,
        /// Temperature of a warning, in kelvin.
        wctemp: u16 = 266,
        /// Critical temperature, in kelvin.
        cctemp: u16 = 268,
        /// All capacity, in bytes.
        tnvmcap: u128 = 280,
        /// Unallocated capacity, in bytes.
        unvmcap: u128 = 296,
        /// Granularity of the keep alive timer, in units of 100 ms; zero: no keep alive.
        kas: u16 = 320,
        /// Sanitize capabilities.
        sanicap: u32 = 328,
        /// Highest number of an NVM set.
        nsetidmax: u16 = 338,
        /// Highest number of an endurance group.
        endgidmax: u16 = 340,
        /// Size of a submission queue entry: least in the lower, most in the upper four bits.
        sqes: u8 = 512,
        /// Size of a completion queue entry, as `sqes`.
        cqes: u8 = 513,
        /// Most commands of a queue at once.
        maxcmd: u16 = 514,
        /// Highest number of a namespace.
        nn: u32 = 516,
        /// Optional NVM commands.
        oncs: u16 = 520,
        /// Fused operations.
        fuses: u16 = 522,
        /// Attributes of Format NVM.
        fna: u8 = 524,
        /// Volatile write cache.
        vwc: u8 = 525,
        /// Atomic write unit, in blocks, less one.
        awun: u16 = 526,
        /// Atomic write unit at power failure, in blocks, less one.
        awupf: u16 = 528,
        /// Format of vendor specific I/O commands.
        icsvscc: u8 = 530,
        /// Write protection.
        nwpc: u8 = 531,
        /// Atomic compare and write unit, in blocks, less one.
        acwu: u16 = 532,
        /// SGLs.
        sgls: u32 = 536,
        /// Most namespaces; zero: `nn`.
        mnan: u32 = 540,
        /// The subsystem.
        subnqn: Name<256> = 768,
        /// Size of a command capsule of an I/O queue, in units of 16 bytes.
        ioccsz: u32 = 1792,
        /// Size of a response capsule, in units of 16 bytes.
        iorcsz: u32 = 1796,
        /// Offset of in-capsule data behind the submission queue entry, in units of 16 bytes.
        icdoff: u16 = 1800,
        /// Fabrics attributes: bit 0 a static controller model.
        fcatt: u8 = 1802,
        /// Most SGL descriptors of a capsule.
        msdbd: u8 = 1803,
        /// Optional Fabrics commands: bit 0 Disconnect.
        ofcs: u16 = 1804,
        /// Kind of discovery controller: 1 direct, 2 central.
        dctype: u8 = 1806,
        /// Most power of power state 0, in centiwatts.
        psd0_mp: u16 = 2048,
    }
}

/// Bits of [`Controller::ctratt`].
pub mod ctratt {
    /// Host identifiers of 128 bits.
    pub const HOST_ID_128: u32 = 1 << 0;
    /// Endurance groups.
    pub const ENDURANCE_GROUPS: u32 = 1 << 4;
    /// The keep alive timer is restarted by any command (TBKAS).
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
    /// Save in Set Features and Select in Get Features.
    pub const FEATURE_SELECT: u16 = 1 << 4;
    /// Timestamp.
    pub const TIMESTAMP: u16 = 1 << 6;
    /// Verify.
    pub const VERIFY: u16 = 1 << 7;
}

/// Bits of [`Controller::lpa`].
pub mod lpa {
    /// SMART of a namespace.
    pub const SMART_PER_NAMESPACE: u8 = 1 << 0;
    /// Commands Supported and Effects.
    pub const EFFECTS: u8 = 1 << 1;
    /// Offsets and lengths of 32 bits.
    pub const EXTENDED_DATA: u8 = 1 << 2;
    /// Supported Log Pages, and the like.
    pub const SUPPORTED_LOG_PAGES: u8 = 1 << 5;
}

/// Types of controllers ([`Controller::cntrltype`]).
pub mod cntrltype {
    /// With namespaces.
    pub const IO: u8 = 1;
    /// Discovery.
    pub const DISCOVERY: u8 = 2;
}

layout! {
    /// A format of blocks. Source: NVM command set 1.1, figure 116.
    pub struct LbaFormat [4] {
        /// Bytes of metadata.
        ms: u16 = 0,
        /// Size of a block: 2 to this power.
        lbads: u8 = 2,
        /// Relative performance: 0 best.
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
        /// Blocks that are allocated.
        nuse: u64 = 16,
        /// Features: bit 4 says that `npwg` and the like are there.
        nsfeat: u8 = 24,
        /// Formats, less one.
        nlbaf: u8 = 25,
        /// The format in use.
        flbas: u8 = 26,
        /// Metadata.
        mc: u8 = 27,
        /// Protection capabilities.
        dpc: u8 = 28,
        /// Protection.
        dps: u8 = 29,
        /// Whether several controllers may have it: bit 0.
        nmic: u8 = 30,
        /// Reservations.
        rescap: u8 = 31,
        /// Progress of a format.
        fpi: u8 = 32,
        /// What deallocated blocks read as: 0 not said, 1 zeros, 2 ones; bit 3: Write Zeroes may
        /// deallocate.
        dlfeat: u8 = 33,
        /// Atomic write unit, in blocks, less one.
        nawun: u16 = 34,
        /// Atomic write unit at power failure, in blocks, less one.
        nawupf: u16 = 36,
        /// Atomic compare and write unit, in blocks, less one.
        nacwu: u16 = 38,
        /// Optimal boundary, in blocks.
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
        /// Group of asymmetric access.
        anagrpid: u32 = 92,
        /// Attributes: bit 0 write protected.
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
    /// Identify Namespace for all command sets alike. Source: base specification 2.1, figure 319.
    pub struct IndependentNamespace [4096] {
        /// Features.
        nsfeat: u8 = 0,
        /// Whether several controllers may have it: bit 0.
        nmic: u8 = 1,
        /// Reservations.
        rescap: u8 = 2,
        /// Progress of a format.
        fpi: u8 = 3,
        /// Group of asymmetric access.
        anagrpid: u32 = 4,
        /// Attributes.
        nsattr: u8 = 8,
        /// NVM set.
        nvmsetid: u16 = 10,
        /// Endurance group.
        endgid: u16 = 12,
        /// Status: bit 0 ready.
        nstat: u8 = 14,
    }
}

layout! {
    /// Identify Controller of the NVM command set. Source: NVM command set 1.1, figure 119.
    pub struct NvmController [4096] {
        /// Longest Verify, as MDTS; zero: no limit.
        vsl: u8 = 0,
        /// Longest Write Zeroes, as MDTS; zero: no limit.
        wzsl: u8 = 1,
        /// Longest Write Uncorrectable, as MDTS.
        wusl: u8 = 2,
        /// Most ranges of Dataset Management; zero: no limit.
        dmrl: u8 = 3,
        /// Most blocks of such a range; zero: no limit.
        dmrsl: u32 = 4,
        /// Most blocks of a Dataset Management; zero: no limit.
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

/// The identifiers of a namespace, each with its kind. Ends at the first that is empty or cut.
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
