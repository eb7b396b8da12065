//! A device that fails or is full: which failures latch the log (so that it writes nothing any
//! more), which do not, and how a full log gets room again.

use std::time::Duration;

use crate::common::{
    Client, Kind, SMALL, SUPER, WAL, formatted, formatted_as, options, reopen, script,
};
use slimio_sim::{Order, Random, SimConfig};
use slimio_storage::{FLUSH_AFTER, FormatOptions, Job, LatchCause, Lsn, Outcome, Policy, Room};

fn client(policy: Policy, config: SimConfig) -> (Client, crate::common::SimMedia) {
    let mut media = formatted(config, Kind::Files);
    let (volume, _) = reopen(&mut media, &options(policy)).expect("a new volume opens");
    (Client::new(volume, media.disk.clone(), 0), media)
}

/// Keeps the next writes to the first segment from completing.
fn hold(client: &mut Client) {
    // After these turns, the keeper, which works ahead for the log, has prepared all segments that
    // it prepares in advance.
    for _ in 0..5 {
        client.turn(true);
    }
    let lbas = (0..crate::common::SMALL.segment_lbas).map(|lba| (WAL, lba));
    client.disk.faults(|faults| faults.held.extend(lbas));
}

/// Runs turns of the client's loop, whether the log is latched or not.
fn turn(client: &mut Client) {
    for _ in 0..20 {
        client.turn(true);
    }
}

#[test]
fn a_failed_write_latches_and_nothing_held_is_released() {
    let (mut client, mut media) = client(Policy::Always, SimConfig::default());
    let script = script(4);
    assert!(client.append(&script[0]));
    client.settle();
    let durable = client.volume.log.durable();
    client.disk.faults(|faults| faults.writes_until_failure = Some(0));
    assert!(client.append(&script[1]));
    turn(&mut client);
    let latch = client.volume.log.latched().expect("the log is latched");
    assert_eq!(latch.cause, LatchCause::LogWrite);
    assert_eq!(client.volume.log.releasable(client.now), durable);
    assert_eq!(client.volume.log.room(1), Room::Full);
    assert_eq!(client.volume.log.next_deadline(), None);
    // Even after the fault is gone, the log must write nothing.
    client.disk.faults(|faults| faults.writes_until_failure = None);
    turn(&mut client);
    assert_eq!(client.volume.log.durable(), durable);
    drop(client);
    // The next recovery finds every acknowledged record, because the mapped buffers still hold the
    // records that were not written.
    let (_, recovered) = reopen(&mut media, &options(Policy::Always)).expect("it opens");
    assert!(script.starts_with(&recovered) && !recovered.is_empty());
}

#[test]
fn a_failed_flush_latches_and_is_not_tried_again() {
    let (mut client, _media) = client(Policy::EverySec, SimConfig::default());
    hold(&mut client);
    client.disk.faults(|faults| {
        faults.held.clear();
        faults.flushes_until_failure = Some(0);
    });
    assert!(client.append(&script(1)[0]));
    client.turn(false);
    assert_eq!(client.volume.log.releasable(client.now), client.volume.log.appended());
    client.pass(Duration::from_secs(1));
    let latch = client.volume.log.latched().expect("the log is latched");
    assert_eq!(latch.cause, LatchCause::LogFlush);
    client.disk.faults(|faults| faults.flushes_until_failure = None);
    turn(&mut client);
    assert_eq!(client.volume.log.durable(), Lsn(0));
    assert_eq!(client.volume.log.releasable(client.now), Lsn(0));
}

#[test]
fn a_flush_that_succeeds_beside_a_failed_write_counts() {
    let in_order = SimConfig { order: Order::Fifo, ..SimConfig::default() };
    let (mut client, _media) = client(Policy::EverySec, in_order);
    client.disk.faults(|faults| faults.holds_flushes = true);
    let script = script(2);
    assert!(client.append(&script[0]));
    turn(&mut client);
    let covered = client.volume.log.appended();
    client.volume.log.request_durable();
    client.turn(false);
    // The write is submitted while the flush is in flight. The next poll completes both.
    client.disk.faults(|faults| faults.writes_until_failure = Some(0));
    assert!(client.append(&script[1]));
    client.volume.log.request_durable();
    client.turn(false);
    assert!(client.volume.log.latched().is_none() && client.volume.log.durable() < covered);
    client.disk.faults(|faults| faults.holds_flushes = false);
    client.turn(false);
    assert_eq!(
        client.volume.log.latched().expect("the log is latched").cause,
        LatchCause::LogWrite
    );
    assert_eq!(client.volume.log.durable(), covered);
    client.volume.log.check_all();
}

#[test]
fn a_failed_superblock_update_latches() {
    let (mut client, _media) = client(Policy::Always, SimConfig::default());
    for lba in 0..16 {
        client.disk.faults(|faults| faults.unwritable.extend([(SUPER, lba)]));
    }
    client.write(&script(8), 1);
    turn(&mut client);
    let latch = client.volume.log.latched().expect("the log is latched");
    assert_eq!(latch.cause, LatchCause::Superblock);
    assert_eq!(client.volume.log.room(1), Room::Full);
}

#[test]
fn a_failed_preparation_fails_alone() {
    let (mut client, _media) = client(Policy::Always, SimConfig::default());
    client.pass(Duration::from_secs(1));
    client.disk.faults(|faults| {
        for lba in 0..64 {
            faults.unwritable.insert((WAL, lba + 12));
        }
    });
    let written = script(8);
    let mut count = 0;
    while count < 8 && client.append(&written[count]) {
        client.settle();
        count += 1;
    }
    assert!(count < 8 && client.volume.log.latched().is_none());
    assert!(client.volume.log.prepare_failed().is_some());
    assert_eq!(client.volume.log.room(20_000), Room::Full);
    // After a while, the keeper succeeds in preparing a segment, and the log goes on.
    client.disk.faults(|faults| faults.unwritable.clear());
    client.pass(Duration::from_secs(2));
    assert_eq!(client.volume.log.room(1), Room::Free);
    assert!(client.append(&written[count]));
    client.settle();
}

/// Appends small records until there is no room for another. Returns how many fitted while every
/// write was allowed, and how many more fitted into the share that is set aside for deletes.
fn fill(client: &mut Client) -> (usize, usize) {
    let record = (0, vec![7; 3000]);
    let (mut free, mut scarce) = (0, 0);
    for _ in 0..10_000 {
        match client.volume.log.room(3000) {
            Room::Free => {
                assert_eq!(scarce, 0, "scarce room never becomes free");
                free += 1;
            }
            Room::Scarce => scarce += 1,
            Room::Wait => {
                client.turn(true);
                continue;
            }
            Room::Last | Room::Full => return (free, scarce),
        }
        assert!(client.append(&record));
        client.settle();
    }
    panic!("the log never became full");
}

/// Fills a log with deletions: first deletions that clients ask for, then deletions of expired or
/// evicted keys. Each deletion of the second kind is as large as the room allows.
fn fill_with_deletions(client: &mut Client) {
    loop {
        match client.volume.log.room(700) {
            Room::Last => break,
            Room::Wait => {
                client.turn(true);
                continue;
            }
            Room::Free | Room::Scarce => {}
            Room::Full => panic!("deletions have left no room at all"),
        }
        client.volume.log.append(0, &[&[7; 700]]);
        assert!(client.volume.log.has_place());
    }
    // Waits for free buffers. Without a free buffer, the deletions that no client asked for would
    // have less room.
    client.settle();
    loop {
        let size = client.volume.log.room_to_free();
        if size == 0 {
            return;
        }
        client.volume.log.append(0, &[&vec![7; size as usize]]);
        assert!(client.volume.log.has_place(), "{size} bytes");
        client.settle();
    }
}

#[test]
fn deletions_leave_room_for_what_empties_the_data_set() {
    for (segment_lbas, batch_lbas_max) in [(64, 2), (64, 8), (256, 32)] {
        let layout = FormatOptions { segment_lbas, batch_lbas_max, ..SMALL };
        let mut media = formatted_as(SimConfig::default(), Kind::Files, &layout);
        let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("it opens");
        let mut client = Client::new(volume, media.disk.clone(), 0);
        // The keeper prepares a segment in advance, and then the disk is full.
        client.pass(Duration::from_secs(1));
        client.disk.faults(|faults| faults.full = true);
        fill_with_deletions(&mut client);
        assert_eq!(
            client.volume.log.room(16_000),
            Room::Last,
            "deletions leave the room that is reserved for emptying the data set"
        );
        drop(client);

        let (volume, recovered) = reopen(&mut media, &options(Policy::Always)).expect("it opens");
        let mut client = Client::new(volume, media.disk.clone(), recovered.len());
        client.pass(Duration::from_secs(1));
        assert_eq!(client.volume.log.room_to_free(), 0);
        assert_eq!(client.volume.log.room(100), Room::Last);
        let lsn = client.volume.log.append(0, &[b"everything is gone"]);
        assert!(client.volume.log.has_place());
        client.volume.log.release_before(lsn);
        for _ in 0..10 {
            client.turn(true);
        }
        assert_eq!(client.volume.log.room(700), Room::Free);
    }
}

/// While no buffer is free, a record that no client waits for may use the rest of the open buffer,
/// but no new memory.
#[test]
fn what_nobody_asked_for_takes_no_memory() {
    let layout = FormatOptions { segment_lbas: 64, ..SMALL };
    let mut media = formatted_as(SimConfig::default(), Kind::Files, &layout);
    let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("it opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    client.disk.faults(|faults| faults.held.extend((0..64).map(|lba| (WAL, lba))));
    while client.volume.log.room(700) == Room::Free {
        client.volume.log.append(0, &[&[7; 700]]);
        client.turn(false);
    }
    assert_eq!(client.volume.log.room(700), Room::Wait, "no buffer is free");
    let size = client.volume.log.room_to_free();
    assert!((1..700).contains(&size), "{size} bytes");
    client.volume.log.append(0, &[&vec![7; size as usize]]);
    assert_eq!(client.volume.log.room_to_free(), 0);
    client.disk.faults(|faults| faults.held.clear());
    client.settle();
    assert!(client.volume.log.room_to_free() > 700);
}

/// Appends records of all sizes, in batches of all sizes, until there is no room. If the
/// log reported that it has room for a record, that record must have a place in the segments.
#[test]
fn what_there_is_room_for_has_its_place() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let batch_lbas_max = [2, 3, 8][seed as usize % 3];
        let layout = FormatOptions { segment_lbas: 24, batch_lbas_max, ..SMALL };
        let mut media = formatted_as(SimConfig::default(), Kind::Files, &layout);
        let policy = [Policy::Always, Policy::EverySec][random.below(2) as usize];
        let (volume, _) = reopen(&mut media, &options(policy)).expect("it opens");
        let mut client = Client::new(volume, media.disk.clone(), 0);
        client.pass(Duration::from_secs(1));
        client.disk.faults(|faults| faults.full = true);
        let mut size_max = 40_000;
        while size_max > 0 {
            let size = random.below(size_max);
            match client.volume.log.room(size) {
                Room::Wait => client.turn(true),
                Room::Full => size_max = size,
                Room::Free | Room::Scarce | Room::Last => {
                    client.volume.log.append(0, &[&vec![7; size as usize]]);
                    assert!(client.volume.log.has_place(), "{size} bytes, seed {seed}");
                    if random.below(3) == 0 {
                        client.turn(false);
                    }
                }
            }
        }
        client.settle();
    }
}

#[test]
fn a_full_volume_and_the_way_out_of_it() {
    let (mut client, mut media) = client(Policy::Always, SimConfig::default());
    // The keeper prepares a segment in advance, and then the disk is full.
    client.pass(Duration::from_secs(1));
    client.disk.faults(|faults| faults.full = true);
    let (free, scarce) = fill(&mut client);
    assert!(free >= 1 && scarce >= 1, "records fitted: {free} free, {scarce} scarce");
    let acknowledged = client.acknowledged;
    drop(client);

    // After a restart the log is still full, and no append waits forever.
    let (volume, recovered) = reopen(&mut media, &options(Policy::Always)).expect("it opens");
    assert!(recovered.len() >= acknowledged);
    let mut client = Client::new(volume, media.disk.clone(), recovered.len());
    assert_eq!(fill(&mut client).0, 0);

    // The log is told to start after the last record, as if that record had emptied the data set.
    let lsn = client.volume.log.appended();
    client.volume.log.release_before(lsn);
    for _ in 0..10 {
        client.turn(true);
    }
    assert_eq!(client.volume.log.room(3000), Room::Free);
    assert!(client.append(&(1, b"second".to_vec())));
    client.settle();
    drop(client);
    let (_, recovered) = reopen(&mut media, &options(Policy::Always)).expect("it opens");
    assert_eq!(recovered, [(1, b"second".to_vec())]);
}

#[test]
fn a_release_becomes_durable_also_where_nothing_is_flushed() {
    let (mut client, _media) = client(Policy::No, SimConfig::default());
    client.pass(Duration::from_secs(1));
    client.disk.faults(|faults| faults.full = true);
    while client.append(&(0, vec![7; 3000])) {}
    let appended = client.volume.log.appended();
    assert!(client.volume.log.durable() < appended);
    client.volume.log.release_before(appended);
    turn(&mut client);
    assert_eq!(client.volume.log.room(1), Room::Free);
}

/// A deallocation is only a hint. If the device refuses a deallocation, the volume loses nothing.
#[test]
fn a_deallocation_that_fails_loses_nothing() {
    let mut media = formatted(SimConfig::default(), Kind::Device);
    media.disk.faults(|faults| faults.deallocations_until_failure = Some(1));
    let (script, mut written, mut kept) = (script(20), Vec::new(), 0);
    for _ in 0..6 {
        let (volume, recovered) = reopen(&mut media, &options(Policy::Always)).expect("it opens");
        assert!(written.ends_with(&recovered) && recovered.len() >= kept, "{}", recovered.len());
        let mut client = Client::new(volume, media.disk.clone(), recovered.len());
        client.release_every = Some(3);
        // All records together are longer than the log, so segments must be released and reused.
        for record in &script {
            assert!(client.append(record));
            client.settle();
            assert!(client.volume.log.latched().is_none());
        }
        written.extend(script.clone());
        kept = client.history.len();
    }
    media.disk.faults(|faults| assert_eq!(faults.deallocations_until_failure, Some(0)));
}

#[test]
fn nothing_is_released_before_it_is_durable() {
    let (mut client, _media) = client(Policy::No, SimConfig::default());
    for record in &script(8) {
        assert!(client.append(record));
        client.turn(false);
    }
    assert!(client.append(&(0, vec![1; 100])));
    let lsn = client.volume.log.appended();
    client.volume.log.release_before(lsn);
    while let Some(job) = client.volume.log.next_job(client.now) {
        assert!(!matches!(job, Job::Release(_)), "the record is not durable yet");
        let outcome = Outcome::PrepareFailed(slimio_device::DeviceError::NoSpace);
        client.volume.log.job_done(outcome, client.now);
    }
    client.volume.log.request_durable();
    for _ in 0..20 {
        let log = &mut client.volume.log;
        log.reap(&mut *client.volume.log_path, client.now);
        if log.drive(&mut *client.volume.log_path, client.now) {
            client.volume.log_path.kick();
        }
        log.wait(&mut *client.volume.log_path, None);
    }
    assert!(matches!(client.volume.log.next_job(client.now), Some(Job::Release(_))));
}

#[test]
fn a_flush_starts_in_time_and_late_data_holds_replies() {
    let (mut client, _media) = client(Policy::EverySec, SimConfig::default());
    hold(&mut client);
    let start = client.now;
    assert!(client.append(&(0, b"a".to_vec())));
    client.turn(false);
    assert_eq!(client.volume.log.next_deadline(), Some(start + FLUSH_AFTER));
    assert!(FLUSH_AFTER < Duration::from_millis(500));
    for _ in 0..9 {
        client.now += Duration::from_millis(100);
        let volume = &mut client.volume;
        if volume.log.drive(&mut *volume.log_path, client.now) {
            volume.log_path.kick();
        }
        assert_eq!(volume.log.releasable(client.now), volume.log.appended());
    }
    assert_eq!(client.volume.log.stats().in_flight, 1, "the batch was submitted");
    client.now += Duration::from_millis(100);
    assert_eq!(client.volume.log.releasable(client.now), Lsn(0), "a second passed without a flush");
    client.disk.faults(|faults| faults.held.clear());
    client.settle();
    assert_eq!(client.volume.log.releasable(client.now), client.volume.log.appended());
    assert_eq!(client.volume.log.oldest_undurable(), None);
}

/// Written data is not durable while the device has it in a cache.
#[test]
fn late_data_that_is_written_holds_replies_until_it_is_flushed() {
    let (mut client, _media) = client(Policy::EverySec, SimConfig::default());
    turn(&mut client);
    client.disk.faults(|faults| faults.holds_flushes = true);
    assert!(client.append(&(0, b"a".to_vec())));
    client.turn(false);
    client.now += FLUSH_AFTER;
    turn(&mut client);
    client.now += Duration::from_secs(1);
    assert_eq!(client.volume.log.releasable(client.now), Lsn(0));
    client.disk.faults(|faults| faults.holds_flushes = false);
    client.settle();
    assert_eq!(client.volume.log.releasable(client.now), client.volume.log.appended());
}

#[test]
fn however_much_comes_behind_it_the_oldest_is_flushed_in_time() {
    let (mut client, _media) = client(Policy::EverySec, SimConfig::default());
    hold(&mut client);
    let start = client.now;
    while client.now < start + FLUSH_AFTER / 2 {
        assert!(client.append(&(0, b"a".to_vec())));
        let volume = &mut client.volume;
        if volume.log.drive(&mut *volume.log_path, client.now) {
            volume.log_path.kick();
        }
        client.now += Duration::from_millis(1);
    }
    let deadline = client.volume.log.next_deadline().expect("there is data that is not durable");
    assert!(deadline <= start + FLUSH_AFTER + Duration::from_millis(20), "{:?}", deadline - start);
}

#[test]
fn a_log_that_is_released_asks_for_room_again_at_once() {
    let (mut client, _media) = client(Policy::Always, SimConfig::default());
    client.disk.faults(|faults| faults.full = true);
    let record = (0, vec![7; 3000]);
    while client.volume.log.room(3000) != Room::Full {
        if client.volume.log.room(3000) == Room::Wait {
            client.turn(true);
        } else {
            assert!(client.append(&record));
            client.settle();
        }
    }
    assert!(client.volume.log.prepare_failed().is_some());
    let end = client.volume.log.appended();
    client.volume.log.release_before(end);
    assert!(client.volume.log.prepare_failed().is_none());
}

#[test]
fn durable_is_the_longest_unbroken_prefix() {
    let config = SimConfig { order: Order::Lifo, ..SimConfig::default() };
    let (mut client, _media) = client(Policy::Always, config);
    hold(&mut client);
    client.disk.faults(|faults| faults.held.retain(|&(_, lba)| lba == 0));
    for _ in 0..2 {
        client.volume.log.append(0, &[b"x"]);
        client.turn(false);
    }
    client.turn(false);
    assert_eq!(client.volume.log.stats().in_flight, 1, "only the second batch has completed");
    assert_eq!(client.volume.log.durable(), Lsn(0), "the first batch has not completed");
    client.disk.faults(|faults| faults.held.clear());
    client.settle();
    assert_eq!(client.volume.log.durable(), client.volume.log.appended());
}

#[test]
fn records_gather_while_commits_are_in_flight() {
    let (mut client, _media) = client(Policy::Always, SimConfig::default());
    hold(&mut client);
    for _ in 0..50 {
        client.volume.log.append(0, &[b"one of many"]);
        client.turn(false);
    }
    assert_eq!(client.volume.log.stats().batches, 2, "two batches may be in flight");
    client.disk.faults(|faults| faults.held.clear());
    client.settle();
    assert_eq!(client.volume.log.stats().batches, 3, "the other records are in one batch");
}

#[test]
fn changing_the_policy_makes_the_past_durable() {
    let (mut client, _media) = client(Policy::No, SimConfig::default());
    client.volume.log.append(0, &[&[1; 9000]]);
    client.turn(true);
    assert!(client.volume.log.durable() < client.volume.log.appended());
    client.volume.log.set_policy(Policy::Always);
    for _ in 0..10 {
        client.turn(true);
    }
    assert_eq!(client.volume.log.durable(), client.volume.log.appended());
    assert!(client.volume.log.stats().flushes >= 1, "a flush makes written batches durable");
}

#[test]
fn a_record_that_can_never_fit_is_refused_at_once() {
    let (mut client, _media) = client(Policy::Always, SimConfig::default());
    let slots_before = client.volume.keeper.superblock().wal_slots.len();
    assert_eq!(client.volume.log.room(1 << 30), Room::Full);
    client.pass(Duration::from_secs(1));
    assert_eq!(client.volume.log.room(1 << 30), Room::Full);
    assert_eq!(client.volume.log.room(1), Room::Free);
    let slots_after = client.volume.keeper.superblock().wal_slots.len();
    assert!(slots_after <= slots_before + 1, "no segment is prepared for the refused record");
}
