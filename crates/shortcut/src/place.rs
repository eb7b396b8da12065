//! Which file systems overwrite a file in place. Only these can take the short path, on which a
//! direct write replaces a file's data and changes no metadata.

use slimio_device::{Attributes, FileSystem};

use crate::Refusal;

/// Why a file system, or one of its mount options, rules out the short path. `None` if nothing
/// does.
pub(crate) fn refusal_of_file_system(file_system: &FileSystem) -> Option<Refusal> {
    let kind = file_system.kind.clone();
    let refusal = match file_system.kind.as_str() {
        "ext4" | "xfs" => None,
        "btrfs" | "bcachefs" | "zfs" | "f2fs" | "nilfs2" => Some(Refusal::Moved(kind)),
        "overlay" => Some(Refusal::Overlay),
        "tmpfs" | "ramfs" | "devtmpfs" => Some(Refusal::Memory(kind)),
        "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "ceph" | "virtiofs" | "fuseblk" => {
            Some(Refusal::Remote(kind))
        }
        fuse if fuse == "fuse" || fuse.starts_with("fuse.") => Some(Refusal::Remote(kind)),
        _ => Some(Refusal::Unknown(kind)),
    };
    let is_journaled = file_system.has_option("data=journal");
    refusal.or_else(|| is_journaled.then_some(Refusal::Journaled(false)))
}

/// Everything in a file's attributes that rules out the short path.
pub(crate) fn refusals_of_attributes(attributes: &Attributes) -> Vec<Refusal> {
    [
        (attributes.is_journaled, Refusal::Journaled(true)),
        (attributes.is_encrypted, Refusal::Encrypted),
        (attributes.is_compressed, Refusal::Compressed),
        (attributes.is_sealed, Refusal::Sealed),
        (attributes.is_immutable, Refusal::Immutable),
        (attributes.is_append_only, Refusal::AppendOnly),
        (attributes.is_memory, Refusal::Dax),
        (attributes.is_realtime, Refusal::Realtime),
        (attributes.direct == Some(None), Refusal::NotDirect),
    ]
    .into_iter()
    .filter_map(|(is_so, refusal)| is_so.then_some(refusal))
    .collect()
}

#[cfg(test)]
mod tests {
    use slimio_device::WriteCache;

    use super::*;

    fn refused(kind: &str, options: &str) -> Option<Refusal> {
        refusal_of_file_system(&FileSystem {
            kind: kind.into(),
            source: "/dev/sda1".into(),
            options: options.into(),
            has_journal: Some(true),
            write_cache: WriteCache::Unknown,
        })
    }

    #[test]
    fn only_file_systems_that_overwrite_in_place_are_taken() {
        assert_eq!(refused("ext4", "rw,relatime,data=ordered"), None);
        assert_eq!(refused("xfs", "rw"), None);
        assert_eq!(refused("ext4", "rw,data=journal"), Some(Refusal::Journaled(false)));
        for kind in ["btrfs", "bcachefs", "zfs", "f2fs", "nilfs2"] {
            assert_eq!(refused(kind, "rw"), Some(Refusal::Moved(kind.into())));
        }
        assert_eq!(refused("overlay", "rw"), Some(Refusal::Overlay));
        for kind in ["nfs4", "fuse.sshfs", "9p"] {
            assert_eq!(refused(kind, "rw"), Some(Refusal::Remote(kind.into())));
        }
        for kind in ["vfat", "ext2", "unknown", ""] {
            assert_eq!(refused(kind, "rw"), Some(Refusal::Unknown(kind.into())));
        }
    }
}
