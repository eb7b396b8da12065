//! Full media: all extents of a device are taken, or files can't grow. The tests check which area
//! gets room first, which operations fail without harm to others, and how the log goes on.

use std::time::Duration;

use crate::common::{Client, Disk as _, Kind, SMALL, Script, SimMedia, formatted, options, reopen};
use slimio_device::{DeviceError, LBA_SIZE};
use slimio_sim::{Limits, SimConfig};
use slimio_storage::{Policy, Pool, Room, SlotName, SnapshotKind, format};

/// Extents of the device. An extent has three blocks, and a segment has two extents.
const EXTENTS: u64 = 26;

fn open(media: &mut SimMedia) -> (Client, Script) {
    let (volume, recovered) = reopen(media, &options(Policy::Always)).expect("the volume opens");
    let mut client = Client::new(volume, media.disk.clone(), recovered.len());
    client.history.clone_from(&recovered);
    (client, recovered)
}

fn made() -> SimMedia {
    let mut media = SimMedia::new(SimConfig::default(), Kind::Device);
    media.extent_count = EXTENTS;
    format(&mut media, &SMALL).expect("the device has room for a volume");
    media
}

fn pool(client: &Client) -> Pool {
    client.volume.log.pool().expect("the volume is on a device").clone()
}

/// Appends records until the log has no room, and returns how many were appended. The data set
/// grows with each record.
fn fill(client: &mut Client) -> usize {
    fill_with(client, usize::MAX)
}

/// Like [`fill`], but the data set never has more than `kept` records.
fn fill_with(client: &mut Client, kept: usize) -> usize {
    let before = client.appended;
    while client.append(&(0, vec![client.appended as u8; 5000])) {
        client.history.truncate(kept);
        client.settle();
        assert!(client.appended < 100, "the log never became full");
    }
    assert_eq!(client.volume.log.prepare_failed(), Some(&DeviceError::NoSpace));
    client.appended - before
}

/// Takes a snapshot, and returns whether the volume has adopted the snapshot.
fn take(client: &mut Client, kind: SnapshotKind) -> bool {
    let before = client.volume.log.snapshots().of_kind(kind).copied();
    client.begin(kind).expect("a snapshot can begin");
    client.settle();
    client.volume.log.snapshots().of_kind(kind).copied() != before
}

/// Gives back the space of the reserves (slots that hold no snapshot), as the snapshot thread does
/// when a slot has become a reserve.
fn give_back(client: &mut Client) {
    for slot in SlotName::ALL {
        if client.volume.log.snapshots().get(slot).is_none() {
            while client.volume.slot_paths.give_back(slot, 0).expect("the slot can be shortened") {}
        }
    }
}

#[test]
fn the_log_leaves_room_for_the_snapshot_that_makes_room() {
    let mut media = made();
    let (mut client, _) = open(&mut media);
    let first = fill(&mut client);
    let used = pool(&client).usage();
    assert!(used.free >= used.kept && used.wal >= used.total / 3, "{used:?}");
    assert!(take(&mut client, SnapshotKind::Wal), "a snapshot of the grown data set fits");
    // Later snapshots fit too, because the space of each old snapshot goes to the log and to the
    // next snapshot.
    for _ in 0..4 {
        client.history.truncate(first / 2);
        assert!(take(&mut client, SnapshotKind::Wal), "the snapshot fits");
        give_back(&mut client);
        assert!(fill(&mut client) > 0, "the log goes on");
    }
    let used = pool(&client).usage();
    assert_eq!(used.wal + used.slots.iter().sum::<u64>() + used.free, used.total);
    let held = client.volume.log.snapshots().root().map(|root| root.len_lbas.div_ceil(3) * 3);
    assert_eq!(used.slots.iter().sum::<u64>(), held.expect("the volume has a root"));
}

/// Only ten records stay in the data set. A snapshot needs no room for the other records.
#[test]
fn beside_a_data_set_that_does_not_grow_the_log_has_more_than_half() {
    let mut media = made();
    let (mut client, _) = open(&mut media);
    fill_with(&mut client, 10);
    let used = pool(&client).usage();
    assert!(used.free >= used.kept && used.wal > used.total / 2, "{used:?}");
}

/// If the log leaves no room for a snapshot, the snapshot fails. Nothing else may fail.
#[test]
fn a_snapshot_that_does_not_fit_fails_alone() {
    let mut media = made();
    let (mut client, _) = open(&mut media);
    client.leaves_room = false;
    fill(&mut client);
    assert!(!take(&mut client, SnapshotKind::Wal), "the snapshot does not fit");
    let records = client.appended;
    assert!(client.volume.log.latched().is_none());
    // After a restart, the failed snapshot's extents are free.
    let limits = Limits { exhaustive_max: 0, random_count: 0, torn: false };
    let image = client.disk.crash_now().power_images(&limits).swap_remove(0);
    let mut media = SimMedia::from_image(SimConfig::default(), Kind::Device, &image);
    let (client, recovered) = open(&mut media);
    assert_eq!(recovered.len(), records);
    assert_eq!(pool(&client).usage().slots, [0; 3]);
}

#[test]
fn a_point_in_time_does_not_take_the_room_that_the_log_may_need() {
    let mut media = made();
    let (mut client, _) = open(&mut media);
    let count = fill(&mut client);
    assert!(take(&mut client, SnapshotKind::Wal), "the snapshot fits");
    give_back(&mut client);
    let before = pool(&client).usage();
    assert!(before.free < 2 * before.kept, "{before:?}");
    assert!(
        !take(&mut client, SnapshotKind::OnDemand),
        "the space is kept for the next WAL-snapshot"
    );
    give_back(&mut client);
    assert_eq!(
        pool(&client).usage().slots,
        before.slots,
        "the slots have the same extents as before"
    );
    // With a smaller data set, the on-demand snapshot and the next WAL-snapshot both fit.
    client.history.truncate(count / 8);
    client.turn(false);
    assert!(take(&mut client, SnapshotKind::OnDemand));
    assert!(client.append(&(0, vec![1; LBA_SIZE])), "the log goes on");
    client.settle();
}

/// If each area is a file, snapshots share the file system with the log. However long the log
/// grows, it must leave enough space for the next snapshot.
#[test]
fn a_log_in_a_file_leaves_room_for_the_snapshot_that_makes_room() {
    for lbas_max in 60..90 {
        let config = SimConfig { lbas_max, ..SimConfig::default() };
        let (mut client, _) = open(&mut formatted(config, Kind::Files));
        for _ in 0..5 {
            let first = fill(&mut client);
            assert!(first > 0, "{lbas_max}: the log goes on");
            assert!(take(&mut client, SnapshotKind::Wal), "{lbas_max}: the snapshot fits");
            client.history.truncate(first / 2);
        }
    }
}

/// Fills the log and empties the data set, three times. Each time, the log must then have room
/// again.
fn goes_on(client: &mut Client) {
    for _ in 0..3 {
        assert!(fill_with(client, 0) > 0, "the log has room at first");
        let lsn = client.volume.log.appended();
        client.volume.log.release_before(lsn);
        client.settle();
        assert!(gets_room(client));
    }
}

/// When a log in a file gives back segments, it keeps the blocks of a second segment. Without these
/// blocks, the log could not release its last segment on a full file system. After a restart, the
/// log finds out which free segment has the blocks.
#[test]
fn a_log_in_a_file_keeps_the_blocks_of_a_second_segment() {
    let mut media = formatted(SimConfig::default(), Kind::Files);
    let (mut client, _) = open(&mut media);
    while client.volume.log.stats().capacity_bytes < 4 * 6 * LBA_SIZE as u64 {
        assert!(client.append(&(0, vec![1; 5000])), "the log can still grow");
        client.settle();
    }
    for _ in 0..2 {
        assert!(take(&mut client, SnapshotKind::Wal), "the snapshot fits");
    }
    client.disk.faults(|faults| faults.full = true);
    fill_with(&mut client, 2);
    let root = client.volume.log.snapshots().root().copied();
    client.begin(SnapshotKind::Wal).expect("a snapshot can begin");
    while client.volume.log.snapshots().root() == root.as_ref() {
        client.turn(true);
    }
    // The log has only one segment, and has not asked for a second one yet.
    assert!(client.volume.log.give_back_space(), "the log's area is a file");
    goes_on(&mut client);
    let limits = Limits { exhaustive_max: 0, random_count: 0, torn: false };
    let image = client.disk.crash_now().process_images(&limits).swap_remove(0);
    let mut media = SimMedia::from_image(SimConfig::default(), Kind::Files, &image);
    media.disk.faults(|faults| faults.full = true);
    let (mut client, _) = open(&mut media);
    goes_on(&mut client);
}

/// The slot of a cancelled snapshot keeps its extents for a while. Until they are given back, no
/// other area can use them. So the next snapshot must go to this slot.
#[test]
fn a_snapshot_goes_to_the_reserve_that_has_the_most_extents() {
    let mut media = made();
    let (mut client, _) = open(&mut media);
    let mut path = client.disk.open_slot(client.volume.log.pool(), SlotName::B);
    path.grow(6).expect("the device has free extents");
    let plan = client.begin(SnapshotKind::Wal).expect("a snapshot can begin");
    assert_eq!(plan.slot, SlotName::B);
    client.settle();
    let plan = client.begin(SnapshotKind::OnDemand).expect("a snapshot can begin");
    assert_eq!(plan.slot, SlotName::A, "the other reserves have no extents");
    client.settle();
}

/// Runs the jobs of the keeper, which makes room for the log, until the log no longer tells clients
/// to wait. Returns whether a record then has room.
fn gets_room(client: &mut Client) -> bool {
    for _ in 0..100 {
        match client.volume.log.room(100) {
            Room::Wait => client.turn(true),
            room => return room == Room::Free,
        }
    }
    panic!("the record still waits after 100 turns");
}

/// No file can grow once the volume is made. Even so, the log gets room when the data set is
/// emptied.
#[test]
fn a_full_medium_has_room_again_when_the_data_set_is_empty() {
    let mut media = formatted(SimConfig::default(), Kind::Files);
    media.disk.faults(|faults| faults.full = true);
    let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    goes_on(&mut client);
}

/// The log is refused a further extent, because a snapshot of the data set needs the room. Once the
/// data set is empty, the log must ask again at once, without waiting for its next regular retry.
#[test]
fn the_log_asks_again_when_the_data_set_is_empty() {
    let mut media = formatted(SimConfig::default(), Kind::Device);
    let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    client.leaves_room = false;
    client.volume.log.leave_room_for_snapshot(1 << 20, [0; 3]);
    fill(&mut client);
    let lsn = client.volume.log.appended();
    client.volume.log.release_before(lsn);
    client.volume.log.leave_room_for_snapshot(0, [0; 3]);
    let before = client.now;
    assert!(gets_room(&mut client));
    assert!(client.now - before < Duration::from_secs(1));
}

/// A log can release its last segment only if it has another segment to write to. A snapshot may
/// take all free extents before the log asks for this segment. So the log must always keep the
/// extents of a second segment.
#[test]
fn a_log_keeps_a_segment_to_go_on_in() {
    let mut media = made();
    let (mut client, _) = open(&mut media);
    fill(&mut client);
    client.begin(SnapshotKind::Wal).expect("a snapshot can begin");
    while client.volume.log.snapshots().root().is_none() {
        client.turn(true);
    }
    let mut path = client.disk.open_slot(client.volume.log.pool(), SlotName::C);
    while path.grow(path.geometry().lba_count + 3).is_ok() {}
    assert_eq!(pool(&client).usage().free, 0);
    for _ in 0..20 {
        client.volume.log.release_before(client.volume.log.appended());
        client.history.clear();
        assert!(client.append(&(0, vec![1; LBA_SIZE])), "{:?}", pool(&client).usage());
        client.settle();
    }
}
