//! One row per directive.

use super::value::Kind;

/// What setting a directive does here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It does what it says, also while the server runs.
    Live,
    /// It does what it says, at start only.
    AtStart,
    /// It does what it says, at this start only: `CONFIG REWRITE` does not keep it for the next.
    Once,
    /// It is accepted, kept for `CONFIG GET`, and changes nothing; setting it is worth a warning.
    None,
    /// Only its default is possible. The text says why, or what to use instead.
    OnlyDefault(&'static str),
}

/// A row of the table.
#[derive(Debug)]
pub struct Directive {
    /// As in the file and in `CONFIG GET`.
    pub name: &'static str,
    /// Older name of the same thing; empty if none.
    pub alias: &'static str,
    /// The kind of its value.
    pub kind: Kind,
    /// The value in force when nobody sets it, as it would stand in a file.
    pub default: &'static str,
    /// What setting it does.
    pub effect: Effect,
    /// One line for people.
    pub doc: &'static str,
    /// How it differs from Redis; empty if it does not.
    pub differs: &'static str,
    /// Whether `CONFIG SET` may change it.
    pub access: Access,
}

/// Who may change a directive while the server runs, as far as its [effect](Effect) allows that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Whoever may use `CONFIG`.
    Open,
    /// Nobody, unless `enable-protected-configs` says so.
    Protected,
    /// Nobody: Redis reads it at its start only.
    Fixed,
}

const INT_MAX: i64 = i32::MAX as i64;
const DATABASES_MAX: i64 = slimio_keyspace::DB_COUNT_MAX as i64;
const SIZE_MAX: i64 = i64::MAX;
const BIG: i64 = i64::MAX;

const fn row(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    effect: Effect,
    doc: &'static str,
) -> Directive {
    Directive { name, alias: "", kind, default, effect, doc, differs: "", access: Access::Open }
}

/// Accepted without an effect.
const fn inert(name: &'static str, kind: Kind, default: &'static str) -> Directive {
    row(name, kind, default, Effect::None, "")
}

/// Accepted with its default only.
const fn only(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    instead: &'static str,
) -> Directive {
    row(name, kind, default, Effect::OnlyDefault(instead), "")
}

const fn also(mut row: Directive, alias: &'static str) -> Directive {
    row.alias = alias;
    row
}

/// Notes how the directive differs from Redis.
const fn unlike(mut row: Directive, differs: &'static str) -> Directive {
    row.differs = differs;
    row
}

/// Cannot be changed while the server runs: see [`Access`].
const fn fixed(mut row: Directive) -> Directive {
    row.access = Access::Fixed;
    row
}

const fn protected(mut row: Directive) -> Directive {
    row.access = Access::Protected;
    row
}

/// Redis has no such directive.
const fn own(row: Directive) -> Directive {
    unlike(row, "SlimIO's own")
}

/// The values of `appendfsync`: how much may be lost and when. In the order of Redis's own table.
pub const APPENDFSYNC: &[&str] = &["everysec", "always", "no"];
/// How much the server logs.
pub const LOGLEVEL: &[&str] = &["debug", "verbose", "notice", "warning", "nothing"];
/// Which kernel interfaces may be used.
pub const IO_BACKEND: &[&str] = &["auto", "uring", "plain"];
/// What to do with a volume that was last written on another device.
const VOLUME_IDENTITY: &[&str] = &["check", "accept"];
/// What to do when the volume's best path is not available.
pub const VOLUME_FALLBACK: &[&str] = &["allow", "require"];

const MAXMEMORY_POLICY: &[&str] = &[
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "noeviction",
];
const SYSLOG_FACILITY: &[&str] =
    &["user", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7"];

const ALWAYS_LAZY: &str = "what is large is always freed on a thread of its own";
const NO_CLUSTER: &str = "this server is not a cluster node";
const NO_REPLICA: &str = "this server is not a replica";
const NO_TLS: &str = "put a TLS proxy in front";
const NO_ACL: &str = "only the default user exists; use requirepass";
const NO_EVENTS: &str = "keyspace events are not published";

/// Every directive, by name.
#[rustfmt::skip]
pub static DIRECTIVES: &[Directive] = &[
    // Network.
    unlike(row("bind", Kind::Words, "127.0.0.1 -::1", Effect::AtStart, "addresses to listen on; one that begins with - may be missing"), "Redis listens on all addresses"),
    row("port", Kind::Int(0, 65535), "6379", Effect::AtStart, "TCP port; 0 listens on none"),
    row("tcp-backlog", Kind::Int(0, INT_MAX), "511", Effect::AtStart, "connections the kernel may hold for us to accept"),
    row("tcp-keepalive", Kind::Int(0, INT_MAX), "300", Effect::Live, "seconds between probes of a silent connection; 0 sends none"),
    row("timeout", Kind::Int(0, INT_MAX), "0", Effect::Live, "seconds after which an idle client is disconnected; 0 is never"),
    row("unixsocket", Kind::Text, "", Effect::AtStart, "path of a Unix socket to listen on"),
    row("unixsocketperm", Kind::Octal, "0", Effect::AtStart, "permissions of that socket; 0 is 600: for its owner alone"),
    row("protected-mode", Kind::Bool, "yes", Effect::Live, "without a password only the same machine may connect"),
    row("maxclients", Kind::Int(1, 4_294_967_295), "10000", Effect::Live, "most clients at once"),
    unlike(row("client-query-buffer-limit", Kind::Memory(1 << 20, SIZE_MAX), "1gb", Effect::Live, "most bytes of a request not yet complete, and of what MULTI has queued"), "Redis has no limit to what MULTI has queued"),
    row("client-output-buffer-limit", Kind::OutputLimits, "normal 0 0 0 slave 256mb 64mb 60 pubsub 32mb 8mb 60", Effect::Live, "most bytes of replies that wait for one client"),
    row("proto-max-bulk-len", Kind::Memory(1 << 20, SIZE_MAX), "512mb", Effect::Live, "longest string in a request"),
    own(row("io-backend", Kind::Choice(IO_BACKEND), "auto", Effect::AtStart, "io_uring, plain system calls, or the better one that the kernel allows")),
    // Values.
    also(unlike(row("hash-max-listpack-entries", Kind::Int(0, BIG), "128", Effect::Live, "most fields of a hash that is packed, up to 1024"), "Redis packs up to 512; here a larger hash takes no more memory and is faster"), "hash-max-ziplist-entries"),
    also(row("hash-max-listpack-value", Kind::Memory(0, SIZE_MAX), "64", Effect::Live, "longest field or value of a hash that is packed, in bytes"), "hash-max-ziplist-value"),
    // Security.
    row("requirepass", Kind::Text, "", Effect::Live, "password of the default user; empty asks for none"),
    row("enable-debug-command", Kind::Choice(&["no", "yes", "local"]), "no", Effect::AtStart, "who may use DEBUG"),
    // The log.
    unlike(row("appendonly", Kind::Bool, "yes", Effect::Live, "keep a log of writes, so that data survive"), "Redis keeps no log unless told to"),
    unlike(row("appendfsync", Kind::Choice(APPENDFSYNC), "everysec", Effect::Live, "when a write is acknowledged: on stable media (always), or where it outlives the process"), "what everysec and no have acknowledged outlives the process, whatever ends it"),
    own(row("volume", Kind::Utf8, "./slimio-data/", Effect::AtStart, "directory, NVMe namespace, block device or emulated SSD (`emulated:4G`, docs/ssd.md) that holds the data")),
    own(row("volume-passthrough", Kind::Bool, "yes", Effect::AtStart, "whether an NVMe namespace is reached by the driver's own commands rather than as a block device")),
    own(row("volume-trace", Kind::Utf8, "", Effect::AtStart, "new file in which every write, deallocation and flush of a volume on a device is recorded, for `slimio waf`; empty records nothing")),
    own(row("volume-fallback", Kind::Choice(VOLUME_FALLBACK), "allow", Effect::AtStart, "whether to start on less than the best I/O path")),
    own(row("volume-identity", Kind::Choice(VOLUME_IDENTITY), "check", Effect::Once, "refuse a volume that was last written on another device, or accept it, as this one's from then on; `CONFIG REWRITE` does not keep it")),
    own(row("log-size-max", Kind::Memory(1 << 20, SIZE_MAX), "96gb", Effect::AtStart, "size up to which the log may grow on the volume; on a device it leaves room for the snapshots besides")),
    own(row("log-segment-size", Kind::Memory(1 << 20, 1 << 30), "64mb", Effect::AtStart, "size of the pieces the log grows by; fixed when the volume is made, on a device a power of two and a sixty-fourth of it at most")),
    own(row("log-buffers", Kind::Int(4, 4096), "64", Effect::AtStart, "batches of the log that may be in memory at once")),
    own(row("log-buffer-size", Kind::Memory(16 << 10, 1 << 20), "256kb", Effect::AtStart, "size of one of them; fixed when the volume is made")),
    own(row("salvage", Kind::Bool, "no", Effect::Once, "open a damaged log, and lose everything behind the damage; `CONFIG REWRITE` does not keep it")),
    // Snapshots.
    unlike(row("save", Kind::SavePoints, "", Effect::Live, "seconds and changes after which a point in time is kept; empty keeps none unless asked"), "the schedule of Redis holds with appendonly no; with the log, nothing depends on one; more than 2147483647 changes are refused"),
    row("stop-writes-on-bgsave-error", Kind::Bool, "yes", Effect::Live, "refuse writes when save is set and the last point in time could not be kept"),
    row("rdbcompression", Kind::Bool, "yes", Effect::Live, "compress strings in snapshots"),
    unlike(row("auto-aof-rewrite-percentage", Kind::Int(0, INT_MAX), "100", Effect::Live, "growth of the log, in percent of the snapshot it goes on from, at which a new one is taken; 0 is never"), "a log that takes three quarters of its room is rewritten whatever this says"),
    row("auto-aof-rewrite-min-size", Kind::Memory(0, SIZE_MAX), "64mb", Effect::Live, "size of snapshot and log below which that is not done"),
    own(row("snapshot-memory-limit", Kind::Memory(0, SIZE_MAX), "0", Effect::Live, "most bytes of old values that a snapshot may hold before writers wait; 0 is an eighth of the data set, at least 64 MB")),
    own(row("snapshot-rate", Kind::Memory(0, SIZE_MAX), "450mb", Effect::Live, "most bytes of keys and values per second that a snapshot takes while commands are served, and four fifths of it what it writes; more while it holds half of the memory that it may, or the log runs out of room; less while it rewrites a log that has grown and nobody waits for that; 0 is no limit")),
    own(row("snapshot-sqpoll-idle", Kind::Int(0, 60_000), "0", Effect::AtStart, "milliseconds that a thread of the kernel's spins for the next write of a snapshot before it sleeps; 0 has none, and a system call submits")),
    own(row("snapshot-iopoll", Kind::Bool, "no", Effect::AtStart, "fetch completions of a snapshot's writes by spinning, without interrupts, where the device's driver has queues for that")),
    own(row("snapshot-check-rate", Kind::Memory(0, SIZE_MAX), "8mb", Effect::Live, "most bytes per second that the daily check of the snapshots on the volume reads; 0 turns it off")),
    // The data set.
    row("databases", Kind::Int(1, DATABASES_MAX), "16", Effect::AtStart, "number of databases"),
    row("hz", Kind::Int(1, 500), "10", Effect::Live, "rounds of background work per second"),
    row("active-expire-effort", Kind::Int(1, 10), "1", Effect::Live, "how hard to look for expired keys"),
    // Slow commands and delays.
    row("slowlog-log-slower-than", Kind::Int(-1, BIG), "10000", Effect::Live, "microseconds from which a command is kept by SLOWLOG; -1 keeps none"),
    row("slowlog-max-len", Kind::Int(0, BIG), "128", Effect::Live, "commands that SLOWLOG keeps"),
    row("latency-monitor-threshold", Kind::Int(0, BIG), "0", Effect::Live, "milliseconds from which a delay is kept by LATENCY; 0 keeps none"),
    row("latency-tracking", Kind::Bool, "yes", Effect::Live, "count the times of commands, for LATENCY HISTOGRAM and INFO latencystats"),
    row("command-cpu-tracking", Kind::Bool, "no", Effect::Live, "measure the CPU time of each command and of each turn of the event loop, for command_cpu_us_max and turn_cpu_us_max of INFO slimio; takes a system call or two per command"),
    row("latency-tracking-info-percentiles", Kind::Percentiles, "50 99 99.9", Effect::Live, "percentiles of them that INFO latencystats shows"),
    unlike(row("maxmemory", Kind::Memory(0, SIZE_MAX), "0", Effect::Live, "most bytes that the data set and the clients may take; 0 is no limit"), "on a device, unless it is set, three tenths of its extents: three snapshots fit, and a log"),
    row("maxmemory-policy", Kind::Choice(MAXMEMORY_POLICY), "noeviction", Effect::Live, "which keys go when maxmemory is reached"),
    row("maxmemory-samples", Kind::Int(1, INT_MAX), "5", Effect::Live, "keys looked at for each one that goes"),
    row("maxmemory-eviction-tenacity", Kind::Int(0, 100), "10", Effect::Live, "how long eviction may keep a command waiting: 10 is 0.5 ms, 100 as long as it takes"),
    row("lfu-log-factor", Kind::Int(0, INT_MAX), "10", Effect::Live, "under LFU, how many uses count as one more"),
    row("lfu-decay-time", Kind::Int(0, INT_MAX), "1", Effect::Live, "under LFU, minutes after which the count is one less; 0 is never"),
    // Process.
    protected(unlike(row("dir", Kind::Text, ".", Effect::AtStart, "working directory; a relative volume, logfile, pidfile or unixsocket is in it"), "the data are in volume, not here")),
    row("loglevel", Kind::Choice(LOGLEVEL), "notice", Effect::Live, "how much is logged"),
    unlike(row("logfile", Kind::Text, "", Effect::AtStart, "where messages go; empty is standard error"), "Redis writes to standard output"),
    row("pidfile", Kind::Text, "", Effect::AtStart, "file to write the process id to"),
    unlike(row("supervised", Kind::Choice(&["upstart", "systemd", "auto", "no"]), "no", Effect::AtStart, "tell systemd when the server is ready"), "upstart is accepted and nobody is told"),
    fixed(row("always-show-logo", Kind::Bool, "no", Effect::None, "")),
    fixed(only("daemonize", Kind::Bool, "no", "start it from your service manager, or with & in a shell")),
    // Redis has these; here they can only be off, because users who turn them on rely on them.
    fixed(only("cluster-enabled", Kind::Bool, "no", NO_CLUSTER)),
    fixed(also(only("replicaof", Kind::Words, "", NO_REPLICA), "slaveof")),
    only("tls-port", Kind::Int(0, 65535), "0", NO_TLS),
    only("tls-replication", Kind::Bool, "no", NO_TLS),
    only("tls-cluster", Kind::Bool, "no", NO_TLS),
    fixed(only("aclfile", Kind::Text, "", NO_ACL)),
    only("user", Kind::Words, "", NO_ACL),
    only("rename-command", Kind::Words, "", "commands keep their names; use requirepass"),
    only("loadmodule", Kind::Words, "", "there are no modules"),
    only("notify-keyspace-events", Kind::Text, "", NO_EVENTS),
    only("maxmemory-clients", Kind::Text, "0", "use client-output-buffer-limit"),
    also(only("min-replicas-to-write", Kind::Int(0, INT_MAX), "0", NO_REPLICA), "min-slaves-to-write"),
    fixed(only("syslog-enabled", Kind::Bool, "no", "messages go to standard error or logfile")),
    only("activedefrag", Kind::Bool, "no", "the allocator does not support it"),
    fixed(only("io-threads", Kind::Int(1, 1), "1", "one thread serves the sockets")),
    only("aof-timestamp-enabled", Kind::Bool, "no", "records carry no date"),
    // Redis has these, and without them nothing breaks.
    protected(inert("dbfilename", Kind::Text, "dump.rdb")),
    fixed(inert("appendfilename", Kind::Text, "appendonly.aof")),
    fixed(inert("appenddirname", Kind::Text, "appendonlydir")),
    inert("aof-load-truncated", Kind::Bool, "yes"),
    inert("aof-use-rdb-preamble", Kind::Bool, "yes"),
    inert("aof-rewrite-incremental-fsync", Kind::Bool, "yes"),
    inert("aof-disable-auto-gc", Kind::Bool, "no"),
    inert("no-appendfsync-on-rewrite", Kind::Bool, "no"),
    fixed(inert("rdbchecksum", Kind::Bool, "yes")),
    inert("rdb-save-incremental-fsync", Kind::Bool, "yes"),
    inert("rdb-del-sync-files", Kind::Bool, "no"),
    inert("sanitize-dump-payload", Kind::Choice(&["no", "yes", "clients"]), "no"),
    row("lazyfree-lazy-eviction", Kind::Bool, "no", Effect::None, ALWAYS_LAZY),
    row("lazyfree-lazy-expire", Kind::Bool, "no", Effect::None, ALWAYS_LAZY),
    row("lazyfree-lazy-server-del", Kind::Bool, "no", Effect::None, ALWAYS_LAZY),
    row("lazyfree-lazy-user-del", Kind::Bool, "no", Effect::None, ALWAYS_LAZY),
    row("lazyfree-lazy-user-flush", Kind::Bool, "no", Effect::None, ALWAYS_LAZY),
    also(row("replica-lazy-flush", Kind::Bool, "no", Effect::None, ALWAYS_LAZY), "slave-lazy-flush"),
    inert("dynamic-hz", Kind::Bool, "yes"),
    inert("activerehashing", Kind::Bool, "yes"),
    inert("active-defrag-ignore-bytes", Kind::Memory(1, SIZE_MAX), "100mb"),
    inert("active-defrag-threshold-lower", Kind::Int(0, 1000), "10"),
    inert("active-defrag-threshold-upper", Kind::Int(0, 1000), "100"),
    inert("active-defrag-cycle-min", Kind::Int(1, 99), "1"),
    inert("active-defrag-cycle-max", Kind::Int(1, 99), "25"),
    inert("active-defrag-max-scan-fields", Kind::Int(1, BIG), "1000"),
    inert("jemalloc-bg-thread", Kind::Bool, "yes"),
    fixed(inert("io-threads-do-reads", Kind::Bool, "no")),
    also(inert("busy-reply-threshold", Kind::Int(0, BIG), "5000"), "lua-time-limit"),
    also(inert("list-max-listpack-size", Kind::Int(i32::MIN as i64, INT_MAX), "-2"), "list-max-ziplist-size"),
    inert("list-compress-depth", Kind::Int(0, INT_MAX), "0"),
    inert("set-max-intset-entries", Kind::Int(0, BIG), "512"),
    inert("set-max-listpack-entries", Kind::Int(0, BIG), "128"),
    inert("set-max-listpack-value", Kind::Int(0, BIG), "64"),
    also(inert("zset-max-listpack-entries", Kind::Int(0, BIG), "128"), "zset-max-ziplist-entries"),
    also(inert("zset-max-listpack-value", Kind::Memory(0, SIZE_MAX), "64"), "zset-max-ziplist-value"),
    inert("hll-sparse-max-bytes", Kind::Memory(0, SIZE_MAX), "3000"),
    inert("stream-node-max-bytes", Kind::Memory(0, SIZE_MAX), "4096"),
    inert("stream-node-max-entries", Kind::Int(0, BIG), "100"),
    inert("tracking-table-max-keys", Kind::Int(0, BIG), "1000000"),
    inert("acllog-max-len", Kind::Int(0, BIG), "128"),
    inert("acl-pubsub-default", Kind::Choice(&["allchannels", "resetchannels"]), "resetchannels"),
    fixed(inert("enable-protected-configs", Kind::Choice(&["no", "yes", "local"]), "no")),
    fixed(inert("enable-module-command", Kind::Choice(&["no", "yes", "local"]), "no")),
    inert("bind-source-addr", Kind::Text, ""),
    fixed(inert("socket-mark-id", Kind::Int(0, BIG), "0")),
    inert("masterauth", Kind::Text, ""),
    inert("masteruser", Kind::Text, ""),
    also(inert("replica-serve-stale-data", Kind::Bool, "yes"), "slave-serve-stale-data"),
    also(inert("replica-read-only", Kind::Bool, "yes"), "slave-read-only"),
    also(inert("replica-priority", Kind::Int(0, INT_MAX), "100"), "slave-priority"),
    also(inert("replica-announce-ip", Kind::Text, ""), "slave-announce-ip"),
    also(inert("replica-announce-port", Kind::Int(0, 65535), "0"), "slave-announce-port"),
    also(inert("replica-ignore-maxmemory", Kind::Bool, "yes"), "slave-ignore-maxmemory"),
    inert("replica-announced", Kind::Bool, "yes"),
    inert("replica-ignore-disk-write-errors", Kind::Bool, "no"),
    also(inert("repl-ping-replica-period", Kind::Int(1, INT_MAX), "10"), "repl-ping-slave-period"),
    inert("repl-diskless-sync", Kind::Bool, "yes"),
    inert("repl-diskless-sync-delay", Kind::Int(0, INT_MAX), "5"),
    inert("repl-diskless-sync-max-replicas", Kind::Int(0, INT_MAX), "0"),
    inert("repl-diskless-load", Kind::Choice(&["disabled", "on-empty-db", "swapdb"]), "disabled"),
    inert("repl-disable-tcp-nodelay", Kind::Bool, "no"),
    inert("repl-backlog-size", Kind::Memory(1, SIZE_MAX), "1mb"),
    inert("repl-backlog-ttl", Kind::Int(0, BIG), "3600"),
    inert("repl-timeout", Kind::Int(1, INT_MAX), "60"),
    also(inert("min-replicas-max-lag", Kind::Int(0, INT_MAX), "10"), "min-slaves-max-lag"),
    fixed(inert("cluster-config-file", Kind::Text, "nodes.conf")),
    inert("cluster-node-timeout", Kind::Int(0, BIG), "15000"),
    fixed(inert("cluster-port", Kind::Int(0, 65535), "0")),
    inert("cluster-announce-ip", Kind::Text, ""),
    inert("cluster-announce-port", Kind::Int(0, 65535), "0"),
    inert("cluster-announce-tls-port", Kind::Int(0, 65535), "0"),
    inert("cluster-announce-bus-port", Kind::Int(0, 65535), "0"),
    inert("cluster-announce-hostname", Kind::Text, ""),
    inert("cluster-preferred-endpoint-type", Kind::Choice(&["ip", "hostname", "unknown-endpoint"]), "ip"),
    inert("cluster-link-sendbuf-limit", Kind::Memory(0, SIZE_MAX), "0"),
    inert("cluster-migration-barrier", Kind::Int(0, INT_MAX), "1"),
    also(inert("cluster-replica-no-failover", Kind::Bool, "no"), "cluster-slave-no-failover"),
    also(inert("cluster-replica-validity-factor", Kind::Int(0, INT_MAX), "10"), "cluster-slave-validity-factor"),
    inert("cluster-require-full-coverage", Kind::Bool, "yes"),
    inert("cluster-allow-reads-when-down", Kind::Bool, "no"),
    inert("cluster-allow-pubsubshard-when-down", Kind::Bool, "yes"),
    inert("cluster-allow-replica-migration", Kind::Bool, "yes"),
    inert("tls-cert-file", Kind::Text, ""),
    inert("tls-key-file", Kind::Text, ""),
    inert("tls-key-file-pass", Kind::Text, ""),
    inert("tls-client-cert-file", Kind::Text, ""),
    inert("tls-client-key-file", Kind::Text, ""),
    inert("tls-client-key-file-pass", Kind::Text, ""),
    inert("tls-dh-params-file", Kind::Text, ""),
    inert("tls-ca-cert-file", Kind::Text, ""),
    inert("tls-ca-cert-dir", Kind::Text, ""),
    inert("tls-auth-clients", Kind::Choice(&["no", "yes", "optional"]), "yes"),
    inert("tls-protocols", Kind::Text, ""),
    inert("tls-ciphers", Kind::Text, ""),
    inert("tls-ciphersuites", Kind::Text, ""),
    inert("tls-prefer-server-ciphers", Kind::Bool, "no"),
    inert("tls-session-caching", Kind::Bool, "yes"),
    inert("tls-session-cache-size", Kind::Int(0, INT_MAX), "20480"),
    inert("tls-session-cache-timeout", Kind::Int(0, INT_MAX), "300"),
    fixed(inert("set-proc-title", Kind::Bool, "yes")),
    inert("proc-title-template", Kind::Text, "{title} {listen-addr} {server-mode}"),
    inert("propagation-error-behavior", Kind::Choice(&["ignore", "panic", "panic-on-replicas"]), "ignore"),
    inert("crash-log-enabled", Kind::Bool, "yes"),
    inert("crash-memcheck-enabled", Kind::Bool, "yes"),
    fixed(inert("disable-thp", Kind::Bool, "yes")),
    inert("oom-score-adj", Kind::Choice(&["no", "yes", "relative", "absolute"]), "no"),
    inert("oom-score-adj-values", Kind::Words, "0 200 800"),
    inert("shutdown-timeout", Kind::Int(0, INT_MAX), "10"),
    inert("shutdown-on-sigint", Kind::Words, "default"),
    inert("shutdown-on-sigterm", Kind::Words, "default"),
    inert("ignore-warnings", Kind::Words, ""),
    fixed(inert("server_cpulist", Kind::Text, "")),
    fixed(inert("bio_cpulist", Kind::Text, "")),
    fixed(inert("aof_rewrite_cpulist", Kind::Text, "")),
    fixed(inert("bgsave_cpulist", Kind::Text, "")),
    fixed(unlike(inert("syslog-ident", Kind::Text, "slimio"), "Redis says redis")),
    fixed(inert("syslog-facility", Kind::Choice(SYSLOG_FACILITY), "local0")),
    inert("lua-enable-deprecated-api", Kind::Bool, "no"),
    inert("locale-collate", Kind::Text, ""),
];
