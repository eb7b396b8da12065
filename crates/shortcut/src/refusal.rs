//! Why a file is left to the kernel.

use std::fmt;

/// Why a file can't take the short path. Its `Display` is one sentence without a full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The file is a directory, a pipe, a device or the like.
    NotRegular,
    /// The mount or the file's permissions forbid writing.
    NotWritable(String),
    /// The file system writes each change to a new place.
    Moved(String),
    /// The file is in a container's own layer (overlay).
    Overlay,
    /// Another machine or another program holds the file.
    Remote(String),
    /// The file system is in memory.
    Memory(String),
    /// The file system is not one of those that are known to overwrite in place.
    Unknown(String),
    /// The file system writes data to its journal first. `true` if an attribute of the file demands
    /// this, and `false` if a mount option does.
    Journaled(bool),
    /// The content is encrypted by the file system.
    Encrypted,
    /// The content is compressed by the file system.
    Compressed,
    /// The content is sealed (fs-verity).
    Sealed,
    /// The file has the attribute `i` of `chattr`.
    Immutable,
    /// The file has the attribute `a` of `chattr`.
    AppendOnly,
    /// The kernel accesses the file as memory (DAX).
    Dax,
    /// The data is on the realtime device of XFS.
    Realtime,
    /// Some blocks also belong to another file.
    Shared,
    /// Some bytes are not in blocks of their own.
    Special,
    /// The file system takes no direct I/O on this file.
    NotDirect,
    /// The file system does not say when the file was made.
    Ageless,
    /// The page cache keeps pages of the file, because a program has mapped it.
    Cached,
    /// The file system does not say where the bytes are.
    NotTold(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRegular => f.write_str("it is no regular file"),
            Self::NotWritable(why) => write!(f, "it can't be written: {why}"),
            Self::Moved(kind) => write!(
                f,
                "{kind} writes each change to a new place, so nothing can be overwritten in place"
            ),
            Self::Overlay => f.write_str(
                "it is in a container's own layer (overlay); a file on a mounted volume can be taken",
            ),
            Self::Remote(kind) => {
                write!(f, "{kind} is not a local disk, so it is not known what an overwrite does")
            }
            Self::Memory(kind) => write!(f, "{kind} is memory, where nothing is durable"),
            Self::Unknown(kind) => {
                write!(f, "{kind} is not known to overwrite in place; ext4 and XFS do so")
            }
            Self::Journaled(false) => f.write_str(
                "the file system is mounted with data=journal, so data is written to the journal first",
            ),
            Self::Journaled(true) => f.write_str(
                "its data goes through the journal; chattr -j changes that",
            ),
            Self::Encrypted => f.write_str("the file system encrypts it"),
            Self::Compressed => f.write_str("the file system compresses it"),
            Self::Sealed => f.write_str("it is sealed by fs-verity"),
            Self::Immutable => f.write_str("nobody may change it; chattr -i changes that"),
            Self::AppendOnly => {
                f.write_str("it may only grow, not be overwritten; chattr -a changes that")
            }
            Self::Dax => f.write_str("it is accessed as memory (DAX), so it has no blocks to write"),
            Self::Realtime => {
                f.write_str("its data is on the realtime device of XFS, which is not supported")
            }
            Self::Shared => f.write_str(
                "it shares blocks with another file (a reflink copy), and an overwrite moves such blocks",
            ),
            Self::Special => f.write_str(
                "a part of it has no blocks of its own: that part is packed with other data, or has no \
                 place on the disk yet",
            ),
            Self::Ageless => f.write_str(
                "the file system does not say when the file was made (ext4 with small inodes), so \
                 after a crash, the file could be mistaken for another one",
            ),
            Self::NotDirect => f.write_str("the file system takes no direct I/O on it"),
            Self::Cached => f.write_str(
                "a part of it stays in the page cache, so a program may have mapped it; that program \
                 would see old bytes, or could store bytes unnoticed",
            ),
            Self::NotTold(why) => write!(f, "the file system does not say where its bytes are: {why}"),
        }
    }
}
