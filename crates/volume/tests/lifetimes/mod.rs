//! Writes of every lifetime, for tests of volumes on devices. A lifetime is a kind of data that is
//! deleted together: the superblock, the log, WAL-snapshots, or on-demand snapshots.

use slimio_storage::{
    FormatOptions, SlotWriter, SnapshotKind, Storage, Volume, VolumeId, WriterOptions, format,
    verify,
};

use crate::common::{reopen, settle};

pub(crate) fn snapshot(volume: &mut Volume, kind: SnapshotKind, payload: &[u8]) {
    let plan = volume.log.begin_snapshot(kind, 1).expect("no other snapshot is under way");
    let device = volume.slot_paths.get(plan.slot);
    let mut writer = SlotWriter::begin(device, plan, WriterOptions::default())
        .expect("the snapshot can be begun");
    writer.chunk(device, payload, 1).expect("the chunk can be written");
    let summary = writer.finish(device).expect("the snapshot can be finished");
    volume.log.adopt(summary);
    settle(volume);
    assert_eq!(volume.log.snapshots().of_kind(kind), Some(&summary));
}

/// Makes a volume, writes records and both kinds of snapshot, and checks that recovery returns the
/// data.
pub(crate) fn use_all_lifetimes(storage: &mut Storage) {
    let layout = FormatOptions {
        volume_id: VolumeId(77),
        segment_lbas: 64,
        batch_lbas_max: 16,
        wal_slots_max: 8,
        replace: true,
    };
    format(&mut *storage.media, &layout).expect("the volume can be made");
    let (mut volume, recovered) = reopen(storage).expect("the volume can be recovered");
    assert!(recovered.is_empty());
    volume.log.append(0, &[b"before"]);
    settle(&mut volume);
    snapshot(&mut volume, SnapshotKind::OnDemand, &vec![1; 600 << 10]);
    snapshot(&mut volume, SnapshotKind::Wal, &vec![2; 300 << 10]);
    for index in 0..20_u8 {
        volume.log.append(0, &[&[index; 5000]]);
        settle(&mut volume);
    }
    drop(volume);
    verify(&mut *storage.media, &mut |_| {}).expect("the volume is whole");
    let (volume, recovered) = reopen(storage).expect("the volume can be recovered");
    drop(volume);
    let mut expected = vec![vec![2; 300 << 10]];
    expected.extend((0..20).map(|index| vec![index; 5000]));
    assert!(recovered == expected, "recovery returned other data than the durable data");
}
