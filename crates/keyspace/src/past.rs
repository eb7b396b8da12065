//! Where goes what an entry was before a command changed it: to the capture that has not taken it
//! yet, or to be freed.

use crate::capture::Capture;
use crate::garbage::Garbage;

#[derive(Debug, Default)]
pub(crate) struct Past {
    pub(crate) capture: Capture,
    pub(crate) garbage: Garbage,
}
