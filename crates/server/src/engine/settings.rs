//! Values of directives that are read often, and facts that hardly ever change.

use std::time::Duration;

use super::memory;
use crate::config::{Config, OutputLimit};
use crate::snapshot::{SavePoint, save_points};

/// Values of the directives that are read often.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "these settings are independent of each other")]
pub(crate) struct Settings {
    pub(crate) clients_max: usize,
    pub(crate) timeout: Option<Duration>,
    pub(crate) tcp_keepalive: i64,
    pub(crate) query_size_max: usize,
    pub(crate) output_limit: OutputLimit,
    pub(crate) arg_size_max: usize,
    pub(crate) password: Option<Vec<u8>>,
    pub(crate) is_protected: bool,
    pub(crate) cron_every: Duration,
    pub(crate) expire_effort: u32,
    /// `SLOWLOG` keeps commands that take at least this time.
    pub(crate) slowlog_from: Option<Duration>,
    pub(crate) slowlog_len_max: usize,
    /// `LATENCY` keeps delays of at least this time.
    pub(crate) latency_from: Option<Duration>,
    /// The shorter of `slowlog_from` and `latency_from`. Almost every command takes less time than
    /// this, so one comparison is usually enough.
    pub(crate) slow_from: Duration,
    pub(crate) is_latency_tracked: bool,
    /// Whether CPU time is measured, as `command-cpu-tracking` says.
    pub(crate) is_cpu_tracked: bool,
    /// Limit of the memory in use, in bytes; 0 means no limit.
    pub(crate) memory_max: u64,
    /// Limit of the memory of all clients, in bytes.
    pub(crate) clients_memory_max: Option<u64>,
    /// How long eviction may keep a command waiting.
    pub(crate) eviction_time: Duration,
    pub(crate) save_points: Vec<SavePoint>,
    /// Whether writes are refused if the last `BGSAVE` failed. If `save` is empty, they never are.
    pub(crate) stops_writes: bool,
    /// Whether strings in snapshots are compressed.
    pub(crate) compresses: bool,
    pub(crate) rewrite_percentage: u64,
    pub(crate) rewrite_size_min: u64,
    /// The largest size of the log that `log-size-max` allows, in bytes.
    pub(crate) log_size_max: u64,
    /// Limit of the memory that may be held for a snapshot, in bytes; 0 means a share of the data
    /// set's size.
    pub(crate) snapshot_memory_limit: u64,
    /// Limit of the bytes of keys and values that a snapshot takes per second while commands are
    /// served; 0 means no limit.
    pub(crate) snapshot_rate: u64,
    /// Limit of the bytes per second that the check of snapshots reads; 0 turns the check off.
    pub(crate) check_rate: u64,
}

impl Settings {
    pub(super) fn of(config: &Config) -> Self {
        let password = config.bytes("requirepass");
        let timeout = config.int("timeout") as u64;
        let slowlog_from = u64::try_from(config.int("slowlog-log-slower-than")).ok();
        let slowlog_from = slowlog_from.map(Duration::from_micros);
        let latency_from = config.int("latency-monitor-threshold") as u64;
        let latency_from = (latency_from > 0).then(|| Duration::from_millis(latency_from));
        let slow_from = slowlog_from.into_iter().chain(latency_from).min();
        let save_points = save_points(config.text("save"));
        Self {
            slowlog_from,
            slowlog_len_max: config.int("slowlog-max-len") as usize,
            latency_from,
            slow_from: slow_from.unwrap_or(Duration::MAX),
            is_latency_tracked: config.yes("latency-tracking"),
            is_cpu_tracked: config.yes("command-cpu-tracking"),
            clients_max: config.int("maxclients") as usize,
            timeout: (timeout > 0).then(|| Duration::from_secs(timeout)),
            tcp_keepalive: config.int("tcp-keepalive"),
            query_size_max: config.int("client-query-buffer-limit") as usize,
            output_limit: config.output_limit_normal(),
            arg_size_max: config.int("proto-max-bulk-len") as usize,
            password: (!password.is_empty()).then(|| password.to_owned()),
            is_protected: config.yes("protected-mode"),
            cron_every: Duration::from_millis(1000 / config.int("hz") as u64),
            expire_effort: config.int("active-expire-effort") as u32,
            stops_writes: config.yes("stop-writes-on-bgsave-error") && !save_points.is_empty(),
            save_points,
            compresses: config.yes("rdbcompression"),
            rewrite_percentage: config.int("auto-aof-rewrite-percentage") as u64,
            rewrite_size_min: config.int("auto-aof-rewrite-min-size") as u64,
            log_size_max: config.int("log-size-max") as u64,
            snapshot_memory_limit: config.int("snapshot-memory-limit") as u64,
            snapshot_rate: config.int("snapshot-rate") as u64,
            check_rate: config.int("snapshot-check-rate") as u64,
            memory_max: config.int("maxmemory") as u64,
            clients_memory_max: memory::clients_memory_max(config),
            eviction_time: memory::eviction_time(config.int("maxmemory-eviction-tenacity")),
        }
    }
}

/// Facts for INFO. They hardly ever change while the server runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) run_id: String,
    pub(crate) port: u16,
    pub(crate) unix_path: Option<String>,
    pub(crate) net_name: &'static str,
    /// Why sockets do not go through io_uring; empty if they do.
    pub(crate) net_why_not_better: String,
    pub(crate) io_path: String,
    pub(crate) io_path_why_not_better: String,
    pub(crate) volume: String,
}

impl Facts {
    /// Notes the I/O path to the volume, and why no better path is used. If `why_not_better` is
    /// empty, the reason noted before stays. Returns whether the path has changed.
    pub(crate) fn set_io_path(&mut self, io_path: &str, why_not_better: &str) -> bool {
        let is_new = self.io_path != io_path;
        io_path.clone_into(&mut self.io_path);
        if !why_not_better.is_empty() {
            why_not_better.clone_into(&mut self.io_path_why_not_better);
        }
        is_new
    }
}
