//! Rounds of expiry. They delete expired keys that no command looks at.

use std::time::{Duration, Instant};

use super::{Data, Engine};

/// Base of the number of keys that one step of active expiry looks at. The number is this base
/// times 16, or more with a higher `active-expire-effort`.
const EXPIRE_STEP_KEYS: usize = 20;
/// A step looks at keys with an expiry. If more than this percentage of these keys had expired,
/// another step follows.
const EXPIRE_AGAIN_PERCENT: usize = 10;
/// Expiry may take a percentage of the time between two rounds. This is the base of the percentage;
/// `active-expire-effort` adds to it.
const EXPIRE_TIME_PERCENT: u32 = 25;
/// Limit of the time that expiry takes in one turn of the event loop.
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
    pub(crate) fn begin_expiry(&mut self) {
        let percent = EXPIRE_TIME_PERCENT + 2 * self.settings.expire_effort;
        self.data.expiry = Expiry { db: 0, left: self.settings.cron_every * percent / 100 };
        self.expire();
    }

    /// Continues the round of expiry, if one is running, for a bounded time.
    pub(crate) fn expire(&mut self) {
        if !self.data.is_expiring() {
            return;
        }
        let may_not =
            self.gate.is_latched() || self.phase.is_paused() || self.data.is_long_holding();
        if self.phase.loading.is_some() || !self.data.active_expire || may_not {
            self.data.expiry.left = Duration::ZERO;
            return;
        }
        let began = Instant::now();
        let time_max = EXPIRE_STEP_TIME.min(self.data.expiry.left);
        let is_over = self.expire_until(began + time_max);
        let took = began.elapsed();
        self.data.expiry.left =
            if is_over { Duration::ZERO } else { self.data.expiry.left.saturating_sub(took) };
        self.latency.note(
            "expire-cycle",
            self.clock.now_ms / 1000,
            took,
            self.settings.latency_from,
        );
    }

    /// Deletes expired keys, and stops after the time `until`. Returns whether the round has ended.
    /// A round ends when no more keys are worth looking at, or when the log has no room for
    /// deletions.
    fn expire_until(&mut self, until: Instant) -> bool {
        let budget = EXPIRE_STEP_KEYS * (1 + self.settings.expire_effort as usize / 4) * 16;
        for db in self.data.dbs().skip(self.data.expiry.db) {
            while self.data.keyspace.expiring(db) > 0 {
                let room = self.room_to_free();
                self.data.effects.clear();
                self.data.effects.limit(room);
                let step = self.data.keyspace.expire_step(
                    db,
                    self.clock.now_ms,
                    budget,
                    &mut self.data.effects,
                );
                self.record_unasked(db);
                if let Some(garbage) = self.data.keyspace.take_garbage() {
                    self.data.free(garbage);
                }
                let is_fruitful = step.expired * 100 > step.expiring * EXPIRE_AGAIN_PERCENT;
                if self.data.effects.lacked_room() {
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
            self.data.expiry.db += 1;
        }
        true
    }
}

impl Data {
    /// Whether a round of expiry has time left.
    pub(crate) fn is_expiring(&self) -> bool {
        !self.expiry.left.is_zero()
    }
}
