//! Each area of a block device must itself keep the contract of devices (`slimio_sim::contract`),
//! and no area may reach into another.
#![expect(clippy::unwrap_used, reason = "a test fails if a step fails")]

use std::fs::File;
use std::path::PathBuf;

use slimio_device::{Buffer, Device, DeviceError, LBA_SIZE, Lba, LbaRange, Op, PathOptions};
use slimio_device::{Completion, OpenError, PlacementId, Token};
use slimio_sim::contract::{CONTRACT_LBAS, check_all};
use slimio_ssd::trace::{TraceEvent, TraceReader};
use slimio_storage::{Area, Lifetime, SlotName};
use slimio_testing::loops::LoopDevice;

fn run(device: &mut dyn Device, op: Op) -> Completion {
    device.submit(Token(0), op).unwrap();
    let mut completions = Vec::new();
    while completions.is_empty() {
        device.wait(None, &mut completions);
    }
    completions.pop().unwrap()
}

fn write(lba: u64, lbas: usize, byte: u8) -> Op {
    let mut buffer = Buffer::zeroed(lbas);
    buffer.fill(byte);
    Op::Write { lba: Lba(lba), buffer, placement: PlacementId(0), durable: false }
}

const AREAS: [Area; 5] = [
    Area::Superblock,
    Area::Wal,
    Area::Snapshot(SlotName::A),
    Area::Snapshot(SlotName::B),
    Area::Snapshot(SlotName::C),
];

/// Number of blocks of an extent on a small device.
const EXTENT_LBAS: u64 = 256;

/// If the machine restarts without the drive, the server must not make a directory under the
/// drive's name and serve an empty data set.
#[test]
fn a_device_that_is_not_there_is_no_directory_to_be_made() {
    for name in
        ["/dev/slimio-is-not-there", "/dev/slimio-is/not/there", "/dev/../dev/slimio-is-not"]
    {
        let opened = slimio_volume::open(name.as_ref(), PathOptions::default(), true, u64::MAX);
        let refused = opened.map(drop).unwrap_err();
        assert_eq!(refused, OpenError::Missing { path: name.into() });
    }
    assert!(!PathBuf::from("/dev/slimio-is").exists());
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let opened =
        slimio_volume::open(&memory.path().join("volume"), PathOptions::default(), true, u64::MAX);
    assert!(
        opened.is_ok(),
        "a volume in /dev/shm is allowed, because any user may make directories there"
    );
}

#[test]
fn areas_keep_the_contract_and_do_not_overlap() {
    // The device has room for the superblock and the buffers, and for each area twice as many
    // blocks as the contract needs.
    let size = (66 << 20) + AREAS.len() as u64 * 2 * CONTRACT_LBAS * LBA_SIZE as u64;
    let Some(device) = LoopDevice::new(size) else { return };
    let options = PathOptions { in_flight_max: 16, ..PathOptions::default() };
    let wal_size_max = 2 * CONTRACT_LBAS * LBA_SIZE as u64;
    let mut storage = slimio_volume::open(device.path(), options, true, wal_size_max).unwrap();
    let mut paths: Vec<_> =
        AREAS.into_iter().map(|area| storage.media.open_path(area).unwrap()).collect();
    // All areas except the superblock's grow in turn.
    for lbas in (EXTENT_LBAS..=CONTRACT_LBAS).step_by(EXTENT_LBAS as usize) {
        for path in &mut paths[1..] {
            path.grow(lbas).unwrap();
        }
    }
    for area in &AREAS[1..] {
        check_all(|| storage.media.open_path(*area).unwrap() as Box<dyn Device>);
    }

    let mut buffers = storage.media.make_buffers(256, 256 << 10).unwrap();
    for (index, path) in paths.iter_mut().enumerate() {
        let lbas = path.geometry().lba_count;
        for lba in 0..lbas {
            assert_eq!(run(&mut **path, write(lba, 1, index as u8 + 1)).result, Ok(()), "{lba}");
        }
        // The first write is to the block after the area's end, the second to two blocks across the
        // end. The blocks after the end belong to another area or to no area, so these writes must
        // be refused. A write at the largest address must be refused, too.
        for op in [write(lbas, 1, 99), write(lbas - 1, 2, 99), write(u64::MAX, 1, 99)] {
            assert_eq!(run(&mut **path, op).result, Err(DeviceError::OutOfRange), "{index}");
        }
        let range = LbaRange { start: Lba(lbas - 1), end: Lba(lbas + 1) };
        let deallocated = run(&mut **path, Op::Deallocate { range });
        assert_eq!(deallocated.result, Err(DeviceError::OutOfRange), "{index}");
        assert_eq!(run(&mut **path, Op::Flush).result, Ok(()));
    }
    assert!(buffers.iter().all(|buffer| buffer.iter().all(|&byte| byte == 0)));
    for buffer in &mut buffers {
        buffer.fill(77);
    }
    for (index, path) in paths.iter_mut().enumerate() {
        for lba in 0..path.geometry().lba_count {
            let done = run(&mut **path, Op::Read { lba: Lba(lba), buffer: Buffer::zeroed(1) });
            let buffer = done.buffer.unwrap();
            assert!(
                buffer.iter().all(|&byte| byte == index as u8 + 1),
                "block {lba} of area {index} has other data"
            );
        }
    }
    assert_eq!(
        paths[1].grow(2 * CONTRACT_LBAS + 1),
        Err(DeviceError::NoSpace),
        "the log must not grow beyond its largest size"
    );
}

#[test]
fn a_slot_takes_what_another_has_given_back() {
    let Some(device) = LoopDevice::new(80 << 20) else { return };
    let mut storage =
        slimio_volume::open(device.path(), PathOptions::default(), true, u64::MAX).unwrap();
    let mut path = |slot| storage.media.open_path(Area::Snapshot(slot)).unwrap();
    let (mut a, mut b) = (path(SlotName::A), path(SlotName::B));
    // 65 MiB of the device lie before the extents, and two copies of the superblock lie after them.
    // This leaves room for 14 extents.
    a.grow(14 * EXTENT_LBAS).unwrap();
    assert_eq!(b.grow(1), Err(DeviceError::NoSpace));
    a.shrink(3 * EXTENT_LBAS + 1).unwrap();
    assert_eq!(a.geometry().lba_count, 4 * EXTENT_LBAS);
    assert_eq!(
        b.grow(10 * EXTENT_LBAS + 1),
        Err(DeviceError::NoSpace),
        "a slot that can't grow by all extents must not grow by any"
    );
    b.grow(10 * EXTENT_LBAS).unwrap();
    assert_eq!(run(&mut *b, write(10 * EXTENT_LBAS - 1, 1, 5)).result, Ok(()));
}

#[test]
fn a_device_without_room_is_refused() {
    let Some(device) = LoopDevice::new(70 << 20) else { return };
    let refused = slimio_volume::open(device.path(), PathOptions::default(), true, u64::MAX);
    let said = refused.err().expect("it is too small").to_string();
    assert!(said.contains("but a volume needs"), "{said}");
}

#[test]
fn a_traced_device_records_what_is_written_with_its_lifetime() {
    let Some(device) = LoopDevice::new(80 << 20) else { return };
    let place = tempfile::tempdir().unwrap();
    let trace = place.path().join("trace");
    let options = PathOptions::default();
    let mut storage = slimio_volume::open_traced(device.path(), options, u64::MAX, &trace).unwrap();
    assert!(storage.io_path.ends_with(", recorded"), "{}", storage.io_path);
    for (area, lifetime) in [
        (Area::Superblock, Lifetime::Superblock),
        (Area::Snapshot(SlotName::A), Lifetime::Snapshot),
    ] {
        let mut path = storage.media.open_path(area).unwrap();
        path.grow(2).unwrap();
        let Op::Write { lba, buffer, .. } = write(0, 2, 7) else {
            unreachable!("`write` makes a write")
        };
        let placement = PlacementId(lifetime.index() as u16);
        let op = Op::Write { lba, buffer, placement, durable: false };
        assert_eq!(run(&mut *path, op).result, Ok(()));
        assert_eq!(run(&mut *path, Op::Flush).result, Ok(()));
    }
    drop(storage);
    let reader = TraceReader::new(File::open(&trace).unwrap()).unwrap();
    assert_eq!(reader.header().device_bytes, 80 << 20);
    let events: Vec<TraceEvent> = reader.map(|record| record.unwrap().event).collect();
    let streams: Vec<(u8, u64)> = events
        .iter()
        .filter_map(|event| match event {
            TraceEvent::Write { stream, range } => Some((*stream, range.size())),
            _ => None,
        })
        .collect();
    let both = [Lifetime::Superblock, Lifetime::Snapshot];
    assert_eq!(streams, both.map(|lifetime| (lifetime.index() as u8, 8192)));
    assert_eq!(events.iter().filter(|event| **event == TraceEvent::Flush).count(), 2);

    let directory = tempfile::tempdir().unwrap();
    let refused = slimio_volume::open_traced(directory.path(), options, u64::MAX, &trace).map(drop);
    assert!(refused.unwrap_err().to_string().contains("is recorded"));
}
