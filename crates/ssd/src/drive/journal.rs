//! How a drive remembers: each request that changes its mapping is an entry of a journal before it
//! takes effect, and now and then a checkpoint makes the older entries unnecessary.

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

/// What the kernel's "input/output error" is numbered.
const EIO: i32 = 5;

/// A checkpoint is made after this many changed pages on a small drive. On others, it is made after
/// as many pages as the drive exports. This limits how long a start replays.
const PAGES_MIN: u64 = 65_536;

/// The journal of an open drive.
#[derive(Debug)]
pub(super) struct Journal {
    store: Store,
    /// The head of the latest checkpoint.
    head: Head,
    /// The sequence number of the next entry.
    next: u64,
    /// Entries that will come later, and for which there must be room then.
    reserved: u64,
    /// Pages that were changed since the latest checkpoint.
    pages: u64,
    /// Closes when something can't be stored. From then on, the drive refuses what would change it.
    latch: Arc<Latch>,
    data: Arc<Data>,
    /// Memory for the next checkpoint.
    bytes: Vec<u8>,
}

impl Journal {
    /// The journal of a new drive, or of a drive whose journal is lost.
    ///
    /// # Errors
    /// As [`StateFile::create`].
    pub(super) fn create(
        file: &StateFile,
        data: &Arc<Data>,
        made: &SavedConfig,
        ftl: &Ftl,
    ) -> Result<Self, OpenError> {
        let (store, head) = file.create(made, ftl, |id| data.set_id(id))?;
        Ok(Self::of(store, head, data.clone()))
    }

    /// Goes on with the journal of a drive that was closed or killed, and is now `made` this way
    /// with this mapping.
    ///
    /// # Errors
    /// When the first checkpoint can't be made durable.
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

    /// Closes when something can't be stored.
    pub(super) fn latch(&self) -> Arc<Latch> {
        self.latch.clone()
    }

    /// From now on, makes another file durable in place of the state file.
    #[cfg(test)]
    pub(super) fn sync_another(&mut self, other: ImageFile) {
        self.store.image = Arc::new(other);
    }

    /// The state file, whose contents are to be made durable with those of the data file.
    pub(super) fn image(&self) -> Arc<ImageFile> {
        self.store.image.clone()
    }

    /// Makes sure that there is room for `count` more entries, and that what is stored outlives the
    /// process. When it is time, this makes a checkpoint, unless it `may_wait` and there is room.
    ///
    /// # Errors
    /// When something could not be stored, now or before. Then nothing may change the drive.
    pub(super) fn make_ready(
        &mut self,
        ftl: &Ftl,
        count: u64,
        may_wait: bool,
    ) -> Result<(), DeviceError> {
        if let Some(failure) = self.failure() {
            return Err(failure.clone());
        }
        if self.is_due(ftl) && !may_wait || self.is_short(count) {
            self.checkpoint(ftl)?;
        }
        if self.is_short(count) { Err(DeviceError::NoSpace) } else { Ok(()) }
    }

    /// Whether it is time for a checkpoint.
    pub(super) fn is_due(&self, ftl: &Ftl) -> bool {
        let pages_max = ftl.config().lba_count.max(PAGES_MIN);
        self.used() >= self.store.layout.entries / 2 || self.pages >= pages_max
    }

    /// Whether `count` more entries have no room before the next checkpoint.
    pub(super) fn is_short(&self, count: u64) -> bool {
        self.used() + self.reserved + count > self.store.layout.entries
    }

    /// Reserves room for an entry that comes later. [`make_ready`](Self::make_ready) was called.
    pub(super) fn reserve(&mut self) {
        self.reserved += 1;
    }

    /// Gives up the reserved room of an entry that will not come.
    pub(super) fn forget_one_reserved(&mut self) {
        self.reserved -= 1;
    }

    /// Gives up all reserved room.
    pub(super) fn forget_reserved(&mut self) {
        self.reserved = 0;
    }

    /// As [`append`](Self::append), into reserved room.
    ///
    /// # Errors
    /// As [`append`](Self::append).
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

    /// Stores a request of this time, before it is applied. There must be room.
    ///
    /// # Errors
    /// When it does not outlive the process.
    pub(super) fn append(&mut self, request: Request, time_ms: u64) -> Result<(), DeviceError> {
        assert!(self.used() < self.store.layout.entries, "there is room for the entry");
        self.store.put(&Entry { sequence: self.next, time_ms, request }, self.head.id);
        self.next += 1;
        self.pages += request.pages();
        if self.store.is_whole() {
            return Ok(());
        }
        Err(self.latch.close(DeviceError::Io { errno: EIO }))
    }

    /// Why something could not be stored, if so.
    pub(super) fn failure(&self) -> Option<&DeviceError> {
        self.latch.failure()
    }

    /// The blocks that are mapped into memory, or were when blocks were last mapped.
    pub(super) fn mapped(&self) -> &Range<u64> {
        &self.head.made.mapped
    }

    /// Notes that these blocks are mapped into memory, and no others.
    ///
    /// # Errors
    /// As [`checkpoint`](Self::checkpoint).
    pub(super) fn set_mapped(&mut self, ftl: &Ftl, mapped: Range<u64>) -> Result<(), DeviceError> {
        if *self.mapped() == mapped {
            return Ok(());
        }
        self.head.made.mapped = mapped;
        self.checkpoint(ftl)
    }

    /// Makes a checkpoint of a mapping that the journal does not lead to. No entry that was stored
    /// until now, whole or not, is ever taken for one that follows the checkpoint.
    ///
    /// # Errors
    /// As [`checkpoint`](Self::checkpoint).
    pub(super) fn restart(&mut self, ftl: &Ftl) -> Result<(), DeviceError> {
        if !is_planted("sequence-not-raised") {
            self.next += self.store.layout.entries + 1;
        }
        self.checkpoint(ftl)
    }

    /// Makes a checkpoint of the mapping as it is at the end of the journal. The drive is locked
    /// meanwhile. On a drive of 2 GiB, that takes at most 3 ms (`--example locked`), and with
    /// `sync=yes` up to 20 ms, because what came since the sync before it is made durable.
    ///
    /// # Errors
    /// When it can't be stored. From then on, the drive refuses what would change it.
    pub(super) fn checkpoint(&mut self, ftl: &Ftl) -> Result<(), DeviceError> {
        let head = Head { number: self.head.number + 1, next: self.next, ..self.head.clone() };
        // Blocks that the checkpoint has as deallocated have no old data in the file any more, before
        // the entries that say so are unnecessary.
        let (data, latch) = (&self.data, &self.latch);
        let sync = |state: &ImageFile| latch.sync(|| data.sync().and_then(|()| state.sync()));
        let made = self.store.checkpoint(head, ftl, &mut self.bytes, sync);
        self.head = made.map_err(|error| self.latch.close(error))?;
        self.pages = 0;
        Ok(())
    }

    /// Entries behind the latest checkpoint.
    fn used(&self) -> u64 {
        self.next - self.head.next
    }
}
