//! Where the old state of an entry goes when a command changes the entry. If the capture has not
//! taken the entry yet, the old state goes to the capture. Otherwise it goes to the garbage.

use crate::capture::Capture;
use crate::garbage::Garbage;

#[derive(Debug, Default)]
pub(crate) struct Displaced {
    pub(crate) capture: Capture,
    pub(crate) garbage: Garbage,
}
