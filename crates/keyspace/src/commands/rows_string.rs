//! The rows of the command table for the commands on strings.

use super::{counter, range, steps, string};
use crate::command::flag::{DENYOOM, FAST, IN_STEPS, LONG_EFFECT, READONLY, WRITE};
use crate::command::{Command, every_second_from, key, keys_from, row};

/// Sorted by name.
#[rustfmt::skip]
pub(super) const ROWS: &[Command] = &[
    row("append", 3, &[WRITE, DENYOOM, FAST], range::append)
        .keys(&[key(1, "RW insert")])
        .docs("string", "2.0.0", "O(1)", "Append a value to a key"),
    row("decr", 2, &[WRITE, DENYOOM, FAST], counter::decr)
        .keys(&[key(1, "RW access update")])
        .docs("string", "1.0.0", "O(1)", "Decrement the integer value of a key by one"),
    row("decrby", 3, &[WRITE, DENYOOM, FAST], counter::decrby)
        .keys(&[key(1, "RW access update")])
        .docs("string", "1.0.0", "O(1)", "Decrement the integer value of a key by the given number"),
    row("get", 2, &[READONLY, FAST], string::get)
        .keys(&[key(1, "RO access")])
        .docs("string", "1.0.0", "O(1)", "Get the value of a key"),
    row("getdel", 2, &[WRITE, FAST], string::getdel)
        .keys(&[key(1, "RW access delete")])
        .docs("string", "6.2.0", "O(1)", "Get the value of a key and delete the key"),
    row("getex", -2, &[WRITE, FAST], string::getex)
        .keys(&[key(1, "RW access update").noting("RW and UPDATE because it changes the TTL")])
        .docs("string", "6.2.0", "O(1)", "Get the value of a key and optionally set its expiration"),
    row("getrange", 4, &[READONLY], range::getrange)
        .keys(&[key(1, "RO access")])
        .docs("string", "2.4.0", "O(N) where N is the length of the returned string", "Get a substring of the string stored at a key"),
    row("getset", 3, &[WRITE, DENYOOM, FAST], string::getset)
        .keys(&[key(1, "RW access update")])
        .docs("string", "1.0.0", "O(1)", "Set the string value of a key and return its old value"),
    row("incr", 2, &[WRITE, DENYOOM, FAST], counter::incr)
        .keys(&[key(1, "RW access update")])
        .docs("string", "1.0.0", "O(1)", "Increment the integer value of a key by one"),
    row("incrby", 3, &[WRITE, DENYOOM, FAST], counter::incrby)
        .keys(&[key(1, "RW access update")])
        .docs("string", "1.0.0", "O(1)", "Increment the integer value of a key by the given amount"),
    row("incrbyfloat", 3, &[WRITE, DENYOOM, FAST, LONG_EFFECT], counter::incrbyfloat)
        .keys(&[key(1, "RW access update")])
        .docs("string", "2.6.0", "O(1)", "Increment the float value of a key by the given amount"),
    row("mget", -2, &[READONLY, FAST, IN_STEPS], steps::run::<string::Mget>)
        .keys(&[keys_from(1, "RO access")])
        .docs("string", "1.0.0", "O(N) where N is the number of keys to retrieve", "Get the values of all the given keys")
        .tips(&["request_policy:multi_shard"]),
    row("mset", -3, &[WRITE, DENYOOM, IN_STEPS], steps::run::<string::Mset>)
        .keys(&[every_second_from(1, "OW update")])
        .docs("string", "1.0.1", "O(N) where N is the number of keys to set", "Set multiple keys to multiple values")
        .tips(&["request_policy:multi_shard", "response_policy:all_succeeded"]),
    row("msetnx", -3, &[WRITE, DENYOOM, IN_STEPS], steps::run::<string::Msetnx>)
        .keys(&[every_second_from(1, "OW insert")])
        .docs("string", "1.0.1", "O(N) where N is the number of keys to set", "Set multiple keys to multiple values, only if none of the keys exist")
        .tips(&["request_policy:multi_shard", "response_policy:agg_min"]),
    row("psetex", 4, &[WRITE, DENYOOM], string::psetex)
        .keys(&[key(1, "OW update")])
        .docs("string", "2.6.0", "O(1)", "Set the value and expiration in milliseconds of a key"),
    row("set", -3, &[WRITE, DENYOOM], string::set)
        .keys(&[key(1, "RW access update variable_flags").noting("RW and ACCESS due to the optional `GET` argument")])
        .docs("string", "1.0.0", "O(1)", "Set the string value of a key"),
    row("setex", 4, &[WRITE, DENYOOM], string::setex)
        .keys(&[key(1, "OW update")])
        .docs("string", "2.0.0", "O(1)", "Set the value and expiration of a key"),
    row("setnx", 3, &[WRITE, DENYOOM, FAST], string::setnx)
        .keys(&[key(1, "OW insert")])
        .docs("string", "1.0.0", "O(1)", "Set the value of a key, only if the key does not exist"),
    row("setrange", 4, &[WRITE, DENYOOM], range::setrange)
        .keys(&[key(1, "RW update")])
        .docs("string", "2.2.0", "O(1), not counting the time taken to copy the new string in place", "Overwrite part of a string at key starting at the specified offset"),
    row("strlen", 2, &[READONLY, FAST], range::strlen)
        .keys(&[key(1, "RO")])
        .docs("string", "2.2.0", "O(1)", "Get the length of the value stored in a key"),
    row("substr", 4, &[READONLY], range::substr)
        .keys(&[key(1, "RO access")])
        .docs("string", "1.0.0", "O(N) where N is the length of the returned string", "Get a substring of the string stored at a key"),
];
