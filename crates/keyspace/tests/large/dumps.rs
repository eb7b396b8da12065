//! With large values, `DUMP`, `RESTORE` and `DEBUG DIGEST-VALUE` run in steps. Changes between the
//! steps must not affect the result.

use slimio_keyspace::debug_digest_value;
use slimio_resp::{Blob, OwnedRequest};

use crate::common::Driver;
use crate::steps;

/// Runs a command to its end, and calls `between` between its steps. Returns the reply and the step
/// count.
fn run_in_steps(
    driver: &mut Driver,
    request: &OwnedRequest,
    mut between: impl FnMut(&mut Driver),
) -> (Vec<u8>, usize) {
    let run = steps::command(request);
    let (reply, steps, _) = steps::run_in_steps(driver, run, request, |driver, _| between(driver));
    (reply, steps)
}

/// The bytes of a bulk string.
fn bulk(reply: &[u8]) -> &[u8] {
    let start = reply.iter().position(|&byte| byte == b'\n').expect("a line") + 1;
    &reply[start..reply.len() - 2]
}

fn digest(driver: &mut Driver, key: &str) -> (Vec<u8>, usize) {
    let request = OwnedRequest::from_args(["DEBUG", "DIGEST-VALUE", key]);
    let (reply, steps, _) = steps::run_in_steps(driver, debug_digest_value, &request, |_, _| {});
    (reply, steps)
}

#[test]
fn a_large_value_is_dumped_and_restored_in_steps() {
    let mut driver = Driver::new(1);
    for index in 0..50_000 {
        driver.run(&["HSET", "hash", &format!("field:{index:08}"), &format!("value {index}")]);
    }
    let text: String = (10_000_000..10_300_000).map(|number: u32| number.to_string()).collect();
    driver.run(&["SET", "string", &text]);
    for (key, change) in
        [("hash", ["HSET", "hash", "more", "1"].as_slice()), ("string", &["APPEND", "string", "x"])]
    {
        let (before, digest_steps) = digest(&mut driver, key);
        assert!(digest_steps > 5, "{digest_steps} steps");
        let request = OwnedRequest::from_args(["DUMP", key]);
        let mut changes = 0;
        let (reply, steps) = run_in_steps(&mut driver, &request, |driver| {
            // The changes must not affect the dump, which contains the value as it was when the
            // command began.
            if changes < 3 {
                driver.run(change);
            }
            changes += 1;
        });
        assert!(steps > 5, "{steps} steps");
        let mut restore = OwnedRequest::from_args(["RESTORE", "copy", "0"]);
        restore.push_blob(Blob::from_bytes(bulk(&reply)));
        restore.push(b"REPLACE");
        let (reply, steps) = run_in_steps(&mut driver, &restore, |_| {});
        assert_eq!(reply, b"+OK\r\n");
        assert!(steps > 5, "{steps} steps");
        assert_eq!(digest(&mut driver, "copy").0, before);
        assert_ne!(digest(&mut driver, key).0, before);
        driver.check();
    }
}

/// A payload may be much shorter than the value made from it. Each step is bounded nevertheless.
#[test]
fn a_payload_that_expands_is_restored_in_steps() {
    let mut driver = Driver::new(1);
    for index in 0..2_000 {
        driver.run(&["HSET", "hash", &index.to_string(), &"a".repeat(20_000)]);
    }
    let (reply, _) = run_in_steps(&mut driver, &OwnedRequest::from_args(["DUMP", "hash"]), |_| {});
    let payload = bulk(&reply);
    assert!(payload.len() < 2 << 20, "{} bytes", payload.len());
    let mut restore = OwnedRequest::from_args(["RESTORE", "copy", "0"]);
    restore.push_blob(Blob::from_bytes(payload));
    let (reply, steps) = run_in_steps(&mut driver, &restore, |_| {});
    assert_eq!(reply, b"+OK\r\n");
    assert!(steps >= 40, "{steps} steps for 40 MB");
}
