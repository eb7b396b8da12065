//! Where an entry's old state goes when a command changes it: to the capture that has not taken it
//! yet, or to the garbage.

use crate::capture::Capture;
use crate::garbage::Garbage;

#[derive(Debug, Default)]
pub(crate) struct Displaced {
    pub(crate) capture: Capture,
    pub(crate) garbage: Garbage,
}
