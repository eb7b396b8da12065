//! Volumes on emulated SSDs. Most of these SSDs work in real time. A lifetime is a kind of data
//! that is deleted together: the superblock, the log, WAL-snapshots, or on-demand snapshots.

mod common;
mod lifetimes;

use std::fs::File;
use std::path::{Path, PathBuf};

use slimio_device::{LBA_SIZE, OpenError, PathOptions};
use slimio_ssd::replay::{NotSeparate, Precondition, Replay};
use slimio_ssd::trace::{TraceEvent, TraceReader};
use slimio_ssd::{Clock, Config, DriveOptions, EmulatedDrive};
use slimio_storage::{FormatOptions, Lifetime, SnapshotKind, Storage, VolumeId, format};

use common::{reopen, settle};
use lifetimes::{snapshot, use_all_lifetimes};
use slimio_volume::placements_of_lifetimes;

/// Size of a drive with room for the superblock, the buffers and a few extents.
const SIZE: u64 = 96 << 20;

fn spec(file: &Path, options: &str) -> PathBuf {
    format!("emulated:{},size={SIZE},ru=1M,{options}", file.display()).into()
}

fn open(spec: &Path) -> Storage {
    slimio_volume::open(spec, PathOptions::default(), true, u64::MAX)
        .expect("the volume can be opened")
}

#[test]
fn each_lifetime_goes_through_a_handle_of_its_own() {
    let folder = tempfile::tempdir().expect("a temporary directory can be made");
    let spec = spec(&folder.path().join("drive"), "fdp=on");
    let mut storage = open(&spec);
    assert!(!storage.exists && storage.is_best);
    assert!(storage.io_path.starts_with("emulated SSD of 96 MiB"), "{}", storage.io_path);
    use_all_lifetimes(&mut storage);
    let report = storage.placement.as_ref().expect("the drive has placements").report();
    assert_eq!(report.placement_count, 8);
    let ids = report.lifetimes.map(|(id, _)| id.0);
    assert_eq!(ids, [0, 1, 2, 3]);
    for lifetime in Lifetime::ALL {
        assert!(report.lifetimes[lifetime.index()].1 > 0, "{}", lifetime.name());
    }
    // While the volume is open, the drive can't be opened again.
    let second = slimio_volume::open(&spec, PathOptions::default(), true, u64::MAX).map(drop);
    assert!(matches!(second, Err(OpenError::InUse { .. })), "{second:?}");
    drop(storage);
    let mut storage = open(&spec);
    assert!(storage.exists);
    let (_, recovered) = reopen(&mut storage).expect("the volume can be recovered");
    assert_eq!(
        recovered.len(),
        21,
        "recovery must deliver one chunk of the snapshot and 20 later records"
    );
}

/// The writes of each lifetime are recorded, and replayed on a drive. No reclaim unit may hold data
/// of two lifetimes. The reclaim units are as small as an extent, because an extent is the smallest
/// space that changes its lifetime.
#[test]
fn every_lifetime_has_addresses_and_reclaim_units_of_its_own() {
    let folder = tempfile::tempdir().expect("a temporary directory can be made");
    let spec = spec(&folder.path().join("drive"), "fdp=on,timing=none");
    let trace = folder.path().join("trace");
    let options = PathOptions::default();
    let opened = slimio_volume::open_traced(&spec, options, u64::MAX, &trace);
    let mut storage = opened.expect("the volume can be opened and recorded");
    use_all_lifetimes(&mut storage);
    drop(storage);
    let config = Config::sized(SIZE, Some(1 << 20), 25);
    let lifetimes = Lifetime::ALL.len();
    let separation = |handles: u16| {
        let replay = Replay {
            config: Config { handles, ..config.clone() },
            handles: placements_of_lifetimes(handles).to_vec(),
            precondition: Precondition::Empty,
            stretch: 1,
        };
        let file = File::open(&trace).expect("the trace's file exists");
        let outcome = replay.run(TraceReader::new(file).expect("the file is a trace"));
        outcome.expect("the trace is whole").separation
    };
    assert_eq!(separation(8).check(lifetimes, &[]), Ok(()));
    assert_eq!(separation(4).check(lifetimes, &[]), Ok(()));
    let without = separation(1).check(lifetimes, &[]);
    assert!(matches!(without, Err(NotSeparate::Mixed { .. })), "{without:?}");
}

/// The drive has three placements for four lifetimes. Nevertheless, the trace must tell the
/// lifetimes apart.
#[test]
fn a_recorded_drive_has_the_placements_that_it_has_anyway() {
    let folder = tempfile::tempdir().expect("a temporary directory can be made");
    let trace = folder.path().join("trace");
    let spec = spec(&folder.path().join("drive"), "fdp=on,handles=3");
    let open = || slimio_volume::open_traced(&spec, PathOptions::default(), u64::MAX, &trace);
    let mut storage = open().expect("the volume can be opened and recorded");
    assert!(storage.io_path.ends_with(", recorded"), "{}", storage.io_path);
    assert!(storage.why_not_better.contains("share one"), "{}", storage.why_not_better);
    use_all_lifetimes(&mut storage);
    let report = storage.placement.as_ref().expect("the drive has placements").report();
    assert_eq!(report.placement_count, 3);
    assert_eq!(report.lifetimes.map(|(id, _)| id.0), [0, 1, 1, 2]);
    let sent = report.lifetimes.map(|(_, bytes)| bytes);
    assert!(report.counted.is_some(), "the report must have the drive's counters");
    drop(storage);
    let mut recorded = [0; 4];
    for record in TraceReader::new(File::open(&trace).expect("the trace's file exists"))
        .expect("the file is a trace")
    {
        if let TraceEvent::Write { stream, range } = record.expect("the trace is whole").event {
            recorded[usize::from(stream)] += range.size();
        }
    }
    assert_eq!(recorded, sent);
    let refused = open().map(drop).expect_err("an existing trace is not overwritten").to_string();
    assert!(refused.contains("a file of this name exists"), "{refused}");
}

#[test]
fn a_drive_is_the_same_by_any_path_to_its_file() {
    let folder = tempfile::tempdir().expect("a temporary directory can be made");
    let there = |name: &str| spec(&folder.path().join(name), "fdp=on");
    use_all_lifetimes(&mut open(&there("drive")));
    let around =
        format!("../{}/drive", folder.path().file_name().expect("the folder has a name").display());
    reopen(&mut open(&there(&around))).expect("the volume is found by another path to the file");
    std::fs::rename(folder.path().join("drive"), folder.path().join("moved"))
        .expect("the file can be renamed");
    reopen(&mut open(&there("moved"))).expect("the volume is found in the renamed file");
}

#[test]
fn without_data_placement_what_it_counts_is_shown_still() {
    let folder = tempfile::tempdir().expect("a temporary directory can be made");
    let spec = spec(&folder.path().join("drive"), "fdp=off,timing=none,cache=1M");
    let mut storage = open(&spec);
    assert!(storage.io_path.contains("no data placement, volatile write cache of 1 MiB"));
    use_all_lifetimes(&mut storage);
    let report = storage.placement.as_ref().expect("the drive has counters").report();
    assert_eq!(report.placement_count, 0);
    let sent: u64 = report.lifetimes.iter().map(|(_, bytes)| bytes).sum();
    assert!(sent > 1 << 20, "{sent}");
    let counted = report.counted.expect("the drive has counters");
    assert_eq!(
        (counted.host_bytes, counted.host_bytes_at_open),
        (sent.into(), 0),
        "the drive must count exactly the bytes that were written since it was made"
    );
    drop(storage);
    let storage = open(&spec);
    let report = storage.placement.as_ref().expect("the drive has counters").report();
    let counted = report.counted.expect("the drive has counters");
    assert_eq!((counted.host_bytes, counted.host_bytes_at_open), (sent.into(), sent.into()));
    assert_eq!(
        (counted.media_bytes, counted.erased_bytes),
        (sent.into(), 0),
        "a drive that is not full must copy and erase nothing"
    );
}

#[test]
fn a_drive_is_there_by_the_name_of_its_file_alone() {
    let folder = tempfile::tempdir().expect("a temporary directory can be made");
    let file = folder.path().join("drive");
    let alone: PathBuf = format!("emulated:{}", file.display()).into();
    let mut storage = open(&spec(&file, "fdp=off,timing=none,cache=1M"));
    let made = storage.io_path.clone();
    assert!(storage.why_not_better.contains("(kill -9)"), "{}", storage.why_not_better);
    use_all_lifetimes(&mut storage);
    drop(storage);
    let mut storage = open(&alone);
    assert_eq!(storage.io_path, made);
    let (_, recovered) = reopen(&mut storage).expect("the volume can be recovered");
    assert_eq!(
        recovered.len(),
        21,
        "recovery must deliver one chunk of the snapshot and 20 later records"
    );
    drop(storage);
    let other = spec(&file, "handles=4");
    let refused = slimio_volume::open(&other, PathOptions::default(), true, u64::MAX).map(drop);
    let said = refused.expect_err("the drive was made with other options").to_string();
    assert!(said.contains("made with fdp=off, not on"), "{said}");
}

#[test]
fn a_drive_that_can_not_be_is_refused_with_a_sentence() {
    let refused = |spec: &str, create| {
        let opened = slimio_volume::open(Path::new(spec), PathOptions::default(), create, u64::MAX);
        opened.map(drop).expect_err("the drive can't be opened").to_string()
    };
    assert!(refused("emulated:", true).contains("a drive needs a size or a file"));
    assert!(refused("emulated:96M,ru=7M", true).contains("not whole reclaim units"));
    assert!(refused("emulated:32M,ru=1M,fdp=off", true).contains("blocks, but a volume needs"));
    let missing = refused("emulated:/no/such/file,size=96M", false);
    assert!(missing.contains("/no/such/file"), "{missing}");
}

/// A volume on a drive in virtual time. The volume has few extents, so each extent is used again as
/// soon as the extent is free.
fn on_small_drive(options: &str) -> Storage {
    let options = format!("size={SMALL_SIZE},ru=1M,{options}");
    let options = DriveOptions::parse(&options, Clock::Virtual).expect("the options are valid");
    let drive = EmulatedDrive::open(options).expect("the drive can be made");
    slimio_volume::open_on(Path::new("drive"), Box::new(drive), u64::MAX)
        .expect("the volume can be opened")
}

const SMALL_SIZE: usize = 78 << 20;

/// The drive takes long to deallocate blocks, and loses data that is written to these blocks
/// meanwhile. If an extent were reused before the drive acknowledges the deallocation, acknowledged
/// records would be lost.
#[test]
fn an_extent_is_not_used_before_its_deallocation_is_acknowledged() {
    for millis in [40, 60, 80, 120] {
        use_extents_again(&mut on_small_drive(&format!("deallocate={millis}")));
    }
}

fn use_extents_again(storage: &mut Storage) {
    let layout = FormatOptions {
        volume_id: VolumeId(77),
        segment_lbas: 256,
        batch_lbas_max: 64,
        wal_slots_max: 8,
        replace: true,
    };
    format(&mut *storage.media, &layout).expect("the volume can be made");
    let mut written = 0;
    for round in 0..20_u8 {
        let (mut volume, recovered) = reopen(storage).expect("the volume can be recovered");
        if round > 0 {
            let expected: Vec<Vec<u8>> = std::iter::once(vec![round; 900])
                .chain((0..8).map(|part| payload(round, part)))
                .collect();
            assert!(recovered == expected, "round {round}: acknowledged data is missing");
        }
        snapshot(&mut volume, SnapshotKind::Wal, &[round + 1; 900]);
        for part in 0..8 {
            let record = payload(round + 1, part);
            written += record.len();
            volume.log.append(0, &[&record]);
            settle(&mut volume);
        }
    }
    let room = SMALL_SIZE - (66 << 20);
    assert!(
        written > room,
        "only {written} bytes were written, so no extent of the {room} bytes had to be reused"
    );
}

fn payload(round: u8, part: u8) -> Vec<u8> {
    vec![round ^ (part << 5); 40 * LBA_SIZE]
}
