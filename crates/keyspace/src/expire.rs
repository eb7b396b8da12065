//! Deletes expired keys: the keys that a command finds, and the keys that active expiry looks for.

use slimio_planted::is_planted;
use slimio_resp::Args;

use crate::effects::{Effects, Part};
use crate::events::EXPIRED;
use crate::keyspace::{DbIndex, Keyspace};
use crate::table::Spot;

/// The result of a step of active expiry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpireStep {
    /// Count of keys that the step has looked at.
    pub examined: usize,
    /// How many of the examined keys have an expiry.
    pub expiring: usize,
    /// How many of the examined keys were deleted.
    pub expired: usize,
    /// Whether the walk has reached the end of the database. If so, the next step begins at the
    /// start of the database.
    pub wrapped: bool,
}

impl Keyspace {
    /// Deletes expired keys of a database. Begins where the last step ended, and stops after the
    /// bucket in which the count of examined keys reaches `budget`. Visits only buckets that hold
    /// keys with an expiry. Adds the deletions to `effects`. The deletions contain their keys,
    /// because there is no request whose arguments they could refer to. Stops earlier if the log
    /// has [no more room](Effects::limit) for another deletion.
    pub fn expire_step(
        &mut self,
        db: DbIndex,
        now_ms: i64,
        budget: usize,
        effects: &mut Effects,
    ) -> ExpireStep {
        let mut step = ExpireStep::default();
        let mut ttl_sum: i64 = 0;
        while step.examined < budget {
            let from = self.db(db).expiry_walk;
            let Some(bucket) = self.db(db).table().next_expiring_bucket(from) else {
                self.db_mut(db).expiry_walk = 0;
                step.wrapped = true;
                break;
            };
            let mut over: Vec<Vec<u8>> = Vec::new();
            for slot in self.db(db).table().slots(bucket) {
                step.examined += 1;
                let Some(at) = slot.expires_at_ms() else { continue };
                step.expiring += 1;
                if now_ms > at {
                    over.push(slot.key().to_vec());
                } else {
                    ttl_sum = ttl_sum.saturating_add(at - now_ms);
                }
            }
            for key in over {
                let hash = self.hash(&key);
                if let Some(spot) = self.db(db).find(hash, &key) {
                    step.expired += usize::from(self.expire(db, hash, &key, spot, effects));
                }
            }
            if effects.lacked_room() {
                break;
            }
            self.db_mut(db).expiry_walk = bucket + 1;
        }
        self.note_ttl(db, ttl_sum, step.expiring - step.expired);
        step
    }

    /// Deletes an expired key. Returns whether the log had room for the deletion.
    pub(crate) fn expire(
        &mut self,
        db: DbIndex,
        hash: u64,
        key: &[u8],
        spot: Spot,
        effects: &mut Effects,
    ) -> bool {
        if !effects.take_room(key) {
            return false;
        }
        let (from, displaced) = self.db_and_displaced(db);
        if is_planted("expiry-not-captured") {
            from.table_mut().set_epoch(spot, displaced.capture.epoch());
        }
        from.remove(spot, displaced);
        self.stats.expired_keys += 1;
        if !is_planted("expired-not-logged") {
            effects.log(db, &[Part::Bytes(b"DEL"), Part::Bytes(key)]);
        }
        effects.touch(db, hash, key, EXPIRED);
        true
    }

    /// Updates the moving average of the time to live. The mean of this step has a weight of 2 %;
    /// the first mean is taken as it is.
    fn note_ttl(&mut self, db: DbIndex, sum_ms: i64, count: usize) {
        let db = self.db_mut(db);
        if db.expiring() == 0 {
            db.ttl_mean_ms = 0;
        } else if count > 0 {
            let mean = sum_ms / count as i64;
            db.ttl_mean_ms =
                if db.ttl_mean_ms == 0 { mean } else { db.ttl_mean_ms / 50 * 49 + mean / 50 };
        }
    }
}

/// An empty list of arguments, for effects that refer to no request.
pub fn no_args() -> Args<'static> {
    use slimio_resp::Request;
    use std::sync::OnceLock;
    static EMPTY: OnceLock<Request> = OnceLock::new();
    EMPTY.get_or_init(Request::new).args(&[])
}
