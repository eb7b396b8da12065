//! The rows of the command table for the commands on lists.

use super::ends::{self, FIRST, LAST, Push};
use super::{blocking, moves, places, search};
use crate::command::flag::{
    BLOCKING, DENYOOM, FAST, FREES, IN_STEPS, MOVABLEKEYS, NOSCRIPT, READONLY, WRITE,
};
use crate::command::{Command, key, keys_but_last_from, keys_counted_at, row};
use crate::commands::steps;

/// Sorted by name.
#[rustfmt::skip]
pub(crate) const ROWS: &[Command] = &[
    row("blmove", 6, &[WRITE, DENYOOM, NOSCRIPT, BLOCKING], blocking::blmove)
        .keys(&[key(1, "RW access delete"), key(2, "RW insert")])
        .docs("list", "6.2.0", "O(1)", "Pop an element from a list, push it to another list and return it; or block until one is available"),
    row("blmpop", -5, &[WRITE, BLOCKING, FREES, MOVABLEKEYS], blocking::blmpop)
        .keys(&[keys_counted_at(2, "RW access delete")])
        .docs("list", "7.0.0", "O(N+M) where N is the number of provided keys and M is the number of elements returned.", "Pop elements from a list, or block until one is available"),
    row("blpop", -3, &[WRITE, NOSCRIPT, BLOCKING, FREES], blocking::blpop)
        .keys(&[keys_but_last_from(1, "RW access delete")])
        .docs("list", "2.0.0", "O(N) where N is the number of provided keys.", "Remove and get the first element in a list, or block until one is available"),
    row("brpop", -3, &[WRITE, NOSCRIPT, BLOCKING, FREES], blocking::brpop)
        .keys(&[keys_but_last_from(1, "RW access delete")])
        .docs("list", "2.0.0", "O(N) where N is the number of provided keys.", "Remove and get the last element in a list, or block until one is available"),
    row("brpoplpush", 4, &[WRITE, DENYOOM, NOSCRIPT, BLOCKING], blocking::brpoplpush)
        .keys(&[key(1, "RW access delete"), key(2, "RW insert")])
        .docs("list", "2.2.0", "O(1)", "Pop an element from a list, push it to another list and return it; or block until one is available"),
    row("lindex", 3, &[READONLY], places::lindex)
        .keys(&[key(1, "RO access")])
        .docs("list", "1.0.0", "O(N) where N is the number of elements to traverse to get to the element at index. This makes asking for the first or the last element of the list O(1).", "Get an element from a list by its index"),
    row("linsert", 5, &[WRITE, DENYOOM], search::linsert)
        .keys(&[key(1, "RW insert")])
        .weighed(search::weigh_search)
        .docs("list", "2.2.0", "O(N) where N is the number of elements to traverse before seeing the value pivot. This means that inserting somewhere on the left end on the list (head) can be considered O(1) and inserting somewhere on the right end (tail) is O(N).", "Insert an element before or after another element in a list"),
    row("llen", 2, &[READONLY, FAST], places::llen)
        .keys(&[key(1, "RO")])
        .docs("list", "1.0.0", "O(1)", "Get the length of a list"),
    row("lmove", 5, &[WRITE, DENYOOM], moves::lmove)
        .keys(&[key(1, "RW access delete"), key(2, "RW insert")])
        .docs("list", "6.2.0", "O(1)", "Pop an element from a list, push it to another list and return it"),
    row("lmpop", -4, &[WRITE, FREES, IN_STEPS, MOVABLEKEYS], moves::lmpop)
        .keys(&[keys_counted_at(1, "RW access delete")])
        .weighed(moves::weigh_mpop)
        .docs("list", "7.0.0", "O(N+M) where N is the number of provided keys and M is the number of elements returned.", "Pop elements from a list"),
    row("lpop", -2, &[WRITE, FAST, FREES], ends::lpop)
        .keys(&[key(1, "RW access delete")])
        .weighed(ends::weigh_pop)
        .docs("list", "1.0.0", "O(N) where N is the number of elements returned", "Remove and get the first elements in a list"),
    row("lpos", -3, &[READONLY], search::lpos)
        .keys(&[key(1, "RO access")])
        .docs("list", "6.0.6", "O(N) where N is the number of elements in the list, for the average case. When searching for elements near the head or the tail of the list, or when the MAXLEN option is provided, the command may run in constant time.", "Return the index of matching elements on a list"),
    row("lpush", -3, &[WRITE, DENYOOM, FAST, IN_STEPS], steps::run::<Push<FIRST, false>>)
        .keys(&[key(1, "RW insert")])
        .docs("list", "1.0.0", "O(1) for each element added, so O(N) to add N elements when the command is called with multiple arguments.", "Prepend one or multiple elements to a list"),
    row("lpushx", -3, &[WRITE, DENYOOM, FAST, IN_STEPS], steps::run::<Push<FIRST, true>>)
        .keys(&[key(1, "RW insert")])
        .docs("list", "2.2.0", "O(1) for each element added, so O(N) to add N elements when the command is called with multiple arguments.", "Prepend an element to a list, only if the list exists"),
    row("lrange", 4, &[READONLY], places::lrange)
        .keys(&[key(1, "RO access")])
        .docs("list", "1.0.0", "O(S+N) where S is the distance of start offset from HEAD for small lists, from nearest end (HEAD or TAIL) for large lists; and N is the number of elements in the specified range.", "Get a range of elements from a list"),
    row("lrem", 4, &[WRITE, FREES], search::lrem)
        .keys(&[key(1, "RW delete")])
        .weighed(search::weigh_search)
        .docs("list", "1.0.0", "O(N+M) where N is the length of the list and M is the number of elements removed.", "Remove elements from a list"),
    row("lset", 4, &[WRITE, DENYOOM], places::lset)
        .keys(&[key(1, "RW update")])
        .docs("list", "1.0.0", "O(N) where N is the length of the list. Setting either the first or the last element of the list is O(1).", "Set the value of an element in a list by its index"),
    row("ltrim", 4, &[WRITE, FREES], places::ltrim)
        .keys(&[key(1, "RW delete")])
        .docs("list", "1.0.0", "O(N) where N is the number of elements to be removed by the operation.", "Trim a list to the specified range"),
    row("rpop", -2, &[WRITE, FAST, FREES], ends::rpop)
        .keys(&[key(1, "RW access delete")])
        .weighed(ends::weigh_pop)
        .docs("list", "1.0.0", "O(N) where N is the number of elements returned", "Remove and get the last elements in a list"),
    row("rpoplpush", 3, &[WRITE, DENYOOM], moves::rpoplpush)
        .keys(&[key(1, "RW access delete"), key(2, "RW insert")])
        .docs("list", "1.2.0", "O(1)", "Remove the last element in a list, prepend it to another list and return it"),
    row("rpush", -3, &[WRITE, DENYOOM, FAST, IN_STEPS], steps::run::<Push<LAST, false>>)
        .keys(&[key(1, "RW insert")])
        .docs("list", "1.0.0", "O(1) for each element added, so O(N) to add N elements when the command is called with multiple arguments.", "Append one or multiple elements to a list"),
    row("rpushx", -3, &[WRITE, DENYOOM, FAST, IN_STEPS], steps::run::<Push<LAST, true>>)
        .keys(&[key(1, "RW insert")])
        .docs("list", "2.2.0", "O(1) for each element added, so O(N) to add N elements when the command is called with multiple arguments.", "Append an element to a list, only if the list exists"),
];
