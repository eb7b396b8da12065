//! Finds out what a file or block device is on: file system, mount, write cache.
//!
//! All facts are read from `/proc` and `/sys`. A fact that is missing there is treated as unknown,
//! and the safe choice is made.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::{WriteCache, sys};

/// The file system that a directory is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// The kernel's name for the type of the file system, for example `ext4`; "unknown" if the type
    /// can't be found out.
    pub kind: String,
    /// The source of the mount: usually a device.
    pub source: String,
    /// The options of the mount and those of the file system, separated by commas.
    pub options: String,
    /// Whether the file system journals changes of metadata; `None` if unknown.
    pub has_journal: Option<bool>,
    /// Whether a completed write is stable on the device that the file system is on.
    pub write_cache: WriteCache,
}

impl FileSystem {
    /// The file system that `file` is on.
    ///
    /// # Errors
    /// If the file's device can't be found out.
    pub fn of(file: &File) -> io::Result<Self> {
        let device = file.metadata()?.dev();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mount = sys::mount_id(file).and_then(|id| {
            mounts.lines().find_map(|line| Mount::parse(line).filter(|m| m.id == id))
        });
        let Some(mount) = mount else {
            return Ok(Self {
                kind: "unknown".into(),
                source: String::new(),
                options: String::new(),
                has_journal: None,
                write_cache: WriteCache::Unknown,
            });
        };
        // Some file systems have a device number of their own. Then only the mount's source names
        // the device.
        let queue = queue_of(device).or_else(|| queue_of(fs::metadata(&mount.source).ok()?.rdev()));
        let has_journal = match mount.kind.as_str() {
            "ext4" => journal_of_ext4(device),
            "ext2" | "tmpfs" => Some(false),
            "ext3" | "xfs" => Some(true),
            _ => None,
        };
        Ok(Self {
            write_cache: queue.map_or(WriteCache::Unknown, |queue| write_cache(&queue)),
            kind: mount.kind,
            source: mount.source,
            options: mount.options,
            has_journal,
        })
    }

    /// Whether the mount has an option, as `name` or `name=value`.
    pub fn has_option(&self, option: &str) -> bool {
        self.options.split(',').any(|one| one == option)
    }

    /// Whether each store to a mapped file may need new space, whatever the file's attributes are.
    pub(crate) fn copies_on_write(&self) -> bool {
        matches!(self.kind.as_str(), "btrfs" | "bcachefs" | "zfs" | "nilfs2")
    }

    /// Notes for the user about weaknesses of the file system or its mount, in sentences without a
    /// full stop.
    pub(crate) fn notes(&self) -> Vec<String> {
        let kind = &self.kind;
        let mut notes = Vec::new();
        match kind.as_str() {
            "btrfs" => notes.push(
                "btrfs writes metadata with each durable write, even where it overwrites the \
                 volume's files in place; ext4 or XFS would be faster"
                    .into(),
            ),
            "bcachefs" | "zfs" | "f2fs" | "nilfs2" => notes.push(format!(
                "{kind} does not overwrite in place: each durable write also writes metadata; ext4 \
                 or XFS would be faster"
            )),
            "tmpfs" | "ramfs" => notes.push(format!(
                "{kind} is memory: its files do not survive a restart of the machine"
            )),
            "overlay" => notes.push(
                "the files are in a container's own layer (overlay): a mounted volume would be \
                 faster and outlive the container"
                    .into(),
            ),
            "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "fuse" | "ceph" | "virtiofs" => {
                notes.push(format!(
                    "{kind} is not a local disk: its server decides whether a flush makes data \
                     durable"
                ));
            }
            "unknown" => notes.push("the type of the file system is not known".into()),
            _ => {}
        }
        if self.has_option("data=journal") {
            notes.push(format!(
                "{kind} is mounted with data=journal: data is written twice; data=ordered would be \
                 faster"
            ));
        }
        if self.has_option("sync") {
            notes.push(format!("{kind} is mounted with sync: every write waits for the disk"));
        }
        if self.has_option("nobarrier") || self.has_option("barrier=0") {
            notes.push(format!(
                "{kind} is mounted without barriers: a power cut can lose writes that were \
                 acknowledged as durable"
            ));
        }
        notes
    }
}

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    id: u64,
    kind: String,
    source: String,
    options: String,
}

impl Mount {
    /// Parses a line, for example
    /// `36 35 98:0 /root /mount/point rw,noatime master:1 - ext4 /dev/sda rw,errors=continue`.
    fn parse(line: &str) -> Option<Self> {
        let (mount, super_block) = line.split_once(" - ")?;
        let mut mount = mount.split(' ');
        let id = mount.next()?.parse().ok()?;
        let options = mount.nth(4)?;
        let mut super_block = super_block.split(' ');
        let (kind, source) = (super_block.next()?, super_block.next()?);
        let options = format!("{options},{}", super_block.next().unwrap_or_default());
        Some(Self { id, kind: kind.into(), source: source.into(), options })
    }
}

/// The directory `queue` of a block device in `/sys`. For a partition, the `queue` of its whole
/// disk.
fn queue_of(device: u64) -> Option<PathBuf> {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let node = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let own = node.join("queue");
    if own.is_dir() {
        return Some(own);
    }
    let whole = node.canonicalize().ok()?.parent()?.join("queue");
    whole.is_dir().then_some(whole)
}

/// Like [`queue_of`], but for an open block device.
pub(crate) fn queue_of_file(file: &File) -> Option<PathBuf> {
    queue_of(file.metadata().ok()?.rdev())
}

/// Whether completed writes are stable, according to a device's directory `queue`.
fn write_cache(queue: &Path) -> WriteCache {
    let read = |name| fs::read_to_string(queue.join(name)).unwrap_or_default();
    decide_write_cache(read("write_cache").trim(), read("fua").trim())
}

fn decide_write_cache(write_cache: &str, fua: &str) -> WriteCache {
    match (write_cache, fua) {
        ("write through", _) => WriteCache::Stable,
        ("write back", "1") => WriteCache::VolatileWithFua,
        ("write back", _) => WriteCache::Volatile,
        _ => WriteCache::Unknown,
    }
}

/// Whether completed writes are stable on a block device.
pub(crate) fn write_cache_of_block_device(file: &File) -> io::Result<WriteCache> {
    let queue = queue_of(file.metadata()?.rdev());
    Ok(queue.map_or(WriteCache::Unknown, |queue| write_cache(&queue)))
}

/// Number of write streams of a block device (Linux 6.16 and later). With NVMe FDP, these are the
/// device's placements.
pub(crate) fn write_streams(file: &File) -> io::Result<u8> {
    let queue = queue_of(file.metadata()?.rdev());
    let text = queue.and_then(|queue| fs::read_to_string(queue.join("max_write_streams")).ok());
    Ok(parse_write_streams(text.as_deref()))
}

fn parse_write_streams(text: Option<&str>) -> u8 {
    let count: u32 = text.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    u8::try_from(count).unwrap_or(u8::MAX)
}

/// Whether the ext4 file system on a device has a journal. For a file system with a journal, `/sys`
/// names the kernel thread that writes the journal.
fn journal_of_ext4(device: u64) -> Option<bool> {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let node = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let task = Path::new("/sys/fs/ext4").join(node.file_name()?).join("journal_task");
    Some(fs::read_to_string(task).ok()?.trim() != "<none>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read() {
        let line =
            "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:7 - ext4 /dev/root rw,discard";
        let mount = Mount::parse(line).expect("the line describes a mount");
        assert_eq!(mount.id, 36);
        assert_eq!((mount.kind.as_str(), mount.source.as_str()), ("ext4", "/dev/root"));
        assert_eq!(mount.options, "rw,noatime,rw,discard");
        assert_eq!(Mount::parse("nonsense"), None);
    }

    #[test]
    fn unknown_is_never_taken_for_stable() {
        assert_eq!(decide_write_cache("write through", "0"), WriteCache::Stable);
        assert_eq!(decide_write_cache("write back", "1"), WriteCache::VolatileWithFua);
        assert_eq!(decide_write_cache("write back", "0"), WriteCache::Volatile);
        assert_eq!(decide_write_cache("", ""), WriteCache::Unknown);
        assert_eq!(decide_write_cache("something new", "1"), WriteCache::Unknown);
    }

    #[test]
    fn write_streams_are_counted_as_far_as_an_operation_can_name_them() {
        assert_eq!(parse_write_streams(None), 0);
        assert_eq!(parse_write_streams(Some("0\n")), 0);
        assert_eq!(parse_write_streams(Some("8\n")), 8);
        assert_eq!(parse_write_streams(Some("65535\n")), 255);
        assert_eq!(parse_write_streams(Some("many")), 0);
    }

    #[test]
    fn the_present_file_system_has_a_name() {
        let directory = File::open(".").expect("there is a current directory");
        let found = FileSystem::of(&directory).expect("the file system is found");
        assert!(!found.kind.is_empty());
        let shared_memory = File::open("/dev/shm").expect("Linux has /dev/shm");
        let found = FileSystem::of(&shared_memory).expect("the file system is found");
        assert_eq!((found.kind.as_str(), found.write_cache), ("tmpfs", WriteCache::Unknown));
        assert!(found.notes()[0].contains("is memory"), "{found:?}");
    }

    #[test]
    fn what_is_slow_or_unsafe_is_said() {
        let with = |kind: &str, options: &str| {
            let file_system = FileSystem {
                kind: kind.into(),
                source: "/dev/sda".into(),
                options: options.into(),
                has_journal: None,
                write_cache: WriteCache::Unknown,
            };
            file_system.notes().join(" ")
        };
        assert_eq!(with("ext4", "rw,relatime,rw,discard"), "");
        assert!(with("ext4", "rw,data=journal").contains("written twice"));
        assert!(with("ext4", "rw,nobarrier").contains("power cut"));
        assert!(with("xfs", "rw,sync").contains("every write waits"));
        assert!(with("btrfs", "rw").contains("metadata with each durable write"));
        assert!(with("f2fs", "rw").contains("does not overwrite in place"));
        assert!(with("overlay", "rw").contains("mounted volume"));
    }
}
