//! Directive Send and Directive Receive. Source: base specification 2.1, 5.1.6, 5.1.7 and 8.1.8.
//!
//! The only directive for writes is data placement. This directive is always enabled, because
//! placement itself is always enabled.

use slimio_nvme::command::DIRECTIVE_DATA_PLACEMENT;
use slimio_nvme::{Command, NSID_ALL};

use crate::refusal::Refusal;
use crate::subsystem::NSID;

/// Offsets of two fields in the command, for errors: the number of dwords, and the operation.
pub(crate) const NUMD_AT: u16 = 40;
const DOPER_AT: u16 = 44;
/// The directive Identify, and its operation that reports which directives there are.
const IDENTIFY: u8 = 0;
const RETURN_PARAMETERS: u8 = 1;
/// Sizes in bytes: of the returned parameters, and of each bitmap of directives in them.
const PARAMETERS_SIZE: usize = 4096;
const BITS_SIZE: usize = 32;

/// Number of bytes that a Directive Receive asks for.
pub(crate) fn size(command: &Command) -> u64 {
    (u64::from(command.dword(10)) + 1) * 4
}

/// Serves Directive Receive.
pub(crate) fn receive(command: &Command) -> Result<Vec<u8>, Refusal> {
    if !matches!(command.nsid, NSID | NSID_ALL) {
        return Err(Refusal::namespace());
    }
    let [operation, directive, ..] = command.dword(11).to_le_bytes();
    if (directive, operation) != (IDENTIFY, RETURN_PARAMETERS) {
        return Err(Refusal::field(DOPER_AT));
    }
    let mut data = vec![0; PARAMETERS_SIZE];
    let (identify, placement) = (1 << IDENTIFY, 1 << DIRECTIVE_DATA_PLACEMENT);
    // Three bitmaps: the supported directives, the enabled ones, and those that stay enabled after
    // a reset.
    data[0] = identify | placement;
    data[BITS_SIZE] = identify | placement;
    data[2 * BITS_SIZE] = placement;
    Ok(data)
}

/// Refuses Directive Send, because no directive can be enabled or disabled.
pub(crate) fn send() -> Refusal {
    Refusal::field(DOPER_AT)
}
