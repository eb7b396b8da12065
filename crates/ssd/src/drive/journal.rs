//! How a drive's state outlives the process. Each request that changes the mapping is stored as an
//! entry of the journal before the request takes effect. Now and then, a checkpoint makes the older
//! entries unnecessary.

use std::ops::Range;
use std::sync::Arc;

use slimio_device::{DeviceError, ImageFile, OpenError};
use slimio_planted::is_planted;

use super::data::Data;
use super::durability::Latch;
use super::made::SavedConfig;
use super::recovery::JournalEnd;
use super::request::{Entry, Request};
use super::state_file::{Head, StateFile, Store};
use crate::Ftl;

/// The kernel's number for "input/output error".
const EIO: i32 = 5;

/// A checkpoint is made at the latest when this many pages were changed, or as many as the drive
/// exports if that is more. This limits the time that a start needs to replay entries.
const PAGES_MIN: u64 = 65_536;

/// The journal of an open drive.
#[derive(Debug)]
pub(super) struct Journal {
    store: Store,
    /// The head of the latest checkpoint.
    head: Head,
    /// The sequence number of the next entry.
    next: u64,
    /// Number of entries that are not stored yet, but have room reserved for them.
    reserved: u64,
    /// Number of pages that were changed since the latest checkpoint.
    pages: u64,
    /// Closes when something can't be stored. From then on, the drive refuses every request that
    /// would change the drive.
    latch: Arc<Latch>,
    data: Arc<Data>,
    /// Memory for the next checkpoint.
    bytes: Vec<u8>,
}

impl Journal {
    /// Begins the journal of a new drive, or of a drive whose journal is lost.
    ///
    /// # Errors
    /// As for [`StateFile::create`].
    pub(super) fn create(
        file: &StateFile,
        data: &Arc<Data>,
        made: &SavedConfig,
        ftl: &Ftl,
    ) -> Result<Self, OpenError> {
        // If the process is killed during these steps, the data file has either no id, or the id of
        // the state file beside it.
        let (store, head) = file.create(made, ftl, || data.remove_id(made.is_sync))?;
        data.set_id(head.id);
        Ok(Self::of(store, head, data.clone()))
    }

    /// Continues the journal of a drive that was closed, or whose process was killed. The drive now
    /// has the configuration `made` and the mapping `ftl`.
    ///
    /// # Errors
    /// If the first checkpoint can't be made durable.
    pub(super) fn go_on(
        store: Store,
        data: &Arc<Data>,
        at: JournalEnd,
        made: &SavedConfig,
        ftl: &Ftl,
    ) -> Result<Self, DeviceError> {
        let JournalEnd { number, next, id } = at;
        let made = made.clone();
        let head = Head { number, next, id, body_size: 0, body_checksum: 0, made };
        let mut journal = Self::of(store, head, data.clone());
        journal.restart(ftl)?;
        Ok(journal)
    }

    fn of(store: Store, head: Head, data: Arc<Data>) -> Self {
        let (next, latch) = (head.next, Arc::default());
        Self { store, head, next, reserved: 0, pages: 0, latch, data, bytes: Vec::new() }
    }

    /// The latch that closes when something can't be stored.
    pub(super) fn latch(&self) -> Arc<Latch> {
        self.latch.clone()
    }

    /// From now on, syncs act on another file instead of the state file.
    #[cfg(test)]
    pub(super) fn sync_another(&mut self, other: ImageFile) {
        self.store.image = Arc::new(other);
    }

    /// The state file. It has to be made durable together with the data file.
    pub(super) fn image(&self) -> Arc<ImageFile> {
        self.store.image.clone()
    }

    /// Makes sure that there is room for `count` more entries, and that everything stored so far
    /// outlives the process. Makes a checkpoint if one is due.
    ///
    /// # Errors
    /// If something could not be stored, now or earlier, or if there is too little room even after
    /// a checkpoint. The caller must then leave the drive as it is.
    pub(super) fn make_ready(&mut self, ftl: &Ftl, count: u64) -> Result<(), DeviceError> {
        if let Some(failure) = self.failure() {
            return Err(failure.clone());
        }
        if self.is_due(ftl) || self.is_short(count) {
            self.checkpoint(ftl)?;
        }
        if self.is_short(count) { Err(DeviceError::NoSpace) } else { Ok(()) }
    }

    /// Whether it is time for a checkpoint.
    pub(super) fn is_due(&self, ftl: &Ftl) -> bool {
        let pages_max = ftl.config().lba_count.max(PAGES_MIN);
        self.used() >= self.store.layout.entries / 2 || self.pages >= pages_max
    }

    /// Whether the journal lacks room for `count` more entries. A checkpoint makes room.
    pub(super) fn is_short(&self, count: u64) -> bool {
        self.used() + self.reserved + count > self.store.layout.entries
    }

    /// Reserves room for an entry that is stored later. The caller must have called
    /// [`make_ready`](Self::make_ready) before.
    pub(super) fn reserve(&mut self) {
        self.reserved += 1;
    }

    /// Gives up the reserved room of an entry that will not be stored.
    pub(super) fn forget_one_reserved(&mut self) {
        self.reserved -= 1;
    }

    /// Gives up all reserved room.
    pub(super) fn forget_reserved(&mut self) {
        self.reserved = 0;
    }

    /// Like [`append`](Self::append), but uses reserved room.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub(super) fn append_reserved(
        &mut self,
        request: Request,
        time_ms: u64,
    ) -> Result<(), DeviceError> {
        self.reserved -= 1;
        if is_planted("deallocation-not-journalled") {
            return Ok(());
        }
        self.append(request, time_ms)
    }

    /// Stores a request and its time. The caller applies the request afterwards. There must be room
    /// for the entry.
    ///
    /// # Errors
    /// If the entry would not outlive the process.
    pub(super) fn append(&mut self, request: Request, time_ms: u64) -> Result<(), DeviceError> {
        assert!(self.used() < self.store.layout.entries, "the journal has no room");
        self.store.put(&Entry { sequence: self.next, time_ms, request }, self.head.id);
        self.next += 1;
        self.pages += request.pages();
        if self.store.is_whole() {
            return Ok(());
        }
        Err(self.latch.close(DeviceError::Io { errno: EIO }))
    }

    /// The failure that closed the latch, if there was one.
    pub(super) fn failure(&self) -> Option<&DeviceError> {
        self.latch.failure()
    }

    /// The blocks that were mapped into memory most recently. They may still be mapped.
    pub(super) fn mapped(&self) -> &Range<u64> {
        &self.head.made.mapped
    }

    /// Notes that these blocks, and no others, are mapped into memory.
    ///
    /// # Errors
    /// As for [`checkpoint`](Self::checkpoint).
    pub(super) fn set_mapped(&mut self, ftl: &Ftl, mapped: Range<u64>) -> Result<(), DeviceError> {
        if *self.mapped() == mapped {
            return Ok(());
        }
        self.head.made.mapped = mapped;
        self.checkpoint(ftl)
    }

    /// Makes a checkpoint of a mapping that need not be the result of the journal's entries. First
    /// raises the next sequence number, so that no older entry, whole or torn, is ever taken for an
    /// entry after this checkpoint.
    ///
    /// # Errors
    /// As for [`checkpoint`](Self::checkpoint).
    pub(super) fn restart(&mut self, ftl: &Ftl) -> Result<(), DeviceError> {
        if !is_planted("sequence-not-raised") {
            self.next += self.store.layout.entries + 1;
        }
        self.checkpoint(ftl)
    }

    /// Makes a checkpoint of the mapping as it is at the end of the journal. The drive is locked
    /// meanwhile. On a drive of 2 GiB, a checkpoint takes at most 3 ms (measured by `--example
    /// locked`). With `sync=yes`, a checkpoint takes up to 20 ms, because everything that was
    /// written since the last sync has to reach the disk.
    ///
    /// # Errors
    /// If the checkpoint can't be stored. From then on, the drive refuses every request that would
    /// change the drive.
    pub(super) fn checkpoint(&mut self, ftl: &Ftl) -> Result<(), DeviceError> {
        let head = Head { number: self.head.number + 1, next: self.next, ..self.head.clone() };
        // If the entries after the checkpoint are lost, each block that has data in the data file
        // counts as written. Old data of deallocated blocks must not come back in this way. So
        // before the checkpoint is complete, the removal of this data must be durable.
        let (data, latch) = (&self.data, &self.latch);
        let sync = |state: &ImageFile| latch.sync(|| data.sync().and_then(|()| state.sync()));
        let made = self.store.checkpoint(head, ftl, &mut self.bytes, sync);
        self.head = made.map_err(|error| self.latch.close(error))?;
        self.pages = 0;
        Ok(())
    }

    /// Number of entries after the latest checkpoint.
    fn used(&self) -> u64 {
        self.next - self.head.next
    }
}
