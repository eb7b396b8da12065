//! Turns errors into messages. Each message is one sentence that says what is wrong and what to do
//! about it.

use std::io;

use rustix::io::Errno;
use slimio_device::{DeviceError, OpenError};
use slimio_storage::Error;

/// The remedy if no better remedy is known.
const LOOK_AT_DEVICE: &str = "check the device and the kernel's messages (dmesg)";

/// What is wrong with a volume, and what can be done about it.
pub fn explain(error: &Error) -> String {
    let remedy = match error {
        Error::Open(OpenError::Incomplete { .. }) => {
            "restore this file from a backup, or use --salvage yes and lose the data that only \
             this file held"
        }
        Error::Open(error) => open_remedy(error),
        Error::NoVolume => {
            "check --volume, restore a backup, or make a new volume in place of the present \
             contents with slimio format --force"
        }
        Error::AlreadyFormatted => "use --force to replace the volume",
        Error::OtherVersion { found, supported } if supported.iter().all(|known| known < found) => {
            "use the later version of SlimIO that wrote the volume, or export the volume with that \
             version, make a new volume with slimio format --force, and import the export"
        }
        Error::OtherVersion { .. } => {
            "export the volume with the version of SlimIO that made it, make a new volume with \
             slimio format --force, and import the export"
        }
        Error::OtherSize { .. } => "restore the size that the device had",
        Error::OtherDevice { .. } => {
            "find the volume's device (names such as nvme0n1 may change), or, if this device holds \
             a copy that you want to use, start the server (or run slimio rollback) once with \
             --volume-identity accept"
        }
        Error::SuperblocksDamaged { .. } => "restore the volume from a backup",
        Error::Truncated { .. } => "restore the missing end of the area's file, or a backup",
        Error::Damaged { .. } => {
            "restore a backup, or use --salvage yes and lose everything from that LSN on"
        }
        Error::SnapshotDamaged { .. } => {
            "restore a backup, go back to the on-demand snapshot (if there is one) with slimio \
             rollback, or use --salvage yes and lose the damaged data"
        }
        Error::NoOnDemandSnapshot => "only BGSAVE or SAVE makes one; the server needs none",
        Error::ChunkRefused { .. } | Error::Refused { .. } => {
            "use the version of SlimIO that wrote the volume, with the same number of databases"
        }
        Error::Device { error: DeviceError::NoSpace, .. } => {
            "make room on the volume, delete keys, or move to a larger volume"
        }
        Error::Device { error: DeviceError::Io { errno }, .. } => {
            system_remedy(*errno).unwrap_or(LOOK_AT_DEVICE)
        }
        Error::Device { .. } => LOOK_AT_DEVICE,
        Error::TooSmall { .. } => "make room, or choose a smaller log-segment-size",
    };
    format!("{error}; {remedy}")
}

/// What to do if a volume could not be opened or made.
pub fn open_remedy(error: &OpenError) -> &'static str {
    match error {
        OpenError::InUse { .. } => "stop the program that uses it, or choose another --volume",
        OpenError::StillInFlight { .. } => {
            "check the volume's device (dmesg, /sys/block/*/inflight), and start again when the \
             device has answered"
        }
        OpenError::Missing { .. } => "check --volume, or make a volume with slimio format",
        OpenError::NoSpace { .. } => {
            "make room on the file system (df and df -i show how much room is left), raise the \
             quota if there is one, or choose another --volume"
        }
        OpenError::Unsuitable { .. } => "choose another --volume",
        OpenError::Incomplete { .. } => "restore this file from a backup",
        OpenError::Forbidden { .. } => "docs/fdp.md has the steps",
        OpenError::Device { .. } => "check the device (nvme smart-log), or choose another --volume",
        OpenError::Io { errno, .. } => system_remedy(*errno).unwrap_or(LOOK_AT_DEVICE),
    }
}

/// Says that the kernel refused the operation `doing`, with a remedy if one is known.
pub fn explain_system(doing: &str, error: &io::Error) -> String {
    match error.raw_os_error().and_then(system_remedy) {
        Some(remedy) => format!("cannot {doing}: {error}; {remedy}"),
        None => format!("cannot {doing}: {error}"),
    }
}

/// What can be done about an error of the kernel; `None` if its number suggests no remedy.
fn system_remedy(errno: i32) -> Option<&'static str> {
    Some(match Errno::from_raw_os_error(errno) {
        Errno::MFILE => {
            "raise the number of files that this process may have open (ulimit -n, LimitNOFILE of a \
             service)"
        }
        Errno::NFILE => {
            "close other programs, or raise the number of files that the machine may have open \
             (sysctl fs.file-max)"
        }
        Errno::FBIG => {
            "this file may not become longer: raise the limit of this process (ulimit -f, \
             LimitFSIZE of a service), or choose a --volume on a file system that allows longer \
             files"
        }
        Errno::ROFS => "mount the file system for writing, or choose another --volume",
        Errno::ACCESS | Errno::PERM => {
            "give this user the right to read and write the volume (docs/fdp.md has the steps for \
             an NVMe namespace), or choose another --volume"
        }
        Errno::NOMEM => "free some memory, or raise the memory limit of this process",
        Errno::AGAIN => {
            "raise the number of threads that this user may have (ulimit -u, TasksMax of a service)"
        }
        Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG => "check --volume",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(errno: Errno) -> String {
        let path = "/data/wal".into();
        explain(&Error::Open(OpenError::Io { doing: "opening", path, errno: errno.raw_os_error() }))
    }

    #[test]
    fn each_refusal_of_the_kernel_has_a_remedy_of_its_own() {
        let remedies = [
            (Errno::MFILE, "ulimit -n"),
            (Errno::NFILE, "fs.file-max"),
            (Errno::FBIG, "ulimit -f"),
            (Errno::ROFS, "mount the file system for writing"),
            (Errno::ACCESS, "give this user the right"),
            (Errno::IO, "dmesg"),
        ];
        for (errno, remedy) in remedies {
            let said = said(errno);
            for (_, other) in remedies {
                assert_eq!(said.contains(other), other == remedy, "{said}");
            }
        }
    }

    #[test]
    fn what_is_no_matter_of_the_volume_is_said_in_the_same_words() {
        let said = explain_system("watch signals", &Errno::MFILE.into());
        assert!(said.starts_with("cannot watch signals: Too many open files"), "{said}");
        assert!(said.contains("LimitNOFILE"), "{said}");
        let said = explain_system("watch signals", &Errno::IO.into());
        assert!(!said.contains(';'), "no remedy is known, but the message has one: {said}");
    }
}
