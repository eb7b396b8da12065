//! The rows of the command table for the commands on expiry.

use super::expire;
use crate::command::flag::{FAST, READONLY, WRITE};
use crate::command::{Command, key, row};

/// Sorted by name.
#[rustfmt::skip]
pub(super) const ROWS: &[Command] = &[
    row("expire", -3, &[WRITE, FAST], expire::expire)
        .keys(&[key(1, "RW update")])
        .docs("generic", "1.0.0", "O(1)", "Set a key's time to live in seconds"),
    row("expireat", -3, &[WRITE, FAST], expire::expireat)
        .keys(&[key(1, "RW update")])
        .docs("generic", "1.2.0", "O(1)", "Set the expiration for a key as a UNIX timestamp"),
    row("expiretime", 2, &[READONLY, FAST], expire::expiretime)
        .keys(&[key(1, "RO access")])
        .docs("generic", "7.0.0", "O(1)", "Get the expiration Unix timestamp for a key"),
    row("persist", 2, &[WRITE, FAST], expire::persist)
        .keys(&[key(1, "RW update")])
        .docs("generic", "2.2.0", "O(1)", "Remove the expiration from a key"),
    row("pexpire", -3, &[WRITE, FAST], expire::pexpire)
        .keys(&[key(1, "RW update")])
        .docs("generic", "2.6.0", "O(1)", "Set a key's time to live in milliseconds"),
    row("pexpireat", -3, &[WRITE, FAST], expire::pexpireat)
        .keys(&[key(1, "RW update")])
        .docs("generic", "2.6.0", "O(1)", "Set the expiration for a key as a UNIX timestamp specified in milliseconds"),
    row("pexpiretime", 2, &[READONLY, FAST], expire::pexpiretime)
        .keys(&[key(1, "RO access")])
        .docs("generic", "7.0.0", "O(1)", "Get the expiration Unix timestamp for a key in milliseconds"),
    row("pttl", 2, &[READONLY, FAST], expire::pttl)
        .keys(&[key(1, "RO access")])
        .docs("generic", "2.6.0", "O(1)", "Get the time to live for a key in milliseconds")
        .tips(&["nondeterministic_output"]),
    row("ttl", 2, &[READONLY, FAST], expire::ttl)
        .keys(&[key(1, "RO access")])
        .docs("generic", "1.0.0", "O(1)", "Get the time to live for a key in seconds")
        .tips(&["nondeterministic_output"]),
];
