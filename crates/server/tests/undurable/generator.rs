//! Sends requests for every row of the command table while a write of another client is not
//! durable.
//!
//! ```text
//!  writer:  a change, held ────────────────────────────────────────► durable
//!  reader:      a request, alone or in a transaction ─► reply now, or ──┘ then
//!  twin:        the same, without the change ─► its reply
//! ```
//!
//! A reply that leaves while the change is held must equal the twin's reply byte by byte. The twin
//! does not have the change, so an equal reply shows nothing of the change. This rule does not
//! apply to commands that show figures, which `exempt.rs` lists. Their replies must not wait, and
//! must not contain words that occur only in the change. No part of this test knows what a command
//! does.

use std::collections::BTreeMap;

use fastrand::Rng;
use slimio_testing::random::{pick, seed};

use super::exempt::is_exempt;
use super::rows::{self, Row};
use super::words::{KEYS, draw, is_improper};
use super::world::World;
use super::{read_text, send_all};
use crate::common::{BACK_ENDS, Client, until};

/// Number of requests per row and [`Way`], first for rows that work on the data set, then for
/// the other rows.
const DRAWS: [usize; 2] = [3, 1];
/// Limit of the number of further requests of a row. The test sends further requests if the command
/// has accepted no request yet, or if no reply has waited yet although at least one has to.
const DRAWS_MAX: usize = 200;
/// The table must have at least this number of rows. Otherwise, the table has shrunk by mistake.
const ROWS_MIN: usize = 130;

/// Rows whose replies show random elements of a key. Such a reply may differ from the twin's reply
/// although no client has changed the key.
const RANDOM: [&str; 3] = ["hrandfield", "spop", "srandmember"];

/// Placeholder for a word that occurs only in the change.
const SECRET: &str = "SECRET";

/// A step of a change, but not a request: lets a moment pass on both servers' clocks.
const PASS: &str = "a moment passes";
/// A step of a change, but not a request: waits until active expiry has deleted the expired keys.
const EXPIRE: &str = "keys expire";
/// Length of a moment, in milliseconds.
const MOMENT_MS: i64 = 10;

/// The steps of a change: the writer's requests, [`PASS`] and [`EXPIRE`].
type Change = &'static [&'static str];

const CHANGES: &[Change] = &[
    &["SET new SECRET"],
    &["SET SECRET SECRET"],
    &["SET str SECRET"],
    &["APPEND str SECRET"],
    &["INCRBY num 7"],
    &["MSET str SECRET num 8 new SECRET"],
    &["DEL str num hash ttl"],
    &["UNLINK hash str"],
    &["FLUSHDB"],
    &["FLUSHALL"],
    &["FLUSHALL", "SET still SECRET"],
    &["MULTI", "DEL str hash", "HSET str f1 SECRET", "SET hash SECRET", "EXEC"],
    &["SWAPDB 0 1"],
    &["RENAME str new", "RENAME hash str"],
    &["COPY hash new", "COPY str hash REPLACE"],
    &["MOVE hash 1", "MOVE num 1"],
    &["HSET hash f1 SECRET f4 SECRET", "HDEL hash f2"],
    &["SADD set SECRET", "SREM set 2"],
    &["SADD new SECRET 7", "SUNIONSTORE set set new", "SMOVE set new 1"],
    &["SPOP set 5"],
    &["RPUSH list SECRET", "LPOP list", "LSET list 0 SECRET"],
    &["LPUSH new SECRET", "LMOVE list new LEFT LEFT", "LTRIM list 1 1"],
    &["LREM list 0 2", "LINSERT list AFTER text SECRET"],
    &["LMPOP 1 list LEFT COUNT 9"],
    &["EXPIRE str 1000", "EXPIRE hash 1000", "PERSIST ttl"],
    &["GETEX str PXAT 4102444800000", "GETDEL num"],
    &["DEBUG POPULATE 3 new", "DEBUG POPULATE 1 SECRET"],
    // After this change, database 1 has keys of the same names. So these keys cannot be moved or
    // copied there.
    &["SET new SECRET", "SELECT 1", "MSET str SECRET num 6 hash SECRET ttl SECRET", "SELECT 0"],
    // Expired keys in three cases: nobody touches them, a request touches them, or active expiry
    // deletes them.
    &["PEXPIRE str 5", "PEXPIRE hash 5", PASS],
    &["PEXPIRE str 5", PASS, "EXISTS str gone"],
    &["PEXPIRE str 5", "DEBUG SET-ACTIVE-EXPIRE 1", PASS, EXPIRE],
    // The server evicts all keys that it may evict.
    &[
        "CONFIG SET maxmemory-policy allkeys-random maxmemory 1",
        "PING",
        "CONFIG SET maxmemory-policy noeviction maxmemory 0",
    ],
];

/// How a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Alone,
    Queued,
    /// In a transaction, with keys that were watched before the change.
    WatchedBefore,
    /// In a transaction, with keys that were watched after the change.
    WatchedAfter,
}

const WAYS: [Way; 4] = [Way::Alone, Way::Queued, Way::WatchedBefore, Way::WatchedAfter];

impl Way {
    fn is_watched(self) -> bool {
        matches!(self, Self::WatchedBefore | Self::WatchedAfter)
    }
}

/// One request to both servers, and its circumstances.
struct Case<'a> {
    row: &'a Row,
    way: Way,
    change: Change,
    request: Vec<String>,
    watched: Vec<&'static str>,
    db: &'static str,
    protocol: &'static str,
}

/// The results of a row's requests so far.
#[derive(Debug, Default)]
struct Seen {
    ways: BTreeMap<Way, usize>,
    /// Whether the command accepted a request.
    is_proper: bool,
    /// Whether a reply waited for the change.
    has_waited: bool,
}

/// A server whose log is held, and its twin, which gets no changes.
struct Pair {
    held: World,
    twin: World,
    writer: Client,
    /// Connections that reset both servers between two cases.
    setup: [Client; 2],
    cases: usize,
}

#[test]
fn no_row_of_the_command_table_shows_what_is_not_durable() {
    let mut rng = Rng::with_seed(seed());
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let Some(mut pair) = Pair::start(back_end, dir.path()) else { continue };
        walk(&mut pair, &mut rng);
        pair.held.stop();
        pair.twin.stop();
    }
}

/// Sends requests of every row in every [`Way`]. Each time, one of the changes is held.
fn walk(pair: &mut Pair, rng: &mut Rng) {
    let rows = rows::all(&mut pair.twin.observer);
    assert!(rows.len() >= ROWS_MIN, "the table has only {} rows", rows.len());
    let mut changes = CHANGES.iter().cycle();
    let mut next = rng.usize(..CHANGES.len());
    for row in &rows {
        let mut seen = Seen::default();
        for way in WAYS {
            for _ in 0..DRAWS[usize::from(!row.is_data())] {
                let &change = changes.nth(next).unwrap();
                // A random step, so that a row does not always meet the same change.
                next = rng.usize(..3);
                pair.check(&Case::draw(row, way, change, rng), &mut seen);
            }
        }
        let is_enough = |seen: &Seen| seen.is_proper && (seen.has_waited || !depends_on_keys(row));
        for _ in 0..DRAWS_MAX {
            if is_enough(&seen) {
                break;
            }
            let &change = changes.nth(rng.usize(..CHANGES.len())).unwrap();
            pair.check(&Case::draw(row, Way::Alone, change, rng), &mut seen);
        }
        assert!(is_enough(&seen), "{}: the random requests test too little: {seen:?}", row.name);
        assert_eq!(seen.ways.len(), WAYS.len(), "{}: {seen:?}", row.name);
    }
}

/// Commands that show data, although their rows do not say so.
const SHOW_DATA: [&str; 3] = ["debug|object", "debug|digest", "debug|digest-value"];

/// Whether at least one reply of a row must have waited for a change.
fn depends_on_keys(row: &Row) -> bool {
    row.is_data() || SHOW_DATA.contains(&row.name.as_str())
}

/// Whether a reply must leave although the log is held. The reply must leave if it shows no key and
/// its command waits neither for a snapshot nor for the log.
fn must_not_wait(case: &Case<'_>) -> bool {
    let waits = ["debug|populate", "save", "slimio|pin", "waitaof"];
    let name = case.row.name.as_str();
    !depends_on_keys(case.row) && !case.way.is_watched() && !waits.contains(&name)
}

impl<'a> Case<'a> {
    fn draw(row: &'a Row, way: Way, change: Change, rng: &mut Rng) -> Self {
        let watched = if way.is_watched() { 1 + rng.usize(..3) } else { 0 };
        Self {
            row,
            way,
            change,
            request: draw(row, rng),
            watched: (0..watched).map(|_| pick(rng, &KEYS)).collect(),
            db: pick(rng, &["0", "0", "0", "1"]),
            protocol: pick(rng, &["2", "3"]),
        }
    }

    fn watch(&self) -> Vec<&str> {
        [&["WATCH"], &self.watched[..]].concat()
    }

    /// The requests that the reader sends while the change is held.
    fn requests(&self) -> Vec<Vec<&str>> {
        let request: Vec<&str> = self.request.iter().map(String::as_str).collect();
        match self.way {
            Way::Alone => vec![request],
            Way::Queued | Way::WatchedBefore => vec![vec!["MULTI"], request, vec!["EXEC"]],
            Way::WatchedAfter => vec![self.watch(), vec!["MULTI"], request, vec!["EXEC"]],
        }
    }

    fn tell(&self) -> String {
        let (request, watched) = (self.request.join(" "), self.watched.join(" "));
        let Self { way, db, protocol, .. } = self;
        let change = self.change.join("; ");
        format!(
            "{request:?} {way:?} [{watched}], db {db}, RESP{protocol}, while {change:?} is held"
        )
    }
}

impl Pair {
    /// Starts two servers that keep every command in the slow log, and take no snapshot without a
    /// request.
    fn start(back_end: &str, dir: &std::path::Path) -> Option<Self> {
        let directives =
            "slowlog-log-slower-than 0\nhz 500\nauto-aof-rewrite-percentage 0\nsave 3600 1000000";
        let held = World::start(back_end, &dir.join("held"), directives)?;
        let twin = World::start(back_end, &dir.join("twin"), directives)?;
        let writer = held.connect("writer");
        // Both servers get the same connections, so that the connections have the same ids.
        drop(twin.connect("writer"));
        let setup = [held.connect("setup"), twin.connect("setup")];
        Some(Self { held, twin, writer, setup, cases: 0 })
    }

    /// Resets both servers to the data set with which each case begins.
    fn reset(&mut self) {
        let lines = [
            "CLIENT UNPAUSE",
            "CONFIG SET timeout 0 hz 500",
            "DEBUG SET-ACTIVE-EXPIRE 0",
            "SELECT 1",
            "FLUSHALL",
            "SET str other",
            "SELECT 0",
            "MSET str text num 5 still untouched",
            "HSET hash f1 v1 f2 v2 f3 v3",
            "SADD set 1 2 7 text value",
            "RPUSH list 1 2 text 2 value",
            "SET ttl text PX 100000000",
            "SET gone text PX 50",
        ];
        let requests: Vec<Vec<&str>> = lines.map(|line| line.split(' ').collect()).into();
        let requests: Vec<&[&str]> = requests.iter().map(Vec::as_slice).collect();
        // Each case happens within one second, because the last use of a key is counted in seconds.
        self.held.pass_to_second();
        self.twin.pass_to_second();
        for setup in &mut self.setup {
            send_all(setup, &requests);
        }
        for setup in &mut self.setup {
            for line in lines {
                let reply = read_text(setup);
                assert!(!reply.starts_with('-'), "{line}: {reply}");
            }
        }
        self.pass_ms(100);
    }

    fn pass_ms(&self, ms: i64) {
        self.held.pass_ms(ms);
        self.twin.pass_ms(ms);
    }

    /// Connects to both servers, in the case's database and protocol. Returns the connections and
    /// the id that they have in common.
    fn readers(&self, case: &Case<'_>) -> ([Client; 2], String) {
        let mut requests = vec![vec!["HELLO", case.protocol], vec!["SELECT", case.db]];
        if case.way == Way::WatchedBefore {
            requests.push(case.watch());
        }
        requests.push(vec!["CLIENT", "ID"]);
        let requests: Vec<&[&str]> = requests.iter().map(Vec::as_slice).collect();
        let mut readers = [&self.held, &self.twin].map(World::connect_unnamed);
        let ids = readers.each_mut().map(|reader| {
            send_all(reader, &requests);
            requests.iter().map(|_| read_text(reader)).last().unwrap()
        });
        assert_eq!(ids[0], ids[1], "the servers have had different numbers of connections");
        (readers, ids[0].trim_matches([':', '\r', '\n']).to_owned())
    }

    /// Lets the writer make the change. Returns how many replies the writer must get.
    fn make(&mut self, change: Change) -> usize {
        let (secret, mut count) = (self.secret(), 0);
        let expires = change.contains(&EXPIRE);
        let expired = if expires { self.held.expired_keys() } else { 0 };
        for (step, &line) in change.iter().enumerate() {
            match line {
                PASS => self.pass_ms(MOMENT_MS),
                EXPIRE => {
                    let wanted = expired + 2;
                    until("two keys did not expire", || self.held.expired_keys() == wanted);
                }
                _ => {
                    let line = line.replace(SECRET, &secret);
                    // Once the writer has this name, its earlier requests have run.
                    let name = format!("writer-{}-{step}", self.cases);
                    let request: Vec<&str> = line.split(' ').collect();
                    send_all(&mut self.writer, &[&request, &["CLIENT", "SETNAME", &name]]);
                    count += 2;
                    if change.get(step + 1).is_none_or(|next| *next == PASS) {
                        self.held.wait_for_name(&name);
                    }
                }
            }
        }
        count
    }

    /// A word that occurs only in the change of the current case.
    fn secret(&self) -> String {
        format!("zq{}x", self.cases)
    }

    /// Sends the requests to both servers, and judges the replies.
    fn check(&mut self, case: &Case<'_>, seen: &mut Seen) {
        self.cases += 1;
        self.reset();
        let ([mut reader, mut twin], id) = self.readers(case);
        self.held.shut();
        let writes = self.make(case.change);
        if case.way == Way::WatchedBefore {
            let line = self.held.client_line(&format!("id={id} ")).unwrap();
            assert!(!line.contains(" flags=d "), "{}: {line}", case.tell());
        }
        let requests = case.requests();
        let requests: Vec<&[&str]> = requests.iter().map(Vec::as_slice).collect();
        send_all(&mut twin, &requests);
        let twins: Vec<Vec<u8>> = requests.iter().map_while(|_| twin.try_read()).collect();
        send_all(&mut reader, &requests);
        let last = requests.last().unwrap()[0].to_lowercase();
        let last = if case.way == Way::Alone { &case.row.called } else { &last };
        self.held.wait_for_command(&format!("id={id} "), last, &case.tell());

        let mut left = Vec::new();
        while left.len() < twins.len() && (must_not_wait(case) || !reader.is_silent()) {
            let Some(reply) = reader.try_read() else { break };
            left.push(reply);
        }
        for (index, (reply, twin)) in left.iter().zip(&twins).enumerate() {
            self.judge(case, index, reply, twin);
        }
        assert!(
            left.len() == twins.len() || !must_not_wait(case),
            "{}: a reply waits although it shows no key",
            case.tell()
        );

        self.held.open();
        for _ in 0..writes {
            self.writer.read();
        }
        for _ in left.len()..twins.len() {
            assert!(reader.try_read().is_some(), "{}: no reply came", case.tell());
        }
        *seen.ways.entry(case.way).or_default() += 1;
        seen.has_waited |= left.len() < twins.len() && !case.way.is_watched();
        seen.is_proper |= case.way == Way::Alone && !is_improper(&twins[0]);
    }

    /// Fails if a reply that has left shows anything of the change.
    fn judge(&self, case: &Case<'_>, index: usize, reply: &[u8], twin: &[u8]) {
        let row = case.row.name.as_str();
        let (shown, expected) = (to_compare(reply), to_compare(twin));
        let is_same = if !is_exempt(row) && !RANDOM.contains(&row) {
            shown == expected
        } else if case.way == Way::Alone {
            // The reply may be anything that does not come from the change.
            true
        } else {
            // The first lines of both replies must be equal, because the first line is not a
            // figure: it shows whether the transaction has run.
            shown.lines().next() == expected.lines().next()
        };
        assert!(
            is_same && !shown.contains(&self.secret()),
            "{}: reply {index} has left and is {shown:?}; without the change it is {expected:?}",
            case.tell()
        );
    }
}

/// A reply as text, without the address in memory that `DEBUG OBJECT` shows.
fn to_compare(reply: &[u8]) -> String {
    let text = String::from_utf8_lossy(reply);
    let Some((before, behind)) = text.split_once("Value at:") else { return text.into_owned() };
    let behind = behind.split_once(' ').map_or("", |(_, behind)| behind);
    format!("{before}{behind}")
}
