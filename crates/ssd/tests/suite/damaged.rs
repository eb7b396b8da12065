//! Tests drives whose state file is damaged, or is incomplete after a failure of the machine. If a
//! part of the state is lost, the drive must report this. The data of its blocks must not be lost.

use std::path::{Path, PathBuf};

use slimio_device::{LBA_SIZE, Op, WholeDevice};
use slimio_ssd::{EmulatedDrive, EventKind, Ftl};

use crate::drive::{byte_at, do_all, drive, range, write};
use crate::drive_file::as_killed;
use crate::model::{Ask, Model, are_same};
use crate::remember::{BODIES, ENTRY_SIZE, ask, journal, small, state_of};

fn asked(stamp: u64) -> Ask {
    Ask::Write { lba: stamp, count: 1, placement: 3 }
}

/// Writes each block of `blocks`. Each byte of a block is the lowest byte of the block's address.
fn write_all(drive: &mut EmulatedDrive, model: &mut Model, blocks: std::ops::Range<u64>) {
    for stamp in blocks {
        ask(drive, model, asked(stamp), stamp);
    }
}

/// Changes the state file of a drive that was killed.
fn change(killed: &Path, change: impl FnOnce(&mut [u8])) {
    let mut bytes = std::fs::read(state_of(killed)).expect("the state file exists");
    change(&mut bytes);
    std::fs::write(state_of(killed), bytes).expect("the state file can be written");
}

/// The offset of the head of a checkpoint.
fn head(number: usize) -> usize {
    (number % 2) * 4096
}

/// The offset of a byte in the body of a checkpoint.
fn body(state: &[u8], number: usize) -> usize {
    let size = (journal(state) - BODIES) / 2;
    BODIES + (number % 2) * size + 300
}

/// Opens a drive whose journal has lost its end. Checks that the drive reports the loss, and that
/// its first `blocks` blocks have their data.
fn open_cut(killed: PathBuf, blocks: u64) -> EmulatedDrive {
    let mut again = drive(&small(killed));
    let notes = again.notes();
    assert!(notes[1].contains("the end of the SSD's mapping is lost"), "{notes:?}");
    let last = again.watch().host_events().pop().expect("the reset of the handles is an event");
    assert_eq!(last.kind, EventKind::HandlesReset);
    again.with_ftl(Ftl::check);
    let mut path = again.open_path().expect("a path opens");
    for lba in 0..blocks {
        assert_eq!(byte_at(&mut *path, lba), lba as u8);
    }
    again
}

#[test]
fn a_damaged_entry_is_told_and_what_is_behind_it_has_its_data() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let mut model = Model::new(small(file.clone()).config);
    let mut first = drive(&small(file.clone()));
    write_all(&mut first, &mut model, 0..100);
    // In the last round, the last entry is damaged. No entry follows, but the drive must not take
    // the damaged entry for a place without an entry.
    for entry in [0, 50, 99] {
        let killed = as_killed(&file);
        change(&killed, |bytes| bytes[journal(bytes) + entry * ENTRY_SIZE + 25] ^= 4);
        let again = open_cut(killed.clone(), 100);
        assert_eq!(again.counters().host_bytes(), (entry * LBA_SIZE) as u64, "entry {entry}");
        drop(again);
        assert_eq!(
            drive(&small(killed)).notes().len(),
            1,
            "the drive must report the loss only once"
        );
    }
}

/// A failure of the machine may lose any part of the journal that was not flushed. Entries after
/// the first gap must not come back, even if the host sends the lost request again.
#[test]
fn what_is_behind_a_gap_in_the_journal_never_comes_back() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let mut model = Model::new(small(file.clone()).config);
    let mut first = drive(&small(file.clone()));
    write_all(&mut first, &mut model, 0..100);
    let killed = as_killed(&file);
    change(&killed, |bytes| {
        let gap = journal(bytes) + 50 * ENTRY_SIZE;
        assert!(bytes[gap..gap + ENTRY_SIZE].iter().any(|byte| *byte != 0));
        bytes[gap..gap + ENTRY_SIZE].fill(0);
    });
    let mut second = open_cut(killed.clone(), 100);
    ask(&mut second, &mut model, asked(50), 50);
    let again = folder.path().join("again");
    std::fs::copy(&killed, &again).expect("the data file can be copied");
    std::fs::copy(state_of(&killed), state_of(&again)).expect("the state file can be copied");
    let third = drive(&small(again));
    assert_eq!(third.notes().len(), 1);
    assert_eq!(third.counters().host_bytes(), 51 * LBA_SIZE as u64);
    assert!(third.with_ftl(|ftl| second.with_ftl(|other| are_same(ftl, other))));
}

/// The journal has all entries after the older checkpoint. So the drive does not need the newer
/// checkpoint, which is damaged here.
#[test]
fn a_damaged_checkpoint_is_not_missed_if_the_journal_leads_beyond_it() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let mut model = Model::new(small(file.clone()).config);
    let mut first = drive(&small(file.clone()));
    for stamp in 0..4200 {
        let asked = Ask::Write { lba: stamp % 999, count: 1, placement: 3 };
        ask(&mut first, &mut model, asked, stamp);
    }
    let state = std::fs::read(state_of(&file)).expect("the state file exists");
    for place in [head(2) + 70, body(&state, 2)] {
        let killed = as_killed(&file);
        change(&killed, |bytes| bytes[place] ^= 1);
        let again = drive(&small(killed));
        assert_eq!(again.notes().len(), 1, "the drive must have lost nothing");
        assert!(again.with_ftl(|ftl| are_same(ftl, &model.ftl)));
    }
}

/// The first checkpoint after a start also restarts the journal. So the drive can't apply the
/// journal to an older checkpoint.
#[test]
fn an_older_checkpoint_is_not_taken_for_the_latest() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let mut model = Model::new(small(file.clone()).config);
    let mut first = drive(&small(file.clone()));
    write_all(&mut first, &mut model, 0..10);
    drop(first);
    let mut second = drive(&small(file.clone()));
    write_all(&mut second, &mut model, 10..20);
    let state = std::fs::read(state_of(&file)).expect("the state file exists");
    for place in [head(3) + 70, body(&state, 3)] {
        let killed = as_killed(&file);
        change(&killed, |bytes| bytes[place] ^= 1);
        let mut again = open_cut(killed.clone(), 20);
        assert_eq!(again.counters().host_bytes(), 10 * LBA_SIZE as u64);
        let mut path = again.open_path().expect("a path opens");
        do_all(&mut *path, [write(20, 1, 20, true), Op::Deallocate { range: range(0, 1) }]);
        drop((path, again));
        // The next start must find what the host did since the loss, and report no loss.
        let last = drive(&small(killed));
        assert_eq!(last.notes().len(), 1);
        assert_eq!(last.counters().host_bytes(), 11 * LBA_SIZE as u64);
    }
}
