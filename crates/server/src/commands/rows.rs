//! One row for each command that works on connections or on the server. The rows of the commands
//! that work on the data set are in the keyspace crate.

use slimio_keyspace::{Command, Flags, KeyRange, keys_from};

use super::{
    Row, Rows, Run, admin, client, config, connection, introspection, latency, memory, persistence,
    slimio, slowlog, transaction, wait,
};

const ANYTIME: Flags = FAST.and(Flags::NOSCRIPT).and(Flags::NO_AUTH).and(Flags::ALLOW_BUSY);
const CONNECTION: Flags = INFO.and(Flags::NOSCRIPT);
const ADMIN: Flags = CONNECTION.and(Flags::ADMIN);
pub(super) const INFO: Flags = Flags::LOADING.and(Flags::STALE);
const FAST: Flags = INFO.and(Flags::FAST);
const TRANSACTION: Flags = FAST.and(Flags::NOSCRIPT).and(Flags::ALLOW_BUSY);

/// A row with the values that most rows have in common.
pub(super) const ROW: Row = Command {
    name: "",
    arity: 0,
    flags: Flags::NONE,
    keys: KeyRange::NONE,
    also: &[],
    tips: &[],
    key_specs: &[],
    weigh: None,
    group: "connection",
    since: "1.0.0",
    complexity: "O(1)",
    summary: "",
    run: Run::Container(Rows(&[])),
};

/// The rows, sorted by name.
#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    Command {
        name: "auth", arity: -2,
        flags: ANYTIME, also: &["@connection"], complexity: "O(N) where N is the number of passwords defined for the user",
        summary: "Authenticate to the server", run: Run::Server(connection::auth),
        ..ROW
    },
    Command {
        name: "bgrewriteaof", arity: 1,
        flags: Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::NO_ASYNC_LOADING), group: "server", since: "1.0.0", complexity: "O(1)",
        summary: "Asynchronously rewrite the append-only file", run: Run::Server(persistence::bgrewriteaof),
        ..ROW
    },
    Command {
        name: "bgsave", arity: -1,
        flags: Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::NO_ASYNC_LOADING), group: "server", since: "1.0.0", complexity: "O(1)",
        summary: "Asynchronously save the dataset to disk", run: Run::Server(persistence::bgsave),
        ..ROW
    },
    Command {
        name: "client", arity: -2,
        since: "2.4.0", complexity: "Depends on subcommand.",
        summary: "A container for client connection commands", run: Run::Container(Rows(CLIENT)),
        ..ROW
    },
    Command {
        name: "command", arity: -1,
        flags: INFO, also: &["@connection"], tips: &["nondeterministic_output_order"], group: "server", since: "2.8.13", complexity: "O(N) where N is the total number of Redis commands",
        summary: "Get array of Redis command details", run: Run::Container(Rows(COMMAND)),
        ..ROW
    },
    Command {
        name: "config", arity: -2,
        group: "server", since: "2.0.0", complexity: "Depends on subcommand.",
        summary: "A container for server configuration commands", run: Run::Container(Rows(CONFIG)),
        ..ROW
    },
    Command {
        name: "debug", arity: -2,
        flags: ADMIN, group: "server", complexity: "Depends on subcommand.",
        summary: "A container for debugging commands", run: Run::Connections(admin::debug),
        ..ROW
    },
    Command {
        name: "discard", arity: 1,
        flags: TRANSACTION, also: &["@transaction"], group: "transactions", since: "2.0.0", complexity: "O(N), when N is the number of queued commands",
        summary: "Discard all commands issued after MULTI", run: Run::Server(transaction::discard),
        ..ROW
    },
    Command {
        name: "echo", arity: 2,
        flags: FAST, also: &["@connection"],
        summary: "Echo the given string", run: Run::Server(connection::echo),
        ..ROW
    },
    Command {
        name: "exec", arity: 1,
        flags: Flags::NOSCRIPT.and(Flags::LOADING).and(Flags::STALE).and(Flags::SKIP_SLOWLOG), also: &["@transaction"], group: "transactions", since: "1.2.0", complexity: "Depends on commands in the transaction",
        summary: "Execute all commands issued after MULTI", run: Run::Connections(transaction::exec),
        ..ROW
    },
    Command {
        name: "hello", arity: -1,
        flags: ANYTIME, also: &["@connection"], since: "6.0.0",
        summary: "Handshake with Redis", run: Run::Server(connection::hello),
        ..ROW
    },
    Command {
        name: "info", arity: -1,
        flags: INFO, also: &["@dangerous"], tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"], group: "server",
        summary: "Get information and statistics about the server", run: Run::Connections(admin::info),
        ..ROW
    },
    Command {
        name: "lastsave", arity: 1,
        flags: FAST, also: &["@admin", "@dangerous"], tips: &["nondeterministic_output"], group: "server", since: "1.0.0", complexity: "O(1)",
        summary: "Get the UNIX time stamp of the last successful save to disk", run: Run::Server(persistence::lastsave),
        ..ROW
    },
    Command {
        name: "latency", arity: -2,
        group: "server", since: "2.8.13", complexity: "Depends on subcommand.",
        summary: "A container for latency diagnostics commands", run: Run::Container(Rows(LATENCY)),
        ..ROW
    },
    Command {
        name: "memory", arity: -2,
        group: "server", since: "4.0.0", complexity: "Depends on subcommand.",
        summary: "A container for memory diagnostics commands", run: Run::Container(Rows(memory::MEMORY)),
        ..ROW
    },
    Command {
        name: "multi", arity: 1,
        flags: TRANSACTION, also: &["@transaction"], group: "transactions", since: "1.2.0",
        summary: "Mark the start of a transaction block", run: Run::Server(transaction::multi),
        ..ROW
    },
    Command {
        name: "object", arity: -2,
        group: "generic", since: "2.2.3", complexity: "Depends on subcommand.",
        summary: "A container for object introspection commands", run: Run::Container(Rows(memory::OBJECT)),
        ..ROW
    },
    Command {
        name: "ping", arity: -1,
        flags: Flags::FAST, also: &["@connection"], tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
        summary: "Ping the server", run: Run::Server(connection::ping),
        ..ROW
    },
    Command {
        name: "quit", arity: -1,
        flags: ANYTIME, also: &["@connection"],
        summary: "Close the connection", run: Run::Connections(connection::quit),
        ..ROW
    },
    Command {
        name: "reset", arity: 1,
        flags: ANYTIME, also: &["@connection"], since: "6.2.0",
        summary: "Reset the connection", run: Run::Server(connection::reset),
        ..ROW
    },
    Command {
        name: "save", arity: 1,
        flags: Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::NO_ASYNC_LOADING).and(Flags::NO_MULTI), group: "server", since: "1.0.0", complexity: "O(N) where N is the total number of keys in all databases",
        summary: "Synchronously save the dataset to disk", run: Run::Connections(persistence::save),
        ..ROW
    },
    Command {
        name: "select", arity: 2,
        flags: FAST, also: &["@connection"],
        summary: "Change the selected database for the current connection", run: Run::Server(connection::select),
        ..ROW
    },
    Command {
        name: "shutdown", arity: -1,
        flags: Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::LOADING).and(Flags::STALE).and(Flags::NO_MULTI).and(Flags::ALLOW_BUSY), group: "server", complexity: "O(N) when saving, where N is the total number of keys in all databases when saving data, otherwise O(1)",
        summary: "Synchronously save the dataset to disk and then shut down the server", run: Run::Connections(admin::shutdown),
        ..ROW
    },
    Command {
        name: "slimio", arity: -2,
        group: "server", complexity: "Depends on subcommand.",
        summary: "A container for commands that only SlimIO has", run: Run::Container(Rows(SLIMIO)),
        ..ROW
    },
    Command {
        name: "slowlog", arity: -2,
        group: "server", since: "2.2.12", complexity: "Depends on subcommand.",
        summary: "A container for slow log commands", run: Run::Container(Rows(SLOWLOG)),
        ..ROW
    },
    Command {
        name: "time", arity: 1,
        flags: FAST, tips: &["nondeterministic_output"], group: "server", since: "2.6.0",
        summary: "Return the current server time", run: Run::Server(admin::time),
        ..ROW
    },
    Command {
        name: "unwatch", arity: 1,
        flags: TRANSACTION, also: &["@transaction"], group: "transactions", since: "2.2.0",
        summary: "Forget about all watched keys", run: Run::Server(transaction::unwatch),
        ..ROW
    },
    Command {
        name: "waitaof", arity: 4,
        flags: Flags::BLOCKING, also: &["@connection"], tips: &["request_policy:all_shards", "response_policy:agg_min"], group: "generic", since: "7.2.0",
        summary: "Wait for all write commands sent in the context of the current connection to be synced to the append only file", run: Run::Connections(wait::waitaof),
        ..ROW
    },
    Command {
        name: "watch", arity: -2,
        flags: TRANSACTION, keys: KeyRange { first: 1, last: -1, step: 1 }, also: &["@transaction"], key_specs: &[keys_from(1, "RO")], group: "transactions", since: "2.2.0", complexity: "O(1) for every key.",
        summary: "Watch the given keys to determine execution of the MULTI/EXEC block", run: Run::Server(transaction::watch),
        ..ROW
    },
];

/// Subcommands of `CLIENT`.
#[rustfmt::skip]
const CLIENT: &[Row] = &[
    Command {
        name: "getname", arity: 2,
        flags: CONNECTION, also: &["@connection"], since: "2.6.9",
        summary: "Get the current connection name", run: Run::Server(client::getname),
        ..ROW
    },
    Command {
        name: "help", arity: 2,
        flags: INFO, also: &["@connection"], since: "5.0.0",
        summary: "Show helpful text about the different subcommands", run: Run::Server(client::help),
        ..ROW
    },
    Command {
        name: "id", arity: 2,
        flags: CONNECTION, also: &["@connection"], since: "5.0.0",
        summary: "Returns the client ID for the current connection", run: Run::Server(client::id),
        ..ROW
    },
    Command {
        name: "info", arity: 2,
        flags: CONNECTION, also: &["@connection"], tips: &["nondeterministic_output"], since: "6.2.0",
        summary: "Returns information about the current client connection.", run: Run::Server(client::info),
        ..ROW
    },
    Command {
        name: "kill", arity: -3,
        flags: ADMIN, also: &["@connection"], since: "2.4.0", complexity: "O(N) where N is the number of client connections",
        summary: "Kill the connection of a client", run: Run::Connections(client::kill),
        ..ROW
    },
    Command {
        name: "list", arity: -2,
        flags: ADMIN, also: &["@connection"], tips: &["nondeterministic_output"], since: "2.4.0", complexity: "O(N) where N is the number of client connections",
        summary: "Get the list of client connections", run: Run::Connections(client::list),
        ..ROW
    },
    Command {
        name: "no-evict", arity: 3,
        flags: ADMIN, also: &["@connection"], since: "7.0.0",
        summary: "Set client eviction mode for the current connection", run: Run::Server(client::no_evict),
        ..ROW
    },
    Command {
        name: "no-touch", arity: 3,
        flags: CONNECTION, also: &["@connection"], since: "7.2.0",
        summary: "Controls whether commands sent by the client will alter the LRU/LFU of the keys they access.", run: Run::Server(client::no_touch),
        ..ROW
    },
    Command {
        name: "pause", arity: -3,
        flags: ADMIN, also: &["@connection"], since: "2.9.50",
        summary: "Stop processing commands from clients for some time", run: Run::Server(wait::pause),
        ..ROW
    },
    Command {
        name: "reply", arity: 3,
        flags: CONNECTION, also: &["@connection"], since: "3.2.0",
        summary: "Instruct the server whether to reply to commands", run: Run::Server(client::reply),
        ..ROW
    },
    Command {
        name: "setinfo", arity: 4,
        flags: CONNECTION, also: &["@connection"], tips: &["request_policy:all_nodes", "response_policy:all_succeeded"], since: "7.2.0",
        summary: "Set client or connection specific info", run: Run::Server(client::setinfo),
        ..ROW
    },
    Command {
        name: "setname", arity: 3,
        flags: CONNECTION, also: &["@connection"], since: "2.6.9",
        summary: "Set the current connection name", run: Run::Server(client::setname),
        ..ROW
    },
    Command {
        name: "unblock", arity: -3,
        flags: ADMIN, also: &["@connection"], since: "5.0.0", complexity: "O(log N) where N is the number of client connections",
        summary: "Unblock a client blocked in a blocking command from a different connection", run: Run::Connections(wait::unblock),
        ..ROW
    },
    Command {
        name: "unpause", arity: 2,
        flags: ADMIN, also: &["@connection"], since: "6.2.0", complexity: "O(N) Where N is the number of paused clients",
        summary: "Resume processing of clients that were paused", run: Run::Server(wait::unpause),
        ..ROW
    },
];

/// Subcommands of `COMMAND`.
#[rustfmt::skip]
const COMMAND: &[Row] = &[
    Command {
        name: "count", arity: 2,
        flags: INFO, also: &["@connection"], group: "server", since: "2.8.13",
        summary: "Get total number of Redis commands", run: Run::Server(introspection::count),
        ..ROW
    },
    Command {
        name: "docs", arity: -2,
        flags: INFO, also: &["@connection"], tips: &["nondeterministic_output_order"], group: "server", since: "7.0.0", complexity: "O(N) where N is the number of commands to look up",
        summary: "Get array of specific Redis command documentation", run: Run::Server(introspection::docs),
        ..ROW
    },
    Command {
        name: "getkeys", arity: -4,
        flags: INFO, also: &["@connection"], group: "server", since: "2.8.13", complexity: "O(N) where N is the number of arguments to the command",
        summary: "Extract keys given a full Redis command", run: Run::Server(introspection::getkeys),
        ..ROW
    },
    Command {
        name: "getkeysandflags", arity: -4,
        flags: INFO, also: &["@connection"], group: "server", since: "7.0.0", complexity: "O(N) where N is the number of arguments to the command",
        summary: "Extract keys and access flags given a full Redis command", run: Run::Server(introspection::getkeysandflags),
        ..ROW
    },
    Command {
        name: "help", arity: 2,
        flags: INFO, also: &["@connection"], group: "server", since: "5.0.0",
        summary: "Show helpful text about the different subcommands", run: Run::Server(introspection::help),
        ..ROW
    },
    Command {
        name: "info", arity: -2,
        flags: INFO, also: &["@connection"], tips: &["nondeterministic_output_order"], group: "server", since: "2.8.13", complexity: "O(N) where N is the number of commands to look up",
        summary: "Get array of specific Redis command details, or all when no argument is given.", run: Run::Server(introspection::info),
        ..ROW
    },
    Command {
        name: "list", arity: -2,
        flags: INFO, also: &["@connection"], tips: &["nondeterministic_output_order"], group: "server", since: "7.0.0", complexity: "O(N) where N is the total number of Redis commands",
        summary: "Get an array of Redis command names", run: Run::Server(introspection::list),
        ..ROW
    },
];

/// Subcommands of `CONFIG`.
#[rustfmt::skip]
const CONFIG: &[Row] = &[
    Command {
        name: "get", arity: -3,
        flags: ADMIN, group: "server", since: "2.0.0", complexity: "O(N) when N is the number of configuration parameters provided",
        summary: "Get the values of configuration parameters", run: Run::Server(config::get),
        ..ROW
    },
    Command {
        name: "help", arity: 2,
        flags: INFO, group: "server", since: "5.0.0",
        summary: "Show helpful text about the different subcommands", run: Run::Server(config::help),
        ..ROW
    },
    Command {
        name: "resetstat", arity: 2,
        flags: ADMIN, group: "server", since: "2.0.0",
        summary: "Reset the stats returned by INFO", run: Run::Server(config::resetstat),
        ..ROW
    },
    Command {
        name: "rewrite", arity: 2,
        flags: ADMIN, group: "server", since: "2.8.0",
        summary: "Rewrite the configuration file with the in memory configuration", run: Run::Connections(config::rewrite),
        ..ROW
    },
    Command {
        name: "set", arity: -4,
        flags: ADMIN, tips: &["request_policy:all_nodes", "response_policy:all_succeeded"], group: "server", since: "2.0.0", complexity: "O(N) when N is the number of configuration parameters provided",
        summary: "Set configuration parameters to the given values", run: Run::Connections(config::set),
        ..ROW
    },
];

/// Subcommands of `LATENCY`.
#[rustfmt::skip]
const LATENCY: &[Row] = &[
    Command {
        name: "doctor", arity: 2,
        flags: ADMIN, tips: &["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"], group: "server", since: "2.8.13", complexity: "O(1)",
        summary: "Return a human readable latency analysis report.", run: Run::Server(latency::doctor),
        ..ROW
    },
    Command {
        name: "graph", arity: 3,
        flags: ADMIN, tips: &["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"], group: "server", since: "2.8.13", complexity: "O(1)",
        summary: "Return a latency graph for the event.", run: Run::Server(latency::graph),
        ..ROW
    },
    Command {
        name: "help", arity: 2,
        flags: INFO, group: "server", since: "2.8.13", complexity: "O(1)",
        summary: "Show helpful text about the different subcommands.", run: Run::Server(latency::help),
        ..ROW
    },
    Command {
        name: "histogram", arity: -2,
        flags: ADMIN, tips: &["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"], group: "server", since: "7.0.0", complexity: "O(N) where N is the number of commands with latency information being retrieved.",
        summary: "Return the cumulative distribution of latencies of a subset of commands or all.", run: Run::Server(latency::histogram),
        ..ROW
    },
    Command {
        name: "history", arity: 3,
        flags: ADMIN, tips: &["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"], group: "server", since: "2.8.13", complexity: "O(1)",
        summary: "Return timestamp-latency samples for the event.", run: Run::Server(latency::history),
        ..ROW
    },
    Command {
        name: "latest", arity: 2,
        flags: ADMIN, tips: &["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"], group: "server", since: "2.8.13", complexity: "O(1)",
        summary: "Return the latest latency samples for all events.", run: Run::Server(latency::latest),
        ..ROW
    },
    Command {
        name: "reset", arity: -2,
        flags: ADMIN, tips: &["request_policy:all_nodes", "response_policy:all_succeeded"], group: "server", since: "2.8.13", complexity: "O(1)",
        summary: "Reset latency data for one or more events.", run: Run::Server(latency::reset),
        ..ROW
    },
];

/// Subcommands of `SLOWLOG`.
#[rustfmt::skip]
const SLOWLOG: &[Row] = &[
    Command {
        name: "get", arity: -2,
        flags: INFO.and(Flags::ADMIN), tips: &["request_policy:all_nodes", "nondeterministic_output"], group: "server", since: "2.2.12", complexity: "O(N) where N is the number of entries returned",
        summary: "Get the slow log's entries", run: Run::Server(slowlog::get),
        ..ROW
    },
    Command {
        name: "help", arity: 2,
        flags: INFO, group: "server", since: "6.2.0", complexity: "O(1)",
        summary: "Show helpful text about the different subcommands", run: Run::Server(slowlog::help),
        ..ROW
    },
    Command {
        name: "len", arity: 2,
        flags: INFO.and(Flags::ADMIN), tips: &["request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"], group: "server", since: "2.2.12", complexity: "O(1)",
        summary: "Get the slow log's length", run: Run::Server(slowlog::len),
        ..ROW
    },
    Command {
        name: "reset", arity: 2,
        flags: INFO.and(Flags::ADMIN), tips: &["request_policy:all_nodes", "response_policy:all_succeeded"], group: "server", since: "2.2.12", complexity: "O(N) where N is the number of entries in the slowlog",
        summary: "Clear all entries from the slow log", run: Run::Server(slowlog::reset),
        ..ROW
    },
];

/// Subcommands of `SLIMIO`.
#[rustfmt::skip]
const SLIMIO: &[Row] = &[
    Command {
        name: "check", arity: 2,
        flags: Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::NO_ASYNC_LOADING), group: "server",
        summary: "Check the snapshots on the volume in the background", run: Run::Server(slimio::check),
        ..ROW
    },
    Command {
        name: "help", arity: 2,
        flags: INFO, group: "server",
        summary: "Show helpful text about the different subcommands", run: Run::Server(slimio::help),
        ..ROW
    },
    Command {
        name: "pin", arity: -2,
        flags: Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::NO_MULTI).and(Flags::NO_ASYNC_LOADING), group: "server",
        summary: "Keep a snapshot as it is until the connection ends", run: Run::Connections(slimio::pin),
        ..ROW
    },
];
