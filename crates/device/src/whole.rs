//! A device that one process has to itself, whichever way it is reached.

use std::path::Path;

use crate::{
    BlockDevice, Contents, Device, EngineChoice, FdpAccount, MappedFile, NvmeDevice, OpenError,
    PathOptions, PlacementId, nvme,
};

/// One linear space of blocks that is this process's alone as long as the value lives, and that
/// opens paths to itself: a block device, or an NVMe namespace.
pub trait WholeDevice: Send {
    /// Its number of blocks; a partial block at the end does not count.
    fn lba_count(&self) -> u64;

    /// What seems to be on it, to decide whether it may be overwritten.
    ///
    /// # Errors
    /// When it can't be read.
    fn contents(&self) -> Result<Contents, OpenError>;

    /// Opens one more path to it.
    ///
    /// # Errors
    /// When it can't be opened.
    fn open_path(&mut self) -> Result<Box<dyn Device + Send>, OpenError>;

    /// As [`open_path`](Self::open_path), for a path that carries much data and that nothing urgent
    /// depends on: it polls for what [`PathOptions::polling`] says, and has
    /// [buffers](Device::buffer) that are registered with the kernel, as far as both are possible
    /// here.
    ///
    /// # Errors
    /// As there.
    fn open_bulk_path(&mut self) -> Result<Box<dyn Device + Send>, OpenError> {
        self.open_path()
    }

    /// Maps a range of it, in bytes: see [`MappedFile::device_range`].
    ///
    /// # Errors
    /// As there.
    fn map(&mut self, offset: u64, size: usize) -> Result<MappedFile, OpenError>;

    /// The placements that writes to it may name, best known first; none where it has only one.
    /// They are the device's own and may change when it restarts.
    fn placements(&self) -> &[PlacementId] {
        &[]
    }

    /// Its reports on data placement, to be asked for on another thread; `None` where it has none.
    fn fdp(&self) -> Option<Box<dyn FdpAccount>> {
        None
    }

    /// Its identity, whatever its name is today: serial number and namespace. `None` if unknown.
    fn identity(&self) -> Option<String> {
        None
    }

    /// Whether this is the best of the ways to this device that were asked for: neither the kernel
    /// nor missing permissions have forced a worse one.
    fn is_best(&self) -> bool;

    /// Facts about itself, for people: a name and a value each.
    fn facts(&self) -> Vec<(&'static str, String)>;

    /// The way of I/O in force, in a line for banner and INFO. Complete once a path was opened.
    fn describe(&self) -> String;

    /// Why it is not a better way, in sentences without a full stop. Complete once a path was
    /// opened.
    fn notes(&self) -> Vec<String>;
}

/// Takes the device at a path in the best possible way: an NVMe namespace by passthrough, whichever
/// of its two nodes is named; everything else, and where passthrough is refused, as a block device.
/// The result says which it became, and why.
///
/// # Errors
/// As [`NvmeDevice::open`] and [`BlockDevice::open`].
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
            // An error of the block device concerns both ways.
            let device = BlockDevice::open(&nodes.block, options)?;
            Ok(Box::new(device.without_passthrough(refused.to_string(), true)))
        }
    }
}
