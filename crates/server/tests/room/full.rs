//! A full log, on a disk without space. Whatever fills the log, no request hangs, and `FLUSHALL`
//! makes room again.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use slimio_server::WallClock;
use slimio_sim::{Limits, SimConfig, SimDisk};
use slimio_testing::random::{Generator, seed};

use crate::common::{Client, Running, config, encode, until};
use crate::crashes::{Kind, SimMedia, launch_on};
use crate::info;

/// The time at which the clock starts, in milliseconds since 1970.
const FIRST_MS: i64 = 1_700_000_000_000;
/// Milliseconds until a key expires.
const LIFE_MS: i64 = 1000;
/// Bytes of a key's name.
const NAME_SIZE: usize = 600;
/// Number of transactions that a client sends at once. Each transaction has a `FLUSHALL`. Together,
/// the transactions need more room than the log keeps free for one `FLUSHALL`.
const TRANSACTIONS: usize = 5000;
/// Number of requests that a client sends at once.
const AT_ONCE: usize = 100;

const POLICIES: [&str; 2] = ["always", "everysec"];
const ONE_IMAGE: Limits = Limits { exhaustive_max: 0, random_count: 1, torn: false };

/// A server on a full disk. Its log has two segments, and gets no more.
pub(super) struct Full {
    pub(super) server: Running,
    pub(super) client: Client,
    pub(super) disk: SimDisk,
    clock: Arc<AtomicI64>,
    policy: &'static str,
}

impl Full {
    /// A new server, which deletes an expired key only when a request touches the key.
    pub(super) fn new(policy: &'static str) -> Self {
        let media = SimMedia::new(SimConfig::default(), Kind::Files);
        let mut new = Self::start(media, policy, Arc::new(AtomicI64::new(FIRST_MS)));
        let capacity = |client: &mut Client| info(client, "log_capacity_bytes");
        until("no segment is prepared", || capacity(&mut new.client) == (2 << 20).to_string());
        new.disk.faults(|faults| faults.full = true);
        new
    }

    fn start(media: SimMedia, policy: &'static str, clock: Arc<AtomicI64>) -> Self {
        let disk = media.disk.clone();
        let mut config = config(
            "plain",
            Path::new("simulated"),
            &format!("appendfsync {policy}\nlog-buffers 4\nenable-debug-command yes\nhz 100"),
        );
        for (name, value) in [("save", ""), ("log-buffer-size", "16kb")] {
            config.set(name, value).unwrap();
        }
        let exists = disk.space_count() > 0;
        let given = WallClock::Given(Arc::clone(&clock));
        let server = launch_on(media, exists, config, given).serving();
        let mut client = server.connect();
        assert_eq!(client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]), "+OK\r\n");
        Self { server, client, disk, clock, policy }
    }

    /// Sets keys until the log has no room for more. In each `SET`, `words` follow the name.
    /// Returns the names.
    pub(super) fn fill(&mut self, words: &[&str]) -> Vec<String> {
        let mut names = Vec::new();
        loop {
            let name = format!("{:0>NAME_SIZE$}", names.len());
            let reply = self.client.call(&[&["SET", &name][..], words].concat());
            if reply != "+OK\r\n" {
                assert!(reply.starts_with("-MISCONF The log is full"), "{reply}");
                return names;
            }
            names.push(name);
        }
    }

    /// For each name, sends `words` and the name as a request. Returns the replies.
    fn each(&mut self, names: &[String], words: &[&str]) -> Vec<String> {
        let mut replies = Vec::new();
        for names in names.chunks(AT_ONCE) {
            for name in names {
                self.client.send(&[words, &[name]].concat());
            }
            let read = |_: &String| String::from_utf8_lossy(&self.client.read()).into_owned();
            replies.extend(names.iter().map(read));
        }
        replies
    }

    /// Lets enough time pass for keys to expire.
    fn pass(&self) {
        self.clock.fetch_add(LIFE_MS + 1, Ordering::SeqCst);
    }

    /// Ends the server as SIGTERM does. The next start must find the same keys.
    fn restarted(mut self) -> Self {
        let keys = |client: &mut Client| client.call(&["DBSIZE"]);
        // The figures are read before `DBSIZE`, because expired keys may be deleted at any moment.
        let figures = self.client.call(&["INFO", "keyspace"]);
        let expires = figures.split("expires=").skip(1).any(|count| !count.starts_with('0'));
        let before = keys(&mut self.client);
        let Self { server, disk, clock, policy, .. } = self;
        server.abandon().unwrap();
        let image = disk.crash_now().process_images(&ONE_IMAGE).remove(0);
        let media = SimMedia::from_image(SimConfig::default(), Kind::Files, &image);
        media.disk.faults(|faults| faults.full = true);
        let mut next = Self::start(media, policy, clock);
        let now = keys(&mut next.client);
        // The new server may have deleted expired keys already.
        assert!(now == before || expires, "after the restart, DBSIZE is {now}, not {before}");
        next
    }

    /// Checks that nothing hangs: INFO is answered, a rewrite ends, and the server ends.
    fn check(mut self) -> Self {
        assert_eq!(info(&mut self.client, "log_latched"), "0");
        let reply = self.client.call(&["BGREWRITEAOF"]);
        // If the server has begun a rewrite by itself, the reply is an error with the same words.
        assert!(reply.contains("Background append only file rewriting"), "{reply}");
        let client = &mut self.client;
        until("the rewrite does not end", || {
            info(client, "aof_rewrite_in_progress") == "0"
                && info(client, "aof_rewrite_scheduled") == "0"
        });
        self.restarted()
    }

    /// Checks that emptying the data set gives the room back.
    fn leave(mut self) {
        assert_eq!(self.client.call(&["FLUSHALL"]), "+OK\r\n");
        assert_eq!(self.client.call(&["SET", "k", "v"]), "+OK\r\n");
        self = self.restarted();
        assert_eq!(self.client.call(&["GET", "k"]), "$1\r\nv\r\n");
        self.server.stop();
    }
}

/// Lets `fill` fill a log of two segments, and checks that `FLUSHALL` still makes room.
pub(super) fn always_a_way_out(fill: impl Fn(&mut Full)) {
    for policy in POLICIES {
        let mut full = Full::new(policy);
        fill(&mut full);
        full.check().leave();
    }
}

/// Fills a log with keys, lets them expire, and reads them all.
fn read_expired(full: &mut Full) {
    let names = full.fill(&["v", "PX", &LIFE_MS.to_string()]);
    full.pass();
    let replies = full.each(&names, &["GET"]);
    assert!(replies.iter().all(|reply| reply == "$-1\r\n"));
}

#[test]
fn figures_are_told_when_the_log_is_full() {
    let mut full = Full::new("always");
    read_expired(&mut full);
    assert!(full.client.call(&["INFO"]).starts_with('$'));
    assert!(full.client.call(&["INFO", "slimio"]).contains("log_room:"));
    full.server.stop();
}

#[test]
fn an_end_does_not_wait_for_room() {
    for policy in ["always", "everysec", "no"] {
        for is_asked_by_a_client in [false, true] {
            let mut full = Full::new(policy);
            read_expired(&mut full);
            if is_asked_by_a_client {
                full.server.stop();
            } else {
                full.server.abandon().unwrap();
            }
        }
    }
}

#[test]
fn a_rewrite_ends_though_the_log_is_full() {
    for policy in POLICIES {
        let mut full = Full::new(policy);
        read_expired(&mut full);
        // Now the disk has space for a snapshot.
        full.disk.faults(|faults| faults.full = false);
        let is_done = |full: &mut Full| {
            let info = full.client.call(&["INFO", "persistence"]);
            let lines = ["aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0"];
            lines.iter().all(|line| info.contains(line))
        };
        until("an earlier rewrite does not end", || is_done(&mut full));
        let reply = full.client.call(&["BGREWRITEAOF"]);
        assert!(reply.starts_with("+Background append only file rewriting"), "{reply}");
        until("the rewrite does not end", || is_done(&mut full));
        assert!(full.client.call(&["INFO", "persistence"]).contains("last_bgrewrite_status:ok"));
        full.server.stop();
    }
}

#[test]
fn keys_that_have_expired_are_read_in_a_full_log() {
    always_a_way_out(|full| {
        read_expired(full);
        assert_ne!(full.client.call(&["DBSIZE"]), ":0\r\n", "the log had room for every deletion");
        assert_eq!(full.client.call(&["RANDOMKEY"]), "$-1\r\n");
    });
}

#[test]
fn a_transaction_reads_keys_that_have_expired_in_a_full_log() {
    always_a_way_out(|full| {
        let names = full.fill(&["v", "PX", &LIFE_MS.to_string()]);
        full.pass();
        assert_eq!(full.client.call(&["MULTI"]), "+OK\r\n");
        full.each(&names, &["EXISTS"]);
        let reply = full.client.call(&["EXEC"]);
        assert_eq!(reply, format!("*{}\r\n{}", names.len(), ":0\r\n".repeat(names.len())));
        assert_ne!(full.client.call(&["DBSIZE"]), ":0\r\n", "the log had room for every deletion");
    });
}

/// A transaction also deletes the expired keys that it reads. These deletions must not take the
/// room that the transaction's writes have asked for.
#[test]
fn a_transaction_writes_and_reads_keys_that_have_expired() {
    always_a_way_out(|full| {
        let names: Vec<_> = (0..24).map(|number| format!("{number:0>32000}")).collect();
        for name in &names {
            let set = ["SET", name, "v", "PX", &LIFE_MS.to_string()];
            assert_eq!(full.client.call(&set), "+OK\r\n");
        }
        full.pass();
        assert_eq!(full.client.call(&["MULTI"]), "+OK\r\n");
        assert_eq!(full.client.call(&["SET", "large", &"x".repeat(720_000)]), "+QUEUED\r\n");
        full.each(&names, &["EXISTS"]);
        let reply = full.client.call(&["EXEC"]);
        assert_eq!(reply, format!("*25\r\n+OK\r\n{}", ":0\r\n".repeat(names.len())));
        assert_ne!(full.client.call(&["DBSIZE"]), ":1\r\n", "the log had room for every deletion");
    });
}

#[test]
fn a_search_among_keys_that_have_expired_stops_where_the_log_is_full() {
    always_a_way_out(|full| {
        full.fill(&["v", "PX", &LIFE_MS.to_string()]);
        full.pass();
        assert_eq!(full.client.call(&["RANDOMKEY"]), "$-1\r\n");
        assert_ne!(full.client.call(&["DBSIZE"]), ":0\r\n", "the log had room for every deletion");
    });
}

#[test]
fn what_expires_by_itself_stops_where_the_log_is_full() {
    always_a_way_out(|full| {
        full.fill(&["v", "PX", &LIFE_MS.to_string()]);
        full.pass();
        assert_eq!(full.client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "1"]), "+OK\r\n");
        let mut before = String::new();
        until("deletions do not stop", || {
            super::pass(&mut full.client, 100.0);
            let now = full.client.call(&["DBSIZE"]);
            std::mem::replace(&mut before, now) == before
        });
        assert_eq!(full.client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]), "+OK\r\n");
        assert_ne!(before, ":0\r\n", "the log had room for every deletion");
    });
}

#[test]
fn a_transaction_asks_for_what_it_appends() {
    always_a_way_out(|full| {
        assert_eq!(full.client.call(&["SET", "k", "v"]), "+OK\r\n");
        // The log has room for the length of the requests, but the records are three times as
        // long.
        let count = 110_000;
        let mut requests = encode(&[b"MULTI"]);
        (0..count).for_each(|_| requests.extend(encode(&[b"EXPIRE", b"k", b"9"])));
        requests.extend(encode(&[b"EXEC"]));
        full.client.send_bytes(&requests);
        assert_eq!(full.client.read(), b"+OK\r\n");
        (0..count).for_each(|_| assert_eq!(full.client.read(), b"+QUEUED\r\n"));
        let reply = String::from_utf8(full.client.read()).unwrap();
        let refused = "-EXECABORT Transaction discarded because of: MISCONF The log is full";
        assert!(reply.starts_with(refused), "{}", &reply[..100]);
        assert_eq!(full.client.call(&["TTL", "k"]), ":-1\r\n");
    });
}

#[test]
fn deletes_leave_room_for_a_flush() {
    always_a_way_out(|full| {
        let names = full.fill(&["v"]);
        let replies = full.each(&names, &["DEL"]);
        assert_eq!(replies[0], ":1\r\n");
        let last = replies.last().unwrap();
        assert!(last.starts_with("-MISCONF The log is full"), "{last}");
        // The server runs each `FLUSHDB`, even when the data set is already empty.
        for _ in 0..1000 {
            assert_eq!(full.client.call(&["FLUSHDB"]), "+OK\r\n");
        }
    });
}

#[test]
fn flushes_of_one_database_leave_room_for_one_of_all() {
    always_a_way_out(|full| {
        assert_eq!(full.client.call(&["SELECT", "1"]), "+OK\r\n");
        assert_eq!(full.client.call(&["SET", "stays", "v"]), "+OK\r\n");
        assert_eq!(full.client.call(&["SELECT", "0"]), "+OK\r\n");
        let names = full.fill(&["v"]);
        full.each(&names, &["DEL"]);
        let is_refused = |full: &mut Full| {
            let reply = full.client.call(&["FLUSHDB"]);
            reply.starts_with("-MISCONF The log is full")
        };
        assert!(
            (0..1000).any(|_| is_refused(full)),
            "flushes used the room that is kept for FLUSHALL"
        );
        assert_eq!(full.client.call(&["FLUSHALL"]), "+OK\r\n");
    });
}

/// Commands that several clients send at random. Reads delete keys that have expired.
const COMMANDS: &str = "\
    append copy del expire expire incrbyfloat mget mget mget mget randomkey rename scan set set set set \
    set set set";

/// Random commands on names of all sizes. All clients use the same names.
fn generator(seed: u64) -> Generator {
    let sizes = [3, 30, 600, 4000];
    let names = |number: usize| sizes.map(|size| format!("{number:0>size$}").into_bytes());
    let keys = (0..300).flat_map(names).collect();
    Generator { names: COMMANDS.split(' ').collect(), keys, ..Generator::new(seed, 400) }
}

/// A single command, or all commands of a transaction.
fn random_requests(generator: &mut Generator) -> Vec<Vec<Vec<u8>>> {
    if generator.rng.usize(..8) > 0 {
        return vec![generator.command()];
    }
    let count = [3, 30, 300][generator.rng.usize(..3)];
    let commands = match generator.rng.usize(..2) {
        0 => vec![generator.command(); count],
        _ => (0..count).map(|_| generator.command()).collect(),
    };
    [vec![vec![b"MULTI".to_vec()]], commands, vec![vec![b"EXEC".to_vec()]]].concat()
}

#[test]
fn several_clients_fill_a_log_and_nobody_hangs() {
    // The same seed gives the same requests, but the threads may run in another order.
    let seed = seed();
    for policy in ["always", "everysec", "no"] {
        let mut full = Full::new(policy);
        assert_eq!(full.client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "1"]), "+OK\r\n");
        let refused: u32 = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..3)
                .map(|number| {
                    let (mut client, clock) = (full.server.connect(), Arc::clone(&full.clock));
                    let mut generator = generator(seed.wrapping_add(number));
                    scope.spawn(move || {
                        let mut refused = 0;
                        for _ in 0..150 {
                            generator.now_ms = clock.load(Ordering::SeqCst);
                            let requests: Vec<_> =
                                (0..10).flat_map(|_| random_requests(&mut generator)).collect();
                            for words in &requests {
                                let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                                client.send_bytes(&encode(&words));
                            }
                            for _ in &requests {
                                let reply = client.read();
                                let text = String::from_utf8_lossy(&reply);
                                refused += u32::from(text.contains("MISCONF The log is full"));
                            }
                            clock.fetch_add(20, Ordering::SeqCst);
                            if generator.rng.usize(..60) == 0 {
                                assert_eq!(client.call(&["FLUSHALL"]), "+OK\r\n");
                            }
                        }
                        refused
                    })
                })
                .collect();
            clients.into_iter().map(|client| client.join().unwrap()).sum()
        });
        assert!(refused > 0, "the log was never full");
        full.check().leave();
    }
}

/// Outside a transaction, the server need not log a `FLUSHALL` if the log already ends with an
/// empty data set. In a transaction, the server logs each `FLUSHALL`, which needs room like any
/// other write.
#[test]
fn transactions_of_flushes_ask_for_room() {
    for policy in POLICIES {
        let mut full = Full::new(policy);
        let names = full.fill(&["v"]);
        full.each(&names, &["DEL"]);
        let mut requests = encode(&[b"FLUSHALL"]);
        for _ in 0..TRANSACTIONS {
            for words in ["MULTI", "FLUSHALL", "EXEC"] {
                requests.extend(encode(&[words.as_bytes()]));
            }
        }
        full.client.send_bytes(&requests);
        assert_eq!(full.client.read(), b"+OK\r\n");
        for _ in 0..TRANSACTIONS {
            assert_eq!(full.client.read(), b"+OK\r\n");
            assert_eq!(full.client.read(), b"+QUEUED\r\n");
            let reply = String::from_utf8_lossy(&full.client.read()).into_owned();
            let is_refused = reply.contains("MISCONF The log is full");
            assert!(reply == "*1\r\n+OK\r\n" || is_refused, "{reply}");
        }
        full.check().leave();
    }
}

/// A `FLUSHALL` must remove the keys that were set while the log was off, even if the last record
/// before that time was a `FLUSHALL`.
#[test]
fn a_flush_counts_behind_a_log_that_was_off() {
    let media = SimMedia::new(SimConfig::default(), Kind::Files);
    let mut full = Full::start(media, "always", Arc::new(AtomicI64::new(FIRST_MS)));
    let client = &mut full.client;
    client.call(&["SET", "a", "b"]);
    client.call(&["FLUSHALL"]);
    assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "no"]), "+OK\r\n");
    assert_eq!(client.call(&["SET", "k", "v"]), "+OK\r\n");
    assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "yes"]), "+OK\r\n");
    until("the log is not on", || info(client, "log_state") == "on");
    assert_eq!(client.call(&["FLUSHALL"]), "+OK\r\n");
    let next = full.restarted();
    next.server.stop();
}

/// A transaction that empties the data set must give the room back, like a `FLUSHALL` without a
/// transaction.
#[test]
fn a_transaction_that_flushes_is_a_way_out() {
    for policy in POLICIES {
        let mut full = Full::new(policy);
        full.fill(&["v"]);
        full.client.call(&["MULTI"]);
        full.client.call(&["FLUSHALL"]);
        assert_eq!(full.client.call(&["EXEC"]), "*1\r\n+OK\r\n");
        assert_eq!(full.client.call(&["SET", "k", "v"]), "+OK\r\n");
        full.check().leave();
    }
}

/// If a snapshot fails for lack of room, it must not block commands that make room.
#[test]
fn what_frees_goes_on_where_a_snapshot_has_no_room() {
    let mut full = Full::new("everysec");
    let names = full.fill(&["v"]);
    let client = &mut full.client;
    assert_eq!(client.call(&["CONFIG", "SET", "save", "3600 1"]), "+OK\r\n");
    let saved = client.call(&["SAVE"]);
    assert!(saved.starts_with("-ERR"), "{saved}");
    let refused = |reply: String| reply.contains("MISCONF Redis is configured to save");
    assert!(refused(client.call(&["SET", "k", "v"])));
    assert!(refused(client.call(&["PING"])));
    assert_eq!(client.call(&["DEL", &names[0]]), ":1\r\n");
    // The server decides only at `EXEC` whether it refuses a transaction.
    client.call(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    let mut other = full.server.connect();
    for (client, words) in
        [(&mut *client, &["DEL", &names[1]][..]), (&mut other, &["SETNX", "k", "v"])]
    {
        assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
        assert_eq!(client.call(words), "+QUEUED\r\n");
    }
    full.server.connect().call(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "yes"]);
    assert_eq!(client.call(&["EXEC"]), "*1\r\n:1\r\n");
    assert!(refused(other.call(&["EXEC"])));
    assert_eq!(client.call(&["FLUSHALL"]), "+OK\r\n");
    assert_eq!(client.call(&["CONFIG", "SET", "save", ""]), "+OK\r\n");
    full.leave();
}
