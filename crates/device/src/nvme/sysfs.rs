//! Finds the two device nodes of a namespace in `/sys`, from the path of one of them. The path may
//! have any name, or be a link: only its device number counts.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::OpenError;

/// Both device nodes of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nodes {
    /// `/dev/ng0n1`
    pub(crate) generic: PathBuf,
    /// `/dev/nvme0n1`
    pub(crate) block: PathBuf,
    /// The block device's directory `queue` in `/sys`.
    pub(crate) queue: PathBuf,
}

/// Finds both nodes of a namespace. `path` is one of them.
///
/// # Errors
/// [`OpenError::Unsuitable`] when `path` is not a whole NVMe namespace.
pub(crate) fn nodes(path: &Path) -> Result<Nodes, OpenError> {
    let metadata = path.metadata().map_err(|error| OpenError::io("looking at", path, &error))?;
    let kind = metadata.file_type();
    let number = format!("{}:{}", libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
    if kind.is_char_device() {
        let node = Path::new("/sys/dev/char").join(number);
        of_generic(&node, Path::new("/dev"))
    } else if kind.is_block_device() {
        of_block(&Path::new("/sys/dev/block").join(number), Path::new("/dev"))
    } else {
        Err("it is no device".into())
    }
    .map_err(|why| OpenError::unsuitable(path, why))
}

/// Finds both nodes from the generic device's directory in `/sys`.
fn of_generic(node: &Path, dev: &Path) -> Result<Nodes, String> {
    let no_generic = || "it is no NVMe generic device (such as /dev/ng0n1)".to_owned();
    let node = node.canonicalize().map_err(|_| no_generic())?;
    let name = name_of(&node).filter(|name| name.starts_with("ng")).ok_or_else(no_generic)?;
    let owner = node.join("device").canonicalize().map_err(|_| no_generic())?;
    let wanted = instance(&name, "ng").ok_or_else(no_generic)?;
    let block = namespaces(&owner)
        .into_iter()
        .find(|block| instance(block, "nvme").as_deref() == Some(&*wanted))
        .ok_or(
            "its block device can't be found: the namespace has a format that the \
                kernel's block layer does not know",
        )?;
    Ok(Nodes {
        generic: dev.join(&name),
        queue: owner.join(&block).join("queue"),
        block: dev.join(block),
    })
}

/// Finds both nodes from the block device's directory in `/sys`.
fn of_block(node: &Path, dev: &Path) -> Result<Nodes, String> {
    let no_nvme = || "it is no NVMe namespace".to_owned();
    let node = node.canonicalize().map_err(|_| no_nvme())?;
    let name = name_of(&node).filter(|name| name.starts_with("nvme")).ok_or_else(no_nvme)?;
    if node.join("partition").exists() {
        return Err("it is a partition: passthrough takes whole namespaces only".into());
    }
    let owner = node.parent().ok_or_else(no_nvme)?;
    let wanted = instance(&name, "nvme").ok_or_else(no_nvme)?;
    let entries = fs::read_dir(owner).map_err(|_| no_nvme())?.flatten();
    let generic = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .find(|entry| instance(entry, "ng").as_deref() == Some(&*wanted))
        .ok_or("the kernel shows no generic device beside it (this needs Linux 5.13 or later)")?;
    Ok(Nodes { generic: dev.join(generic), queue: node.join("queue"), block: dev.join(name) })
}

/// Names of the namespaces' block devices below a controller or subsystem.
fn namespaces(owner: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(owner) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.path().join("queue").is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The numbers after a name's prefix: `0n1` for `ng0n1` and the prefix `ng`. `None` if the name has
/// another form, for example `nvme0c0n1`, which is one path of a multipath device.
fn instance(name: &str, prefix: &str) -> Option<String> {
    let numbers = name.strip_prefix(prefix)?;
    let (owner, namespace) = numbers.split_once('n')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(owner) && is_number(namespace)).then(|| numbers.to_owned())
}

fn name_of(node: &Path) -> Option<String> {
    Some(node.file_name()?.to_string_lossy().into_owned())
}

/// The largest size of the data of a passthrough command that the kernel accepts, in bytes. It
/// follows from the settings of the device's queue. `None` if the kernel does not report them.
pub(crate) fn transfer_size_max(queue: &Path) -> Option<u64> {
    let read = |name| -> io::Result<u64> {
        let text = fs::read_to_string(queue.join(name))?;
        text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
    };
    let hardware = read("max_hw_sectors_kb").ok()? << 10;
    // In the worst case, each page of a buffer is a segment of its own.
    let segments = read("max_segments").ok()?.checked_mul(PAGE_SIZE)?;
    Some(hardware.min(segments))
}

/// Size of a page, in bytes, for the limits of transfers.
const PAGE_SIZE: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with a controller that has two namespaces, laid out as in `/sys`.
    fn controller() -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let owner = directory.path().join("nvme0");
        for name in ["nvme0n1", "nvme0n12", "nvme0c0n1", "ng0n1", "ng0n12", "hwmon1"] {
            fs::create_dir_all(owner.join(name)).expect("the directory can be written to");
            if name.starts_with("nvme") {
                fs::create_dir(owner.join(name).join("queue"))
                    .expect("the directory can be written to");
            }
            if name.starts_with("ng") {
                let device = owner.join(name).join("device");
                std::os::unix::fs::symlink("..", device).expect("the directory can be written to");
            }
        }
        let part = owner.join("nvme0n1/nvme0n1p1");
        fs::create_dir(&part).expect("the directory can be written to");
        fs::write(part.join("partition"), "1\n").expect("the file can be written");
        directory
    }

    #[test]
    fn the_two_nodes_of_a_namespace_are_found_from_either() {
        let directory = controller();
        let owner = directory.path().join("nvme0");
        let dev = Path::new("/dev");
        for number in ["0n1", "0n12"] {
            let nodes = of_generic(&owner.join(format!("ng{number}")), dev)
                .expect("the node is that of a namespace");
            assert_eq!(nodes.block, dev.join(format!("nvme{number}")));
            assert_eq!(nodes.generic, dev.join(format!("ng{number}")));
            assert!(nodes.queue.is_dir());
            let other = of_block(&owner.join(format!("nvme{number}")), dev)
                .expect("the node is that of a namespace");
            assert_eq!(other.generic, nodes.generic);
            assert_eq!(other.block, nodes.block);
        }
    }

    #[test]
    fn what_is_no_namespace_is_refused_with_a_sentence() {
        let directory = controller();
        let owner = directory.path().join("nvme0");
        let dev = Path::new("/dev");
        let refused = of_block(&owner.join("nvme0n1/nvme0n1p1"), dev).expect_err("a partition");
        assert!(refused.contains("it is a partition"), "{refused}");
        let refused = of_generic(&owner.join("hwmon1"), dev).expect_err("hwmon1 is no namespace");
        assert!(refused.contains("no NVMe generic device"), "{refused}");
        let refused = of_block(&owner.join("hwmon1"), dev).expect_err("hwmon1 is no namespace");
        assert!(refused.contains("no NVMe namespace"), "{refused}");
        fs::remove_dir_all(owner.join("ng0n1")).expect("the directory can be removed");
        let refused =
            of_block(&owner.join("nvme0n1"), dev).expect_err("the generic device is missing");
        assert!(refused.contains("no generic device beside it"), "{refused}");
        let refused = nodes(Path::new("/dev/null")).expect_err("/dev/null is no namespace");
        assert!(refused.to_string().contains("no NVMe generic device"), "{refused}");
    }

    #[test]
    fn the_transfer_limit_is_the_least_of_two() {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let set = |name, value| {
            fs::write(directory.path().join(name), value).expect("the directory can be written to");
        };
        assert_eq!(transfer_size_max(directory.path()), None);
        set("max_hw_sectors_kb", "512\n");
        set("max_segments", "127\n");
        assert_eq!(transfer_size_max(directory.path()), Some(127 * 4096));
        set("max_segments", "1000\n");
        assert_eq!(transfer_size_max(directory.path()), Some(512 << 10));
    }
}
