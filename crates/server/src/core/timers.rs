//! Timed work: expiry, timeouts, samples.

use std::time::{Duration, Instant};

use slimio_planted::is_planted;

use super::Core;
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

impl Core {
    /// Does the work whose time has come.
    pub(crate) fn run_timers(&mut self) {
        self.check_waitaof();
        self.give_up_late();
        self.watches.forget_some();
        self.go_on_evicting(self.client_bytes(None));
        self.expire();
        if self.now < self.next_cron {
            return;
        }
        self.next_cron = self.now + self.settings.cron_every;
        self.stats.sample(self.now);
        let clients = self.client_bytes(None);
        // Updates the peak.
        self.memory_use(clients);
        self.retry_evicting(clients);
        self.schedule_check();
        self.schedule_snapshots();
        self.begin_expiry();
        self.time_out();
        self.recheck_limits();
    }

    /// How long the thread may sleep.
    pub(crate) fn timeout(&mut self) -> Option<Duration> {
        let goes_on = self.is_expiring()
            || self.has_yielding()
            || self.has_long()
            || self.is_evicting()
            || self.wants_snapshot_step();
        let has_left = self.has_behind()
            || self.has_unflushed()
            || self.has_resumed()
            || self.watches.has_ended()
            || self.may_retry();
        if goes_on || has_left {
            return Some(Duration::ZERO);
        }
        let mut at: Option<Instant> = None;
        let mut by = |when: Instant| at = Some(at.map_or(when, |at| at.min(when)));
        if let Some(wal) = &mut self.wal
            && let Some(deadline) = wal.next_deadline(self.now)
        {
            by(deadline);
        }
        if self.has_background_work() {
            by(self.next_cron);
        }
        if let Some(until) = self.pause_ends() {
            by(until);
        }
        // If the clock cannot represent a time that late, the thread is never woken for the
        // snapshot.
        if let Some(seconds) = self.next_save_in()
            && let Some(at) = self.now.checked_add(Duration::from_secs(seconds as u64))
        {
            by(self.next_cron.max(at));
        }
        if let Some(at) = self.next_check_at() {
            by(self.next_cron.max(at));
        }
        if let Some(deadline) = self.waiting.next_deadline() {
            by(deadline);
        }
        at.map(|at| at.saturating_duration_since(self.now))
    }

    /// Whether rounds of background work have anything to do. If not, the thread is not woken for
    /// them.
    fn has_background_work(&self) -> bool {
        let expires = self.loading.is_none() && self.dbs().any(|db| self.keyspace.expiring(db) > 0);
        let times_out = self.settings.timeout.is_some() && self.clients.len() > 0;
        let has_soft_limit = self.settings.output_limit.soft_bytes > 0;
        expires
            || times_out
            || self.has_parked()
            || (self.evicts_later() && !is_planted("eviction-not-woken"))
            || self.needs_rewrite()
            // A round sets the running snapshot's rate, which must follow the load.
            || self.snapshots.running.is_some()
            || self.stats.is_moving()
            || (has_soft_limit && self.clients.iter().any(|c| c.soft_limit_since.is_some()))
    }

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

    fn time_out(&mut self) {
        let Some(timeout) = self.settings.timeout else { return };
        let idle: Vec<_> = self
            .clients
            .iter()
            .filter(|c| matches!(c.state, State::Running))
            .filter(|c| self.now.saturating_duration_since(c.last_active) > timeout)
            .map(|c| c.conn)
            .collect();
        for conn in idle {
            log::debug!("closing idle client");
            self.ended(conn);
        }
    }
}
