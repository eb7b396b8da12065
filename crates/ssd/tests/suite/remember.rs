//! Tests what a drive in a file remembers, whatever happens to its process and to its state file.

use std::path::{Path, PathBuf};

use slimio_device::{LBA_SIZE, Op, OpenError, WholeDevice};
use slimio_sim::Random;
use slimio_ssd::{Config, DriveOptions, EmulatedDrive, EventKind, Ftl};

use crate::drive::{byte_at, do_all, drive, range, write};
use crate::drive_file::{as_killed, in_file};
use crate::model::{Ask, Model, are_same, placements};

/// Size of a journal entry in bytes. The journal is at the end of the state file.
pub(crate) const ENTRY_SIZE: usize = 32;

/// How many entries the journal of a small drive has room for.
const ENTRIES: usize = 8192;

/// Where the bodies of the checkpoints begin in a state file. The first body belongs to the
/// checkpoints with even numbers.
pub(crate) const BODIES: usize = 8192;

/// Where the journal begins in a state file.
pub(crate) fn journal(state: &[u8]) -> usize {
    state.len() - ENTRIES * ENTRY_SIZE
}

pub(crate) fn state_of(file: &Path) -> PathBuf {
    file.with_extension("mapping")
}

/// A small drive without a cache.
pub(crate) fn small(file: PathBuf) -> DriveOptions {
    DriveOptions { config: Config::scaled(12 << 20), ..in_file(file) }
}

/// Sends a request to the drive, and applies it to the model.
pub(crate) fn ask(drive: &mut EmulatedDrive, model: &mut Model, asked: Ask, stamp: u64) {
    let mut path = drive.open_path().expect("a path opens");
    match asked {
        Ask::Write { lba, count, placement } => {
            let mut op = write(lba, count as usize, stamp as u8, false);
            if let Op::Write { placement: of_op, .. } = &mut op {
                of_op.0 = placement;
            }
            do_all(&mut *path, [op]);
        }
        Ask::Deallocate { lba, count } => {
            do_all(&mut *path, [Op::Deallocate { range: range(lba, lba + count) }]);
        }
        Ask::Update { placement } => {
            drive.watch().update_handles(&placements(placement)).expect("the handle exists");
        }
        Ask::Enable { handle, kind, is_enabled } => {
            let watch = drive.watch();
            watch.enable_events(handle, &[kind.code()], is_enabled).expect("the handle exists");
        }
    }
    model.apply(asked, stamp);
}

#[test]
fn a_killed_drive_is_exactly_as_it_was() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let mut random = Random::new(5);
    let options = small(file.clone());
    let mut model = Model::new(options.config.clone());
    let mut drive = drive(&options);
    let mut stamp = 0;
    // The journal wraps around more than twice, and the drive makes checkpoints as usual.
    for _ in 0..60 {
        for _ in 0..random.below(700) {
            stamp += 1;
            let asked = Ask::random(&mut random, options.config.lba_count);
            ask(&mut drive, &mut model, asked, stamp);
        }
        let killed = as_killed(&file);
        let mut again = crate::drive::drive(&small(killed));
        assert_eq!(again.notes().len(), 1, "state is lost after {stamp} requests");
        again.with_ftl(Ftl::check);
        assert!(
            again.with_ftl(|ftl| are_same(ftl, &model.ftl)),
            "the state is wrong at stamp {stamp}"
        );
        let times = |drive: &EmulatedDrive| {
            drive.watch().host_events().iter().map(|event| event.time_ms).collect::<Vec<_>>()
        };
        assert_eq!(times(&again), times(&drive), "events must keep their times");
        let mut path = again.open_path().expect("a path opens");
        for _ in 0..20 {
            let lba = random.below(options.config.lba_count);
            let expected = model.stamps.get(&lba).map_or(0xDD, |stamp| *stamp as u8);
            assert_eq!(byte_at(&mut *path, lba), expected);
        }
    }
    assert!(model.ftl.counters().copied_bytes() > 0, "the collector has copied nothing");
    assert!(model.ftl.host_events().any(|event| event.kind == EventKind::InvalidPlacement));
}

#[test]
fn a_drive_that_is_closed_and_opened_is_as_it_was_and_goes_on_so() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let mut random = Random::new(6);
    let options = small(file);
    let mut model = Model::new(options.config.clone());
    for _ in 0..20 {
        let mut drive = drive(&options);
        assert!(drive.with_ftl(|ftl| are_same(ftl, &model.ftl)));
        for stamp in 0..random.below(900) {
            let asked = Ask::random(&mut random, options.config.lba_count);
            ask(&mut drive, &mut model, asked, stamp);
        }
    }
    assert!(model.ftl.counters().copied_bytes() > 0, "the collector has copied nothing");
}

/// A kill may cut off a checkpoint anywhere. The body is written first, and then the head.
#[test]
fn a_checkpoint_may_be_cut_off_anywhere() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let mut random = Random::new(7);
    let options = small(file.clone());
    let mut model = Model::new(options.config.clone());
    let mut first = drive(&options);
    for stamp in 0..1000 {
        let asked = Ask::random(&mut random, options.config.lba_count);
        ask(&mut first, &mut model, asked, stamp);
    }
    let before = std::fs::read(state_of(&file)).expect("the file exists");
    drop(first);
    let after = std::fs::read(state_of(&file)).expect("the file exists");
    let is_changed = |at: &usize| before[*at] != after[*at];
    assert!((journal(&before)..before.len()).all(|at| !is_changed(&at)), "the journal changed");
    let bodies = (8192..journal(&before)).filter(is_changed);
    let changed: Vec<usize> = bodies.chain((0..8192).filter(is_changed)).collect();
    assert!(changed.len() > 1000);
    let last = changed.len() - 70..=changed.len();
    for cut in (0..changed.len()).step_by(changed.len() / 30).chain(last) {
        let mut bytes = before.clone();
        for at in &changed[..cut] {
            bytes[*at] = after[*at];
        }
        std::fs::write(state_of(&file), bytes).expect("the file can be written");
        let again = drive(&options);
        assert_eq!(again.notes().len(), 1, "state is lost after {cut} bytes");
        assert!(again.with_ftl(|ftl| are_same(ftl, &model.ftl)), "the state is wrong at cut {cut}");
    }
}

#[test]
fn what_is_damaged_is_told_from_what_is_whole() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let mut first = drive(&in_file(file.clone()));
    let mut path = first.open_path().expect("a path opens");
    do_all(&mut *path, [write(3, 2, 9, true), Op::Deallocate { range: range(4, 5) }]);
    drop((first, path));
    let state = state_of(&file);
    let whole = std::fs::read(&state).expect("the drive has left its state file");
    let open_with = |bytes: &[u8]| {
        std::fs::write(&state, bytes).expect("the file can be written");
        EmulatedDrive::open(in_file(file.clone()))
    };
    // One of the two checkpoints is enough, because the journal also has all entries after the
    // older one.
    let second_body = usize::midpoint(8192, journal(&whole));
    for place in [20, 64, 4000, 4096 + 70, 8192 + 300, second_body + 300] {
        let mut bytes = whole.clone();
        bytes[place] ^= 1;
        let again = open_with(&bytes).expect("the drive opens");
        assert_eq!(again.notes().len(), 1, "byte {place}");
        assert_eq!(again.counters().host_bytes(), 2 * LBA_SIZE as u64, "byte {place}");
    }
    let lost = |bytes: &[u8]| {
        let mut again = open_with(bytes).expect("the drive opens");
        assert!(again.notes()[1].contains("missing or damaged"), "{:?}", again.notes());
        let events = again.watch().host_events();
        assert_eq!(events.len(), 1, "the reset of the handles must be the only event");
        assert_eq!(events[0].kind, EventKind::HandlesReset);
        let mut path = again.open_path().expect("a path opens");
        assert_eq!(byte_at(&mut *path, 3), 9, "the data must not be lost");
        assert_eq!(again.counters().host_bytes(), 0);
    };
    let mut both = whole.clone();
    (both[100], both[4196]) = (both[100] ^ 1, both[4196] ^ 1);
    lost(&both);
    lost(&whole[..whole.len() - 4096]);
    lost(&whole[..5000]);
    lost(&[]);
    lost(b"what is this?");
    std::fs::remove_file(&state).expect("the file exists");
    let again = drive(&in_file(file.clone()));
    assert!(again.notes()[1].contains("missing or damaged"));
    drop(again);
    assert_eq!(
        drive(&in_file(file.clone())).notes().len(),
        1,
        "the loss must be reported only once"
    );
    let mut other = whole.clone();
    (other[7], other[4096 + 7]) = (b'9', b'9');
    let Err(refused) = open_with(&other).map(drop) else { panic!("version 9 is not refused") };
    let sentence =
        "the file was written by another version of this program, with format 9: use that version";
    assert!(refused.to_string().contains(sentence), "{refused}");
    assert!(std::fs::read(&state).expect("the file exists") == other, "the file has changed");
}

#[test]
fn the_state_of_another_drive_is_refused() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let (file, other) = (folder.path().join("drive"), folder.path().join("other"));
    drop(drive(&in_file(file.clone())));
    drop(drive(&small(other.clone())));
    std::fs::copy(state_of(&other), state_of(&file)).expect("the file can be copied");
    let Err(refused) = EmulatedDrive::open(in_file(file)).map(drop) else {
        panic!("another drive's state is not refused")
    };
    assert!(refused.to_string().contains("was made with size="), "{refused}");
}

#[test]
fn the_state_of_another_drive_of_the_same_options_is_refused_and_copies_are_not() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let (file, other) = (folder.path().join("drive"), folder.path().join("other"));
    for file in [&file, &other] {
        let mut drive = drive(&in_file(file.clone()));
        let mut path = drive.open_path().expect("a path opens");
        do_all(&mut *path, [write(0, 1, 1, true)]);
    }
    if rustix::fs::getxattr(&file, "user.slimio.drive", &mut [0; 8]).is_err() {
        eprintln!(
            "SKIPPED: no test that another drive's state file is refused, because files in \
             {folder:?} can't have attributes"
        );
        return;
    }
    let own = std::fs::read(state_of(&file)).expect("the file exists");
    std::fs::copy(state_of(&other), state_of(&file)).expect("the file can be copied");
    let refused = EmulatedDrive::open(in_file(file.clone())).map(drop);
    let refused = refused.expect_err("the state is another drive's").to_string();
    assert!(refused.contains("belongs to another drive"), "{refused}");
    std::fs::write(state_of(&file), own).expect("the file can be written");
    // A copy lacks the attribute at first. The copy can be opened, and from then on has the id of
    // the state file that is beside it.
    let copy = as_killed(&file);
    for _ in 0..2 {
        let mut again = drive(&in_file(copy.clone()));
        assert_eq!(again.notes().len(), 1);
        let mut path = again.open_path().expect("a path opens");
        assert_eq!(byte_at(&mut *path, 0), 1);
    }
    // Both files of another drive are copied over the files of this drive. The data file keeps this
    // drive's attribute.
    for (from, to) in [(other.clone(), copy.clone()), (state_of(&other), state_of(&copy))] {
        std::fs::copy(from, to).expect("the file can be copied");
    }
    let refused = EmulatedDrive::open(in_file(copy.clone())).map(drop);
    let refused = refused.expect_err("the state could be another drive's").to_string();
    assert!(refused.contains("setfattr -x user.slimio.drive"), "{refused}");
    rustix::fs::removexattr(&copy, "user.slimio.drive").expect("the attribute exists");
    assert_eq!(drive(&in_file(copy)).notes().len(), 1);
    // A drive without its state file makes a new state file, and goes on with that file.
    std::fs::remove_file(state_of(&file)).expect("the file exists");
    assert_eq!(drive(&in_file(file.clone())).notes().len(), 2);
    assert_eq!(drive(&in_file(file)).notes().len(), 1);
}

/// A state file may get longer through an editor, or through a copy to a device with larger blocks.
#[test]
fn a_state_file_that_is_longer_than_it_has_to_be_is_whole() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let mut first = drive(&in_file(file.clone()));
    do_all(&mut *first.open_path().expect("a path opens"), [write(0, 1, 1, true)]);
    drop(first);
    let state = std::fs::OpenOptions::new().append(true).open(state_of(&file));
    std::io::Write::write_all(&mut state.expect("the file exists"), &[0; 4096])
        .expect("the file grows");
    let mut again = drive(&in_file(file));
    assert_eq!(again.notes().len(), 1, "{:?}", again.notes());
    assert_eq!(byte_at(&mut *again.open_path().expect("a path opens"), 0), 1);
}

/// A data file may get a second name that has no state file beside it, for example through `ln`, or
/// in a container that has only the data file.
#[test]
fn a_drive_that_was_written_under_another_name_does_not_go_back() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let (file, other) = (folder.path().join("drive"), folder.path().join("other"));
    drop(drive(&in_file(file.clone())));
    if rustix::fs::getxattr(&file, "user.slimio.drive", &mut [0; 8]).is_err() {
        eprintln!(
            "SKIPPED: no test of a drive's second name, because files in {folder:?} can't have \
             attributes"
        );
        return;
    }
    std::fs::hard_link(&file, &other).expect("the file can be linked");
    let mut again = drive(&in_file(other.clone()));
    let mut path = again.open_path().expect("a path opens");
    do_all(&mut *path, [write(0, 1, 1, true)]);
    drop((path, again));
    let refused = EmulatedDrive::open(in_file(file)).map(drop);
    let refused = refused.expect_err("the state under this name is older").to_string();
    assert!(refused.contains("belongs to another drive"), "{refused}");
    let mut again = drive(&in_file(other));
    assert_eq!(byte_at(&mut *again.open_path().expect("a path opens"), 0), 1);
}

#[test]
fn what_a_power_cut_undoes_stays_undone() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let options = DriveOptions { cache_lbas: 64, can_lose_power: true, ..small(file.clone()) };
    let mut first = drive(&options);
    let mut path = first.open_path().expect("a path opens");
    do_all(&mut *path, [write(0, 4, 1, true), write(2, 4, 2, false)]);
    first.cut_power(|lba| lba == 5);
    let mut path = first.open_path().expect("a path opens");
    do_all(&mut *path, [write(9, 1, 3, true)]);
    let mut again = drive(&small(as_killed(&file)));
    let mut path = again.open_path().expect("a path opens");
    let found = [0, 1, 2, 3, 4, 5, 9].map(|lba| byte_at(&mut *path, lba));
    assert_eq!(found, [1, 1, 1, 1, 0xDD, 2, 3]);
    assert_eq!(again.counters(), first.counters());
    assert!(again.with_ftl(|ftl| first.with_ftl(|other| are_same(ftl, other))));
    drop((path, again));
    // The cut has made a checkpoint, because the journal's entries do not lead from the previous
    // checkpoint to the state after the cut. If this new checkpoint is damaged, the state is lost.
    let killed = as_killed(&file);
    let mut bytes = std::fs::read(state_of(&killed)).expect("the file exists");
    bytes[BODIES] ^= 1;
    std::fs::write(state_of(&killed), bytes).expect("the file can be written");
    assert_eq!(drive(&small(killed)).notes().len(), 2);
}

#[test]
fn options_that_change_do_not_change_what_was() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let mut random = Random::new(8);
    let mut options = small(file.clone());
    let mut model = Model::new(options.config.clone());
    let mut first = drive(&options);
    for stamp in 0..2000 {
        let asked = Ask::random(&mut random, options.config.lba_count);
        ask(&mut first, &mut model, asked, stamp);
    }
    let killed = as_killed(&file);
    drop(first);
    options.data = slimio_ssd::DataPlace::File(killed);
    options.config.victims = slimio_ssd::Victims::Fifo;
    options.config.thresholds.background_units = 0;
    let again = drive(&options);
    assert!(
        again.with_ftl(|ftl| are_same(ftl, &model.ftl)),
        "entries from before the change must be replayed by the old policy"
    );
    assert_eq!(again.with_ftl(|ftl| ftl.config().victims), slimio_ssd::Victims::Fifo);
    again.with_ftl(Ftl::check);
}

/// The fixtures are state files that were written by a version without a journal. The test makes
/// the data files.
#[test]
fn a_drive_of_the_older_format_is_taken_over() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/state-2");
    let open = |name: &str| {
        drop(std::fs::remove_file(&file));
        let made = std::fs::File::create(&file).expect("the file can be made");
        made.set_len(1 << 20).expect("the file can be 1 MiB long");
        std::os::unix::fs::FileExt::write_all_at(&made, &[7; LBA_SIZE], 0).expect("the file grows");
        std::fs::copy(fixture.join(name), state_of(&file)).expect("the file can be copied");
        let options = DriveOptions::parse(
            &format!("{},timing=none,deallocated=pattern", file.display()),
            slimio_ssd::Clock::Virtual,
        );
        drive(&options.expect("the text names a drive"))
    };
    let mut closed = open("closed");
    assert_eq!(closed.notes().len(), 1, "the drive must have lost nothing");
    closed.with_ftl(Ftl::check);
    assert_eq!(closed.counters().host_bytes(), 700 * LBA_SIZE as u64);
    let is_mapped = |lba| closed.with_ftl(|ftl| ftl.page_of(lba).is_some());
    assert!(is_mapped(0) && is_mapped(99) && !is_mapped(100) && is_mapped(110));
    let mut path = closed.open_path().expect("a path opens");
    do_all(&mut *path, [write(1, 1, 1, true)]);
    drop((closed, path));
    let killed = open("killed");
    assert!(killed.notes()[1].contains("the last process that had the drive open was killed"));
    assert_eq!(killed.with_ftl(Ftl::mapped_count), 1);
}

/// A process may be killed after it has stored the entry of a deallocation and before it has made
/// the hole in the file. Several threads may be at that point at the same time. Blocks that are
/// mapped into memory keep their bytes.
#[test]
fn deallocations_that_were_cut_off_are_finished() {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let mut first = drive(&in_file(file.clone()));
    let mapped = first.map(6 * LBA_SIZE as u64, LBA_SIZE).expect("the range can be mapped");
    let mut path = first.open_path().expect("a path opens");
    do_all(&mut *path, [write(0, 4, 1, true), Op::Deallocate { range: range(1, 3) }]);
    do_all(&mut *path, [write(2, 1, 1, true), Op::Deallocate { range: range(5, 9) }]);
    let killed = as_killed(&file);
    let data =
        std::fs::File::options().read(true).write(true).open(&killed).expect("the file exists");
    data.write_all_at(&vec![1; 10 * LBA_SIZE], 0).expect("the file can be written");
    let again = drive(&in_file(killed.clone()));
    assert_eq!(again.with_ftl(Ftl::mapped_count), 3);
    let bytes_of = |lba: u64| {
        let mut byte = [0];
        data.read_exact_at(&mut byte, lba * LBA_SIZE as u64).expect("the file can be read");
        byte[0]
    };
    assert_eq!([0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(bytes_of), [1, 0, 1, 1, 1, 0, 1, 0, 0, 1]);
    drop(mapped);
}

/// The environment variable that holds the path of the drive's file. It is set only for a child
/// process, which can't write long files.
const FULL: &str = "SLIMIO_SSD_FULL";

#[test]
fn a_drive_whose_state_finds_no_room_is_not_opened_and_loses_nothing() {
    let named = |file: &Path| {
        let spec = format!("{},size=1M,ru=32K,handles=2,spare=40%", file.display());
        DriveOptions::parse(&spec, slimio_ssd::Clock::Virtual).expect("the text names a drive")
    };
    if let Some(file) = std::env::var_os(FULL) {
        let refused = EmulatedDrive::open(named(Path::new(&file))).map(drop);
        let refused = refused.expect_err("the new state file is over the limit").to_string();
        assert!(refused.contains("drive.mapping.new"), "{refused}");
        return;
    }
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let mut first = drive(&named(&file));
    let mut path = first.open_path().expect("a path opens");
    do_all(&mut *path, [write(0, 4, 1, true)]);
    drop((path, first));
    // A damaged state file, which the drive has to replace with a new one.
    std::fs::write(state_of(&file), b"what is this?").expect("the file can be written");
    let limited = "trap '' XFSZ; ulimit -f 200; exec \"$0\" \"$@\"";
    let name = "remember::a_drive_whose_state_finds_no_room_is_not_opened_and_loses_nothing";
    let output = std::process::Command::new("sh")
        .args(["-c", limited])
        .arg(std::env::current_exe().expect("the path of this test is known"))
        .args(["--exact", name])
        .env(FULL, &file)
        .output()
        .expect("the child can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(std::fs::read(state_of(&file)).expect("the file exists"), b"what is this?");
    let left = std::fs::read_dir(folder.path()).expect("the folder exists").count();
    assert_eq!(left, 2, "the unfinished state file must be removed");
    assert_eq!(drive(&named(&file)).with_ftl(Ftl::mapped_count), 4);
}

#[test]
fn a_drive_that_can_not_be_remembered_is_not_opened() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    std::fs::create_dir(folder.path().join("drive.mapping")).expect("a folder can be made");
    let Err(refused) = EmulatedDrive::open(in_file(file)).map(drop) else {
        panic!("a drive without a state file has opened")
    };
    assert!(matches!(refused, OpenError::Io { .. }), "{refused:?}");
}

/// A first start may be cut off at any point. Here, it fails because there is a folder in the place
/// of the state file.
#[test]
fn a_drive_whose_first_start_was_cut_off_has_lost_nothing() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    std::fs::create_dir(state_of(&file)).expect("the folder can be made");
    assert!(EmulatedDrive::open(in_file(file.clone())).is_err());
    std::fs::remove_dir(state_of(&file)).expect("the folder is empty");
    let first = drive(&in_file(file.clone()));
    assert_eq!((first.notes().len(), first.watch().host_events().len()), (1, 0));
    drop(first);
    // As if the first start had been cut off later: the state file is there, but the data file is
    // still empty.
    std::fs::write(&file, []).expect("the file can be written");
    let mut again = drive(&in_file(file));
    assert_eq!((again.notes().len(), again.watch().host_events().len()), (1, 0));
    let mut path = again.open_path().expect("a path opens");
    do_all(&mut *path, [write(0, 1, 1, true)]);
}

/// With `sync=yes`, flushes and durable writes reach the disk. This test can't check that. It only
/// checks that hosts are told to flush, and that flushes succeed.
#[test]
fn a_drive_that_syncs_says_that_it_has_a_volatile_cache() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let options = DriveOptions { is_sync: true, ..in_file(file) };
    let mut first = drive(&options);
    assert!(first.notes()[0].contains("a failure of the machine if they were flushed"));
    let mut path = first.open_path().expect("a path opens");
    assert_eq!(path.geometry().write_cache, slimio_device::WriteCache::VolatileWithFua);
    do_all(&mut *path, [write(0, 1, 1, true), write(1, 1, 2, false), Op::Flush]);
    drop((first, path));
    let mut again = drive(&options);
    let mut path = again.open_path().expect("a path opens");
    assert_eq!([0, 1].map(|lba| byte_at(&mut *path, lba)), [1, 2]);
}
