//! Clients that wait for keys. The clients that wait for the same key stand in a line.
//!
//! Keys are named by their hashes, which have 64 bits and are made with a secret of the keyspace.
//! If two keys had the same hash, their clients would stand in one line. Even then, no client would
//! be served from a key that it has not named. But a client might not be woken while a client
//! before it in the line waits for the other key.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use slimio_keyspace::{Block, DbIndex, Keyspace, Touched, ValueRef, ValueType};
use slimio_planted::is_planted;
use slimio_resp::Args;

use super::Ticket;
use crate::net::ConnId;

/// The keys that a client waits for.
#[derive(Debug)]
pub(crate) struct WantedKeys {
    /// The hash of each key, and the index of the argument that names the key. The list is sorted.
    /// If several arguments name a key, the key is listed once, with the first of these arguments.
    keys: Box<[(u64, u32)]>,
    /// The hash of the key to which the client moves the element that it waits for.
    destination: Option<u64>,
    wanted: ValueType,
}

impl WantedKeys {
    pub(crate) fn new(keyspace: &Keyspace, args: Args<'_>, block: &Block) -> Self {
        let (first, count) = block.keys;
        let hash = |index| (keyspace.hash(&args.bytes(index)), index as u32);
        let mut keys: Vec<_> = (first..first + count).map(hash).collect();
        keys.sort_unstable();
        keys.dedup_by_key(|(hash, _)| *hash);
        let destination = block.destination.map(|index| keyspace.hash(&args.bytes(index)));
        Self { keys: keys.into(), destination, wanted: block.wanted }
    }

    pub(crate) fn memory(&self) -> usize {
        let places = self.keys.len() + usize::from(self.destination.is_some());
        let places = if is_planted("places-uncounted") { 0 } else { places };
        size_of_val(&*self.keys) + places * PLACE_MEMORY
    }

    /// The type of value that the client waits for.
    pub(crate) fn wanted(&self) -> ValueType {
        self.wanted
    }

    /// The hashes of the keys.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = u64> {
        self.keys.iter().map(|(hash, _)| *hash)
    }

    /// The index of the argument that names the key with this hash.
    pub(crate) fn index_of(&self, hash: u64) -> Option<usize> {
        let found = self.keys.binary_search_by_key(&hash, |(hash, _)| *hash);
        found.ok().map(|at| self.keys[at].1 as usize)
    }
}

/// A key of a database, by its hash.
pub(crate) type KeyName = (DbIndex, u64);

/// A place in a line. Places are sorted by key, then by the type that the client waits for, then by
/// ticket, that is, in the order of arrival.
type Place = (KeyName, u8, Ticket);

/// Bytes of memory that a place takes in the tree of all places. The number allows for nodes that
/// are not full.
pub(super) const PLACE_MEMORY: usize = 64;

/// Keys that have become ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ready {
    Key(KeyName),
    /// All keys of a database from this hash on. The keys are searched one by one.
    Db(DbIndex, u64),
}

/// Clients that wait for keys, and the keys that have become ready for them.
#[derive(Debug, Default)]
pub(crate) struct BlockingKeys {
    waiters: BTreeMap<Place, ConnId>,
    /// The keys to which waiting clients move elements, and the number of these clients for each
    /// key.
    destinations: BTreeMap<KeyName, usize>,
    /// Count of the keys that anybody waits for.
    key_count: usize,
    /// Keys whose clients are to be served, in the order in which the keys became ready.
    ready: VecDeque<Ready>,
    is_ready: BTreeSet<KeyName>,
    /// The databases in `ready`. A database is listed at most twice: once if it is being searched,
    /// and once more if it was swapped in after the search began. This list exists because `ready`
    /// may be too long for every write to search it.
    ready_dbs: Vec<(DbIndex, u64)>,
    /// The key whose clients are being served.
    serving: Option<KeyName>,
    /// Whether there are ready keys, or clients are being served. This is a field of its own,
    /// because every command reads it.
    has_ready: bool,
    /// The turn in which clients were served last, and how many clients were served in that turn.
    served: (u64, usize),
}

impl BlockingKeys {
    pub(crate) fn enter(&mut self, conn: ConnId, db: DbIndex, wanted: &WantedKeys, at: Ticket) {
        for hash in wanted.hashes() {
            let key = (db, hash);
            self.key_count += usize::from(!self.is_waited_for(key));
            self.waiters.insert((key, wanted.wanted as u8, at), conn);
        }
        if let Some(hash) = wanted.destination {
            *self.destinations.entry((db, hash)).or_default() += 1;
        }
    }

    pub(crate) fn leave(&mut self, db: DbIndex, wanted: &WantedKeys, at: Ticket) {
        for hash in wanted.hashes() {
            let key = (db, hash);
            self.waiters.remove(&(key, wanted.wanted as u8, at));
            self.key_count -= usize::from(!self.is_waited_for(key));
        }
        if let Some(hash) = wanted.destination {
            let Entry::Occupied(mut count) = self.destinations.entry((db, hash)) else { return };
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Whether no client waits for any key.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Count of the keys that anybody waits for.
    pub(crate) fn key_count(&self) -> usize {
        self.key_count
    }

    /// The first client after this place.
    fn next(&self, after: Place) -> Option<(Place, ConnId)> {
        let behind = (Bound::Excluded(after), Bound::Unbounded);
        self.waiters.range(behind).next().map(|(place, conn)| (*place, *conn))
    }

    fn is_waited_for(&self, key: KeyName) -> bool {
        self.first_waiter(key).is_some()
    }

    /// The first client that waits for a key. If clients wait for values of several types at this
    /// key, all clients that wait for one type come before those that wait for the next type. So
    /// the first client need not be the one that has waited longest.
    pub(crate) fn first_waiter(&self, key: KeyName) -> Option<ConnId> {
        let next = self.next((key, 0, Ticket(0)));
        next.filter(|((of, ..), _)| *of == key).map(|(_, conn)| conn)
    }

    /// The next client with a later ticket than `after` that waits for a value of this type at this
    /// key.
    pub(crate) fn next_waiter(
        &self,
        key: KeyName,
        wanted: ValueType,
        after: Ticket,
    ) -> Option<(Ticket, ConnId)> {
        let wanted = wanted as u8;
        if is_planted("youngest-served-first") {
            let line = (key, wanted, Ticket(0))..=(key, wanted, Ticket(u64::MAX));
            return self.waiters.range(line).last().map(|(place, conn)| (place.2, *conn));
        }
        let next = self.next((key, wanted, after));
        let next = next.filter(|((of, of_type, _), _)| (*of, *of_type) == (key, wanted));
        next.map(|((.., ticket), conn)| (ticket, conn))
    }

    /// Notes the keys that a change has made ready. A key is ready if it now holds a value of a
    /// type that somebody waits for at this key.
    pub(crate) fn touched<'a>(
        &mut self,
        touched: impl Iterator<Item = Touched<'a>>,
        keyspace: &Keyspace,
        now_ms: i64,
    ) {
        for touched in touched {
            match touched {
                Touched::Key { db, hash, key } => {
                    let name = (db, hash);
                    // The key that is being served is checked after each client anyway. As in
                    // Redis, a key that still has elements does not go to the end of the queue.
                    let is_served = self.serving == Some(name) && !is_planted("served-is-ready");
                    if is_served || !self.is_waited_for(name) || self.is_ready.contains(&name) {
                        continue;
                    }
                    let value = keyspace.get(db, &key.to_bytes(), now_ms);
                    let Some(holds) = value.map(ValueRef::value_type) else { continue };
                    if self.next_waiter(name, holds, Ticket(0)).is_some() {
                        self.note_ready(name);
                    }
                }
                // The database was emptied, or swapped with another one.
                Touched::Db(db) => {
                    if keyspace.dbsize(db) > 0 && !is_planted("swapped-in-unready") {
                        self.note_all_ready(db);
                    }
                }
            }
        }
    }

    /// Adds a whole database to the queue of ready keys, unless nobody waits for any of its keys.
    fn note_all_ready(&mut self, db: DbIndex) {
        if self.next_in_db(db, 0).is_some() && !self.ready_dbs.contains(&(db, 0)) {
            self.ready.push_back(Ready::Db(db, 0));
            self.ready_dbs.push((db, 0));
            self.has_ready = true;
        }
    }

    /// The next key of a database that somebody waits for, from this hash on.
    fn next_in_db(&self, db: DbIndex, from: u64) -> Option<u64> {
        let from = ((db, from), 0, Ticket(0));
        let next = self.waiters.range(from..).next();
        next.filter(|((key, ..), _)| key.0 == db).map(|((key, ..), _)| key.1)
    }

    fn note_ready(&mut self, key: KeyName) {
        if self.serving.is_some() && is_planted("chain-unserved") {
            return;
        }
        if self.is_ready.insert(key) {
            self.ready.push_back(Ready::Key(key));
            self.has_ready = true;
        }
    }

    /// Whether serving the ready keys can lead to a write to this key. Each waiting client that
    /// moves an element to this key counts, even if no key that the client waits for is ready yet.
    /// The reason is that another client may first move an element to a key that this client waits
    /// for.
    pub(crate) fn may_be_moved_to(&self, key: KeyName) -> bool {
        self.has_ready && self.destinations.contains_key(&key) && !is_planted("moved-to-free")
    }

    /// Whether clients that wait for keys are still to be served.
    pub(crate) fn has_ready(&self) -> bool {
        self.has_ready
    }

    /// Whether clients that wait for keys of this database are still to be served.
    pub(crate) fn has_ready_in(&self, db: DbIndex) -> bool {
        self.serving.is_some_and(|key| key.0 == db)
            || self.ready_dbs.iter().any(|ready| ready.0 == db)
            || self.is_ready.range((db, 0)..=(db, u64::MAX)).next().is_some()
    }

    /// Whether a key is ready for clients that are still to be served.
    pub(crate) fn is_taken(&self, key: KeyName) -> bool {
        let is_in = |&(db, from): &(DbIndex, u64)| {
            db == key.0 && (key.1 >= from) != is_planted("looked-at-taken")
        };
        self.serving == Some(key)
            || self.is_ready.contains(&key)
            || self.ready_dbs.iter().any(is_in) && self.is_waited_for(key)
    }

    /// The key whose clients are to be served now.
    pub(crate) fn next_ready(&mut self) -> Option<KeyName> {
        while self.serving.is_none() {
            let next = if is_planted("ready-last-first") {
                self.ready.pop_back()
            } else {
                self.ready.pop_front()
            };
            let Some(next) = next else {
                self.has_ready = false;
                return None;
            };
            self.serving = match next {
                Ready::Key(key) => {
                    self.is_ready.remove(&key);
                    Some(key)
                }
                Ready::Db(db, from) => {
                    self.ready_dbs.retain(|ready| *ready != (db, from));
                    self.next_in_db(db, from).map(|hash| {
                        if let Some(from) = hash.checked_add(1) {
                            // The rest of the database goes to the end of the queue, so that other
                            // ready keys need not wait until the whole database was searched.
                            if is_planted("db-first") {
                                self.ready.push_front(Ready::Db(db, from));
                            } else {
                                self.ready.push_back(Ready::Db(db, from));
                            }
                            self.ready_dbs.push((db, from));
                        }
                        (db, hash)
                    })
                }
            };
        }
        self.serving
    }

    /// Called when the clients of the key that was being served have been served.
    pub(crate) fn served(&mut self) {
        self.serving = None;
        self.has_ready = !self.ready.is_empty();
    }

    /// Counts a client that is about to be served in this turn, or a key that turned out to have no
    /// client to serve. Returns `false` if this turn has counted more than `max`.
    pub(crate) fn may_serve(&mut self, turn: u64, max: usize) -> bool {
        if self.served.0 != turn {
            self.served = (turn, 0);
        }
        self.served.1 += 1;
        self.served.1 <= max
    }

    /// Checks that the counts are right. Panics otherwise.
    pub(crate) fn check(&self) {
        let keys: BTreeSet<KeyName> = self.waiters.keys().map(|(key, ..)| *key).collect();
        assert_eq!(keys.len(), self.key_count, "the count of keys is wrong");
        let is_used = |count: &usize| (1..=self.waiters.len()).contains(count);
        assert!(self.destinations.values().all(is_used), "a destination must have waiting clients");
        let mut dbs = self.ready_dbs.clone();
        let mut count = 0;
        for ready in &self.ready {
            match *ready {
                Ready::Key(_) => count += 1,
                Ready::Db(db, from) => {
                    let at = dbs.iter().position(|listed| *listed == (db, from));
                    dbs.swap_remove(at.expect("each database in the queue is in `ready_dbs`"));
                }
            }
        }
        assert_eq!(dbs, [], "a database in `ready_dbs` is not in the queue");
        assert_eq!(count, self.is_ready.len(), "each ready key must be in the queue exactly once");
        let has_ready = self.serving.is_some() || !self.ready.is_empty();
        assert_eq!(self.has_ready, has_ready, "`has_ready` is wrong");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slimio_keyspace::Config;
    use slimio_resp::OwnedRequest;

    use super::*;

    fn wanted(keyspace: &Keyspace, keys: &[&str]) -> WantedKeys {
        let request = OwnedRequest::from_args([&["BLPOP"], keys, &["0"]].concat());
        let block = Block {
            keys: (1, keys.len()),
            destination: None,
            wanted: ValueType::List,
            timeout: Duration::ZERO,
            nothing: slimio_keyspace::Nothing::NullArray,
        };
        WantedKeys::new(keyspace, request.args(), &block)
    }

    #[test]
    fn a_key_is_waited_for_until_its_last_client_leaves() {
        let keyspace = Keyspace::new(Config::default(), 1);
        let mut lines = BlockingKeys::default();
        let conn = |index| ConnId { index, generation: 0 };
        let (one, two) = (wanted(&keyspace, &["a", "b", "a"]), wanted(&keyspace, &["b"]));
        assert_eq!(
            one.index_of(keyspace.hash(b"a")),
            Some(1),
            "the first argument that names the key must count"
        );
        assert_eq!(one.index_of(keyspace.hash(b"c")), None);
        lines.enter(conn(1), DbIndex(0), &one, Ticket(7));
        lines.enter(conn(2), DbIndex(0), &two, Ticket(3));
        lines.enter(conn(3), DbIndex(1), &two, Ticket(4));
        assert_eq!(lines.key_count(), 3);
        let key = (DbIndex(0), keyspace.hash(b"b"));
        let next = |lines: &BlockingKeys, after| lines.next_waiter(key, ValueType::List, after);
        assert_eq!(
            next(&lines, Ticket(0)),
            Some((Ticket(3), conn(2))),
            "the earlier ticket must come first"
        );
        assert_eq!(next(&lines, Ticket(3)), Some((Ticket(7), conn(1))));
        assert_eq!(
            next(&lines, Ticket(7)),
            None,
            "a client of the other database must not be in this line"
        );
        lines.leave(DbIndex(0), &two, Ticket(3));
        lines.check();
        assert_eq!(lines.key_count(), 3);
        lines.leave(DbIndex(0), &one, Ticket(7));
        lines.leave(DbIndex(1), &two, Ticket(4));
        lines.check();
        assert!(lines.is_empty() && lines.key_count() == 0);
    }

    #[test]
    fn keys_are_ready_in_order_and_may_become_ready_again() {
        let mut lines = BlockingKeys::default();
        let [a, b] = [1, 2].map(|hash| (DbIndex(0), hash));
        for key in [b, a, b] {
            lines.note_ready(key);
        }
        assert_eq!(lines.next_ready(), Some(b));
        assert_eq!(lines.next_ready(), Some(b), "the key must be served until `served` is called");
        lines.note_ready(b);
        assert!(lines.is_taken(a) && lines.is_taken(b));
        assert!(lines.has_ready_in(DbIndex(0)) && !lines.has_ready_in(DbIndex(1)));
        for key in [a, b] {
            assert!(lines.has_ready_in(DbIndex(0)));
            lines.served();
            lines.check();
            assert!(lines.has_ready());
            assert_eq!(lines.next_ready(), Some(key));
        }
        lines.served();
        assert!(!lines.has_ready() && lines.next_ready().is_none() && !lines.is_taken(b));
        assert!(!lines.has_ready_in(DbIndex(0)));
    }

    /// While a database is being searched for ready keys, the keys that were not searched yet count
    /// as taken if somebody waits for them.
    #[test]
    fn a_database_is_taken_from_where_it_is_looked_at() {
        let keyspace = Keyspace::new(Config::default(), 1);
        let mut lines = BlockingKeys::default();
        let all = wanted(&keyspace, &["a", "b", "c"]);
        lines.enter(ConnId { index: 1, generation: 0 }, DbIndex(0), &all, Ticket(1));
        let mut hashes: Vec<u64> = all.hashes().collect();
        hashes.sort_unstable();
        lines.note_all_ready(DbIndex(0));
        let taken = |lines: &BlockingKeys| -> Vec<bool> {
            hashes.iter().map(|hash| lines.is_taken((DbIndex(0), *hash))).collect()
        };
        assert_eq!(taken(&lines), [true, true, true]);
        assert!(lines.has_ready_in(DbIndex(0)) && !lines.has_ready_in(DbIndex(1)));
        assert!(!lines.is_taken((DbIndex(1), hashes[2])), "a key of another database is taken");
        for left in [[true, true, true], [false, true, true], [false, false, true]] {
            assert!(lines.next_ready().is_some());
            assert_eq!(
                taken(&lines),
                left,
                "only the served key and the keys after it must be taken"
            );
            lines.served();
            lines.check();
        }
        assert!(lines.next_ready().is_none());
        assert_eq!(taken(&lines), [false, false, false]);
    }

    #[test]
    fn a_turn_serves_its_share() {
        let mut lines = BlockingKeys::default();
        for turn in [1, 2] {
            let served = (0..10).filter(|_| lines.may_serve(turn, 4)).count();
            assert_eq!(served, 4);
        }
    }
}
