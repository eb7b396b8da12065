//! A volume on a simulated disk. Its log's device has a descriptor, which tells the server's event
//! loop when to poll the device.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use slimio_device::{Completion, Device, DeviceError, FilledHoles, Geometry, LbaRange, Op, Token};
use slimio_storage::{Area, Storage};
use slimio_testing::media::{Path, wrapped};

use super::media::SimMedia;

/// The storage that the server opens.
pub(crate) fn storage(media: SimMedia, exists: bool) -> Storage {
    let media = wrapped(Box::new(media), |area, path| match area {
        Area::Wal => Box::new(Readable::new(path)),
        _ => path,
    });
    Storage {
        media,
        exists,
        name: "a simulated disk".into(),
        is_best: true,
        placement: None,
        io_path: "simulated".into(),
        why_not_better: String::new(),
    }
}

/// A path to a device, with a descriptor. The descriptor is readable while operations are in flight
/// and all of them were handed to the device. A simulated device completes operations only when it
/// is polled, so the server must poll until no operation is in flight.
struct Readable {
    path: Path,
    ready: OwnedFd,
}

impl Readable {
    fn new(path: Path) -> Self {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Self { path, ready: eventfd(0, flags).unwrap() }
    }

    fn tell(&mut self) {
        if self.path.in_flight() > 0 && !self.path.has_unsubmitted() {
            rustix::io::write(&self.ready, &1_u64.to_ne_bytes()).unwrap();
        } else {
            // Makes the descriptor unreadable. The read fails if the descriptor is unreadable
            // already.
            let _ = rustix::io::read(&self.ready, &mut [0; 8]);
        }
    }
}

impl Device for Readable {
    fn geometry(&self) -> Geometry {
        self.path.geometry()
    }

    fn submit(&mut self, token: Token, op: Op) -> Result<(), Op> {
        let submitted = self.path.submit(token, op);
        self.tell();
        submitted
    }

    fn kick(&mut self) {
        self.path.kick();
        self.tell();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.path.poll(completions);
        self.tell();
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        self.path.wait(timeout, completions);
        self.tell();
    }

    fn has_unsubmitted(&mut self) -> bool {
        self.path.has_unsubmitted()
    }

    fn in_flight(&self) -> usize {
        self.path.in_flight()
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ready.as_fd())
    }

    fn grow(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        self.path.grow(lba_count)
    }

    fn shrink(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        self.path.shrink(lba_count)
    }

    fn reserve(&mut self, range: LbaRange) -> Result<(), DeviceError> {
        self.path.reserve(range)
    }

    fn release(&mut self, range: LbaRange) -> Result<(), DeviceError> {
        self.path.release(range)
    }

    fn fill_holes(&mut self, range: LbaRange) -> Result<FilledHoles, DeviceError> {
        self.path.fill_holes(range)
    }

    fn empty_holes(&mut self, filled: &FilledHoles) {
        self.path.empty_holes(filled);
    }
}
