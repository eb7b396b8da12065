//! The table rows of `MEMORY` and `OBJECT`, and the code of their subcommands that do not work on
//! the data set.

use slimio_keyspace::{Command, Flags, KeyRange, KeySpec, inspect, key};
use slimio_resp::Args;

use super::rows::{INFO, ROW};
use super::{Row, Run};
use crate::clients::Client;
use crate::connections::Connections;
use crate::engine::Engine;

/// The place of the key among the arguments of a subcommand.
const KEY: KeyRange = KeyRange { first: 2, last: 2, step: 1 };
const KEY_SPECS: &[KeySpec] = &[key(2, "RO")];

const SHARDED: &[&str] =
    &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"];

const OF_OBJECT: Row = Command {
    arity: 3,
    flags: Flags::READONLY,
    keys: KEY,
    tips: &["nondeterministic_output"],
    key_specs: KEY_SPECS,
    group: "generic",
    since: "2.2.3",
    ..ROW
};

/// Subcommands of `OBJECT`, sorted by name.
#[rustfmt::skip]
pub(super) const OBJECT: &[Row] = &[
    Command { name: "encoding", summary: "Inspect the internal encoding of a Redis object", run: Run::Data(inspect::object_encoding), ..OF_OBJECT },
    Command { name: "freq", since: "4.0.0", summary: "Get the logarithmic access frequency counter of a Redis object", run: Run::Data(inspect::object_freq), ..OF_OBJECT },
    Command { name: "help", arity: 2, flags: INFO, keys: KeyRange::NONE, also: &["@keyspace"], tips: &[], key_specs: &[], since: "6.2.0", summary: "Show helpful text about the different subcommands", run: Run::Server(object_help), ..OF_OBJECT },
    Command { name: "idletime", summary: "Get the time since a Redis object was last accessed", run: Run::Data(inspect::object_idletime), ..OF_OBJECT },
    Command { name: "refcount", summary: "Get the number of references to the value of the key", run: Run::Data(inspect::object_refcount), ..OF_OBJECT },
];

const OF_MEMORY: Row = Command { arity: 2, group: "server", since: "4.0.0", ..ROW };

/// Subcommands of `MEMORY`, sorted by name.
#[rustfmt::skip]
pub(super) const MEMORY: &[Row] = &[
    Command { name: "doctor", tips: SHARDED, summary: "Outputs memory problems report", run: Run::Connections(doctor), ..OF_MEMORY },
    Command { name: "help", flags: INFO, summary: "Show helpful text about the different subcommands", run: Run::Server(memory_help), ..OF_MEMORY },
    Command { name: "malloc-stats", tips: SHARDED, complexity: "Depends on how much memory is allocated, could be slow", summary: "Show allocator internal stats", run: Run::Server(malloc_stats), ..OF_MEMORY },
    Command { name: "purge", tips: &["request_policy:all_shards", "response_policy:all_succeeded"], complexity: "Depends on how much memory is allocated, could be slow", summary: "Ask the allocator to release memory", run: Run::Server(purge), ..OF_MEMORY },
    Command { name: "stats", tips: SHARDED, summary: "Show memory usage details", run: Run::Connections(stats), ..OF_MEMORY },
    Command { name: "usage", arity: -3, flags: Flags::READONLY, keys: KEY, key_specs: KEY_SPECS, complexity: "O(N) where N is the number of samples.", summary: "Estimate the memory usage of a key", run: Run::Data(inspect::memory_usage), ..OF_MEMORY },
];

fn doctor(connections: &mut Connections, engine: &mut Engine, client: &mut Client, _: Args<'_>) {
    let report = crate::info::doctor(engine, connections.client_figures(engine, client));
    client.out.verbatim("txt", report.as_bytes());
}

fn stats(connections: &mut Connections, engine: &mut Engine, client: &mut Client, _: Args<'_>) {
    crate::info::memory_stats(engine, connections.client_figures(engine, client), client);
}

fn malloc_stats(_: &mut Engine, client: &mut Client, _: Args<'_>) {
    let report = (crate::allocator().report)();
    client.out.verbatim("txt", report.as_bytes());
}

/// Does nothing, because the allocator returns memory to the kernel by itself, within seconds.
fn purge(_: &mut Engine, client: &mut Client, _: Args<'_>) {
    client.out.ok();
}

fn object_help(_: &mut Engine, client: &mut Client, _: Args<'_>) {
    super::help(
        client,
        &[
            "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
            "ENCODING <key>",
            "    Return the kind of internal representation used in order to store the value",
            "    associated with a <key>.",
            "FREQ <key>",
            "    Return the access frequency index of the <key>. The returned integer is",
            "    proportional to the logarithm of the recent access frequency of the key.",
            "IDLETIME <key>",
            "    Return the idle time of the <key>, that is the approximated number of",
            "    seconds elapsed since the last access to the key.",
            "REFCOUNT <key>",
            "    Return the number of references of the value associated with the specified",
            "    <key>.",
        ],
    );
}

fn memory_help(_: &mut Engine, client: &mut Client, _: Args<'_>) {
    super::help(
        client,
        &[
            "MEMORY <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
            "DOCTOR",
            "    Return memory problems reports.",
            "MALLOC-STATS",
            "    Return internal statistics report from the memory allocator.",
            "PURGE",
            "    Attempt to purge dirty pages for reclamation by the allocator.",
            "STATS",
            "    Return information about the memory usage of the server.",
            "USAGE <key> [SAMPLES <count>]",
            "    Return memory in bytes used by <key> and its value. Nested values are",
            "    sampled up to <count> times (default: 5, 0 means sample all).",
        ],
    );
}
