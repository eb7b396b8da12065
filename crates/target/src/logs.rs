//! The command Get Log Page.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use slimio_device::LBA_SIZE;
use slimio_nvme::fdp;
use slimio_nvme::log::{
    DiscoveryEntry, DiscoveryHead, EFFECTS_IO_AT, EFFECTS_SIZE, EnduranceGroup, FirmwareSlot,
    GetLogPage, SUPPORTED_SIZE, Smart, effects, lid,
};
use slimio_nvme::{Ascii, Command, NSID_ALL, Name, Status, opcode};
use slimio_ssd::{FdpEventRecord, Isolation};

use crate::controller::{Controller, Kind};
use crate::features;
use crate::identify::firmware_revision;
use crate::refusal::Refusal;
use crate::subsystem::{ENDURANCE_GROUP, NSID, Subsystem};

/// Offsets of three fields in the command, for errors: LID, LSI, and the page offset.
const LID_AT: u16 = 40;
const LSI_AT: u16 = 46;
const OFFSET_AT: u16 = 48;
/// Units in which two log pages count data, in bytes: the SMART page, and the endurance group's
/// page.
const SMART_UNIT: u64 = 512_000;
const GROUP_UNIT: u128 = 1_000_000_000;
/// The temperature that SMART reports, in kelvin.
const TEMPERATURE: u16 = 310;
/// The transport and the address families of a discovery entry.
const TRTYPE_TCP: u8 = 3;
const ADRFAM_IPV4: u8 = 1;
const ADRFAM_IPV6: u8 = 2;

/// Serves Get Log Page. `address` is the address that the host has connected to.
pub(crate) fn run(
    subsystem: &Subsystem,
    controller: &Controller,
    address: Option<std::net::SocketAddr>,
    command: &Command,
) -> Result<Vec<u8>, Refusal> {
    let asked = GetLogPage::of(command);
    if asked.is_index || !asked.offset.is_multiple_of(4) {
        return Err(Refusal::field(OFFSET_AT));
    }
    if !asked.rae {
        // Events are unmasked before the page is made. The page may lack events that come from now
        // on, but the host is told of these events.
        controller.clear_events(asked.lid);
    }
    let page = match (controller.kind, asked.lid) {
        (Kind::Discovery, lid::DISCOVERY) => discovery(subsystem, address),
        (_, lid::SUPPORTED) => supported(subsystem, controller),
        (Kind::Io, lid::ERROR) => {
            subsystem.errors.lock().unwrap_or_else(PoisonError::into_inner).page()
        }
        (Kind::Io, lid::SMART) => {
            if !matches!(command.nsid, 0 | NSID_ALL) {
                // SMART is kept for the whole controller, not for each namespace.
                return Err(Refusal::namespace());
            }
            smart(subsystem).encode().to_vec()
        }
        (Kind::Io, lid::FIRMWARE_SLOT) => {
            FirmwareSlot { afi: 1, frs1: firmware_revision() }.encode().to_vec()
        }
        // No namespace ever changes, so the list of changed namespaces is empty.
        (Kind::Io, lid::CHANGED_NAMESPACES) => vec![0; 4096],
        (Kind::Io, lid::EFFECTS) => {
            if asked.csi != 0 {
                return Err(Refusal::field(OFFSET_AT + 11));
            }
            commands(subsystem)
        }
        (Kind::Io, lid::FEATURES) => {
            let mut page = vec![0; SUPPORTED_SIZE];
            for id in features::supported(subsystem, controller) {
                page[usize::from(id) * 4] = effects::SUPPORTED as u8;
            }
            page
        }
        (Kind::Io, lid::ENDURANCE_GROUP) => {
            check_group(&asked)?;
            endurance_group(subsystem).encode().to_vec()
        }
        (
            Kind::Io,
            lid::FDP_CONFIGURATIONS | lid::FDP_HANDLE_USAGE | lid::FDP_STATISTICS | lid::FDP_EVENTS,
        ) if subsystem.has_fdp() => {
            check_group(&asked)?;
            placement(subsystem, &asked)
        }
        _ => return Err(Refusal::at(Status::INVALID_LOG_PAGE, LID_AT)),
    };
    part(&page, &asked)
}

/// The part of a page that the host has asked for. Bytes beyond the page's end are zero.
fn part(page: &[u8], asked: &GetLogPage) -> Result<Vec<u8>, Refusal> {
    let start = usize::try_from(asked.offset).unwrap_or(usize::MAX);
    let Some(rest) = page.get(start..) else { return Err(Refusal::field(OFFSET_AT)) };
    let size = asked.size as usize;
    let mut data = rest[..rest.len().min(size)].to_vec();
    data.resize(size, 0);
    Ok(data)
}

fn check_group(asked: &GetLogPage) -> Result<(), Refusal> {
    if asked.lsi == ENDURANCE_GROUP { Ok(()) } else { Err(Refusal::field(LSI_AT)) }
}

fn supported(subsystem: &Subsystem, controller: &Controller) -> Vec<u8> {
    let mut page = vec![0; SUPPORTED_SIZE];
    let mut add = |ids: &[u8]| {
        for id in ids {
            page[usize::from(*id) * 4] = effects::SUPPORTED as u8;
        }
    };
    add(&[lid::SUPPORTED]);
    match controller.kind {
        Kind::Discovery => add(&[lid::DISCOVERY]),
        Kind::Io => {
            add(&[lid::ERROR, lid::SMART, lid::FIRMWARE_SLOT, lid::CHANGED_NAMESPACES]);
            add(&[lid::EFFECTS, lid::FEATURES, lid::ENDURANCE_GROUP]);
            if subsystem.has_fdp() {
                add(&[lid::FDP_CONFIGURATIONS, lid::FDP_HANDLE_USAGE]);
                add(&[lid::FDP_STATISTICS, lid::FDP_EVENTS]);
            }
        }
    }
    page
}

fn smart(subsystem: &Subsystem) -> Smart {
    let counts = &subsystem.counts;
    let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    let errors = subsystem.errors.lock().unwrap_or_else(PoisonError::into_inner).count();
    Smart {
        composite_temperature: TEMPERATURE,
        available_spare: 100,
        available_spare_threshold: 10,
        data_units_read: load(&counts.read_bytes).div_ceil(SMART_UNIT).into(),
        data_units_written: load(&counts.written_bytes).div_ceil(SMART_UNIT).into(),
        host_read_commands: load(&counts.read_commands).into(),
        host_write_commands: load(&counts.write_commands).into(),
        power_cycles: 1,
        power_on_hours: u128::from(subsystem.start.elapsed().as_secs() / 3600),
        media_errors: load(&counts.media_errors).into(),
        error_log_entries: errors.into(),
        ..Smart::default()
    }
}

fn endurance_group(subsystem: &Subsystem) -> EnduranceGroup {
    let smart = smart(subsystem);
    let (host_bytes, media_bytes) = subsystem.watch.with_ftl(|ftl| {
        let counters = ftl.counters();
        (u128::from(counters.host_bytes()), u128::from(counters.media_bytes()))
    });
    let read_bytes = u128::from(subsystem.counts.read_bytes.load(Ordering::Relaxed));
    EnduranceGroup {
        available_spare: smart.available_spare,
        available_spare_threshold: smart.available_spare_threshold,
        data_units_read: read_bytes.div_ceil(GROUP_UNIT),
        data_units_written: host_bytes.div_ceil(GROUP_UNIT),
        media_units_written: media_bytes.div_ceil(GROUP_UNIT),
        host_read_commands: smart.host_read_commands,
        host_write_commands: smart.host_write_commands,
        media_errors: smart.media_errors,
        error_log_entries: smart.error_log_entries,
        total_capacity: subsystem.size().into(),
        ..EnduranceGroup::default()
    }
}

fn commands(subsystem: &Subsystem) -> Vec<u8> {
    use opcode::{admin, nvm};

    let mut page = vec![0; EFFECTS_SIZE];
    let mut add = |start: usize, code: u8, bits: u32| {
        page[start + usize::from(code) * 4..][..4].copy_from_slice(&bits.to_le_bytes());
    };
    for code in [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT_REQUEST,
        admin::KEEP_ALIVE,
    ] {
        add(0, code, effects::SUPPORTED);
    }
    for code in [nvm::FLUSH, nvm::READ, nvm::COMPARE] {
        add(EFFECTS_IO_AT, code, effects::SUPPORTED);
    }
    for code in [nvm::WRITE, nvm::WRITE_ZEROES, nvm::DATASET_MANAGEMENT] {
        add(EFFECTS_IO_AT, code, effects::SUPPORTED | effects::LBCC);
    }
    if subsystem.has_fdp() {
        for code in [admin::DIRECTIVE_SEND, admin::DIRECTIVE_RECEIVE] {
            add(0, code, effects::SUPPORTED);
        }
        for code in [nvm::IO_MANAGEMENT_RECEIVE, nvm::IO_MANAGEMENT_SEND] {
            add(EFFECTS_IO_AT, code, effects::SUPPORTED);
        }
    }
    page
}

/// The log pages of data placement.
fn placement(subsystem: &Subsystem, asked: &GetLogPage) -> Vec<u8> {
    let config = subsystem.watch.with_ftl(|ftl| ftl.config().clone());
    match asked.lid {
        lid::FDP_CONFIGURATIONS => {
            let handles = usize::from(config.handles);
            let dsze = fdp::Configuration::SIZE + handles * fdp::HandleDescriptor::SIZE;
            let size = fdp::ConfigurationsHead::SIZE + dsze;
            let head = fdp::ConfigurationsHead { numfdpc: 0, version: 0, size: size as u32 };
            let configuration = fdp::Configuration {
                dsze: dsze as u16,
                fdpa: fdp::FDPA_VALID | config.group_bits() as u8,
                nrg: config.groups.into(),
                nruh: handles as u16,
                maxpids: subsystem.placements.len() as u16 - 1,
                nns: 1,
                runs: config.geometry.unit_size(),
                ..fdp::Configuration::default()
            };
            let mut page = head.encode().to_vec();
            page.extend(configuration.encode());
            for handle in 0..config.handles {
                let ruht = match config.isolation_of(handle) {
                    Isolation::Initial => 1,
                    Isolation::Persistent => 2,
                };
                page.extend(fdp::HandleDescriptor { ruht }.encode());
            }
            page
        }
        lid::FDP_HANDLE_USAGE => {
            let mut page = fdp::UsageHead { nruh: config.handles }.encode().to_vec();
            // Usage attribute 1 says that hosts may name the handle.
            page.extend(fdp::HandleUsage { ruha: 1 }.encode().repeat(config.handles.into()));
            page
        }
        lid::FDP_STATISTICS => {
            let statistics = subsystem.watch.with_ftl(|ftl| {
                let counters = ftl.counters();
                fdp::Statistics {
                    hbmw: counters.host_bytes().into(),
                    mbmw: counters.media_bytes().into(),
                    mbe: counters.erased_bytes().into(),
                }
            });
            statistics.encode().to_vec()
        }
        _ => {
            // Bit 0 of the log specific parameter selects host events instead of controller events.
            let events = if asked.lsp & 1 != 0 {
                subsystem.watch.host_events()
            } else {
                subsystem.watch.controller_events()
            };
            let mut page = fdp::EventsHead { nevents: events.len() as u32 }.encode().to_vec();
            page.extend(events.iter().flat_map(|event| event_of(event).encode()));
            page.resize(fdp::EventsHead::SIZE + slimio_ssd::EVENTS_MAX * fdp::Event::SIZE, 0);
            page
        }
    }
}

fn event_of(record: &FdpEventRecord) -> fdp::Event {
    use fdp::event_flags::{LV, NSIDV, PIV};

    let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    let (rgid, ruhid) = record.location.unwrap_or_default();
    // The time comes from this machine's clock, although bit 49 says that a host has set the time.
    let timestamp = record.time_ms & 0xffff_ffff_ffff | 1 << 49;
    fdp::Event {
        kind: record.kind.code(),
        flags: flag(record.placement.is_some(), PIV)
            | flag(record.nsid.is_some(), NSIDV)
            | flag(record.location.is_some(), LV),
        pid: record.placement.map_or(0, |placement| placement.0),
        timestamp,
        nsid: record.nsid.unwrap_or_default(),
        specific: record.specific,
        rgid,
        ruhid: ruhid as u8,
    }
}

/// The reclaim unit handles of the namespace, for I/O Management Receive.
pub(crate) fn handle_status(subsystem: &Subsystem) -> Result<Vec<u8>, Refusal> {
    let handles = subsystem.account.handles().map_err(|_| Status::INTERNAL_ERROR)?;
    let mut data = fdp::HandleStatusHead { nruhsd: handles.len() as u16 }.encode().to_vec();
    for handle in handles {
        let status = fdp::HandleStatus {
            pid: handle.placement,
            ruhid: handle.handle,
            earutr: 0,
            ruamw: handle.unit_blocks_left,
        };
        data.extend(status.encode());
    }
    Ok(data)
}

fn discovery(subsystem: &Subsystem, address: Option<std::net::SocketAddr>) -> Vec<u8> {
    let head = DiscoveryHead { genctr: 1, numrec: 1, recfmt: 0 };
    let (adrfam, traddr, port) = match address {
        Some(std::net::SocketAddr::V4(v4)) => (ADRFAM_IPV4, v4.ip().to_string(), v4.port()),
        Some(std::net::SocketAddr::V6(v6)) => (ADRFAM_IPV6, v6.ip().to_string(), v6.port()),
        None => (ADRFAM_IPV4, String::new(), 0),
    };
    let entry = DiscoveryEntry {
        trtype: TRTYPE_TCP,
        adrfam,
        // The entry is about an NVM subsystem.
        subtype: 2,
        // Flow control of submission queues can be turned off.
        treq: 1 << 2,
        portid: 1,
        cntlid: slimio_nvme::fabrics::CNTLID_ANY,
        asqsz: crate::limits::QUEUE_DEPTH_MAX,
        trsvcid: Ascii::new(&port.to_string()),
        subnqn: Name::new(subsystem.nqn())
            .expect("the name was checked when the subsystem was made"),
        traddr: Ascii::new(&traddr),
        ..DiscoveryEntry::default()
    };
    [head.encode().as_slice(), entry.encode().as_slice()].concat()
}

/// The log pages in this file rely on these two values.
const _: () = assert!(NSID == 1 && LBA_SIZE == 4096, "there is one namespace, of blocks of 4 KiB");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_beyond_the_page_is_zero_and_a_start_beyond_it_is_refused() {
        let page = [1, 2, 3, 4, 5, 6, 7, 8];
        let asked = |offset, size| GetLogPage { offset, size, ..GetLogPage::default() };
        assert_eq!(part(&page, &asked(4, 8)), Ok(vec![5, 6, 7, 8, 0, 0, 0, 0]));
        assert_eq!(part(&page, &asked(8, 4)), Ok(vec![0; 4]));
        assert_eq!(part(&page, &asked(12, 4)), Err(Refusal::field(OFFSET_AT)));
        assert_eq!(part(&page, &asked(u64::MAX - 3, 4)), Err(Refusal::field(OFFSET_AT)));
    }
}
