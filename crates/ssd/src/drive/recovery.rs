//! Restores a drive's state from a checkpoint and the journal entries after it.
//!
//! ```text
//! older checkpoint ── entries ──► latest checkpoint ── entries ──► end
//! ```
//!
//! If only the process was killed, there is no gap: the file has all entries from the latest
//! checkpoint to the end. If the process was killed while it made the latest checkpoint, the file
//! has all entries after the older checkpoint. So a gap before a newer entry or checkpoint means
//! that the file is damaged, or that the machine has failed and lost data that was not flushed. The
//! drive then goes on from the last entry before the gap, and reports the loss in its notes.

use slimio_device::{Lba, LbaRange};
use slimio_planted::is_planted;

use super::made::SavedConfig;
use super::request::{ENTRY_SIZE, Entry, Request};
use super::state_file::{Head, Layout, Store};
use crate::Ftl;

/// A drive, as its state file describes it.
pub(super) struct Recovered {
    pub(super) made: SavedConfig,
    pub(super) ftl: Ftl,
    /// The ranges that were deallocated by the entries after the checkpoint.
    pub(super) deallocated: Vec<LbaRange>,
    /// Whether entries that came after this state are lost.
    pub(super) is_cut: bool,
    pub(super) store: Store,
    pub(super) end: JournalEnd,
}

/// The numbers that are needed to continue a journal.
#[derive(Clone, Copy, Debug)]
pub(super) struct JournalEnd {
    /// The number of the latest checkpoint.
    pub(super) number: u64,
    /// The next sequence number. All entries so far have lower numbers.
    pub(super) next: u64,
    /// The seed of the entries' checksums.
    pub(super) id: u64,
}

/// The result of applying the entries after a checkpoint.
struct Replayed {
    ftl: Ftl,
    deallocated: Vec<LbaRange>,
    /// The first sequence number that has no entry.
    next: u64,
}

impl Store {
    /// Restores the drive as it was at the end of the journal, from the latest checkpoint that is
    /// whole. `heads` are the valid heads, the latest first.
    pub(super) fn recover(self, heads: &[Head]) -> Option<Recovered> {
        let latest = heads.first()?;
        let (head, Replayed { ftl, deallocated, next }) =
            heads.iter().find_map(|head| Some((head, self.replay(head)?)))?;
        let last = self.last_from(head.id, next);
        // If the older checkpoint was used, the entries after it must reach as far as the latest
        // checkpoint.
        let is_cut = next < latest.next
            || last.is_some()
            || next < head.next + self.layout.entries && !self.is_end(head.id, next);
        let is_cut = is_cut && !is_planted("journal-gap-passed-over");
        let next = next.max(latest.next).max(last.map_or(0, |last| last + 1));
        let end = JournalEnd { number: latest.number, next, id: head.id };
        Some(Recovered { made: latest.made.clone(), ftl, deallocated, is_cut, store: self, end })
    }

    /// Applies the entries after a checkpoint. `None` if the checkpoint is not whole, or if one of
    /// the entries can't be applied.
    fn replay(&self, head: &Head) -> Option<Replayed> {
        if Layout::of(&head.made.config) != self.layout {
            return None;
        }
        let mut ftl = Ftl::decode(head.made.config.clone(), self.body(head)?)?;
        let mut deallocated = Vec::new();
        // There are never more entries after a checkpoint than the journal has room for.
        let room = self.layout.entries - u64::from(is_planted("full-journal-cut"));
        for next in head.next..head.next + room {
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

    /// The highest sequence number of all entries in the file, if it is at least `from`.
    fn last_from(&self, id: u64, from: u64) -> Option<u64> {
        let is_entry = |index: u64| {
            let place = self.place(index);
            let sequence = Entry::sequence(place);
            let is_here = sequence >= from && sequence % self.layout.entries == index;
            (is_here && Entry::decode(place, id, sequence).is_some()).then_some(sequence)
        };
        (0..self.layout.entries).filter_map(is_entry).max()
    }

    /// Whether the place of this entry looks as if the entry was never stored. That is so if the
    /// place is unused, or has an older entry: entries are stored in a ring.
    fn is_end(&self, id: u64, sequence: u64) -> bool {
        let place = self.place(sequence);
        *place == [0; ENTRY_SIZE] || Entry::decode(place, id, Entry::sequence(place)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slimio_device::{Buffer, Op, PlacementId, WholeDevice};

    use super::super::core::{Opened, Scratch};
    use super::*;
    use crate::{Clock, Config, DataPlace, DriveOptions, EmulatedDrive};

    /// Each waiting deallocation has reserved room in the journal. So no checkpoint is made when
    /// the deallocations take effect.
    #[test]
    fn a_journal_that_is_full_is_replayed_to_its_end() {
        const LAST: u64 = 77;
        let folder = tempfile::tempdir().expect("a directory for the test");
        let open = |name: &str| {
            let data = DataPlace::File(folder.path().join(name));
            let options = DriveOptions::new(Config::scaled(12 << 20), Clock::Virtual);
            let deallocate_latency = Duration::from_millis(1);
            let options = DriveOptions { data, deallocate_latency, ..options };
            EmulatedDrive::open(options).expect("the drive can be made")
        };
        let drive = open("drive");
        let mut core = drive.core.lock();
        let entries = Layout::of(core.drive.ftl().config()).entries;
        let second = Duration::from_secs(1);
        let mut begin = |op| {
            let begun = core.begin(op, second, &Opened::default(), &mut Scratch::default());
            begun.result.clone()
        };
        let (buffer, placement) = (Buffer::zeroed(1), PlacementId(0));
        let write = Op::Write { lba: Lba(LAST), buffer, placement, durable: false };
        assert_eq!(begin(write), Ok(()));
        for number in 1..entries {
            let start = if number < entries - 1 { number % LAST } else { LAST };
            let range = LbaRange { start: Lba(start), end: Lba(start + 1) };
            assert_eq!(begin(Op::Deallocate { range }), Ok(()));
        }
        core.deallocate_until(2 * second);
        for name in ["drive", "drive.mapping"] {
            let copy = folder.path().join(name.replace("drive", "killed"));
            std::fs::copy(folder.path().join(name), copy).expect("the file can be copied");
        }
        let again = open("killed");
        assert_eq!((again.notes().len(), again.with_ftl(Ftl::mapped_count)), (1, 0));
    }
}
