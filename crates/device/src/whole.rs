//! A device that one process has to itself, whichever way it is reached.

use crate::{Contents, Device, FdpAccount, MappedFile, OpenError, PlacementId};

/// One linear space of blocks that is this process's alone as long as the value lives, and that
/// opens paths to itself: a block device, or an NVMe namespace.
pub trait WholeDevice: Send {
    /// Blocks that it has; what is left behind the last whole one does not count.
    fn lba_count(&self) -> u64;

    /// What seems to be on it, for the question whether it may be overwritten.
    ///
    /// # Errors
    /// When it can't be read.
    fn contents(&self) -> Result<Contents, OpenError>;

    /// Opens one more path to it.
    ///
    /// # Errors
    /// When it can't be opened.
    fn open_path(&mut self) -> Result<Box<dyn Device + Send>, OpenError>;

    /// Maps a range of it, in bytes: see [`MappedFile::device_range`].
    ///
    /// # Errors
    /// As there.
    fn map(&mut self, offset: u64, size: usize) -> Result<MappedFile, OpenError>;

    /// The placements that writes to it may name, best known first; none where it has only one.
    /// They are the device's own and may be others after a restart of it.
    fn placements(&self) -> &[PlacementId] {
        &[]
    }

    /// What it says of its data placement, to be asked on another thread; `None` where there is
    /// nothing to say.
    fn fdp(&self) -> Option<FdpAccount> {
        None
    }

    /// What tells it from every other device, whatever its name is today: serial number and
    /// namespace. `None` where nothing does.
    fn identity(&self) -> Option<String> {
        None
    }

    /// The way of I/O in force, in a line for banner and INFO. Complete once a path was opened.
    fn describe(&self) -> String;

    /// Why it is not a better way, in sentences without a full stop. Complete once a path was
    /// opened.
    fn notes(&self) -> Vec<String>;
}
