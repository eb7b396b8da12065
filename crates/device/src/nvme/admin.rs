//! Commands for which the calling thread waits: queries of a device, and updates of the device's
//! placement handles.

#![expect(unsafe_code, reason = "the driver gets addresses of memory")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use slimio_ring::{NvmeCommand, NvmeStatus};

use super::wire::opcode;
use crate::DeviceError;

/// The request that returns the namespace's id.
const NVME_IOCTL_ID: libc::Ioctl = 0x4e40;

/// The requests that run an admin command and an I/O command.
const NVME_IOCTL_ADMIN64_CMD: libc::Ioctl = 0xc050_4e47_u32 as libc::Ioctl;
const NVME_IOCTL_IO64_CMD: libc::Ioctl = 0xc050_4e48_u32 as libc::Ioctl;

/// Opcodes of the admin command set.
const GET_LOG_PAGE: u8 = 0x02;
const IDENTIFY: u8 = 0x06;
const GET_FEATURES: u8 = 0x0a;

/// `struct nvme_passthru_cmd64`.
#[repr(C)]
#[derive(Default)]
struct Passthrough {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_size: u32,
    size: u32,
    cdw10_to_15: [u32; 6],
    timeout_ms: u32,
    reserved_2: u32,
    result: u64,
}

/// The id of the namespace that a descriptor refers to.
pub(crate) fn namespace_id(file: &File) -> io::Result<u32> {
    // SAFETY: this request has no argument.
    let id = unsafe { libc::ioctl(file.as_raw_fd(), NVME_IOCTL_ID) };
    u32::try_from(id).map_err(|_| io::Error::last_os_error())
}

/// Runs a command that transfers all of `data`, and returns the device's result value.
///
/// # Safety
/// The command must move no more bytes than `data` has. The driver does not check the command.
unsafe fn run(
    file: &File,
    request: libc::Ioctl,
    command: NvmeCommand,
    data: &mut [u8],
) -> Result<u64, DeviceError> {
    let address = if data.is_empty() { 0 } else { data.as_mut_ptr() as u64 };
    let mut passthrough = Passthrough {
        opcode: command.opcode,
        nsid: command.nsid,
        address,
        size: data.len() as u32,
        cdw10_to_15: command.cdw10_to_15,
        ..Passthrough::default()
    };
    // SAFETY: the request takes a `Passthrough`. The caller promises that `data` is long enough for
    // the command.
    let returned = unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut passthrough) };
    match u16::try_from(returned).map(NvmeStatus::new) {
        Ok(None) => Ok(passthrough.result),
        Ok(Some(status)) => Err(DeviceError::Nvme { opcode: command.opcode, status }),
        Err(_) => {
            let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            Err(DeviceError::Io { errno })
        }
    }
}

/// Identify: returns 4096 bytes about the controller (if `cns` is 01h and `nsid` is zero) or about
/// the namespace `nsid` (if `cns` is 00h).
pub(crate) fn identify(file: &File, cns: u8, nsid: u32) -> Result<Box<[u8; 4096]>, DeviceError> {
    let mut data = Box::new([0; 4096]);
    let command = NvmeCommand { opcode: IDENTIFY, nsid, cdw10_to_15: [cns.into(), 0, 0, 0, 0, 0] };
    // SAFETY: Identify moves 4096 bytes.
    unsafe { run(file, NVME_IOCTL_ADMIN64_CMD, command, &mut data[..]) }?;
    Ok(data)
}

/// Get Log Page: returns the first `size` bytes of page `page` of an endurance group. `specific` is
/// the log-specific parameter.
///
/// # Panics
/// When `size` is zero or not a multiple of 4.
pub(crate) fn log_page(
    file: &File,
    page: u8,
    specific: u8,
    endurance_group: u16,
    size: usize,
) -> Result<Vec<u8>, DeviceError> {
    let mut data = vec![0; size];
    let command = log_page_command(page, specific, endurance_group, size);
    // SAFETY: the command names the data's size.
    unsafe { run(file, NVME_IOCTL_ADMIN64_CMD, command, &mut data) }?;
    Ok(data)
}

fn log_page_command(page: u8, specific: u8, group: u16, size: usize) -> NvmeCommand {
    let dwords = dwords(size) - 1;
    let cdw10 = u32::from(page) | u32::from(specific) << 8 | (dwords & 0xffff) << 16;
    let cdw11 = dwords >> 16 | u32::from(group) << 16;
    NvmeCommand { opcode: GET_LOG_PAGE, nsid: u32::MAX, cdw10_to_15: [cdw10, cdw11, 0, 0, 0, 0] }
}

/// Get Features: returns the present value of a feature. `cdw11` (command dword 11) is the
/// feature's parameter.
pub(crate) fn feature(file: &File, feature: u8, cdw11: u32) -> Result<u32, DeviceError> {
    let cdw10_to_15 = [feature.into(), cdw11, 0, 0, 0, 0];
    let command = NvmeCommand { opcode: GET_FEATURES, nsid: 0, cdw10_to_15 };
    // SAFETY: the features that this crate asks for have no data.
    unsafe { run(file, NVME_IOCTL_ADMIN64_CMD, command, &mut []) }.map(|result| result as u32)
}

/// I/O Management Receive: returns the first `size` bytes of the reclaim unit handle status.
///
/// # Panics
/// The same as those of [`log_page`].
pub(crate) fn handle_status(file: &File, nsid: u32, size: usize) -> Result<Vec<u8>, DeviceError> {
    let mut data = vec![0; size];
    let command = handle_status_command(nsid, size);
    // SAFETY: the command names the data's size.
    unsafe { run(file, NVME_IOCTL_IO64_CMD, command, &mut data) }?;
    Ok(data)
}

fn handle_status_command(nsid: u32, size: usize) -> NvmeCommand {
    let cdw10_to_15 = [1, dwords(size) - 1, 0, 0, 0, 0];
    NvmeCommand { opcode: opcode::IO_MANAGEMENT_RECEIVE, nsid, cdw10_to_15 }
}

/// I/O Management Send: makes the handle of each of these placements go on in a fresh reclaim unit.
///
/// # Panics
/// When there are no placements, or more than 128.
pub(crate) fn update_handles(
    file: &File,
    nsid: u32,
    placements: &[u16],
) -> Result<(), DeviceError> {
    let mut data: Vec<u8> = placements.iter().flat_map(|id| id.to_le_bytes()).collect();
    let command = update_handles_command(nsid, placements.len());
    // SAFETY: the command names the number of placements, and each takes two bytes of `data`.
    unsafe { run(file, NVME_IOCTL_IO64_CMD, command, &mut data) }.map(drop)
}

fn update_handles_command(nsid: u32, count: usize) -> NvmeCommand {
    assert!((1..=128).contains(&count), "one command can't have {count} placements");
    let cdw10_to_15 = [1 | (count as u32 - 1) << 16, 0, 0, 0, 0, 0];
    NvmeCommand { opcode: opcode::IO_MANAGEMENT_SEND, nsid, cdw10_to_15 }
}

fn dwords(size: usize) -> u32 {
    assert!(size > 0 && size.is_multiple_of(4), "{size} bytes are not a whole number of dwords");
    (size / 4) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_the_drivers() {
        assert_eq!(size_of::<Passthrough>(), 80);
        let request = |number: u32| 3 << 30 | 80 << 16 | u32::from(b'N') << 8 | number;
        assert_eq!(NVME_IOCTL_ADMIN64_CMD as u32, request(0x47));
        assert_eq!(NVME_IOCTL_IO64_CMD as u32, request(0x48));
    }

    #[test]
    fn a_log_page_is_asked_for_by_dwords_less_one() {
        let command = log_page_command(0x22, 0, 1, 64);
        assert_eq!((command.opcode, command.nsid), (0x02, u32::MAX));
        assert_eq!(command.cdw10_to_15, [0x000f_0022, 0x0001_0000, 0, 0, 0, 0]);
        let command = log_page_command(0x23, 1, 0x1234, 4 * 0x2_0001);
        assert_eq!(command.cdw10_to_15, [0x0000_0123, 0x1234_0002, 0, 0, 0, 0]);
    }

    #[test]
    fn handles_are_asked_for_and_updated_by_operation_1() {
        let command = handle_status_command(2, 16);
        assert_eq!((command.opcode, command.nsid), (0x12, 2));
        assert_eq!(command.cdw10_to_15, [1, 3, 0, 0, 0, 0]);
        let command = update_handles_command(2, 3);
        assert_eq!((command.opcode, command.nsid), (0x1d, 2));
        assert_eq!(command.cdw10_to_15, [0x0002_0001, 0, 0, 0, 0, 0]);
    }
}
