//! What makes a drive's flushes durable in the file system that its files are on.

use std::sync::{Arc, OnceLock};

use slimio_device::{DeviceError, ImageFile};

use super::data::Data;
use super::journal::Journal;

#[derive(Debug)]
pub(super) struct Durability {
    /// The data and the state file; `None` if nothing is made durable.
    files: Option<(Arc<Data>, Arc<ImageFile>)>,
    /// The first failure. After it, the kernel may count as written what is not, so nothing is
    /// durable any more.
    failure: OnceLock<DeviceError>,
}

impl Durability {
    pub(super) fn new(is_sync: bool, data: Arc<Data>, journal: Option<&Journal>) -> Self {
        let state = journal.filter(|_| is_sync).map(Journal::image);
        Self { files: state.map(|state| (data, state)), failure: OnceLock::new() }
    }

    /// Makes durable all that was written, and all entries of the journal, before this call.
    pub(super) fn sync(&self) -> Result<(), DeviceError> {
        let Some((data, state)) = &self.files else { return Ok(()) };
        if let Some(failure) = self.failure.get() {
            return Err(failure.clone());
        }
        data.sync()
            .and_then(|()| state.sync())
            .map_err(|error| self.failure.get_or_init(|| error).clone())
    }
}
