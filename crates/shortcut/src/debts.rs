//! Remembers which files have changes that only the kernel can make durable.
//!
//! Several processes may overwrite a file. A write that takes the short path is durable when it
//! returns. Any other change of the file leaves a *debt*. While a file has a debt, each process
//! that syncs the file has to call the kernel. So the debts are in memory that all these processes
//! share. They get this memory from the keeper, which is the process `slimio shortcut run`.
//!
//! Two numbers say whether a file has a debt. `changed` is raised at the beginning and at the end
//! of each change that leaves a debt. When a sync has succeeded, `synced` is set to the value that
//! `changed` had before the sync. If the two numbers are equal, and each change that has begun has
//! ended, there is no debt. A process that is killed in the middle of a change leaves a debt for
//! good, because nobody knows when the kernel has finished the change.
//!
//! A file has an entry of eight numbers. The entry is found by a hash of device and inode number;
//! in a free entry, the hash is zero. If there are too many files, those without an entry of their
//! own share entry 0. Files that share an entry share their debts. So a sync may be done
//! needlessly, but no sync that is needed is left out.
//!
//! | number | |
//! |---:|---|
//! | 0 | the file's hash, or zero |
//! | 1 | `changed`: lower half: changes that have begun; upper half: changes that have ended |
//! | 2 | `synced` |
//! | 3 | how often the file's blocks may have moved; after each time, they are looked up again |
//! | 4 | writes that took the short path and failed |
//! | 5 | bit 0: the debt stays for good; bit 1: the keeper has been told of the file |
//! | 6 | writes that took the short path |
//! | 7 | syncs that found nothing to do |

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use slimio_device::SharedCounters;
use slimio_planted::is_planted;

use crate::Identity;

/// Number of entries. Each entry except entry 0 belongs to one file.
const ENTRIES: u64 = 4096;
const NUMBERS: u64 = 8;
/// A file's entry is one of this many entries in a row. The hash says where the row begins.
const FAR: u64 = 64;
/// `changed` is raised by `BEGUN` when a change begins, and by `ENDED` when the change ends.
const BEGUN: u64 = 1;
const ENDED: u64 = 1 << 32;
const STAYS: u64 = 1;
const TOLD: u64 = 2;

/// The debts of all files.
#[derive(Debug)]
pub struct Debts {
    numbers: SharedCounters,
}

/// Counts of all files together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Files that were opened for writing.
    pub files: u64,
    /// Writes that took the short path.
    pub writes: u64,
    /// Syncs that found nothing to do.
    pub syncs: u64,
}

/// The debt of a file.
#[derive(Clone, Copy, Debug)]
pub struct Debt<'a> {
    entry: &'a [AtomicU64],
}

impl Debts {
    const COUNT: usize = (ENTRIES * NUMBERS) as usize;

    /// Makes the table in a file that no process uses yet.
    ///
    /// # Errors
    /// If there is no room for the table.
    pub fn create(file: &File) -> io::Result<Self> {
        Ok(Self { numbers: SharedCounters::create(file, Self::COUNT)? })
    }

    /// Opens the table that another process has made in this file.
    ///
    /// # Errors
    /// If the file has no table, or can't be mapped.
    pub fn open(file: &File) -> io::Result<Self> {
        if is_planted("debt-of-another-forgotten") {
            return Self::create(
                &rustix::fs::memfd_create("", rustix::fs::MemfdFlags::CLOEXEC)?.into(),
            );
        }
        Ok(Self { numbers: SharedCounters::open(file, Self::COUNT)? })
    }

    /// The debt of a file. If the file has no entry yet, it gets one.
    pub fn of(&self, file: Identity) -> Debt<'_> {
        let hash = hash(file);
        for place in places(hash) {
            let debt = self.entry(place);
            let claimed =
                debt.entry[0].compare_exchange(0, hash, Ordering::SeqCst, Ordering::SeqCst);
            if claimed.is_ok() || claimed == Err(hash) {
                return debt;
            }
        }
        self.entry(0)
    }

    /// The debt of a file, or `None` if the file has no entry and does not share entry 0.
    pub fn known(&self, file: Identity) -> Option<Debt<'_>> {
        let hash = hash(file);
        let entries = places(hash).map(|place| self.entry(place));
        let mut found = entries.filter(|debt| debt.entry[0].load(Ordering::SeqCst) == hash);
        // If there are too many files, this file may share entry 0.
        found.next().or_else(|| {
            let is_full =
                places(hash).all(|place| self.entry(place).entry[0].load(Ordering::SeqCst) != 0);
            is_full.then(|| self.entry(0))
        })
    }

    /// The counts so far.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for debt in (0..ENTRIES).map(|place| self.entry(place)) {
            totals.files += u64::from(debt.entry[0].load(Ordering::Relaxed) != 0);
            totals.writes += debt.entry[6].load(Ordering::Relaxed);
            totals.syncs += debt.entry[7].load(Ordering::Relaxed);
        }
        totals
    }

    fn entry(&self, place: u64) -> Debt<'_> {
        let start = (place * NUMBERS) as usize;
        Debt { entry: &self.numbers[start..start + NUMBERS as usize] }
    }
}

impl Debt<'_> {
    /// Notes a finished change that only the kernel can make durable.
    pub fn owe(&self) {
        self.change(BEGUN + ENDED);
    }

    /// Notes the beginning of a change that only the kernel can make durable. [`end`](Self::end)
    /// notes the end of the change.
    pub fn begin(&self) {
        self.change(BEGUN);
    }

    /// Notes that a change has ended.
    pub fn end(&self) {
        self.change(ENDED);
    }

    fn change(&self, by: u64) {
        if !is_planted("debt-forgotten") {
            self.entry[1].fetch_add(by, Ordering::SeqCst);
        }
    }

    /// Runs `change`, a system call that changes the file. In the middle of the change, a signal
    /// may kill the process, or another process may sync the file: the file then still has a debt.
    pub fn around<T>(&self, change: impl FnOnce() -> T) -> T {
        self.begin();
        let result = change();
        self.end();
        result
    }

    /// Makes the debt stay for good, so that every sync calls the kernel.
    pub fn owe_for_good(&self) {
        self.entry[5].fetch_or(STAYS, Ordering::SeqCst);
    }

    /// Whether there is a debt.
    pub fn is_owed(&self) -> bool {
        // `synced` is loaded first. If `changed` has the same value afterwards, no change has come
        // since the sync that set `synced`.
        let synced = self.entry[2].load(Ordering::SeqCst);
        let changed = self.entry[1].load(Ordering::SeqCst);
        let is_under_way = changed % ENDED != changed / ENDED && !is_planted("killed-change-paid");
        synced != changed || is_under_way || self.entry[5].load(Ordering::SeqCst) & STAYS != 0
    }

    /// Runs `sync`, by which the kernel syncs the file. If `sync` succeeds, the debt is paid.
    ///
    /// # Errors
    /// The error of `sync`. The debt then stays.
    pub fn pay<E>(&self, sync: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let changed = self.entry[1].load(Ordering::SeqCst);
        let result = sync();
        if result.is_ok() || is_planted("debt-paid-by-failure") {
            self.entry[2].fetch_max(changed, Ordering::SeqCst);
        }
        result
    }

    /// Notes that the file's blocks may have moved.
    pub fn move_blocks(&self) {
        self.entry[3].fetch_add(1, Ordering::SeqCst);
    }

    /// How often the blocks may have moved.
    pub(crate) fn moved(&self) -> u64 {
        self.entry[3].load(Ordering::SeqCst)
    }

    /// Notes that a write that took the short path has failed.
    pub(crate) fn fail(&self) {
        self.owe();
        self.entry[4].fetch_add(1, Ordering::SeqCst);
    }

    /// How many writes that took the short path have failed.
    pub(crate) fn failures(&self) -> u64 {
        self.entry[4].load(Ordering::SeqCst)
    }

    /// Whether the caller has to tell the keeper of the file. True only for the first caller.
    pub fn is_new(&self) -> bool {
        self.entry[5].fetch_or(TOLD, Ordering::SeqCst) & TOLD == 0
    }

    pub(crate) fn count_write(&self) {
        self.entry[6].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_sync(&self) {
        self.entry[7].fetch_add(1, Ordering::Relaxed);
    }
}

/// The places where the entry of a file may be.
fn places(hash: u64) -> impl Iterator<Item = u64> {
    (0..FAR).map(move |step| 1 + (hash.wrapping_add(step)) % (ENTRIES - 1))
}

/// A hash that is not zero, and very probably differs from the hash of every other file.
fn hash(file: Identity) -> u64 {
    let mut hash = file.device.rotate_left(40) ^ file.inode;
    // The finalizer of splitmix64.
    for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)] {
        hash = (hash ^ (hash >> shift)).wrapping_mul(factor);
    }
    (hash ^ (hash >> 31)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> File {
        rustix::fs::memfd_create("debts", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into()
    }

    fn file(inode: u64) -> Identity {
        Identity { device: 7, inode, born: 0 }
    }

    #[test]
    fn a_change_is_owed_until_a_sync_that_began_later_succeeds() {
        let debts = Debts::create(&memory()).unwrap();
        let debt = debts.of(file(1));
        assert!(!debt.is_owed());
        debt.around(|| assert!(debt.is_owed()));
        assert!(debt.is_owed());
        assert_eq!(debt.pay(|| Err(5)), Err(5));
        assert!(debt.is_owed(), "a failed sync must not pay the debt");
        debt.pay(|| Ok::<_, ()>(())).unwrap();
        assert!(!debt.is_owed());
        // A change during the sync may have come too late for that sync.
        debt.owe();
        let late = || {
            debt.owe();
            Ok::<_, ()>(())
        };
        debt.pay(late).unwrap();
        assert!(debt.is_owed());
        // A sync in the middle of a change does not pay for the end of the change.
        debt.around(|| debt.pay(|| Ok::<_, ()>(())).unwrap());
        assert!(debt.is_owed());
        debt.pay(|| Ok::<_, ()>(())).unwrap();
        assert!(!debt.is_owed());
        debt.owe_for_good();
        debt.pay(|| Ok::<_, ()>(())).unwrap();
        assert!(debt.is_owed());
    }

    /// A process is killed in the middle of a change. The kernel may finish the change after the
    /// last sync, and no process notes that.
    #[test]
    fn a_change_by_a_killed_process_stays_owed() {
        let debts = Debts::create(&memory()).unwrap();
        let debt = debts.of(file(1));
        debt.begin();
        debt.pay(|| Ok::<_, ()>(())).unwrap();
        assert!(debt.is_owed());
        debt.around(|| ());
        debt.pay(|| Ok::<_, ()>(())).unwrap();
        assert!(debt.is_owed());
    }

    #[test]
    fn a_debt_of_one_process_is_paid_by_another() {
        let memory = memory();
        let (one, other) = (Debts::create(&memory).unwrap(), Debts::open(&memory).unwrap());
        one.of(file(1)).owe();
        assert!(other.of(file(1)).is_owed());
        assert!(!other.of(file(2)).is_owed());
        other.of(file(1)).pay(|| Ok::<_, ()>(())).unwrap();
        assert!(!one.of(file(1)).is_owed());
        assert!(one.of(file(1)).is_new());
        assert!(!other.of(file(1)).is_new());
        assert!(Debts::open(&File::open("/dev/null").unwrap()).is_err());
    }

    #[test]
    fn more_files_than_entries_share_one() {
        let debts = Debts::create(&memory()).unwrap();
        for inode in 0..ENTRIES * 2 {
            debts.of(file(inode)).owe();
        }
        assert!((0..ENTRIES * 2).all(|inode| debts.of(file(inode)).is_owed()));
        assert!(debts.totals().files > ENTRIES / 2);
        debts.entry(0).pay(|| Ok::<_, ()>(())).unwrap();
        assert!((0..ENTRIES * 2).any(|inode| !debts.of(file(inode)).is_owed()));
    }
}
