//! Finds the holder of a block device or a lock, as far as this process can see.
//!
//! The system call that fails says only that the device or lock is held, not by whom. So this
//! module looks for mounts, for devices that are built on the device, and for descriptors of living
//! processes, and looks up locks in `/proc/locks`. If it finds nothing, the holder is a process in
//! another container, or an operation in flight whose process has ended.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::sys;

/// A device and the devices that overlap it: its partitions, or the disk that it is a partition of.
struct Family {
    /// Names of the devices in `/sys`.
    names: Vec<String>,
    numbers: Vec<u64>,
}

impl Family {
    /// The family of the device at `path`.
    fn of(path: &Path) -> Self {
        let mut family = Self { names: Vec::new(), numbers: Vec::new() };
        let Ok(metadata) = path.metadata() else { return family };
        family.numbers.push(metadata.rdev());
        let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
        let node = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let Ok(node) = node.canonicalize() else { return family };
        family.names.extend(node.file_name().map(name));
        let is_part = |node: &Path| node.join("partition").exists();
        let mut relatives = Vec::new();
        if is_part(&node) {
            relatives.extend(node.parent().map(Path::to_path_buf));
        } else {
            let below = fs::read_dir(&node).into_iter().flatten().flatten();
            relatives.extend(below.map(|entry| entry.path()).filter(|node| is_part(node)));
        }
        for node in relatives {
            let number = fs::read_to_string(node.join("dev")).ok();
            let number = number.as_deref().and_then(|text| parse_number(text.trim()));
            let (Some(number), Some(file_name)) = (number, node.file_name()) else { continue };
            family.numbers.push(number);
            family.names.push(name(file_name));
        }
        family
    }
}

fn name(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}

/// Parses a device number such as `259:3`.
fn parse_number(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// The kernel's own uses of a block device, in words: mounts, devices built on it, swap space.
pub(crate) fn in_kernel(path: &Path) -> Vec<String> {
    let family = Family::of(path);
    let mut found = BTreeSet::new();
    let own = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    found.extend(mounts(&own, &family));
    if found.is_empty() {
        // The device may be mounted in another container.
        for process in processes() {
            let theirs = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
            found.extend(mounts(&theirs, &family));
        }
    }
    for name in &family.names {
        let built = Path::new("/sys/class/block").join(name).join("holders");
        for entry in fs::read_dir(built).into_iter().flatten().flatten() {
            found.insert(format!("{} is built on /dev/{name}", entry.file_name().display()));
        }
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    for swap in swaps.lines().skip(1).filter_map(|line| line.split(' ').next()) {
        let number = Path::new(swap).metadata().map(|metadata| metadata.rdev());
        if number.is_ok_and(|number| number != 0 && family.numbers.contains(&number)) {
            found.insert(format!("{swap} is used as swap space"));
        }
    }
    found.into_iter().collect()
}

/// The mounts of the family's devices, in words. `mountinfo` is the text of a process's file
/// `/proc/PID/mountinfo`.
fn mounts(mountinfo: &str, family: &Family) -> Vec<String> {
    let about = |line: &str| {
        // A line is, for example:
        // `36 35 98:0 /root /mount/point rw,noatime master:1 - ext4 /dev/sda rw,errors=continue`
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ');
        let number = parse_number(mount.nth(2)?);
        let place = mount.nth(1)?;
        let source = file_system.split(' ').nth(1)?;
        let name = source.strip_prefix("/dev/");
        // Some file systems have a device number of their own. Then only the mount's source names
        // the device.
        let is_named = name.is_some_and(|name| family.names.iter().any(|one| one == name));
        let is_numbered = number.is_some_and(|number| family.numbers.contains(&number));
        (is_named || is_numbered).then(|| format!("{source} is mounted at {place}"))
    };
    mountinfo.lines().filter_map(about).collect()
}

/// A living process that has a block device open for writing, as every exclusive holder does. A
/// process that only reads is no holder.
pub(crate) fn process(path: &Path) -> Option<u32> {
    let family = Family::of(path);
    processes().find(|process| writes(process, &family)).and_then(|process| {
        let name = process.file_name()?;
        name.to_str()?.parse().ok()
    })
}

/// Locks a device for reading, until the result is closed or the process ends. The lock shows that
/// a living process has the device. Even processes that are not allowed to look at our descriptors
/// can see the lock. The lock keeps no process out, and udev ignores locks of this kind.
///
/// # Errors
/// When the kernel can't lock.
pub(crate) fn show(path: &Path) -> io::Result<File> {
    let file = open_for_look(path)?;
    sys::lock_for_reading(&file)?;
    Ok(file)
}

/// Whether a process [shows](show) that it has a device. The answer is `false` if that process is
/// in another container and uses another node (file in `/dev`) of the same device.
pub(crate) fn is_shown(path: &Path) -> bool {
    open_for_look(path).and_then(|file| sys::is_locked_for_reading(&file)).unwrap_or(false)
}

fn open_for_look(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// The process that holds the lock of `file`; `None` if this process can't see a holder.
pub(crate) fn of_lock(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let (major, minor) = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
    let place = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
    holder_in(&fs::read_to_string("/proc/locks").ok()?, &place)
}

/// Like [`of_lock`], but only if that process lives and has the file open. The lock may have
/// outlived its process, because an operation in flight still uses the file. Then no process has a
/// descriptor of the file.
pub(crate) fn living_of_lock(file: &File) -> Option<u32> {
    let (holder, own) = (of_lock(file)?, file.metadata().ok()?);
    let open = fs::read_dir(format!("/proc/{holder}/fd")).ok()?.flatten();
    let is_it = |entry: fs::DirEntry| {
        let found = fs::metadata(entry.path());
        found.is_ok_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino()))
    };
    // If this process is the holder, `file` itself is among the counted descriptors.
    let own_count = usize::from(holder == std::process::id());
    (open.filter_map(|entry| is_it(entry).then_some(())).count() > own_count).then_some(holder)
}

/// Finds the holder of the lock on `place` in `locks`, the text of `/proc/locks`. A line of this
/// text is, for example, `1: FLOCK  ADVISORY  WRITE 708 fe:00:131 0 EOF`.
fn holder_in(locks: &str, place: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, "FLOCK", _, _, holder, locked, ..] = words[..] else { return None };
        // A holder in another container has no process id here, so the kernel shows zero or less.
        (locked == place).then(|| holder.parse().ok().filter(|holder| *holder > 0))?
    })
}

fn processes() -> impl Iterator<Item = PathBuf> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit))
        .map(|entry| entry.path())
}

fn writes(process: &Path, family: &Family) -> bool {
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    open.into_iter().any(|entry| {
        let is_it = fs::metadata(entry.path()).is_ok_and(|metadata| {
            metadata.file_type().is_block_device() && family.numbers.contains(&metadata.rdev())
        });
        is_it && {
            let about = process.join("fdinfo").join(entry.file_name());
            fs::read_to_string(about).is_ok_and(|about| is_for_writing(&about))
        }
    })
}

/// Whether `about`, the text of a file in `/proc/PID/fdinfo`, describes a descriptor that can be
/// written to.
fn is_for_writing(about: &str) -> bool {
    let flags = about.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_number_and_by_name() {
        let family = Family {
            names: vec!["nvme0n1".into(), "nvme0n1p1".into()],
            numbers: vec![libc::makedev(259, 0), libc::makedev(259, 1)],
        };
        let mountinfo = "\
            22 1 259:1 / / rw - ext4 /dev/root rw\n\
            23 1 259:10 / /other rw - ext4 /dev/nvme1n1 rw\n\
            24 1 0:30 / /data rw shared:1 - btrfs /dev/nvme0n1p1 rw\n\
            25 1 0:31 / /tmp rw - tmpfs tmpfs rw\n\
            nonsense\n";
        assert_eq!(
            mounts(mountinfo, &family),
            ["/dev/root is mounted at /", "/dev/nvme0n1p1 is mounted at /data"]
        );
    }

    #[test]
    fn who_has_locked_a_file_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 707 fe:00:131 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 708 fe:00:1310 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 709 fe:00:131 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 710 fe:00:131 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 0 fe:00:132 0 EOF\n";
        assert_eq!(holder_in(locks, "fe:00:131"), Some(709));
        assert_eq!(holder_in(locks, "fe:00:132"), None);
        assert_eq!(holder_in(locks, "fe:00:133"), None);
        let file = tempfile::tempfile().expect("a file for the test");
        assert_eq!(of_lock(&file), None);
        file.lock().expect("no other process has the file");
        // The kernel's list may lack a lock while other locks are taken and released.
        assert!((0..1000).any(|_| of_lock(&file) == Some(std::process::id())));
    }

    #[test]
    fn who_shows_itself_is_seen_until_it_ends() {
        let file = tempfile::NamedTempFile::new().expect("a file for the test");
        assert!(!is_shown(file.path()));
        let first = show(file.path()).expect("the file can be locked");
        let second = show(file.path()).expect("several processes may have this lock");
        drop(first);
        assert!(is_shown(file.path()));
        drop(second);
        assert!(!is_shown(file.path()));
        assert!(!is_shown(Path::new("/missing")));
    }

    #[test]
    fn who_only_looks_is_no_holder() {
        assert!(is_for_writing("pos:\t0\nflags:\t0100002\nmnt_id:\t15\n"));
        assert!(is_for_writing("flags:\t01\n"));
        assert!(!is_for_writing("pos:\t0\nflags:\t0140000\n"));
        assert!(!is_for_writing(""));
    }
}
