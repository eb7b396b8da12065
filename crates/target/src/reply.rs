//! The reply to a command that is carried out without an operation of the drive.

/// A result, and data for the host.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Dwords 0 and 1 of the completion.
    pub(crate) result: u64,
    /// Data for the host. It is empty if the command returns no data.
    pub(crate) data: Vec<u8>,
}

impl Reply {
    /// A reply that has only a result.
    pub(crate) fn result(result: u64) -> Self {
        Self { result, data: Vec::new() }
    }

    /// A reply that has only data.
    pub(crate) fn data(data: Vec<u8>) -> Self {
        Self { result: 0, data }
    }
}
