//! Runs operations for callers that can wait until an operation has completed.

use std::time::Duration;

use slimio_device::{Buffer, Completion, Device, DeviceError, Op, Token};

/// Runs one operation to its end and returns its buffer. Nothing else may be in flight.
pub(crate) fn run(device: &mut dyn Device, op: Op) -> Result<Option<Buffer>, DeviceError> {
    assert_eq!(device.in_flight(), 0, "nothing else may be in flight on this path");
    let mut completions = Vec::new();
    if device.submit(Token(0), op).is_err() {
        // If the queue is empty and still refuses an operation, the device is gone.
        return Err(DeviceError::Io { errno: EIO });
    }
    wait_for_one(device, &mut completions);
    match completions.pop() {
        Some(completion) => completion.result.map(|()| completion.buffer),
        None => Err(DeviceError::Io { errno: EIO }),
    }
}

/// Waits until an operation has completed or no operation is in flight.
pub(crate) fn wait_for_one(device: &mut dyn Device, completions: &mut Vec<Completion>) {
    while completions.is_empty() && device.in_flight() > 0 {
        device.wait(None, completions);
    }
}

/// Like [`wait_for_one`], but calls `idle` repeatedly while it waits.
pub(crate) fn wait_idling(
    device: &mut dyn Device,
    completions: &mut Vec<Completion>,
    idle: &mut dyn FnMut(),
) {
    while completions.is_empty() && device.in_flight() > 0 {
        device.wait(Some(IDLE_EVERY), completions);
        if completions.is_empty() {
            idle();
        }
    }
}

/// Longest time between two calls of `idle`.
const IDLE_EVERY: Duration = Duration::from_millis(10);

/// Waits until nothing is in flight, and drops the results.
pub(crate) fn drain(device: &mut dyn Device) {
    let mut completions = Vec::new();
    while device.in_flight() > 0 {
        wait_for_one(device, &mut completions);
        completions.clear();
    }
}

/// The kernel's number of "input/output error".
const EIO: i32 = 5;
