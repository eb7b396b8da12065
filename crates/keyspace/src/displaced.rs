//! When a command changes an entry, the entry's old state goes to one of two places. If a capture
//! is running (it takes all entries as they were at one point in time) and has not taken this entry
//! yet, the old state goes to the capture. Otherwise the old state goes to the garbage, the memory
//! that another thread frees.

use crate::capture::Capture;
use crate::garbage::Garbage;

#[derive(Debug, Default)]
pub(crate) struct Displaced {
    pub(crate) capture: Capture,
    pub(crate) garbage: Garbage,
}
