//! The events that an FDP drive reports, in two logs: one for events that hosts caused, and one for
//! events that the controller caused.
//!
//! Source: NVMe base specification 2.1, "FDP Events" (log page 23h) and "FDP Events" (feature 1Eh).

use std::collections::VecDeque;

use slimio_device::PlacementId;

use super::state::Input;

/// The most events that each of a drive's two logs keeps. The FDP Events log page has room for this
/// many. Older events are dropped.
pub const EVENTS_MAX: usize = 63;

/// The one namespace that a drive has.
const NAMESPACE: u32 = 1;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The host moved a handle to a fresh unit before the handle's current unit was full.
    UnitNotFull,
    /// The drive was turned on, and has lost its mapping. So its handles refer to other units than
    /// before.
    HandlesReset,
    /// A write named a placement that does not exist.
    InvalidPlacement,
    /// The collector moved data to another unit.
    Reallocated,
    /// The controller moved a handle to another unit without being asked. The drive does that when
    /// the handle's group has no room left.
    HandleMoved,
}

impl EventKind {
    /// All kinds that a drive records.
    pub const ALL: [Self; 5] = [
        Self::UnitNotFull,
        Self::HandlesReset,
        Self::InvalidPlacement,
        Self::Reallocated,
        Self::HandleMoved,
    ];

    /// The number of this kind in the specification.
    pub fn code(self) -> u8 {
        match self {
            Self::UnitNotFull => 0,
            Self::HandlesReset => 2,
            Self::InvalidPlacement => 3,
            Self::Reallocated => 0x80,
            Self::HandleMoved => 0x81,
        }
    }

    /// The kind with this number in the specification, if a drive records it.
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Whether hosts cause events of this kind. If not, the controller causes them.
    pub fn is_of_host(self) -> bool {
        self.code() < 0x80
    }

    fn bit(self) -> u8 {
        match self {
            Self::UnitNotFull => 1,
            Self::HandlesReset => 2,
            Self::InvalidPlacement => 4,
            Self::Reallocated => 8,
            Self::HandleMoved => 16,
        }
    }
}

/// An event that a drive has recorded. It has the fields of NVMe's FDP event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdpEventRecord {
    /// What happened.
    pub kind: EventKind,
    /// When the event happened, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// The placement (PID) that the event is about. `None` if the event is not about a single
    /// placement.
    pub placement: Option<PlacementId>,
    /// The namespace (NSID) that the event is about. `None` if the event is not about a namespace.
    pub nsid: Option<u32>,
    /// The reclaim group (RGID) and the handle (RUHID) that the event is about. `None` if the event
    /// is not about a single handle.
    pub location: Option<(u16, u16)>,
    /// The bytes that are specific to the kind of the event.
    pub specific: [u8; 16],
}

impl FdpEventRecord {
    pub(super) fn new(kind: EventKind) -> Self {
        Self { kind, time_ms: 0, placement: None, nsid: None, location: None, specific: [0; 16] }
    }

    /// Returns the event with the drive's namespace.
    pub(super) fn in_namespace(self) -> Self {
        Self { nsid: Some(NAMESPACE), ..self }
    }

    /// Returns the event with this placement.
    pub(super) fn with_placement(self, placement: u16) -> Self {
        Self { placement: Some(PlacementId(placement)), ..self }
    }

    /// Returns the event with the location of a unit: its group and its handle.
    pub(super) fn at(self, group: u16, handle: u16) -> Self {
        Self { location: Some((group, handle)), ..self }
    }

    /// Returns the event with the number of moved blocks and the first of them. The field for the
    /// number has 16 bits. A number that does not fit is stored as `0xFFFF`. Source: NVM command
    /// set specification 1.1, "Media Reallocated".
    pub(super) fn with_moved(mut self, moved: u32, first: u64) -> Self {
        const LBA_IS_VALID: u8 = 1;
        self.specific[0] = LBA_IS_VALID;
        self.specific[2..4].copy_from_slice(&(moved.min(0xFFFF) as u16).to_le_bytes());
        self.specific[4..12].copy_from_slice(&first.to_le_bytes());
        self
    }
}

/// Size of an encoded event in bytes: kind (1), bits that say which optional fields it has (1),
/// placement (2), namespace (4), time (8), group (2), handle (2), and specific bytes (16).
const RECORD_SIZE: usize = 36;

/// The bits of an encoded event that say which optional fields it has. NVMe uses the same bits.
const HAS_PLACEMENT: u8 = 1;
const HAS_NAMESPACE: u8 = 2;
const HAS_LOCATION: u8 = 4;

impl FdpEventRecord {
    fn encode(&self, bytes: &mut Vec<u8>) {
        let has = |is: bool, bit: u8| if is { bit } else { 0 };
        let (group, handle) = self.location.unwrap_or_default();
        bytes.push(self.kind.code());
        bytes.push(
            has(self.placement.is_some(), HAS_PLACEMENT)
                | has(self.nsid.is_some(), HAS_NAMESPACE)
                | has(self.location.is_some(), HAS_LOCATION),
        );
        bytes.extend(self.placement.unwrap_or_default().0.to_le_bytes());
        bytes.extend(self.nsid.unwrap_or_default().to_le_bytes());
        bytes.extend(self.time_ms.to_le_bytes());
        bytes.extend([group, handle].into_iter().flat_map(u16::to_le_bytes));
        bytes.extend(self.specific);
    }

    fn decode(input: &mut Input<'_>) -> Option<Self> {
        let head = input.u32()?.to_le_bytes();
        let has = |bit: u8| head[1] & bit != 0;
        let placement = u16::from_le_bytes([head[2], head[3]]);
        let (nsid, time_ms, location) = (input.u32()?, input.u64()?, input.u32()?);
        let location = ((location & 0xFFFF) as u16, (location >> 16) as u16);
        Some(Self {
            kind: EventKind::of_code(head[0])?,
            time_ms,
            placement: has(HAS_PLACEMENT).then_some(PlacementId(placement)),
            nsid: has(HAS_NAMESPACE).then_some(nsid),
            location: has(HAS_LOCATION).then_some(location),
            specific: *input.take(16)?.first_chunk()?,
        })
    }
}

/// Both logs of a drive, and which kinds of events each handle records.
#[derive(Clone, Debug)]
pub(super) struct Events {
    host: VecDeque<FdpEventRecord>,
    controller: VecDeque<FdpEventRecord>,
    /// For each handle, a bit for each kind of event that the handle records.
    enabled: Vec<u8>,
    /// The time that new events get, in milliseconds since the Unix epoch.
    pub(super) now_ms: u64,
}

impl Events {
    /// Empty logs of a drive whose handles record every kind.
    pub(super) fn new(handles: u16) -> Self {
        let all = EventKind::ALL.into_iter().fold(0, |bits, kind| bits | kind.bit());
        Self {
            host: VecDeque::new(),
            controller: VecDeque::new(),
            enabled: vec![all; usize::from(handles)],
            now_ms: 0,
        }
    }

    /// Records an event of `handle`, if that handle records events of this kind. Without a handle,
    /// the event is recorded if any handle records events of this kind.
    pub(super) fn push(&mut self, handle: Option<u16>, event: FdpEventRecord) {
        let bit = event.kind.bit();
        let is_enabled = match handle {
            Some(handle) => self.enabled[usize::from(handle)] & bit != 0,
            None => self.enabled.iter().any(|enabled| enabled & bit != 0),
        };
        if !is_enabled {
            return;
        }
        let log = if event.kind.is_of_host() { &mut self.host } else { &mut self.controller };
        if log.len() == EVENTS_MAX {
            log.pop_front();
        }
        log.push_back(FdpEventRecord { time_ms: self.now_ms, ..event });
    }

    /// The largest size that the encoded events of a drive with this number of handles can have, in
    /// bytes.
    pub(super) fn encoded_size_max(handles: u16) -> usize {
        usize::from(handles) + 2 * (4 + EVENTS_MAX * RECORD_SIZE)
    }

    /// Appends the kinds that each handle records, and then both logs, to `bytes`. Each log begins
    /// with its length.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(&self.enabled);
        for log in [&self.host, &self.controller] {
            bytes.extend((log.len() as u32).to_le_bytes());
            for event in log {
                event.encode(bytes);
            }
        }
    }

    pub(super) fn decode(handles: u16, input: &mut Input<'_>) -> Option<Self> {
        let enabled = input.take(usize::from(handles))?.to_vec();
        let mut log = || {
            let count = input.u32()?;
            (0..count).map(|_| FdpEventRecord::decode(input)).collect::<Option<VecDeque<_>>>()
        };
        let (host, controller) = (log()?, log()?);
        let are_few = host.len() <= EVENTS_MAX && controller.len() <= EVENTS_MAX;
        are_few.then_some(Self { host, controller, enabled, now_ms: 0 })
    }

    pub(super) fn of_host(&self) -> impl Iterator<Item = &FdpEventRecord> {
        self.host.iter()
    }

    pub(super) fn of_controller(&self) -> impl Iterator<Item = &FdpEventRecord> {
        self.controller.iter()
    }

    pub(super) fn is_enabled(&self, handle: u16, kind: EventKind) -> bool {
        self.enabled[usize::from(handle)] & kind.bit() != 0
    }

    pub(super) fn enable(&mut self, handle: u16, kind: EventKind, is_enabled: bool) {
        let enabled = &mut self.enabled[usize::from(handle)];
        *enabled = if is_enabled { *enabled | kind.bit() } else { *enabled & !kind.bit() };
    }
}
