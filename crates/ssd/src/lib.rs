//! The inside of an SSD, emulated in software with exact counters.
//!
//! [`Ftl`] is only the flash translation layer. It has the mapping of logical blocks to NAND pages,
//! the reclaim units, the handles and the collector. It does no I/O, holds no data and reads no
//! clock. So the same writes and deallocations always give the same state and the same
//! [`Counters`]. An [`Observer`] can follow each operation on the NAND. [`Clocked`] adds time:
//! every die and every channel has a clock. [`EmulatedDrive`] adds the data, and is a device like
//! any other.
//!
//! ```
//! use slimio_ssd::{Config, Ftl};
//!
//! // 8 channels of 2 dies with blocks of 5 pages; a quarter of the NAND is not exported.
//! let config = Config::scaled(64 << 20);
//! let mut drive = Ftl::new(config.clone())?;
//! for lba in 0..config.lba_count {
//!     drive.write(lba, 0).expect("the block is within the drive");
//! }
//! drive.deallocate(0, 1024).expect("the blocks are within the drive");
//! assert_eq!(drive.counters().host_bytes(), config.lba_count * 4096);
//! assert_eq!(drive.mapped_count(), config.lba_count - 1024);
//! # Ok::<(), slimio_ssd::ConfigError>(())
//! ```
//!
//! [`trace`] records the requests of a host, so that [`replay`] can repeat them.

mod clocked;
mod config;
mod drive;
mod ftl;
mod geometry;
pub mod model;
pub mod replay;
mod spec;
pub mod trace;
pub mod workload;

pub use clocked::Clocked;
pub use config::{
    Config, ConfigError, Frontiers, GROUPS_MAX, HANDLES_MAX, Isolation, Thresholds, Timing, Victims,
};
pub use drive::{
    Canceller, Clock, DataPlace, Deallocated, DriveOptions, DriveQueue, DriveWatch, EmulatedDrive,
    size_of_drive_in,
};
pub use ftl::{
    Counters, EVENTS_MAX, EventKind, FdpEventRecord, Ftl, FtlError, HandleCounters, NandPage,
    Observer, Owner, UnitReport, UnitState,
};
pub use geometry::Geometry;
pub use spec::{PREFIX, SpecError};
