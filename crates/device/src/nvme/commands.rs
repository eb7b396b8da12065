//! Turns operations into commands of a namespace, and results of commands into results of
//! operations.

use slimio_planted::is_planted;
use slimio_ring::{CommandError, NvmeCommand};

use super::wire::{self, IdentifyNamespace, opcode};
use super::{Namespace, admin, status};
use crate::{DeviceError, LbaRange, PlacementId, WriteCache};

/// The result of a finished command. A deallocation succeeds even if the device does not know the
/// command or the kernel does not permit it, because a deallocation is only a hint: without it,
/// blocks just stay allocated.
pub(super) fn result_of(opcode: u8, result: Result<(), CommandError>) -> Result<(), DeviceError> {
    let is_hint = opcode == opcode::DATASET_MANAGEMENT;
    match result {
        Ok(()) => Ok(()),
        Err(CommandError::Status(status)) if is_hint && status::is_unknown_command(status) => {
            Ok(())
        }
        // A process that may write can still lack the permission to deallocate.
        Err(CommandError::Os(errno)) if is_hint && errno.number() == libc::EACCES => Ok(()),
        Err(CommandError::Status(status)) if status::is_no_space(status) => {
            Err(DeviceError::NoSpace)
        }
        Err(CommandError::Status(_)) if is_planted("nvme-status-ignored") => Ok(()),
        Err(CommandError::Status(status)) => Err(DeviceError::Nvme { opcode, status }),
        Err(CommandError::Os(errno)) if errno.number() == libc::EINTR => {
            Err(DeviceError::Aborted { opcode })
        }
        Err(CommandError::Os(errno)) => Err(DeviceError::Io { errno: errno.number() }),
    }
}

impl Namespace {
    /// Returns [`DeviceError::Gone`] if a command failed because the device is gone. The kernel
    /// itself reports only that the command failed.
    pub(super) fn explain(&self, result: Result<(), DeviceError>) -> Result<(), DeviceError> {
        match result {
            Err(DeviceError::Io { .. }) if !self.node.exists() => Err(DeviceError::Gone),
            // The driver reports this error until it knows that the namespace is gone.
            Err(DeviceError::Io { errno: libc::EINVAL }) if self.is_inactive() => {
                Err(DeviceError::Gone)
            }
            Err(DeviceError::Nvme { status, .. })
                if status::may_mean_no_namespace(status) && self.is_inactive() =>
            {
                Err(DeviceError::Gone)
            }
            result => result,
        }
    }

    /// Whether the controller says that there is no such namespace. The controller then returns
    /// zeros in all fields of the namespace (NVM Express Base Specification, Identify Namespace
    /// data structure). A driver that is already removing the namespace no longer asks the
    /// controller. Linux 6.12 then returns `EAGAIN`.
    fn is_inactive(&self) -> bool {
        match admin::identify(&self.generic, 0, self.nsid) {
            Ok(data) => IdentifyNamespace::parse(&data).block_count == 0,
            Err(DeviceError::Io { errno }) => {
                matches!(errno, libc::EAGAIN | libc::ENODEV | libc::ENXIO)
            }
            Err(_) => false,
        }
    }

    pub(super) fn read(&self, lba: u64, lbas: u32) -> NvmeCommand {
        let shift = if is_planted("nvme-small-blocks") { 0 } else { self.blocks_shift };
        wire::read(self.nsid, lba << shift, lbas << shift)
    }

    pub(super) fn write(
        &self,
        lba: u64,
        lbas: u32,
        placement: PlacementId,
        durable: bool,
    ) -> NvmeCommand {
        let shift = self.blocks_shift;
        // If the command named an unknown placement, the device would use its default placement and
        // record an FDP event. So an unknown placement is left out.
        let mut placement = self.placements.contains(&placement).then_some(placement.0);
        if is_planted("nvme-first-placement") {
            placement = self.placements.first().map(|first| first.0);
        }
        let mut durable = durable && self.write_cache != WriteCache::Stable;
        if is_planted("nvme-no-fua") {
            durable = false;
        }
        wire::write(self.nsid, lba << shift, lbas << shift, placement, durable)
    }

    /// A flush command; `None` if the device has no cache that loses data in a power cut.
    pub(super) fn flush(&self) -> Option<NvmeCommand> {
        let has_cache = self.write_cache != WriteCache::Stable;
        (has_cache && !is_planted("nvme-flush-unsent")).then(|| wire::flush(self.nsid))
    }

    /// Converts ranges to the format of the Dataset Management command.
    pub(super) fn ranges(&self, ranges: &[LbaRange]) -> Vec<[u8; 16]> {
        let mut found = Vec::new();
        for range in ranges {
            let (mut at, end) =
                (range.start.0 << self.blocks_shift, range.end.0 << self.blocks_shift);
            while at < end {
                let blocks = u32::try_from(end - at).unwrap_or(RANGE_BLOCKS_MAX);
                found.push(wire::range(at, blocks));
                at += u64::from(blocks);
            }
        }
        found
    }
}

/// A range that is too long for the command's 32-bit field is cut into parts of this many device
/// blocks.
const RANGE_BLOCKS_MAX: u32 = 1 << 31;

#[cfg(test)]
pub(super) mod tests {
    use slimio_ring::{Errno, NvmeStatus};

    use super::*;
    use crate::Lba;

    pub(in crate::nvme) fn namespace(blocks_shift: u32) -> Namespace {
        Namespace {
            node: "/sys".into(),
            generic: std::fs::File::open("/dev/null").expect("every Linux has /dev/null"),
            nsid: 3,
            lba_count: 1 << 40,
            blocks_shift,
            command_lbas_max: 4,
            write_cache: WriteCache::VolatileWithFua,
            has_deallocate: true,
            placements: vec![PlacementId(0), PlacementId(0x4001)],
            mapped: std::sync::Arc::default(),
        }
    }

    #[test]
    fn a_device_of_smaller_blocks_is_addressed_in_groups_of_them() {
        let namespace = namespace(3);
        assert_eq!(namespace.read(5, 2), wire::read(3, 40, 16));
        let range = LbaRange { start: Lba(1), end: Lba(3) };
        assert_eq!(namespace.ranges(&[range]), [wire::range(8, 16)]);
    }

    #[test]
    fn only_the_devices_own_placements_are_named() {
        let mut namespace = namespace(0);
        let named = namespace.write(7, 1, PlacementId(0x4001), true);
        assert_eq!(named, wire::write(3, 7, 1, Some(0x4001), true));
        let unknown = namespace.write(7, 1, PlacementId(1), false);
        assert_eq!(unknown, wire::write(3, 7, 1, None, false));
        namespace.placements.clear();
        let none = namespace.write(7, 1, PlacementId(0), false);
        assert_eq!(none, wire::write(3, 7, 1, None, false));
        namespace.write_cache = WriteCache::Stable;
        let stable = namespace.write(7, 1, PlacementId(0), true);
        assert_eq!(
            stable,
            wire::write(3, 7, 1, None, false),
            "a device without a volatile cache needs no FUA bit"
        );
    }

    #[test]
    fn a_flush_is_sent_unless_nothing_is_in_a_cache() {
        let mut namespace = namespace(0);
        for write_cache in [WriteCache::VolatileWithFua, WriteCache::Volatile] {
            namespace.write_cache = write_cache;
            assert_eq!(namespace.flush(), Some(wire::flush(3)));
        }
        namespace.write_cache = WriteCache::Stable;
        assert_eq!(namespace.flush(), None);
    }

    #[test]
    fn a_device_that_is_gone_is_said_to_be() {
        let mut namespace = namespace(0);
        let refused = Err(DeviceError::Io { errno: libc::EINVAL });
        assert_eq!(namespace.explain(refused.clone()), refused);
        namespace.node = "/sys/no/such/device".into();
        assert_eq!(namespace.explain(refused), Err(DeviceError::Gone));
        assert_eq!(namespace.explain(Ok(())), Ok(()));
    }

    #[test]
    fn a_range_longer_than_the_field_is_several() {
        let range = LbaRange { start: Lba(10), end: Lba(10 + (1 << 32)) };
        let half = 1 << 31;
        let found = namespace(0).ranges(&[range, LbaRange { start: Lba(4), end: Lba(4) }]);
        assert_eq!(found, [wire::range(10, half), wire::range(10 + u64::from(half), half)]);
    }

    #[test]
    fn every_status_becomes_an_error_that_names_it() {
        let status = |word| Err(CommandError::Status(NvmeStatus::new(word).expect("a failure")));
        for (opcode, word, said) in [
            (opcode::WRITE, 0x4280, "the device failed a write: Write Fault (2:80h)"),
            (opcode::READ, 0x4281, "the device failed a read: Unrecovered Read Error (2:81h)"),
            (opcode::FLUSH, 0x4006, "the device failed a flush: Internal Error (0:06h)"),
            (
                opcode::DATASET_MANAGEMENT,
                0x4002,
                "the device failed a deallocation: Invalid Field in Command (0:02h)",
            ),
            (opcode::WRITE, 0x4081, "no space left"),
        ] {
            let error = result_of(opcode, status(word)).expect_err("the status is a failure");
            assert_eq!(error.to_string(), said);
        }
        let unknown = status(0x4001);
        assert_eq!(result_of(opcode::DATASET_MANAGEMENT, unknown), Ok(()));
        assert!(result_of(opcode::WRITE, unknown).is_err());
        let given_up = Err(CommandError::Os(Errno::new(libc::EINTR)));
        let error = result_of(opcode::WRITE, given_up).expect_err("the driver aborted the command");
        assert_eq!(
            error.to_string(),
            "the driver aborted a write: the device was reset, did not answer, or is gone"
        );
    }
}
