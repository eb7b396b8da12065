//! A device that one process owns alone. It is opened as a block device or by NVMe passthrough.

use std::path::Path;

use crate::{
    BlockDevice, Contents, Device, EngineChoice, FdpAccount, MappedFile, NvmeDevice, OpenError,
    PathOptions, PlacementId, nvme,
};

/// A block device or an NVMe namespace: one linear space of blocks. No other process uses the
/// device as long as this value lives.
pub trait WholeDevice: Send {
    /// Number of whole blocks of the device.
    fn lba_count(&self) -> u64;

    /// What seems to be on the device. This helps to decide whether the device may be overwritten.
    ///
    /// # Errors
    /// When the device can't be read.
    fn contents(&self) -> Result<Contents, OpenError>;

    /// Opens one more path to the device.
    ///
    /// # Errors
    /// When the path can't be opened.
    fn open_path(&mut self) -> Result<Box<dyn Device + Send>, OpenError>;

    /// Like [`open_path`](Self::open_path), for a path that carries much data, none of it urgent.
    /// If possible, the path polls as [`PathOptions::polling`] says, and its
    /// [buffers](Device::buffer) are registered with the kernel.
    ///
    /// # Errors
    /// The same as those of [`open_path`](Self::open_path).
    fn open_bulk_path(&mut self) -> Result<Box<dyn Device + Send>, OpenError> {
        self.open_path()
    }

    /// Maps a range of the device, as [`MappedFile::device_range`] does. `offset` and `size` are in
    /// bytes.
    ///
    /// # Errors
    /// The same as those of [`MappedFile::device_range`].
    fn map(&mut self, offset: u64, size: usize) -> Result<MappedFile, OpenError>;

    /// The placements that writes to the device can name, in the device's order; empty if the
    /// device has only its default placement. The device assigns the placement ids, and may change
    /// them when it restarts.
    fn placements(&self) -> &[PlacementId] {
        &[]
    }

    /// The device's reports on data placement; `None` if the device has no data placement. Asking
    /// for a report blocks the calling thread.
    fn fdp(&self) -> Option<Box<dyn FdpAccount>> {
        None
    }

    /// The device's identity, which does not depend on the device's name: for example, serial
    /// number and namespace. `None` if the identity is unknown.
    fn identity(&self) -> Option<String> {
        None
    }

    /// Whether this device is opened in the best way that was asked for. If not, the kernel or
    /// missing permissions did not allow that way.
    fn is_best(&self) -> bool;

    /// Facts about the device for people to read: pairs of a name and a value.
    fn facts(&self) -> Vec<(&'static str, String)>;

    /// How I/O is done, in one line for the startup banner and the command INFO. The line is final
    /// once a path was opened.
    fn describe(&self) -> String;

    /// Why I/O is not done in a better way, in sentences without a full stop. The notes are
    /// complete once a path was opened.
    fn notes(&self) -> Vec<String>;
}

/// Opens the device at a path in the best way that `options` allow. An NVMe namespace is opened by
/// passthrough, whichever of its two device nodes `path` is. If passthrough was not asked for or is
/// refused, or if the device is not an NVMe namespace, the device is opened as a block device. The
/// opened device can say which way was chosen, and why.
///
/// # Errors
/// The same as those of [`NvmeDevice::open`] and [`BlockDevice::open`].
pub fn open_whole(path: &Path, options: PathOptions) -> Result<Box<dyn WholeDevice>, OpenError> {
    let nodes = match nvme::nodes(path) {
        Ok(nodes) => nodes,
        Err(error) if nvme::is_character_device(path) => return Err(error),
        Err(OpenError::Unsuitable { why, .. }) => {
            return Ok(Box::new(BlockDevice::open(path, options)?.without_passthrough(why, false)));
        }
        Err(error) => return Err(error),
    };
    if !options.passthrough || options.engine == EngineChoice::Plain {
        let why = "it was not asked for".into();
        let device = BlockDevice::open(&nodes.block, options)?;
        return Ok(Box::new(device.without_passthrough(why, false)));
    }
    match NvmeDevice::open(path, options) {
        Ok(device) => Ok(Box::new(device)),
        Err(error @ (OpenError::InUse { .. } | OpenError::StillInFlight { .. })) => Err(error),
        Err(refused) => {
            // If the block device can't be opened, either, the caller gets the block device's
            // error, because this error explains why both ways fail.
            let device = BlockDevice::open(&nodes.block, options)?;
            Ok(Box::new(device.without_passthrough(refused.to_string(), true)))
        }
    }
}
