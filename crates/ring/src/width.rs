//! The sizes of the entries in a ring's queues.

use io_uring::{cqueue, squeue};

/// The sizes of a ring's entries. [`Narrow`] entries are large enough for ordinary operations, and
/// [`Wide`] entries also for commands of a driver.
pub trait Width: sealed::Sealed + 'static {
    /// An entry of the submission queue.
    #[doc(hidden)]
    type Submission: squeue::EntryMarker + Send + Sync;

    /// An entry of the completion queue.
    #[doc(hidden)]
    type Completion: cqueue::EntryMarker;

    /// The entry of a driver's command.
    #[doc(hidden)]
    fn command(entry: squeue::Entry128) -> Self::Submission;
}

/// Submission entries of 64 bytes, and completion entries of 16 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Narrow;

/// Submission entries of 128 bytes, and completion entries of 32 bytes (kernel 5.19). Commands of
/// the NVMe driver need these sizes.
#[derive(Clone, Copy, Debug)]
pub struct Wide;

impl Width for Narrow {
    type Submission = squeue::Entry;
    type Completion = cqueue::Entry;

    fn command(_: squeue::Entry128) -> squeue::Entry {
        unreachable!("only a wide ring accepts commands")
    }
}

impl Width for Wide {
    type Submission = squeue::Entry128;
    type Completion = cqueue::Entry32;

    fn command(entry: squeue::Entry128) -> squeue::Entry128 {
        entry
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Narrow {}
    impl Sealed for super::Wide {}
}
