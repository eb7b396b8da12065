//! Tests of a log that ends and resumes. They check which records recovery brings back: those that
//! were appended before the end, between the end and the resumption, or later.

use crate::common::{
    Client, Kind, SMALL, SimMedia, formatted_as, options, reopen, script, small_script,
};
use crate::snapshot_failing::{client, next_job, root_entries, write};
use slimio_device::LBA_SIZE;
use slimio_sim::{Image, Limits, SimConfig};
use slimio_storage::{LogState, Lsn, Policy, RecoverOptions, SnapshotKind};

#[test]
fn the_log_ends_where_it_is_durable() {
    let (mut client, mut media) = client(Policy::No);
    let script = script(6);
    for record in &script[..5] {
        assert!(client.append(record));
    }
    let lsn = client.volume.log.appended();
    client.volume.log.end();
    assert_eq!(client.volume.log.log_state(), LogState::Ending);
    assert_eq!(next_job(&mut client), None, "a job came before the log's end was durable");
    client.settle();
    assert_eq!(client.volume.log.log_state(), LogState::Off);
    assert_eq!(client.volume.log.snapshots().log_end(), Some(lsn));
    // This record is not logged, so recovery does not bring it back.
    assert!(client.append(&script[5]));
    drop(client);
    // With or without a log, the volume holds the same records. The log is on again only if the
    // options ask for it.
    let off = RecoverOptions { is_log_on: false, ..options(Policy::No) };
    for (options, state) in
        [(off, LogState::Off), (off, LogState::Off), (options(Policy::No), LogState::On)]
    {
        let (volume, recovered) = reopen(&mut media, &options).expect("the volume opens");
        assert_eq!(recovered, script[..5]);
        assert_eq!(volume.log.log_state(), state);
        assert_eq!(volume.log.snapshots().log_end().is_some(), state == LogState::Off);
    }
}

#[test]
fn a_resumed_log_counts_when_its_snapshot_is_adopted() {
    let (mut client, mut media) = client(Policy::Always);
    let script = small_script(20);
    write(&mut client, &script[..3]);
    client.volume.log.end();
    client.settle();
    write(&mut client, &script[3..6]);
    // This snapshot is begun before the log is resumed. The snapshot becomes the root, from which
    // recovery starts, but does not turn the log on, because the records after it were not logged.
    client.begin(SnapshotKind::Wal).expect("no other snapshot is under way");
    client.volume.log.resume();
    assert_eq!(client.volume.log.log_state(), LogState::Resuming);
    write(&mut client, &script[6..8]);
    client.settle();
    assert_eq!(root_entries(&client), Some(6));
    assert_eq!(client.volume.log.log_state(), LogState::Resuming);
    let image = |client: &Client| {
        let limits = slimio_sim::Limits { exhaustive_max: 0, random_count: 0, torn: false };
        let crash = client.disk.clone().crash_now();
        crash.power_images(&limits).swap_remove(0)
    };
    // The next snapshot is cancelled. Then the log ends and resumes once more. Only the snapshot
    // that begins after that turns the log on.
    client.begin(SnapshotKind::Wal).expect("no other snapshot is under way");
    client.cancel();
    client.volume.log.end();
    client.settle();
    assert_eq!(client.volume.log.log_state(), LogState::Off);
    write(&mut client, &script[8..10]);
    client.volume.log.resume();
    client.begin(SnapshotKind::Wal).expect("no other snapshot is under way");
    write(&mut client, &script[10..12]);
    client.settle();
    assert_eq!(client.volume.log.log_state(), LogState::On);
    write(&mut client, &script[12..]);
    media = SimMedia::from_image(SimConfig::default(), media.kind, &image(&client));
    let (_, recovered) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    assert_eq!(recovered, script);
}

/// A snapshot that was to turn the log on is still being written when the log ends again. This
/// snapshot must leave the log off.
#[test]
fn a_log_that_ends_again_is_not_turned_on_by_a_late_snapshot() {
    let (mut client, mut media) = client(Policy::Always);
    let script = small_script(8);
    client.volume.log.end();
    client.settle();
    client.volume.log.resume();
    write(&mut client, &script[..2]);
    client.begin(SnapshotKind::Wal).expect("no other snapshot is under way");
    client.volume.log.end();
    client.settle();
    assert!(client.append(&script[2]));
    client.volume.log.resume();
    write(&mut client, &script[3..]);
    client.settle();
    assert_eq!(client.volume.log.log_state(), LogState::Resuming);
    drop(client);
    let (_, recovered) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    assert_eq!(recovered, script[..2]);
}

/// The log is resumed before its end is in the superblock. A snapshot that began this early would
/// not turn the log on, so no snapshot may begin yet.
#[test]
fn a_log_that_goes_on_at_once_is_turned_on_by_its_snapshot() {
    let (mut client, _media) = client(Policy::Always);
    client.volume.log.end();
    client.volume.log.resume();
    assert_eq!(client.volume.log.log_state(), LogState::Ending);
    assert!(client.begin(SnapshotKind::Wal).is_none(), "no snapshot may begin yet");
    client.settle();
    assert_eq!(client.volume.log.log_state(), LogState::Resuming);
    assert!(client.begin(SnapshotKind::Wal).is_some());
    client.settle();
    assert_eq!(client.volume.log.log_state(), LogState::On);
}

/// The data set was emptied before the log ended. At that time, the log had no segment to release.
/// After the log has resumed, the next record begins a segment, so the old release could happen
/// now. The release must not happen: it would drop the snapshot from which the log resumed, and
/// this snapshot holds data that was written while the log was off.
#[test]
fn what_was_emptied_before_the_log_ended_does_not_drop_what_it_goes_on_from() {
    let (mut client, mut media) = client(Policy::Always);
    let script = small_script(12);
    // Fills the first segment until it has no room for one more batch of two blocks.
    let fill = (0, vec![7; 5000]);
    while client.volume.log.stats().log_bytes < (SMALL.segment_lbas - 1) * LBA_SIZE as u64 {
        write(&mut client, std::slice::from_ref(&fill));
    }
    client.volume.log.release_before(client.volume.log.appended());
    client.history.clear();
    client.settle();
    assert_eq!(client.volume.log.start_lsn(), Lsn(0), "a segment was released");
    client.volume.log.end();
    client.settle();
    write(&mut client, &script[..3]);
    client.volume.log.resume();
    client.begin(SnapshotKind::Wal).expect("no other snapshot is under way");
    client.settle();
    assert_eq!(client.volume.log.log_state(), LogState::On);
    write(&mut client, &script[3..]);
    client.turn(true);
    assert_eq!(root_entries(&client), Some(3));
    drop(client);
    let (_, recovered) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    assert_eq!(recovered, script);
}

/// Small commits share a pair of blocks. Each commit is written together with the commits before it
/// in the pair. Commits after the log's end must not be written together with commits before the
/// end.
#[test]
fn what_is_behind_the_end_of_a_log_shares_no_batch_with_what_is_before() {
    let (mut client, mut media) = client(Policy::Always);
    let script: Vec<_> = (0..8).map(|byte| (0, vec![byte; 20])).collect();
    write(&mut client, &script[..5]);
    // This record is appended before the log is asked to end, but is written only afterwards.
    assert!(client.append(&script[5]));
    client.volume.log.end();
    client.settle();
    write(&mut client, &script[6..7]);
    client.volume.log.resume();
    write(&mut client, &script[7..]);
    assert_eq!(client.volume.log.log_state(), LogState::Resuming);
    drop(client);
    let (_, recovered) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    assert_eq!(recovered, script[..6]);
}

/// The log ends, resumes, and ends again. Records that were appended between the two ends must not
/// continue the log after its first end.
#[test]
fn a_log_that_ends_twice_has_ended_where_it_ended_first() {
    let (mut client, mut media) = client(Policy::Always);
    let script = small_script(4);
    write(&mut client, &script[..2]);
    client.volume.log.end();
    client.settle();
    write(&mut client, &script[2..3]);
    client.volume.log.resume();
    write(&mut client, &script[3..]);
    client.volume.log.end();
    client.settle();
    assert_eq!(client.volume.log.log_state(), LogState::Off);
    drop(client);
    let (_, recovered) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    assert_eq!(recovered, script[..2]);
}

/// A start appends the records that only the mapped buffers held, and then ends the log. If the
/// start is killed at any point, the next start finds all records.
#[test]
fn a_start_that_ends_the_log_is_killed_and_loses_nothing() {
    let limits = Limits { exhaustive_max: 1, random_count: 0, torn: false };
    let (mut client, _) = client(Policy::EverySec);
    let script = small_script(4);
    for record in &script {
        assert!(client.append(record));
    }
    client.turn(false);
    assert_eq!((client.acknowledged, client.durable), (4, 0));
    let image = client.disk.crash_now().process_images(&limits).swap_remove(0);
    let off = RecoverOptions { is_log_on: false, ..options(Policy::EverySec) };
    let media_of = |image: &Image| SimMedia::from_image(SimConfig::default(), Kind::Files, image);
    for ops in 0.. {
        let mut media = media_of(&image);
        media.disk.crash_after(ops);
        let opened = reopen(&mut media, &off);
        let Some(crash) = media.disk.crashed() else {
            assert_eq!(opened.expect("the volume opens").1, script);
            assert!(ops > 20, "the start was killed at only {ops} operations");
            break;
        };
        for image in crash.process_images(&limits) {
            let (_, recovered) = reopen(&mut media_of(&image), &off).expect("the volume opens");
            assert_eq!(recovered, script, "the start was killed at operation {ops}");
        }
    }
}

/// Records are appended after the log's end, and a mapped buffer says that they are durable.
/// Recovery must still ignore these records. The next start continues the log from its end. Neither
/// this start nor a later start may report the ignored records as lost.
#[test]
fn what_was_durable_behind_the_end_of_a_log_is_not_missed() {
    let limits = Limits { exhaustive_max: 0, random_count: 0, torn: false };
    let config = SimConfig::default();
    let mut media = formatted_as(config, Kind::Files, &SMALL);
    // This crash point is never reached. It is set because the disk watches mapped memory only
    // while a crash is planned.
    media.disk.crash_after(1_000_000);
    let (volume, _) = reopen(&mut media, &options(Policy::EverySec)).expect("a new volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    let script = small_script(4);
    write(&mut client, &script[..2]);
    client.volume.log.end();
    client.settle();
    client.volume.log.resume();
    write(&mut client, &script[2..]);
    assert_eq!(client.volume.log.log_state(), LogState::Resuming);
    for _ in 0..3 {
        let image = media.disk.crash_now().process_images(&limits).swap_remove(0);
        media = SimMedia::from_image(config, Kind::Files, &image);
        media.disk.crash_after(1_000_000);
        let (_, recovered) =
            reopen(&mut media, &options(Policy::EverySec)).expect("the volume opens");
        assert_eq!(recovered, script[..2]);
    }
}
