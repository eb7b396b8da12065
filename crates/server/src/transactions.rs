//! `MULTI`: queued requests, and who watches which keys.

use std::collections::HashMap;

use slimio_keyspace::{DbIndex, Keyspace, Touched};
use slimio_planted::is_planted;
use slimio_resp::OwnedRequest;

use crate::clients::{Client, Clients};
use crate::core::Purpose;
use crate::net::ConnId;

/// A transaction that is being queued.
#[derive(Debug, Default)]
pub(crate) struct Multi {
    pub(crate) requests: Vec<OwnedRequest>,
    /// A request could not be queued: `EXEC` will refuse.
    pub(crate) is_broken: bool,
    /// Bytes of the queued requests.
    pub(crate) size: usize,
    /// Bytes of payload that what they do takes in the log at most; `None` if none of them writes.
    pub(crate) log_size_max: Option<u64>,
    /// What those of them are for that write.
    pub(crate) purpose: Purpose,
    /// Whether any of them may write.
    pub(crate) writes: bool,
    /// Whether any of them may need more memory.
    pub(crate) needs_memory: bool,
}

/// Which connections watch a key.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    keys: HashMap<(DbIndex, Box<[u8]>), Vec<Watcher>>,
}

#[derive(Clone, Copy, Debug)]
struct Watcher {
    conn: ConnId,
    /// The key's time was over when it was watched: that it goes is no change.
    was_expired: bool,
    /// The key was there when it was watched: a flush takes it away.
    was_there: bool,
}

impl Watches {
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Number of connections that watch something.
    pub(crate) fn add(
        &mut self,
        client: &mut Client,
        key: &[u8],
        keyspace: &Keyspace,
        now_ms: i64,
    ) {
        let watched = (client.db, Box::<[u8]>::from(key));
        if client.watching.contains(&watched) {
            return;
        }
        let was_there = keyspace.contains(client.db, key, now_ms);
        let was_expired = !was_there && keyspace.contains(client.db, key, i64::MIN);
        client.watching.push(watched.clone());
        let watcher = Watcher { conn: client.conn, was_expired, was_there };
        self.keys.entry(watched).or_default().push(watcher);
    }

    /// Ends all watches of a client.
    pub(crate) fn clear(&mut self, client: &mut Client) {
        client.is_stale = false;
        for watched in client.watching.drain(..) {
            if let Some(watchers) = self.keys.get_mut(&watched) {
                watchers.retain(|watcher| watcher.conn != client.conn);
                if watchers.is_empty() {
                    self.keys.remove(&watched);
                }
            }
        }
    }

    /// Tells those who watch what was changed, `current` included.
    pub(crate) fn touched<'a>(
        &self,
        touched: impl Iterator<Item = Touched<'a>>,
        keyspace: &Keyspace,
        clients: &mut Clients,
        current: &mut Client,
    ) {
        let mut tell = |watchers: &[Watcher], is_no_change: &dyn Fn(&Watcher) -> bool| {
            for watcher in watchers {
                if is_no_change(watcher) {
                    continue;
                }
                if watcher.conn == current.conn {
                    current.is_stale = true;
                } else if let Some(client) = clients.get_mut(watcher.conn) {
                    client.is_stale = true;
                }
            }
        };
        for touched in touched {
            match touched {
                Touched::Key { db, key, .. } => {
                    let key: Box<[u8]> = key.to_bytes().into();
                    if let Some(((_, key), watchers)) = self.keys.get_key_value(&(db, key)) {
                        let has_gone = || !keyspace.contains(db, key, i64::MIN);
                        tell(watchers, &|watcher| {
                            watcher.was_expired && has_gone() && !is_planted("expired-goes-twice")
                        });
                    }
                }
                Touched::Db(changed) => {
                    for ((db, _), watchers) in &self.keys {
                        if *db == changed {
                            tell(watchers, &|watcher| !watcher.was_there);
                        }
                    }
                }
            }
        }
    }

    /// Whether a key that a client watches has come to its time since.
    pub(crate) fn any_expired(&self, client: &Client, keyspace: &Keyspace, now_ms: i64) -> bool {
        client.watching.iter().any(|watched| {
            let watchers = self.keys.get(watched).map_or(&[][..], |w| w);
            watchers.iter().any(|w| w.conn == client.conn && !w.was_expired)
                && is_expired(keyspace, watched.0, &watched.1, now_ms)
        })
    }
}

/// Whether a key is there but its time is over.
fn is_expired(keyspace: &Keyspace, db: DbIndex, key: &[u8], now_ms: i64) -> bool {
    keyspace.contains(db, key, i64::MIN) && !keyspace.contains(db, key, now_ms)
}
