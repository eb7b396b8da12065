//! Flexible Data Placement (FDP): the reclaim unit handles, and the device's counters.

use std::fmt;
use std::fs::File;
use std::io;

use super::admin;
use super::wire::{le16, le32, le64, le128};
use crate::{DeviceError, PlacementId};

/// Identifiers of FDP's log pages. Each endurance group has these pages.
const CONFIGURATIONS: u8 = 0x20;
const USAGE: u8 = 0x21;
const STATISTICS: u8 = 0x22;
const EVENTS: u8 = 0x23;

/// Feature "Flexible Data Placement".
const FDP_FEATURE: u8 = 0x1d;

/// Number of bytes to read of the log page of events. The page itself says how many events it has.
const PAGE_SIZE: usize = 4096;

/// One placement that writes may name, the placement's handle, and the space left in the handle's
/// reclaim unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementHandle {
    /// The id that writes use for the placement.
    pub placement: u16,
    /// The reclaim unit handle that the placement uses.
    pub handle: u16,
    /// Number of the device's own blocks that can still be written to the handle's present reclaim
    /// unit.
    pub unit_blocks_left: u64,
}

impl fmt::Display for PlacementHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { placement, handle, unit_blocks_left } = self;
        write!(
            f,
            "{placement} on handle {handle}, {unit_blocks_left} blocks left in the handle's unit"
        )
    }
}

/// The FDP configuration in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdpConfiguration {
    /// Number of reclaim groups.
    pub group_count: u32,
    /// Number of reclaim unit handles of the endurance group.
    pub handle_count: u16,
    /// Size of a reclaim unit in bytes.
    pub unit_size: u64,
    /// Whether the device keeps the data of different handles apart even when it moves data in
    /// garbage collection.
    pub is_persistently_isolated: bool,
}

/// Counters of a whole endurance group. They count from the time when the device was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FdpStatistics {
    /// Bytes that hosts have written.
    pub host_bytes: u128,
    /// Bytes that the device wrote to its media, including the host bytes.
    pub media_bytes: u128,
    /// Bytes of media that were erased.
    pub erased_bytes: u128,
}

/// An event that the device has recorded because of a host's action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdpEvent {
    /// The number that the specification gives to this kind of event.
    pub kind: u8,
    /// The placement that the event is about; `None` if the event is not about a placement.
    pub placement: Option<u16>,
}

impl FdpEvent {
    /// Name of the event.
    pub fn name(&self) -> &'static str {
        match self.kind {
            0 => "reclaim unit not fully written",
            1 => "reclaim unit time limit exceeded",
            2 => "controller reset changed the handles",
            3 => "invalid placement id",
            0x80 => "media reallocated",
            0x81 => "handle changed implicitly",
            _ => "unknown event",
        }
    }
}

/// What a device reports about its data placement: counters, events and handles. The function
/// [`start_fresh_unit`](Self::start_fresh_unit) also changes the placement. Most functions send the
/// device a command and wait for the answer. So the thread that runs the clients' commands must not
/// call these functions.
pub trait FdpAccount: Send + Sync {
    /// Number of the device's own blocks in a reclaim unit; `None` if the device does not report
    /// it.
    fn unit_blocks(&self) -> Option<u64>;

    /// The device's counters for the namespace's endurance group. The counters include the writes
    /// of all hosts and programs.
    ///
    /// # Errors
    /// When the device or the kernel refuses the request. The kernel lets only administrators read
    /// the counters.
    fn statistics(&self) -> Result<FdpStatistics, DeviceError>;

    /// Whether this process itself keeps the [`statistics`](Self::statistics), as for an emulated
    /// device. If so, any thread may ask for the statistics at any time.
    fn has_statistics_at_hand(&self) -> bool {
        false
    }

    /// The latest events that hosts have caused.
    ///
    /// # Errors
    /// The same as those of [`statistics`](Self::statistics).
    fn host_events(&self) -> Result<Vec<FdpEvent>, DeviceError>;

    /// Number of the endurance group's handles that hosts use.
    ///
    /// # Errors
    /// The same as those of [`statistics`](Self::statistics).
    fn handles_used(&self) -> Result<usize, DeviceError>;

    /// The namespace's placements, in the device's order.
    ///
    /// # Errors
    /// When the device or the kernel refuses.
    fn handles(&self) -> Result<Vec<PlacementHandle>, DeviceError>;

    /// Makes a placement go on in a fresh reclaim unit, so that later writes to the placement do
    /// not share a unit with earlier writes. The rest of the old unit stays empty.
    ///
    /// # Errors
    /// When the device or the kernel refuses.
    fn start_fresh_unit(&self, placement: PlacementId) -> Result<(), DeviceError>;
}

/// The [`FdpAccount`] of an NVMe namespace. It sends its commands through the generic device node.
#[derive(Debug)]
pub(super) struct NvmeAccount {
    generic: File,
    nsid: u32,
    group: u16,
    unit_blocks: Option<u64>,
}

impl NvmeAccount {
    pub(super) fn new(
        generic: &File,
        nsid: u32,
        group: u16,
        unit_blocks: Option<u64>,
    ) -> io::Result<Self> {
        Ok(Self { generic: generic.try_clone()?, nsid, group, unit_blocks })
    }
}

impl FdpAccount for NvmeAccount {
    fn unit_blocks(&self) -> Option<u64> {
        self.unit_blocks
    }

    fn statistics(&self) -> Result<FdpStatistics, DeviceError> {
        let page = admin::log_page(&self.generic, STATISTICS, 0, self.group, 64)?;
        Ok(parse_statistics(&page))
    }

    fn host_events(&self) -> Result<Vec<FdpEvent>, DeviceError> {
        let page = admin::log_page(&self.generic, EVENTS, 1, self.group, PAGE_SIZE)?;
        Ok(parse_events(&page))
    }

    fn handles_used(&self) -> Result<usize, DeviceError> {
        let header = admin::log_page(&self.generic, USAGE, 0, self.group, 8)?;
        let size = 8 + 8 * usize::from(le16(&header, 0));
        let page = admin::log_page(&self.generic, USAGE, 0, self.group, size)?;
        Ok(parse_usage(&page))
    }

    fn handles(&self) -> Result<Vec<PlacementHandle>, DeviceError> {
        handles(&self.generic, self.nsid)
    }

    fn start_fresh_unit(&self, placement: PlacementId) -> Result<(), DeviceError> {
        admin::update_handles(&self.generic, self.nsid, &[placement.0])
    }
}

/// The placements of a namespace, in the device's order. There are none if the namespace was made
/// without placement handles.
///
/// # Errors
/// `FDP Disabled` if FDP is switched off in the endurance group; `Invalid Command Opcode` or a
/// similar status if the device does not have the command.
pub(crate) fn handles(file: &File, nsid: u32) -> Result<Vec<PlacementHandle>, DeviceError> {
    let header = admin::handle_status(file, nsid, 16)?;
    let size = 16 + 32 * usize::from(le16(&header, 14));
    Ok(parse_handles(&admin::handle_status(file, nsid, size)?))
}

/// Returns the placements in `told`, the device's answer about a namespace in endurance group
/// `group`. If the namespace has no placements, returns the reason as a sentence without a full
/// stop.
pub(crate) fn usable(
    told: Result<Vec<PlacementHandle>, DeviceError>,
    group: u16,
) -> Result<Vec<PlacementHandle>, String> {
    match told {
        Ok(handles) if handles.is_empty() => {
            Err("the namespace was made without placement handles (nvme create-ns --nphndls \
                 --phndls makes one with handles)"
                .into())
        }
        Ok(handles) => Ok(handles),
        Err(DeviceError::Nvme { status, .. }) if (status.kind(), status.code()) == FDP_DISABLED => {
            Err(format!(
                "FDP is switched off in endurance group {group} (nvme fdp feature --endgrp-id \
                 {group} --enable-conf-idx 0 switches FDP on; run it before namespaces are made)"
            ))
        }
        Err(error) => Err(format!("the namespace's placement handles can't be read: {error}")),
    }
}

/// Status code type and status code of "FDP Disabled".
const FDP_DISABLED: (u8, u8) = (0, 0x29);

fn parse_handles(data: &[u8]) -> Vec<PlacementHandle> {
    let count = usize::from(le16(data, 14));
    let descriptors = data[16..].chunks_exact(32).take(count);
    descriptors
        .map(|descriptor| PlacementHandle {
            placement: le16(descriptor, 0),
            handle: le16(descriptor, 2),
            unit_blocks_left: le64(descriptor, 8),
        })
        .collect()
}

/// Whether FDP is on in an endurance group, and the index of the group's FDP configuration.
pub(crate) fn is_on(file: &File, group: u16) -> Result<(bool, u8), DeviceError> {
    let value = admin::feature(file, FDP_FEATURE, group.into())?;
    Ok((value & 1 != 0, (value >> 8) as u8))
}

/// The FDP configuration with an index; `None` if no valid configuration has this index.
pub(crate) fn configuration(
    file: &File,
    group: u16,
    index: u8,
) -> Result<Option<FdpConfiguration>, DeviceError> {
    let header = admin::log_page(file, CONFIGURATIONS, 0, group, 16)?;
    let size = (le32(&header, 4) as usize).clamp(16, 1 << 16).next_multiple_of(4);
    let page = admin::log_page(file, CONFIGURATIONS, 0, group, size)?;
    Ok(parse_configuration(&page, index))
}

fn parse_configuration(page: &[u8], index: u8) -> Option<FdpConfiguration> {
    if u16::from(index) > le16(page, 0) {
        return None;
    }
    let mut rest = &page[16..];
    for _ in 0..index {
        rest = rest.get(usize::from(le16(rest.get(..2)?, 0))..)?;
    }
    if rest.len() < 64 || rest[2] & 0x80 == 0 {
        return None;
    }
    let handle_count = le16(rest, 8);
    let handles = rest[64..].chunks_exact(4).take(handle_count.into());
    Some(FdpConfiguration {
        group_count: le32(rest, 4),
        handle_count,
        unit_size: le64(rest, 16),
        is_persistently_isolated: handles.map(|handle| handle[0]).all(|kind| kind == 2),
    })
}

fn parse_usage(page: &[u8]) -> usize {
    let count = usize::from(le16(page, 0));
    page[8..].chunks_exact(8).take(count).filter(|handle| handle[0] == 1).count()
}

fn parse_statistics(page: &[u8]) -> FdpStatistics {
    FdpStatistics {
        host_bytes: le128(page, 0),
        media_bytes: le128(page, 16),
        erased_bytes: le128(page, 32),
    }
}

fn parse_events(page: &[u8]) -> Vec<FdpEvent> {
    let count = le32(page, 0) as usize;
    let events = page[64..].chunks_exact(64).take(count);
    events
        .map(|event| FdpEvent {
            kind: event[0],
            placement: (event[1] & 1 != 0).then(|| le16(event, 2)),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use slimio_ring::NvmeStatus;

    use super::*;
    use crate::nvme::wire::opcode;

    #[test]
    fn handles_are_taken_as_they_are() {
        let mut data = vec![0; 16 + 2 * 32];
        data[14..16].copy_from_slice(&[2, 0]);
        data[16..24].copy_from_slice(&[0x03, 0x40, 7, 0, 0, 0, 0, 0]);
        data[24..32].copy_from_slice(&0x1_0000_0001_u64.to_le_bytes());
        data[48..52].copy_from_slice(&[1, 0, 2, 0]);
        let first =
            PlacementHandle { placement: 0x4003, handle: 7, unit_blocks_left: 0x1_0000_0001 };
        let second = PlacementHandle { placement: 1, handle: 2, unit_blocks_left: 0 };
        assert_eq!(parse_handles(&data), [first, second]);
    }

    #[test]
    fn without_placements_it_is_said_what_gives_some() {
        let handle = PlacementHandle { placement: 3, handle: 1, unit_blocks_left: 0 };
        assert_eq!(usable(Ok(vec![handle]), 1), Ok(vec![handle]));
        let status = |word| {
            let status = NvmeStatus::new(word).expect("the status is a failure");
            Err(DeviceError::Nvme { opcode: opcode::IO_MANAGEMENT_RECEIVE, status })
        };
        for (told, said) in [
            (Ok(Vec::new()), "made without placement handles (nvme create-ns --nphndls"),
            (
                status(0x4029),
                "FDP is switched off in endurance group 7 (nvme fdp feature --endgrp-id 7 \
                 --enable-conf-idx 0",
            ),
            (status(0x4001), "can't be read: the device failed a query: Invalid Command Opcode"),
        ] {
            let why = usable(told, 7).expect_err("the answer has no placements");
            assert!(why.contains(said), "{why}");
        }
    }

    #[test]
    fn the_configuration_in_force_is_found_by_its_index() {
        let mut page = vec![0; 16 + 72 + 80];
        page[..2].copy_from_slice(&[1, 0]);
        page[16..18].copy_from_slice(&[72, 0]);
        let second = &mut page[16 + 72..];
        second[..2].copy_from_slice(&[80, 0]);
        second[2] = 0x80;
        second[4] = 1;
        second[8] = 4;
        second[16..24].copy_from_slice(&(96_u64 << 20).to_le_bytes());
        for handle in 0..4 {
            second[64 + 4 * handle] = 2;
        }
        let expected = FdpConfiguration {
            group_count: 1,
            handle_count: 4,
            unit_size: 96 << 20,
            is_persistently_isolated: true,
        };
        assert_eq!(parse_configuration(&page, 1), Some(expected));
        assert_eq!(parse_configuration(&page, 0), None, "configuration 0 is not valid");
        assert_eq!(parse_configuration(&page, 2), None, "configuration 2 does not exist");
        page[16 + 72 + 64] = 1;
        let found = parse_configuration(&page, 1).expect("configuration 1 is valid");
        assert!(!found.is_persistently_isolated);
    }

    #[test]
    fn used_handles_are_those_of_hosts() {
        let mut page = vec![0; 8 + 4 * 8];
        page[0] = 3;
        for (index, kind) in [1, 0, 1, 1].into_iter().enumerate() {
            page[8 + 8 * index] = kind;
        }
        assert_eq!(parse_usage(&page), 2);
    }

    #[test]
    fn counters_have_128_bits() {
        let mut page = vec![0; 64];
        page[8] = 1;
        page[16] = 2;
        page[47] = 1;
        let expected =
            FdpStatistics { host_bytes: 1 << 64, media_bytes: 2, erased_bytes: 1 << 120 };
        assert_eq!(parse_statistics(&page), expected);
    }

    #[test]
    fn events_say_what_they_are_about() {
        let mut page = vec![0; 4096];
        page[0] = 2;
        page[64..68].copy_from_slice(&[3, 1, 9, 0]);
        page[128..132].copy_from_slice(&[0, 2, 9, 0]);
        let events = parse_events(&page);
        assert_eq!(events[0], FdpEvent { kind: 3, placement: Some(9) });
        assert_eq!(events[0].name(), "invalid placement id");
        assert_eq!(events[1..], [FdpEvent { kind: 0, placement: None }]);
    }
}
