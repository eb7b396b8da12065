//! Recovery and `verify` refuse a damaged snapshot, and say what is wrong with it.

use crate::common::snapshots::{Action, SMALL_WRITES, encode_records};
use crate::common::{
    Client, Kind, SUPER, Script, SimMedia, WAL, formatted, options, reopen, slot_space,
    small_script,
};
use slimio_device::{Device, LBA_SIZE};
use slimio_sim::{Image, Limits, SimConfig};
use slimio_storage::{
    Error, Policy, RecoverOptions, RootChoice, SlotName, SlotSummary, SlotWriter, SnapshotKind,
    Superblock, check_slot, inspect, layout, verify,
};

/// Makes a volume with 12 records. The on-demand snapshot is taken after 4 of them, and the root
/// after 9. Returns the volume's image, its snapshots (the root first), and the records.
fn written() -> (Image, [SlotSummary; 2], Script) {
    let script = small_script(12);
    let mut media = formatted(SimConfig::default(), Kind::Files);
    let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    client.actions.extend([
        (4, Action::Snapshot(SnapshotKind::OnDemand)),
        (9, Action::Snapshot(SnapshotKind::Wal)),
    ]);
    client.is_waiting = true;
    client.write(&script, 1);
    client.settle();
    let snapshots = *client.volume.log.snapshots();
    let root = *snapshots.root().expect("the volume has a root");
    let on_demand = *snapshots.of_kind(SnapshotKind::OnDemand).expect("the snapshot was adopted");
    assert_eq!((root.entry_count, on_demand.entry_count), (9, 4));
    let limits = Limits { exhaustive_max: 0, random_count: 0, torn: false };
    let image = media.disk.crash_now().power_images(&limits).swap_remove(0);
    (image, [root, on_demand], script)
}

fn media_of(image: &Image) -> SimMedia {
    SimMedia::from_image(SimConfig::default(), Kind::Files, image)
}

fn rot(media: &SimMedia, slot: SlotName, lba: u64, offset: usize) {
    let mut bytes = media.disk.peek(slot_space(slot), lba);
    bytes[offset] ^= 0x40;
    media.disk.poke(slot_space(slot), lba, &bytes);
}

fn from_on_demand() -> RecoverOptions {
    RecoverOptions { root: RootChoice::OnDemand, ..options(Policy::Always) }
}

fn is_damaged<T>(result: &Result<T, Error>, held: &SlotSummary) -> bool {
    matches!(result, Err(Error::SnapshotDamaged { slot, .. }) if *slot == held.slot)
}

#[test]
fn every_block_of_a_snapshot_is_checked() {
    let (image, [root, on_demand], script) = written();
    let mut count = 0;
    for held in [root, on_demand] {
        for lba in 0..held.len_lbas {
            // These bytes are in the magic, numbers, sizes, checksum, payload and padding.
            for offset in [1, 9, 17, 25, 33, 38, 42, 50, 70, 85, 94, 700, 2100, LBA_SIZE - 1] {
                let media = &mut media_of(&image);
                rot(media, held.slot, lba, offset);
                let context = format!("{held:?}, block {lba}, byte {offset}");
                assert!(is_damaged(&verify(media, &mut |_| {}), &held), "{context}");
                let inspection = inspect(media).expect("the volume can be inspected");
                let seen = inspection.slots.iter().find(|(seen, _)| *seen == held);
                assert!(
                    is_damaged(&seen.expect("the inspection shows the snapshot").1, &held),
                    "{context}"
                );
                if held == root {
                    let opened = reopen(media, &options(Policy::Always));
                    assert!(is_damaged(&opened, &held), "{context}: {:?}", opened.err());
                    // The volume can still be opened from the on-demand snapshot.
                    let (_, recovered) =
                        reopen(media, &from_on_demand()).expect("the volume opens");
                    assert_eq!(recovered, script[..4], "{context}");
                } else {
                    let opened = reopen(media, &from_on_demand());
                    assert!(is_damaged(&opened, &held), "{context}: {:?}", opened.err());
                    // Recovery from the root does not need the on-demand snapshot.
                    let (_, recovered) =
                        reopen(media, &options(Policy::Always)).expect("the volume opens");
                    assert_eq!(recovered, script, "{context}");
                }
                count += 1;
            }
        }
    }
    assert!(count > 150, "only {count} bytes were tried");
}

#[test]
fn what_is_wrong_is_a_sentence_with_a_place() {
    let (image, [root, _], _) = written();
    let index_lba = root.len_lbas - 2;
    for (lba, offset, what) in [
        (
            0,
            20,
            "the snapshot in snapshot-b is damaged: its header: its checksum is wrong, or it is \
                 another snapshot's",
        ),
        (
            1,
            100,
            "the snapshot in snapshot-b is damaged: chunk 0 at block 1: its checksum is wrong",
        ),
        (
            2,
            27,
            "the snapshot in snapshot-b is damaged: chunk 1 at block 2: the blocks hold other data",
        ),
        (index_lba, 0, "the snapshot in snapshot-b is damaged: its index: its checksum is wrong"),
        (
            root.len_lbas - 1,
            2,
            "the snapshot in snapshot-b is damaged: its trailer: the trailer is missing",
        ),
    ] {
        let media = &mut media_of(&image);
        rot(media, root.slot, lba, offset);
        let refused = reopen(media, &options(Policy::Always)).expect_err("the snapshot is damaged");
        assert_eq!(refused.to_string(), what);
    }
}

#[test]
fn salvage_leaves_out_the_chunks_that_are_damaged() {
    let (image, [root, _], script) = written();
    let salvage = RecoverOptions { salvage: true, ..options(Policy::Always) };
    for unreadable in [false, true] {
        let media = &mut media_of(&image);
        for lba in [2, 4] {
            if unreadable {
                media
                    .disk
                    .faults(|faults| faults.unreadable.extend([(slot_space(root.slot), lba)]));
            } else {
                rot(media, root.slot, lba, 300);
            }
        }
        let (volume, recovered) = reopen(media, &salvage).expect("the volume opens");
        assert_eq!(volume.report.salvaged.len(), 2, "{:?}", volume.report.salvaged);
        // Each chunk has two records. The chunks in blocks 2 and 4 are gone.
        let kept = [&script[..2], &script[4..6], &script[8..]].concat();
        assert_eq!(recovered, kept);
        assert!(volume.report.to_string().contains("SALVAGED"), "{}", volume.report);
    }
    // Without the index, recovery can't find the chunks.
    let media = &mut media_of(&image);
    rot(media, root.slot, root.len_lbas - 2, 0);
    assert!(is_damaged(&reopen(media, &salvage), &root));
}

#[test]
fn a_block_that_can_not_be_read_is_refused() {
    let (image, [root, on_demand], script) = written();
    for held in [root, on_demand] {
        for lba in 0..held.len_lbas {
            let media = &mut media_of(&image);
            media.disk.faults(|faults| faults.unreadable.extend([(slot_space(held.slot), lba)]));
            assert!(matches!(verify(media, &mut |_| {}), Err(Error::Device { .. })));
            let opened = reopen(media, &options(Policy::Always));
            assert_eq!(opened.is_ok(), held == on_demand, "{:?}", opened.err());
            media.disk.faults(|faults| faults.unreadable.clear());
            let (_, recovered) = reopen(media, &options(Policy::Always)).expect("the volume opens");
            assert_eq!(recovered, script);
        }
    }
}

#[test]
fn a_volume_in_use_is_checked_piece_by_piece() {
    let (image, [root, on_demand], _) = written();
    let media = &mut media_of(&image);
    let (volume, recovered) = reopen(media, &options(Policy::Always)).expect("the volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    client.history = recovered;
    let reserve =
        SlotName::ALL.into_iter().find(|&slot| slot != root.slot && slot != on_demand.slot);
    assert!(client.volume.log.check(reserve.expect("one of three slots is a reserve")).is_none());
    for held in [root, on_demand] {
        let path = &mut media.disk.open_path(slot_space(held.slot));
        let mut check = client.volume.log.check(held.slot).expect("the slot holds a snapshot");
        assert_eq!(*check.summary(), held);
        let mut sizes = Vec::new();
        while let Some(size) = check.step(path).expect("the snapshot is whole") {
            sizes.push(size);
            // The log goes on between two steps of the check.
            client.write(&small_script(1), 1);
        }
        assert_eq!(sizes.iter().sum::<u64>(), held.len_lbas * LBA_SIZE as u64);
        assert_eq!(
            sizes.len() as u64,
            1 + held.chunk_count,
            "after the first step, each step checks one chunk"
        );
        // Damage that happens after the first step of the check is found as well.
        let mut check = client.volume.log.check(held.slot).expect("the slot holds a snapshot");
        check.step(path).expect("header, index and trailer are whole");
        rot(media, held.slot, held.len_lbas - 3, 200);
        let ended =
            std::iter::repeat_with(|| check.step(path)).find(|step| !matches!(step, Ok(Some(_))));
        assert!(is_damaged(&ended.expect("the check ends"), &held));
    }
    // A new snapshot replaces the damaged root, whose slot is then empty.
    client.begin(SnapshotKind::Wal).expect("a snapshot can begin");
    client.settle();
    assert_eq!(client.volume.log.snapshots().get(root.slot), None);
    let history = client.history.clone();
    drop(client);
    let (_, recovered) = reopen(media, &options(Policy::Always)).expect("the volume opens again");
    assert_eq!(recovered, history);
}

#[test]
fn a_slot_that_was_cut_off_is_refused() {
    let (image, [root, _], _) = written();
    let media = &mut media_of(&image);
    media.disk.truncate(slot_space(root.slot), root.len_lbas - 1);
    match reopen(media, &options(Policy::Always)) {
        Err(Error::Truncated { area: "snapshot-b", found_lbas, expected_lbas }) => {
            assert_eq!((found_lbas, expected_lbas), (root.len_lbas - 1, root.len_lbas));
        }
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn a_slot_that_is_missing_is_damage_of_what_it_held_and_only_opening_makes_it_again() {
    let (image, [root, on_demand], script) = written();
    for gone in SlotName::ALL {
        let held = [root, on_demand].into_iter().find(|held| held.slot == gone);
        let name = slimio_storage::Area::Snapshot(gone).name();
        let what = held.map(|_| format!("the snapshot in {name} is damaged: its file is missing"));
        let media = &mut media_of(&image);
        media.remove(gone);
        let inspection = inspect(media).expect("the volume can be inspected");
        assert_eq!(inspection.missing_slots, [gone]);
        for (held, checked) in &inspection.slots {
            assert_eq!(checked.is_err(), held.slot == gone, "{held:?}");
        }
        let verified = verify(media, &mut |_| {});
        assert_eq!(verified.err().map(|error| error.to_string()), what);
        assert_eq!(media.missing(), [gone], "`inspect` and `verify` write nothing");
        let opened = reopen(media, &options(Policy::Always));
        if gone == root.slot {
            assert_eq!(opened.err().map(|error| error.to_string()), what);
            assert_eq!(media.missing(), [gone], "a refused volume is unchanged");
            let (_, recovered) =
                reopen(media, &from_on_demand()).expect("the on-demand snapshot is whole");
            assert_eq!(recovered, script[..4]);
        } else {
            let (volume, recovered) = opened.expect("recovery does not need the missing slot");
            assert_eq!(recovered, script);
            assert_eq!(volume.report.missing_slots, [(gone, held)]);
            let report = volume.report.to_string();
            assert!(report.contains(&format!("the file {name} is missing")), "{report}");
        }
        assert!(media.missing().is_empty(), "an open volume has all slots");
    }
}

#[test]
fn a_snapshot_of_another_slot_or_volume_is_refused() {
    let (image, [root, on_demand], _) = written();
    let media = &mut media_of(&image);
    let mut path = media.disk.open_path(slot_space(on_demand.slot));
    path.grow(root.len_lbas).expect("the slot can grow");
    for lba in 0..root.len_lbas {
        let bytes = media.disk.peek(slot_space(root.slot), lba);
        media.disk.poke(slot_space(on_demand.slot), lba, &bytes);
    }
    // The root's bytes were copied to another slot. The check of that slot expects the root, with
    // only the slot's name changed, but must still refuse the bytes.
    let moved = SlotSummary { slot: on_demand.slot, ..root };
    let volume_id = volume_id(media);
    assert!(is_damaged(&check_slot(&mut path, volume_id, moved), &moved));
    let mut path = media.disk.open_path(slot_space(root.slot));
    check_slot(&mut path, volume_id, root).expect("the snapshot is whole");
    let other = slimio_storage::VolumeId(volume_id.0 ^ 1);
    assert!(is_damaged(&check_slot(&mut path, other, root), &root));
}

fn volume_id(media: &mut SimMedia) -> slimio_storage::VolumeId {
    let found = inspect(media).expect("the volume can be inspected").superblock;
    found.map_or_else(Default::default, |found: Superblock| found.volume_id)
}

/// A snapshot overwrites an older one of the same shape in the same slot, but the device loses the
/// new snapshot's writes. The slot still holds the whole old snapshot. Recovery must not mistake it
/// for the new one.
#[test]
fn what_a_slot_held_before_is_not_taken_for_new() {
    let mut media = formatted(SimConfig::default(), Kind::Files);
    let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    let take = |client: &mut Client, byte: u8| {
        // Each snapshot has the same size but other contents, as if the only key had been
        // overwritten.
        client.history = vec![(0, vec![byte; 100])];
        client.begin(SnapshotKind::Wal).expect("a snapshot can begin");
        client.settle();
        client.volume.log.snapshots().root().expect("the snapshot was adopted").slot
    };
    assert_eq!(take(&mut client, 1), SlotName::A);
    assert_eq!(take(&mut client, 2), SlotName::B);
    let space = slot_space(SlotName::A);
    client.disk.faults(|faults| faults.lost.extend((0..8).map(|lba| (space, lba))));
    assert_eq!(take(&mut client, 3), SlotName::A);
    drop(client);
    let opened = reopen(&mut media, &options(Policy::Always));
    let Err(Error::SnapshotDamaged { slot: SlotName::A, what }) = opened else {
        panic!("{:?}", opened.map(|(_, recovered)| recovered))
    };
    assert!(what.contains("another snapshot's"), "{what}");
}

/// If any write of a snapshot is lost or misdirected, a check of the slot finds the damage.
#[test]
fn lost_and_misdirected_writes_are_found_by_a_check() {
    let records = small_script(9);
    let (mut found, mut untouched) = (0, 0);
    for lba in 0..12 {
        for is_lost in [true, false] {
            let mut media = formatted(SimConfig::default(), Kind::Files);
            let (mut volume, _) =
                reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
            let plan =
                volume.log.begin_snapshot(SnapshotKind::Wal, 0).expect("a snapshot can begin");
            let space = slot_space(plan.slot);
            media.disk.faults(|faults| {
                if is_lost {
                    faults.lost.insert((space, lba));
                } else {
                    faults.misdirected.insert((space, lba), 40);
                }
            });
            let device = &mut media.disk.open_path(space);
            device.grow(64).expect("the slot can grow");
            let mut writer =
                SlotWriter::begin(device, plan, SMALL_WRITES).expect("the slot can be written");
            for record in &records {
                let payload = encode_records(std::slice::from_ref(record));
                writer.chunk(device, &payload, 1).expect("the chunk is written");
            }
            let summary = writer.finish(device).expect("the snapshot is finished");
            let volume_id = volume_id(&mut media);
            match check_slot(device, volume_id, summary) {
                Err(Error::SnapshotDamaged { .. }) => found += 1,
                Err(other) => panic!("{other}"),
                // No write starts at this block.
                Ok(()) => untouched += 1,
            }
        }
    }
    assert_eq!((found, untouched), (12, 12), "each write is two blocks long");
}

/// Both newest copies of the superblock are lost, and no batch was logged after they were written.
/// Only the header of the next snapshot reveals the loss.
#[test]
fn a_superblock_that_fell_back_is_recognised_by_a_slot() {
    let mut media = formatted(SimConfig::default(), Kind::Files);
    let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    client.history = small_script(3);
    client.volume.log.end();
    client.settle();
    for kind in [SnapshotKind::OnDemand, SnapshotKind::Wal] {
        client.begin(kind).expect("a snapshot can begin");
        client.settle();
    }
    // The third snapshot is begun, but not finished.
    client.begin(SnapshotKind::OnDemand).expect("a snapshot can begin");
    for _ in 0..3 {
        client.turn(true);
    }
    let sequence = client.volume.keeper.superblock().sequence;
    drop(client);
    let newest = if sequence.is_multiple_of(2) { [0, 2] } else { [1, 3] };
    for copy in newest {
        let lba = copy * layout::SUPERBLOCK_COPY_LBAS;
        let mut bytes = media.disk.peek(SUPER, lba);
        bytes[100] ^= 1;
        media.disk.poke(SUPER, lba, &bytes);
    }
    let refused =
        reopen(&mut media, &options(Policy::Always)).expect_err("the newest superblock is lost");
    assert!(refused.to_string().contains("newest copies are lost"), "{refused}");
}

/// The log is damaged before the root's LSN. A salvage ends the log at the damage. The log goes on
/// from that point, at LSNs below the root's LSN. Recovery must bring back the records at these
/// LSNs.
#[test]
fn what_is_written_behind_a_log_salvaged_before_its_root_counts() {
    let mut media = formatted(SimConfig::default(), Kind::Files);
    let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("a new volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    let script = small_script(5);
    for record in &script[..4] {
        assert!(client.append(record));
        client.settle();
    }
    client.begin(SnapshotKind::Wal).expect("a snapshot can begin");
    client.settle();
    drop(client);
    media.disk.poke(WAL, 1, &[0x33; LBA_SIZE]);
    let salvage = RecoverOptions { salvage: true, ..options(Policy::Always) };
    let (volume, recovered) = reopen(&mut media, &salvage).expect("the volume opens");
    assert_eq!(recovered, script[..4]);
    assert!(volume.report.end < volume.report.start, "{:?}", volume.report);
    let mut client = Client::new(volume, media.disk.clone(), 4);
    assert!(client.append(&script[4]));
    client.settle();
    drop(client);
    let (_, recovered) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    assert_eq!(recovered, script);
}
