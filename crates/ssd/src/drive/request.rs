//! The requests that change a drive's mapping, counters or events, as entries of its journal.
//!
//! ```text
//! | checksum | sequence | time in ms | kind | flag | placement | lba | count |
//! 0          8          14           20     21     22          24    28      32
//! ```
//!
//! All integers are little-endian. The checksum is XXH3 with the drive's id as its seed, and covers
//! the rest of the entry. The drive's state, including counters and events, depends on nothing but
//! the requests. So applying the requests since a checkpoint restores this state exactly.

use slimio_planted::is_planted;
use twox_hash::XxHash3_64;

use crate::{EventKind, Ftl, FtlError};

pub(super) const ENTRY_SIZE: usize = 32;

/// All numbers of six bytes are below this limit.
const SIX_BYTES: u64 = 1 << 48;

/// A request that changes a drive's mapping, counters or events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// `placement` is the number that the host named. The drive may have no such placement.
    Write {
        lba: u32,
        count: u32,
        placement: u16,
    },
    Deallocate {
        lba: u32,
        count: u32,
    },
    FreshUnit {
        placement: u16,
    },
    /// `kind` is the code of an [`EventKind`].
    Enable {
        handle: u16,
        kind: u8,
        is_enabled: bool,
    },
}

impl Request {
    /// Applies the request to a mapping, in the same way as when the entry was made.
    pub(super) fn apply(self, ftl: &mut Ftl) -> Result<(), FtlError> {
        match self {
            Self::Write { lba, count, placement } => {
                let handle = ftl.accept(placement);
                (0..u64::from(count))
                    .try_for_each(|index| ftl.write(u64::from(lba) + index, handle))
            }
            Self::Deallocate { lba, count } => ftl.deallocate(lba.into(), count.into()),
            Self::FreshUnit { placement } => ftl.start_fresh_unit(placement, &mut ()),
            Self::Enable { handle, kind, is_enabled } => {
                let kinds: Vec<_> = EventKind::of_code(kind).into_iter().collect();
                ftl.enable_events(handle, &kinds, is_enabled)
            }
        }
    }

    /// Number of pages that the request changes in the mapping. A request that changes none counts
    /// as one page.
    pub(super) fn pages(self) -> u64 {
        match self {
            Self::Write { count, .. } | Self::Deallocate { count, .. } => count.into(),
            Self::FreshUnit { .. } | Self::Enable { .. } => 1,
        }
    }

    /// The fields of an entry: kind, flag, placement, lba and count. An `Enable` stores its handle
    /// as the placement, and its kind of event as the lba.
    fn fields(self) -> (u8, bool, u16, u32, u32) {
        match self {
            Self::Write { lba, count, placement } => (1, false, placement, lba, count),
            Self::Deallocate { lba, count } => (2, false, 0, lba, count),
            Self::FreshUnit { placement } => (3, false, placement, 0, 0),
            Self::Enable { handle, kind, is_enabled } => (4, is_enabled, handle, kind.into(), 0),
        }
    }

    fn of_fields(fields: (u8, bool, u16, u32, u32)) -> Option<Self> {
        let (kind, flag, placement, lba, count) = fields;
        match kind {
            1 => Some(Self::Write { lba, count, placement }),
            2 => Some(Self::Deallocate { lba, count }),
            3 => Some(Self::FreshUnit { placement }),
            4 => {
                let kind = u8::try_from(lba).ok()?;
                Some(Self::Enable { handle: placement, kind, is_enabled: flag })
            }
            _ => None,
        }
    }
}

/// A request in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The entry's number in the journal. No two entries of a drive have the same number.
    pub(super) sequence: u64,
    /// The Unix time of the request, in milliseconds.
    pub(super) time_ms: u64,
    pub(super) request: Request,
}

impl Entry {
    pub(super) fn encode(&self, id: u64) -> [u8; ENTRY_SIZE] {
        assert!(self.sequence < SIX_BYTES, "the entry's number does not fit in six bytes");
        let mut bytes = [0; ENTRY_SIZE];
        let (kind, flag, placement, lba, count) = self.request.fields();
        bytes[8..14].copy_from_slice(&self.sequence.to_le_bytes()[..6]);
        bytes[14..20].copy_from_slice(&self.time_ms.min(SIX_BYTES - 1).to_le_bytes()[..6]);
        bytes[20] = kind;
        bytes[21] = flag.into();
        bytes[22..24].copy_from_slice(&placement.to_le_bytes());
        bytes[24..28].copy_from_slice(&lba.to_le_bytes());
        bytes[28..32].copy_from_slice(&count.to_le_bytes());
        let checksum = XxHash3_64::oneshot_with_seed(id, &bytes[8..]);
        bytes[..8].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes the entry with the number `sequence`. `None` if the bytes are not that entry.
    pub(super) fn decode(bytes: &[u8; ENTRY_SIZE], id: u64, sequence: u64) -> Option<Self> {
        let checksum = XxHash3_64::oneshot_with_seed(id, &bytes[8..]);
        if bytes[..8] != checksum.to_le_bytes() {
            return None;
        }
        let four = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let placement = u16::from_le_bytes([bytes[22], bytes[23]]);
        let fields = (bytes[20], bytes[21] != 0, placement, four(24), four(28));
        let request = Request::of_fields(fields)?;
        let is_next = Self::sequence(bytes) == sequence || is_planted("stale-entry-accepted");
        is_next.then_some(Self { sequence, time_ms: six(bytes, 14), request })
    }

    /// The sequence number in these bytes. It is meaningless if the bytes are not an entry.
    pub(super) fn sequence(bytes: &[u8; ENTRY_SIZE]) -> u64 {
        six(bytes, 8)
    }
}

/// Decodes a number of six bytes.
fn six(bytes: &[u8; ENTRY_SIZE], at: usize) -> u64 {
    let mut number = [0; 8];
    number[..6].copy_from_slice(&bytes[at..at + 6]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_what_was_encoded_or_none() {
        let requests = [
            Request::Write { lba: u32::MAX, count: 2048, placement: 0x8003 },
            Request::Deallocate { lba: 7, count: u32::MAX },
            Request::FreshUnit { placement: 5 },
            Request::Enable { handle: 127, kind: 0x81, is_enabled: true },
            Request::Enable { handle: 0, kind: 0, is_enabled: false },
        ];
        for request in requests {
            let entry = Entry { sequence: SIX_BYTES - 1, time_ms: 1_700_000_000_123, request };
            let bytes = entry.encode(9);
            assert_eq!(Entry::decode(&bytes, 9, SIX_BYTES - 1), Some(entry));
            assert_eq!(
                Entry::decode(&bytes, 9, 5),
                None,
                "an entry with another number must be refused"
            );
            assert_eq!(
                Entry::decode(&bytes, 8, SIX_BYTES - 1),
                None,
                "an entry of another drive must be refused"
            );
            for at in 0..ENTRY_SIZE {
                let mut torn = bytes;
                torn[at] ^= 0x10;
                assert_eq!(
                    Entry::decode(&torn, 9, SIX_BYTES - 1),
                    None,
                    "an entry with a changed byte {at} must be refused"
                );
            }
        }
        assert_eq!(Entry::decode(&[0; ENTRY_SIZE], 0, 0), None);
    }
}
