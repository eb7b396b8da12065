//! Tests of block devices: exclusive use, contents, and mapped ranges.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;

use slimio_device::{
    BlockDevice, Buffer, Contents, DeviceError, LBA_SIZE, Lba, LbaRange, Op, OpenError,
    PathOptions, PlacementId, WholeDevice,
};

use crate::common::{TestDevice, engines, run};

#[test]
fn it_is_ours_alone() {
    let Some(device) = TestDevice::new(4096) else { return };
    let options = PathOptions::default();
    let first = BlockDevice::open(&device.path, options).expect("the device is free");
    assert_eq!(first.lba_count(), 4096);
    let second = BlockDevice::open(&device.path, options).err().expect("the device is in use");
    assert!(matches!(second, OpenError::InUse { .. }), "{second}");
    drop(first);
    BlockDevice::open(&device.path, options).expect("the device is free again");

    let file = tempfile::NamedTempFile::new().expect("a file for the test");
    let refused = BlockDevice::open(file.path(), options).err().expect("a file is no block device");
    assert!(matches!(refused, OpenError::Unsuitable { .. }), "{refused}");
}

#[test]
fn what_is_on_it_is_seen() {
    let Some(device) = TestDevice::new(4096) else { return };
    let contents = || {
        let device =
            BlockDevice::open(&device.path, PathOptions::default()).expect("the device is free");
        device.contents().expect("the device can be read")
    };
    assert_eq!(contents(), Contents::Nothing);
    let write_at = |offset, bytes: &[u8]| {
        let file =
            OpenOptions::new().write(true).open(&device.path).expect("root may open the device");
        file.write_all_at(bytes, offset).expect("the device can be written");
    };
    write_at(1000, b"x");
    assert_eq!(contents(), Contents::Unknown);
    write_at(510, &[0x55, 0xaa]);
    assert_eq!(contents(), Contents::Known("an MBR partition table"));
    let made = Command::new("mkfs.ext4").arg("-qF").arg(&device.path).status();
    if made.is_ok_and(|status| status.success()) {
        assert_eq!(contents(), Contents::Known("an ext2, ext3 or ext4 file system"));
    } else {
        eprintln!("SKIPPED: mkfs.ext4 can't be run");
    }
}

#[test]
fn it_does_not_grow() {
    let Some(device) = TestDevice::new(1000) else { return };
    for options in engines() {
        let mut device = BlockDevice::open(&device.path, options).expect("the device is free");
        let mut path = device.open_path().expect("a path can be opened");
        assert_eq!(path.grow(1000), Ok(()));
        assert_eq!(path.grow(1001), Err(DeviceError::NoSpace));
        assert_eq!(path.geometry().lba_count, 1000);
    }
}

#[test]
fn a_mapped_range_outlives_its_holder() {
    const SIZE: usize = 8 * LBA_SIZE;
    let Some(device) = TestDevice::new(1000) else { return };
    let offset = 100 * LBA_SIZE as u64;
    for options in engines() {
        let mut held = BlockDevice::open(&device.path, options).expect("the device is free");
        let mut path = held.open_path().expect("a path can be opened");
        let mut mapped = held.map(offset, SIZE).expect("the device has this range");
        let mut buffers = mapped.buffers(2 * LBA_SIZE);
        assert!(buffers[0].outlives_process());
        for (index, buffer) in buffers.iter_mut().enumerate() {
            buffer.fill(index as u8 + 1);
        }
        // Direct writes to the blocks before and after the mapped range must not change the range.
        let buffer = buffers.pop().expect("the mapping has four buffers");
        let placement = PlacementId::default();
        let op = Op::Write { lba: Lba(108), buffer, placement, durable: true };
        assert_eq!(run(&mut *path, op).result, Ok(()));
        let op = Op::Write { lba: Lba(98), buffer: Buffer::zeroed(2), placement, durable: true };
        assert_eq!(run(&mut *path, op).result, Ok(()));
        let expected: Vec<u8> = (0..SIZE).map(|byte| (byte / (2 * LBA_SIZE)) as u8 + 1).collect();
        assert_eq!(mapped.read_all().expect("the device can be read"), expected);
        // A range can be mapped only once, and no path can change a block in the range.
        let refused = held.map(200 * LBA_SIZE as u64, SIZE).err();
        assert!(matches!(refused, Some(OpenError::Unsuitable { .. })), "{refused:?}");
        for lba in [99, 100, 107] {
            let buffer = Buffer::zeroed(2);
            let op = Op::Write { lba: Lba(lba), buffer, placement, durable: false };
            assert_eq!(run(&mut *path, op).result, Err(DeviceError::OutOfRange), "{lba}");
            let range = LbaRange { start: Lba(lba), end: Lba(lba + 2) };
            let op = Op::Deallocate { range };
            assert_eq!(run(&mut *path, op).result, Err(DeviceError::OutOfRange), "{lba}");
        }
        drop(held);
        let held = BlockDevice::open(&device.path, options).err();
        assert!(
            matches!(held, Some(OpenError::InUse { .. })),
            "buffers of the mapped range do not keep the device in use: {held:?}"
        );
        drop((buffers, mapped, path));

        let mut held = BlockDevice::open(&device.path, options).expect("the device is free");
        let again = held.map(offset, SIZE).expect("nothing else maps the range");
        assert_eq!(again.read_all().expect("the device can be read"), expected);
        drop(again);
        let refused = held.map(999 * LBA_SIZE as u64, SIZE).err();
        assert!(matches!(refused, Some(OpenError::Unsuitable { .. })), "{refused:?}");
        drop(held);
        let mut found = vec![0; 2 * LBA_SIZE];
        let file = File::open(&device.path).expect("root may open the device");
        file.read_exact_at(&mut found, 108 * LBA_SIZE as u64).expect("the device can be read");
        assert_eq!(found, [4; 2 * LBA_SIZE]);
    }
}
