//! A volume that can't be read exactly is refused, with a reason. It is never opened with less
//! data.

use crate::common::{
    BATCH_SIZE, Client, Kind, SMALL, SUPER, SimMedia, WAL, formatted, formatted_as, options,
    reopen, script,
};
use slimio_device::{Device, LBA_SIZE};
use slimio_sim::{Image, Limits, SimConfig};
use slimio_storage::{
    Chunk, Error, FormatOptions, Policy, Record, RecoverOptions, RecoverSink, RootChoice,
    SnapshotKind, SuperblockCopy, Volume, VolumeId, inspect, layout,
};

/// Returns a volume with some durable records. Also returns the records themselves. The last
/// batches name the sequence of the newest superblock.
fn written() -> (Image, Vec<(u16, Vec<u8>)>) {
    let mut script = script(8);
    // These records come after the last update of the superblock, so their batches name the
    // sequence of the newest superblock.
    script.extend([(0, vec![8; 10]), (0, vec![9; 10])]);
    let mut media = formatted(SimConfig::default(), Kind::Files);
    let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("a new volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    for record in &script {
        assert!(client.append(record));
        client.settle();
    }
    let limits = Limits { exhaustive_max: 0, random_count: 0, torn: false };
    let image = media.disk.crash_now().power_images(&limits).swap_remove(0);
    (image, script)
}

fn media_of(image: &Image) -> SimMedia {
    SimMedia::from_image(SimConfig::default(), Kind::Files, image)
}

/// Flips a bit in a block.
fn rot(media: &SimMedia, space: usize, lba: u64, offset: usize) {
    let mut bytes = media.disk.peek(space, lba);
    bytes[offset] ^= 0x40;
    media.disk.poke(space, lba, &bytes);
}

fn copy_lba(copy: usize) -> u64 {
    copy as u64 * layout::SUPERBLOCK_COPY_LBAS
}

/// The copies that hold the newest superblock.
fn newest_copies(image: &Image) -> Vec<usize> {
    let (volume, _) =
        reopen(&mut media_of(image), &options(Policy::Always)).expect("the volume opens");
    let copies = volume.report.copies.iter().enumerate();
    copies.filter(|(_, copy)| *copy == "in force").map(|(index, _)| index).collect()
}

#[test]
fn every_set_of_damaged_superblock_copies() {
    let (image, script) = written();
    let newest = newest_copies(&image);
    assert_eq!(newest.len(), 2, "an update writes two copies");
    for damaged in 1..16_u32 {
        let media = &mut media_of(&image);
        let is_damaged = |copy: &usize| damaged >> copy & 1 == 1;
        for copy in (0..4).filter(is_damaged) {
            rot(media, SUPER, copy_lba(copy) + copy as u64 % 4, 100 + 1000 * copy);
        }
        let opened = reopen(media, &options(Policy::Always));
        if damaged == 15 {
            let Err(Error::SuperblocksDamaged { copies }) = opened else {
                panic!("{:?}", opened.err())
            };
            assert_eq!(copies.len(), 4);
        } else if newest.iter().all(is_damaged) {
            let Err(Error::Damaged { what, .. }) = opened else { panic!("{:?}", opened.err()) };
            assert!(what.contains("newest copies are lost"), "{what}");
        } else {
            let (volume, recovered) = opened.expect("a valid copy is enough");
            assert_eq!(recovered, script);
            drop(volume);
            // Recovery has repaired all four copies. Now two copies that were written by different
            // updates are damaged.
            rot(media, SUPER, copy_lba(0), 60);
            rot(media, SUPER, copy_lba(3), 60);
            let (volume, recovered) =
                reopen(media, &options(Policy::Always)).expect("the volume opens");
            assert_eq!(recovered, script);
            let count = volume.report.copies.iter().filter(|copy| copy.contains("wrong")).count();
            assert_eq!(count, 2, "{:?}", volume.report.copies);
        }
    }
}

/// One flush made the whole log durable, and nothing was appended after the flush. No batch in the
/// log says that the log is durable. But a mapped buffer says so, and it outlives a killed process.
/// So a damaged log must be refused.
#[test]
fn a_durable_log_that_nothing_came_behind_is_missed() {
    let limits = Limits { exhaustive_max: 0, random_count: 0, torn: false };
    // The buffers can't hold all of these records.
    let script: Vec<_> = (0..12).map(|byte| (0, vec![byte; BATCH_SIZE - 200])).collect();
    for policy in [Policy::EverySec, Policy::No] {
        let mut media = formatted(SimConfig::default(), Kind::Files);
        // This crash point is never reached. It is set because the disk watches mapped memory only
        // while a crash is planned.
        media.disk.crash_after(1_000_000);
        let (volume, _) = reopen(&mut media, &options(policy)).expect("a new volume opens");
        let mut client = Client::new(volume, media.disk.clone(), 0);
        client.begin(SnapshotKind::OnDemand).expect("no other snapshot is under way");
        client.settle();
        client.write(&script, 1);
        client.settle();
        assert_eq!(client.volume.log.durable(), client.volume.log.appended());
        let image = media.disk.crash_now().process_images(&limits).swap_remove(0);
        let (_, recovered) =
            reopen(&mut media_of(&image), &options(policy)).expect("the volume opens");
        assert_eq!(recovered, script);
        let rotten = || {
            let media = media_of(&image);
            rot(&media, WAL, 0, 100);
            media
        };
        let Err(Error::Damaged { what, .. }) = reopen(&mut rotten(), &options(policy)) else {
            panic!("{policy:?}: the damaged volume is not refused as damaged")
        };
        assert!(what.contains("durable"), "{what}");
        // An operator can still open the volume: with the part of the log before the damage, or
        // with the snapshot.
        let salvaging = RecoverOptions { salvage: true, ..options(policy) };
        let back = RecoverOptions { root: RootChoice::OnDemand, ..options(policy) };
        for (options, is_salvaged) in [(salvaging, true), (back, false)] {
            let (volume, recovered) = reopen(&mut rotten(), &options).expect("the volume opens");
            assert_eq!(volume.report.salvaged.is_empty(), !is_salvaged);
            assert!(recovered.is_empty());
        }
    }
}

/// The newest superblock gave the log an extent for its newest segment. If that superblock is lost,
/// the extent looks free, but the records in it reveal the loss.
#[test]
fn a_superblock_is_missed_that_only_free_extents_know_of() {
    lose_what_gives_the_log_its_newest_segment(Kind::Device);
}

/// Like the test above, but the log is a file, and the records are in a slot that looks free.
#[test]
fn a_superblock_is_missed_that_only_free_slots_know_of() {
    lose_what_gives_the_log_its_newest_segment(Kind::Files);
}

fn lose_what_gives_the_log_its_newest_segment(kind: Kind) {
    let mut media = formatted(SimConfig::default(), kind);
    let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("a new volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    // The last block of each segment stays empty, because the next record does not fit into it.
    let (large, small) = (BATCH_SIZE - 200, 100);
    let sizes = [large, large, small, large, large, small, large];
    for (number, size) in sizes.into_iter().enumerate() {
        if number == 3 || number == 6 {
            // The log gets the next segment only now. At record 3, this is the second segment,
            // whose extents already belonged to the log. At record 6, it is the third segment.
            let Volume { log, keeper, keeper_paths, .. } = &mut client.volume;
            let job = log.next_job(client.now).expect("the log asks for a segment to be prepared");
            let outcome = keeper.run(keeper_paths, job);
            log.job_done(outcome, client.now);
        }
        client.volume.log.append(0, &[&vec![7; size]]);
        commit(&mut client);
    }
    let limits = Limits { exhaustive_max: 0, random_count: 0, torn: false };
    let image = media.disk.crash_now().power_images(&limits).swap_remove(0);
    let media_of = || SimMedia::from_image(SimConfig::default(), kind, &image);
    let newest = inspect(&mut media_of()).expect("the volume can be inspected");
    let sequence = newest.superblock.expect("a valid copy is left").sequence;
    let mut media = media_of();
    let lbas = Device::geometry(&media.disk.open_path(SUPER)).lba_count;
    for (lba, copy) in [0, 4, lbas - 8, lbas - 4].into_iter().zip(&newest.copies) {
        if matches!(copy, SuperblockCopy::Valid(copy, _) if copy.sequence == sequence) {
            rot(&media, SUPER, lba, 100);
        }
    }
    let refused = reopen(&mut media, &options(Policy::Always))
        .expect_err("a volume that lacks records is refused");
    let Error::Damaged { what, .. } = refused else { panic!("{refused}") };
    assert!(what.contains("newest copies are lost"), "{what}");
}

/// Makes the appended records durable, without the keeper.
fn commit(client: &mut Client) {
    let log = &mut client.volume.log;
    while log.durable() < log.appended() {
        log.request_durable();
        if log.drive(&mut *client.volume.log_path, client.now) {
            client.volume.log_path.kick();
        }
        log.wait(&mut *client.volume.log_path, None);
        log.reap(&mut *client.volume.log_path, client.now);
    }
}

/// A record rots while the next one is in flight. No later batch in the log says that the rotten
/// record was durable, but the batch in the mapped buffers does.
#[test]
fn damage_that_only_the_mapped_buffers_know_of_is_refused() {
    let mut media = formatted(SimConfig::default(), Kind::Files);
    // This crash point is never reached. It is set because the disk watches mapped memory only
    // while a crash is planned.
    media.disk.crash_after(1_000_000);
    let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("a new volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    for byte in [1, 2] {
        assert!(client.append(&(0, vec![byte; 5000])));
        client.settle();
    }
    assert_eq!(client.acknowledged, 2);
    assert!(client.append(&(0, vec![3; 5000])));
    let log = &mut client.volume.log;
    if log.drive(&mut *client.volume.log_path, client.now) {
        client.volume.log_path.kick();
    }
    let limits = Limits { exhaustive_max: 1, random_count: 0, torn: false };
    let image = client.disk.crash_now().process_images(&limits).swap_remove(0);
    let mut media = media_of(&image);
    assert_eq!(media.disk.peek(WAL, 4)[..4], [0; 4], "the third record is not on the disk");
    rot(&media, WAL, 3, 100);
    let refused = reopen(&mut media, &options(Policy::Always))
        .expect_err("a volume that lacks record 2 is refused");
    let Error::Damaged { what, .. } = refused else { panic!("{refused}") };
    assert!(what.contains("other batches say"), "{what}");
}

#[test]
fn an_interrupted_update_leaves_the_superblock_in_two_copies() {
    let (image, script) = written();
    // One copy is damaged as if an interrupted update had torn it. Then one more copy rots.
    for torn in 0..4 {
        for rotten in (0..4).filter(|&copy| copy != torn) {
            let media = &mut media_of(&image);
            let newest = newest_copies(&image);
            if newest.contains(&torn) {
                continue;
            }
            rot(media, SUPER, copy_lba(torn), 2000);
            rot(media, SUPER, copy_lba(rotten), 3000);
            let (_, recovered) = reopen(media, &options(Policy::Always)).expect("the volume opens");
            assert_eq!(recovered, script);
        }
    }
}

#[test]
fn another_format_version_is_refused() {
    let (image, script) = written();
    let media = &mut media_of(&image);
    for copy in 0..4 {
        let (recovered_or, expected) = (reopen(media, &options(Policy::Always)), &script);
        assert_eq!(&recovered_or.expect("a copy of this version is left").1, expected);
        let mut bytes = media.disk.peek(SUPER, copy_lba(copy));
        bytes[8] = 9;
        media.disk.poke(SUPER, copy_lba(copy), &bytes);
        if copy == 0 {
            // The other copies have this program's version, so this copy is treated as damaged and
            // is written again.
            continue;
        }
        for copy in 0..4 {
            let mut bytes = media.disk.peek(SUPER, copy_lba(copy));
            bytes[8] = 9;
            media.disk.poke(SUPER, copy_lba(copy), &bytes);
        }
        break;
    }
    let opened = reopen(media, &options(Policy::Always));
    assert!(
        matches!(opened, Err(Error::OtherVersion { found: 9, supported: &[2, 5, 6] })),
        "{:?}",
        opened.err()
    );
}

#[test]
fn what_a_superblock_does_not_know_is_refused() {
    let (image, _) = written();
    let media = &mut media_of(&image);
    for copy in 0..4 {
        // This byte is in a field that must be zero.
        rot(media, SUPER, copy_lba(copy), 256);
    }
    let opened = reopen(media, &options(Policy::Always));
    assert!(matches!(opened, Err(Error::SuperblocksDamaged { .. })), "{:?}", opened.err());
}

#[test]
fn a_truncated_area_is_refused() {
    let (image, _) = written();
    for (space, lbas, name) in [(SUPER, 12, "super"), (WAL, SMALL.segment_lbas, "wal")] {
        let media = &mut media_of(&image);
        media.disk.truncate(space, lbas);
        match reopen(media, &options(Policy::Always)) {
            Err(Error::Truncated { area, found_lbas, expected_lbas }) => {
                assert_eq!((area, found_lbas), (name, lbas));
                assert!(expected_lbas > lbas);
            }
            other => panic!("{:?}", other.err()),
        }
    }
}

#[test]
fn the_superblock_of_another_volume_is_refused() {
    let (image, script) = written();
    let media = &mut media_of(&image);
    let layout = FormatOptions { volume_id: VolumeId(SMALL.volume_id.0 + 1), ..SMALL };
    let other = formatted_as(SimConfig::default(), Kind::Files, &layout);
    let lbas = layout::SUPERBLOCK_COPIES as u64 * layout::SUPERBLOCK_COPY_LBAS;
    let ours: Vec<_> = (0..lbas).map(|lba| media.disk.peek(SUPER, lba)).collect();
    for lba in 0..lbas {
        media.disk.poke(SUPER, lba, &other.disk.peek(SUPER, lba));
    }
    let refused = reopen(media, &options(Policy::Always))
        .expect_err("another volume's superblock is refused");
    assert!(refused.to_string().contains("another volume's"), "{refused}");
    for (lba, bytes) in (0..).zip(&ours) {
        media.disk.poke(SUPER, lba, bytes);
    }
    let (_, recovered) =
        reopen(media, &options(Policy::Always)).expect("the restored superblock opens the volume");
    assert_eq!(recovered, script);
}

#[test]
fn what_is_no_volume_is_called_so() {
    for byte in [0, 0x77] {
        let mut media = SimMedia::new(SimConfig::default(), Kind::Files);
        for _ in 0..5 {
            media.disk.add_space(16);
        }
        for lba in 0..16 {
            media.disk.poke(SUPER, lba, &[byte; LBA_SIZE]);
        }
        let opened = reopen(&mut media, &options(Policy::Always));
        assert!(matches!(opened, Err(Error::NoVolume)), "{:?}", opened.err());
    }
}

/// Blocks of the log that hold data.
fn log_lbas(media: &SimMedia) -> Vec<u64> {
    let wal_lbas = SMALL.segment_lbas * 8;
    let in_use = |lba: &u64| media.disk.peek(WAL, *lba)[..4] != [0x5A; 4];
    let lbas = (0..wal_lbas).filter(in_use);
    lbas.filter(|&lba| media.disk.peek(WAL, lba).iter().any(|&byte| byte != 0)).collect()
}

#[test]
fn damage_in_the_middle_of_the_log_is_refused() {
    let (image, script) = written();
    let lbas = log_lbas(&media_of(&image));
    assert!(lbas.len() > 12, "{lbas:?}");
    let (mut refused, mut shorter) = (0, 0);
    for &lba in &lbas {
        for offset in [3, 20, 50, 76, 90, 2000, 4095] {
            let media = &mut media_of(&image);
            rot(media, WAL, lba, offset);
            match reopen(media, &options(Policy::Always)) {
                Err(Error::Damaged { lsn, .. }) => {
                    refused += 1;
                    let mut salvage = options(Policy::Always);
                    salvage.salvage = true;
                    let (volume, recovered) =
                        reopen(media, &salvage).expect("salvage opens the volume");
                    assert!(script.starts_with(&recovered) && recovered.len() < script.len());
                    assert_eq!(volume.report.salvaged.len(), 1);
                    assert_eq!(volume.report.end, lsn);
                }
                Err(other) => panic!("block {lba}, byte {offset}: {other}"),
                // Only the last batch may be lost without notice, because no later batch says that
                // it was durable.
                Ok((_, recovered)) => {
                    assert!(script.starts_with(&recovered));
                    assert!(recovered.len() >= script.len() - 1, "block {lba}, byte {offset}");
                    shorter += 1;
                }
            }
        }
    }
    assert!(
        refused > 60 && shorter <= 3 * 7,
        "{refused} volumes were refused, {shorter} opened without the last batch"
    );
}

#[test]
fn a_block_that_can_not_be_read_is_refused() {
    let (image, _) = written();
    for lba in log_lbas(&media_of(&image)) {
        let media = &mut media_of(&image);
        media.disk.faults(|faults| faults.unreadable.extend([(WAL, lba)]));
        let opened = reopen(media, &options(Policy::Always));
        assert!(matches!(opened, Err(Error::Device { .. })), "{:?}", opened.err());
        // Without the fault, the volume opens.
        media.disk.faults(|faults| faults.unreadable.clear());
        reopen(media, &options(Policy::Always)).expect("the volume opens");
    }
}

/// If a device loses or misdirects a write, recovery notices the fault as soon as a later write is
/// durable.
#[test]
fn lost_and_misdirected_writes_are_found_out() {
    for is_lost in [true, false] {
        let script = script(6);
        let mut media = formatted(SimConfig::default(), Kind::Files);
        let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
        let mut client = Client::new(volume, media.disk.clone(), 0);
        media.disk.faults(|faults| {
            if is_lost {
                faults.lost.insert((WAL, 1));
            } else {
                faults.misdirected.insert((WAL, 1), 40);
            }
        });
        for record in &script {
            assert!(client.append(record));
            client.settle();
        }
        assert_eq!(client.acknowledged, script.len());
        drop(client);
        let opened = reopen(&mut media, &options(Policy::Always));
        assert!(matches!(opened, Err(Error::Damaged { .. })), "{:?}", opened.err());
    }
}

/// A sink that accepts this many records and refuses the next one.
struct Refusing(usize);

impl RecoverSink for Refusing {
    fn chunk(&mut self, chunk: Chunk) -> Result<(), Error> {
        Err(Error::ChunkRefused {
            index: Some(chunk.index()),
            why: "the payload is not understood".into(),
        })
    }

    fn record(&mut self, _: Record<'_>) -> Result<(), String> {
        self.0 = self.0.checked_sub(1).ok_or("the payload is not understood")?;
        Ok(())
    }
}

#[test]
fn a_payload_that_is_refused_names_its_lsn() {
    let (image, script) = written();
    let media = &mut media_of(&image);
    let opened = slimio_storage::recover(media, &options(Policy::Always), &mut Refusing(2));
    let Err(Error::Refused { lsn, why }) = opened else { panic!("{:?}", opened.err()) };
    assert_eq!(why, "the payload is not understood");
    assert!(lsn.0 as usize > script[..3].iter().map(|(_, payload)| payload.len()).sum());
    // The refused start has changed nothing on the volume.
    assert_eq!(reopen(media, &options(Policy::Always)).expect("the volume opens").1, script);
}
