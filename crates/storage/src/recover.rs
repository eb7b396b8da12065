//! Making a volume, and finding again what is on it.

use std::fmt;

use slimio_device::Device;

use crate::{Error, Keeper, KeeperPaths, Log, Lsn, Media, Policy, VolumeId};

/// How a new volume is laid out. Can't be changed later.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// A random number, not used before.
    pub volume_id: VolumeId,
    /// Size of a segment of the log, in blocks.
    pub segment_lbas: u64,
    /// Largest batch, in blocks: also the size of each of the log's buffers.
    pub batch_lbas_max: u32,
    /// Most segments that the log may have at a time.
    pub wal_slots_max: u32,
}

/// How a volume is opened.
#[derive(Clone, Copy, Debug)]
pub struct RecoverOptions {
    /// Acknowledgement policy to start with.
    pub policy: Policy,
    /// How many buffers the log has.
    pub buffer_count: usize,
    /// Under [`Policy::Always`], batches in flight before records gather for the next one.
    pub commits_in_flight: usize,
    /// Accept a damaged log, and drop everything from the damage on.
    pub salvage: bool,
}

/// A record that comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its database.
    pub db: u16,
    /// The position right behind it.
    pub lsn: Lsn,
    /// What was appended.
    pub payload: &'a [u8],
}

/// How far recovery is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the log read.
    pub bytes_done: u64,
    /// Bytes of the log that may have to be read.
    pub bytes_total: u64,
    /// LSN reached.
    pub lsn: Lsn,
}

/// What was found on a volume, and what was decided. `Display` is one paragraph for the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("")
    }
}

/// An open volume.
pub struct Volume {
    /// The log, open for appending.
    pub log: Log,
    /// The log's own path, to be passed to it.
    pub log_path: Box<dyn Device + Send>,
    /// Owner of the superblock.
    pub keeper: Keeper,
    /// The keeper's own paths.
    pub keeper_paths: KeeperPaths,
    /// What was found and decided.
    pub report: Report,
}

/// Makes a new, empty volume. Durable when this returns.
///
/// # Errors
/// When the medium can't be made or written.
pub fn format(_media: &mut dyn Media, _options: &FormatOptions) -> Result<(), Error> {
    unimplemented!("the next change")
}

/// Opens a volume: reads what survived, hands every record to `apply` in order, and makes the log
/// ready for more. `progress` is called now and then.
///
/// # Errors
/// When the volume can't be read exactly; it is then unchanged. When `apply` refuses a record, with
/// its words in [`Error::Refused`].
pub fn recover(
    _media: &mut dyn Media,
    _options: &RecoverOptions,
    _apply: &mut dyn FnMut(Record<'_>) -> Result<(), String>,
    _progress: &mut dyn FnMut(Progress),
) -> Result<Volume, Error> {
    unimplemented!("the next change")
}
