//! Which snapshot is in which slot, which snapshot is the root, and whether the log has ended.

use slimio_planted::is_planted;

use super::{SlotSummary, SnapshotKind};
use crate::layout::{SLOT_COUNT, put_u32, put_u64, slot_record as at, superblock, u32_at, u64_at};
use crate::{Lsn, SlotName};

/// Upper limit of a snapshot's length, in blocks. Even the size in bytes of twice this many blocks
/// fits a `u64`.
const LEN_LBAS_MAX: u64 = 1 << 48;

/// The roles of the snapshot slots, the root, and the end of the log, as the superblock stores
/// them.
///
/// A slot holds a WAL-snapshot, an on-demand snapshot, or no valid snapshot. A slot without a valid
/// snapshot is a reserve. There is at most one snapshot of each kind, so there is always a reserve.
/// Recovery starts from the root and applies the records after the root's LSN. If there is no root,
/// recovery starts from the empty data set and applies the whole log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Snapshots {
    held: [Option<SlotSummary>; SLOT_COUNT],
    root: Option<SlotName>,
    log_end: Option<Lsn>,
}

impl Snapshots {
    /// The snapshot in a slot; `None` if the slot is a reserve.
    pub fn get(&self, slot: SlotName) -> Option<&SlotSummary> {
        self.held[slot.index()].as_ref()
    }

    /// All snapshots that the slots hold.
    pub fn all(&self) -> impl Iterator<Item = &SlotSummary> {
        self.held.iter().flatten()
    }

    /// The snapshot of a kind, if there is one.
    pub fn of_kind(&self, kind: SnapshotKind) -> Option<&SlotSummary> {
        self.held.iter().flatten().find(|held| held.kind == kind)
    }

    /// The snapshot that recovery starts from, if there is one.
    pub fn root(&self) -> Option<&SlotSummary> {
        self.root.and_then(|slot| self.get(slot))
    }

    /// The LSN at which the log has ended, after `appendonly no`. Recovery ignores records after
    /// this LSN. `None` if the log has not ended.
    pub fn log_end(&self) -> Option<Lsn> {
        self.log_end
    }

    /// Whether any snapshot needs some of the log after the snapshot's own LSN.
    pub(crate) fn is_any_fuzzy(&self) -> bool {
        self.all().any(SlotSummary::is_fuzzy)
    }

    /// Called when it is known that the log ends at `lsn`. The root needs the log up to its
    /// consistent LSN, but it can't need records after the log's end. So if the consistent LSN is
    /// higher than `lsn`, lowers it to `lsn`, but never below the root's own LSN.
    pub(crate) fn cap_consistent_lsn(&mut self, lsn: Lsn) {
        if let Some(root) = self.root.filter(|_| !is_planted("need-kept"))
            && let Some(held) = &mut self.held[root.index()]
        {
            held.consistent_lsn = held.consistent_lsn.min(lsn).max(held.lsn);
        }
    }

    /// The highest number among the held snapshots.
    pub(crate) fn newest_number(&self) -> u64 {
        self.held.iter().flatten().map(|held| held.number).max().unwrap_or(0)
    }

    /// Takes a complete snapshot into its role. If `continues_log`, a log that has ended goes on
    /// from this snapshot.
    ///
    /// A WAL-snapshot becomes the root. If the log has ended, a new snapshot of either kind becomes
    /// the root, because the new snapshot is the newest state of the data set on the volume.
    pub(crate) fn adopt(&mut self, new: SlotSummary, continues_log: bool) {
        let becomes_root = new.kind == SnapshotKind::Wal || self.log_end.is_some();
        for slot in SlotName::ALL {
            let is_root = self.root == Some(slot);
            let held = &mut self.held[slot.index()];
            let Some(old) = held else { continue };
            if becomes_root && old.kind == SnapshotKind::Wal {
                *held = None;
            } else if old.kind == new.kind {
                if is_root && !becomes_root {
                    // The log goes on from the old on-demand snapshot, so the old snapshot is kept
                    // as the WAL-snapshot.
                    old.kind = SnapshotKind::Wal;
                } else {
                    *held = None;
                }
            }
        }
        self.held[new.slot.index()] = Some(new);
        if becomes_root {
            self.root = Some(new.slot);
            // If the snapshot was begun before the log ended, the log's end must not move back to
            // the snapshot's LSN.
            let log_end = self.log_end.map(|end| end.max(new.lsn));
            self.log_end = log_end.filter(|_| !continues_log);
        }
        self.check();
    }

    /// Panics if an invariant of the roles is broken. This check is cheap.
    pub(crate) fn check(&self) {
        assert!(self.root.is_none() || self.root().is_some(), "the root's slot holds no snapshot");
        assert!(self.held.iter().any(Option::is_none), "no slot is a reserve");
        let count = |kind| self.all().filter(|held| held.kind == kind).count();
        let is_one = count(SnapshotKind::Wal) <= 1 && count(SnapshotKind::OnDemand) <= 1;
        assert!(is_one, "there are two snapshots of a kind");
        for (slot, held) in SlotName::ALL.into_iter().zip(&self.held) {
            assert!(
                held.is_none_or(|held| held.slot == slot),
                "a snapshot is listed under another slot"
            );
        }
    }

    /// The roles as they will be when a snapshot of `kind` in `slot` is adopted.
    pub(crate) fn with(&self, slot: SlotName, kind: SnapshotKind) -> Self {
        let mut then = *self;
        then.adopt(
            SlotSummary {
                slot,
                kind,
                epoch: 0,
                number: 0,
                lsn: Lsn(0),
                consistent_lsn: Lsn(0),
                len_lbas: 0,
                checksum: 0,
                chunk_count: 0,
                entry_count: 0,
                payload_size: 0,
                created_ms: 0,
            },
            false,
        );
        then
    }

    /// Called when the log starts at an LSN at which the data set was empty. Recovery then needs no
    /// root, so there is none from now on. An on-demand snapshot that was the root stays in its
    /// slot.
    pub(crate) fn forget_root(&mut self) {
        if let Some(root) = self.root.take() {
            self.held[root.index()].take_if(|held| held.kind == SnapshotKind::Wal);
        }
        self.check();
    }

    /// If there is an on-demand snapshot, makes it the root and drops the WAL-snapshot.
    pub(crate) fn make_on_demand_root(&mut self) {
        let Some(slot) = self.of_kind(SnapshotKind::OnDemand).map(|held| held.slot) else { return };
        for held in &mut self.held {
            held.take_if(|held| held.kind == SnapshotKind::Wal);
        }
        self.root = Some(slot);
        self.check();
    }

    /// Ends the log at an LSN. With `None`, the log goes on.
    pub(crate) fn set_log_end(&mut self, log_end: Option<Lsn>) {
        self.log_end = log_end;
    }

    /// Writes the roles into the bytes of a superblock.
    pub(crate) fn encode(&self, bytes: &mut [u8]) {
        let root = self.root.map_or(0, |slot| slot.index() as u32 + 1);
        put_u32(bytes, superblock::ROOT_SLOT, root);
        put_u32(bytes, superblock::LOG_STATE, u32::from(self.log_end.is_some()));
        put_u64(bytes, superblock::LOG_END, self.log_end.map_or(0, |lsn| lsn.0));
        for (index, held) in self.held.iter().enumerate() {
            let Some(held) = held else { continue };
            let record = &mut bytes[superblock::SLOTS + index * at::SIZE..][..at::SIZE];
            put_u32(record, at::ROLE, held.kind.to_u32());
            put_u64(record, at::EPOCH, held.epoch);
            put_u64(record, at::NUMBER, held.number);
            put_u64(record, at::LSN, held.lsn.0);
            put_u64(record, at::LEN_LBAS, held.len_lbas);
            put_u64(record, at::CHECKSUM, held.checksum);
            put_u64(record, at::CHUNK_COUNT, held.chunk_count);
            put_u64(record, at::ENTRY_COUNT, held.entry_count);
            put_u64(record, at::PAYLOAD_SIZE, held.payload_size);
            put_u64(record, at::CREATED_MS, held.created_ms);
            if held.is_fuzzy() {
                put_u64(bytes, superblock::CONSISTENT + 8 * index, held.consistent_lsn.0);
            }
        }
    }

    /// Reads the roles from the bytes of a superblock. Does not check that the bytes outside the
    /// roles' fields are zero. The caller checks this: it encodes the superblock again and
    /// compares.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut found = Self::default();
        for slot in SlotName::ALL {
            let record = &bytes[superblock::SLOTS + slot.index() * at::SIZE..][..at::SIZE];
            let role = u32_at(record, at::ROLE);
            if role == 0 {
                continue;
            }
            let kind = SnapshotKind::from_u32(role)
                .filter(|&kind| found.of_kind(kind).is_none())
                .ok_or_else(|| format!("snapshot slot {} has role {role}", slot.index()))?;
            let len_lbas = u64_at(record, at::LEN_LBAS);
            if len_lbas > LEN_LBAS_MAX {
                return Err(format!(
                    "snapshot slot {} has {len_lbas} blocks, which is too many",
                    slot.index()
                ));
            }
            let lsn = Lsn(u64_at(record, at::LSN));
            let consistent = Lsn(u64_at(bytes, superblock::CONSISTENT + 8 * slot.index()));
            found.held[slot.index()] = Some(SlotSummary {
                slot,
                kind,
                epoch: u64_at(record, at::EPOCH),
                number: u64_at(record, at::NUMBER),
                lsn,
                consistent_lsn: consistent.max(lsn),
                len_lbas,
                checksum: u64_at(record, at::CHECKSUM),
                chunk_count: u64_at(record, at::CHUNK_COUNT),
                entry_count: u64_at(record, at::ENTRY_COUNT),
                payload_size: u64_at(record, at::PAYLOAD_SIZE),
                created_ms: u64_at(record, at::CREATED_MS),
            });
        }
        let root = u32_at(bytes, superblock::ROOT_SLOT);
        if let Some(index) = root.checked_sub(1) {
            let slot = SlotName::ALL.get(index as usize).copied();
            found.root = slot.filter(|&slot| found.get(slot).is_some());
            if found.root.is_none() {
                return Err(format!("the root is slot {root}, which holds no snapshot"));
            }
        }
        found.log_end = match u32_at(bytes, superblock::LOG_STATE) {
            0 => None,
            1 => Some(Lsn(u64_at(bytes, superblock::LOG_END))),
            state => return Err(format!("the log is in the unknown state {state}")),
        };
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(slot: SlotName, kind: SnapshotKind, number: u64) -> SlotSummary {
        SlotSummary {
            slot,
            kind,
            epoch: 1,
            number,
            lsn: Lsn(number * 100),
            consistent_lsn: Lsn(number * 100),
            len_lbas: 3,
            checksum: number,
            chunk_count: 0,
            entry_count: 0,
            payload_size: 0,
            created_ms: 5,
        }
    }

    fn reserve(snapshots: &Snapshots) -> SlotName {
        let mut slots = SlotName::ALL.into_iter();
        slots.find(|&slot| snapshots.get(slot).is_none()).expect("at least one slot is a reserve")
    }

    fn adopt(snapshots: &mut Snapshots, kind: SnapshotKind, number: u64, continues: bool) {
        snapshots.adopt(summary(reserve(snapshots), kind, number), continues);
    }

    fn numbers(snapshots: &Snapshots) -> (Option<u64>, Option<u64>, Option<u64>) {
        let of = |kind| snapshots.of_kind(kind).map(|held| held.number);
        let root = snapshots.root().map(|held| held.number);
        (root, of(SnapshotKind::Wal), of(SnapshotKind::OnDemand))
    }

    #[test]
    fn a_new_snapshot_replaces_the_one_of_its_kind() {
        use SnapshotKind::{OnDemand, Wal};
        let mut snapshots = Snapshots::default();
        adopt(&mut snapshots, OnDemand, 1, false);
        assert_eq!(numbers(&snapshots), (None, None, Some(1)));
        adopt(&mut snapshots, Wal, 2, false);
        adopt(&mut snapshots, Wal, 3, false);
        assert_eq!(numbers(&snapshots), (Some(3), Some(3), Some(1)));
        adopt(&mut snapshots, OnDemand, 4, false);
        assert_eq!(numbers(&snapshots), (Some(3), Some(3), Some(4)));
    }

    #[test]
    fn with_the_log_ended_the_latest_is_the_root() {
        use SnapshotKind::{OnDemand, Wal};
        let mut snapshots = Snapshots::default();
        adopt(&mut snapshots, Wal, 1, false);
        snapshots.set_log_end(Some(Lsn(150)));
        adopt(&mut snapshots, OnDemand, 2, false);
        assert_eq!(numbers(&snapshots), (Some(2), None, Some(2)));
        assert_eq!(snapshots.log_end(), Some(Lsn(200)));
        adopt(&mut snapshots, OnDemand, 3, false);
        assert_eq!(numbers(&snapshots), (Some(3), None, Some(3)));
        // WAL-snapshot 4 leaves the log off. WAL-snapshot 5 turns it on.
        adopt(&mut snapshots, Wal, 4, false);
        assert_eq!(snapshots.log_end(), Some(Lsn(400)));
        adopt(&mut snapshots, Wal, 5, true);
        assert_eq!(numbers(&snapshots), (Some(5), Some(5), Some(3)));
        assert_eq!(snapshots.log_end(), None);
    }

    #[test]
    fn the_root_is_not_replaced_by_what_is_no_root() {
        use SnapshotKind::{OnDemand, Wal};
        let mut snapshots = Snapshots::default();
        adopt(&mut snapshots, Wal, 1, false);
        adopt(&mut snapshots, OnDemand, 2, false);
        snapshots.make_on_demand_root();
        assert_eq!(numbers(&snapshots), (Some(2), None, Some(2)));
        adopt(&mut snapshots, OnDemand, 3, false);
        assert_eq!(numbers(&snapshots), (Some(2), Some(2), Some(3)));
        adopt(&mut snapshots, Wal, 4, false);
        assert_eq!(numbers(&snapshots), (Some(4), Some(4), Some(3)));
    }

    #[test]
    fn without_a_root_the_on_demand_snapshot_stays() {
        use SnapshotKind::{OnDemand, Wal};
        let mut snapshots = Snapshots::default();
        adopt(&mut snapshots, Wal, 1, false);
        adopt(&mut snapshots, OnDemand, 2, false);
        snapshots.forget_root();
        assert_eq!(numbers(&snapshots), (None, None, Some(2)));
        snapshots.make_on_demand_root();
        snapshots.forget_root();
        assert_eq!(numbers(&snapshots), (None, None, Some(2)));
    }

    #[test]
    fn what_is_encoded_can_be_decoded() {
        let mut snapshots = Snapshots::default();
        let mut bytes = vec![0; superblock::SIZE];
        assert_eq!(Snapshots::decode(&bytes), Ok(snapshots));
        adopt(&mut snapshots, SnapshotKind::Wal, 1, false);
        adopt(&mut snapshots, SnapshotKind::OnDemand, 2, false);
        snapshots.set_log_end(Some(Lsn(7)));
        snapshots.encode(&mut bytes);
        assert_eq!(Snapshots::decode(&bytes), Ok(snapshots));
        // Roles with two snapshots of one kind, with a root that is a reserve, or with an unknown
        // log state are refused.
        for (offset, value) in [
            (superblock::SLOTS + at::SIZE + at::ROLE, 1),
            (superblock::ROOT_SLOT, 3),
            (superblock::LOG_STATE, 2),
        ] {
            let mut wrong = bytes.clone();
            put_u32(&mut wrong, offset, value);
            assert!(Snapshots::decode(&wrong).is_err(), "{offset}");
        }
        put_u64(&mut bytes, superblock::SLOTS + at::LEN_LBAS, u64::MAX / 2);
        assert!(
            Snapshots::decode(&bytes).is_err(),
            "a length whose bytes do not fit a `u64` is accepted"
        );
    }

    #[test]
    fn a_fuzzy_one_is_so_in_whichever_slot() {
        let mut snapshots = Snapshots::default();
        adopt(&mut snapshots, SnapshotKind::OnDemand, 1, false);
        for number in 2..6 {
            let fuzzy = SlotSummary {
                consistent_lsn: Lsn(number * 1000),
                ..summary(reserve(&snapshots), SnapshotKind::Wal, number)
            };
            snapshots.adopt(fuzzy, false);
            let mut bytes = vec![0; superblock::SIZE];
            snapshots.encode(&mut bytes);
            let decoded = Snapshots::decode(&bytes);
            assert_eq!(decoded, Ok(snapshots));
            assert_eq!(snapshots.root(), Some(&fuzzy));
            assert!(snapshots.is_any_fuzzy());
        }
    }
}
