//! The data set, and everything that makes it durable.
//!
//! ```text
//!  request ─► run ─► effects ─► record ─► log
//!                     │          └─► LSN that the reply depends on
//!                     └─► everything that depends on changes
//! ```
//!
//! Each part has an owner: [`Data`], [`Gate`] (the log), [`Snapshots`], [`Clock`], [`Phase`]. A
//! function that needs only one of these owners is a method of that owner. The functions in this
//! module need several owners.

mod ahead;
mod changes;
mod checks;
mod data;
mod durability;
mod expiry;
mod long;
mod memory;
#[cfg(test)]
mod opened;
mod pace;
mod phase;
mod pins;
mod room;
mod run;
mod settings;
mod snapshots;

pub use changes::{Listener, Told};
pub(crate) use checks::NotChecked;
pub(crate) use data::{Data, Transaction};
pub(crate) use durability::policy;
pub(crate) use long::{Long, Next, STEP_TIME};
pub(crate) use memory::MemoryUse;
pub(crate) use phase::{Loading, Phase, Shutdown};
pub(crate) use room::{Admission, Purpose};
pub(crate) use settings::{Facts, Settings};
pub(crate) use snapshots::NotBegun;

use slimio_keyspace::{Keyspace, PackedLimits};

use crate::clock::{Clock, WallClock};
use crate::config::Config;
use crate::gate::Gate;
use crate::latency::Latency;
use crate::slowlog::SlowLog;
use crate::snapshot::Snapshots;
use crate::stats::Stats;

/// The data set and everything that makes it durable: the log, the snapshots, and what replies
/// depend on. The engine knows only one client, the client that is being served.
pub(crate) struct Engine {
    pub(crate) config: Config,
    pub(crate) settings: Settings,
    pub(crate) facts: Facts,
    /// Reports where the device places writes. `None` if the device does not distinguish
    /// placements.
    pub(crate) placement: Option<Box<dyn slimio_storage::PlacementMonitor>>,
    pub(crate) clock: Clock,
    pub(crate) phase: Phase,
    pub(crate) data: Data,
    pub(crate) gate: Gate,
    pub(crate) snapshots: Snapshots,
    pub(crate) stats: Stats,
    pub(crate) slowlog: SlowLog,
    pub(crate) latency: Latency,
}

impl Engine {
    pub(crate) fn new(config: Config, seed: u128, facts: Facts) -> Self {
        let mut clock = Clock::new();
        let settings = Settings::of(&config);
        clock.is_cpu_tracked = settings.is_cpu_tracked;
        let mut stats = Stats::default();
        stats.by_command.resize_with(crate::commands::entry_count(), Default::default);
        Self {
            data: Data::new(Self::empty_keyspace(&config, seed)),
            snapshots: Snapshots::new(clock.now, clock.now_ms / 1000),
            config,
            settings,
            facts,
            placement: None,
            clock,
            phase: Phase::default(),
            gate: Gate::default(),
            stats,
            slowlog: SlowLog::default(),
            latency: Latency::default(),
        }
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

    /// From now on, takes the time of day from another clock.
    pub(crate) fn set_wall_clock(&mut self, clock: WallClock) {
        self.clock.set_wall_clock(clock);
        self.snapshots.saved_at_s = self.clock.now_ms / 1000;
    }

    /// Applies directives that were changed at run time. All clients together take `clients` bytes.
    pub(crate) fn configured(&mut self, names: &[&'static str], clients: u64) {
        self.settings = Settings::of(&self.config);
        self.clock.is_cpu_tracked = self.settings.is_cpu_tracked;
        for &name in names {
            match name {
                "appendfsync" => self.policy_changed(),
                "appendonly" => self.turn_log(),
                "snapshot-check-rate" => self.check_rate_changed(),
                "proto-max-bulk-len" => {
                    self.data.keyspace.set_string_size_max(self.settings.arg_size_max);
                }
                "slowlog-max-len" => self.slowlog.truncate(self.settings.slowlog_len_max),
                "latency-tracking" if !self.settings.is_latency_tracked => {
                    self.stats.by_command.iter_mut().for_each(|stats| stats.latency = None);
                }
                "maxmemory" | "maxmemory-policy" | "maxmemory-samples" | "lfu-log-factor"
                | "lfu-decay-time" => self.eviction_changed(clients),
                name if PackedLimits::has_directive(name) => {
                    self.data.keyspace.set_packed_limits(Self::packed_limits(&self.config));
                }
                "loglevel" => crate::logging::set_level(self.config.choice("loglevel")),
                _ => {}
            }
        }
    }
}
