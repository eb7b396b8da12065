//! Timed work: deadlines, time-outs, samples, and how long the thread may sleep.

use std::time::{Duration, Instant};

use slimio_planted::is_planted;

use super::Connections;
use crate::clients::State;
use crate::engine::Engine;

impl Connections {
    /// Does all timed work that is due.
    pub(crate) fn run_timers(&mut self, engine: &mut Engine) {
        self.check_waitaof(engine);
        self.give_up_late(engine);
        engine.data.watches.forget_some();
        engine.go_on_evicting(self.client_bytes(engine, None));
        engine.expire();
        if engine.clock.now < engine.clock.next_cron {
            return;
        }
        engine.clock.next_cron = engine.clock.now + engine.settings.cron_every;
        engine.stats.sample(engine.clock.now);
        let clients = self.client_bytes(engine, None);
        // This call updates the memory peak. Its result is not needed here.
        engine.memory_use(clients);
        engine.retry_evicting(clients);
        engine.schedule_check();
        engine.schedule_snapshots();
        engine.begin_expiry();
        self.time_out(engine);
        self.recheck_limits();
    }

    /// How long the thread may sleep; `None` if there is no limit.
    pub(crate) fn timeout(&mut self, engine: &mut Engine) -> Option<Duration> {
        let goes_on = engine.data.is_expiring()
            || self.has_yielding()
            || engine.data.has_long()
            || engine.data.is_evicting()
            || engine.wants_snapshot_step();
        let has_left = self.has_behind()
            || self.has_unflushed()
            || self.has_resumed()
            || self.has_closing()
            || self.evicts_more
            || engine.data.watches.has_ended()
            || self.may_retry(engine);
        if goes_on || has_left {
            return Some(Duration::ZERO);
        }
        let mut at: Option<Instant> = None;
        let mut by = |when: Instant| at = Some(at.map_or(when, |at| at.min(when)));
        if let Some(wal) = &mut engine.gate.wal
            && let Some(deadline) = wal.next_deadline(engine.clock.now)
        {
            by(deadline);
        }
        if self.has_background_work(engine) {
            by(engine.clock.next_cron);
        }
        if let Some(until) = engine.phase.pause_ends() {
            by(until);
        }
        // If the clock cannot represent the time of the next snapshot, the thread is never woken
        // for this snapshot.
        if let Some(seconds) = engine.next_save_in()
            && let Some(at) = engine.clock.now.checked_add(Duration::from_secs(seconds as u64))
        {
            by(engine.clock.next_cron.max(at));
        }
        if let Some(at) = engine.next_check_at() {
            by(engine.clock.next_cron.max(at));
        }
        if let Some(deadline) = self.waiting.next_deadline() {
            by(deadline);
        }
        at.map(|at| at.saturating_duration_since(engine.clock.now))
    }

    /// Whether rounds of background work have anything to do. If not, the thread is not woken for
    /// them.
    fn has_background_work(&self, engine: &Engine) -> bool {
        let expires = engine.phase.loading.is_none()
            && engine.data.dbs().any(|db| engine.data.keyspace.expiring(db) > 0);
        let times_out = engine.settings.timeout.is_some() && self.clients.len() > 0;
        let has_soft_limit = engine.settings.output_limit.soft_bytes > 0;
        expires
            || times_out
            || self.has_parked()
            || (engine.data.evicts_later() && !is_planted("eviction-not-woken"))
            || engine.needs_rewrite()
            // A round sets the running snapshot's rate, which must follow the load.
            || engine.snapshots.running.is_some()
            || engine.stats.is_moving()
            || (has_soft_limit && self.clients.iter().any(|c| c.soft_limit_since.is_some()))
    }

    fn time_out(&mut self, engine: &mut Engine) {
        let Some(timeout) = engine.settings.timeout else { return };
        let idle: Vec<_> = self
            .clients
            .iter()
            .filter(|c| matches!(c.state, State::Running))
            .filter(|c| engine.clock.now.saturating_duration_since(c.last_active) > timeout)
            .map(|c| c.conn)
            .collect();
        for conn in idle {
            log::debug!("closing idle client");
            self.ended(engine, conn);
        }
    }
}
