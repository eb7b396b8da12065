//! The text of `INFO`: Redis's sections, and SlimIO's own section `Slimio`.

mod memory;
mod persistence;
mod placement;

pub(crate) use memory::{doctor, stats as memory_stats};

use std::fmt::{Display, Write as _};

use slimio_device::LBA_SIZE;
use slimio_storage::{Policy, Room};

use crate::engine::{Engine, MemoryUse};
use crate::limits::open_files_limit;

/// A section: its name, whether it is shown by default, and the function that fills it.
type Section = (&'static str, bool, fn(&mut Text, &Engine));

/// The sections, in the order in which they are shown.
const SECTIONS: &[Section] = &[
    ("Server", true, server),
    ("Clients", true, clients),
    ("Memory", true, memory::section),
    ("Persistence", true, persistence::section),
    ("Stats", true, stats),
    ("Replication", true, replication),
    ("CPU", true, cpu),
    ("Modules", true, |_, _| {}),
    ("Commandstats", false, commandstats),
    ("Errorstats", true, errorstats),
    ("Latencystats", false, latencystats),
    ("Cluster", true, |text, _| text.field("cluster_enabled", 0)),
    ("Slimio", true, slimio),
    ("Keyspace", true, keyspace),
];

/// Renders the sections that `asked` names in lower case. If `asked` is empty, renders the sections
/// that are shown by default.
pub(crate) fn render(engine: &mut Engine, clients: ClientFigures, asked: &[String]) -> String {
    let memory = engine.memory_use(clients.memory);
    let has = |name: &str| asked.iter().any(|a| a == name);
    let everything = has("all") || has("everything");
    let usual = asked.is_empty() || has("default");
    let room = engine.gate.wal.as_mut().map(|wal| wal.room(0));
    let mut text = Text { out: String::with_capacity(8192), room, memory, clients };
    for (name, is_usual, fill) in SECTIONS {
        if everything || (usual && *is_usual) || has(&name.to_ascii_lowercase()) {
            if !text.out.is_empty() {
                text.out.push_str("\r\n");
            }
            text.line(format_args!("# {name}"));
            fill(&mut text, engine);
        }
    }
    text.out
}

/// The text so far. Its lines end with CRLF, as in Redis.
struct Text {
    out: String,
    /// The log's room. It is read before the sections are filled, because reading it needs
    /// `&mut Engine`.
    room: Option<Room>,
    /// Memory in use. It is added up only once, because several sections show it.
    memory: MemoryUse,
    clients: ClientFigures,
}

/// Figures of all clients together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientFigures {
    pub(crate) count: usize,
    /// Number of clients that wait and count as blocked.
    pub(crate) blocked: usize,
    /// Number of clients that wait with a deadline.
    pub(crate) timed: usize,
    /// Bytes of memory that all clients take.
    pub(crate) memory: u64,
    /// The largest number of received bytes that any one client has waiting to be parsed. Large
    /// arguments are not counted.
    pub(crate) input_max: usize,
    /// The largest number of bytes of unsent replies that any one client has.
    pub(crate) output_max: usize,
}

impl Text {
    fn line(&mut self, line: impl Display) {
        // Writing to a string does not fail.
        let _ = write!(self.out, "{line}\r\n");
    }

    fn field(&mut self, name: &str, value: impl Display) {
        self.line(format_args!("{name}:{value}"));
    }

    fn zeros(&mut self, names: &[&str]) {
        for name in names {
            self.field(name, 0);
        }
    }

    fn bytes(&mut self, name: &str, value: u64) {
        self.field(name, value);
        self.field(&format!("{name}_human"), human(value));
    }
}

/// A size in the form `1.50M`.
fn human(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "K", "M", "G", "T", "P"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes}B") } else { format!("{value:.2}{unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.2}E")
}

fn server(text: &mut Text, engine: &Engine) {
    let uptime = engine.clock.now.saturating_duration_since(engine.clock.started).as_secs();
    let system = rustix::system::uname();
    text.field("redis_version", crate::REDIS_VERSION);
    text.field("slimio_version", env!("CARGO_PKG_VERSION"));
    text.field("redis_git_sha1", "00000000");
    text.field("redis_git_dirty", 0);
    text.field("redis_build_id", "0000000000000000");
    text.field("redis_mode", "standalone");
    text.line(format_args!(
        "os:{} {} {}",
        system.sysname().to_string_lossy(),
        system.release().to_string_lossy(),
        system.machine().to_string_lossy()
    ));
    text.field("arch_bits", usize::BITS);
    text.field("monotonic_clock", "POSIX clock_gettime");
    text.field("multiplexing_api", engine.facts.net_name);
    text.field("process_id", std::process::id());
    text.field("process_supervised", engine.config.choice("supervised"));
    text.field("run_id", &engine.facts.run_id);
    text.field("tcp_port", engine.facts.port);
    text.field("server_time_usec", engine.clock.now_ms * 1000);
    text.field("uptime_in_seconds", uptime);
    text.field("uptime_in_days", uptime / 86_400);
    text.field("hz", engine.config.int("hz"));
    text.field("configured_hz", engine.config.int("hz"));
    text.field("lru_clock", (engine.clock.now_ms / 1000) & 0xff_ffff);
    let executable = std::env::current_exe().unwrap_or_default();
    text.field("executable", executable.display());
    text.field("config_file", engine.config.file().display());
    text.field("io_threads_active", 0);
}

fn clients(text: &mut Text, engine: &Engine) {
    let clients = text.clients;
    text.field("connected_clients", clients.count);
    text.field("cluster_connections", 0);
    text.field("maxclients", engine.settings.clients_max);
    text.field("client_recent_max_input_buffer", clients.input_max);
    text.field("client_recent_max_output_buffer", clients.output_max);
    text.field("blocked_clients", clients.blocked);
    text.field("tracking_clients", 0);
    text.field("clients_in_timeout_table", clients.timed);
    text.field("total_blocking_keys", engine.data.blocking_keys.key_count());
    text.field("total_blocking_keys_on_nokey", 0);
}

fn stats(text: &mut Text, engine: &Engine) {
    let stats = &engine.stats;
    let keyspace = engine.data.keyspace.stats();
    let [commands, input, output] = stats.rates(engine.clock.now);
    text.field("total_connections_received", stats.connections);
    text.field("total_commands_processed", stats.commands);
    text.field("instantaneous_ops_per_sec", commands as u64);
    text.field("total_net_input_bytes", stats.input_bytes);
    text.field("total_net_output_bytes", stats.output_bytes);
    text.field("total_net_repl_input_bytes", 0);
    text.field("total_net_repl_output_bytes", 0);
    text.field("instantaneous_input_kbps", format_args!("{:.2}", input / 1024.0));
    text.field("instantaneous_output_kbps", format_args!("{:.2}", output / 1024.0));
    text.field("instantaneous_input_repl_kbps", "0.00");
    text.field("instantaneous_output_repl_kbps", "0.00");
    text.field("rejected_connections", stats.rejected_connections);
    text.zeros(&["sync_full", "sync_partial_ok", "sync_partial_err"]);
    text.field("expired_keys", keyspace.expired_keys);
    text.field("evicted_keys", keyspace.evicted_keys);
    text.field("evicted_clients", stats.evicted_clients);
    let (exceeded, exceeded_now) = engine.eviction_exceeded();
    text.field("total_eviction_exceeded_time", exceeded.as_millis());
    text.field("current_eviction_exceeded_time", exceeded_now.as_millis());
    text.field("keyspace_hits", keyspace.keyspace_hits);
    text.field("keyspace_misses", keyspace.keyspace_misses);
    text.zeros(ABSENT);
    text.field("total_error_replies", stats.error_replies);
    text.field("dump_payload_sanitizations", 0);
    text.field("total_reads_processed", stats.reads);
    text.field("total_writes_processed", stats.writes);
    text.zeros(&["io_threaded_reads_processed", "io_threaded_writes_processed"]);
    text.field("client_query_buffer_limit_disconnections", stats.query_limit_disconnections);
    text.field("client_output_buffer_limit_disconnections", stats.output_limit_disconnections);
}

/// Fields that are always 0, because they belong to features that this server does not have.
const ABSENT: &[&str] = &[
    "pubsub_channels",
    "pubsub_patterns",
    "pubsubshard_channels",
    "latest_fork_usec",
    "total_forks",
    "migrate_cached_sockets",
    "slave_expires_tracked_keys",
    "active_defrag_hits",
    "active_defrag_misses",
    "active_defrag_key_hits",
    "active_defrag_key_misses",
    "total_active_defrag_time",
    "current_active_defrag_time",
    "tracking_total_keys",
    "tracking_total_items",
    "tracking_total_prefixes",
    "unexpected_error_replies",
];

fn replication(text: &mut Text, engine: &Engine) {
    let offset = engine.gate.wal.as_ref().map_or(0, |wal| wal.log().appended().0);
    text.field("role", "master");
    text.field("connected_slaves", 0);
    text.field("master_failover_state", "no-failover");
    text.field("master_replid", &engine.facts.run_id);
    text.field("master_replid2", "0".repeat(40));
    text.field("master_repl_offset", offset);
    text.field("second_repl_offset", -1);
    text.field("repl_backlog_active", 0);
    text.field("repl_backlog_size", engine.config.int("repl-backlog-size"));
    text.field("repl_backlog_first_byte_offset", 0);
    text.field("repl_backlog_histlen", 0);
}

fn cpu(text: &mut Text, _: &Engine) {
    // The 14th and 15th fields are utime and stime. These fields are counted from the last `)`,
    // because the program's name in parentheses may hold blanks.
    let read = |path: &str| {
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        let behind = stat.rsplit(')').next().unwrap_or_default();
        let ticks = |field: usize| -> f64 {
            behind.split(' ').nth(field).and_then(|n| n.parse().ok()).unwrap_or(0.0)
        };
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        (ticks(12) / per_second, ticks(13) / per_second)
    };
    let (user, system) = read("/proc/self/stat");
    let (user_main, system_main) = read("/proc/thread-self/stat");
    text.field("used_cpu_sys", format_args!("{system:.6}"));
    text.field("used_cpu_user", format_args!("{user:.6}"));
    text.field("used_cpu_sys_children", "0.000000");
    text.field("used_cpu_user_children", "0.000000");
    text.field("used_cpu_sys_main_thread", format_args!("{system_main:.6}"));
    text.field("used_cpu_user_main_thread", format_args!("{user_main:.6}"));
}

fn commandstats(text: &mut Text, engine: &Engine) {
    for (name, stats) in crate::commands::entry_names().iter().zip(&engine.stats.by_command) {
        if stats.calls == 0 && stats.rejected == 0 {
            continue;
        }
        let usec = stats.nanoseconds / 1000;
        let per_call = usec as f64 / stats.calls.max(1) as f64;
        text.line(format_args!(
            "cmdstat_{name}:calls={},usec={usec},usec_per_call={per_call:.2},rejected_calls={},\
             failed_calls={}",
            stats.calls, stats.rejected, stats.failed
        ));
    }
}

fn latencystats(text: &mut Text, engine: &Engine) {
    let asked = engine.config.text("latency-tracking-info-percentiles");
    let asked: Vec<f64> = asked.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    for (name, stats) in crate::commands::entry_names().iter().zip(&engine.stats.by_command) {
        let Some(latency) = &stats.latency else { continue };
        let values: Vec<String> = asked
            .iter()
            .map(|&percentile| {
                let us = latency.value_at_percentile(percentile) as f64 / 1000.0;
                // Redis writes percentiles with six decimal places, but without trailing zeros.
                let name = format!("{percentile:.6}");
                let name = name.trim_end_matches('0').trim_end_matches('.');
                format!("p{name}={us:.3}")
            })
            .collect();
        text.line(format_args!("latency_percentiles_usec_{name}:{}", values.join(",")));
    }
}

fn errorstats(text: &mut Text, engine: &Engine) {
    for (code, count) in &engine.stats.errors {
        text.line(format_args!("errorstat_{code}:count={count}"));
    }
}

fn slimio(text: &mut Text, engine: &Engine) {
    text.field("volume", &engine.facts.volume);
    text.field("net_path", engine.facts.net_name);
    text.field("net_path_why_not_better", &engine.facts.net_why_not_better);
    text.field("io_path", &engine.facts.io_path);
    text.field("io_path_why_not_better", &engine.facts.io_path_why_not_better);
    if let Some(monitor) = &engine.placement {
        placement::fields(text, &**monitor);
    }
    let (files_soft, files_hard) = open_files_limit().unwrap_or_default();
    let unlimited_as_zero = |limit| if limit == u64::MAX { 0 } else { limit };
    let (files_soft, files_hard) = (unlimited_as_zero(files_soft), unlimited_as_zero(files_hard));
    text.field("open_files_limit", format_args!("{files_soft}/{files_hard}"));
    text.field("replies_never_sent", engine.stats.undelivered);
    text.field("long_request", engine.data.long_stage());
    if engine.settings.is_cpu_tracked {
        text.field("command_cpu_us_max", engine.stats.command_cpu_max.as_micros());
        text.field("turn_cpu_us_max", engine.stats.turn_cpu_max.as_micros());
    }
    persistence::own_fields(text, engine);
    let Some(wal) = &engine.gate.wal else {
        text.field("log_enabled", 0);
        return;
    };
    let log = wal.log();
    let stats = wal.stats();
    let oldest = log
        .oldest_undurable()
        .map_or(0, |at| engine.clock.now.saturating_duration_since(at).as_millis());
    let used = stats.used_bytes();
    text.field("log_enabled", u8::from(engine.gate.is_log_on()));
    text.field(
        "log_policy",
        match log.policy() {
            Policy::Always => "always",
            Policy::EverySec => "everysec",
            Policy::No => "no",
        },
    );
    text.field("log_appended_lsn", log.appended());
    text.field("log_kept_lsn", log.kept());
    text.field("log_buffers", if log.are_buffers_kept() { "mapped" } else { "private" });
    text.field("log_durable_lsn", log.durable());
    text.field("log_oldest_undurable_ms", oldest);
    text.field(
        "log_fill_percent",
        format_args!("{:.2}", used as f64 / stats.capacity_bytes.max(1) as f64 * 100.0),
    );
    text.field("log_capacity_bytes", stats.capacity_bytes);
    text.field("log_free_bytes", stats.free_bytes);
    text.field(
        "log_room",
        match text.room {
            Some(Room::Free) | None => "free",
            Some(Room::Scarce) => "scarce",
            Some(Room::Last) => "last",
            Some(Room::Wait) => "wait",
            Some(Room::Full) => "full",
        },
    );
    if let Some(pool) = log.pool() {
        let used = pool.usage();
        let mut bytes = |name: &str, lbas: u64| text.field(name, lbas * LBA_SIZE as u64);
        bytes("volume_bytes", used.total);
        bytes("volume_extent_bytes", used.extent);
        bytes("volume_log_bytes", used.wal);
        bytes("volume_snapshot_bytes", used.slots.iter().sum());
        bytes("volume_free_bytes", used.free);
        bytes("volume_kept_for_snapshot_bytes", used.kept);
    }
    text.field("log_bytes_written", stats.device_bytes);
    text.field("log_area_bytes", stats.log_bytes);
    text.field("log_records", stats.records);
    text.field("log_record_bytes", stats.record_bytes);
    text.field("log_batches", stats.batches);
    text.field("log_writes_by_command_thread", wal.own_writes());
    text.field("log_flushes", stats.flushes);
    text.field("log_in_flight", stats.in_flight);
    text.field("log_backlog_bytes", stats.backlog_bytes);
    text.field("log_latency_us_max", stats.latency_max.as_micros());
    text.field("log_latched", u8::from(log.latched().is_some()));
    if let Some(latch) = log.latched() {
        text.field("log_latched_reason", latch);
    }
}

fn keyspace(text: &mut Text, engine: &Engine) {
    if engine.gate.is_latched()
        && engine.gate.keeps_undurable
        && engine.gate.undurable.of_all() > engine.gate.durable()
    {
        // Nothing is shown, because the counts include changes that are not durable. A restart may
        // undo these changes.
        return;
    }
    for db in engine.data.dbs() {
        let keys = engine.data.keyspace.dbsize(db);
        if keys > 0 {
            text.line(format_args!(
                "db{}:keys={keys},expires={},avg_ttl={}",
                db.0,
                engine.data.keyspace.expiring(db),
                engine.data.keyspace.ttl_mean_ms(db)
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_in_redis() {
        assert_eq!(human(0), "0B");
        assert_eq!(human(1023), "1023B");
        assert_eq!(human(1536), "1.50K");
        assert_eq!(human(24_000_000_000), "22.35G");
    }
}
