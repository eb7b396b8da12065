//! Names of the statuses that NVMe commands can end with.

use slimio_ring::NvmeStatus;

/// Codes and names of the generic, command specific, media and path statuses, in this order, as the
/// specification names them.
const NAMES: [&[(u8, &str)]; 4] = [
    &[
        (0x01, "Invalid Command Opcode"),
        (0x02, "Invalid Field in Command"),
        (0x03, "Command ID Conflict"),
        (0x04, "Data Transfer Error"),
        (0x05, "Commands Aborted due to Power Loss Notification"),
        (0x06, "Internal Error"),
        (0x07, "Command Abort Requested"),
        (0x08, "Command Aborted due to SQ Deletion"),
        (0x0b, "Invalid Namespace or Format"),
        (0x0c, "Command Sequence Error"),
        (0x13, "PRP Offset Invalid"),
        (0x14, "Atomic Write Unit Exceeded"),
        (0x15, "Operation Denied"),
        (0x1c, "Sanitize Failed"),
        (0x1d, "Sanitize In Progress"),
        (0x20, "Namespace is Write Protected"),
        (0x21, "Command Interrupted"),
        (0x22, "Transient Transport Error"),
        (0x24, "Admin Command Media Not Ready"),
        (0x29, "FDP Disabled"),
        (0x2a, "Invalid Placement Handle List"),
        (0x80, "LBA Out of Range"),
        (0x81, "Capacity Exceeded"),
        (0x82, "Namespace Not Ready"),
        (0x83, "Reservation Conflict"),
        (0x84, "Format In Progress"),
    ],
    &[
        (0x09, "Invalid Log Page"),
        (0x80, "Conflicting Attributes"),
        (0x81, "Invalid Protection Information"),
        (0x82, "Attempted Write to Read Only Range"),
        (0x83, "Command Size Limit Exceeded"),
        (0xb8, "Zoned Boundary Error"),
        (0xb9, "Zone Is Full"),
        (0xba, "Zone Is Read Only"),
        (0xbb, "Zone Is Offline"),
        (0xbc, "Zone Invalid Write"),
    ],
    &[
        (0x80, "Write Fault"),
        (0x81, "Unrecovered Read Error"),
        (0x82, "End-to-end Guard Check Error"),
        (0x83, "End-to-end Application Tag Check Error"),
        (0x84, "End-to-end Reference Tag Check Error"),
        (0x85, "Compare Failure"),
        (0x86, "Access Denied"),
        (0x87, "Deallocated or Unwritten Logical Block"),
    ],
    &[
        (0x00, "Internal Path Error"),
        (0x01, "Asymmetric Access Persistent Loss"),
        (0x02, "Asymmetric Access Inaccessible"),
        (0x03, "Asymmetric Access Transition"),
        (0x60, "Controller Pathing Error"),
        (0x70, "Host Pathing Error"),
        (0x71, "Command Aborted By Host"),
    ],
];

/// The specification's name of a status.
pub(crate) fn name(status: NvmeStatus) -> &'static str {
    let names = NAMES.get(usize::from(status.kind())).copied().unwrap_or_default();
    match names.iter().find(|(code, _)| *code == status.code()) {
        Some((_, name)) => name,
        None if status.kind() == 7 => "vendor specific status",
        None => "unknown status",
    }
}

/// Whether a controller may return this status when the namespace no longer exists. The
/// specification demands `Invalid Field in Command` for an inactive namespace. Some controllers
/// return `Invalid Namespace or Format`.
pub(crate) fn may_mean_no_namespace(status: NvmeStatus) -> bool {
    status.kind() == 0 && matches!(status.code(), 0x02 | 0x0b)
}

/// Whether the status means that the device does not know the command.
pub(crate) fn is_unknown_command(status: NvmeStatus) -> bool {
    (status.kind(), status.code()) == (0, 0x01)
}

/// Whether the status means that the device has no room left.
pub(crate) fn is_no_space(status: NvmeStatus) -> bool {
    (status.kind(), status.code()) == (0, 0x81)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(word: u16) -> &'static str {
        name(NvmeStatus::new(word).expect("the status is a failure"))
    }

    #[test]
    fn each_type_has_its_own_names() {
        assert_eq!(named(0x4080), "LBA Out of Range");
        assert_eq!(named(0x0180), "Conflicting Attributes");
        assert_eq!(named(0x4280), "Write Fault");
        assert_eq!(named(0x0371), "Command Aborted By Host");
        assert_eq!(named(0x0029), "FDP Disabled");
        assert_eq!(named(0x0712), "vendor specific status");
        assert_eq!(named(0x05ff), "unknown status");
    }
}
