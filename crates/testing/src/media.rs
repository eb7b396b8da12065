//! A volume with a layer over each path to one of its areas. An area is a named part of the volume,
//! such as the log. A path is one way to an area, with a queue of its own.

use slimio_device::{Buffer, Device, OpenError};
use slimio_storage::{Area, Media, Pool, SlotName};

/// A path to an area.
pub type Path = Box<dyn Device + Send>;

/// Passes every path to an area of a medium through `wrap`. The rest of the medium stays unchanged,
/// including the path to the free extents.
pub fn wrapped(
    media: Box<dyn Media>,
    wrap: impl FnMut(Area, Path) -> Path + 'static,
) -> Box<dyn Media> {
    Box::new(Wrapped { media, wrap })
}

struct Wrapped<W> {
    media: Box<dyn Media>,
    wrap: W,
}

impl<W: FnMut(Area, Path) -> Path> Media for Wrapped<W> {
    fn pool(&self) -> Option<&Pool> {
        self.media.pool()
    }

    fn open_free(&mut self) -> Result<Option<Path>, OpenError> {
        self.media.open_free()
    }

    fn identity(&self) -> Option<String> {
        self.media.identity()
    }

    fn open_path(&mut self, area: Area) -> Result<Path, OpenError> {
        let path = self.media.open_path(area)?;
        Ok((self.wrap)(area, path))
    }

    fn make_slot(&mut self, slot: SlotName) -> Result<(), OpenError> {
        self.media.make_slot(slot)
    }

    fn create(&mut self, super_lbas: u64, wal_lbas: u64) -> Result<(), OpenError> {
        self.media.create(super_lbas, wal_lbas)
    }

    fn open_buffers(&mut self, size: usize) -> Result<Vec<Buffer>, OpenError> {
        self.media.open_buffers(size)
    }

    fn make_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, OpenError> {
        self.media.make_buffers(count, size)
    }

    fn buffers_outlive_process(&self) -> bool {
        self.media.buffers_outlive_process()
    }

    fn fresh_blocks_need_zeroing(&self) -> bool {
        self.media.fresh_blocks_need_zeroing()
    }

    fn io_path(&self) -> Option<(String, String)> {
        self.media.io_path()
    }
}
