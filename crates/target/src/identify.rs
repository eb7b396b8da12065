//! The command Identify, which describes the subsystem.

use slimio_device::LBA_SIZE;
use slimio_nvme::identify::{
    self, CSI_NVM, IDENTIFY_SIZE, Identify, IndependentNamespace, LbaFormat, Namespace,
    NvmController, cns, cntrltype, ctratt, lpa, nidt, oacs, oncs,
};
use slimio_nvme::{Ascii, Command, DISCOVERY_NQN, NSID_ALL, Name, Status};

use crate::controller::{Controller, Kind};
use crate::limits::{
    ASYNC_REQUESTS_MAX, ERRORS_MAX, IN_CAPSULE_SIZE_MAX, QUEUE_DEPTH_MAX, TRANSFER_SIZE_MAX,
};
use crate::refusal::Refusal;
use crate::subsystem::{ENDURANCE_GROUP, NSID, Subsystem, hex};

/// Offsets of the fields CNS and CSI in the command, for errors.
const CNS_AT: u16 = 40;
const CSI_AT: u16 = 47;
/// The version of the base specification: 2.1.0.
pub(crate) const VERSION: u32 = 0x0002_0100;
/// Granularity of the keep alive timer, in units of 100 ms.
const KAS: u16 = 10;
/// Sizes of queue entries, as powers of two: 2^6 bytes in a submission queue, and 2^4 bytes in a
/// completion queue.
const SQES: u8 = 0x66;
const CQES: u8 = 0x44;
/// SGLs are supported with any alignment, and with offsets into the capsule.
const SGLS: u32 = 1 | 1 << 20;
/// Size of the longest transfer, as a power of two, in pages of 4 KiB.
const MDTS: u8 = (TRANSFER_SIZE_MAX / LBA_SIZE).trailing_zeros() as u8;
/// The bit of [`Namespace::nsfeat`] that says that preferred sizes are reported.
const NSFEAT_OPTPERF: u8 = 1 << 4;

/// Serves Identify.
pub(crate) fn run(
    subsystem: &Subsystem,
    controller: &Controller,
    command: &Command,
) -> Result<Vec<u8>, Refusal> {
    let asked = Identify::of(command);
    if controller.kind == Kind::Discovery {
        return match asked.cns {
            cns::CONTROLLER => Ok(discovery_controller(controller).encode().to_vec()),
            _ => Err(Refusal::field(CNS_AT)),
        };
    }
    let has_csi = matches!(
        asked.cns,
        cns::COMMAND_SET_NAMESPACE
            | cns::COMMAND_SET_CONTROLLER
            | cns::COMMAND_SET_ACTIVE_NAMESPACES
    );
    if has_csi && asked.csi != CSI_NVM {
        return Err(Refusal::at(Status::INVALID_FIELD, CSI_AT));
    }
    let is_ours = || if command.nsid == NSID { Ok(()) } else { Err(Refusal::namespace()) };
    let mut data = match asked.cns {
        cns::NAMESPACE => match command.nsid {
            NSID => namespace(subsystem).encode().to_vec(),
            // With the number that stands for all namespaces, a host asks for the properties that
            // all of them have in common.
            NSID_ALL => common_namespace().encode().to_vec(),
            _ => return Err(Refusal::namespace()),
        },
        cns::CONTROLLER => io_controller(subsystem, controller).encode().to_vec(),
        cns::ACTIVE_NAMESPACES | cns::COMMAND_SET_ACTIVE_NAMESPACES => {
            if command.nsid >= 0xffff_fffe {
                return Err(Refusal::namespace());
            }
            if command.nsid < NSID { NSID.to_le_bytes().to_vec() } else { Vec::new() }
        }
        cns::NAMESPACE_DESCRIPTORS => {
            is_ours()?;
            let mut list = Vec::new();
            identify::push_descriptor(&mut list, nidt::NGUID, &subsystem.uuid);
            identify::push_descriptor(&mut list, nidt::UUID, &subsystem.uuid);
            identify::push_descriptor(&mut list, nidt::CSI, &[CSI_NVM]);
            list
        }
        cns::COMMAND_SET_NAMESPACE => {
            // The data is all zeros, because neither protection nor storage tags are supported.
            is_ours()?;
            Vec::new()
        }
        cns::COMMAND_SET_CONTROLLER => nvm_controller().encode().to_vec(),
        cns::INDEPENDENT_NAMESPACE => {
            is_ours()?;
            let namespace = IndependentNamespace {
                nmic: 1,
                endgid: ENDURANCE_GROUP,
                nstat: 1,
                ..Default::default()
            };
            namespace.encode().to_vec()
        }
        // The list of endurance groups begins with the number of groups. The answer about command
        // sets, below, has one bit for each command set.
        cns::ENDURANCE_GROUPS => {
            let group = u16::from(asked.cns_specific <= ENDURANCE_GROUP);
            [u16::to_le_bytes(group), (group * ENDURANCE_GROUP).to_le_bytes()].concat()
        }
        cns::COMMAND_SETS => vec![1],
        _ => return Err(Refusal::field(CNS_AT)),
    };
    data.resize(IDENTIFY_SIZE, 0);
    Ok(data)
}

/// The fields that controllers for I/O and for discovery have in common.
fn controller_basics(controller: &Controller) -> identify::Controller {
    identify::Controller {
        mn: Ascii::new("SlimIO emulated drive"),
        fr: firmware_revision(),
        cntlid: controller.id,
        ver: VERSION,
        mdts: MDTS,
        ctratt: ctratt::HOST_ID_128 | ctratt::TRAFFIC_BASED_KEEP_ALIVE,
        aerl: ASYNC_REQUESTS_MAX as u8 - 1,
        kas: KAS,
        maxcmd: QUEUE_DEPTH_MAX,
        sgls: SGLS,
        // Sizes of capsules, in units of 16 bytes. A command's capsule has an entry of 64 bytes and
        // the in-capsule data. A completion's capsule has one unit.
        ioccsz: (64 + IN_CAPSULE_SIZE_MAX as u32) / 16,
        iorcsz: 1,
        msdbd: 1,
        ofcs: 1,
        ..identify::Controller::default()
    }
}

/// The firmware's revision.
pub(crate) fn firmware_revision() -> Ascii<8> {
    Ascii::new(env!("CARGO_PKG_VERSION"))
}

fn discovery_controller(controller: &Controller) -> identify::Controller {
    identify::Controller {
        cntrltype: cntrltype::DISCOVERY,
        oaes: slimio_nvme::feature::event::MASK_DISCOVERY,
        lpa: lpa::EXTENDED_DATA,
        subnqn: Name::new(DISCOVERY_NQN).expect("the name is short"),
        dctype: 1,
        ..controller_basics(controller)
    }
}

fn io_controller(subsystem: &Subsystem, controller: &Controller) -> identify::Controller {
    let placement = if subsystem.has_fdp() { ctratt::FDPS } else { 0 };
    let basics = controller_basics(controller);
    let serial = hex(&subsystem.uuid[..10]);
    identify::Controller {
        sn: Ascii::new(&serial),
        rab: 6,
        // The subsystem can have several controllers.
        cmic: 1 << 1,
        oaes: slimio_nvme::feature::event::MASK_NAMESPACE,
        ctratt: basics.ctratt | ctratt::ENDURANCE_GROUPS | placement,
        cntrltype: cntrltype::IO,
        oacs: if subsystem.has_fdp() { oacs::DIRECTIVES } else { 0 },
        acl: 3,
        // There is one firmware slot, which is read-only.
        frmw: 1 | 1 << 1,
        lpa: lpa::EFFECTS | lpa::EXTENDED_DATA | lpa::SUPPORTED_LOG_PAGES,
        elpe: ERRORS_MAX as u8 - 1,
        wctemp: 348,
        cctemp: 358,
        tnvmcap: subsystem.size().into(),
        endgidmax: ENDURANCE_GROUP,
        sqes: SQES,
        cqes: CQES,
        nn: NSID,
        mnan: NSID,
        oncs: oncs::COMPARE
            | oncs::DSM
            | oncs::WRITE_ZEROES
            | oncs::FEATURE_SELECT
            | oncs::TIMESTAMP,
        // Bits 1 and 2: one flush command can flush all namespaces. Bit 0 says whether the drive
        // has a volatile cache.
        vwc: 0b110 | u8::from(subsystem.has_cache),
        subnqn: Name::new(subsystem.nqn())
            .expect("the name was checked when the subsystem was made"),
        ..basics
    }
}

/// The part of Identify that the NVM command set adds for a controller.
fn nvm_controller() -> NvmController {
    // The size of a Write Zeroes is bounded, so that no such command delays others for long.
    NvmController { wzsl: MDTS, ..NvmController::default() }
}

/// The fields that all namespaces have in common.
fn common_namespace() -> Namespace {
    Namespace {
        nsfeat: NSFEAT_OPTPERF,
        nmic: 1,
        lbaf0: LbaFormat { ms: 0, lbads: LBA_SIZE.trailing_zeros() as u8, rp: 0 }.encode(),
        ..Namespace::default()
    }
}

fn namespace(subsystem: &Subsystem) -> Namespace {
    let nuse = subsystem.watch.with_ftl(slimio_ssd::Ftl::mapped_count);
    Namespace {
        nsze: subsystem.lba_count,
        ncap: subsystem.lba_count,
        nuse,
        dlfeat: if subsystem.reads_zeros() { 0b1001 } else { 0 },
        nvmcap: subsystem.size().into(),
        endgid: ENDURANCE_GROUP,
        nguid: subsystem.uuid,
        ..common_namespace()
    }
}
