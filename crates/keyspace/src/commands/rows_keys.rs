//! The rows of the command table for the commands on keys of any type, and on databases.

use super::{db, dump, keys, restore, scan, steps};
use crate::command::flag::{
    DENYOOM, EXPANDS, FAST, FREES, IN_STEPS, READONLY, TWO_DBS, WHOLE_DB, WRITE,
};
use crate::command::{Command, key, keys_from, row};

/// Sorted by name.
#[rustfmt::skip]
pub(super) const ROWS: &[Command] = &[
    row("copy", -3, &[WRITE, DENYOOM, TWO_DBS], keys::copy)
        .keys(&[key(1, "RO access"), key(2, "OW update")])
        .docs("generic", "6.2.0", "O(N) worst case for collections, where N is the number of nested items", "Copy a key"),
    row("dbsize", 1, &[READONLY, FAST, WHOLE_DB], scan::dbsize)
        .docs("server", "1.0.0", "O(1)", "Return the number of keys in the selected database")
        .also(&["@keyspace"])
        .tips(&["request_policy:all_shards", "response_policy:agg_sum"]),
    row("del", -2, &[WRITE, FREES, IN_STEPS], steps::run::<keys::Del>)
        .keys(&[keys_from(1, "RM delete")])
        .docs("generic", "1.0.0", "O(N) where N is the number of keys that will be removed", "Delete a key")
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
    row("dump", 2, &[READONLY], dump::dump)
        .keys(&[key(1, "RO access")])
        .docs("generic", "2.6.0", "O(1) to access the key and additional O(N*M) to serialize it, where N is the number of Redis objects composing the value and M their average size. For small string values the time complexity is thus O(1)+O(1*M) where M is small, so simply O(1).", "Return a serialized version of the value stored at the specified key.")
        .tips(&["nondeterministic_output"]),
    row("exists", -2, &[READONLY, FAST, IN_STEPS], steps::run::<keys::Exists>)
        .keys(&[keys_from(1, "RO")])
        .docs("generic", "1.0.0", "O(N) where N is the number of keys to check", "Determine if a key exists")
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
    row("flushall", -1, &[WRITE, WHOLE_DB, FREES], db::flushall)
        .docs("server", "1.0.0", "O(N) where N is the total number of keys in all databases", "Remove all keys from all databases")
        .also(&["@keyspace", "@dangerous"])
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
    row("flushdb", -1, &[WRITE, WHOLE_DB, FREES], db::flushdb)
        .docs("server", "1.0.0", "O(N) where N is the number of keys in the selected database", "Remove all keys from the current database")
        .also(&["@keyspace", "@dangerous"])
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
    row("keys", 2, &[READONLY, WHOLE_DB], scan::keys)
        .docs("generic", "1.0.0", "O(N) with N being the number of keys in the database, under the assumption that the key names in the database and the given pattern have limited length", "Find all keys matching the given pattern")
        .also(&["@dangerous"])
        .tips(&["request_policy:all_shards", "nondeterministic_output_order"]),
    row("move", 3, &[WRITE, FAST, TWO_DBS], keys::move_key)
        .keys(&[key(1, "RW access update")])
        .docs("generic", "1.0.0", "O(1)", "Move a key to another database"),
    row("randomkey", 1, &[READONLY, WHOLE_DB], scan::randomkey)
        .docs("generic", "1.0.0", "O(1)", "Return a random key from the keyspace")
        .tips(&["request_policy:all_shards", "nondeterministic_output"]),
    row("rename", 3, &[WRITE], keys::rename)
        .keys(&[key(1, "RW access delete"), key(2, "OW update")])
        .docs("generic", "1.0.0", "O(1)", "Rename a key"),
    row("renamenx", 3, &[WRITE, FAST], keys::renamenx)
        .keys(&[key(1, "RW access delete"), key(2, "OW insert")])
        .docs("generic", "1.0.0", "O(1)", "Rename a key, only if the new key does not exist"),
    row("restore", -4, &[WRITE, DENYOOM, EXPANDS], restore::restore)
        .keys(&[key(1, "OW update")])
        .docs("generic", "2.6.0", "O(1) to create the new key and additional O(N*M) to reconstruct the serialized value, where N is the number of Redis objects composing the value and M their average size. For small string values the time complexity is thus O(1)+O(1*M) where M is small, so simply O(1). However for sorted set values the complexity is O(N*M*log(N)) because inserting values into sorted sets is O(log(N)).", "Create a key using the provided serialized value, previously obtained using DUMP.")
        .also(&["@dangerous"]),
    row("scan", -2, &[READONLY, WHOLE_DB], scan::scan)
        .docs("generic", "2.8.0", "O(1) for every call", "Incrementally iterate the keys space")
        .tips(&["nondeterministic_output", "request_policy:special"]),
    row("swapdb", 3, &[WRITE, FAST, WHOLE_DB], db::swapdb)
        .docs("server", "4.0.0", "O(N) where N is the count of clients watching or blocking on keys from both databases", "Swaps two Redis databases")
        .also(&["@keyspace", "@dangerous"]),
    row("touch", -2, &[READONLY, FAST, IN_STEPS], steps::run::<keys::Touch>)
        .keys(&[keys_from(1, "RO")])
        .docs("generic", "3.2.1", "O(N) where N is the number of keys that will be touched", "Alters the last access time of a key(s). Returns the number of existing keys specified.")
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
    row("type", 2, &[READONLY, FAST], keys::type_key)
        .keys(&[key(1, "RO")])
        .docs("generic", "1.0.0", "O(1)", "Determine the type stored at key"),
    row("unlink", -2, &[WRITE, FAST, FREES, IN_STEPS], steps::run::<keys::Del>)
        .keys(&[keys_from(1, "RM delete")])
        .docs("generic", "4.0.0", "O(1) for each key removed regardless of its size", "Delete a key asynchronously in another thread. Otherwise it is just as DEL, but non blocking.")
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
];
