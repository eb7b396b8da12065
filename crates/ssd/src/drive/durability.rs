//! Carries out a drive's flushes: makes the drive's files durable in their file system.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use slimio_device::{DeviceError, ImageFile};
use slimio_planted::is_planted;

use super::data::Data;
use super::journal::Journal;

/// A latch that closes at the first failure to store something, or to make it durable. The kernel
/// reports such a failure only to the first sync after it. From then on, the kernel may treat the
/// lost data as written. So after a failure nothing counts as durable, and nothing may change the
/// drive, no matter which sync got the report.
#[derive(Debug, Default)]
pub(super) struct Latch {
    failure: OnceLock<DeviceError>,
    /// Held during a sync. Two syncs at the same time could get different results: one takes the
    /// kernel's report of a failure, and the other succeeds. With this lock, the second sync sees
    /// that the latch is closed.
    turn: Mutex<()>,
}

impl Latch {
    /// The failure that closed the latch, if the latch is closed.
    pub(super) fn failure(&self) -> Option<&DeviceError> {
        self.failure.get()
    }

    /// Closes the latch. Returns the first failure.
    pub(super) fn close(&self, failure: DeviceError) -> DeviceError {
        self.failure.get_or_init(|| failure).clone()
    }

    /// Makes something durable by calling `sync`.
    ///
    /// # Errors
    /// If the latch is closed, or if `sync` fails. The error is the failure that closed the latch.
    pub(super) fn sync(
        &self,
        sync: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let is_open = || self.failure().map_or(Ok(()), |failure| Err(failure.clone()));
        is_open()?;
        sync().map_err(|failure| self.close(failure))?;
        is_open()
    }
}

#[derive(Debug)]
pub(super) struct Durability {
    /// The data file, the state file, and the latch that closes if one of them fails. `None` if
    /// nothing is made durable.
    files: Option<(Arc<Data>, Arc<ImageFile>, Arc<Latch>)>,
    syncs: Syncs,
}

/// The syncs so far. If several threads wait at the same time, one more sync serves all of them.
#[derive(Debug, Default)]
struct Syncs {
    /// Number of syncs that have begun.
    begun: AtomicU64,
    /// The number of the last sync that ended well. The lock is held while a sync runs.
    ended: Mutex<u64>,
}

/// A moment, given by the number of syncs that had begun until then. Syncs with a higher number
/// cover everything that was written before that moment.
#[derive(Clone, Copy, Debug)]
struct Since(u64);

impl Syncs {
    /// The present moment. Ask for it after writing everything that a sync has to cover.
    fn now(&self) -> Since {
        // Without the fence, the number could be read before the writes have reached the page
        // cache.
        fence(Ordering::SeqCst);
        Since(self.begun.load(Ordering::SeqCst))
    }

    /// Runs `sync`. Does nothing if another thread's sync began after `since` and ended well.
    fn run<E>(&self, since: Since, sync: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let is_covered =
            *ended > since.0 || *ended == since.0 && *ended > 0 && is_planted("early-sync-counts");
        if is_covered {
            return Ok(());
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        fence(Ordering::SeqCst);
        sync()?;
        *ended = number;
        Ok(())
    }
}

impl Durability {
    pub(super) fn new(is_sync: bool, data: Arc<Data>, journal: Option<&Journal>) -> Self {
        let state = journal.filter(|_| is_sync).map(|journal| (journal.image(), journal.latch()));
        let files = state.map(|(state, latch)| (data, state, latch));
        Self { files, syncs: Syncs::default() }
    }

    /// Syncs the drive's files. Everything that was written before this call is then durable, and
    /// so are all entries that the journal had before this call.
    pub(super) fn sync(&self) -> Result<(), DeviceError> {
        let Some((data, state, latch)) = &self.files else { return Ok(()) };
        if is_planted("drive-flush-left-out") {
            return Ok(());
        }
        self.syncs.run(self.syncs.now(), || {
            latch.sync(|| {
                if !is_planted("drive-data-not-flushed") {
                    data.sync()?;
                }
                state.sync()
            })
        })?;
        // Another thread's sync may have served this call, and something may have failed after that
        // sync.
        latch.failure().map_or(Ok(()), |failure| Err(failure.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use slimio_device::{Buffer, Completion, Lba, LbaRange, Op, PlacementId, Token, WholeDevice};

    use super::*;
    use crate::{Clock, Config, DataPlace, DriveOptions, EmulatedDrive};

    fn run(drive: &mut EmulatedDrive, op: Op) -> Result<(), DeviceError> {
        let mut path = drive.open_path().expect("there is room");
        path.submit(Token(0), op).expect("nothing is in flight");
        let mut completions: Vec<Completion> = Vec::new();
        path.wait(None, &mut completions);
        completions.remove(0).result
    }

    #[test]
    fn a_sync_serves_all_who_asked_before_it_began_and_nobody_else() {
        let syncs = Syncs::default();
        let run = |since, count: &mut u32| {
            let done: Result<(), ()> = syncs.run(since, || {
                *count += 1;
                Ok(())
            });
            done.expect("the sync ends well");
        };
        let mut count = 0;
        let (one, other) = (syncs.now(), syncs.now());
        run(one, &mut count);
        run(other, &mut count);
        assert_eq!(count, 1, "one sync must serve both callers");
        let mut late = None;
        let done: Result<(), ()> = syncs.run(syncs.now(), || {
            late = Some(syncs.now());
            Ok(())
        });
        done.expect("the sync ends well");
        run(late.expect("the sync was run"), &mut count);
        assert_eq!(count, 2, "whoever asks during a sync must get another sync");
        let since = syncs.now();
        syncs.run(syncs.now(), || Err(())).expect_err("the sync fails");
        run(since, &mut count);
        assert_eq!(count, 3, "a failed sync must serve nobody");
    }

    /// A disk may take a tenth of a second for a sync, and a host may have hundreds of flushes in
    /// flight. So one sync must serve all of them.
    #[test]
    fn what_has_begun_is_made_durable_by_one_sync() {
        let folder = tempfile::tempdir().expect("a directory for the test");
        let data = DataPlace::File(folder.path().join("drive"));
        let options = DriveOptions::new(Config::scaled(12 << 20), Clock::Real);
        let options = DriveOptions { data, is_sync: true, ..options };
        let drive = EmulatedDrive::open(options).expect("the drive can be made");
        let mut queue = drive.open_queue();
        let syncs = || drive.core.durability.syncs.now().0;
        for number in 0..10 {
            let buffer = Buffer::zeroed(1);
            let write =
                Op::Write { lba: Lba(number), buffer, placement: PlacementId(0), durable: true };
            queue.begin(Token(number), write, Instant::now());
            queue.begin(Token(number), Op::Flush, Instant::now());
        }
        assert_eq!((syncs(), queue.in_flight()), (0, 20));
        let mut completions = Vec::new();
        while queue.in_flight() > 0 {
            assert!(queue.next_due().is_some(), "the queue does not say when to poll it");
            queue.poll(&mut completions);
        }
        assert!(completions.iter().all(|completion| completion.result == Ok(())));
        assert_eq!((syncs(), completions.len()), (1, 20));
    }

    /// A pending deallocation takes effect only if the journal can store it.
    #[test]
    fn a_pending_deallocation_fails_if_the_journal_fails_before_it_takes_effect() {
        let folder = tempfile::tempdir().expect("a directory for the test");
        let data = DataPlace::File(folder.path().join("drive"));
        let options = DriveOptions::new(Config::scaled(12 << 20), Clock::Real);
        let deallocate_latency = Duration::from_millis(5);
        let drive = EmulatedDrive::open(DriveOptions { data, deallocate_latency, ..options });
        let drive = drive.expect("the drive can be made");
        let mut queue = drive.open_queue();
        let range = LbaRange { start: Lba(0), end: Lba(1) };
        queue.begin(Token(0), Op::Deallocate { range }, Instant::now());
        let latch = drive.core.lock().journal.as_ref().expect("the drive has a journal").latch();
        let failure = latch.close(DeviceError::Io { errno: 5 });
        let mut found = Vec::new();
        while found.is_empty() {
            queue.poll(&mut found);
        }
        assert_eq!(found[0].result, Err(failure));
    }

    #[test]
    fn what_needs_no_sync_completes_before_one() {
        let folder = tempfile::tempdir().expect("a directory for the test");
        let data = DataPlace::File(folder.path().join("drive"));
        let options = DriveOptions::new(Config::scaled(12 << 20), Clock::Real);
        let options = DriveOptions { data, is_sync: true, ..options };
        let drive = EmulatedDrive::open(options).expect("the drive can be made");
        let mut queue = drive.open_queue();
        let syncs = || drive.core.durability.syncs.now().0;
        queue.begin(Token(0), Op::Flush, Instant::now());
        let read = |token| (Token(token), Op::Read { lba: Lba(0), buffer: Buffer::zeroed(1) });
        let (mut found, mut tokens) = (Vec::new(), Vec::new());
        for number in 1..=2 {
            let (token, op) = read(number);
            queue.begin(token, op, Instant::now());
            while !tokens.contains(&Token(number)) {
                queue.poll(&mut found);
                tokens.extend(found.drain(..).map(|completion| completion.token));
            }
            assert_eq!(syncs(), number - 1, "the sync must run in the second round");
        }
        assert_eq!(tokens.len(), 3);
    }

    /// Bytes did not reach the disk. The kernel reports this failure only to the sync of a
    /// checkpoint (which makes older entries of the journal unnecessary), and not to the flush that
    /// follows.
    #[test]
    fn a_flush_fails_after_a_checkpoint_could_not_be_made_durable() {
        let folder = tempfile::tempdir().expect("a directory for the test");
        let data = DataPlace::File(folder.path().join("drive"));
        let options = DriveOptions::new(Config::scaled(12 << 20), Clock::Virtual);
        let options = DriveOptions { data, is_sync: true, ..options };
        let mut drive = EmulatedDrive::open(options).expect("the drive can be made");
        let write = |durable| {
            let (buffer, placement) = (Buffer::zeroed(1), PlacementId(0));
            Op::Write { lba: Lba(0), buffer, placement, durable }
        };
        assert_eq!(run(&mut drive, write(false)), Ok(()));
        assert_eq!(run(&mut drive, Op::Flush), Ok(()));
        let failed = {
            let mut core = drive.core.lock();
            let journal = core.journal.as_mut().expect("the drive has a journal");
            // A sync of this file fails.
            journal
                .sync_another(ImageFile::open("/dev/full".as_ref()).expect("`/dev/full` is there"));
            core.set_mapped(5..6).expect_err("the checkpoint can't be made durable")
        };
        assert_eq!(run(&mut drive, Op::Flush), Err(failed.clone()));
        assert_eq!(run(&mut drive, write(true)), Err(failed));
    }
}
