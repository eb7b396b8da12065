//! Snapshots that fail, have to wait, come too late, or are cancelled. Nothing but the snapshot may
//! fail, and the last good state is kept.

use std::time::Duration;

use crate::common::snapshots::{SMALL_WRITES, encode_records};
use crate::common::{
    Client, Kind, SMALL, SUPER, SimMedia, formatted, formatted_as, options, reopen, script,
    slot_space, small_script,
};
use slimio_device::{Device, DeviceError, LBA_SIZE, Layer, Layered, WriteCache};
use slimio_sim::SimConfig;
use slimio_storage::{
    Error, FormatOptions, Job, LatchCause, Outcome, Policy, Room, SlotName, SlotWriter,
    SnapshotEvent, SnapshotKind, WriterOptions, give_back,
};

pub(crate) fn client(policy: Policy) -> (Client, SimMedia) {
    let mut media = formatted(SimConfig::default(), Kind::Files);
    let (volume, _) = reopen(&mut media, &options(policy)).expect("a new volume opens");
    (Client::new(volume, media.disk.clone(), 0), media)
}

pub(crate) fn write(client: &mut Client, records: &[(u16, Vec<u8>)]) {
    for record in records {
        assert!(client.append(record));
        client.settle();
    }
}

pub(crate) fn root_entries(client: &Client) -> Option<u64> {
    client.volume.log.snapshots().root().map(|root| root.entry_count)
}

/// A fault while a snapshot is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Full,
    Write(u64),
    Flush,
    Cancel(usize),
}

#[test]
fn a_failed_snapshot_fails_alone() {
    let writes = [0, 2, 4, 6].map(Fault::Write);
    let cancels = [0, 1, 3].map(Fault::Cancel);
    let mut faults = vec![Fault::Full, Fault::Flush];
    faults.extend(writes);
    faults.extend(cancels);
    for kind in [SnapshotKind::Wal, SnapshotKind::OnDemand] {
        for &fault in &faults {
            let (mut client, mut media) = client(Policy::Always);
            let script = small_script(12);
            write(&mut client, &script[..3]);
            client.begin(SnapshotKind::Wal).expect("a snapshot can begin");
            client.settle();
            write(&mut client, &script[3..8]);
            let before = *client.volume.log.snapshots();

            let slot = SlotName::B;
            let space = slot_space(slot);
            client.disk.faults(|faults| match fault {
                Fault::Full => faults.full = true,
                Fault::Write(lba) => {
                    faults.unwritable.insert((space, lba));
                }
                Fault::Flush | Fault::Cancel(_) => {}
            });
            assert_eq!(client.begin(kind).expect("a snapshot can begin").slot, slot);
            // The first steps write chunks, and the last ones finish the snapshot.
            for step in 0..8 {
                match fault {
                    Fault::Cancel(at) if at == step => {
                        client.cancel();
                    }
                    Fault::Flush if step == 4 => {
                        client.disk.faults(|faults| faults.flushes_until_failure = Some(0));
                    }
                    _ => {}
                }
                client.turn(true);
            }
            assert!(client.taking.is_none() && client.volume.log.running_snapshot().is_none());
            assert_eq!(client.volume.log.take_snapshot_event(), None, "{fault:?}");
            assert!(client.volume.log.latched().is_none(), "{fault:?}");
            assert_eq!(*client.volume.log.snapshots(), before, "{fault:?}");
            client.disk.faults(|faults| *faults = slimio_sim::Faults::default());

            // The log goes on, and the next snapshot is made.
            write(&mut client, &script[8..10]);
            client.begin(kind).expect("a snapshot can begin");
            client.settle();
            let held = client.volume.log.snapshots().of_kind(kind).map(|held| held.entry_count);
            assert_eq!(held, Some(10), "{fault:?}");
            write(&mut client, &script[10..]);
            drop(client);
            let (_, recovered) =
                reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
            assert_eq!(recovered, script, "{fault:?}");
        }
    }
}

#[test]
fn errors_of_a_writer_say_what_failed() {
    let (mut client, media) = client(Policy::Always);
    let plan =
        client.volume.log.begin_snapshot(SnapshotKind::Wal, 7).expect("a snapshot can begin");
    assert!(
        client.volume.log.begin_snapshot(SnapshotKind::OnDemand, 7).is_none(),
        "only one snapshot runs at a time"
    );
    let device = &mut media.disk.open_path(slot_space(plan.slot));
    let payload = vec![5; 3 * LBA_SIZE];
    let fail = |device: &mut slimio_sim::SimDevice| -> Error {
        let mut writer =
            SlotWriter::begin(device, plan, SMALL_WRITES).expect("the slot can be written");
        for _ in 0..4 {
            if let Err(error) = writer.chunk(device, &payload, 1) {
                assert_eq!(writer.chunk(device, &payload, 1), Err(error.clone()));
                assert_eq!(writer.finish(device), Err(error.clone()));
                return error;
            }
        }
        writer.finish(device).expect_err("the writer fails")
    };
    media.disk.faults(|faults| faults.full = true);
    let (doing, error) = ("making room for a snapshot", DeviceError::NoSpace);
    assert_eq!(fail(device), Error::Device { doing, error });
    media.disk.faults(|faults| {
        faults.full = false;
        faults.unwritable.insert((slot_space(plan.slot), 3));
    });
    let error = DeviceError::Io { errno: 5 };
    assert_eq!(fail(device), Error::Device { doing: "writing a snapshot", error: error.clone() });
    media.disk.faults(|faults| {
        faults.unwritable.clear();
        faults.flushes_until_failure = Some(0);
    });
    assert_eq!(fail(device), Error::Device { doing: "flushing a snapshot", error });
}

/// If space is short, a snapshot allocates its space before it begins. Otherwise the log could use
/// up the space while the snapshot is written, and neither could go on.
#[test]
fn where_space_is_short_a_snapshot_has_its_own_before_it_begins() {
    let (mut client, media) = client(Policy::Always);
    let plan =
        client.volume.log.begin_snapshot(SnapshotKind::Wal, 7).expect("a snapshot can begin");
    let device = &mut media.disk.open_path(slot_space(plan.slot));
    let before = device.geometry().lba_count;
    let options = WriterOptions { reserve_lbas: before + 40, must_reserve: true, ..SMALL_WRITES };
    SlotWriter::begin(device, plan, options).expect("the file system has much space");
    assert!(
        device.geometry().lba_count < before + 40,
        "with much space, the slot does not grow in advance"
    );
    let (doing, error) = ("making room for a snapshot", DeviceError::NoSpace);
    let no_space = Some(Error::Device { doing, error });
    let leaving = WriterOptions { leave: 1 << 40, must_reserve: false, ..options };
    assert_eq!(
        SlotWriter::begin(device, plan, leaving).err(),
        no_space,
        "the space must stay free"
    );
    media.disk.faults(|faults| faults.full = true);
    assert_eq!(SlotWriter::begin(device, plan, options).err(), no_space);
    let options = WriterOptions { must_reserve: false, ..options };
    SlotWriter::begin(device, plan, options).expect("the snapshot may turn out to need less space");
}

/// How many bytes must stay free when the log's next segment is prepared. A snapshot of the data
/// set takes 1000 blocks.
fn left_by_log(client: &mut Client, slot_lbas: [u64; 3]) -> u64 {
    client.now += Duration::from_secs(2);
    let log = &mut client.volume.log;
    log.leave_room_for_snapshot(1000, slot_lbas);
    match log.next_job(client.now) {
        Some(Job::Prepare { leave }) => {
            log.job_done(Outcome::PrepareFailed(DeviceError::NoSpace), client.now);
            leave
        }
        job => panic!("{job:?} is due instead of a preparation"),
    }
}

#[test]
fn the_log_in_a_file_leaves_what_the_running_snapshot_and_the_next_one_lack() {
    let (mut client, _media) = client(Policy::Always);
    let lbas = |count: u64| count * LBA_SIZE as u64;
    let need = left_by_log(&mut client, [0; 3]);
    assert!(need >= lbas(1000), "{need}");
    assert_eq!(
        left_by_log(&mut client, [10, 20, 0]),
        need - lbas(20),
        "the next snapshot goes to the longest slot"
    );
    let plan =
        client.volume.log.begin_snapshot(SnapshotKind::Wal, 7).expect("a snapshot can begin");
    assert_eq!(plan.slot, SlotName::B);
    assert_eq!(left_by_log(&mut client, [10, 20, 0]), 2 * need - lbas(30));
    assert_eq!(
        left_by_log(&mut client, [10, 5000, 0]),
        need - lbas(10),
        "the running snapshot has all its blocks"
    );
}

#[test]
fn no_snapshot_begins_before_space_was_given_back() {
    let (mut client, _media) = client(Policy::Always);
    left_by_log(&mut client, [0; 3]);
    let log = &mut client.volume.log;
    assert!(log.prepare_failed().is_some() && log.give_back_space());
    assert!(log.begin_snapshot(SnapshotKind::Wal, 7).is_none());
    assert_eq!(log.next_job(client.now), Some(Job::GiveBack));
    log.job_done(Outcome::GivenBack, client.now);
    assert!(log.prepare_failed().is_none(), "there may be space for a segment now");
    assert!(log.begin_snapshot(SnapshotKind::Wal, 7).is_some());
}

/// An on-demand snapshot must not take the space of the next WAL-snapshot, because only that
/// WAL-snapshot can make the log short again.
#[test]
fn a_point_in_time_in_a_file_leaves_the_next_snapshot_its_space() {
    let (mut client, _media) = client(Policy::Always);
    let log = &mut client.volume.log;
    log.leave_room_for_snapshot(1000, [10, 20, 0]);
    let plan = log.begin_snapshot(SnapshotKind::OnDemand, 7).expect("a snapshot can begin");
    assert_eq!(plan.slot, SlotName::B, "slot b already has the most blocks");
    assert!(log.space_behind(&plan) >= 990 * LBA_SIZE as u64);
    log.snapshot_failed();
    let plan = log.begin_snapshot(SnapshotKind::Wal, 7).expect("a snapshot can begin");
    assert_eq!(
        log.space_behind(&plan),
        0,
        "a WAL-snapshot need not leave space, because it makes the log short"
    );
}

#[test]
fn a_snapshot_is_made_stable_while_it_is_written_where_its_writes_are_not() {
    for (write_cache, flush_lbas, is_flushed) in [
        (WriteCache::Volatile, 8, true),
        (WriteCache::Unknown, 8, true),
        (WriteCache::Volatile, 1000, false),
        (WriteCache::Stable, 8, false),
    ] {
        let mut media = formatted(SimConfig { write_cache, ..SimConfig::default() }, Kind::Files);
        let (mut volume, _) =
            reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
        let plan = volume.log.begin_snapshot(SnapshotKind::Wal, 7).expect("a snapshot can begin");
        let device = &mut media.disk.open_path(slot_space(plan.slot));
        let options = WriterOptions { flush_lbas, ..SMALL_WRITES };
        let mut writer = SlotWriter::begin(device, plan, options).expect("the slot can be written");
        media.disk.faults(|faults| faults.flushes_until_failure = Some(0));
        let written = (0..20).try_for_each(|_| writer.chunk(device, &vec![5; 3 * LBA_SIZE], 1));
        let error = DeviceError::Io { errno: 5 };
        let failed = Err(Error::Device { doing: "flushing a snapshot", error });
        assert_eq!(
            written,
            if is_flushed { failed } else { Ok(()) },
            "{write_cache}, {flush_lbas}"
        );
        writer.cancel(device);
    }
}

#[test]
fn an_update_that_fails_at_the_adoption_latches() {
    let (mut client, mut media) = client(Policy::Always);
    let script = small_script(4);
    write(&mut client, &script);
    client.begin(SnapshotKind::Wal).expect("a snapshot can begin");
    let lbas = (0..16).map(|lba| (SUPER, lba));
    client.disk.faults(|faults| faults.unwritable.extend(lbas));
    for _ in 0..10 {
        client.turn(true);
    }
    let latch = client.volume.log.latched().expect("the log is latched");
    assert_eq!(latch.cause, LatchCause::Superblock);
    assert!(client.volume.log.begin_snapshot(SnapshotKind::Wal, 0).is_none());
    client.disk.faults(|faults| faults.unwritable.clear());
    drop(client);
    let (_, recovered) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    assert_eq!(recovered, script);
}

/// Returns the next job that is not a preparation. Reports each preparation before it as failed.
pub(crate) fn next_job(client: &mut Client) -> Option<Job> {
    loop {
        match client.volume.log.next_job(client.now) {
            Some(Job::Prepare { .. }) => {
                let failed = slimio_storage::Outcome::PrepareFailed(DeviceError::NoSpace);
                client.volume.log.job_done(failed, client.now);
            }
            job => return job,
        }
    }
}

#[test]
fn nothing_is_adopted_before_it_is_durable() {
    for kind in [SnapshotKind::Wal, SnapshotKind::OnDemand] {
        let (mut client, media) = client(Policy::No);
        for record in &script(5) {
            assert!(client.append(record));
        }
        let plan = client.volume.log.begin_snapshot(kind, 7).expect("a snapshot can begin");
        let device = &mut media.disk.open_path(slot_space(plan.slot));
        let writer =
            SlotWriter::begin(device, plan, SMALL_WRITES).expect("the slot can be written");
        client.volume.log.adopt(writer.finish(device).expect("the snapshot is finished"));
        assert!(client.volume.log.durable() < plan.lsn);
        assert_eq!(next_job(&mut client), None, "the log up to the snapshot is not durable yet");
        // The log up to the snapshot is made durable, even under a policy that never flushes.
        for _ in 0..20 {
            let volume = &mut client.volume;
            if volume.log.drive(&mut *volume.log_path, client.now) {
                volume.log_path.kick();
            }
            volume.log.wait(&mut *volume.log_path, None);
            volume.log.reap(&mut *volume.log_path, client.now);
        }
        assert!(client.volume.log.durable() >= plan.lsn);
        assert!(matches!(next_job(&mut client), Some(Job::Adopt(_))));
    }
}

#[test]
fn a_pinned_slot_is_not_written() {
    let (mut client, _media) = client(Policy::Always);
    let take = |client: &mut Client, kind| {
        let plan = client.begin(kind)?;
        client.settle();
        Some(plan.slot)
    };
    assert_eq!(take(&mut client, SnapshotKind::Wal), Some(SlotName::A));
    client.volume.log.pin(SlotName::A);
    client.volume.log.pin(SlotName::A);
    assert_eq!(take(&mut client, SnapshotKind::Wal), Some(SlotName::B));
    assert_eq!(take(&mut client, SnapshotKind::OnDemand), Some(SlotName::C));
    assert_eq!(take(&mut client, SnapshotKind::Wal), None, "the only reserve is pinned");
    client.volume.log.unpin(SlotName::A);
    assert_eq!(take(&mut client, SnapshotKind::Wal), None, "the slot was pinned twice");
    client.volume.log.unpin(SlotName::A);
    assert_eq!(take(&mut client, SnapshotKind::Wal), Some(SlotName::A));
}

/// The data set is emptied while the snapshot is written. From then on, the log starts after the
/// snapshot's point in time. So the snapshot is useless.
#[test]
fn a_snapshot_that_the_log_has_left_behind_is_obsolete() {
    let (mut client, mut media) = client(Policy::Always);
    let script = script(12);
    write(&mut client, &script[..4]);
    let plan = client.begin(SnapshotKind::Wal).expect("a snapshot can begin");
    let taking = client.taking.take();
    for record in &script[4..8] {
        write(&mut client, std::slice::from_ref(record));
    }
    let lsn = client.volume.log.appended();
    client.volume.log.release_before(lsn);
    client.history.clear();
    write(&mut client, &script[8..]);
    for _ in 0..5 {
        client.turn(true);
    }
    assert!(client.volume.keeper.superblock().start.lsn == lsn, "the log starts after the release");
    let mut taking = taking.expect("a snapshot has begun");
    let summary = taking.finish().expect("the snapshot is finished");
    client.volume.log.adopt(summary);
    client.turn(true);
    let event = client.volume.log.take_snapshot_event();
    assert!(
        matches!(event, Some(SnapshotEvent::Obsolete(obsolete)) if obsolete.number == summary.number),
        "{event:?}"
    );
    assert_eq!(summary.lsn, plan.lsn);
    assert_eq!(root_entries(&client), None);
    drop(client);
    let (_, recovered) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    assert_eq!(recovered, script[8..]);
}

#[test]
fn a_full_log_waits_for_the_snapshot_that_makes_room() {
    let layout = FormatOptions { wal_slots_max: 3, ..SMALL };
    for is_kept in [true, false] {
        let mut media = formatted_as(SimConfig::default(), Kind::Files, &layout);
        let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
        let mut client = Client::new(volume, media.disk.clone(), 0);
        let record = (0, vec![7; 3000]);
        // Fills the first segment.
        while client.volume.log.stats().log_bytes <= SMALL.segment_lbas * LBA_SIZE as u64 {
            write(&mut client, std::slice::from_ref(&record));
        }
        client.begin(SnapshotKind::Wal).expect("a snapshot can begin");
        let taking = client.taking.take();
        let full = loop {
            match client.volume.log.room(3000) {
                Room::Free => write(&mut client, std::slice::from_ref(&record)),
                Room::Wait if client.volume.log.prepare_failed().is_some() => break Room::Wait,
                Room::Wait => client.turn(true),
                room => break room,
            }
        };
        assert_eq!(full, Room::Wait, "the log waits for the snapshot to make room");
        if is_kept {
            client.taking = taking;
            for _ in 0..20 {
                client.turn(true);
            }
            assert_eq!(client.volume.log.room(3000), Room::Free);
        } else {
            // The snapshot has failed, so the log no longer waits for it.
            client.volume.log.snapshot_failed();
            assert_ne!(client.volume.log.room(3000), Room::Wait);
        }
    }
}

#[test]
fn a_slot_far_longer_than_needed_is_shortened_piece_by_piece() {
    let disk = slimio_sim::SimDisk::new(SimConfig::default());
    let mib = |mib: u64| (mib << 20) / LBA_SIZE as u64;
    let space = disk.add_space(mib(1000));
    let device = &mut disk.open_path(space);
    assert_eq!(
        give_back(device, mib(480), None),
        Ok(false),
        "the next snapshot may need all blocks"
    );
    let mut steps = 0;
    while give_back(device, mib(200), None).expect("the slot can be shortened") {
        steps += 1;
        assert!(steps < 100, "giving back never ends");
    }
    assert!(steps >= 8, "{steps}");
    assert_eq!(device.geometry().lba_count, mib(464));
    assert_eq!(give_back(device, mib(200), None), Ok(false));
}

/// An area that can't be shortened, because its share of the device is fixed.
struct Fixed;

impl Layer for Fixed {
    fn shrink(&mut self, _: &mut dyn Device, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

#[test]
fn what_can_not_be_shortened_is_not_tried_again_and_again() {
    let disk = slimio_sim::SimDisk::new(SimConfig::default());
    let mib = |mib: u64| (mib << 20) / LBA_SIZE as u64;
    let space = disk.add_space(mib(1000));
    let device = &mut Layered::new(Fixed, Box::new(disk.open_path(space)));
    assert_eq!(give_back(device, mib(1), None), Ok(false));
    assert_eq!(device.geometry().lba_count, mib(1000));
}

#[test]
fn a_slot_grows_in_large_steps_and_by_what_there_is() {
    let (mut client, media) = client(Policy::Always);
    let plan =
        client.volume.log.begin_snapshot(SnapshotKind::Wal, 7).expect("a snapshot can begin");
    let device = &mut media.disk.open_path(slot_space(plan.slot));
    let options = WriterOptions { grow_lbas: 50, ..SMALL_WRITES };
    let mut writer = SlotWriter::begin(device, plan, options).expect("the slot can be written");
    writer.chunk(device, &[1; 9000], 1).expect("the chunk is written");
    assert_eq!(device.geometry().lba_count, 50);
    writer.chunk(device, &vec![1; 60 * LBA_SIZE], 1).expect("the chunk is written");
    assert_eq!(device.geometry().lba_count, 100);
    assert_eq!(writer.written_bytes(), (1 + 3 + 61) * LBA_SIZE as u64);
    let summary = writer.finish(device).expect("the snapshot is finished");
    assert_eq!((summary.chunk_count, summary.len_lbas), (2, 1 + 3 + 61 + 2));
    assert_eq!(summary.payload_size, 9000 + 60 * LBA_SIZE as u64);
}

#[test]
fn an_empty_snapshot_is_one() {
    let (mut client, mut media) = client(Policy::Always);
    write(&mut client, &small_script(3));
    client.history.clear();
    client.begin(SnapshotKind::Wal).expect("a snapshot can begin");
    client.settle();
    assert_eq!(root_entries(&client), Some(0));
    drop(client);
    let (_, recovered) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    assert_eq!(recovered, []);
    assert_eq!(encode_records(&recovered), []);
}
