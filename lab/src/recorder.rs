//! A block device that records its requests: every write, discard and flush, in order.
//!
//! ```text
//!   file system or server ── /dev/loopN ── loop driver ── FUSE ──► this process ──► trace
//!                                                                       │
//!                                                                       └─► file with the data
//! ```
//!
//! The device is a loop device over the only file of a FUSE file system, which this process serves.
//! Nothing else is needed from the kernel. Nothing is sampled and no buffer of the kernel can
//! overflow, so a request that is not in the trace was not acknowledged. Requests arrive one after
//! the other and are recorded before they are carried out.

mod claim;
mod disk;
mod emulated;
mod fuse;
mod interrupt;
mod join;
mod kept;
mod mounted;
mod recording;
mod workload;

pub use disk::{BLOCK_SIZE, RecordedDisk, can_record};
pub use emulated::{DriveMeter, EmulatedDisk};
pub(crate) use interrupt::{check as check_interrupt, heed as heed_interrupts};
pub use join::{Joined, join};
pub use kept::KeptDisk;
pub use mounted::{FileSystemKind, Mounted};
pub(crate) use recording::set_scheduler;
pub use recording::{Place, Recording, drive_bytes};
pub use workload::{Driven, Mark, Workload};
pub(crate) use workload::{GO_ON, HELD_BACK};
