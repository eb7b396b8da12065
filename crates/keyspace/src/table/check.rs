//! Checks the invariants of a table, entry by entry.

use super::{Bucket, BucketSlot, SEGMENT_LEN, Table, allocated};
use crate::value::ValueRef;

impl Table {
    /// Walks over all entries, and over the elements of all collections. Panics with a message if
    /// an invariant does not hold.
    pub(crate) fn check(&self) {
        let segments = || self.groups.iter().flatten();
        assert_eq!(
            segments().map(Vec::len).sum::<usize>(),
            self.bucket_count,
            "the table must have as many buckets as it counts"
        );
        let full = segments().take(self.bucket_count / SEGMENT_LEN);
        assert!(
            full.into_iter().all(|s| s.len() == SEGMENT_LEN),
            "only the last segment of buckets may be partly filled"
        );
        let (mut len, mut expiring, mut entry_bytes, mut slot_bytes) = (0, 0, 0, 0);
        for (index, bucket) in segments().flatten().enumerate() {
            self.check_bucket(index, bucket);
            len += bucket.len();
            expiring += bucket.iter().filter(|slot| slot.expires()).count();
            entry_bytes += bucket.iter().map(BucketSlot::memory).sum::<usize>();
            slot_bytes += allocated(bucket.capacity() * size_of::<BucketSlot>());
        }
        assert_eq!(len, self.len, "the buckets must hold as many entries as the table counts");
        assert_eq!(expiring, self.expiring, "as many entries must expire as the table counts");
        assert_eq!(entry_bytes, self.entry_bytes, "the entries must take the counted memory");
        assert_eq!(slot_bytes, self.slot_bytes, "the slots must take the counted memory");
        let marked = self.marks.check(self.bucket_count);
        assert_eq!(
            marked,
            self.marks.count(),
            "the number of marked buckets must be the number that the marks count"
        );
    }

    fn check_bucket(&self, index: usize, bucket: &Bucket) {
        for (place, slot) in bucket.iter().enumerate() {
            let right = self.index(slot.hash);
            assert_eq!(right, index, "an entry must be in the bucket that its hash names");
            let is_twin = |other: &BucketSlot| other.hash == slot.hash && other.key() == slot.key();
            assert!(!bucket[..place].iter().any(is_twin), "a key is in its bucket twice");
            if let ValueRef::Collection(collection) = slot.value() {
                collection.check();
            }
        }
        let expires = bucket.iter().any(BucketSlot::expires);
        assert_eq!(
            self.marks.next(index) == Some(index),
            expires,
            "bucket {index} must be marked if and only if an entry in it expires"
        );
    }
}
