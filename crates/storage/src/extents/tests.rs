//! Compares the areas of a device with a model. An area consists of pieces. Each piece is one
//! extent. The model knows which pieces each area has, and which data each piece holds.

use std::collections::BTreeMap;

use proptest::prelude::*;
use slimio_device::{Buffer, Device, DeviceError, Lba, LbaRange, Op, PlacementId};
use slimio_sim::contract::{CONTRACT_LBAS, check_all};
use slimio_sim::{Order, SimConfig, SimDisk};

use super::{AREAS, ExtentMap, Pool};
use crate::layout::superblock::SIZE;
use crate::{Area, SlotName, SnapshotKind, Snapshots, io};

const EXTENT_LBAS: u64 = 3;
const HEAD_LBAS: u64 = 10;

fn device_lbas(extents: u64) -> u64 {
    HEAD_LBAS + extents * EXTENT_LBAS + super::pool::SUPER_LBAS / 2
}

fn pool(extents: u64) -> Pool {
    let made = Pool::new(device_lbas(extents), HEAD_LBAS, EXTENT_LBAS, u64::MAX);
    made.expect("the device is large enough")
}

fn disk(extents: u64) -> SimDisk {
    let config = SimConfig { order: Order::Random, seed: 3, ..SimConfig::default() };
    let disk = SimDisk::new(config);
    disk.add_space(device_lbas(extents));
    disk
}

fn path(pool: &Pool, disk: &SimDisk, area: Area) -> Box<dyn Device + Send> {
    pool.path(area, Box::new(disk.open_path(0)))
}

/// A pool where no two pieces of an area are contiguous.
fn scattered(extents: u64) -> Pool {
    let pool = pool(extents);
    let mut map = pool.map();
    let half = extents as u32 / 2;
    for (extent, owner) in (0..).zip(&mut map.owners) {
        let area = if extent % 2 == 0 { Area::Wal } else { Area::Snapshot(SlotName::A) };
        *owner = Some((area, half - 1 - extent / 2));
    }
    pool.load(&map, &Snapshots::default()).expect("the map fits this device");
    pool
}

#[test]
fn an_area_in_scattered_extents_keeps_the_contract() {
    let extents = 2 * CONTRACT_LBAS.div_ceil(EXTENT_LBAS);
    for area in [Area::Wal, Area::Snapshot(SlotName::A)] {
        check_all(|| path(&scattered(extents), &disk(extents), area) as Box<dyn Device>);
    }
}

#[test]
fn what_is_deallocated_at_once_reaches_no_further_than_what_was_given_back() {
    let (pool, disk) = (scattered(12), disk(12));
    let mut wal = path(&pool, &disk, Area::Wal);
    let mut a = path(&pool, &disk, Area::Snapshot(SlotName::A));
    for piece in 0..6 {
        write(&mut *wal, piece * EXTENT_LBAS, 1);
        write(&mut *a, piece * EXTENT_LBAS, 2);
    }
    // Between any two extents of one area lies an extent of the other area, which must keep its
    // data.
    wal.release(LbaRange { start: Lba(0), end: Lba(6 * EXTENT_LBAS) })
        .expect("the extents belong to the log");
    io::run(&mut *a, Op::Flush).expect("the disk has no faults");
    for piece in 0..6 {
        let op = Op::Read { lba: Lba(piece * EXTENT_LBAS), buffer: Buffer::zeroed(1) };
        let buffer =
            io::run(&mut *a, op).expect("the read succeeds").expect("a read returns its buffer");
        assert!(buffer.iter().all(|byte| *byte == 2), "piece {piece} has lost its data");
    }
    // Contiguous extents are given back with one deallocation. The disk counts an operation twice:
    // when it is submitted and when it completes.
    let (pool, disk) = (self::pool(12), self::disk(12));
    let mut wal = path(&pool, &disk, Area::Wal);
    wal.grow(5 * EXTENT_LBAS).expect("the pool has free extents");
    let mut ops_of = |left: u64| {
        let before = disk.ops();
        wal.shrink(left * EXTENT_LBAS).expect("extents can be given back");
        disk.ops() - before
    };
    assert_eq!((ops_of(4), ops_of(0)), (2, 2), "each call must submit one deallocation");
}

#[test]
fn extents_are_as_large_as_they_must_be() {
    let mib = |mib: u64| mib << 8;
    let extent = |lbas: u64| {
        let pool = Pool::new(lbas, mib(65), mib(1), u64::MAX).expect("the device is large enough");
        (pool.usage().extent >> 8, pool.usage().total >> 8)
    };
    assert_eq!(extent(mib(512)), (1, 446));
    assert_eq!(extent(mib(100 << 10)), (128, (100 << 10) - 128));
    assert_eq!(extent(mib(16 << 20)), (16 << 10, (16 << 20) - (16 << 10)));
    assert!(Pool::new(mib(70), mib(65), mib(1), u64::MAX).is_err());
}

/// The log leaves room for the next snapshot. An on-demand snapshot must leave this room, too: only
/// a WAL-snapshot makes the log shorter, so a WAL-snapshot must still fit.
#[test]
fn room_is_kept_for_the_next_snapshot() {
    let (pool, disk) = (pool(20), disk(20));
    let [mut wal, mut a, mut b, _] = AREAS.map(|area| path(&pool, &disk, area));
    pool.set_need(5 * EXTENT_LBAS - 1);
    // Records that fill the log's new extents may make the data set larger. So each of these
    // extents adds to the space that the next snapshot needs.
    wal.grow(7 * EXTENT_LBAS).expect("thirteen extents stay free, and twelve are needed");
    assert_eq!(wal.grow(7 * EXTENT_LBAS + 1), Err(DeviceError::NoSpace));
    pool.set_need(4 * EXTENT_LBAS);
    wal.grow(11 * EXTENT_LBAS).expect("nine extents stay free");
    for len in 12..=15 {
        pool.set_need(5 * EXTENT_LBAS - 1);
        assert_eq!(wal.grow(len * EXTENT_LBAS).is_ok(), len < 15, "{len}");
    }
    pool.set_need(4 * EXTENT_LBAS - 1);
    wal.grow(15 * EXTENT_LBAS).expect("five extents stay free");
    pool.set_need(5 * EXTENT_LBAS - 1);
    // The log should also leave room for an on-demand snapshot.
    assert_eq!(pool.wal_lbas_max(), 10 * EXTENT_LBAS, "too little room for an on-demand snapshot");
    // An on-demand snapshot is refused, because it would leave nothing for the WAL-snapshot that
    // makes room.
    pool.set_running(Some((SlotName::A, SnapshotKind::OnDemand)));
    assert_eq!(a.grow(EXTENT_LBAS), Err(DeviceError::NoSpace));
    pool.set_running(Some((SlotName::A, SnapshotKind::Wal)));
    a.grow(5 * EXTENT_LBAS).expect("the log left five extents for this snapshot");
    // The snapshot in slot a is the root, and the log before it is gone.
    let held = Snapshots::default().with(SlotName::A, SnapshotKind::Wal);
    pool.set_snapshots(&held);
    let range = LbaRange { start: Lba(0), end: Lba(13 * EXTENT_LBAS) };
    wal.release(range).expect("extents can be given back");
    assert_eq!(pool.wal_lbas_max(), 5 * EXTENT_LBAS);
    pool.set_running(Some((SlotName::B, SnapshotKind::OnDemand)));
    b.grow(8 * EXTENT_LBAS).expect("five extents stay free");
    assert_eq!(b.grow(8 * EXTENT_LBAS + 1), Err(DeviceError::NoSpace));
    // If another on-demand snapshot is written, the slot of the on-demand snapshot that it replaces
    // counts as room for the next snapshot.
    pool.set_snapshots(&held.with(SlotName::B, SnapshotKind::OnDemand));
    pool.set_running(Some((SlotName::C, SnapshotKind::OnDemand)));
    let mut c = path(&pool, &disk, Area::Snapshot(SlotName::C));
    c.grow(5 * EXTENT_LBAS).expect("slot b becomes the reserve");
}

/// An on-demand snapshot may find all extents that it needs already in its slot. Even then, it is
/// refused if too few extents are free for the next snapshot.
#[test]
fn what_a_reserve_has_is_counted_too() {
    let (pool, disk) = (pool(20), disk(20));
    let [_, mut a, mut b, _] = AREAS.map(|area| path(&pool, &disk, area));
    pool.set_need(5 * EXTENT_LBAS);
    a.grow(8 * EXTENT_LBAS).expect("twenty extents are free");
    b.grow(8 * EXTENT_LBAS).expect("twelve extents are free");
    pool.set_snapshots(&Snapshots::default().with(SlotName::B, SnapshotKind::Wal));
    let all = LbaRange { start: Lba(0), end: Lba(8 * EXTENT_LBAS) };
    pool.set_running(Some((SlotName::A, SnapshotKind::OnDemand)));
    assert_eq!(
        a.reserve(all),
        Err(DeviceError::NoSpace),
        "only four extents are left for the next snapshot"
    );
    pool.set_running(Some((SlotName::A, SnapshotKind::Wal)));
    a.reserve(all).expect("a WAL-snapshot may take all extents");
    a.shrink(7 * EXTENT_LBAS).expect("extents can be given back");
    pool.set_running(Some((SlotName::A, SnapshotKind::OnDemand)));
    a.reserve(LbaRange { start: Lba(0), end: Lba(7 * EXTENT_LBAS) })
        .expect("five extents stay free");
}

#[derive(Clone, Debug)]
enum Step {
    Grow(usize, u64),
    Shrink(usize, u64),
    Reserve(u64, u64),
    Release(u64, u64),
    /// A superblock with the present map is written.
    Update,
    /// Power is lost. The pool is loaded again from the last superblock.
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let lbas = || 0..60_u64;
    prop_oneof![
        4 => (0..4_usize, lbas()).prop_map(|(area, lbas)| Step::Grow(area, lbas)),
        2 => (1..4_usize, lbas()).prop_map(|(area, lbas)| Step::Shrink(area, lbas)),
        2 => (lbas(), lbas()).prop_map(|(start, lbas)| Step::Reserve(start, start + lbas)),
        2 => (lbas(), lbas()).prop_map(|(start, lbas)| Step::Release(start, start + lbas)),
        2 => Just(Step::Update),
        1 => Just(Step::Crash),
    ]
}

/// What each piece of each area holds.
type Model = BTreeMap<(usize, u64), u8>;

fn pieces(start: u64, end: u64) -> std::ops::Range<u64> {
    start / EXTENT_LBAS..end.div_ceil(EXTENT_LBAS)
}

fn len_of(model: &Model, area: usize) -> u64 {
    let last = model.range((area, 0)..(area + 1, 0)).next_back();
    last.map_or(0, |((_, piece), _)| (piece + 1) * EXTENT_LBAS)
}

fn write(device: &mut dyn Device, lba: u64, byte: u8) {
    let mut buffer = Buffer::zeroed(EXTENT_LBAS as usize);
    buffer.fill(byte);
    let op = Op::Write { lba: Lba(lba), buffer, placement: PlacementId(0), durable: false };
    io::run(device, op).expect("the blocks have an extent");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_extent_has_two_owners_and_none_is_lost(
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        live(steps);
    }
}

fn live(steps: Vec<Step>) {
    const EXTENTS: u64 = 30;
    let (mut pool, disk) = (pool(EXTENTS), disk(EXTENTS));
    let mut paths = AREAS.map(|area| path(&pool, &disk, area));
    let (mut model, mut updated) = (Model::new(), (Model::new(), pool.map()));
    let mut next_byte = 0;
    for step in steps {
        let (area, wanted) = match step {
            Step::Grow(area, lbas) => {
                let now = len_of(&model, area);
                (area, if lbas > now { pieces(now, lbas) } else { 0..0 })
            }
            Step::Reserve(start, end) => (0, pieces(start, end)),
            _ => (0, 0..0),
        };
        let lacking: Vec<_> = wanted.filter(|piece| !model.contains_key(&(area, *piece))).collect();
        let fits = model.len() + lacking.len() <= EXTENTS as usize;
        match step {
            Step::Grow(_, lbas) => assert_eq!(paths[area].grow(lbas).is_ok(), fits),
            Step::Reserve(start, end) => {
                let range = LbaRange { start: Lba(start), end: Lba(end) };
                assert_eq!(paths[0].reserve(range).is_ok(), fits);
            }
            Step::Shrink(area, lbas) => {
                paths[area].shrink(lbas).expect("extents can be given back");
                model.retain(|&(of, piece), _| of != area || piece * EXTENT_LBAS < lbas);
            }
            Step::Release(start, end) => {
                let range = LbaRange { start: Lba(start), end: Lba(end) };
                paths[0].release(range).expect("extents can be given back");
                let is_within =
                    |piece| piece * EXTENT_LBAS >= start && (piece + 1) * EXTENT_LBAS <= end;
                model.retain(|&(of, piece), _| of != 0 || !is_within(piece));
            }
            Step::Update => updated = (model.clone(), pool.map()),
            Step::Crash => {
                let mut bytes = vec![0; SIZE];
                updated.1.encode(&mut bytes);
                let map = ExtentMap::decode(&bytes).expect("an encoded map can be decoded");
                assert_eq!(map, updated.1);
                pool = self::pool(EXTENTS);
                pool.load(&map, &Snapshots::default()).expect("the map fits this device");
                paths = AREAS.map(|area| path(&pool, &disk, area));
                model.clone_from(&updated.0);
                // Since the last superblock was written, some of its pieces may have been given
                // back, and other areas may have written to the extents of these pieces. So all
                // pieces are written again.
                for (&(area, piece), byte) in &mut model {
                    next_byte = u8::wrapping_add(next_byte, 1);
                    *byte = next_byte;
                    write(&mut *paths[area], piece * EXTENT_LBAS, next_byte);
                }
            }
        }
        if fits {
            for piece in lacking {
                next_byte = u8::wrapping_add(next_byte, 1);
                model.insert((area, piece), next_byte);
                write(&mut *paths[area], piece * EXTENT_LBAS, next_byte);
            }
        }
        check(&pool, &mut paths, &model, EXTENTS);
    }
}

/// Checks that each piece holds what was written to it, and that each extent without an area is
/// free.
fn check(pool: &Pool, paths: &mut [Box<dyn Device + Send>], model: &Model, extents: u64) {
    pool.check();
    let (counts, free) = pool.map().counts();
    for (area, (_, count)) in counts.into_iter().enumerate() {
        assert_eq!(count, model.range((area, 0)..(area + 1, 0)).count());
        assert_eq!(paths[area].geometry().lba_count, len_of(model, area));
    }
    assert_eq!(free + model.len(), extents as usize);
    for (&(area, piece), byte) in model {
        let buffer = Buffer::zeroed(EXTENT_LBAS as usize);
        let op = Op::Read { lba: Lba(piece * EXTENT_LBAS), buffer };
        let buffer = io::run(&mut *paths[area], op)
            .expect("the read succeeds")
            .expect("a read returns its buffer");
        assert!(buffer.iter().all(|found| found == byte), "piece {piece} of area {area}");
    }
}
