//! Descriptors that a ring owns. A descriptor is closed only when no operation on it is in flight.
//! If it were closed earlier, another file could get the same number, and a queued operation would
//! use that other file.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::table::{Name, Table};

/// The name of a descriptor that a [`Ring`](crate::Ring) owns. Names of closed descriptors are
/// never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fd(Name);

impl std::fmt::Debug for Fd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fd({}.{})", self.0.index, self.0.generation)
    }
}

struct File {
    descriptor: OwnedFd,
    /// Number of operations in flight on the descriptor.
    operations: u32,
    is_closing: bool,
}

/// All descriptors of a ring.
pub(crate) struct Files(Table<File>);

impl Files {
    pub(crate) fn new() -> Self {
        Self(Table::new())
    }

    pub(crate) fn adopt(&mut self, descriptor: OwnedFd) -> Fd {
        Fd(self.0.insert(File { descriptor, operations: 0, is_closing: false }))
    }

    pub(crate) fn borrow(&self, fd: Fd) -> Option<BorrowedFd<'_>> {
        self.0.get(fd.0).map(|file| file.descriptor.as_fd())
    }

    /// Notes the beginning of an operation on the descriptor. Returns the descriptor's number.
    pub(crate) fn begin(&mut self, fd: Fd) -> RawFd {
        let file = self.0.get_mut(fd.0).filter(|file| !file.is_closing);
        let file = file.unwrap_or_else(|| panic!("{fd:?} is closed"));
        file.operations += 1;
        file.descriptor.as_raw_fd()
    }

    /// The number of a descriptor, which must have an operation in flight.
    pub(crate) fn number(&self, fd: Fd) -> RawFd {
        self.0.get(fd.0).expect("an operation keeps its descriptor open").descriptor.as_raw_fd()
    }

    /// Notes the end of an operation on the descriptor. Closes the descriptor if
    /// [`close`](Self::close) was called before and no operation on it is in flight any more.
    pub(crate) fn end(&mut self, fd: Fd) {
        let file = self.0.get_mut(fd.0).expect("an operation keeps its descriptor open");
        file.operations -= 1;
        if file.is_closing && file.operations == 0 {
            self.0.remove(fd.0);
        }
    }

    pub(crate) fn is_closing(&self, fd: Fd) -> bool {
        self.0.get(fd.0).is_some_and(|file| file.is_closing)
    }

    /// Closes the descriptor at once, or when its last operation ends. Returns whether operations
    /// on it are in flight.
    pub(crate) fn close(&mut self, fd: Fd) -> bool {
        let file = self.0.get_mut(fd.0).filter(|file| !file.is_closing);
        let file = file.unwrap_or_else(|| panic!("{fd:?} is closed"));
        file.is_closing = true;
        let has_operations = file.operations > 0;
        if !has_operations {
            self.0.remove(fd.0);
        }
        has_operations
    }

    /// Gives the descriptor back to the caller. No operation on it may be in flight.
    pub(crate) fn release(&mut self, fd: Fd) -> Option<OwnedFd> {
        let file = self.0.get(fd.0)?;
        assert!(file.operations == 0, "{fd:?} has operations in flight");
        self.0.remove(fd.0).map(|file| file.descriptor)
    }
}
