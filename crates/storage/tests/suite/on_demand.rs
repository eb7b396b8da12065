//! Recovery from the on-demand snapshot. The snapshot becomes the root, which is the snapshot that
//! every start recovers from, and all later writes are gone.

use crate::common::snapshots::Action;
use crate::common::{
    Client, Kind, SimMedia, formatted, formatted_as, options, reopen, script, small_script,
};
use slimio_device::LBA_SIZE;
use slimio_sim::{Image, Limits, Order, SimConfig};
use slimio_storage::{
    Area, Error, FormatOptions, Policy, RecoverOptions, RootChoice, SnapshotKind, VolumeId,
    superblock,
};

/// Damages a block of the log. Returns false if the log has no such block.
fn rot(media: &mut SimMedia, lba: u64) -> bool {
    superblock(media).expect("the superblock can be read");
    let place = media.place(Area::Wal, lba);
    if let Some((space, lba)) = place {
        media.disk.poke(space, lba, &[0x33; slimio_device::LBA_SIZE]);
    }
    place.is_some()
}

fn from_on_demand(policy: Policy) -> RecoverOptions {
    RecoverOptions { root: RootChoice::OnDemand, ..options(policy) }
}

/// A volume with all records of `script`. Its on-demand snapshot was taken after `count` records,
/// and its root four records later.
fn written(config: SimConfig, script: &[(u16, Vec<u8>)], count: usize) -> Image {
    let layout = FormatOptions {
        volume_id: VolumeId(9),
        segment_lbas: 6,
        batch_lbas_max: 2,
        wal_slots_max: 6,
        replace: false,
    };
    let mut media = formatted_as(config, Kind::Device, &layout);
    let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    client.actions.extend([
        (count, Action::Snapshot(SnapshotKind::OnDemand)),
        (count + 4, Action::Snapshot(SnapshotKind::Wal)),
    ]);
    client.is_waiting = true;
    client.write(script, 1);
    client.settle();
    let limits = Limits { exhaustive_max: 0, random_count: 0, torn: false };
    media.disk.crash_now().power_images(&limits).swap_remove(0)
}

#[test]
fn the_on_demand_snapshot_becomes_the_root() {
    let (config, script) = (SimConfig::default(), script(12));
    let image = written(config, &script, 3);
    let mut media = SimMedia::from_image(config, Kind::Device, &image);
    let (volume, recovered) =
        reopen(&mut media, &from_on_demand(Policy::Always)).expect("the volume opens");
    assert_eq!(recovered, script[..3]);
    assert!(volume.report.is_on_demand && volume.report.root.is_some());
    let mut client = Client::new(volume, media.disk.clone(), 3);
    client.history = recovered;
    // These records differ from those that are gone.
    let other = small_script(9);
    let mut expected = script[..3].to_vec();
    for kind in [SnapshotKind::OnDemand, SnapshotKind::Wal, SnapshotKind::OnDemand] {
        for record in other.iter().take(3) {
            assert!(client.append(record));
            client.settle();
            expected.push(record.clone());
        }
        client.begin(kind).expect("a snapshot can begin");
        client.settle();
        // Opening the volume at this point brings back the root and the log after it.
        let limits = Limits { exhaustive_max: 0, random_count: 0, torn: false };
        let image = client.disk.crash_now().power_images(&limits).swap_remove(0);
        media = SimMedia::from_image(config, Kind::Device, &image);
        let (volume, recovered) =
            reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
        assert_eq!(recovered, expected);
        client = Client::new(volume, media.disk.clone(), expected.len());
        client.history = recovered;
    }
}

/// The slots of segments before the new start are free, and can be prepared again.
#[test]
fn no_segment_of_the_old_log_is_one_of_the_new() {
    let (config, script) = (SimConfig::default(), script(12));
    let image = written(config, &script, 3);
    let mut media = SimMedia::from_image(config, Kind::Device, &image);
    let (volume, _) =
        reopen(&mut media, &from_on_demand(Policy::Always)).expect("the volume opens");
    let superblock = volume.keeper.superblock();
    let segments = superblock.wal_slots.iter().flatten().count() as u64;
    let segment_size = superblock.geometry.segment_lbas * LBA_SIZE as u64;
    assert_eq!(volume.log.stats().capacity_bytes, segments * segment_size);
    volume.log.check_all();
}

#[test]
fn without_an_on_demand_snapshot_nothing_is_changed() {
    let mut media = formatted(SimConfig::default(), Kind::Files);
    let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    let script = small_script(3);
    client.write(&script, 1);
    client.settle();
    drop(client);
    let opened = reopen(&mut media, &from_on_demand(Policy::Always));
    assert_eq!(opened.err(), Some(Error::NoOnDemandSnapshot));
    assert_eq!(reopen(&mut media, &options(Policy::Always)).expect("the volume opens").1, script);
}

/// If the log is damaged, the volume can still be recovered from the on-demand snapshot, without
/// the log.
#[test]
fn a_damaged_log_is_no_obstacle() {
    let (config, script) = (SimConfig::default(), script(12));
    let image = written(config, &script, 3);
    let mut refused = 0;
    for lba in 0..36 {
        let mut media = SimMedia::from_image(config, Kind::Device, &image);
        if !rot(&mut media, lba) {
            continue;
        }
        refused += usize::from(reopen(&mut media, &options(Policy::Always)).is_err());
        let mut media = SimMedia::from_image(config, Kind::Device, &image);
        rot(&mut media, lba);
        let (volume, recovered) =
            reopen(&mut media, &from_on_demand(Policy::Always)).expect("the volume opens");
        assert_eq!(recovered, script[..3], "block {lba}");
        let mut client = Client::new(volume, media.disk.clone(), 3);
        assert!(client.append(&script[5]));
        client.settle();
        drop(client);
        let (_, again) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
        assert_eq!(again, [&script[..3], &script[5..6]].concat(), "block {lba}");
    }
    assert!(refused >= 2, "{refused}");
}

/// Power is cut at every operation that changes the root, and at every operation of the appends
/// that follow.
#[test]
fn a_change_of_the_root_is_made_whole_or_not_at_all() {
    let config = SimConfig { order: Order::Random, seed: 5, ..SimConfig::default() };
    let limits = Limits { exhaustive_max: 4, random_count: 4, torn: true };
    let script = script(10);
    let image = written(config, &script, 2);
    let more = small_script(3);
    let (mut count, mut changed) = (0, 0);
    for crash_point in 0.. {
        let mut media = SimMedia::from_image(config, Kind::Device, &image);
        let disk = media.disk.clone();
        disk.crash_after(crash_point);
        let mut acknowledged = None;
        if let Ok((volume, _)) = reopen(&mut media, &from_on_demand(Policy::Always)) {
            let mut client = Client::new(volume, disk.clone(), 0);
            client.write(&more, 1);
            client.settle();
            acknowledged = Some(client.acknowledged);
        }
        let Some(crash) = disk.crashed() else { break };
        for image in crash.power_images(&limits) {
            let mut media = SimMedia::from_image(config, Kind::Device, &image);
            let (_, recovered) = reopen(&mut media, &options(Policy::Always))
                .unwrap_or_else(|error| panic!("{error}; {crash_point}, {}", image.origin));
            count += 1;
            if acknowledged.is_none() && recovered == script {
                continue;
            }
            changed += 1;
            assert_eq!(recovered[..2], script[..2], "{crash_point}, {}", image.origin);
            assert!(more.starts_with(&recovered[2..]), "{crash_point}, {}", image.origin);
            let at_least = acknowledged.unwrap_or(0);
            assert!(recovered.len() >= 2 + at_least, "{crash_point}, {}", image.origin);
        }
    }
    assert!(
        count >= 240 && changed >= 205,
        "the test covered only {count} images, {changed} of them with the new root"
    );
}
