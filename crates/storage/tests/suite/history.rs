//! Batches that are right in themselves, but of another history: late, stale, or out of turn.

use crate::common::{
    Client, Kind, SMALL, SUPER, SimMedia, WAL, formatted, formatted_as, options, reopen, script,
};
use slimio_device::Device as _;
use slimio_sim::{Crash, Image, Limits, SimConfig};
use slimio_storage::{FormatOptions, Policy};

const ALL_OR_NOTHING: Limits = Limits { exhaustive_max: 1, random_count: 0, torn: false };

fn client(media: &mut SimMedia, policy: Policy) -> Client {
    // Never reached, but mapped memory is then watched.
    media.disk.crash_after(1_000_000);
    let (volume, recovered) = reopen(media, &options(policy)).expect("it opens");
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

/// A process dies with a write in flight. The next one finds nothing of it and says so to its
/// clients. Then the write lands after all.
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
    let [before, landed] = &images[..] else { panic!("one write is in flight") };
    let (before, landed) = (media_of(before), media_of(landed));

    let mut media = before;
    let (_, recovered) = reopen(&mut media, &options(Policy::Always)).expect("it opens");
    assert_eq!(recovered, [record(1)]);
    copy_block(&landed, &media, 1);
    let (_, recovered) = reopen(&mut media, &options(Policy::Always)).expect("it opens");
    assert_eq!(recovered, [record(1)], "what was said to be lost does not come back");
}

/// As above, but what is written next does not fit into the rest of the segment, so the dead write is
/// never overwritten, and then there is another recovery, whose cut lies behind both.
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
    let [before, landed] = &images[..] else { panic!("one write is in flight") };
    let (mut media, landed) = (media_of(before), media_of(landed));

    let mut second = client(&mut media, Policy::Always);
    copy_block(&landed, &media, SMALL.segment_lbas - 1);
    assert!(second.append(&large(5)));
    second.settle();
    drop(second);
    for _ in 0..3 {
        let (_, recovered) = reopen(&mut media, &options(Policy::Always)).expect("it opens");
        assert_eq!(recovered, [large(1), large(2), record(3), large(5)]);
    }
}

/// Two histories go on from one image (a copy of the volume, say). A batch of one does not continue
/// the other, though epoch and LSN fit.
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
    let (_, recovered) = reopen(&mut mixed, &options(Policy::Always)).expect("it opens");
    assert_eq!(recovered, [record(1)]);
}

/// The first of several batches in flight is never done, the others are, and their buffers are
/// wanted again: what the log lacks must still be in the buffers when the process dies.
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
    assert!(appended >= 3, "some are behind the one that is held");
    assert_eq!(client.acknowledged, appended);
    let image = client.disk.crash_now().process_images(&ALL_OR_NOTHING).swap_remove(0);
    let (_, recovered) =
        reopen(&mut media_of(&image), &options(Policy::EverySec)).expect("it opens");
    assert_eq!(recovered.len(), appended);
}

/// Segments go round and round in a few slots, on a volume that can't grow.
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
        assert!(written > 3 * size, "{written} bytes went through {size}");
        let image = first_image(&media.disk.crash_now());
        let mut media = SimMedia::from_image(SimConfig::default(), kind, &image);
        let (_, recovered) = reopen(&mut media, &options(Policy::Always)).expect("it opens");
        assert!(script.ends_with(&recovered) && !recovered.is_empty());
    }
}

/// What a file gives back is a hole, and a durable write to it allocates blocks.
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

/// One client that waits for each small write costs two bytes of log for each byte of record.
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
    let (_, recovered) = reopen(&mut media_of(&image), &options(Policy::Always)).expect("it opens");
    assert_eq!(recovered, expected);
}
