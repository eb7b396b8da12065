//! Layers on paths. A path is a way to a device. A layer changes the behaviour of one path, which
//! is called the path below. The layer implements only the methods whose behaviour it changes. All
//! other calls are passed on to the path below.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::{Buffer, Completion, Device, DeviceError, FilledHoles, Geometry, LbaRange, Op, Token};

/// A change of the behaviour of the path below, for [`Layered`]. By default, no method changes
/// anything.
pub trait Layer {
    /// The geometry of this path, given the geometry of the path below.
    fn geometry(&self, below: Geometry) -> Geometry {
        below
    }

    /// Returns the operation that the path below gets instead of `op`.
    fn translate(&mut self, op: Op) -> Op {
        op
    }

    /// Called when completions were reaped. The new completions begin at index `from`. The layer
    /// may remove completions and add them again in a later call. Until then, [`kept`](Self::kept)
    /// must count them.
    fn reaped(&mut self, completions: &mut Vec<Completion>, from: usize) {
        let _ = (completions, from);
    }

    /// How many completions the layer holds back.
    fn kept(&self) -> usize {
        0
    }

    /// See [`Device::grow`].
    ///
    /// # Errors
    /// The same as those of [`Device::grow`].
    fn grow(&mut self, below: &mut dyn Device, lba_count: u64) -> Result<(), DeviceError> {
        below.grow(lba_count)
    }

    /// See [`Device::shrink`].
    ///
    /// # Errors
    /// The same as those of [`Device::shrink`].
    fn shrink(&mut self, below: &mut dyn Device, lba_count: u64) -> Result<(), DeviceError> {
        below.shrink(lba_count)
    }

    /// See [`Device::reserve`].
    ///
    /// # Errors
    /// The same as those of [`Device::reserve`].
    fn reserve(&mut self, below: &mut dyn Device, range: LbaRange) -> Result<(), DeviceError> {
        below.reserve(range)
    }

    /// See [`Device::release`].
    ///
    /// # Errors
    /// The same as those of [`Device::release`].
    fn release(&mut self, below: &mut dyn Device, range: LbaRange) -> Result<(), DeviceError> {
        below.release(range)
    }

    /// See [`Device::fill_holes`].
    ///
    /// # Errors
    /// The same as those of [`Device::fill_holes`].
    fn fill_holes(
        &mut self,
        below: &mut dyn Device,
        range: LbaRange,
    ) -> Result<FilledHoles, DeviceError> {
        below.fill_holes(range)
    }

    /// See [`Device::empty_holes`].
    fn empty_holes(&mut self, below: &mut dyn Device, filled: &FilledHoles) {
        below.empty_holes(filled);
    }
}

/// A path that goes through a [`Layer`].
pub struct Layered<L> {
    layer: L,
    path: Box<dyn Device + Send>,
}

impl<L: Layer> Layered<L> {
    /// Puts `layer` on top of `path`.
    pub fn new(layer: L, path: Box<dyn Device + Send>) -> Self {
        Self { layer, path }
    }
}

impl<L: Layer> Device for Layered<L> {
    fn geometry(&self) -> Geometry {
        self.layer.geometry(self.path.geometry())
    }

    fn buffer(&mut self, lbas: usize) -> Buffer {
        self.path.buffer(lbas)
    }

    fn submit(&mut self, token: Token, op: Op) -> Result<(), Op> {
        // The limit is checked before the operation is translated, so that a refused operation is
        // handed back unchanged.
        if self.in_flight() >= self.geometry().in_flight_max as usize {
            return Err(op);
        }
        let op = self.layer.translate(op);
        self.path.submit(token, op)
    }

    fn kick(&mut self) {
        self.path.kick();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let from = completions.len();
        self.path.poll(completions);
        self.layer.reaped(completions, from);
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        let from = completions.len();
        self.path.wait(timeout, completions);
        self.layer.reaped(completions, from);
    }

    fn would_run_here(&self) -> bool {
        self.path.would_run_here()
    }

    fn has_unsubmitted(&mut self) -> bool {
        self.path.has_unsubmitted()
    }

    fn in_flight(&self) -> usize {
        self.path.in_flight() + self.layer.kept()
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.path.readiness()
    }

    fn grow(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        self.layer.grow(&mut *self.path, lba_count)
    }

    fn shrink(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        self.layer.shrink(&mut *self.path, lba_count)
    }

    fn reserve(&mut self, range: LbaRange) -> Result<(), DeviceError> {
        self.layer.reserve(&mut *self.path, range)
    }

    fn release(&mut self, range: LbaRange) -> Result<(), DeviceError> {
        self.layer.release(&mut *self.path, range)
    }

    fn fill_holes(&mut self, range: LbaRange) -> Result<FilledHoles, DeviceError> {
        self.layer.fill_holes(&mut *self.path, range)
    }

    fn free_space(&self) -> Option<u64> {
        self.path.free_space()
    }

    fn empty_holes(&mut self, filled: &FilledHoles) {
        self.layer.empty_holes(&mut *self.path, filled);
    }
}
