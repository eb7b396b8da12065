//! The rows of the command table for the commands on sets.

use super::{algebra, members, random};
use crate::command::flag::{DENYOOM, FAST, FREES, IN_STEPS, MOVABLEKEYS, READONLY, WRITE};
use crate::command::{Command, key, keys_counted_at, keys_from, row};
use crate::commands::steps;

/// Sorted by name.
#[rustfmt::skip]
pub(crate) const ROWS: &[Command] = &[
    row("sadd", -3, &[WRITE, DENYOOM, FAST, IN_STEPS], steps::run::<members::Sadd>)
        .keys(&[key(1, "RW insert")])
        .docs("set", "1.0.0", "O(1) for each element added, so O(N) to add N elements when the command is called with multiple arguments.", "Add one or more members to a set"),
    row("scard", 2, &[READONLY, FAST], members::scard)
        .keys(&[key(1, "RO")])
        .docs("set", "1.0.0", "O(1)", "Get the number of members in a set"),
    row("sdiff", -2, &[READONLY, IN_STEPS], algebra::sdiff)
        .keys(&[keys_from(1, "RO access")])
        .docs("set", "1.0.0", "O(N) where N is the total number of elements in all given sets.", "Subtract multiple sets")
        .tips(&["nondeterministic_output_order"]),
    row("sdiffstore", -3, &[WRITE, DENYOOM, IN_STEPS], algebra::sdiffstore)
        .keys(&[key(1, "OW update"), keys_from(2, "RO access")])
        .weighed(algebra::weigh_sources)
        .docs("set", "1.0.0", "O(N) where N is the total number of elements in all given sets.", "Subtract multiple sets and store the resulting set in a key"),
    row("sinter", -2, &[READONLY, IN_STEPS], algebra::sinter)
        .keys(&[keys_from(1, "RO access")])
        .docs("set", "1.0.0", "O(N*M) worst case where N is the cardinality of the smallest set and M is the number of sets.", "Intersect multiple sets")
        .tips(&["nondeterministic_output_order"]),
    row("sintercard", -3, &[READONLY, IN_STEPS, MOVABLEKEYS], algebra::sintercard)
        .keys(&[keys_counted_at(1, "RO access")])
        .docs("set", "7.0.0", "O(N*M) worst case where N is the cardinality of the smallest set and M is the number of sets.", "Intersect multiple sets and return the cardinality of the result"),
    row("sinterstore", -3, &[WRITE, DENYOOM, IN_STEPS], algebra::sinterstore)
        .keys(&[key(1, "RW update"), keys_from(2, "RO access")])
        .weighed(algebra::weigh_sources)
        .docs("set", "1.0.0", "O(N*M) worst case where N is the cardinality of the smallest set and M is the number of sets.", "Intersect multiple sets and store the resulting set in a key"),
    row("sismember", 3, &[READONLY, FAST], members::sismember)
        .keys(&[key(1, "RO")])
        .docs("set", "1.0.0", "O(1)", "Determine if a given value is a member of a set"),
    row("smembers", 2, &[READONLY], members::smembers)
        .keys(&[key(1, "RO access")])
        .docs("set", "1.0.0", "O(N) where N is the set cardinality.", "Get all the members in a set")
        .tips(&["nondeterministic_output_order"]),
    row("smismember", -3, &[READONLY, FAST, IN_STEPS], steps::run::<members::Smismember>)
        .keys(&[key(1, "RO access")])
        .docs("set", "6.2.0", "O(N) where N is the number of elements being checked for membership", "Returns the membership associated with the given elements for a set"),
    row("smove", 4, &[WRITE, FAST], members::smove)
        .keys(&[key(1, "RW access delete"), key(2, "RW insert")])
        .docs("set", "1.0.0", "O(1)", "Move a member from one set to another"),
    row("spop", -2, &[WRITE, FAST, FREES], random::spop)
        .keys(&[key(1, "RW access delete")])
        .weighed(random::weigh_pop)
        .docs("set", "1.0.0", "Without the count argument O(1), otherwise O(N) where N is the value of the passed count.", "Remove and return one or multiple random members from a set")
        .tips(&["nondeterministic_output"]),
    row("srandmember", -2, &[READONLY], random::srandmember)
        .keys(&[key(1, "RO access")])
        .docs("set", "1.0.0", "Without the count argument O(1), otherwise O(N) where N is the absolute value of the passed count.", "Get one or multiple random members from a set")
        .tips(&["nondeterministic_output"]),
    row("srem", -3, &[WRITE, FAST, FREES, IN_STEPS], steps::run::<members::Srem>)
        .keys(&[key(1, "RW delete")])
        .docs("set", "1.0.0", "O(N) where N is the number of members to be removed.", "Remove one or more members from a set"),
    row("sscan", -3, &[READONLY], members::sscan)
        .keys(&[key(1, "RO access")])
        .docs("set", "2.8.0", "O(1) for every call. O(N) for a complete iteration, including enough command calls for the cursor to return back to 0. N is the number of elements inside the collection..", "Incrementally iterate Set elements")
        .tips(&["nondeterministic_output"]),
    row("sunion", -2, &[READONLY, IN_STEPS], algebra::sunion)
        .keys(&[keys_from(1, "RO access")])
        .docs("set", "1.0.0", "O(N) where N is the total number of elements in all given sets.", "Add multiple sets")
        .tips(&["nondeterministic_output_order"]),
    row("sunionstore", -3, &[WRITE, DENYOOM, IN_STEPS], algebra::sunionstore)
        .keys(&[key(1, "OW update"), keys_from(2, "RO access")])
        .weighed(algebra::weigh_sources)
        .docs("set", "1.0.0", "O(N) where N is the total number of elements in all given sets.", "Add multiple sets and store the resulting set in a key"),
];
