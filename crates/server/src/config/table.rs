//! The table of the directives of the configuration. Each directive has one row.

use super::value::ValueKind;

/// What this server does if a directive is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Takes effect at start, and also when it is set while the server runs.
    Live,
    /// Takes effect at start only.
    AtStart,
    /// Takes effect at this start only, because `CONFIG REWRITE` does not keep it for the next
    /// start.
    Once,
    /// Accepted and kept for `CONFIG GET`, but changes nothing. Setting it logs a warning.
    None,
    /// The directive is accepted only with its default. The text says why, or what to use instead.
    OnlyDefault(&'static str),
}

/// A row of the table.
#[derive(Debug)]
pub struct Directive {
    /// The directive's name in the file and in `CONFIG GET`.
    pub name: &'static str,
    /// Older name of the same directive; empty if none.
    pub alias: &'static str,
    /// The kind of the directive's value.
    pub kind: ValueKind,
    /// The value in force if nobody sets it, written as in a file.
    pub default: &'static str,
    /// What happens if the directive is set.
    pub effect: Effect,
    /// One line that explains the directive to people.
    pub doc: &'static str,
    /// How the directive differs from that of Redis; empty if it does not differ.
    pub differs: &'static str,
    /// Whether `CONFIG SET` may change it.
    pub access: Access,
}

/// Who may change a directive with `CONFIG SET`, if its [effect](Effect) allows changes while the
/// server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Whoever may use `CONFIG`.
    Open,
    /// Nobody, unless `enable-protected-configs` allows it.
    Protected,
    /// Nobody, as in Redis, because Redis reads the directive only when it starts.
    Fixed,
}

const INT_MAX: i64 = i32::MAX as i64;
const DATABASES_MAX: i64 = slimio_keyspace::DB_COUNT_MAX as i64;
const SIZE_MAX: i64 = i64::MAX;
const BIG: i64 = i64::MAX;

const fn row(
    name: &'static str,
    kind: ValueKind,
    default: &'static str,
    effect: Effect,
    doc: &'static str,
) -> Directive {
    Directive { name, alias: "", kind, default, effect, doc, differs: "", access: Access::Open }
}

/// A directive that is accepted without an effect.
const fn inert(name: &'static str, kind: ValueKind, default: &'static str) -> Directive {
    row(name, kind, default, Effect::None, "")
}

/// A directive that is accepted only with its default.
const fn only(
    name: &'static str,
    kind: ValueKind,
    default: &'static str,
    instead: &'static str,
) -> Directive {
    row(name, kind, default, Effect::OnlyDefault(instead), "")
}

const fn also(mut row: Directive, alias: &'static str) -> Directive {
    row.alias = alias;
    row
}

/// Notes how the directive differs from that of Redis.
const fn unlike(mut row: Directive, differs: &'static str) -> Directive {
    row.differs = differs;
    row
}

/// Marks a directive that `CONFIG SET` cannot change ([`Access::Fixed`]).
const fn fixed(mut row: Directive) -> Directive {
    row.access = Access::Fixed;
    row
}

const fn protected(mut row: Directive) -> Directive {
    row.access = Access::Protected;
    row
}

/// Notes that Redis has no such directive.
const fn own(row: Directive) -> Directive {
    unlike(row, "SlimIO's own")
}

/// The values of `appendfsync`, which says when a write is acknowledged. They are in the order of
/// Redis's own table.
pub const APPENDFSYNC: &[&str] = &["everysec", "always", "no"];
/// The values of `loglevel`, which says how much the server logs.
pub const LOGLEVEL: &[&str] = &["debug", "verbose", "notice", "warning", "nothing"];
/// The values of `io-backend`, which says which kernel interfaces may be used.
pub const IO_BACKEND: &[&str] = &["auto", "uring", "plain"];
/// The values of `volume-identity`, which says what to do with a volume that was last written on
/// another device.
const VOLUME_IDENTITY: &[&str] = &["check", "accept"];
/// The values of `volume-fallback`, which says what to do if the volume's best path is not
/// available.
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

const ALWAYS_LAZY: &str = "large values are always freed on another thread";
const NO_CLUSTER: &str = "this server is not a cluster node";
const NO_REPLICA: &str = "there is no replication";
const NO_TLS: &str = "put a TLS proxy in front";
const NO_ACL: &str = "only the default user exists; use requirepass";
const NO_EVENTS: &str = "keyspace events are not published";

/// Every directive, by name.
#[rustfmt::skip]
pub static DIRECTIVES: &[Directive] = &[
    // Network.
    unlike(row("bind", ValueKind::Words, "127.0.0.1 -::1", Effect::AtStart, "addresses to listen on; an address with a leading - is left out if this machine does not have it"), "Redis listens on all addresses"),
    row("port", ValueKind::Int(0, 65535), "6379", Effect::AtStart, "TCP port; 0 means no TCP"),
    row("tcp-backlog", ValueKind::Int(0, INT_MAX), "511", Effect::AtStart, "largest number of connections that the kernel queues until the server accepts them"),
    row("tcp-keepalive", ValueKind::Int(0, INT_MAX), "300", Effect::Live, "seconds between probes of a silent connection; 0 sends no probes"),
    row("timeout", ValueKind::Int(0, INT_MAX), "0", Effect::Live, "seconds after which an idle client is disconnected; 0 means never"),
    row("unixsocket", ValueKind::Text, "", Effect::AtStart, "path of a Unix socket to listen on"),
    row("unixsocketperm", ValueKind::Octal, "0", Effect::AtStart, "permissions of the Unix socket; 0 means 600: only its owner may connect"),
    row("protected-mode", ValueKind::Bool, "yes", Effect::Live, "if no password is set, accept only connections from the same machine"),
    row("maxclients", ValueKind::Int(1, 4_294_967_295), "10000", Effect::Live, "largest number of clients at once"),
    unlike(row("client-query-buffer-limit", ValueKind::Memory(1 << 20, SIZE_MAX), "1gb", Effect::Live, "largest number of bytes in an incomplete request and in the requests that MULTI has queued"), "Redis does not limit the requests that MULTI has queued"),
    row("client-output-buffer-limit", ValueKind::OutputLimits, "normal 0 0 0 slave 256mb 64mb 60 pubsub 32mb 8mb 60", Effect::Live, "for each class of clients, the limits of the bytes of replies that wait for one client: hard limit, soft limit, and seconds for which the soft limit may be exceeded"),
    row("proto-max-bulk-len", ValueKind::Memory(1 << 20, SIZE_MAX), "512mb", Effect::Live, "largest size of a string in a request"),
    own(row("io-backend", ValueKind::Choice(IO_BACKEND), "auto", Effect::AtStart, "kernel interface for I/O: io_uring (uring), plain system calls (plain), or io_uring if the kernel allows it and plain system calls if not (auto)")),
    // Values.
    also(unlike(row("hash-max-listpack-entries", ValueKind::Int(0, BIG), "128", Effect::Live, "largest number of fields in a packed hash; more than 1024 counts as 1024"), "Redis's default is 512; in SlimIO, a hash of more than 128 fields takes no more memory as a tree than packed, and is faster"), "hash-max-ziplist-entries"),
    also(row("hash-max-listpack-value", ValueKind::Memory(0, SIZE_MAX), "64", Effect::Live, "longest field or value of a packed hash, in bytes"), "hash-max-ziplist-value"),
    also(row("list-max-listpack-size", ValueKind::Int(i32::MIN as i64, INT_MAX), "-2", Effect::Live, "largest number of elements in a packed list; -1 to -5 limit its bytes instead, to 4, 8, 16, 32 or 64 KiB"), "list-max-ziplist-size"),
    unlike(row("list-compress-depth", ValueKind::Int(0, INT_MAX), "0", Effect::Live, "elements at each end of a list that are not compressed"), "accepted, but nothing is compressed in memory"),
    row("set-max-intset-entries", ValueKind::Int(0, BIG), "512", Effect::Live, "largest number of members in a set of integers that is kept as a sorted array; more than 8192 counts as 8192"),
    row("set-max-listpack-entries", ValueKind::Int(0, BIG), "128", Effect::Live, "largest number of members in a packed set; more than 1024 counts as 1024"),
    row("set-max-listpack-value", ValueKind::Int(0, BIG), "64", Effect::Live, "longest member of a packed set, in bytes"),
    // Security.
    row("requirepass", ValueKind::Text, "", Effect::Live, "password of the default user; empty means none"),
    row("enable-debug-command", ValueKind::Choice(&["no", "yes", "local"]), "no", Effect::AtStart, "who may use DEBUG: nobody (no), every client (yes), or clients on the same machine (local)"),
    // The log.
    unlike(row("appendonly", ValueKind::Bool, "yes", Effect::Live, "keep a log of writes, so that the data survives a restart"), "Redis's default is no"),
    unlike(row("appendfsync", ValueKind::Choice(APPENDFSYNC), "everysec", Effect::Live, "when a write is acknowledged: once it is on stable media (always), or once it outlives the process (everysec, no)"), "even with everysec and no, an acknowledged write survives the end of the process, however it ends"),
    own(row("volume", ValueKind::Utf8, "./slimio-data/", Effect::AtStart, "directory, NVMe namespace, block device or emulated SSD (`emulated:4G`, docs/ssd.md) that holds the data")),
    own(row("volume-passthrough", ValueKind::Bool, "yes", Effect::AtStart, "use NVMe passthrough commands for an NVMe namespace, rather than its block device")),
    own(row("volume-trace", ValueKind::Utf8, "", Effect::AtStart, "new file in which every write, deallocation and flush of a volume on a device is recorded, for `slimio waf`; empty means that nothing is recorded")),
    own(row("volume-fallback", ValueKind::Choice(VOLUME_FALLBACK), "allow", Effect::AtStart, "if the best I/O path is not available, start anyway (allow) or refuse to start (require)")),
    own(row("volume-identity", ValueKind::Choice(VOLUME_IDENTITY), "check", Effect::Once, "refuse a volume that was last written on another device (check), or accept the volume on this device (accept); `CONFIG REWRITE` does not keep it")),
    own(row("log-size-max", ValueKind::Memory(1 << 20, SIZE_MAX), "96gb", Effect::AtStart, "largest size of the log on the volume; on a device, the log also leaves room for the snapshots")),
    own(row("log-segment-size", ValueKind::Memory(1 << 20, 1 << 30), "64mb", Effect::AtStart, "size of a segment of the log; fixed when the volume is made; on a device, a power of two and at most a sixty-fourth of the space of all extents")),
    own(row("log-buffers", ValueKind::Int(4, 4096), "64", Effect::AtStart, "largest number of the log's batches in memory at once")),
    own(row("log-buffer-size", ValueKind::Memory(16 << 10, 1 << 20), "256kb", Effect::AtStart, "size of the buffer of one batch of the log; fixed when the volume is made")),
    own(row("salvage", ValueKind::Bool, "no", Effect::Once, "open a damaged volume, and lose the damaged data and the whole log behind the damage; `CONFIG REWRITE` does not keep it")),
    // Snapshots.
    unlike(row("save", ValueKind::SavePoints, "", Effect::Live, "seconds and changes after which an on-demand snapshot is taken; if empty, the server takes none by itself"), "with appendonly no, the default is Redis's schedule; with the log, no schedule is needed; more than 2147483647 changes are refused"),
    row("stop-writes-on-bgsave-error", ValueKind::Bool, "yes", Effect::Live, "refuse writes while save is set and the last on-demand snapshot failed"),
    row("rdbcompression", ValueKind::Bool, "yes", Effect::Live, "compress strings in snapshots"),
    unlike(row("auto-aof-rewrite-percentage", ValueKind::Int(0, INT_MAX), "100", Effect::Live, "size of the log, in percent of the snapshot before it, at which a new WAL-snapshot is taken; 0 means never"), "a log that takes three quarters of its room is rewritten in any case"),
    row("auto-aof-rewrite-min-size", ValueKind::Memory(0, SIZE_MAX), "64mb", Effect::Live, "the log's growth leads to a new WAL-snapshot only if the log and the snapshot before it are together larger than this"),
    own(row("snapshot-memory-limit", ValueKind::Memory(0, SIZE_MAX), "0", Effect::Live, "largest number of bytes of old values that a snapshot may hold before writers wait; 0 means an eighth of the data set, but at least 64 MB")),
    own(row("snapshot-rate", ValueKind::Memory(0, SIZE_MAX), "450mb", Effect::Live, "largest number of bytes of keys and values that a snapshot takes per second while commands are served. The snapshot writes at most four fifths of that rate. There is no limit while the snapshot holds more than half of the memory that snapshot-memory-limit allows, or while the log runs out of room. A WAL-snapshot that nobody waits for is usually slower. 0 means no limit")),
    own(row("snapshot-sqpoll-idle", ValueKind::Int(0, 60_000), "0", Effect::AtStart, "milliseconds that a kernel thread polls for the next write of a snapshot before it sleeps (SQPOLL); 0 means that there is no such thread, and system calls submit the writes")),
    own(row("snapshot-iopoll", ValueKind::Bool, "no", Effect::AtStart, "poll for completions of a snapshot's writes instead of using interrupts, if the device's driver has poll queues")),
    own(row("snapshot-check-rate", ValueKind::Memory(0, SIZE_MAX), "8mb", Effect::Live, "largest number of bytes that the daily check of the snapshots on the volume reads per second; 0 turns the check off")),
    // The data set.
    row("databases", ValueKind::Int(1, DATABASES_MAX), "16", Effect::AtStart, "number of databases"),
    row("hz", ValueKind::Int(1, 500), "10", Effect::Live, "rounds of background work per second"),
    row("active-expire-effort", ValueKind::Int(1, 10), "1", Effect::Live, "effort of the search for expired keys; a higher effort finds them sooner and takes more CPU time"),
    // Slow commands and delays.
    row("slowlog-log-slower-than", ValueKind::Int(-1, BIG), "10000", Effect::Live, "SLOWLOG keeps commands that take at least this many microseconds; -1 keeps none"),
    row("slowlog-max-len", ValueKind::Int(0, BIG), "128", Effect::Live, "largest number of commands that SLOWLOG keeps"),
    row("latency-monitor-threshold", ValueKind::Int(0, BIG), "0", Effect::Live, "LATENCY keeps delays of at least this many milliseconds; 0 keeps none"),
    row("latency-tracking", ValueKind::Bool, "yes", Effect::Live, "keep histograms of the times of commands, for LATENCY HISTOGRAM and INFO latencystats"),
    row("command-cpu-tracking", ValueKind::Bool, "no", Effect::Live, "measure the CPU time of each command and of each turn of the event loop, for command_cpu_us_max and turn_cpu_us_max of INFO slimio; measuring takes one or two system calls per command"),
    row("latency-tracking-info-percentiles", ValueKind::Percentiles, "50 99 99.9", Effect::Live, "percentiles of the times of commands that INFO latencystats shows"),
    unlike(row("maxmemory", ValueKind::Memory(0, SIZE_MAX), "0", Effect::Live, "largest number of bytes that the data set and the clients may take; 0 means no limit"), "on a device, the default is three tenths of its extents, so that three snapshots and a log fit"),
    row("maxmemory-clients", ValueKind::MemoryOrPercent, "0", Effect::Live, "size, or percentage of maxmemory, that the requests and replies of all clients may take before the largest clients are disconnected; less than 128 KB counts as 128 KB, and 0 means no limit"),
    row("maxmemory-policy", ValueKind::Choice(MAXMEMORY_POLICY), "noeviction", Effect::Live, "which keys are evicted when maxmemory is reached"),
    row("maxmemory-samples", ValueKind::Int(1, INT_MAX), "5", Effect::Live, "number of keys sampled for each key that is evicted"),
    row("maxmemory-eviction-tenacity", ValueKind::Int(0, 100), "10", Effect::Live, "how long eviction may keep a command waiting: 10 means 0.5 ms, 100 means as long as it takes"),
    row("lfu-log-factor", ValueKind::Int(0, INT_MAX), "10", Effect::Live, "under LFU, how slowly the access counter grows"),
    row("lfu-decay-time", ValueKind::Int(0, INT_MAX), "1", Effect::Live, "under LFU, minutes after which the access counter decreases by one; 0 means never"),
    // Process.
    protected(unlike(row("dir", ValueKind::Text, ".", Effect::AtStart, "working directory; relative paths of volume, logfile, pidfile and unixsocket begin there"), "the data is in the place that volume names, not in this directory")),
    row("loglevel", ValueKind::Choice(LOGLEVEL), "notice", Effect::Live, "lowest level of the messages that the server logs"),
    unlike(row("logfile", ValueKind::Text, "", Effect::AtStart, "file for log messages; empty means standard error"), "Redis writes to standard output"),
    row("pidfile", ValueKind::Text, "", Effect::AtStart, "file to write the process id to"),
    unlike(row("supervised", ValueKind::Choice(&["upstart", "systemd", "auto", "no"]), "no", Effect::AtStart, "tell systemd when the server is ready"), "upstart is accepted without effect"),
    fixed(row("always-show-logo", ValueKind::Bool, "no", Effect::None, "")),
    fixed(only("daemonize", ValueKind::Bool, "no", "start the server from your service manager, or with & in a shell")),
    // Redis has these features, but this server does not have them, so they can only be off. A user
    // who turns a feature on relies on it, so it would do harm to accept the directive without an
    // effect.
    fixed(only("cluster-enabled", ValueKind::Bool, "no", NO_CLUSTER)),
    fixed(also(only("replicaof", ValueKind::Words, "", NO_REPLICA), "slaveof")),
    only("tls-port", ValueKind::Int(0, 65535), "0", NO_TLS),
    only("tls-replication", ValueKind::Bool, "no", NO_TLS),
    only("tls-cluster", ValueKind::Bool, "no", NO_TLS),
    fixed(only("aclfile", ValueKind::Text, "", NO_ACL)),
    only("user", ValueKind::Words, "", NO_ACL),
    only("rename-command", ValueKind::Words, "", "commands keep their names; use requirepass"),
    only("loadmodule", ValueKind::Words, "", "there are no modules"),
    only("notify-keyspace-events", ValueKind::Text, "", NO_EVENTS),
    also(only("min-replicas-to-write", ValueKind::Int(0, INT_MAX), "0", NO_REPLICA), "min-slaves-to-write"),
    fixed(only("syslog-enabled", ValueKind::Bool, "no", "messages go to standard error or logfile")),
    only("activedefrag", ValueKind::Bool, "no", "the allocator does not support defragmentation"),
    fixed(only("io-threads", ValueKind::Int(1, 1), "1", "one thread serves the sockets")),
    only("aof-timestamp-enabled", ValueKind::Bool, "no", "log records carry no timestamp"),
    // Redis has these directives. They have no effect here, but they are accepted, because no user
    // has to rely on their effect.
    protected(inert("dbfilename", ValueKind::Text, "dump.rdb")),
    fixed(inert("appendfilename", ValueKind::Text, "appendonly.aof")),
    fixed(inert("appenddirname", ValueKind::Text, "appendonlydir")),
    inert("aof-load-truncated", ValueKind::Bool, "yes"),
    inert("aof-use-rdb-preamble", ValueKind::Bool, "yes"),
    inert("aof-rewrite-incremental-fsync", ValueKind::Bool, "yes"),
    inert("aof-disable-auto-gc", ValueKind::Bool, "no"),
    inert("no-appendfsync-on-rewrite", ValueKind::Bool, "no"),
    fixed(inert("rdbchecksum", ValueKind::Bool, "yes")),
    inert("rdb-save-incremental-fsync", ValueKind::Bool, "yes"),
    inert("rdb-del-sync-files", ValueKind::Bool, "no"),
    inert("sanitize-dump-payload", ValueKind::Choice(&["no", "yes", "clients"]), "no"),
    row("lazyfree-lazy-eviction", ValueKind::Bool, "no", Effect::None, ALWAYS_LAZY),
    row("lazyfree-lazy-expire", ValueKind::Bool, "no", Effect::None, ALWAYS_LAZY),
    row("lazyfree-lazy-server-del", ValueKind::Bool, "no", Effect::None, ALWAYS_LAZY),
    row("lazyfree-lazy-user-del", ValueKind::Bool, "no", Effect::None, ALWAYS_LAZY),
    row("lazyfree-lazy-user-flush", ValueKind::Bool, "no", Effect::None, ALWAYS_LAZY),
    also(row("replica-lazy-flush", ValueKind::Bool, "no", Effect::None, ALWAYS_LAZY), "slave-lazy-flush"),
    inert("dynamic-hz", ValueKind::Bool, "yes"),
    inert("activerehashing", ValueKind::Bool, "yes"),
    inert("active-defrag-ignore-bytes", ValueKind::Memory(1, SIZE_MAX), "100mb"),
    inert("active-defrag-threshold-lower", ValueKind::Int(0, 1000), "10"),
    inert("active-defrag-threshold-upper", ValueKind::Int(0, 1000), "100"),
    inert("active-defrag-cycle-min", ValueKind::Int(1, 99), "1"),
    inert("active-defrag-cycle-max", ValueKind::Int(1, 99), "25"),
    inert("active-defrag-max-scan-fields", ValueKind::Int(1, BIG), "1000"),
    inert("jemalloc-bg-thread", ValueKind::Bool, "yes"),
    fixed(inert("io-threads-do-reads", ValueKind::Bool, "no")),
    also(inert("busy-reply-threshold", ValueKind::Int(0, BIG), "5000"), "lua-time-limit"),
    also(inert("zset-max-listpack-entries", ValueKind::Int(0, BIG), "128"), "zset-max-ziplist-entries"),
    also(inert("zset-max-listpack-value", ValueKind::Memory(0, SIZE_MAX), "64"), "zset-max-ziplist-value"),
    inert("hll-sparse-max-bytes", ValueKind::Memory(0, SIZE_MAX), "3000"),
    inert("stream-node-max-bytes", ValueKind::Memory(0, SIZE_MAX), "4096"),
    inert("stream-node-max-entries", ValueKind::Int(0, BIG), "100"),
    inert("tracking-table-max-keys", ValueKind::Int(0, BIG), "1000000"),
    inert("acllog-max-len", ValueKind::Int(0, BIG), "128"),
    inert("acl-pubsub-default", ValueKind::Choice(&["allchannels", "resetchannels"]), "resetchannels"),
    fixed(unlike(inert("enable-protected-configs", ValueKind::Choice(&["no", "yes", "local"]), "no"), "decides only whether CONFIG SET may change dbfilename, which has no effect either")),
    fixed(inert("enable-module-command", ValueKind::Choice(&["no", "yes", "local"]), "no")),
    inert("bind-source-addr", ValueKind::Text, ""),
    fixed(inert("socket-mark-id", ValueKind::Int(0, BIG), "0")),
    inert("masterauth", ValueKind::Text, ""),
    inert("masteruser", ValueKind::Text, ""),
    also(inert("replica-serve-stale-data", ValueKind::Bool, "yes"), "slave-serve-stale-data"),
    also(inert("replica-read-only", ValueKind::Bool, "yes"), "slave-read-only"),
    also(inert("replica-priority", ValueKind::Int(0, INT_MAX), "100"), "slave-priority"),
    also(inert("replica-announce-ip", ValueKind::Text, ""), "slave-announce-ip"),
    also(inert("replica-announce-port", ValueKind::Int(0, 65535), "0"), "slave-announce-port"),
    also(inert("replica-ignore-maxmemory", ValueKind::Bool, "yes"), "slave-ignore-maxmemory"),
    inert("replica-announced", ValueKind::Bool, "yes"),
    inert("replica-ignore-disk-write-errors", ValueKind::Bool, "no"),
    also(inert("repl-ping-replica-period", ValueKind::Int(1, INT_MAX), "10"), "repl-ping-slave-period"),
    inert("repl-diskless-sync", ValueKind::Bool, "yes"),
    inert("repl-diskless-sync-delay", ValueKind::Int(0, INT_MAX), "5"),
    inert("repl-diskless-sync-max-replicas", ValueKind::Int(0, INT_MAX), "0"),
    inert("repl-diskless-load", ValueKind::Choice(&["disabled", "on-empty-db", "swapdb"]), "disabled"),
    inert("repl-disable-tcp-nodelay", ValueKind::Bool, "no"),
    inert("repl-backlog-size", ValueKind::Memory(1, SIZE_MAX), "1mb"),
    inert("repl-backlog-ttl", ValueKind::Int(0, BIG), "3600"),
    inert("repl-timeout", ValueKind::Int(1, INT_MAX), "60"),
    also(inert("min-replicas-max-lag", ValueKind::Int(0, INT_MAX), "10"), "min-slaves-max-lag"),
    fixed(inert("cluster-config-file", ValueKind::Text, "nodes.conf")),
    inert("cluster-node-timeout", ValueKind::Int(0, BIG), "15000"),
    fixed(inert("cluster-port", ValueKind::Int(0, 65535), "0")),
    inert("cluster-announce-ip", ValueKind::Text, ""),
    inert("cluster-announce-port", ValueKind::Int(0, 65535), "0"),
    inert("cluster-announce-tls-port", ValueKind::Int(0, 65535), "0"),
    inert("cluster-announce-bus-port", ValueKind::Int(0, 65535), "0"),
    inert("cluster-announce-hostname", ValueKind::Text, ""),
    inert("cluster-preferred-endpoint-type", ValueKind::Choice(&["ip", "hostname", "unknown-endpoint"]), "ip"),
    inert("cluster-link-sendbuf-limit", ValueKind::Memory(0, SIZE_MAX), "0"),
    inert("cluster-migration-barrier", ValueKind::Int(0, INT_MAX), "1"),
    also(inert("cluster-replica-no-failover", ValueKind::Bool, "no"), "cluster-slave-no-failover"),
    also(inert("cluster-replica-validity-factor", ValueKind::Int(0, INT_MAX), "10"), "cluster-slave-validity-factor"),
    inert("cluster-require-full-coverage", ValueKind::Bool, "yes"),
    inert("cluster-allow-reads-when-down", ValueKind::Bool, "no"),
    inert("cluster-allow-pubsubshard-when-down", ValueKind::Bool, "yes"),
    inert("cluster-allow-replica-migration", ValueKind::Bool, "yes"),
    inert("tls-cert-file", ValueKind::Text, ""),
    inert("tls-key-file", ValueKind::Text, ""),
    inert("tls-key-file-pass", ValueKind::Text, ""),
    inert("tls-client-cert-file", ValueKind::Text, ""),
    inert("tls-client-key-file", ValueKind::Text, ""),
    inert("tls-client-key-file-pass", ValueKind::Text, ""),
    inert("tls-dh-params-file", ValueKind::Text, ""),
    inert("tls-ca-cert-file", ValueKind::Text, ""),
    inert("tls-ca-cert-dir", ValueKind::Text, ""),
    inert("tls-auth-clients", ValueKind::Choice(&["no", "yes", "optional"]), "yes"),
    inert("tls-protocols", ValueKind::Text, ""),
    inert("tls-ciphers", ValueKind::Text, ""),
    inert("tls-ciphersuites", ValueKind::Text, ""),
    inert("tls-prefer-server-ciphers", ValueKind::Bool, "no"),
    inert("tls-session-caching", ValueKind::Bool, "yes"),
    inert("tls-session-cache-size", ValueKind::Int(0, INT_MAX), "20480"),
    inert("tls-session-cache-timeout", ValueKind::Int(0, INT_MAX), "300"),
    fixed(inert("set-proc-title", ValueKind::Bool, "yes")),
    inert("proc-title-template", ValueKind::Text, "{title} {listen-addr} {server-mode}"),
    inert("propagation-error-behavior", ValueKind::Choice(&["ignore", "panic", "panic-on-replicas"]), "ignore"),
    inert("crash-log-enabled", ValueKind::Bool, "yes"),
    inert("crash-memcheck-enabled", ValueKind::Bool, "yes"),
    fixed(inert("disable-thp", ValueKind::Bool, "yes")),
    inert("oom-score-adj", ValueKind::Choice(&["no", "yes", "relative", "absolute"]), "no"),
    inert("oom-score-adj-values", ValueKind::Words, "0 200 800"),
    inert("shutdown-timeout", ValueKind::Int(0, INT_MAX), "10"),
    inert("shutdown-on-sigint", ValueKind::Words, "default"),
    inert("shutdown-on-sigterm", ValueKind::Words, "default"),
    inert("ignore-warnings", ValueKind::Words, ""),
    fixed(inert("server_cpulist", ValueKind::Text, "")),
    fixed(inert("bio_cpulist", ValueKind::Text, "")),
    fixed(inert("aof_rewrite_cpulist", ValueKind::Text, "")),
    fixed(inert("bgsave_cpulist", ValueKind::Text, "")),
    fixed(unlike(inert("syslog-ident", ValueKind::Text, "slimio"), "Redis's default is redis")),
    fixed(inert("syslog-facility", ValueKind::Choice(SYSLOG_FACILITY), "local0")),
    inert("lua-enable-deprecated-api", ValueKind::Bool, "no"),
    inert("locale-collate", ValueKind::Text, ""),
];
