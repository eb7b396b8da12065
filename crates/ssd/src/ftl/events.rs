//! The events that an FDP drive reports.

use std::collections::VecDeque;

/// Events that a drive keeps: as many as the FDP events log page has room for. Older ones are
/// dropped.
pub const EVENTS_MAX: usize = 63;

/// What happened. Source: NVMe base specification 2.1, 5.1.12.1.30, "FDP Events".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A handle was sent on to a fresh unit before its present one was full.
    UnitNotFull,
    /// A write named a handle that does not exist.
    InvalidHandle,
    /// The collector copied what a handle wrote.
    Reallocated,
    /// A handle went on to another unit by itself, because its present one was full.
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
    /// The handle that it is about; 0 for a unit where several are mixed.
    pub handle: u16,
    /// Pages that hosts had written when it happened.
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
