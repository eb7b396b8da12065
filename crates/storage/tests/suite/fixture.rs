//! Volumes of earlier format versions can still be read. The fixtures are such volumes, byte for
//! byte: one of version 2 in files, and one of each version from 3 to 6 on a device. A volume of
//! version 1 is refused, with a message.
//!
//! A fixture holds the blocks of all areas or of the device. It also holds the mapped buffers,
//! which have the batches that are not in the log yet. A fixture is stored as runs of 64 bytes,
//! each with its place. Runs of zeros are left out. With `MAKE_FIXTURE=6`, the test makes the
//! fixture of version 6 again. Never change the fixture of a released version.

use std::path::PathBuf;

use crate::common::{
    BATCH_SIZE, Client, Kind, SMALL, SUPER, SimMedia, WAL, formatted, options, reopen,
};
use slimio_device::{Device as _, LBA_SIZE};
use slimio_sim::{Image, Limits, SimConfig};
use slimio_storage::{
    Area, Error, Policy, RootChoice, SlotName, SnapshotKind, SuperblockCopy, format, inspect,
    layout, verify,
};

const RUN: usize = 64;
const AREAS: usize = 5;
const MAPPED: u8 = AREAS as u8;

fn path(version: u32) -> PathBuf {
    let name = format!("tests/fixtures/volume-v{version}.bin");
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The identity of the device in a fixture of version 4 or later.
const IDENTITY: &str = "nvme serial S1234 namespace 1";

/// The kind of medium that a fixture was made on.
pub(crate) fn kind_of(version: u32) -> Kind {
    if version < layout::FORMAT_VERSION_EXTENTS { Kind::Files } else { Kind::Device }
}

/// The records of a fixture. The small records were committed one at a time, so they share a tail
/// pair: two blocks of the log, to which small commits are written in turn. One record takes
/// several batches. The last records are only in the mapped buffers.
pub(crate) fn records() -> Vec<(u16, Vec<u8>)> {
    let small = (0..8).map(|index| (index, vec![index as u8 + 1; 50]));
    let large = (9, vec![0xAB; BATCH_SIZE + 100]);
    let last = (0..3).map(|index| (10, vec![index + 100; 30]));
    small.chain([large]).chain(last).collect()
}

/// Packs the areas and the mapped buffers into runs. `areas` says how many blocks each area has.
/// Each run begins with its space and its place in this space.
fn pack(media: &SimMedia, mapped: &[u8], areas: [(Area, u64); AREAS]) -> Vec<u8> {
    let mut packed = Vec::new();
    let mut add = |space: u8, base: usize, bytes: &[u8]| {
        for (index, run) in bytes.chunks_exact(RUN).enumerate() {
            if run.iter().any(|&byte| byte != 0) {
                packed.push(space);
                packed.extend(((base + index * RUN) as u32).to_le_bytes());
                packed.extend(run);
            }
        }
    };
    for (area, lbas) in areas {
        for (space, lba) in (0..lbas).filter_map(|lba| place(media, area, lba)) {
            add(space as u8, lba as usize * LBA_SIZE, &media.disk.peek(space, lba));
        }
    }
    add(MAPPED, 0, mapped);
    packed
}

/// Where on the disk a block of an area is. On a device, half of the superblock's blocks are at
/// each end.
fn place(media: &SimMedia, area: Area, lba: u64) -> Option<(usize, u64)> {
    if area != Area::Superblock || media.kind == Kind::Files {
        return media.place(area, lba);
    }
    let is_head = lba < layout::SUPERBLOCK_AREA_LBAS_MIN / 2;
    let before = if is_head { 0 } else { device_lbas(media) - layout::SUPERBLOCK_AREA_LBAS_MIN };
    Some((SUPER, before + lba))
}

/// The identity of a fixture's device; `None` if the format version does not store one.
pub(crate) fn identity_of(version: u32) -> Option<&'static str> {
    (version >= layout::FORMAT_VERSION_IDENTITY).then_some(IDENTITY)
}

fn new_media(version: u32) -> SimMedia {
    let mut media = SimMedia::new(SimConfig::default(), kind_of(version));
    media.identity = identity_of(version).map(str::to_owned);
    media
}

fn make(version: u32) {
    let records = records();
    let mut media = new_media(version);
    format(&mut media, &SMALL).expect("the simulated disk has room for the volume");
    let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    for record in &records[..3] {
        assert!(client.append(record));
        client.settle();
    }
    client.begin(SnapshotKind::OnDemand).expect("no other snapshot is under way");
    client.settle();
    client.begin(SnapshotKind::Wal).expect("no other snapshot is under way");
    for record in &records[3..6] {
        // The first of these records is appended while the snapshot is being written. So the
        // snapshot needs this record of the log.
        assert!(client.append(record));
        client.settle();
    }
    drop(client);
    // Opening the volume again begins a second epoch.
    let (volume, recovered) =
        reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    let mut client = Client::new(volume, media.disk.clone(), recovered.len());
    for record in &records[6..9] {
        assert!(client.append(record));
        client.settle();
    }
    client.volume.log.set_policy(Policy::No);
    for record in &records[9..] {
        assert!(client.append(record));
    }
    let mapped = client.disk.mapped_now();
    let superblock = client.volume.keeper.superblock();
    let wal_lbas = superblock.wal_slots.len() as u64 * SMALL.segment_lbas;
    let held = |slot| superblock.snapshots.get(slot).map_or(0, |held| held.len_lbas);
    let [a, b, c] = SlotName::ALL.map(|slot| (Area::Snapshot(slot), held(slot)));
    let superblock_area = (Area::Superblock, layout::SUPERBLOCK_AREA_LBAS_MIN);
    let areas = [superblock_area, (Area::Wal, wal_lbas), a, b, c];
    std::fs::write(path(version), pack(&media, &mapped, areas))
        .expect("the fixture can be written");
}

fn device_lbas(media: &SimMedia) -> u64 {
    media.disk.open_path(SUPER).geometry().lba_count
}

/// Makes a medium from a fixture.
fn open(version: u32) -> SimMedia {
    let mut media = SimMedia::from_image(SimConfig::default(), kind_of(version), &image(version));
    media.identity = identity_of(version).map(str::to_owned);
    media
}

/// The blocks and the mapped buffers of a fixture.
pub(crate) fn image(version: u32) -> Image {
    let packed = std::fs::read(path(version)).expect("the fixture can be read");
    let mut areas = [const { Vec::new() }; AREAS + 1];
    for entry in packed.chunks_exact(1 + 4 + RUN) {
        let at = u32::from_le_bytes(entry[1..5].try_into().expect("four bytes")) as usize;
        let bytes: &mut Vec<u8> = &mut areas[usize::from(entry[0])];
        bytes.resize(bytes.len().max((at / LBA_SIZE + 1) * LBA_SIZE), 0);
        bytes[at..at + RUN].copy_from_slice(&entry[5..]);
    }
    // Runs of zeros are not in the fixture.
    let segment_size = SMALL.segment_lbas as usize * LBA_SIZE;
    let spaces = match kind_of(version) {
        Kind::Files => {
            areas[SUPER].resize(layout::SUPERBLOCK_AREA_LBAS_MIN as usize * LBA_SIZE, 0);
            areas[WAL].resize(8 * segment_size, 0);
            AREAS
        }
        Kind::Device => {
            let lbas = device_lbas(&formatted(SimConfig::default(), Kind::Device));
            areas[SUPER].resize(lbas as usize * LBA_SIZE, 0);
            1
        }
    };
    let [areas @ .., mut mapped] = areas;
    mapped.resize(4 * BATCH_SIZE, 0);
    let scratch = new_media(version);
    for (space, bytes) in areas[..spaces].iter().enumerate() {
        assert_eq!(scratch.disk.add_space((bytes.len() / LBA_SIZE) as u64), space);
        for (lba, block) in (0..).zip(bytes.chunks_exact(LBA_SIZE)) {
            scratch.disk.poke(space, lba, block);
        }
    }
    let limits = Limits { exhaustive_max: 0, random_count: 0, torn: false };
    let mut image = scratch.disk.crash_now().power_images(&limits).swap_remove(0);
    image.mapped = mapped;
    image
}

#[test]
fn a_volume_of_version_1_is_refused() {
    let refused =
        reopen(&mut open(1), &options(Policy::EverySec)).expect_err("version 1 is too old");
    assert_eq!(
        refused.to_string(),
        "the volume has format version 1; this program reads 2, 5 and 6"
    );
}

/// Version 2 had no map of extents, so this program would not find the data of such a volume on a
/// device.
#[test]
fn a_volume_of_version_2_on_a_device_is_refused() {
    let refused = with_superblock_of(&open(2)).expect_err("version 2 is too old on a device");
    assert_eq!(
        refused.to_string(),
        "the volume has format version 2; this program reads 3, 4, 5 and 6"
    );
}

#[test]
fn a_superblock_of_files_on_a_device_is_refused() {
    let files = formatted(SimConfig::default(), Kind::Files);
    let refused = with_superblock_of(&files)
        .expect_err("the superblock of a volume in files is refused on a device");
    assert!(refused.to_string().contains("but the superblock is that of a volume in files"));
}

/// Opens a device that holds the superblock of a volume in files.
fn with_superblock_of(files: &SimMedia) -> Result<(), Error> {
    let mut media = formatted(SimConfig::default(), Kind::Device);
    for lba in 0..layout::SUPERBLOCK_AREA_LBAS_MIN {
        let (space, place) =
            place(&media, Area::Superblock, lba).expect("the device has this block");
        media.disk.poke(space, place, &files.disk.peek(SUPER, lba));
    }
    reopen(&mut media, &options(Policy::EverySec)).map(drop)
}

#[test]
fn a_device_that_has_lost_its_end_is_refused() {
    let media = formatted(SimConfig::default(), Kind::Device);
    let device_lbas = device_lbas(&media);
    media.disk.truncate(SUPER, device_lbas - 5);
    let limits = Limits { exhaustive_max: 0, random_count: 0, torn: false };
    let image = media.disk.crash_now().power_images(&limits).swap_remove(0);
    let mut media = SimMedia::from_image(SimConfig::default(), Kind::Device, &image);
    let refused = reopen(&mut media, &options(Policy::EverySec))
        .expect_err("a device that has lost blocks is refused");
    let expected = Error::OtherSize { found_lbas: device_lbas - 5, made_lbas: device_lbas };
    assert_eq!(refused, expected);
}

#[test]
fn a_volume_of_version_2_can_be_read() {
    can_be_read_and_goes_on(2);
}

#[test]
fn a_volume_of_version_3_can_be_read() {
    can_be_read_and_goes_on(3);
}

#[test]
fn a_volume_of_version_4_can_be_read() {
    can_be_read_and_goes_on(4);
}

#[test]
fn a_volume_of_version_5_can_be_read() {
    can_be_read_and_goes_on(5);
    let superblock = inspect(&mut open(5)).expect("the volume can be inspected").superblock;
    let superblock = superblock.expect("a superblock is in force");
    let root = superblock.snapshots.root().expect("the fixture has a root");
    assert!(root.is_fuzzy(), "{root:?}");
}

#[test]
fn a_volume_of_version_6_can_be_read() {
    can_be_read_and_goes_on(6);
}

fn can_be_read_and_goes_on(version: u32) {
    if std::env::var("MAKE_FIXTURE").is_ok_and(|wanted| wanted == version.to_string()) {
        make(version);
    }
    let mut media = open(version);
    let report = verify(&mut media, &mut |_| {}).expect("the fixture passes verification");
    assert_eq!(report.records, records().len() as u64 - 3);
    assert_eq!(report.root.map(|root| root.entry_count), Some(3));
    let mut on_demand = options(Policy::EverySec);
    on_demand.root = RootChoice::OnDemand;
    let (_, recovered) = reopen(&mut open(version), &on_demand).expect("the volume opens");
    assert_eq!(recovered, records()[..3]);
    let (volume, recovered) =
        reopen(&mut media, &options(Policy::EverySec)).expect("the volume opens");
    assert_eq!(recovered, records());
    for copy in inspect(&mut media).expect("the volume can be inspected").copies {
        let SuperblockCopy::Valid(superblock, _) = copy else { panic!("{copy:?}") };
        assert_eq!(
            superblock.version(),
            layout::FORMAT_VERSION_TYPES,
            "opening a volume must bring its superblock to the newest version"
        );
    }
    assert!(volume.report.rescued_bytes > 0);
    // New records can be written, and read after the next start.
    let mut client = Client::new(volume, media.disk.clone(), recovered.len());
    assert!(client.append(&(11, b"more".to_vec())));
    client.settle();
    drop(client);
    let (_, again) = reopen(&mut media, &options(Policy::EverySec)).expect("the volume opens");
    assert_eq!(again[..recovered.len()], recovered[..]);
    assert_eq!(again.last(), Some(&(11, b"more".to_vec())));
}
