//! A device that one process has to itself, whichever way it is reached.

use std::path::Path;

use crate::{
    BlockDevice, Contents, Device, EngineChoice, FdpAccount, MappedFile, NvmeDevice, OpenError,
    PathOptions, PlacementId, nvme,
};

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

    /// As [`open_path`](Self::open_path), of a path that carries much data and that nothing urgent
    /// depends on: it polls for what [`PathOptions::polling`] says, and has [buffers](Device::buffer)
    /// that are registered with the kernel, as far as that can be had here.
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
    /// They are the device's own and may be others after a restart of it.
    fn placements(&self) -> &[PlacementId] {
        &[]
    }

    /// What it says of its data placement, to be asked on another thread; `None` where there is
    /// nothing to say.
    fn fdp(&self) -> Option<Box<dyn FdpAccount>> {
        None
    }

    /// What tells it from every other device, whatever its name is today: serial number and
    /// namespace. `None` where nothing does.
    fn identity(&self) -> Option<String> {
        None
    }

    /// Whether this is the best way to this device that was asked for: the kernel, or what this
    /// process may do, has not made it less.
    fn is_best(&self) -> bool;

    /// What it says of itself, for people: a name and a value each.
    fn facts(&self) -> Vec<(&'static str, String)>;

    /// The way of I/O in force, in a line for banner and INFO. Complete once a path was opened.
    fn describe(&self) -> String;

    /// Why it is not a better way, in sentences without a full stop. Complete once a path was
    /// opened.
    fn notes(&self) -> Vec<String>;
}

/// Takes the device at a path, by the best way that there is: a namespace of NVMe by passthrough,
/// whichever of its two nodes is named, and everything else, or where that is refused, as a block
/// device. Which it became, and why, the result says.
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
            // What the block device says is wrong is wrong with both.
            let device = BlockDevice::open(&nodes.block, options)?;
            Ok(Box::new(device.without_passthrough(refused.to_string(), true)))
        }
    }
}
