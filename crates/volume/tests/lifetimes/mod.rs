//! Writes of every lifetime, for tests of volumes on devices.

use slimio_storage::{
    FormatOptions, SlotWriter, SnapshotKind, Storage, Volume, VolumeId, WriterOptions, format,
    verify,
};

use crate::common::{reopen, settle};

pub(crate) fn snapshot(volume: &mut Volume, kind: SnapshotKind, payload: &[u8]) {
    let plan = volume.log.begin_snapshot(kind, 1).expect("nothing else is under way");
    let device = volume.slot_paths.get(plan.slot);
    let mut writer = SlotWriter::begin(device, plan, WriterOptions::default()).expect("it begins");
    writer.chunk(device, payload, 1).expect("it is written");
    let summary = writer.finish(device).expect("it is finished");
    volume.log.adopt(summary);
    settle(volume);
    assert_eq!(volume.log.snapshots().of_kind(kind), Some(&summary));
}

/// Makes a volume, writes to log and both kinds of snapshot, and reads it all back.
pub(crate) fn use_all_lifetimes(storage: &mut Storage) {
    let layout = FormatOptions {
        volume_id: VolumeId(77),
        segment_lbas: 64,
        batch_lbas_max: 16,
        wal_slots_max: 8,
        replace: true,
    };
    format(&mut *storage.media, &layout).expect("there is room");
    let (mut volume, recovered) = reopen(storage).expect("it opens");
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
    verify(&mut *storage.media, &mut |_| {}).expect("it is whole");
    let (volume, recovered) = reopen(storage).expect("it opens");
    drop(volume);
    let mut expected = vec![vec![2; 300 << 10]];
    expected.extend((0..20).map(|index| vec![index; 5000]));
    assert!(recovered == expected, "what was durable comes back");
}
