//! One operation at a time, for those who may block.

use slimio_device::{Buffer, Completion, Device, DeviceError, Op, Token};

/// Runs one operation to its end and gives its buffer back. Nothing else may be in flight.
pub(crate) fn run(device: &mut dyn Device, op: Op) -> Result<Option<Buffer>, DeviceError> {
    assert_eq!(device.in_flight(), 0, "this path is used for one thing at a time");
    let mut completions = Vec::new();
    if device.submit(Token(0), op).is_err() {
        // An empty queue that takes nothing is a device that is gone.
        return Err(DeviceError::Io { errno: EIO });
    }
    wait_for_one(device, &mut completions);
    match completions.pop() {
        Some(completion) => completion.result.map(|()| completion.buffer),
        None => Err(DeviceError::Io { errno: EIO }),
    }
}

/// Waits until something has completed, or nothing is in flight.
pub(crate) fn wait_for_one(device: &mut dyn Device, completions: &mut Vec<Completion>) {
    while completions.is_empty() && device.in_flight() > 0 {
        device.wait(None, completions);
    }
}

/// "Input/output error", as the kernel numbers it.
const EIO: i32 = 5;
