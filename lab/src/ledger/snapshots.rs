//! Asks for snapshots and rewrites of the log all the time, so that some servers die during a
//! snapshot or a rewrite.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;

use crate::address::Address;
use crate::client::{Client, Reply};
use crate::error::Result;

/// Longest pause between two requests.
const PAUSE_US_MAX: u64 = 2000;

/// Asks for snapshots and rewrites, one after the other, until the server is dead. `begun` counts
/// the snapshots and rewrites that the server began.
pub(super) fn ask_until_death(
    address: &Address,
    mut rng: Rng,
    dying: &AtomicBool,
    begun: &AtomicU64,
) {
    // An error is ignored here, because the writing clients notice and report the same failure.
    let _ = ask(address, &mut rng, dying, begun);
}

fn ask(address: &Address, rng: &mut Rng, dying: &AtomicBool, begun: &AtomicU64) -> Result<()> {
    let mut client = Client::connect(address)?;
    while !dying.load(Ordering::SeqCst) {
        let command: &[u8] = if rng.u64(..2) == 0 { b"BGREWRITEAOF" } else { b"BGSAVE" };
        if let Reply::Status(_) = client.call(&[command])? {
            begun.fetch_add(1, Ordering::SeqCst);
        }
        thread::sleep(Duration::from_micros(rng.u64(..PAUSE_US_MAX)));
    }
    Ok(())
}
