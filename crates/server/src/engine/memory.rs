//! Counts the memory in use, and evicts keys while more memory is in use than the limit allows.

use std::time::{Duration, Instant};

use slimio_keyspace::{DbIndex, EvictionConfig, EvictionPolicy};
use slimio_planted::is_planted;

use super::{Data, Engine};
use crate::config::Config;

/// At most this many keys are evicted between two readings of the clock. These deletions form one
/// record of the log.
const EVICTIONS_PER_STEP: usize = 16;

/// Memory in use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemoryUse {
    /// All memory that the server accounts for, in bytes.
    pub(crate) used: u64,
    /// The part of `used` that does not count towards the limit: the log's buffers, and the memory
    /// that is held only for a snapshot.
    pub(crate) uncounted: u64,
    /// The part of `used` that is not data: tables, clients, and `uncounted`.
    pub(crate) overhead: u64,
    /// The part of `overhead` that the clients' requests and replies take.
    pub(crate) clients: u64,
    /// The part of `overhead` that was in use before there was any data.
    pub(crate) startup: u64,
    pub(crate) peak: u64,
}

/// What is remembered about memory between two commands.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    startup: u64,
    peak: u64,
    /// Whether eviction continues in the background. It does if it ran out of time before enough
    /// memory was free, or if the limit or the policy was changed.
    is_evicting: bool,
    /// Whether eviction continues in the next round of background work. It does if the log had no
    /// room for more deletions.
    lacks_room: bool,
    /// Since when commands have been running although eviction could not keep up.
    exceeded_since: Option<Instant>,
    exceeded_time: Duration,
}

impl Engine {
    /// Memory in use now, if all clients together take `clients` bytes.
    pub(crate) fn memory_use(&mut self, clients: u64) -> MemoryUse {
        let buffers = self.gate.wal.as_ref().map_or(0, |wal| wal.stats().buffer_bytes);
        let uncounted = buffers + self.snapshot_memory();
        let used = self.data.used_bytes(clients) + uncounted;
        self.data.memory.peak = self.data.memory.peak.max(used);
        let tables: usize = self.data.dbs().map(|db| self.data.keyspace.table_bytes_of(db)).sum();
        MemoryUse {
            used,
            uncounted,
            overhead: tables as u64 + clients + uncounted,
            clients,
            startup: self.data.memory.startup,
            peak: self.data.memory.peak,
        }
    }

    /// For how long eviction has not kept up: in total, and in the current period alone.
    pub(crate) fn eviction_exceeded(&self) -> (Duration, Duration) {
        let current = self
            .data
            .memory
            .exceeded_since
            .map_or(Duration::ZERO, |since| self.clock.now.duration_since(since));
        (self.data.memory.exceeded_time + current, current)
    }

    /// Applies a changed limit or eviction policy. All clients together take `clients` bytes.
    pub(crate) fn eviction_changed(&mut self, clients: u64) {
        self.data.keyspace.set_eviction(eviction(&self.config));
        let used = self.data.used_bytes(clients);
        let limit = self.settings.memory_max;
        self.data.memory.is_evicting = limit > 0 && self.phase.loading.is_none();
        if limit > 0 && used > limit {
            log::warn!(
                "maxmemory is {limit} bytes, but {used} bytes are in use: the server evicts keys \
                 or refuses writes, as maxmemory-policy says"
            );
        }
    }

    /// Evicts keys while more memory is in use than the limit allows, for a bounded time. Returns
    /// whether commands that need memory may run. They may not run if no evictable key is left, if
    /// the policy is `noeviction`, or if the log has failed. They may run if eviction has only run
    /// out of time or of room in the log. Nothing is evicted, and all commands may run, while data
    /// is being loaded, while clients are paused, and while a long request holds its keys. All
    /// clients together take `clients` bytes.
    pub(crate) fn make_room(&mut self, clients: u64) -> bool {
        let limit = self.settings.memory_max;
        let is_held = self.data.is_long_holding() && !is_planted("evicted-within-long");
        let may_not = self.phase.loading.is_some() || self.phase.is_paused() || is_held;
        if limit == 0 || may_not || self.data.used_bytes(clients) <= limit {
            self.end_eviction();
            return true;
        }
        if self.data.keyspace.eviction().policy == EvictionPolicy::NoEviction
            || self.gate.is_latched()
        {
            self.end_eviction();
            return false;
        }
        self.evict(limit, clients)
    }

    fn evict(&mut self, limit: u64, clients: u64) -> bool {
        let began = Instant::now();
        loop {
            let is_exhausted = self.evict_step(limit, clients);
            if self.data.effects.lacked_room() {
                // Writes wait for room in the log or are refused, so eviction is not urgent and the
                // thread may sleep.
                self.data.memory.is_evicting = false;
                self.data.memory.lacks_room = !is_planted("eviction-given-up");
                return true;
            }
            if self.data.used_bytes(clients) <= limit {
                self.end_eviction();
                return true;
            }
            if is_exhausted {
                self.end_eviction();
                return false;
            }
            if began.elapsed() >= self.settings.eviction_time {
                self.data.memory.is_evicting = true;
                self.data.memory.exceeded_since.get_or_insert(self.clock.now);
                return true;
            }
        }
    }

    /// Evicts a few keys; returns whether no evictable key is left.
    fn evict_step(&mut self, limit: u64, clients: u64) -> bool {
        let room = self.room_to_free();
        self.data.effects.clear();
        self.data.effects.limit(room);
        let mut is_exhausted = false;
        for _ in 0..EVICTIONS_PER_STEP {
            if self.data.used_bytes(clients) <= limit {
                break;
            }
            if self.data.keyspace.evict(self.clock.now_ms, &mut self.data.effects).is_none() {
                is_exhausted = true;
                break;
            }
        }
        self.record_unasked(DbIndex(0));
        if let Some(garbage) = self.data.keyspace.take_garbage() {
            self.data.free(garbage);
        }
        is_exhausted
    }

    fn end_eviction(&mut self) {
        self.data.memory.is_evicting = false;
        if let Some(since) = self.data.memory.exceeded_since.take() {
            self.data.memory.exceeded_time += self.clock.now.saturating_duration_since(since);
        }
    }

    /// Continues eviction in the background.
    pub(crate) fn go_on_evicting(&mut self, clients: u64) {
        if self.data.memory.is_evicting {
            self.make_room(clients);
        }
    }

    /// In a round of background work, continues an eviction that had no room in the log.
    pub(crate) fn retry_evicting(&mut self, clients: u64) {
        if std::mem::take(&mut self.data.memory.lacks_room) {
            self.make_room(clients);
        }
    }
}

impl Data {
    /// Bytes that count towards the limit, if all clients together take `clients` bytes.
    fn used_bytes(&self, clients: u64) -> u64 {
        self.keyspace.used_bytes() as u64 + clients
    }

    /// Notes how much memory is in use before there is any data.
    pub(crate) fn note_startup_memory(&mut self) {
        self.memory.startup = self.keyspace.used_bytes() as u64;
    }

    /// Whether eviction continues in the background.
    pub(crate) fn is_evicting(&self) -> bool {
        self.memory.is_evicting
    }

    /// Whether eviction waits for room in the log.
    pub(crate) fn evicts_later(&self) -> bool {
        self.memory.lacks_room
    }
}

/// The configured eviction policy and its parameters.
pub(crate) fn eviction(config: &Config) -> EvictionConfig {
    let policy = EvictionPolicy::from_name(config.choice("maxmemory-policy"));
    EvictionConfig {
        policy: policy.expect("maxmemory-policy takes only names of policies"),
        is_limited: config.int("maxmemory") > 0,
        samples: config.int("maxmemory-samples") as usize,
        lfu_log_factor: config.int("lfu-log-factor") as u32,
        lfu_decay_minutes: config.int("lfu-decay-time") as u32,
    }
}

/// The lowest effective limit of the memory of all clients. As in Redis, a lower configured limit
/// is raised to this limit, because otherwise no client could reach the server.
const CLIENTS_MEMORY_MIN: u64 = 128 << 10;

/// The limit that `maxmemory-clients` sets, in bytes.
pub(crate) fn clients_memory_max(config: &Config) -> Option<u64> {
    let memory_max = config.int("maxmemory") as u64;
    let limit = match config.int("maxmemory-clients") {
        percent @ ..0 => (u128::from(memory_max) * u128::from(percent.unsigned_abs()) / 100) as u64,
        bytes => bytes as u64,
    };
    (limit > 0).then_some(limit.max(CLIENTS_MEMORY_MIN))
}

/// How long eviction may keep a command waiting, given the value of `maxmemory-eviction-tenacity`.
/// As in Redis, up to a value of 10, each step adds 50 us. Above 10, each step adds 15 %. A value
/// of 100 means no limit.
pub(crate) fn eviction_time(tenacity: i64) -> Duration {
    match tenacity {
        ..=10 => Duration::from_micros(50 * tenacity.max(0) as u64),
        11..=99 => Duration::from_micros((500.0 * 1.15f64.powi(tenacity as i32 - 10)) as u64),
        _ => Duration::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenacity_is_a_time() {
        assert_eq!(eviction_time(0), Duration::ZERO);
        assert_eq!(eviction_time(10), Duration::from_micros(500));
        assert_eq!(eviction_time(11), Duration::from_micros(575));
        // redis.conf says that 99 means two minutes.
        assert!((120..150).contains(&eviction_time(99).as_secs()), "{:?}", eviction_time(99));
        assert_eq!(eviction_time(100), Duration::MAX);
    }

    #[test]
    fn the_limit_of_all_clients_is_a_size_or_a_share() {
        let limit = |all: &str, clients: &str| {
            let mut config = Config::default();
            config.set("maxmemory", all).expect("maxmemory takes a size");
            config
                .set("maxmemory-clients", clients)
                .expect("maxmemory-clients takes a size or a share");
            clients_memory_max(&config)
        };
        assert_eq!(limit("0", "0"), None);
        assert_eq!(limit("0", "10%"), None, "a share of no limit is no limit");
        assert_eq!(limit("10mb", "10%"), Some(1 << 20));
        assert_eq!(limit("10mb", "1%"), Some(CLIENTS_MEMORY_MIN));
        assert_eq!(limit("0", "1"), Some(CLIENTS_MEMORY_MIN));
        assert_eq!(limit("1", "1gb"), Some(1 << 30));
    }

    #[test]
    fn every_policy_has_its_word() {
        let mut config = Config::default();
        for (policy, name) in EvictionPolicy::ALL {
            config.set("maxmemory-policy", name).expect("the directive takes every policy");
            assert_eq!(eviction(&config).policy, policy);
        }
    }
}
