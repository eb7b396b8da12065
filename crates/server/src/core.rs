//! The command thread's state, and how it changes between two sleeps of the thread.
//!
//! ```text
//!  net events ─► received ─► requests ─► call ─► effects ─► log
//!                                          │
//!                                        reply ─► held until its LSN may leave ─► net
//! ```
//!
//! Nothing here does I/O on sockets. Tasks for the network are noted as [`NetRequest`]s, and
//! replies leave through [`Connections::flush`].

mod ahead;
mod call;
mod changes;
mod check;
mod checks;
mod connections;
mod durability;
mod input;
mod long;
mod memory;
mod output;
mod pace;
mod pause;
mod pins;
mod room;
mod snapshots;
mod timers;
mod waiting;
mod yielding;

pub use changes::{Listener, Told};
pub(crate) use checks::NotChecked;
pub(crate) use durability::policy;
pub(crate) use memory::MemoryUse;
pub(crate) use room::{Admission, Purpose};
pub(crate) use snapshots::NotBegun;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use slimio_keyspace::{CommandTable, DbIndex, Effects, Gather, Keyspace, PackedLimits, Payload};
use slimio_planted::is_planted;
use slimio_storage::{Lsn, Progress};

use crate::background::BackgroundJobs;
use crate::clients::{Client, Clients};
use crate::clock::WallClock;
use crate::commands::{Entry, table};
use crate::config::{Config, OutputLimit};
use crate::cpu::CpuLap;
use crate::freeing::Freeing;
use crate::gate::{Change, Undurable};
use crate::latency::Latency;
use crate::net::{ConnId, ReceiveBuffer};
use crate::slowlog::SlowLog;
use crate::snapshot::{SavePoint, Snapshots, save_points};
use crate::stats::Stats;
use crate::transactions::Watches;
use crate::waiting::{BlockingKeys, WaitingRoom};
use crate::wal::Wal;

/// At most this many empty reply buffers are kept for the next replies.
const SPARE_MAX: usize = 256;
/// The largest reply buffer that is kept, in bytes.
const SPARE_SIZE_MAX: usize = 64 << 10;

/// Time after which a turn runs no further requests; the remaining requests run in the next turn.
/// Only slow requests or very many clients use up this time.
const TURN_TIME: Duration = Duration::from_millis(4);

/// A task for the network.
#[derive(Debug)]
pub(crate) enum NetRequest {
    /// Receive the next bytes into this memory.
    Fill(ConnId, ReceiveBuffer),
    /// Go on reading.
    Receive(ConnId),
    /// Stop reading.
    Pause(ConnId),
    /// Close the connection at once.
    Close(ConnId),
}

/// Values of the directives that are read often.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
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
    /// `command-cpu-tracking`
    pub(crate) is_cpu_tracked: bool,
    /// Limit of the memory in use, in bytes; 0 means no limit.
    pub(crate) memory_max: u64,
    /// Limit of the memory of all clients, in bytes.
    pub(crate) clients_memory_max: Option<u64>,
    /// How long eviction may keep a command waiting.
    pub(crate) eviction_time: Duration,
    pub(crate) save_points: Vec<SavePoint>,
    /// Writes are refused while `save` is set and the last `BGSAVE` failed.
    pub(crate) stops_writes: bool,
    /// Strings in snapshots are compressed.
    pub(crate) compresses: bool,
    pub(crate) rewrite_percentage: u64,
    pub(crate) rewrite_size_min: u64,
    /// The largest size of the log that `log-size-max` allows, in bytes.
    pub(crate) log_size_max: u64,
    /// Limit of the memory that may be held for a snapshot, in bytes; 0 means a share of the data
    /// set's size.
    pub(crate) snapshot_memory_limit: u64,
    /// Limit of the bytes per second that a snapshot takes while commands are served; 0 means no
    /// limit.
    pub(crate) snapshot_rate: u64,
    /// Limit of the bytes per second that the check of snapshots reads; 0 turns the check off.
    pub(crate) check_rate: u64,
}

impl Settings {
    fn of(config: &Config) -> Self {
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
    /// Notes the I/O path to the volume, and why no better path is used. Returns whether the path
    /// has changed.
    pub(crate) fn set_io_path(&mut self, io_path: &str, why_not_better: &str) -> bool {
        let is_new = self.io_path != io_path;
        io_path.clone_into(&mut self.io_path);
        if !why_not_better.is_empty() {
            why_not_better.clone_into(&mut self.io_path_why_not_better);
        }
        is_new
    }
}

/// The data set is being recovered from the volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loading {
    pub(crate) since: Instant,
    pub(crate) since_ms: i64,
    pub(crate) progress: Progress,
}

/// The server is to make the log durable and then end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shutdown {
    /// Whether to take a snapshot first; `None` means only if `save` is configured.
    pub(crate) save: Option<bool>,
    /// The server ends even if the snapshot fails.
    pub(crate) is_forced: bool,
    /// The client that asked for the shutdown. If the shutdown fails, this client is told.
    pub(crate) by: Option<ConnId>,
}

/// The data set and everything that makes it last: log, snapshots, what replies depend on. It knows
/// the client that is being served, and no other.
pub(crate) struct Engine {
    pub(crate) config: Config,
    pub(crate) settings: Settings,
    pub(crate) facts: Facts,
    /// Reports where the device places writes, if it distinguishes placements.
    pub(crate) placement: Option<Box<dyn slimio_storage::PlacementMonitor>>,
    pub(crate) table: &'static CommandTable<Entry>,
    pub(crate) keyspace: Keyspace,
    pub(crate) watches: Watches,
    /// Who waits for which keys.
    pub(crate) blocking_keys: BlockingKeys,
    pub(crate) wal: Option<Wal>,
    /// Changes that are not durable yet. They are kept only while `keeps_undurable` is set, which
    /// is the case under `appendfsync always`.
    pub(crate) undurable: Undurable,
    pub(crate) keeps_undurable: bool,
    /// Is told of every event. Only tests set it.
    pub(crate) listener: Option<Listener>,
    pub(crate) stats: Stats,
    pub(crate) slowlog: SlowLog,
    pub(crate) latency: Latency,
    pub(crate) snapshots: Snapshots,
    pub(crate) loading: Option<Loading>,
    /// While a shutdown is set, no request is run, except during recovery.
    pub(crate) shutdown: Option<Shutdown>,
    pub(crate) active_expire: bool,
    expiry: timers::Expiry,
    pub(crate) started: Instant,
    /// When the turn began.
    pub(crate) now: Instant,
    /// Wall-clock time of the turn, in milliseconds since 1970. Unlike `now`, it may jump.
    pub(crate) now_ms: i64,
    wall_clock: WallClock,
    /// When the last command ended.
    lap: Instant,
    /// CPU time of the thread when the last command ended, under `command-cpu-tracking`.
    cpu_lap: CpuLap,
    /// CPU time of the thread when the turn began; valid only if `is_turn_timed` is set.
    turn_cpu: CpuLap,
    is_turn_timed: bool,
    next_cron: Instant,
    /// The last time that a served client's reply did not have to wait for the log to become
    /// durable.
    reader_seen: Option<Instant>,
    pause: pause::Pause,
    turn: u64,
    /// The long request. It runs in steps, but other clients see all its effects at once.
    long: Option<Box<long::Long>>,
    effects: Effects,
    gather: Gather,
    /// The effects of the transaction that is running.
    payload: Payload,
    /// Set while the commands of a transaction run.
    pub(crate) transaction: Option<Transaction>,
    pub(crate) freeing: Freeing,
    memory: memory::Memory,
    /// Limit of the bytes of payload of the running command's record. The command asked for this
    /// much room.
    log_size_max: u64,
    /// End of the log when the data set was last found empty. If the log still ends at this LSN,
    /// the data set has not changed since.
    emptied_at: Option<Lsn>,
}

/// All clients: what they have sent, what they wait for, and what is on its way to them.
#[derive(Default)]
pub(crate) struct Connections {
    pub(crate) clients: Clients,
    pub(crate) net_requests: Vec<NetRequest>,
    dirty: Vec<ConnId>,
    /// Clients with replies that may not leave yet.
    holding: Vec<ConnId>,
    pub(crate) background_jobs: BackgroundJobs,
    /// Clients with a command that has a step to run. The thread never sleeps while there are any.
    yielding: VecDeque<ConnId>,
    /// Clients that have used up their share of a turn and have more requests.
    behind: VecDeque<ConnId>,
    /// Clients that wait.
    pub(crate) waiting: WaitingRoom,
    /// Takes the place of the client being served while others are served beside it.
    stand_in: Option<Box<Client>>,
    spare: Vec<Vec<u8>>,
}

/// What the commands of a running transaction have done.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    changes: Vec<Change>,
    /// The events, if there is a listener.
    told: Vec<Told<'static>>,
    needs: Lsn,
    /// Bytes that deletions of expired keys may add to the transaction's record, beyond the bytes
    /// that its writes have asked for.
    room: u64,
    /// Bytes that effects may add for what they have from values.
    value_room: u64,
    /// Bytes of payload for which the transaction has asked, and what its writes are for.
    asked: u64,
    purpose: Purpose,
    /// The log is to be turned on or off after the transaction.
    turns_log: bool,
}

impl Engine {
    pub(crate) fn new(config: Config, seed: u128, facts: Facts) -> Self {
        let settings = Settings::of(&config);
        let keyspace = Self::empty_keyspace(&config, seed);
        let now = Instant::now();
        let mut engine = Self {
            settings,
            facts,
            placement: None,
            table: table(),
            keyspace,
            config,
            watches: Watches::default(),
            blocking_keys: BlockingKeys::default(),
            wal: None,
            undurable: Undurable::default(),
            keeps_undurable: false,
            listener: None,
            stats: Stats::default(),
            slowlog: SlowLog::default(),
            latency: Latency::default(),
            snapshots: Snapshots::new(now),
            loading: None,
            shutdown: None,
            active_expire: true,
            expiry: timers::Expiry::default(),
            started: now,
            now,
            now_ms: 0,
            wall_clock: WallClock::System,
            lap: now,
            cpu_lap: CpuLap::default(),
            turn_cpu: CpuLap::default(),
            is_turn_timed: false,
            next_cron: now,
            reader_seen: None,
            pause: pause::Pause::default(),
            turn: 0,
            long: None,
            effects: Effects::new(),
            gather: Gather::default(),
            payload: Payload::default(),
            transaction: None,
            freeing: Freeing::start(),
            memory: memory::Memory::default(),
            log_size_max: 0,
            emptied_at: None,
        };
        engine.stats.by_command.resize_with(crate::commands::entry_count(), Default::default);
        engine.note_startup_memory();
        engine.tick();
        engine.snapshots.saved_at_s = engine.now_ms / 1000;
        engine
    }

    pub(crate) fn empty_keyspace(config: &Config, seed: u128) -> Keyspace {
        let keyspace_config = slimio_keyspace::Config {
            db_count: config.int("databases") as usize,
            string_size_max: config.int("proto-max-bulk-len") as usize,
            packed_limits: Self::packed_limits(config),
        };
        let mut keyspace = Keyspace::new(keyspace_config, seed);
        keyspace.set_eviction(memory::eviction(config));
        keyspace
    }

    fn packed_limits(config: &Config) -> PackedLimits {
        PackedLimits::of_directives(&|name| config.int(name))
    }

    /// Reads the clocks.
    pub(crate) fn tick(&mut self) {
        self.now = Instant::now();
        self.begin_lap(self.now);
        self.now_ms = self.wall_clock.now_ms();
    }

    /// Whether the turn's time for requests was used up when the last command ended.
    fn is_turn_over(&self) -> bool {
        self.lap.saturating_duration_since(self.now) > TURN_TIME && !is_planted("turn-without-end")
    }

    /// Begins a turn, just after the sockets were polled.
    pub(crate) fn begin_turn(&mut self) {
        self.tick();
        self.turn += 1;
        if self.settings.is_cpu_tracked {
            self.turn_cpu.begin();
            self.is_turn_timed = true;
        }
    }

    /// From now on, takes the time of day from another clock.
    pub(crate) fn set_wall_clock(&mut self, clock: WallClock) {
        self.wall_clock = clock;
        self.tick();
        self.snapshots.saved_at_s = self.now_ms / 1000;
    }

    /// Begins to time a command, or a part of a command.
    pub(crate) fn begin_lap(&mut self, now: Instant) {
        self.lap = now;
        if self.settings.is_cpu_tracked {
            self.cpu_lap.begin();
        }
    }

    /// Applies directives that were changed at run time. All clients together take `clients` bytes.
    pub(crate) fn configured(&mut self, names: &[&'static str], clients: u64) {
        self.settings = Settings::of(&self.config);
        for &name in names {
            match name {
                "appendfsync" => self.policy_changed(),
                "appendonly" => self.turn_log(),
                "snapshot-check-rate" => self.check_rate_changed(),
                "proto-max-bulk-len" => {
                    self.keyspace.set_string_size_max(self.settings.arg_size_max);
                }
                "slowlog-max-len" => self.slowlog.truncate(self.settings.slowlog_len_max),
                "latency-tracking" if !self.settings.is_latency_tracked => {
                    self.stats.by_command.iter_mut().for_each(|stats| stats.latency = None);
                }
                "maxmemory" | "maxmemory-policy" | "maxmemory-samples" | "lfu-log-factor"
                | "lfu-decay-time" => self.eviction_changed(clients),
                name if PackedLimits::has_directive(name) => {
                    self.keyspace.set_packed_limits(Self::packed_limits(&self.config));
                }
                "loglevel" => crate::logging::set_level(self.config.choice("loglevel")),
                _ => {}
            }
        }
    }

    pub(crate) fn db_count(&self) -> usize {
        self.keyspace.config().db_count
    }

    pub(crate) fn dbs(&self) -> impl Iterator<Item = DbIndex> + use<> {
        (0..self.db_count()).map(|db| DbIndex(db as u16))
    }
}

impl Connections {
    /// Ends a turn, after all work that must be done before the next poll of the sockets.
    pub(crate) fn end_turn(&mut self, engine: &mut Engine) {
        self.check_clients(engine);
        if std::mem::take(&mut engine.is_turn_timed) {
            engine.stats.turn_cpu_max = engine.stats.turn_cpu_max.max(engine.turn_cpu.end());
        }
    }

    /// Memory to write replies into.
    fn spare_memory(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn keep_spare(&mut self, memory: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && (1..=SPARE_SIZE_MAX).contains(&memory.capacity()) {
            self.spare.push(memory);
        }
    }
}
