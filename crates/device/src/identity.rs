//! The identity of a device, which stays the same when the device gets another name.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Identifiers that the kernel may have for a block device, best first. Each entry has the path of
/// the identifier's file below the device's directory in `/sys`, and this crate's name for the
/// identifier.
const NAMES: [(&str, &str); 5] = [
    ("dm/uuid", "device-mapper uuid"),
    ("device/wwid", "wwid"),
    ("wwid", "wwid"),
    ("serial", "serial"),
    ("device/serial", "serial"),
];

/// Identity of an NVMe namespace. Both device nodes of the namespace have the same identity. `None`
/// if the controller has no serial number.
pub(crate) fn of_namespace(serial: &str, nsid: u32) -> Option<String> {
    let serial = printable(serial);
    (!serial.is_empty()).then(|| format!("nvme serial {serial} namespace {nsid}"))
}

/// Identity of a block device or partition, according to the kernel; `None` if the kernel knows no
/// identity.
pub(crate) fn of_block_device(path: &Path) -> Option<String> {
    let number = path.metadata().ok()?.rdev();
    let number = format!("{}:{}", libc::major(number), libc::minor(number));
    of_node(&Path::new("/sys/dev/block").join(number).canonicalize().ok()?)
}

/// Like [`of_block_device`], but finds the block device by its directory in `/sys`.
fn of_node(node: &Path) -> Option<String> {
    if let Some(partition) = read(&node.join("partition")) {
        return Some(format!("{} partition {partition}", of_node(node.parent()?)?));
    }
    if let Some(nsid) = read(&node.join("nsid")).and_then(|nsid| nsid.parse().ok()) {
        return of_namespace(&read(&node.join("device/serial"))?, nsid);
    }
    NAMES.iter().find_map(|(file, name)| {
        let said = read(&node.join(file))?;
        let said = if *file == "dm/uuid" { of_mapping(&said)? } else { &said };
        Some(format!("{name} {said}"))
    })
}

/// The part of a device-mapper uuid that does not depend on the mapping's name; `None` if there is
/// no such part. A uuid that cryptsetup made ends with the mapping's name. The 32 digits before the
/// name are the encrypted volume's own uuid, if the volume has one.
fn of_mapping(uuid: &str) -> Option<&str> {
    if !uuid.starts_with("CRYPT-") {
        return Some(uuid);
    }
    let mut end = 0;
    for part in uuid.split_inclusive('-') {
        end += part.len();
        let digits = part.trim_end_matches('-');
        if digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Some(uuid[..end].trim_end_matches('-'));
        }
    }
    None
}

/// The contents of a file; `None` if the file is empty or can't be read.
fn read(path: &Path) -> Option<String> {
    let text = printable(&fs::read_to_string(path).ok()?);
    (!text.is_empty()).then_some(text)
}

/// Strips padding. Devices pad their identifiers with blanks, or even with unprintable bytes.
fn printable(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_graphic()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory for the test");
        for (file, text) in files {
            let path = directory.path().join(file);
            fs::create_dir_all(path.parent().expect("the file is in the directory"))
                .expect("the directory can be written to");
            fs::write(path, text).expect("the directory can be written to");
        }
        directory
    }

    #[test]
    fn a_namespace_has_one_identity_by_either_of_its_nodes() {
        let block = node(&[("nsid", "3\n"), ("device/serial", "S1234   \n"), ("wwid", "eui.00")]);
        assert_eq!(of_node(block.path()), of_namespace("S1234", 3));
        assert_eq!(of_namespace("S1234", 3).as_deref(), Some("nvme serial S1234 namespace 3"));
        assert_ne!(of_namespace("S1234", 3), of_namespace("S1234", 4));
        assert_eq!(of_namespace(" \0", 3), None);
    }

    #[test]
    fn a_part_of_a_disk_is_named_by_its_device() {
        let disk = node(&[("device/wwid", "naa.5002538e\n"), ("sda2/partition", "2\n")]);
        let found = of_node(&disk.path().join("sda2"));
        assert_eq!(found.as_deref(), Some("wwid naa.5002538e partition 2"));
        let nameless = node(&[("loop0p1/partition", "1\n")]);
        assert_eq!(of_node(&nameless.path().join("loop0p1")), None);
    }

    /// The user may give another NAME to `cryptsetup open /dev/sda2 NAME` each time. The identity
    /// must not depend on this name.
    #[test]
    fn an_encrypted_volume_is_the_same_under_any_name() {
        let opened = |uuid: &str| of_node(node(&[("dm/uuid", uuid)]).path());
        let luks = "CRYPT-LUKS2-0123456789abcdef0123456789abcdef";
        let found = opened(&format!("{luks}-data"));
        assert_eq!(found, Some(format!("device-mapper uuid {luks}")));
        assert_eq!(opened(&format!("{luks}-my-data")), found);
        assert_eq!(opened(&format!("{luks}\n")), found);
        let another = "CRYPT-LUKS2-0123456789abcdef0123456789abcde0-data";
        assert_ne!(opened(another), found);
        assert_eq!(
            opened("CRYPT-PLAIN-data"),
            None,
            "a plain dm-crypt volume has no uuid of its own"
        );
    }

    #[test]
    fn the_best_identifier_counts() {
        let device = |files| of_node(node(files).path());
        let logical = device(&[("dm/uuid", "LVM-abc"), ("serial", "x")]);
        assert_eq!(logical.as_deref(), Some("device-mapper uuid LVM-abc"));
        assert_eq!(device(&[("serial", "disk-1\n")]).as_deref(), Some("serial disk-1"));
        assert_eq!(device(&[("device/wwid", "\n"), ("serial", "")]), None);
        assert_eq!(device(&[]), None);
    }
}
