//! Timed work: expiry, timeouts, samples.

use std::time::{Duration, Instant};

use slimio_planted::is_planted;

use super::{Connections, Engine};
use crate::clients::State;

/// Base of the number of keys that one step of active expiry looks at. The number is this base
/// times 16, or more with a higher `active-expire-effort`.
const EXPIRE_STEP_KEYS: usize = 20;
/// A step looks at keys with an expiry. If more than this percentage of these keys had expired,
/// another step follows.
const EXPIRE_AGAIN_PERCENT: usize = 10;
/// Expiry may take a percentage of the time between two rounds. This is the base of the percentage;
/// `active-expire-effort` adds to it.
const EXPIRE_TIME_PERCENT: u32 = 25;
/// Limit of the time that expiry takes in one turn.
const EXPIRE_STEP_TIME: Duration = Duration::from_millis(1);

/// A round of expiry.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Expiry {
    /// The database being searched.
    db: usize,
    /// The part of the round's time that is left.
    left: Duration,
}

impl Engine {
    /// Begins a round of expiry, which may take a part of the time until the next round.
    fn begin_expiry(&mut self) {
        let percent = EXPIRE_TIME_PERCENT + 2 * self.settings.expire_effort;
        self.expiry = Expiry { db: 0, left: self.settings.cron_every * percent / 100 };
        self.expire();
    }

    /// Whether a round of expiry has time left.
    fn is_expiring(&self) -> bool {
        !self.expiry.left.is_zero()
    }

    /// Continues the round of expiry, if one is running, for a bounded time.
    fn expire(&mut self) {
        if !self.is_expiring() {
            return;
        }
        let may_not = self.is_latched() || self.is_paused() || self.is_long_holding();
        if self.loading.is_some() || !self.active_expire || may_not {
            self.expiry.left = Duration::ZERO;
            return;
        }
        let began = Instant::now();
        let time_max = EXPIRE_STEP_TIME.min(self.expiry.left);
        let is_over = self.expire_until(began + time_max);
        let took = began.elapsed();
        self.expiry.left =
            if is_over { Duration::ZERO } else { self.expiry.left.saturating_sub(took) };
        self.latency.note("expire-cycle", self.now_ms / 1000, took, self.settings.latency_from);
    }

    /// Deletes expired keys until `until`. Returns whether the round has ended, because no more
    /// keys are worth looking at or because the log has no room for deletions.
    fn expire_until(&mut self, until: Instant) -> bool {
        let budget = EXPIRE_STEP_KEYS * (1 + self.settings.expire_effort as usize / 4) * 16;
        for db in self.dbs().skip(self.expiry.db) {
            while self.keyspace.expiring(db) > 0 {
                let room = self.room_to_free();
                self.effects.clear();
                self.effects.limit(room);
                let step = self.keyspace.expire_step(db, self.now_ms, budget, &mut self.effects);
                self.record_unasked(db);
                if let Some(garbage) = self.keyspace.take_garbage() {
                    self.free(garbage);
                }
                let is_fruitful = step.expired * 100 > step.expiring * EXPIRE_AGAIN_PERCENT;
                if self.effects.lacked_room() {
                    // Deletions without room in the log wait for the next round.
                    return true;
                }
                if step.wrapped || !is_fruitful {
                    break;
                }
                if Instant::now() > until {
                    return false;
                }
            }
            self.expiry.db += 1;
        }
        true
    }
}

impl Connections {
    /// Does the work whose time has come.
    pub(crate) fn run_timers(&mut self, engine: &mut Engine) {
        self.check_waitaof(engine);
        self.give_up_late(engine);
        engine.watches.forget_some();
        engine.go_on_evicting(self.client_bytes(engine, None));
        engine.expire();
        if engine.now < engine.next_cron {
            return;
        }
        engine.next_cron = engine.now + engine.settings.cron_every;
        engine.stats.sample(engine.now);
        let clients = self.client_bytes(engine, None);
        // Updates the peak.
        engine.memory_use(clients);
        engine.retry_evicting(clients);
        engine.schedule_check();
        engine.schedule_snapshots();
        engine.begin_expiry();
        self.time_out(engine);
        self.recheck_limits();
    }

    /// How long the thread may sleep.
    pub(crate) fn timeout(&mut self, engine: &mut Engine) -> Option<Duration> {
        let goes_on = engine.is_expiring()
            || self.has_yielding()
            || engine.has_long()
            || engine.is_evicting()
            || engine.wants_snapshot_step();
        let has_left = self.has_behind()
            || self.has_unflushed()
            || self.has_resumed()
            || engine.watches.has_ended()
            || self.may_retry(engine);
        if goes_on || has_left {
            return Some(Duration::ZERO);
        }
        let mut at: Option<Instant> = None;
        let mut by = |when: Instant| at = Some(at.map_or(when, |at| at.min(when)));
        if let Some(wal) = &mut engine.wal
            && let Some(deadline) = wal.next_deadline(engine.now)
        {
            by(deadline);
        }
        if self.has_background_work(engine) {
            by(engine.next_cron);
        }
        if let Some(until) = engine.pause_ends() {
            by(until);
        }
        // If the clock cannot represent a time that late, the thread is never woken for the
        // snapshot.
        if let Some(seconds) = engine.next_save_in()
            && let Some(at) = engine.now.checked_add(Duration::from_secs(seconds as u64))
        {
            by(engine.next_cron.max(at));
        }
        if let Some(at) = engine.next_check_at() {
            by(engine.next_cron.max(at));
        }
        if let Some(deadline) = self.waiting.next_deadline() {
            by(deadline);
        }
        at.map(|at| at.saturating_duration_since(engine.now))
    }

    /// Whether rounds of background work have anything to do. If not, the thread is not woken for
    /// them.
    fn has_background_work(&self, engine: &Engine) -> bool {
        let expires =
            engine.loading.is_none() && engine.dbs().any(|db| engine.keyspace.expiring(db) > 0);
        let times_out = engine.settings.timeout.is_some() && self.clients.len() > 0;
        let has_soft_limit = engine.settings.output_limit.soft_bytes > 0;
        expires
            || times_out
            || self.has_parked()
            || (engine.evicts_later() && !is_planted("eviction-not-woken"))
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
            .filter(|c| engine.now.saturating_duration_since(c.last_active) > timeout)
            .map(|c| c.conn)
            .collect();
        for conn in idle {
            log::debug!("closing idle client");
            self.ended(engine, conn);
        }
    }
}
