//! The rows of the command table for the commands on hashes.

use super::{fields, random, walk};
use crate::command::flag::{DENYOOM, FAST, FREES, IN_STEPS, LONG_EFFECT, READONLY, WRITE};
use crate::command::{Command, key, row};
use crate::commands::steps;

/// Sorted by name.
#[rustfmt::skip]
pub(crate) const ROWS: &[Command] = &[
    row("hdel", -3, &[WRITE, FAST, FREES, IN_STEPS], steps::run::<fields::Hdel>)
        .keys(&[key(1, "RW delete")])
        .docs("hash", "2.0.0", "O(N) where N is the number of fields to be removed.", "Delete one or more hash fields"),
    row("hexists", 3, &[READONLY, FAST], fields::hexists)
        .keys(&[key(1, "RO")])
        .docs("hash", "2.0.0", "O(1)", "Determine if a hash field exists"),
    row("hget", 3, &[READONLY, FAST], fields::hget)
        .keys(&[key(1, "RO access")])
        .docs("hash", "2.0.0", "O(1)", "Get the value of a hash field"),
    row("hgetall", 2, &[READONLY], walk::hgetall)
        .keys(&[key(1, "RO access")])
        .docs("hash", "2.0.0", "O(N) where N is the size of the hash.", "Get all the fields and values in a hash")
        .tips(&["nondeterministic_output_order"]),
    row("hincrby", 4, &[WRITE, DENYOOM, FAST], fields::hincrby)
        .keys(&[key(1, "RW access update")])
        .docs("hash", "2.0.0", "O(1)", "Increment the integer value of a hash field by the given number"),
    row("hincrbyfloat", 4, &[WRITE, DENYOOM, FAST, LONG_EFFECT], fields::hincrbyfloat)
        .keys(&[key(1, "RW access update")])
        .docs("hash", "2.6.0", "O(1)", "Increment the float value of a hash field by the given amount"),
    row("hkeys", 2, &[READONLY], walk::hkeys)
        .keys(&[key(1, "RO access")])
        .docs("hash", "2.0.0", "O(N) where N is the size of the hash.", "Get all the fields in a hash")
        .tips(&["nondeterministic_output_order"]),
    row("hlen", 2, &[READONLY, FAST], fields::hlen)
        .keys(&[key(1, "RO")])
        .docs("hash", "2.0.0", "O(1)", "Get the number of fields in a hash"),
    row("hmget", -3, &[READONLY, FAST, IN_STEPS], steps::run::<fields::Hmget>)
        .keys(&[key(1, "RO access")])
        .docs("hash", "2.0.0", "O(N) where N is the number of fields being requested.", "Get the values of all the given hash fields"),
    row("hmset", -4, &[WRITE, DENYOOM, FAST, IN_STEPS], steps::run::<fields::Hmset>)
        .keys(&[key(1, "RW update")])
        .docs("hash", "2.0.0", "O(N) where N is the number of fields being set.", "Set multiple hash fields to multiple values"),
    row("hrandfield", -2, &[READONLY], random::hrandfield)
        .keys(&[key(1, "RO access")])
        .docs("hash", "6.2.0", "O(N) where N is the number of fields returned", "Get one or multiple random fields from a hash")
        .tips(&["nondeterministic_output"]),
    row("hscan", -3, &[READONLY], walk::hscan)
        .keys(&[key(1, "RO access")])
        .docs("hash", "2.8.0", "O(1) for every call. O(N) for a complete iteration, including enough command calls for the cursor to return back to 0. N is the number of elements inside the collection..", "Incrementally iterate hash fields and associated values")
        .tips(&["nondeterministic_output"]),
    row("hset", -4, &[WRITE, DENYOOM, FAST, IN_STEPS], steps::run::<fields::Hset>)
        .keys(&[key(1, "RW update")])
        .docs("hash", "2.0.0", "O(1) for each field/value pair added, so O(N) to add N field/value pairs when the command is called with multiple field/value pairs.", "Set the string value of a hash field"),
    row("hsetnx", 4, &[WRITE, DENYOOM, FAST], fields::hsetnx)
        .keys(&[key(1, "RW insert")])
        .docs("hash", "2.0.0", "O(1)", "Set the value of a hash field, only if the field does not exist"),
    row("hstrlen", 3, &[READONLY, FAST], fields::hstrlen)
        .keys(&[key(1, "RO")])
        .docs("hash", "3.2.0", "O(1)", "Get the length of the value of a hash field"),
    row("hvals", 2, &[READONLY], walk::hvals)
        .keys(&[key(1, "RO access")])
        .docs("hash", "2.0.0", "O(N) where N is the size of the hash.", "Get all the values in a hash")
        .tips(&["nondeterministic_output_order"]),
];
