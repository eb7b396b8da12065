//! `MULTI` and `WATCH`: queued requests, and which clients watch which keys.

use std::collections::{BTreeMap, VecDeque, btree_set};

use slimio_keyspace::{DbIndex, Keyspace, Touched};
use slimio_planted::is_planted;
use slimio_resp::OwnedRequest;

use crate::clients::Client;
use crate::engine::Purpose;
use crate::net::ConnId;

/// Largest number of queued requests in one piece of memory. There are several pieces, because a
/// single piece would be copied as a whole whenever it grows.
const PART_LEN: usize = 256;

/// A transaction that is being queued.
#[derive(Debug, Default)]
pub(crate) struct Multi {
    /// Each part except the last has `PART_LEN` requests.
    parts: Vec<Vec<OwnedRequest>>,
    /// A request could not be queued, so `EXEC` will fail.
    pub(crate) is_broken: bool,
    /// Bytes of the arguments of the queued requests.
    pub(crate) size: usize,
    /// Bytes of memory that the queued requests take.
    memory: usize,
    /// Upper limit, in bytes, of the payload that the log gets for the effects of the queued
    /// requests; `None` if none of these requests writes.
    pub(crate) log_size_max: Option<u64>,
    /// Number of queued requests whose cost depends on the values of their keys. `EXEC` computes
    /// how much of the log such requests need (it weighs them) before it runs any request.
    pub(crate) weighed: usize,
    /// The purpose of the whole transaction. The purpose of a write decides how much of the log's
    /// room the write may use. If the queued writes have different purposes, the transaction gets
    /// the purpose that allows it to use the least room.
    pub(crate) purpose: Purpose,
    /// Whether any queued request may write.
    pub(crate) writes: bool,
    /// Whether any queued request may need more memory.
    pub(crate) needs_memory: bool,
}

impl Multi {
    pub(crate) fn push(&mut self, request: OwnedRequest) {
        self.size += request.args().iter().map(|arg| arg.size()).sum::<usize>();
        if self.parts.last().is_none_or(|part| part.len() == PART_LEN) {
            self.parts.push(Vec::new());
        }
        let Some(part) = self.parts.last_mut() else { return };
        let capacity = part.capacity();
        self.memory += request.memory() - size_of::<OwnedRequest>();
        part.push(request);
        self.memory += (part.capacity() - capacity) * size_of::<OwnedRequest>();
    }

    /// The queued requests, in order.
    pub(crate) fn requests(&self) -> impl Iterator<Item = &OwnedRequest> {
        self.parts.iter().flatten()
    }

    /// Number of queued requests.
    pub(crate) fn len(&self) -> usize {
        self.parts.last().map_or(0, |last| (self.parts.len() - 1) * PART_LEN + last.len())
    }

    pub(crate) fn memory(&self) -> usize {
        let list = self.parts.capacity() * size_of::<Vec<OwnedRequest>>();
        size_of::<Self>() + list + self.memory
    }
}

/// Bytes of memory that one watched key takes, in the client's own set and in [`Watches`].
fn watch_memory(key: &[u8]) -> usize {
    let entry = size_of::<(DbIndex, Box<[u8]>)>() + key.len();
    2 * entry + size_of::<Vec<Watcher>>() + size_of::<Watcher>()
}

/// A watched key, with its database.
type Watched = (DbIndex, Box<[u8]>);

/// Which connections watch which keys, and which of these connections watch a key that was changed.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    /// This is a tree, because a growing hash table would be rebuilt in one long step.
    keys: BTreeMap<Watched, Vec<Watcher>>,
    rounds: BTreeMap<ConnId, Round>,
    /// The number of the newest [`WatchRound`].
    last_round: u64,
    /// Rounds that have ended, each with its keys that are still in `keys`.
    ended: VecDeque<(WatchRound, btree_set::IntoIter<Watched>)>,
}

/// Identifies one round of watching. A round begins with a client's first `WATCH`, and ends when
/// all watches of the client end. Each round has its own number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WatchRound(u64);

/// The round of a client that watches keys.
#[derive(Clone, Copy, Debug)]
struct Round {
    id: WatchRound,
    /// A watched key was changed, so the client's transaction will not run.
    is_stale: bool,
}

/// If a client watches at most this many keys, [`Watches::clear`] removes all of them at once. If a
/// client watches more keys, they are removed later, in steps.
const FORGOTTEN_AT_ONCE_MAX: usize = 256;

#[derive(Clone, Copy, Debug)]
struct Watcher {
    conn: ConnId,
    round: WatchRound,
    seen: Seen,
}

/// The state of a watched key, as its watcher last saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Nothing,
    /// The key had already expired, so its deletion does not count as a change.
    Expired,
    Key,
}

impl Seen {
    fn now(keyspace: &Keyspace, db: DbIndex, key: &[u8], now_ms: i64) -> Self {
        if keyspace.contains(db, key, now_ms) {
            Self::Key
        } else if keyspace.contains(db, key, i64::MIN) {
            Self::Expired
        } else {
            Self::Nothing
        }
    }
}

impl Watches {
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Lets a client watch a key of the database that the client has selected.
    pub(crate) fn add(
        &mut self,
        client: &mut Client,
        key: &[u8],
        keyspace: &Keyspace,
        now_ms: i64,
    ) {
        if client.watching.is_empty() {
            self.last_round += 1;
            let round = Round { id: WatchRound(self.last_round), is_stale: false };
            self.rounds.insert(client.conn, round);
        }
        let db = if is_planted("watched-in-first-db") { DbIndex(0) } else { client.db };
        let watched = (db, Box::<[u8]>::from(key));
        if !client.watching.insert(watched.clone()) {
            return;
        }
        client.watching_memory += watch_memory(key);
        if !is_planted("forgets-too-slowly") {
            // For each key that is added, two keys of ended rounds are removed. So a client that
            // watches and unwatches in a loop can't add keys faster than keys are removed.
            self.forget_up_to(2);
        }
        let seen = Seen::now(keyspace, client.db, key, now_ms);
        let Some(round) = self.round_of(client) else { return };
        let watcher = Watcher { conn: client.conn, round, seen };
        self.keys.entry(watched).or_default().push(watcher);
    }

    fn round_of(&self, client: &Client) -> Option<WatchRound> {
        self.rounds.get(&client.conn).map(|round| round.id)
    }

    /// Whether a key that the client watches was changed, so that the client's transaction will not
    /// run.
    pub(crate) fn is_stale(&self, client: &Client) -> bool {
        !client.watching.is_empty()
            && self.rounds.get(&client.conn).is_some_and(|round| round.is_stale)
    }

    /// Ends all watches of a client.
    pub(crate) fn clear(&mut self, client: &mut Client) {
        if client.watching.is_empty() {
            return;
        }
        client.watching_memory = 0;
        let Some(Round { id: round, .. }) = self.rounds.remove(&client.conn) else { return };
        if client.watching.len() <= FORGOTTEN_AT_ONCE_MAX {
            for watched in std::mem::take(&mut client.watching) {
                self.forget(&watched, round);
            }
        } else {
            self.ended.push_back((round, std::mem::take(&mut client.watching).into_iter()));
        }
    }

    /// Removes some more keys of ended rounds.
    pub(crate) fn forget_some(&mut self) {
        self.forget_up_to(FORGOTTEN_AT_ONCE_MAX);
    }

    fn forget_up_to(&mut self, count: usize) {
        for _ in 0..count {
            let Some((round, keys)) = self.ended.front_mut() else { return };
            let round = *round;
            match keys.next() {
                Some(watched) => self.forget(&watched, round),
                None => drop(self.ended.pop_front()),
            }
        }
    }

    /// Whether keys of ended rounds are still to be removed.
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    fn forget(&mut self, watched: &Watched, round: WatchRound) {
        if let Some(watchers) = self.keys.get_mut(watched) {
            watchers.retain(|watcher| watcher.round != round);
            if watchers.is_empty() {
                self.keys.remove(watched);
            }
        }
    }

    /// Marks as stale all clients that watch a changed key.
    pub(crate) fn touched<'a>(
        &mut self,
        touched: impl Iterator<Item = Touched<'a>>,
        keyspace: &Keyspace,
        now_ms: i64,
    ) {
        let rounds = &mut self.rounds;
        let mut tell = |watcher: &Watcher| {
            // The watcher may be of an ended round, because the keys of a round are not all removed
            // at once when the round ends.
            if let Some(round) = rounds.get_mut(&watcher.conn)
                && (round.id == watcher.round || is_planted("ended-watch-tells"))
            {
                round.is_stale = true;
            }
        };
        for touched in touched {
            match touched {
                Touched::Key { db, key, .. } => {
                    let watched = (db, key.to_bytes().into());
                    let Some(watchers) = self.keys.get_mut(&watched) else { continue };
                    let now = Seen::now(keyspace, db, &watched.1, now_ms);
                    for watcher in watchers {
                        let has_gone = (watcher.seen, now) == (Seen::Expired, Seen::Nothing);
                        if has_gone && !is_planted("expired-goes-twice") {
                            watcher.seen = now;
                        } else {
                            tell(watcher);
                        }
                    }
                }
                // The database was emptied, or swapped with another one.
                Touched::Db(changed) => {
                    let from = (changed, Box::default());
                    let of_db =
                        self.keys.range_mut(from..).take_while(|((db, _), _)| *db == changed);
                    for ((db, key), watchers) in of_db {
                        let now = Seen::now(keyspace, *db, key, now_ms);
                        for watcher in watchers {
                            let was_there = watcher.seen == Seen::Key;
                            let is_there = now == Seen::Key && !is_planted("swapped-in-unseen");
                            if was_there || is_there {
                                tell(watcher);
                            } else {
                                watcher.seen = now;
                            }
                        }
                    }
                }
            }
        }
    }

    /// Whether a key that the client watches has expired since the client began to watch it.
    pub(crate) fn any_expired(&self, client: &Client, keyspace: &Keyspace, now_ms: i64) -> bool {
        let round = self.round_of(client);
        client.watching.iter().any(|watched| {
            let watchers = self.keys.get(watched).map_or(&[][..], |w| w);
            let is_own = |w: &Watcher| Some(w.round) == round || is_planted("expired-in-any-round");
            watchers.iter().any(|w| is_own(w) && w.seen != Seen::Expired)
                && Seen::now(keyspace, watched.0, &watched.1, now_ms) == Seen::Expired
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use slimio_keyspace::Config;

    use super::*;
    use crate::net::Peer;

    #[test]
    fn ended_rounds_are_forgotten_as_fast_as_keys_are_watched() {
        let keyspace = Keyspace::new(Config::default(), 1);
        let peer = Peer { remote: None, local: None };
        let conn = ConnId { index: 0, generation: 0 };
        let mut client = Client::new(1, conn, peer, Instant::now());
        let mut watches = Watches::default();
        for _ in 0..100 {
            for key in 0..300u32 {
                watches.add(&mut client, &key.to_le_bytes(), &keyspace, 0);
            }
            watches.clear(&mut client);
            assert!(
                watches.ended.len() <= 2,
                "{} ended rounds still have keys",
                watches.ended.len()
            );
        }
        while watches.has_ended() {
            watches.forget_some();
        }
        assert!(watches.is_empty());
    }
}
