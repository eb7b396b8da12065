//! What a command returns that does not need the drive.

/// A result, and data for the host.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Dwords 0 and 1 of the completion.
    pub(crate) result: u64,
    /// Data; empty if the command has none.
    pub(crate) data: Vec<u8>,
}

impl Reply {
    /// Only a result.
    pub(crate) fn result(result: u64) -> Self {
        Self { result, data: Vec::new() }
    }

    /// Only data.
    pub(crate) fn data(data: Vec<u8>) -> Self {
        Self { result: 0, data }
    }
}
