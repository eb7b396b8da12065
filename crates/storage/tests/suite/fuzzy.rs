//! Fuzzy snapshots: which part of the log they need, and what happens if that part is missing. (A
//! fuzzy snapshot lacks entries that were overwritten while it was taken. The log has them.)

use crate::common::{Client, Kind, SMALL, SimMedia, WAL, formatted, options, reopen, small_script};
use slimio_device::LBA_SIZE;
use slimio_sim::SimConfig;
use slimio_storage::{Error, Policy, RecoverOptions, SlotSummary, SnapshotEvent, SnapshotKind};

/// A volume whose WAL-snapshot was begun after the second of six records and finished after the
/// fourth.
fn with_fuzzy_root(policy: Policy) -> (Client, SimMedia) {
    let mut media = formatted(SimConfig::default(), Kind::Files);
    let (volume, _) = reopen(&mut media, &options(policy)).expect("a new volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    let script = small_script(6);
    write(&mut client, &script[..2]);
    client.begin(SnapshotKind::Wal).expect("a snapshot can begin");
    let mut taking = client.taking.take().expect("a snapshot has begun");
    write(&mut client, &script[2..4]);
    let summary = taking.finish().expect("the snapshot can be written");
    client.volume.log.adopt(summary);
    client.settle();
    adopt(&mut client);
    write(&mut client, &script[4..]);
    (client, media)
}

fn write(client: &mut Client, records: &[(u16, Vec<u8>)]) {
    for record in records {
        assert!(client.append(record));
        client.settle();
    }
}

/// Runs turns of the loop until the log reports the outcome of the finished snapshot.
fn adopt(client: &mut Client) -> SnapshotEvent {
    for _ in 0..100 {
        client.turn(true);
        if let Some(event) = client.volume.log.take_snapshot_event() {
            return event;
        }
    }
    panic!("the log reported no outcome within 100 turns");
}

fn root(client: &Client) -> SlotSummary {
    *client.volume.log.snapshots().root().expect("the snapshot was adopted")
}

#[test]
fn it_needs_the_log_up_to_where_it_was_finished() {
    let (client, mut media) = with_fuzzy_root(Policy::Always);
    let held = root(&client);
    assert!(held.is_fuzzy() && held.consistent_lsn < client.volume.log.appended(), "{held:?}");
    assert_eq!(client.volume.keeper.superblock().snapshots.root(), Some(&held));
    drop(client);
    let (volume, recovered) =
        reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    assert_eq!(recovered, small_script(6));
    assert_eq!(
        volume.log.snapshots().root(),
        Some(&held),
        "the log knows the root of the superblock"
    );
}

/// Under the policy `no`, only a snapshot makes the log flush. Without that flush, the snapshot
/// would never be adopted.
#[test]
fn it_is_adopted_when_all_that_it_needs_is_durable() {
    let mut media = formatted(SimConfig::default(), Kind::Files);
    let (volume, _) = reopen(&mut media, &options(Policy::No)).expect("a new volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    let script = small_script(6);
    write(&mut client, &script[..2]);
    client.begin(SnapshotKind::Wal).expect("a snapshot can begin");
    let mut taking = client.taking.take().expect("a snapshot has begun");
    assert!(script[2..].iter().all(|record| client.append(record)));
    let (begun, appended) = (client.volume.log.durable(), client.volume.log.appended());
    assert!(begun < appended, "records after the snapshot's LSN are not durable yet");
    let summary = taking.finish().expect("the snapshot can be written");
    client.volume.log.adopt(summary);
    let event = adopt(&mut client);
    let SnapshotEvent::Adopted(held) = event else { panic!("{event:?}") };
    assert_eq!((held.lsn, held.consistent_lsn), (begun, appended));
    assert!(client.volume.log.durable() >= appended, "the log up to the snapshot's end is durable");
}

#[test]
fn a_log_that_ends_before_is_damaged() {
    let (client, mut media) = with_fuzzy_root(Policy::Always);
    let held = root(&client);
    let start = client.volume.keeper.superblock().start;
    drop(client);
    // The rest of the log is erased, so no later batch shows that batches are missing.
    for lba in start.lba..SMALL.segment_lbas {
        media.disk.poke(WAL, lba, &[0; LBA_SIZE]);
    }
    let refused = reopen(&mut media, &options(Policy::Always))
        .expect_err("the log lacks batches that the root needs");
    let Error::Damaged { what, .. } = &refused else { panic!("{refused}") };
    let needed = format!("it was known to be whole up to LSN {}", held.consistent_lsn);
    assert!(what.contains(&needed), "{what}");

    let salvage = RecoverOptions { salvage: true, ..options(Policy::Always) };
    let (volume, recovered) = reopen(&mut media, &salvage).expect("the volume opens");
    assert_eq!(recovered, small_script(2), "the records in the snapshot come back");
    let mut client = Client::new(volume, media.disk.clone(), recovered.len());
    assert!(!root(&client).is_fuzzy(), "the root no longer depends on the log");
    write(&mut client, &small_script(1));
    drop(client);
    let (_, recovered) =
        reopen(&mut media, &options(Policy::Always)).expect("the volume is whole again");
    assert_eq!(recovered.len(), 3);
}

/// A fuzzy snapshot lacks entries that are overwritten while it is taken, and relies on the log for
/// them. If the log ends before the snapshot is finished, some of these entries may be in neither
/// the snapshot nor the log, so the snapshot is useless.
#[test]
fn a_log_that_ends_makes_it_useless() {
    let mut media = formatted(SimConfig::default(), Kind::Files);
    let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("a new volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    let script = small_script(2);
    write(&mut client, &script);
    client.begin(SnapshotKind::Wal).expect("a snapshot can begin");
    let mut taking = client.taking.take().expect("a snapshot has begun");
    client.volume.log.end();
    client.settle();
    let summary = taking.finish().expect("the snapshot can be written");
    client.volume.log.adopt(summary);
    assert!(matches!(adopt(&mut client), SnapshotEvent::Obsolete(_)));
    assert!(client.volume.log.snapshots().root().is_none());
    // Neither a snapshot taken while the log is off nor an on-demand snapshot needs the log.
    for kind in [SnapshotKind::Wal, SnapshotKind::OnDemand] {
        let plan = client.begin(kind).expect("a snapshot can begin");
        assert!(!plan.is_fuzzy, "{kind:?}");
        client.settle();
    }
    client.volume.log.resume();
    let plan = client.begin(SnapshotKind::Wal).expect("a snapshot can begin");
    assert!(!plan.is_fuzzy, "the log resumes from this snapshot");
    client.settle();
    let plan = client.begin(SnapshotKind::OnDemand).expect("a snapshot can begin");
    assert!(!plan.is_fuzzy);
    client.settle();
    let plan = client.begin(SnapshotKind::Wal).expect("a snapshot can begin");
    assert!(plan.is_fuzzy);
}
