//! Batches whose checksums are right, but which belong to another history of the volume: they
//! reached the device late, are stale, or come from a copy.

use crate::common::{
    Client, Kind, SMALL, SUPER, SimMedia, WAL, formatted, formatted_as, options, reopen, script,
};
use slimio_device::Device as _;
use slimio_sim::{Crash, Image, Limits, SimConfig, SimDisk};
use slimio_storage::{Chunk, Error, FormatOptions, Policy, Record, RecoverSink, Room, recover};

const ALL_OR_NOTHING: Limits = Limits { exhaustive_max: 1, random_count: 0, torn: false };

fn client(media: &mut SimMedia, policy: Policy) -> Client {
    // The disk watches mapped memory only while a crash is planned. So a crash is planned here, but
    // for so late an operation that it never happens.
    media.disk.crash_after(1_000_000);
    let (volume, recovered) = reopen(media, &options(policy)).expect("the volume opens");
    Client::new(volume, media.disk.clone(), recovered.len())
}

fn media_of(image: &Image) -> SimMedia {
    SimMedia::from_image(SimConfig::default(), Kind::Files, image)
}

fn first_image(crash: &Crash) -> Image {
    crash.power_images(&ALL_OR_NOTHING).swap_remove(0)
}

fn record(byte: u8) -> (u16, Vec<u8>) {
    (0, vec![byte; 100])
}

fn copy_block(from: &SimMedia, to: &SimMedia, lba: u64) {
    to.disk.poke(WAL, lba, &from.disk.peek(WAL, lba));
}

/// A process dies with a write in flight. The next process does not find this write, so its clients
/// see a data set without the record. Later, the write reaches the device after all. The record
/// must not come back.
#[test]
fn a_write_that_lands_after_recovery_stays_dead() {
    let mut media = formatted(SimConfig::default(), Kind::Files);
    let mut first = client(&mut media, Policy::Always);
    assert!(first.append(&record(1)));
    first.settle();
    assert!(first.append(&record(2)));
    let log = &mut first.volume.log;
    if log.drive(&mut *first.volume.log_path, first.now) {
        first.volume.log_path.kick();
    }
    let images = first.disk.crash_now().power_images(&ALL_OR_NOTHING);
    let [before, landed] = &images[..] else { panic!("exactly one write must be in flight") };
    let (before, landed) = (media_of(before), media_of(landed));

    let mut media = before;
    let (_, recovered) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    assert_eq!(recovered, [record(1)]);
    copy_block(&landed, &media, 1);
    let (_, recovered) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    assert_eq!(recovered, [record(1)], "a lost record does not come back");
}

/// Like the test above, but the next batch does not fit into the rest of the segment. So that batch
/// goes to the next segment, and never overwrites the dead write. The next recovery finds the end
/// of the log after that batch, and so after the dead write as well.
#[test]
fn a_write_that_was_passed_over_stays_dead() {
    let large = |byte: u8| (0, vec![byte; 5000]);
    let mut media = formatted(SimConfig::default(), Kind::Files);
    let mut first = client(&mut media, Policy::Always);
    for record in [large(1), large(2), record(3)] {
        assert!(first.append(&record));
        first.settle();
    }
    assert!(first.append(&record(4)));
    let log = &mut first.volume.log;
    if log.drive(&mut *first.volume.log_path, first.now) {
        first.volume.log_path.kick();
    }
    let images = first.disk.crash_now().power_images(&ALL_OR_NOTHING);
    let [before, landed] = &images[..] else { panic!("exactly one write must be in flight") };
    let (mut media, landed) = (media_of(before), media_of(landed));

    let mut second = client(&mut media, Policy::Always);
    copy_block(&landed, &media, SMALL.segment_lbas - 1);
    assert!(second.append(&large(5)));
    second.settle();
    drop(second);
    for _ in 0..3 {
        let (_, recovered) =
            reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
        assert_eq!(recovered, [large(1), large(2), record(3), large(5)]);
    }
}

/// The layout of a volume with long segments: the few records of a test do not fill a segment.
const ROOMY: FormatOptions = FormatOptions { segment_lbas: 64, batch_lbas_max: 16, ..SMALL };

/// Submits the appended records in one write. The process dies while this write is in flight.
/// Returns two volumes: one that the write has not reached, and one that the write has reached.
fn dies_in_flight(client: &mut Client) -> [SimMedia; 2] {
    let log = &mut client.volume.log;
    if log.drive(&mut *client.volume.log_path, client.now) {
        client.volume.log_path.kick();
    }
    let images = client.disk.crash_now().power_images(&ALL_OR_NOTHING);
    let [before, landed] = &images[..] else { panic!("exactly one write must be in flight") };
    [media_of(before), media_of(landed)]
}

/// Small commits in a row go alternately to two blocks, which are called a pair. Each commit to a
/// pair also holds the records of all earlier commits to the same pair. Here, a process dies while
/// it writes a commit of record 6 to the second block of a pair. Returns two volumes: the volume
/// that the next process finds, and the same volume after the write has reached it.
fn dies_in_a_pair() -> [SimMedia; 2] {
    let mut media = formatted_as(SimConfig::default(), Kind::Files, &ROOMY);
    let mut first = client(&mut media, Policy::Always);
    for byte in 1..=5 {
        assert!(first.append(&record(byte)));
        first.settle();
    }
    assert!(first.append(&record(6)));
    dies_in_flight(&mut first)
}

/// The second block of the pair in [`dies_in_a_pair`]. Blocks 0 and 1 have one commit each, so the
/// pair is in blocks 2 and 3.
const PAIR_SECOND: u64 = 3;

fn records(bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    bytes.iter().map(|&byte| record(byte)).collect()
}

fn appends(media: &mut SimMedia, byte: u8) -> Vec<(u16, Vec<u8>)> {
    let mut client = client(media, Policy::Always);
    assert!(client.append(&record(byte)));
    client.settle();
    assert_eq!(client.acknowledged, client.appended);
    let (_, recovered) = reopen(media, &options(Policy::Always)).expect("the volume opens");
    recovered
}

#[test]
fn a_commit_of_a_pair_that_lands_after_recovery_stays_dead() {
    let [mut media, landed] = dies_in_a_pair();
    drop(client(&mut media, Policy::Always));
    copy_block(&landed, &media, PAIR_SECOND);
    let (_, recovered) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    assert_eq!(recovered, records(&[1, 2, 3, 4, 5]));
}

/// The dead commit is as long as the commit that was acknowledged in its place. So all LSNs match,
/// and recovery can't recognise the dead commit by its LSN.
#[test]
fn a_commit_of_a_pair_that_lands_two_recoveries_later_stays_dead() {
    for landing in 0..3 {
        let [mut media, landed] = dies_in_a_pair();
        if landing == 0 {
            drop(client(&mut media, Policy::Always));
            copy_block(&landed, &media, PAIR_SECOND);
        }
        assert_eq!(appends(&mut media, 7), records(&[1, 2, 3, 4, 5, 7]));
        if landing == 1 {
            copy_block(&landed, &media, PAIR_SECOND);
        }
        assert_eq!(appends(&mut media, 8), records(&[1, 2, 3, 4, 5, 7, 8]));
        copy_block(&landed, &media, PAIR_SECOND);
        for _ in 0..3 {
            let (_, recovered) =
                reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
            assert_eq!(recovered, records(&[1, 2, 3, 4, 5, 7, 8]), "landing {landing}");
        }
    }
}

/// The pair is near the end of its segment, so the log goes on in the next segment after the
/// recovery. In one case, the pair is at the very end. In the other case, some blocks are left
/// after the pair, but too few for the next batch.
#[test]
fn a_commit_of_the_last_pair_of_a_segment_stays_dead() {
    for left in [0, 2] {
        let layout = FormatOptions { segment_lbas: 8 + left, batch_lbas_max: 4, ..SMALL };
        let mut media = formatted_as(SimConfig::default(), Kind::Files, &layout);
        let mut first = client(&mut media, Policy::Always);
        // The first two records take four blocks. Then two lone commits take one block each, and
        // the pair follows.
        let before = [(0, vec![1; 5000]), (0, vec![2; 5000]), record(3), record(4), record(5)];
        for record in &before {
            assert!(first.append(record));
            first.settle();
        }
        assert!(first.append(&record(6)));
        let [mut media, landed] = dies_in_flight(&mut first);
        assert_eq!(landed.disk.peek(WAL, 7)[..4], *b"SlWB", "the pair is at the expected block");
        let mut expected = before.to_vec();
        for large in [(0, vec![7; 10_000]), record(8)] {
            let mut client = client(&mut media, Policy::Always);
            assert!(client.append(&large));
            client.settle();
            expected.push(large);
        }
        copy_block(&landed, &media, 7);
        let (_, recovered) =
            reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
        assert_eq!(recovered, expected, "{left} blocks are left after the pair");
    }
}

/// A sink that stores how many operations the disk has run when each record comes back.
struct Pace {
    disk: SimDisk,
    ops: Vec<u64>,
}

impl RecoverSink for Pace {
    fn chunk(&mut self, _: Chunk) -> Result<(), Error> {
        unreachable!("the volume has no snapshot")
    }

    fn record(&mut self, _: Record<'_>) -> Result<(), String> {
        self.ops.push(self.disk.ops());
        Ok(())
    }
}

/// The blocks right after a pair show whether the log has gone on after the pair. So recovery need
/// not read the rest of the segment to find that out. If recovery did read it, a log of many pairs
/// would be slow to recover: the rest of the segment would be read for each pair.
#[test]
fn a_log_of_pairs_is_not_read_ahead_to_the_end_of_its_segment() {
    let config = SimConfig { transfer_lbas_max: 4, ..SimConfig::default() };
    let layout = FormatOptions { segment_lbas: 256, batch_lbas_max: 2, ..SMALL };
    let mut media = formatted_as(config, Kind::Files, &layout);
    let mut first = client(&mut media, Policy::Always);
    for byte in 0..200 {
        assert!(first.append(&(0, vec![byte; 700])));
        first.settle();
    }
    drop(first);
    drop(client(&mut media, Policy::Always));
    let before = media.disk.ops();
    let mut pace = Pace { disk: media.disk.clone(), ops: Vec::new() };
    recover(&mut media, &options(Policy::Always), &mut pace).expect("the volume opens");
    let (early, last) = (pace.ops[9] - before, pace.ops[199] - before);
    assert!(2 * early < last, "{early} of {last} operations ran before the tenth record");
}

/// The commit in flight goes to the first block of a pair. If the write reaches the device, the
/// first block holds more records than the second block.
#[test]
fn a_commit_to_the_first_block_of_a_pair_stays_dead() {
    for recoveries in 1..3 {
        let mut media = formatted_as(SimConfig::default(), Kind::Files, &ROOMY);
        let mut first = client(&mut media, Policy::Always);
        for byte in 1..=6 {
            assert!(first.append(&record(byte)));
            first.settle();
        }
        assert!(first.append(&record(7)));
        let [mut media, landed] = dies_in_flight(&mut first);
        let mut expected = records(&[1, 2, 3, 4, 5, 6]);
        drop(client(&mut media, Policy::Always));
        if recoveries == 2 {
            expected.push(record(8));
            assert_eq!(appends(&mut media, 8), expected);
        }
        copy_block(&landed, &media, PAIR_SECOND - 1);
        let (_, recovered) =
            reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
        assert_eq!(recovered, expected);
    }
}

/// The dead write takes several blocks near the end of its segment. The next batch does not fit
/// there, so it goes to the next segment.
#[test]
fn a_write_of_some_blocks_that_was_passed_over_stays_dead() {
    let layout = FormatOptions { segment_lbas: 16, batch_lbas_max: 4, ..SMALL };
    let mut media = formatted_as(SimConfig::default(), Kind::Files, &layout);
    let mut first = client(&mut media, Policy::Always);
    // These records take twelve of the segment's sixteen blocks.
    let before: Vec<_> = (1..=6).map(|byte| (0, vec![byte; 5000])).collect();
    for record in &before {
        assert!(first.append(record));
        first.settle();
    }
    let next = (0, vec![13; 3000]);
    assert!(first.append(&next));
    first.settle();
    assert!(first.append(&(0, vec![14; 9000])));
    let [mut media, landed] = dies_in_flight(&mut first);
    let mut expected = before;
    expected.push(next);
    for large in [(0, vec![15; 13_000]), record(16)] {
        let mut client = client(&mut media, Policy::Always);
        assert!(client.append(&large));
        client.settle();
        expected.push(large);
    }
    assert_eq!(landed.disk.peek(WAL, 13)[..4], *b"SlWB", "the dead write is at the expected block");
    for lba in 13..16 {
        copy_block(&landed, &media, lba);
    }
    let (_, recovered) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    assert_eq!(recovered, expected);
}

/// On a device that is attached to two machines, nothing stops a dead process's last write. The
/// write may overwrite an acknowledged batch. The log then ends before the place where the last
/// recovery found the end of the log, so the volume must be refused.
#[test]
fn a_dead_write_over_what_was_acknowledged_is_refused() {
    let mut media = formatted(SimConfig::default(), Kind::Files);
    let mut first = client(&mut media, Policy::Always);
    assert!(first.append(&record(1)));
    first.settle();
    assert!(first.append(&(0, vec![2; 5000])));
    let [mut media, landed] = dies_in_flight(&mut first);
    assert_eq!(appends(&mut media, 3), records(&[1, 3]));
    for lba in [1, 2] {
        copy_block(&landed, &media, lba);
    }
    let refused = reopen(&mut media, &options(Policy::Always)).expect_err("record 3 is gone");
    let Error::Damaged { what, .. } = refused else { panic!("{refused}") };
    assert!(what.contains("another batch is in its place"), "{what}");
}

/// Power is cut when only a part of a record is on the volume. The next process is killed while its
/// records are only in its mapped buffers.
fn killed_behind_a_torn_record() -> Image {
    let mut media = formatted(SimConfig::default(), Kind::Files);
    let mut first = client(&mut media, Policy::Always);
    let large = vec![2; 3 * crate::common::BATCH_SIZE];
    while first.volume.log.room(large.len() as u64 + 1000) == Room::Wait {
        first.turn(true);
    }
    let log = &mut first.volume.log;
    log.append(0, &[&record(1).1]);
    // The client takes no turn in between, so the large record begins in the first record's batch.
    log.append(0, &[&large]);
    if log.drive(&mut *first.volume.log_path, first.now) {
        first.volume.log_path.kick();
    }
    log.wait(&mut *first.volume.log_path, None);
    let image = first_image(&first.disk.crash_now());
    let mut media = media_of(&image);
    let mut second = client(&mut media, Policy::EverySec);
    assert_eq!(second.appended, 1, "the second record is torn");
    for byte in 3..=5 {
        assert!(second.append(&record(byte)));
    }
    second.turn(false);
    assert_eq!((second.acknowledged, second.durable), (4, 1));
    second.disk.crash_now().process_images(&ALL_OR_NOTHING).swap_remove(0)
}

/// Recovery must not mistake the remains of the torn record for a part of the log.
#[test]
fn a_kill_behind_a_power_cut_within_a_record_loses_nothing() {
    let mut media = media_of(&killed_behind_a_torn_record());
    let (_, recovered) = reopen(&mut media, &options(Policy::EverySec)).expect("the volume opens");
    assert_eq!(recovered, records(&[1, 3, 4, 5]));
}

/// Recovery is killed while it appends the buffers' records to the log. Nothing may be lost.
#[test]
fn a_killed_recovery_behind_a_torn_record_loses_nothing() {
    let image = killed_behind_a_torn_record();
    for ops in 0.. {
        let mut media = media_of(&image);
        media.disk.crash_after(ops);
        let opened = reopen(&mut media, &options(Policy::EverySec));
        let Some(crash) = media.disk.crashed() else {
            assert_eq!(opened.expect("the volume opens").1, records(&[1, 3, 4, 5]));
            assert!(ops > 20, "recovery was killed at more than 20 points");
            break;
        };
        for image in crash.process_images(&ALL_OR_NOTHING) {
            let mut media = media_of(&image);
            let (_, recovered) =
                reopen(&mut media, &options(Policy::EverySec)).expect("the volume opens");
            assert_eq!(recovered, records(&[1, 3, 4, 5]), "killed at operation {ops}");
        }
    }
}

/// Two histories start from one image, as if the volume had been copied. A batch of one history
/// must not continue the other history, even if its epoch and LSN fit.
#[test]
fn a_batch_of_another_history_does_not_continue_the_log() {
    let mut media = formatted(SimConfig::default(), Kind::Files);
    drop(client(&mut media, Policy::Always));
    let image = first_image(&media.disk.crash_now());
    let [one, other] = [1, 3].map(|byte| {
        let mut media = media_of(&image);
        let mut client = client(&mut media, Policy::Always);
        for byte in [byte, byte + 1] {
            assert!(client.append(&record(byte)));
            client.settle();
        }
        media_of(&first_image(&media.disk.crash_now()))
    });
    let mut mixed = one;
    copy_block(&other, &mixed, 1);
    let (_, recovered) = reopen(&mut mixed, &options(Policy::Always)).expect("the volume opens");
    assert_eq!(recovered, [record(1)]);
}

/// The first of several batches in flight never completes. The other batches complete, but the log
/// must not reuse their buffers: when the process dies, the records that the log lacks must still
/// be in the buffers.
#[test]
fn a_hole_in_the_log_is_filled_from_the_buffers() {
    let mut media = formatted(SimConfig::default(), Kind::Files);
    let mut client = client(&mut media, Policy::EverySec);
    client.turn(true);
    client.turn(true);
    client.disk.faults(|faults| faults.held.extend([(WAL, 0)]));
    let records: Vec<_> =
        (0..3).map(|byte| (0, vec![byte; crate::common::BATCH_SIZE - 200])).collect();
    for record in records.iter().chain(&records) {
        if client.volume.log.room(record.1.len() as u64) != slimio_storage::Room::Free {
            break;
        }
        assert!(client.append(record));
        client.turn(false);
        client.turn(false);
    }
    let appended = client.appended;
    assert!(appended >= 3, "some batches come after the held one");
    assert_eq!(client.acknowledged, appended);
    let image = client.disk.crash_now().process_images(&ALL_OR_NOTHING).swap_remove(0);
    let (_, recovered) =
        reopen(&mut media_of(&image), &options(Policy::EverySec)).expect("the volume opens");
    assert_eq!(recovered.len(), appended);
}

/// On a volume that can't grow, the log has a few slots. A slot holds one segment at a time, and is
/// used again for a later segment.
#[test]
fn slots_are_used_again_and_again() {
    for kind in [Kind::Files, Kind::Device] {
        let layout = FormatOptions { wal_slots_max: 4, ..SMALL };
        let mut media = formatted_as(SimConfig::default(), kind, &layout);
        let mut client = client(&mut media, Policy::Always);
        client.release_every = Some(2);
        let script = script(61);
        for record in &script {
            assert!(client.append(record));
            client.settle();
        }
        let written = client.volume.log.stats().log_bytes;
        let size = SMALL.segment_lbas * 4 * slimio_device::LBA_SIZE as u64;
        assert!(written > 3 * size, "only {written} bytes were written to a log of {size} bytes");
        let image = first_image(&media.disk.crash_now());
        let mut media = SimMedia::from_image(SimConfig::default(), kind, &image);
        let (_, recovered) =
            reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
        assert!(script.ends_with(&recovered) && !recovered.is_empty());
    }
}

/// If the log gave the blocks of a slot back to the file system, the slot would become a hole. A
/// durable write to a hole has to allocate blocks, which is slow. A volume on a block device has no
/// holes, so its log does give the blocks back.
#[test]
fn slots_of_a_file_keep_their_blocks() {
    for kind in [Kind::Files, Kind::Device] {
        let mut media = formatted(SimConfig::default(), kind);
        let mut client = client(&mut media, Policy::Always);
        client.release_every = Some(2);
        for record in &script(61) {
            assert!(client.append(record));
            client.settle();
        }
        let space = if kind == Kind::Device { SUPER } else { WAL };
        let size = media.disk.open_path(space).geometry().lba_count;
        let was_given_back =
            (0..size).any(|lba| media.disk.peek(space, lba).iter().all(|byte| *byte == 0xDD));
        assert_eq!(was_given_back, kind == Kind::Device);
    }
}

/// If one client waits for each of its small writes, the log uses about two bytes for each byte of
/// the records.
#[test]
fn lone_small_commits_share_blocks() {
    let mut media = formatted_as(
        SimConfig::default(),
        Kind::Files,
        &FormatOptions { segment_lbas: 64, batch_lbas_max: 16, ..SMALL },
    );
    let mut client = client(&mut media, Policy::Always);
    let expected: Vec<_> = (0..1000).map(|index| record(index as u8)).collect();
    for record in &expected {
        assert!(client.append(record));
        client.settle();
    }
    let stats = client.volume.log.stats();
    let log_bytes_per_record_byte = stats.log_bytes as f64 / stats.record_bytes as f64;
    assert!(log_bytes_per_record_byte < 2.2, "{log_bytes_per_record_byte}");
    let image = first_image(&media.disk.crash_now());
    let (_, recovered) =
        reopen(&mut media_of(&image), &options(Policy::Always)).expect("the volume opens");
    assert_eq!(recovered, expected);
}
