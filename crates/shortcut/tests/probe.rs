//! Tests what a probe says about files on real file systems: whether the short path can take a file
//! (overwrite the file's blocks in place by direct writes), and if not, why.
#![expect(clippy::unwrap_used, reason = "a test fails if it cannot go on")]

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use slimio_device::WriteLease;
use slimio_shortcut::{Probe, Refusal, Space};
use slimio_testing::loops::Mounted;

const MIB: u64 = 1 << 20;
const EXT4: &[&str] = &["mkfs.ext4", "-q", "-O", "inline_data,encrypt,verity"];
const XFS: &[&str] = &["mkfs.xfs", "-q"];
const SIZE: u64 = 320 * MIB;

/// Makes a file with 1 MiB of data that has reached the disk.
fn written(path: &Path) -> File {
    let mut file = File::create(path).unwrap();
    file.write_all(&vec![1; MIB as usize]).unwrap();
    file.sync_all().unwrap();
    file
}

fn refusals(path: &Path) -> Vec<Refusal> {
    Probe::of(path).unwrap().refusals
}

/// Runs a command on a file. If the command fails, prints a message and returns `false`.
fn ran(words: &[&str], path: &Path) -> bool {
    let output = Command::new(words[0]).args(&words[1..]).arg(path).output();
    let is_done = output.is_ok_and(|output| output.status.success());
    if !is_done {
        eprintln!("SKIPPED: {words:?} can't be done here");
    }
    is_done
}

#[test]
fn written_blocks_are_told_from_others() {
    for mkfs in [EXT4, XFS] {
        let Some(mounted) = Mounted::new(mkfs, SIZE, "defaults") else { continue };
        let path = mounted.path().join("log");
        let file = written(&path);
        let probe = Probe::of(&path).unwrap();
        assert!(probe.can_be_taken(), "{:?}", probe.refusals);
        assert!(probe.may_lease);
        assert_eq!(probe.space, Some(Space { written: MIB, unwritten: 0, holes: 0 }));
        if let Some(alignment) = probe.alignment {
            assert!(alignment.offset == 512 && alignment.memory <= 4096, "{alignment:?}");
        }
        rustix::fs::fallocate(&file, FallocateFlags::empty(), MIB, MIB).unwrap();
        file.set_len(4 * MIB).unwrap();
        let space = Probe::of(&path).unwrap().space.unwrap();
        assert_eq!(space, Space { written: MIB, unwritten: MIB, holes: 2 * MIB });
        // Dirty data in the page cache has no blocks yet. The probe makes the kernel give it
        // blocks.
        file.write_all_at(&[2; 8192], 3 * MIB).unwrap();
        let space = Probe::of(&path).unwrap().space.unwrap();
        assert_eq!(space.written, MIB + 8192);
        assert!(refusals(&path).is_empty());
    }
}

#[test]
fn attributes_rule_a_file_out() {
    let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    for (flag, refusal) in
        [("j", Refusal::Journaled(true)), ("i", Refusal::Immutable), ("a", Refusal::AppendOnly)]
    {
        let path = mounted.path().join(flag);
        drop(written(&path));
        if ran(&["chattr", &format!("+{flag}")], &path) {
            let refusals = refusals(&path);
            assert!(refusals.contains(&refusal), "{flag}: {refusals:?}");
            assert!(ran(&["chattr", &format!("-{flag}")], &path));
            assert!(Probe::of(&path).unwrap().can_be_taken());
        }
    }
    let small = mounted.path().join("small");
    fs::write(&small, "a few bytes").unwrap();
    assert!(refusals(&small).contains(&Refusal::Special), "bytes in the inode have no block");
}

#[test]
fn shared_blocks_rule_a_file_out() {
    let Some(mounted) = Mounted::new(XFS, SIZE, "defaults") else { return };
    let (path, copy) = (mounted.path().join("log"), mounted.path().join("copy"));
    drop(written(&path));
    if ran(&["cp", "--reflink=always", path.to_str().unwrap()], &copy) {
        assert_eq!(refusals(&path), [Refusal::Shared]);
    }
}

#[test]
fn other_file_systems_rule_it_out() {
    if let Some(mounted) = Mounted::new(EXT4, SIZE, "data=journal") {
        let path = mounted.path().join("log");
        drop(written(&path));
        assert!(refusals(&path).contains(&Refusal::Journaled(false)));
    }
    if let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") {
        let path = mounted.path().join("log");
        drop(written(&path));
        // The remount may take several tries, because a process that another test starts has the
        // file open for writing, too, from its fork to its exec.
        let begin = Instant::now();
        while !ran(&["mount", "-o", "remount,ro"], mounted.path()) {
            assert!(begin.elapsed() < Duration::from_secs(20), "a file stays open for writing");
        }
        let found = refusals(&path);
        assert!(found.iter().any(|one| matches!(one, Refusal::NotWritable(_))), "{found:?}");
        let found = refusals(&mounted.path().join("lost+found"));
        assert!(found.contains(&Refusal::NotRegular), "{found:?}");
    }
    if let Some(mounted) = Mounted::new(&["mkfs.btrfs", "-q"], SIZE, "defaults") {
        let path = mounted.path().join("log");
        drop(written(&path));
        assert!(refusals(&path).contains(&Refusal::Moved("btrfs".into())));
    }
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = memory.path().join("log");
    drop(written(&path));
    assert!(refusals(&path).contains(&Refusal::Memory("tmpfs".into())));
    assert_eq!(refusals(Path::new("/dev/null"))[0], Refusal::NotRegular);
    assert!(Probe::of(&memory.path().join("missing")).is_err());
}

#[test]
fn whoever_holds_a_lease_is_not_waited_for() {
    let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let path = mounted.path().join("log");
    let file = written(&path);
    let lease = WriteLease::take(&file).unwrap().unwrap();
    assert_eq!(Probe::of(&path).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(lease);
    assert!(Probe::of(&path).unwrap().can_be_taken());
}
