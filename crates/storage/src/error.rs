//! Errors of a volume, and the reasons why a log is latched. When a log is latched, nothing is
//! written to it any more.

use std::fmt;

use slimio_device::{DeviceError, OpenError};

use crate::{Area, Lsn, SlotName};

/// The kernel's number of an input/output error.
pub(crate) const EIO: i32 = 5;

/// Why a volume can't be made, opened or read. Each variant stands for one thing that the owner of
/// the volume can do about the error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A path of the volume could not be opened.
    Open(OpenError),
    /// The medium holds no SlimIO volume: format one, or look elsewhere.
    NoVolume,
    /// The medium already holds a SlimIO volume.
    AlreadyFormatted,
    /// The volume was written by another version of SlimIO: use that version, or export the data
    /// with that version and import it with this version.
    OtherVersion {
        /// The format version found.
        found: u32,
        /// The format versions that this program reads on a medium of this kind, the newest last.
        supported: &'static [u32],
    },
    /// The device has become longer or shorter since the volume was made: restore its size.
    OtherSize {
        /// Blocks that the device has.
        found_lbas: u64,
        /// Blocks that the device had when the volume was made.
        made_lbas: u64,
    },
    /// The volume was last written on another device: look for that device, or accept this one.
    OtherDevice {
        /// Identity of the other device.
        made_on: String,
        /// Identity of this device; empty if it is unknown.
        found: String,
    },
    /// No copy of the superblock can be read: restore the volume from a backup.
    SuperblocksDamaged {
        /// One line for each copy: what is wrong with it.
        copies: Vec<String>,
    },
    /// An area is shorter than the superblock says, so something other than SlimIO truncated it.
    Truncated {
        /// Name of the area.
        area: &'static str,
        /// Blocks that the area has.
        found_lbas: u64,
        /// Blocks that the area must have.
        expected_lbas: u64,
    },
    /// The log can't be read to its end. The owner can salvage the log up to `lsn`.
    Damaged {
        /// The log is whole up to this LSN.
        lsn: Lsn,
        /// Where the damage is and what is wrong, as a sentence.
        what: String,
    },
    /// A snapshot can't be read. The other snapshots can be read, and so can the intact chunks of
    /// this one.
    SnapshotDamaged {
        /// The slot of the snapshot.
        slot: SlotName,
        /// Where the damage is and what is wrong, as a sentence.
        what: String,
    },
    /// There is no on-demand snapshot to recover from.
    NoOnDemandSnapshot,
    /// A chunk of a snapshot is whole, but the code that loads chunks refused it, because another
    /// version wrote it or because there is a bug.
    ChunkRefused {
        /// The chunk's place among the snapshot's chunks, counted from 0; `None` if no single chunk
        /// is the reason.
        index: Option<u64>,
        /// The reason, as the end of a sentence.
        why: String,
    },
    /// A record is whole, but could not be applied, because another version wrote it or because
    /// there is a bug.
    Refused {
        /// LSN of the record.
        lsn: Lsn,
        /// The reason, as the end of a sentence.
        why: String,
    },
    /// The device failed. Such a failure says nothing about the volume's contents.
    Device {
        /// What was being done, as the words that follow "while" in the message.
        doing: &'static str,
        /// The device's error.
        error: DeviceError,
    },
    /// The volume has too little room for what was asked.
    TooSmall {
        /// A sentence that says what there is no room for.
        what: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) => error.fmt(f),
            Self::NoVolume => write!(f, "no SlimIO volume was found"),
            Self::AlreadyFormatted => write!(f, "a SlimIO volume exists already"),
            Self::OtherVersion { found, supported } => {
                write!(f, "the volume has format version {found}; this program reads ")?;
                for (index, version) in supported.iter().enumerate() {
                    let before = match supported.len() - index {
                        _ if index == 0 => "",
                        1 => " and ",
                        _ => ", ",
                    };
                    write!(f, "{before}{version}")?;
                }
                Ok(())
            }
            Self::OtherSize { found_lbas, made_lbas } => {
                write!(
                    f,
                    "the device has {found_lbas} blocks, but the volume was made for {made_lbas}"
                )
            }
            Self::OtherDevice { made_on, found } if found.is_empty() => {
                write!(
                    f,
                    "the volume is on another device ({made_on}); this device reports no identity"
                )
            }
            Self::OtherDevice { made_on, found } => {
                write!(f, "the volume is on another device ({made_on}); this device is {found}")
            }
            Self::SuperblocksDamaged { copies } => {
                write!(f, "no copy of the superblock can be read ({})", copies.join("; "))
            }
            Self::Truncated { area, found_lbas, expected_lbas } => {
                write!(f, "the {area} area has {found_lbas} blocks instead of {expected_lbas}")
            }
            Self::Damaged { lsn, what } => {
                write!(f, "the log is damaged; it is whole up to LSN {lsn}: {what}")
            }
            Self::SnapshotDamaged { slot, what } => {
                write!(f, "the snapshot in {} is damaged: {what}", Area::Snapshot(*slot).name())
            }
            Self::NoOnDemandSnapshot => write!(f, "the volume has no on-demand snapshot"),
            Self::ChunkRefused { index: None, why } => {
                write!(f, "the snapshot was refused: {why}")
            }
            Self::ChunkRefused { index: Some(index), why } => {
                write!(f, "chunk {index} of the snapshot was refused: {why}")
            }
            Self::Refused { lsn, why } => write!(f, "the record at LSN {lsn} was refused: {why}"),
            Self::Device { doing, error } => write!(f, "the device failed while {doing}: {error}"),
            Self::TooSmall { what } => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        Self::Open(error)
    }
}

/// Why the log is latched: the first failure of the log or the superblock.
///
/// A record that was not durable at this failure never becomes durable. So replies that wait for
/// such a record must not be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latch {
    /// What failed.
    pub cause: LatchCause,
    /// The device's error.
    pub error: DeviceError,
}

/// What failed when the log was latched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LatchCause {
    /// A write of the log.
    LogWrite,
    /// A flush of the log.
    LogFlush,
    /// An update of the superblock.
    Superblock,
    /// The mapped buffers. They are memory that is backed by a file or device. That file or device
    /// has lost records that were in the buffers and had not been written to the log yet.
    LogBuffers,
}

impl fmt::Display for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.cause {
            LatchCause::LogWrite => "a write of the log",
            LatchCause::LogFlush => "a flush of the log",
            LatchCause::Superblock => "an update of the superblock",
            LatchCause::LogBuffers => "reading back the log's mapped buffers",
        };
        write!(f, "{what} failed: {}", self.error)
    }
}
