//! Cuts power at every operation of a start that gives a volume another identity or the newest
//! format version. Then cuts power again at every operation of the next start.

use std::collections::HashSet;

use crate::common::{Client, Kind, SMALL, SUPER, Script, SimMedia, formatted_as, options, reopen};
use crate::fixture;
use slimio_sim::{Image, Limits, SimConfig};
use slimio_storage::{Error, Policy, RecoverOptions, SuperblockCopy, inspect};

const THIS: &str = "nvme serial S1234 namespace 1";
const OTHER: &str = "nvme serial S9999 namespace 1";

const FIRST: Limits = Limits { exhaustive_max: 4, random_count: 4, torn: true };
const SECOND: Limits = Limits { exhaustive_max: 2, random_count: 2, torn: true };

/// The identity of the device when the volume is made, and its identity when the volume is opened.
#[derive(Clone, Copy)]
struct Move {
    kind: Kind,
    from: Option<&'static str>,
    to: Option<&'static str>,
}

/// A copy of the superblock: its sequence, its version of the format, and its identity.
type Copy = (u64, u32, String);

/// Which records must come back after a crash, and which may come back.
#[derive(Clone)]
struct Promise {
    /// The records that may come back, in order.
    records: Script,
    /// How many of these records must come back.
    at_least: usize,
    /// Whether the new identity was durable.
    has_moved: bool,
}

fn accepting() -> RecoverOptions {
    RecoverOptions { accept_device: true, ..options(Policy::Always) }
}

fn open_image(kind: Kind, image: &Image, identity: Option<&str>) -> SimMedia {
    let mut media = SimMedia::from_image(SimConfig::default(), kind, image);
    media.identity = identity.map(str::to_owned);
    media.is_feigned = true;
    media
}

/// A volume with two records. One is durable. The other is only in the mapped buffers.
fn made_on(identity: Option<&str>) -> (Image, Promise) {
    let mut media = formatted_as(SimConfig::default(), Kind::Device, &SMALL);
    media.identity = identity.map(str::to_owned);
    let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    let records = vec![(0, b"durable".to_vec()), (1, b"mapped".to_vec())];
    assert!(client.append(&records[0]));
    client.settle();
    client.volume.log.set_policy(Policy::No);
    assert!(client.append(&records[1]));
    let only = Limits { exhaustive_max: 0, random_count: 0, torn: false };
    let image = media.disk.crash_now().process_images(&only).swap_remove(0);
    (image, Promise { records, at_least: 1, has_moved: false })
}

/// Opens the image, writes one more record, and crashes at every operation of the opening and the
/// writing. The first entry of `lives` limits how many images are checked per crash. Then explores
/// each new outcome in the same way, with the rest of `lives`. Returns how many images were
/// checked.
fn explore(image: &Image, moved: Move, before: &Promise, lives: &[Limits]) -> usize {
    let Some((limits, later_lives)) = lives.split_first() else { return 0 };
    let (mut count, mut seen) = (0, HashSet::new());
    for crash_point in 0.. {
        let mut media = open_image(moved.kind, image, moved.to);
        let disk = media.disk.clone();
        disk.crash_after(crash_point);
        let mut promise = before.clone();
        match reopen(&mut media, &accepting()) {
            Ok((volume, recovered)) => {
                let at_least = recovered.len();
                let mut client = Client::new(volume, disk.clone(), at_least);
                let more = (2, format!("{} lives left", later_lives.len()).into_bytes());
                promise = Promise { records: recovered, at_least, has_moved: true };
                promise.records.push(more.clone());
                client.append(&more);
                client.settle();
                promise.at_least = client.durable;
            }
            Err(error) => assert!(disk.has_crashed(), "{error}"),
        }
        let Some(crash) = disk.crashed() else { break };
        for image in crash.power_images(limits) {
            let context = format!("crash point {crash_point}, {}", image.origin);
            let found = check(&image, moved, &promise, &context);
            count += 1;
            if seen.insert((crash_point, found)) {
                count += explore(&image, moved, &promise, later_lives);
            }
        }
    }
    count
}

/// Checks that the volume has one of the two identities and holds the promised records. The volume
/// must open on the device with that identity, and must be refused on the other device. A volume
/// without an identity must open on both devices. Returns a description of each superblock copy.
fn check(image: &Image, moved: Move, promise: &Promise, context: &str) -> Vec<Copy> {
    let mut media = open_image(moved.kind, image, moved.to);
    let found = inspect(&mut media).expect("the volume can be inspected");
    let superblock =
        found.superblock.unwrap_or_else(|| panic!("no superblock is valid: {context}"));
    let is_there = |identity: Option<&str>| superblock.identity == identity.unwrap_or_default();
    assert!(is_there(moved.to) || !promise.has_moved && is_there(moved.from), "{context}");
    for identity in [moved.from, moved.to] {
        let opened = reopen(&mut open_image(moved.kind, image, identity), &options(Policy::Always));
        if superblock.identity.is_empty() || is_there(identity) {
            let (_, recovered) = opened.unwrap_or_else(|error| panic!("{error}; {context}"));
            assert_kept(&recovered, promise, context);
        } else {
            assert!(matches!(opened, Err(Error::OtherDevice { .. })), "{context}");
        }
    }
    check_older(image, moved, &found.copies, promise, context);
    let copies = found.copies.iter().map(|copy| match copy {
        SuperblockCopy::Valid(superblock, _) => {
            (superblock.sequence, superblock.version(), superblock.identity.clone())
        }
        _ => (0, 0, String::new()),
    });
    copies.collect()
}

/// Opens the volume like a program that reads format versions up to 5 and does not know version 6.
/// If copies of an older version are left, the program must find all promised records through them.
/// If none is left, the program must refuse the volume.
fn check_older(
    image: &Image,
    moved: Move,
    copies: &[SuperblockCopy],
    promise: &Promise,
    context: &str,
) {
    let mut media = open_image(moved.kind, image, moved.from);
    let lbas = slimio_device::Device::geometry(&media.disk.open_path(SUPER)).lba_count;
    let (lba_of, mut older) = ([0, 4, lbas - 8, lbas - 4], 0);
    for (lba, copy) in lba_of.into_iter().zip(copies) {
        match copy {
            SuperblockCopy::Valid(superblock, _) if !superblock.has_types => older += 1,
            SuperblockCopy::Valid(..) => {
                let mut bytes = media.disk.peek(SUPER, lba);
                bytes[8] = 99;
                media.disk.poke(SUPER, lba, &bytes);
            }
            _ => {}
        }
    }
    match reopen(&mut media, &options(Policy::Always)) {
        Ok((_, recovered)) => assert_kept(&recovered, promise, &format!("older: {context}")),
        Err(Error::OtherVersion { found: 99, .. }) if older == 0 => {}
        Err(error) => panic!("older program, {older} older copies: {error}; {context}"),
    }
}

fn assert_kept(recovered: &Script, promise: &Promise, context: &str) {
    let Promise { records, at_least, .. } = promise;
    let count = recovered.len();
    assert!(
        records.starts_with(recovered),
        "other records came back: {recovered:?}, {records:?}; {context}"
    );
    assert!(
        count >= *at_least,
        "records are lost: {count} came back, but at least {at_least} must come back; {context}"
    );
}

fn enumerate(from: Option<&'static str>, to: Option<&'static str>) -> usize {
    let (image, promise) = made_on(from);
    explore(&image, Move { kind: Kind::Device, from, to }, &promise, &[FIRST, SECOND])
}

#[test]
fn an_identity_that_is_taken_loses_nothing_when_power_is_cut() {
    let count = enumerate(None, Some(THIS));
    assert!(count >= 1000, "only {count} images were checked");
}

#[test]
fn an_identity_that_is_replaced_loses_nothing_when_power_is_cut() {
    let count = enumerate(Some(THIS), Some(OTHER));
    assert!(count >= 1000, "only {count} images were checked");
}

#[test]
fn an_identity_that_is_given_up_loses_nothing_when_power_is_cut() {
    let count = enumerate(Some(THIS), None);
    assert!(count >= 1000, "only {count} images were checked");
}

/// Opens the fixture of an older format version.
fn upgrade(version: u32) {
    let (image, records) = (fixture::image(version), fixture::records());
    let promise = Promise { at_least: records.len() - 3, records, has_moved: false };
    let identity = fixture::identity_of(version);
    let kind = fixture::kind_of(version);
    // A volume that has no identity yet gets one at this start, if the volume is on a device.
    let to = identity.or((kind == Kind::Device).then_some(THIS));
    let moved = Move { kind, from: identity, to };
    let count = explore(&image, moved, &promise, &[FIRST, SECOND]);
    assert!(count >= 1000, "only {count} images were checked");
}

#[test]
fn an_upgrade_from_version_2_loses_nothing_when_power_is_cut() {
    upgrade(2);
}

#[test]
fn an_upgrade_from_version_3_loses_nothing_when_power_is_cut() {
    upgrade(3);
}

#[test]
fn an_upgrade_from_version_4_loses_nothing_when_power_is_cut() {
    upgrade(4);
}

#[test]
fn an_upgrade_from_version_5_loses_nothing_when_power_is_cut() {
    upgrade(5);
}
