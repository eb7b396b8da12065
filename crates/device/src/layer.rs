//! A path in front of another. A layer implements only what it changes; everything else is passed
//! on.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::{Buffer, Completion, Device, DeviceError, FilledHoles, Geometry, LbaRange, Op, Token};

/// What [`Layered`] changes about the path below. Each method changes nothing by default.
pub trait Layer {
    /// What the path can do, given what the one below can.
    fn geometry(&self, below: Geometry) -> Geometry {
        below
    }

    /// The operation that the path below gets instead of this one.
    fn translate(&mut self, op: Op) -> Op {
        op
    }

    /// Sees the completions just reaped, from index `from` on. It may hold some back and return
    /// them later, as long as [`kept`](Self::kept) counts them.
    fn reaped(&mut self, completions: &mut Vec<Completion>, from: usize) {
        let _ = (completions, from);
    }

    /// How many completions it holds back.
    fn kept(&self) -> usize {
        0
    }

    /// [`Device::grow`].
    ///
    /// # Errors
    /// As there.
    fn grow(&mut self, below: &mut dyn Device, lba_count: u64) -> Result<(), DeviceError> {
        below.grow(lba_count)
    }

    /// [`Device::shrink`].
    ///
    /// # Errors
    /// As there.
    fn shrink(&mut self, below: &mut dyn Device, lba_count: u64) -> Result<(), DeviceError> {
        below.shrink(lba_count)
    }

    /// [`Device::reserve`].
    ///
    /// # Errors
    /// As there.
    fn reserve(&mut self, below: &mut dyn Device, range: LbaRange) -> Result<(), DeviceError> {
        below.reserve(range)
    }

    /// [`Device::release`].
    ///
    /// # Errors
    /// As there.
    fn release(&mut self, below: &mut dyn Device, range: LbaRange) -> Result<(), DeviceError> {
        below.release(range)
    }

    /// [`Device::fill_holes`].
    ///
    /// # Errors
    /// As there.
    fn fill_holes(
        &mut self,
        below: &mut dyn Device,
        range: LbaRange,
    ) -> Result<FilledHoles, DeviceError> {
        below.fill_holes(range)
    }

    /// [`Device::empty_holes`].
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
    /// Puts `layer` in front of `path`.
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
        // Checked first, so that the operation is handed back as it was handed in.
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
