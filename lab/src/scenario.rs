//! The rows of the tables that compare SlimIO with a stock server. Each row says what the clients
//! do, and when writes are made durable.

use crate::server::Policy;
use crate::slowest::Grows;
use crate::snapshot::{Kind, SnapshotWork};

/// Size of a value in the rows that name no other size, in bytes.
const VALUE_SIZE: usize = 4096;
/// Size of a value in the rows about log bytes, in bytes.
const SMALL_RECORD_VALUE_SIZE: usize = 100;

/// What the clients of a scenario do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// Load from the lab's own generator, in a closed loop.
    Closed {
        /// Name of the mix.
        mix: &'static str,
        /// Number of connections.
        clients: usize,
        /// Number of requests in flight on each connection.
        pipeline: usize,
        /// Size of a value, in bytes.
        value_size: usize,
    },
    /// Load from the lab's own generator, in a closed loop, on the elements of collections: see
    /// [`crate::elements`].
    Elements {
        /// Name of the mix.
        mix: &'static str,
        /// Number of requests in flight on each connection.
        pipeline: usize,
    },
    /// Load from `redis-benchmark -t set`.
    RedisBenchmark {
        /// Number of connections.
        clients: usize,
        /// Size of a value, in bytes.
        value_size: usize,
    },
    /// Load from the lab's own generator, in an open loop with random arrivals. The rate is half of
    /// the rate that the stock server reaches in a closed loop in the same run.
    HalfOpen {
        /// Number of connections.
        clients: usize,
        /// Size of a value, in bytes.
        value_size: usize,
    },
    /// A fixed number of SETs, to see how many bytes of log they leave.
    LogBytes {
        /// Number of connections.
        clients: usize,
        /// Size of a value, in bytes.
        value_size: usize,
    },
    /// A log is written, the server is ended, its files are dropped from the page cache, and the
    /// server is started again. The row measures how fast the server reads the log.
    Replay {
        /// Size of a value, in bytes.
        value_size: usize,
    },
    /// Snapshots while the clients go on sending requests: see [`crate::snapshot`].
    Snapshot(SnapshotWork),
    /// Like `Replay`, but all data is in a snapshot instead of in the log.
    Recovery {
        /// Size of a value, in bytes.
        value_size: usize,
        /// Share of a value that a compressor can save.
        compressible: f64,
    },
    /// The slowest command while something gets large: see [`crate::slowest`].
    Slowest(Grows),
    /// How long another client waits while one client runs commands on large sets: see
    /// [`crate::beside`].
    Beside,
    /// Many clients wait, all for the same key or each for its own key: see [`crate::waiters`].
    Waiters {
        /// Whether all clients wait for the same key.
        has_one_key: bool,
    },
    /// Commands on the middle of a large list: see [`crate::middle`].
    Middle,
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scenario {
    /// The row's name in `--scenarios` and in the results.
    pub name: &'static str,
    /// The row's title in the table.
    pub title: &'static str,
    /// When writes are made durable.
    pub policy: Policy,
    /// What the clients do.
    pub work: Work,
    /// Whether data of [`Scale::aged_payload_bytes`] is written and deleted first. If so, the files
    /// of the server's log have been used before and do not grow. This is the normal state of a
    /// server that rewrites its log now and then.
    pub is_aged: bool,
    /// The metric that the row is about.
    pub headline: &'static str,
}

const fn closed(
    name: &'static str,
    title: &'static str,
    policy: Policy,
    (mix, clients, pipeline, value_size): (&'static str, usize, usize, usize),
) -> Scenario {
    let work = Work::Closed { mix, clients, pipeline, value_size };
    let is_aged = matches!(policy, Policy::Always);
    Scenario { name, title, policy, work, is_aged, headline: "requests_per_s" }
}

const fn elements(
    name: &'static str,
    title: &'static str,
    (mix, pipeline): (&'static str, usize),
) -> Scenario {
    let (policy, work) = (Policy::EverySec, Work::Elements { mix, pipeline });
    Scenario { name, title, policy, work, is_aged: false, headline: "server_cpu_us_per_request" }
}

const fn log_bytes(
    name: &'static str,
    title: &'static str,
    policy: Policy,
    clients: usize,
) -> Scenario {
    let work = Work::LogBytes { clients, value_size: SMALL_RECORD_VALUE_SIZE };
    Scenario { name, title, policy, work, is_aged: false, headline: "log_bytes_per_record_byte" }
}

/// SETs of random keys by 50 clients, while `BGSAVE` takes snapshots.
const SETS: SnapshotWork = SnapshotWork {
    mix: "set",
    clients: 50,
    value_size: VALUE_SIZE,
    compressible: HALF,
    compresses: true,
    kind: Kind::Save,
};
/// The same SETs. Meanwhile, the server rewrites its log without being asked, because the log has
/// grown.
const SETS_REWRITTEN: SnapshotWork = SnapshotWork { kind: Kind::Growth, ..SETS };
/// Shares of a value that a compressor can save: half of the value, and nothing of it.
const HALF: f64 = 0.5;
const NOTHING: f64 = 0.0;
/// YCSB A as the SlimIO paper runs it: 8 clients, values of 2 KiB.
const YCSB_A: SnapshotWork = SnapshotWork { mix: "ycsb-a", clients: 8, value_size: 2048, ..SETS };

const fn snapshot(
    name: &'static str,
    title: &'static str,
    policy: Policy,
    work: SnapshotWork,
) -> Scenario {
    let work = Work::Snapshot(work);
    Scenario { name, title, policy, work, is_aged: false, headline: "during_per_without" }
}

const fn recovery(
    name: &'static str,
    title: &'static str,
    (value_size, compressible): (usize, f64),
    headline: &'static str,
) -> Scenario {
    let work = Work::Recovery { value_size, compressible };
    Scenario { name, title, policy: Policy::EverySec, work, is_aged: false, headline }
}

const fn slowest(name: &'static str, title: &'static str, grows: Grows) -> Scenario {
    let work = Work::Slowest(grows);
    let headline = "command_ms_max_by_clock";
    Scenario { name, title, policy: Policy::EverySec, work, is_aged: false, headline }
}

const fn waiters(name: &'static str, title: &'static str, has_one_key: bool) -> Scenario {
    let (work, headline) = (Work::Waiters { has_one_key }, "server_cpu_us_per_push");
    Scenario { name, title, policy: Policy::EverySec, work, is_aged: false, headline }
}

/// All rows, in the order of the table. The rows up to and including the log replay run by default.
/// The rows after the log replay run only if `--scenarios` names them.
pub const SCENARIOS: &[Scenario] = &[
    closed("set-everysec", "SET", Policy::EverySec, ("set", 50, 1, VALUE_SIZE)),
    closed("set-always", "SET", Policy::Always, ("set", 50, 1, VALUE_SIZE)),
    Scenario {
        name: "redis-benchmark-everysec",
        title: "SET by redis-benchmark",
        policy: Policy::EverySec,
        work: Work::RedisBenchmark { clients: 50, value_size: VALUE_SIZE },
        is_aged: false,
        headline: "requests_per_s",
    },
    Scenario {
        name: "redis-benchmark-always",
        title: "SET by redis-benchmark",
        policy: Policy::Always,
        work: Work::RedisBenchmark { clients: 50, value_size: VALUE_SIZE },
        is_aged: true,
        headline: "requests_per_s",
    },
    closed("set-always-1", "SET, 1 client", Policy::Always, ("set", 1, 1, VALUE_SIZE)),
    closed("get-hits", "GET, all hits", Policy::EverySec, ("get", 50, 1, VALUE_SIZE)),
    closed("set-64-p1", "SET of 64 B", Policy::EverySec, ("set", 50, 1, 64)),
    closed("set-64-p16", "SET of 64 B, pipeline 16", Policy::EverySec, ("set", 50, 16, 64)),
    Scenario {
        name: "open-everysec",
        title: "SET, open loop",
        policy: Policy::EverySec,
        work: Work::HalfOpen { clients: 50, value_size: VALUE_SIZE },
        is_aged: false,
        headline: "latency_us_p999",
    },
    Scenario {
        name: "open-always",
        title: "SET, open loop",
        policy: Policy::Always,
        work: Work::HalfOpen { clients: 50, value_size: VALUE_SIZE },
        is_aged: true,
        headline: "latency_us_p999",
    },
    log_bytes("log-always-1", "SET of 100 B, 1 client", Policy::Always, 1),
    log_bytes("log-always-10", "SET of 100 B, 10 clients", Policy::Always, 10),
    log_bytes("log-always-50", "SET of 100 B, 50 clients", Policy::Always, 50),
    log_bytes("log-everysec-1", "SET of 100 B, 1 client", Policy::EverySec, 1),
    log_bytes("log-everysec-10", "SET of 100 B, 10 clients", Policy::EverySec, 10),
    log_bytes("log-everysec-50", "SET of 100 B, 50 clients", Policy::EverySec, 50),
    Scenario {
        name: "replay",
        title: "log replay, cold",
        policy: Policy::EverySec,
        work: Work::Replay { value_size: VALUE_SIZE },
        is_aged: false,
        headline: "replay_mb_per_s",
    },
    Scenario {
        name: "set-always-growing",
        title: "SET, first growth of the log",
        policy: Policy::Always,
        work: Work::Closed { mix: "set", clients: 50, pipeline: 1, value_size: VALUE_SIZE },
        is_aged: false,
        headline: "requests_per_s",
    },
    closed("set-off", "SET", Policy::Off, ("set", 50, 1, VALUE_SIZE)),
    closed("mset-10", "MSET of 10 x 64 B", Policy::EverySec, ("mset:10", 50, 1, 64)),
    closed("ycsb-a", "YCSB A, 1000 B", Policy::EverySec, ("ycsb-a", 50, 1, 1000)),
    closed("ycsb-b", "YCSB B, 1000 B", Policy::EverySec, ("ycsb-b", 50, 1, 1000)),
    closed("ycsb-c", "YCSB C, 1000 B", Policy::EverySec, ("ycsb-c", 50, 1, 1000)),
    closed("ycsb-d", "YCSB D, 1000 B", Policy::EverySec, ("ycsb-d", 50, 1, 1000)),
    closed("ycsb-e", "YCSB E, 1000 B", Policy::EverySec, ("ycsb-e", 50, 1, 1000)),
    closed("ycsb-f", "YCSB F, 1000 B", Policy::EverySec, ("ycsb-f", 50, 1, 1000)),
    elements("sadd-p1", "SADD to a large set", ("sadd", 1)),
    elements("sadd-p16", "SADD to a large set, pipeline 16", ("sadd", 16)),
    elements("sadd-new-p1", "SADD of 5 to a new set", ("sadd-new", 1)),
    elements("sadd-new-p16", "SADD of 5 to a new set, pipeline 16", ("sadd-new", 16)),
    elements("spop-p1", "SPOP", ("spop", 1)),
    elements("spop-p16", "SPOP, pipeline 16", ("spop", 16)),
    elements("sismember-p1", "SISMEMBER", ("sismember", 1)),
    elements("sismember-p16", "SISMEMBER, pipeline 16", ("sismember", 16)),
    elements("sinter-p1", "SINTER of 2 x 1,000", ("sinter", 1)),
    elements("sinter-p16", "SINTER of 2 x 1,000, pipeline 16", ("sinter", 16)),
    elements("hset-p1", "HSET in a large hash", ("hset", 1)),
    elements("hset-p16", "HSET in a large hash, pipeline 16", ("hset", 16)),
    elements("hget-p1", "HGET from a large hash", ("hget", 1)),
    elements("hget-p16", "HGET from a large hash, pipeline 16", ("hget", 16)),
    elements("lpush-p1", "LPUSH to a large list", ("lpush", 1)),
    elements("lpush-p16", "LPUSH to a large list, pipeline 16", ("lpush", 16)),
    elements("rpush-p1", "RPUSH to a large list", ("rpush", 1)),
    elements("rpush-p16", "RPUSH to a large list, pipeline 16", ("rpush", 16)),
    elements("lpop-p1", "LPOP", ("lpop", 1)),
    elements("lpop-p16", "LPOP, pipeline 16", ("lpop", 16)),
    elements("rpop-p1", "RPOP", ("rpop", 1)),
    elements("rpop-p16", "RPOP, pipeline 16", ("rpop", 16)),
    elements("lrange-100-p1", "LRANGE of 100", ("lrange:100", 1)),
    elements("lrange-100-p16", "LRANGE of 100, pipeline 16", ("lrange:100", 16)),
    elements("lrange-600-p1", "LRANGE of 600", ("lrange:600", 1)),
    elements("lrange-600-p16", "LRANGE of 600, pipeline 16", ("lrange:600", 16)),
    elements("linsert-p16", "LINSERT and LREM in 1,000, pipeline 16", ("linsert", 16)),
    elements("lpos-p16", "LPOS in 1,000, pipeline 16", ("lpos", 16)),
    elements("lrem-p16", "LREM in 1,000, pipeline 16", ("lrem", 16)),
    snapshot("snapshot-everysec", "SET, snapshot", Policy::EverySec, SETS),
    snapshot("snapshot-always", "SET, snapshot", Policy::Always, SETS),
    snapshot(
        "snapshot-everysec-incompressible",
        "SET, snapshot, incompressible",
        Policy::EverySec,
        SnapshotWork { compressible: NOTHING, ..SETS },
    ),
    snapshot(
        "snapshot-always-incompressible",
        "SET, snapshot, incompressible",
        Policy::Always,
        SnapshotWork { compressible: NOTHING, ..SETS },
    ),
    snapshot(
        "snapshot-everysec-plain",
        "SET, snapshot, rdbcompression no",
        Policy::EverySec,
        SnapshotWork { compresses: false, ..SETS },
    ),
    snapshot(
        "snapshot-always-plain",
        "SET, snapshot, rdbcompression no",
        Policy::Always,
        SnapshotWork { compresses: false, ..SETS },
    ),
    snapshot("snapshot-ycsb-a", "YCSB A, 2 KiB, snapshot", Policy::EverySec, YCSB_A),
    snapshot("snapshot-ycsb-a-always", "YCSB A, 2 KiB, snapshot", Policy::Always, YCSB_A),
    snapshot("rewrite-everysec", "SET, log rewritten", Policy::EverySec, SETS_REWRITTEN),
    snapshot("rewrite-always", "SET, log rewritten", Policy::Always, SETS_REWRITTEN),
    recovery("recovery", "recovery, incompressible", (VALUE_SIZE, NOTHING), "recovery_mb_per_s"),
    recovery("recovery-half", "recovery", (VALUE_SIZE, HALF), "recovery_mb_per_s"),
    recovery("recovery-64", "recovery, 64 B", (64, HALF), "recovery_keys_per_s"),
    slowest("slowest-keys", "keys inserted", Grows::Keyspace),
    slowest("slowest-hash", "a hash, while snapshots run", Grows::Hash),
    Scenario {
        name: "beside-sets",
        title: "two sets",
        policy: Policy::EverySec,
        work: Work::Beside,
        is_aged: false,
        headline: "wait_ms_sunion",
    },
    waiters("waiters-one-key", "10,000 clients in BLPOP, one key", true),
    waiters("waiters-keys", "10,000 clients in BLPOP, a key each", false),
    Scenario {
        name: "list-middle",
        title: "a list",
        policy: Policy::EverySec,
        work: Work::Middle,
        is_aged: false,
        headline: "us_per_lindex",
    },
];

/// Number of rows that run by default: the first ones of [`SCENARIOS`].
pub const DEFAULT_SCENARIO_COUNT: usize = 17;

const _: () = assert!(matches!(SCENARIOS[DEFAULT_SCENARIO_COUNT - 1].work, Work::Replay { .. }));

/// Durations and sizes of the rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Number of rounds. In each round, stock Redis and SlimIO run in turn.
    pub rounds: u32,
    /// Warm-up before the measured stretch, in seconds.
    pub warmup_s: f64,
    /// The measured stretch, in seconds.
    pub measured_s: f64,
    /// The stretch after the measured one, in seconds. During it, system calls are counted.
    pub counted_s: f64,
    /// Number of keys in the key range.
    pub key_count: u64,
    /// Number of elements of each large set, hash or list. This number is for the rows with
    /// [`Work::Elements`] and for the row with [`Work::Beside`].
    pub element_count: u64,
    /// Bytes of payload that are written and deleted before each row with [`Scenario::is_aged`].
    pub aged_payload_bytes: u64,
    /// Number of requests that one `redis-benchmark` sends.
    pub redis_benchmark_requests: u64,
    /// Number of SETs in each row about log bytes.
    pub log_requests: u64,
    /// Payload of the log that is replayed, in bytes.
    pub replay_payload_bytes: u64,
    /// Bytes of payload in the data set, in each row with a snapshot.
    pub snapshot_payload_bytes: u64,
    /// Number of keys, or of fields of one hash, in the rows about the slowest command. Also the
    /// number of elements of the list in the row about the middle of a list.
    pub slowest_count: u64,
}

impl Scale {
    /// Takes a few seconds per row, and shows only that everything works. Its numbers mean nothing.
    pub const QUICK: Self = Self {
        rounds: 1,
        warmup_s: 0.1,
        measured_s: 0.4,
        counted_s: 0.2,
        key_count: 5_000,
        element_count: 8_000,
        aged_payload_bytes: 8 << 20,
        redis_benchmark_requests: 10_000,
        log_requests: 500,
        replay_payload_bytes: 16 << 20,
        snapshot_payload_bytes: 16 << 20,
        slowest_count: 50_000,
    };
    /// Takes some twenty minutes for all rows.
    pub const NORMAL: Self = Self {
        rounds: 3,
        warmup_s: 1.0,
        measured_s: 5.0,
        counted_s: 1.0,
        key_count: 100_000,
        element_count: 1_000_000,
        aged_payload_bytes: 2 << 30,
        redis_benchmark_requests: 200_000,
        log_requests: 20_000,
        replay_payload_bytes: 1 << 30,
        snapshot_payload_bytes: 1 << 30,
        slowest_count: 10_000_000,
    };
    /// For numbers to publish.
    pub const FULL: Self = Self {
        rounds: 5,
        warmup_s: 2.0,
        measured_s: 15.0,
        counted_s: 2.0,
        key_count: 1_000_000,
        element_count: 1_000_000,
        aged_payload_bytes: 8 << 30,
        redis_benchmark_requests: 1_000_000,
        log_requests: 100_000,
        replay_payload_bytes: 4 << 30,
        snapshot_payload_bytes: 4 << 30,
        slowest_count: 10_000_000,
    };
}

/// The scenario of this name.
pub fn named(name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().find(|scenario| scenario.name == name)
}
