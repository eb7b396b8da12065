//! Generates streams of host writes and deallocations from a seed, and runs them on a drive.
//!
//! Invariant: the seed determines the whole stream, and the drive has no randomness. So a run can
//! be repeated on any machine.

mod comparison;
mod cores;
mod paper;
pub mod population;
mod steady;
mod tenants;
mod uniform;

pub use comparison::{Case, CompareError, Compared, Size, compare};
pub use cores::on_all_cores;
pub use paper::PaperRun;
pub use steady::{Steady, SteadyError, WINDOWS_MAX, run_after_fill, run_to_steady_state};
pub use tenants::{Moment, PIECE_PAGES, Tenants, run_tenants};
pub use uniform::UniformWrites;

use crate::{Ftl, FtlError};

/// What a host asks a drive to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostOp {
    /// Write one logical block.
    Write {
        /// The block.
        lba: u64,
    },
    /// Deallocate blocks.
    Deallocate {
        /// The first block.
        lba: u64,
        /// The number of blocks.
        count: u64,
    },
}

impl HostOp {
    /// Runs the operation, through the drive's first handle.
    ///
    /// # Errors
    /// If the operation has blocks beyond the drive's end.
    pub fn run(self, drive: &mut Ftl) -> Result<(), FtlError> {
        match self {
            Self::Write { lba } => drive.write(lba, 0),
            Self::Deallocate { lba, count } => drive.deallocate(lba, count),
        }
    }
}
