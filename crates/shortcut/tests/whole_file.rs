//! Files that are overwritten in whole blocks, on real file systems. A write *takes the short path*
//! if it goes to the disk directly. Each change that only the kernel can make durable leaves the
//! file with a *debt*: until the debt is paid, a sync has to call the kernel.
#![expect(clippy::unwrap_used, reason = "a test fails if it cannot go on")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::FallocateFlags;
use slimio_device::Buffer;
use slimio_shortcut::{Debts, Identity, WholeFile, open_direct};
use slimio_testing::loops::Mounted;

const EXT4: &[&str] = &["mkfs.ext4", "-q"];
const XFS: &[&str] = &["mkfs.xfs", "-q"];
const SIZE: u64 = 320 << 20;
const BLOCK: usize = 4096;

/// Mounts each file system in turn.
fn on_each(test: impl Fn(&Mounted)) {
    for mkfs in [EXT4, XFS] {
        if let Some(mounted) = Mounted::new(mkfs, SIZE, "defaults") {
            test(&mounted);
        }
    }
}

fn debts() -> &'static Debts {
    let file = rustix::fs::memfd_create("debts", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    Box::leak(Box::new(Debts::create(&file.into()).unwrap()))
}

/// A file of sixteen blocks that were written.
fn written(path: &Path) -> File {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path);
    let file = file.unwrap();
    file.write_all_at(&vec![1; 16 * BLOCK], 0).unwrap();
    file.sync_all().unwrap();
    file
}

fn opened(debts: &'static Debts, file: &File) -> WholeFile<'static> {
    let debt = debts.of(Identity::of(file).unwrap());
    WholeFile::new(debt, Some(open_direct(file).unwrap()))
}

fn blocks(byte: u8, count: usize) -> Buffer {
    let mut blocks = Buffer::zeroed(count);
    blocks.fill(byte);
    blocks
}

fn write(file: &WholeFile<'_>, bytes: &[u8], offset: usize) -> Option<usize> {
    file.write(&[IoSlice::new(bytes)], offset as u64).unwrap()
}

fn is_synced_by_kernel(file: &WholeFile<'_>, is_forced: bool) -> bool {
    let mut is_synced = false;
    let sync = || {
        is_synced = true;
        Ok(())
    };
    file.sync(is_forced, sync).unwrap();
    is_synced
}

#[test]
fn what_is_written_is_durable_at_once() {
    on_each(|mounted| {
        let path = mounted.path().join("log");
        let file = written(&path);
        let whole = opened(debts(), &file);
        // Somebody may have changed the file before it was opened, so the first sync calls the
        // kernel.
        assert!(is_synced_by_kernel(&whole, false));
        let before = mounted.flushes();
        for round in 0..20 {
            let bytes = blocks(round + 2, 2);
            assert_eq!(write(&whole, &bytes, usize::from(round % 15) * BLOCK), Some(2 * BLOCK));
            assert!(!is_synced_by_kernel(&whole, false));
            let mut seen = vec![0; bytes.len()];
            file.read_exact_at(&mut seen, u64::from(round % 15) * BLOCK as u64).unwrap();
            assert!(seen == bytes[..], "readers see the written bytes");
        }
        assert!(
            mounted.flushes() >= before + 20,
            "{before} flushes before 20 writes, {} after",
            mounted.flushes()
        );
        let (one, two) = (blocks(80, 1), blocks(81, 3));
        let pieces = [IoSlice::new(&one), IoSlice::new(&two)];
        assert_eq!(whole.write(&pieces, 8 * BLOCK as u64).unwrap(), Some(4 * BLOCK));
        let seen = fs::read(&path).unwrap();
        assert!(seen[8 * BLOCK..9 * BLOCK] == one[..] && seen[9 * BLOCK..12 * BLOCK] == two[..]);
        assert_eq!(seen.len(), 16 * BLOCK);
        // A program that writes much without a sync should not wait for the disk at each write. So
        // between two syncs, at most eight writes take the short path, and all others go to the
        // kernel. The first of these eight was made above.
        let unsynced = (0..20).map_while(|_| write(&whole, &one, 0)).count();
        assert_eq!(unsynced, 7);
        assert!(!is_synced_by_kernel(&whole, false));
        assert_eq!(write(&whole, &one, 0), Some(BLOCK));
        // A sync that also covers the metadata (fsync) always calls the kernel.
        assert!(is_synced_by_kernel(&whole, true));
    });
}

#[test]
fn what_is_not_aligned_or_was_not_written_is_the_kernels() {
    on_each(|mounted| {
        let file = written(&mounted.path().join("log"));
        let bytes = blocks(7, 4);
        let (debts, unit) = (debts(), 512);
        let whole = opened(debts, &file);
        assert_eq!(
            write(&whole, &bytes[..unit], 5 * unit),
            Some(unit),
            "one device unit is written"
        );
        for (bytes, offset) in [
            (&bytes[..100], 0),
            (&bytes[..BLOCK], 100),
            (&bytes[1..=BLOCK], 0),
            (&bytes[..0], 0),
            (&bytes[..], 13 * BLOCK),
            (&bytes[..], 16 * BLOCK),
            (&bytes[..], 1 << 60),
        ] {
            assert_eq!(
                write(&whole, bytes, offset),
                None,
                "{} bytes at {offset} go to the kernel",
                bytes.len()
            );
        }
        // Blocks 16 to 19 are allocated, blocks 20 to 23 are a hole, and block 24 is written.
        let (at, size) = (16 * BLOCK as u64, 4 * BLOCK as u64);
        rustix::fs::fallocate(&file, FallocateFlags::empty(), at, size).unwrap();
        file.write_all_at(&bytes[..BLOCK], 24 * BLOCK as u64).unwrap();
        for offset in 13..24 {
            let expected = (offset < 16).then_some(BLOCK);
            let written = write(&whole, &bytes[..BLOCK], offset * BLOCK);
            assert_eq!(written, expected, "block {offset}");
        }
        file.sync_all().unwrap();
        assert_eq!(write(&whole, &bytes[..BLOCK], 24 * BLOCK), Some(BLOCK));
        assert_eq!(write(&whole, &bytes, 21 * BLOCK), None);
        // Blocks that the kernel has written meanwhile are found.
        file.write_all_at(&bytes, 16 * BLOCK as u64).unwrap();
        file.sync_all().unwrap();
        assert_eq!(write(&whole, &bytes[..2 * BLOCK], 17 * BLOCK), Some(2 * BLOCK));
        // `whole` stands for another process, which notes that the blocks have moved. Then `other`
        // looks them up again.
        let other = opened(debts, &file);
        assert_eq!(write(&other, &bytes, 0), Some(bytes.len()));
        whole.debt().around(|| file.set_len(2 * BLOCK as u64)).unwrap();
        whole.debt().move_blocks();
        assert_eq!(write(&other, &bytes, 0), None);
        assert_eq!(write(&other, &bytes[..BLOCK], BLOCK), Some(BLOCK));
        assert_eq!(file.metadata().unwrap().len(), 2 * BLOCK as u64);
    });
}

#[test]
fn dirty_pages_and_direct_writes_do_not_undo_each_other() {
    on_each(|mounted| {
        let path = mounted.path().join("log");
        let file = written(&path);
        let whole = opened(debts(), &file);
        let bytes = blocks(9, 1);
        for round in 0..50_u8 {
            // The page is dirty, and the direct write goes to another part of the page.
            file.write_all_at(&[round; 100], 2000).unwrap();
            assert_eq!(write(&whole, &bytes[..512], 0), Some(512));
            file.write_all_at(&[round; 100], 3000).unwrap();
            whole.sync(true, || file.sync_data()).unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            let seen = fs::read(&path).unwrap();
            assert_eq!(seen[..512], bytes[..512]);
            assert_eq!(seen[2000..2100], [round; 100]);
            assert_eq!(seen[3000..3100], [round; 100]);
        }
    });
}

#[test]
fn a_failed_write_is_told_to_all_that_have_the_file_open() {
    let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let path = mounted.path().join("log");
    let file = written(&path);
    let debts = debts();
    let debt = debts.of(Identity::of(&file).unwrap());
    // The kernel refuses each write to a descriptor that is for reading only.
    let failing = WholeFile::new(debt, Some(File::open(&path).unwrap()));
    let other = opened(debts, &file);
    let sync = |file: &WholeFile<'_>| file.sync(false, || Ok(()));
    sync(&other).unwrap();
    let bytes = blocks(9, 1);
    let write = |file: &WholeFile<'_>| file.write(&[IoSlice::new(&bytes)], 0);
    assert!(write(&failing).is_err());
    for file in [&failing, &other] {
        assert_eq!(sync(file).unwrap_err().raw_os_error(), Some(5));
        assert_eq!(file.sync(true, || Ok(())).unwrap_err().raw_os_error(), Some(5));
        assert_eq!(write(file).unwrap_err().raw_os_error(), Some(5));
    }
    // A process that opens the file after the failure begins with a debt: its first sync must call
    // the kernel.
    let later = opened(debts, &file);
    assert!(later.debt().is_owed());
    let failure = later.sync(false, || Err(io::Error::from(ErrorKind::StorageFull)));
    assert_eq!(failure.unwrap_err().kind(), ErrorKind::StorageFull);
    assert!(later.debt().is_owed());
    sync(&later).unwrap();
    assert_eq!(write(&later).unwrap(), Some(BLOCK));
}
