//! Error numbers and results of the kernel.

use std::fmt;
use std::io;

/// An error number of the kernel, positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

impl Errno {
    /// The operation was cancelled before it had completed.
    pub const CANCELED: Self = Self(libc::ECANCELED);
    /// No provided buffer was left.
    pub(crate) const NO_BUFFERS: Self = Self(libc::ENOBUFS);
    pub(crate) const INTERRUPTED: Self = Self(libc::EINTR);
    pub(crate) const WOULD_BLOCK: Self = Self(libc::EAGAIN);
    pub(crate) const ABORTED: Self = Self(libc::ECONNABORTED);

    /// Wraps a positive error number.
    ///
    /// # Panics
    /// When the number is not positive.
    pub fn new(number: i32) -> Self {
        assert!(number > 0, "the error number {number} is not positive");
        Self(number)
    }

    /// The positive number, as in `<errno.h>`.
    pub fn number(self) -> i32 {
        self.0
    }

    /// The error number in an I/O error; `EIO` if the error has no number.
    pub fn of(error: &io::Error) -> Self {
        Self(error.raw_os_error().filter(|&number| number > 0).unwrap_or(libc::EIO))
    }

    /// The error number of the last failed call on this thread.
    pub(crate) fn last() -> Self {
        Self::of(&io::Error::last_os_error())
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from(*self).fmt(f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {self})", self.0)
    }
}

impl std::error::Error for Errno {}

/// Why a transfer did not move all bytes that were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferError {
    /// Fewer bytes than asked for were moved, without an error: for example, because the file
    /// ended.
    Short {
        /// Bytes that were moved.
        moved: usize,
        /// Bytes that were asked for.
        asked: usize,
    },
    /// The transfer failed with this error number.
    Os(Errno),
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { moved, asked } => write!(f, "short transfer: {moved} of {asked} bytes"),
            Self::Os(errno) => errno.fmt(f),
        }
    }
}

impl std::error::Error for TransferError {}

/// Converts a completion's `res`, which is a count or a negative error number.
pub fn returned(res: i32) -> Result<usize, Errno> {
    usize::try_from(res).map_err(|_| Errno(-res))
}

/// Converts the `res` of a transfer that should have moved exactly `asked` bytes.
///
/// # Errors
/// [`TransferError::Short`] when fewer bytes were moved; [`TransferError::Os`] when the transfer
/// failed.
pub fn transferred(res: i32, asked: usize) -> Result<(), TransferError> {
    match returned(res) {
        Ok(moved) if moved == asked => Ok(()),
        Ok(moved) => Err(TransferError::Short { moved, asked }),
        Err(errno) => Err(TransferError::Os(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_is_an_error_number() {
        assert_eq!(returned(0), Ok(0));
        assert_eq!(returned(i32::MAX), Ok(0x7fff_ffff));
        assert_eq!(returned(-libc::EIO), Err(Errno::new(libc::EIO)));
        assert_eq!(Errno::new(libc::ENOSPC).number(), libc::ENOSPC);
        assert_eq!(io::Error::from(Errno::new(libc::ENOSPC)).kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_transfer_is_whole_or_an_error() {
        assert_eq!(transferred(4096, 4096), Ok(()));
        let short = TransferError::Short { moved: 4095, asked: 4096 };
        assert_eq!(transferred(4095, 4096), Err(short));
        assert_eq!(short.to_string(), "short transfer: 4095 of 4096 bytes");
        assert_eq!(transferred(0, 4096), Err(TransferError::Short { moved: 0, asked: 4096 }));
        assert_eq!(transferred(-5, 4096), Err(TransferError::Os(Errno::new(libc::EIO))));
    }
}
