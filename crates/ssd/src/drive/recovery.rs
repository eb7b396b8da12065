//! How a drive's state is restored: from a checkpoint, and the journal behind it.
//!
//! ```text
//! older checkpoint ── entries ──► latest checkpoint ── entries ──► end
//! ```
//!
//! A kill leaves no gap: all entries are there, from the latest checkpoint to the end, or from the
//! older one if the kill came while the latest was made. So if something that was stored later is
//! there, behind what can't be read, the file is damaged, or the machine has failed and has lost what
//! was not flushed. Then the drive goes on from where the entries end, and says so.

use slimio_device::{Lba, LbaRange};
use slimio_planted::is_planted;

use super::made::SavedConfig;
use super::request::{ENTRY_SIZE, Entry, Request};
use super::state_file::{Head, Layout, Store};
use crate::Ftl;

/// A drive as its state file has it.
pub(super) struct Recovered {
    pub(super) made: SavedConfig,
    pub(super) ftl: Ftl,
    /// What the journal behind the checkpoint says was deallocated.
    pub(super) deallocated: Vec<LbaRange>,
    /// Whether something followed that is lost.
    pub(super) is_cut: bool,
    pub(super) store: Store,
    pub(super) end: JournalEnd,
}

/// Where a journal goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct JournalEnd {
    /// The number of the latest checkpoint.
    pub(super) number: u64,
    /// All entries so far have lower sequence numbers.
    pub(super) next: u64,
    /// The seed of the entries' checksums.
    pub(super) id: u64,
}

/// A checkpoint, and the entries behind it.
struct Replayed {
    ftl: Ftl,
    deallocated: Vec<LbaRange>,
    /// The first sequence number of which there is no entry.
    next: u64,
}

impl Store {
    /// The drive at the end of the journal, from the latest checkpoint that is whole. `heads` are
    /// those that are valid, the latest first.
    pub(super) fn recover(self, heads: &[Head]) -> Option<Recovered> {
        let latest = heads.first()?;
        let (head, Replayed { ftl, deallocated, next }) =
            heads.iter().find_map(|head| Some((head, self.replay(head)?)))?;
        let last = self.last_from(head.id, next);
        // From an older checkpoint, the journal must lead as far as to the latest.
        let is_cut = next < latest.next
            || last.is_some()
            || next < head.next + self.layout.entries && !self.is_end(head.id, next);
        let is_cut = is_cut && !is_planted("journal-gap-passed-over");
        let next = next.max(latest.next).max(last.map_or(0, |last| last + 1));
        let end = JournalEnd { number: latest.number, next, id: head.id };
        Some(Recovered { made: latest.made.clone(), ftl, deallocated, is_cut, store: self, end })
    }

    /// Applies the entries that follow a checkpoint. `None` if the checkpoint is not whole, or if one
    /// of the entries can't be applied.
    fn replay(&self, head: &Head) -> Option<Replayed> {
        if Layout::of(&head.made.config) != self.layout {
            return None;
        }
        let mut ftl = Ftl::decode(head.made.config.clone(), self.body(head)?)?;
        let mut deallocated = Vec::new();
        // There are never more entries behind a checkpoint than there is room for.
        for next in head.next..head.next + self.layout.entries {
            let Some(entry) = Entry::decode(self.place(next), head.id, next) else {
                return Some(Replayed { ftl, deallocated, next });
            };
            ftl.set_time(entry.time_ms);
            entry.request.apply(&mut ftl).ok()?;
            if let Request::Deallocate { lba, count } = entry.request {
                let start = u64::from(lba);
                deallocated
                    .push(LbaRange { start: Lba(start), end: Lba(start + u64::from(count)) });
            }
        }
        Some(Replayed { ftl, deallocated, next: head.next + self.layout.entries })
    }

    /// The highest sequence number of an entry in the file, from `from` on.
    fn last_from(&self, id: u64, from: u64) -> Option<u64> {
        let is_entry = |index: u64| {
            let place = self.place(index);
            let sequence = Entry::sequence(place);
            let is_here = sequence >= from && sequence % self.layout.entries == index;
            (is_here && Entry::decode(place, id, sequence).is_some()).then_some(sequence)
        };
        (0..self.layout.entries).filter_map(is_entry).max()
    }

    /// Whether the place of an entry that was never stored is as it is then: it was never used, or has
    /// an entry of the lap before.
    fn is_end(&self, id: u64, sequence: u64) -> bool {
        let place = self.place(sequence);
        *place == [0; ENTRY_SIZE] || Entry::decode(place, id, Entry::sequence(place)).is_some()
    }
}
