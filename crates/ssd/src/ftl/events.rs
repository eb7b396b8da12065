//! The events that an FDP drive reports.

use std::collections::VecDeque;

/// The largest count of events that a drive keeps. The FDP events log page has room for this many.
/// Older events are dropped.
pub const EVENTS_MAX: usize = 63;

/// What happened. Source: NVMe base specification 2.1, 5.1.12.1.30, "FDP Events".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The host moved a handle to a fresh unit before the handle's current unit was full.
    UnitNotFull,
    /// A write named a handle that does not exist.
    InvalidHandle,
    /// The collector copied data of a handle.
    Reallocated,
    /// A handle went on to another unit, because its current unit was full or the host moved the
    /// handle.
    HandleTurned,
}

impl EventKind {
    /// Its number in the specification.
    pub fn code(self) -> u8 {
        match self {
            Self::UnitNotFull => 0,
            Self::InvalidHandle => 3,
            Self::Reallocated => 0x80,
            Self::HandleTurned => 0x81,
        }
    }
}

/// An event that a drive has recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The handle that the event is about; 0 for a unit with data of several handles.
    pub handle: u16,
    /// Count of pages that hosts had written when the event happened.
    pub at: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Events {
    latest: VecDeque<Event>,
}

impl Events {
    pub(super) fn push(&mut self, kind: EventKind, handle: u16, at: u64) {
        if self.latest.len() == EVENTS_MAX {
            self.latest.pop_front();
        }
        self.latest.push_back(Event { kind, handle, at });
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Event> {
        self.latest.iter()
    }
}
