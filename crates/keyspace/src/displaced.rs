//! Where the old state of an entry goes when a command changes the entry. If a capture is running
//! (it takes all entries as they were at one point in time) and has not taken this entry yet, the
//! old state goes to the capture. Otherwise the old state goes to the garbage, the memory that
//! another thread frees.

use crate::capture::Capture;
use crate::garbage::Garbage;

#[derive(Debug, Default)]
pub(crate) struct Displaced {
    pub(crate) capture: Capture,
    pub(crate) garbage: Garbage,
}
