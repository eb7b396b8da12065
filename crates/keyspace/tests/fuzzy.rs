//! A fuzzy capture takes all entries while commands go on, and may leave out entries that were
//! deleted or overwritten before they were taken. The taken entries, and the log since the capture
//! began, must together give the data set.

mod common;
#[path = "common/contents.rs"]
mod contents;
#[path = "common/entries.rs"]
mod entries;

use common::Driver;
use entries::contents;
use slimio_keyspace::{
    CaptureBudget, CaptureKind, CaptureState, Captured, Chunk, ChunkEncoder, ChunkOptions, Config,
    DbIndex, Effects, EvictionConfig, EvictionPolicy, Keyspace, Loader, Payload, decode_chunk,
    no_args,
};
use slimio_testing::random::{Generator, seed};

/// Count of rounds. Each round has one capture.
const ROUNDS: usize = 6_000;

/// Count of databases that the random commands use.
const DBS: usize = 3;

/// Records of the log: for each, the database in which it begins, and its payload.
type Log = Vec<(DbIndex, Vec<u8>)>;

/// A server without a disk.
struct Server {
    driver: Driver,
    generator: Generator,
    log: Log,
}

impl Server {
    fn new(seed: u64) -> Self {
        let mut driver = Driver::new(seed);
        driver.now_ms = 1_700_000_000_000;
        let policy = EvictionPolicy::AllKeysRandom;
        driver.keyspace.set_eviction(EvictionConfig { policy, ..EvictionConfig::default() });
        let generator = Generator::new(seed, 3_000);
        Self { driver, generator, log: Vec::new() }
    }

    fn run<T: AsRef<[u8]>>(&mut self, args: &[T]) {
        let db = self.driver.db;
        self.driver.run(args);
        self.log.push((db, self.driver.payload.bytes().to_vec()));
    }

    /// Runs a few random commands, transactions, steps of active expiry, and evictions.
    fn commands(&mut self, count: usize) {
        for _ in 0..count {
            self.driver.now_ms += self.generator.rng.usize(..20) as i64;
            self.generator.now_ms = self.driver.now_ms;
            if self.generator.rng.usize(..20) == 0 {
                self.driver.db = DbIndex(self.generator.rng.usize(..DBS) as u16);
            }
            if self.generator.rng.usize(..20) == 0 {
                self.transaction();
            } else {
                let command = self.generator.command();
                self.run(&command);
            }
            let mut effects = Effects::new();
            if self.generator.rng.usize(..50) == 0 {
                let (db, now_ms) = (self.driver.db, self.driver.now_ms);
                self.driver.keyspace.expire_step(db, now_ms, 1000, &mut effects);
            }
            if self.generator.rng.usize(..50) == 0 {
                self.driver.keyspace.evict(self.driver.now_ms, &mut effects);
            }
            let mut payload = Payload::default();
            payload.begin(self.driver.db);
            payload.add(&effects, no_args());
            self.log.push((self.driver.db, payload.bytes().to_vec()));
            self.driver.keyspace.take_garbage();
            self.driver.check();
        }
    }

    fn transaction(&mut self) {
        let db = self.driver.db;
        self.driver.payload.begin(db);
        self.driver.in_transaction = true;
        for _ in 0..self.generator.rng.usize(..5) {
            let command = self.generator.command();
            self.driver.run(&command);
            self.driver.db = DbIndex(self.generator.rng.usize(..DBS) as u16);
        }
        self.driver.in_transaction = false;
        self.log.push((db, self.driver.payload.bytes().to_vec()));
    }
}

/// Encodes captured entries as chunks.
fn encode(batches: &[Captured], keyspace: &Keyspace, now_ms: i64) -> Vec<Vec<u8>> {
    let options = ChunkOptions { compresses: false, eviction: *keyspace.eviction(), now_ms };
    let (mut encoder, mut chunks) = (ChunkEncoder::new(options), Vec::new());
    let mut emit = |chunk: Chunk<'_>| -> Result<(), ()> {
        chunks.push(chunk.payload.to_vec());
        Ok(())
    };
    for batch in batches {
        encoder.encode(batch, &mut emit).expect("`emit` never fails");
    }
    encoder.finish(&mut emit).expect("`emit` never fails");
    chunks
}

/// Loads chunks as a restart does.
fn load(chunks: &[Vec<u8>], now_ms: i64) -> Keyspace {
    let mut keyspace = Keyspace::new(Config::default(), 0xfeed);
    let context = keyspace.decode_context(now_ms);
    let mut loader = Loader::new();
    for chunk in chunks {
        let decoded = decode_chunk(chunk, &context).expect("a chunk that was just encoded");
        keyspace
            .load(loader.join(decoded, &context).expect("the parts come in order"))
            .expect("each key occurs once");
    }
    loader.finish().expect("all values are complete");
    keyspace
}

fn replay(keyspace: &mut Keyspace, log: &Log) {
    for (db, payload) in log {
        keyspace.apply(*db, payload).expect("a logged command can be replayed");
    }
}

/// Runs random commands of all kinds before, during and after captures. The captured entries, with
/// the log of the capture replayed on top of them, must equal the data set.
#[test]
fn with_the_log_it_is_the_data_set() {
    let seed = seed();
    let mut server = Server::new(seed);
    let (mut complete, mut left_out, mut entries) = (0, 0, 0);
    for round in 0..ROUNDS {
        let count = server.generator.rng.usize(..30);
        server.commands(count);
        server.driver.keyspace.begin_capture(CaptureKind::Fuzzy);
        let before = contents(&server.driver.keyspace);
        server.log.clear();
        let mut batches = Vec::new();
        let pace = 1 + server.generator.rng.usize(..20);
        while server.driver.keyspace.capture_state() == CaptureState::Running {
            let count = server.generator.rng.usize(..pace);
            server.commands(count);
            let budget = 1 + server.generator.rng.usize(..10);
            let budget = CaptureBudget { size: 100_000, entries: budget };
            server.driver.keyspace.capture_step(budget, &mut batches);
            server.driver.check();
        }
        let state = server.driver.keyspace.capture_state();
        let stats = server.driver.keyspace.capture_stats();
        server.driver.keyspace.end_capture();
        if state != CaptureState::Complete {
            continue;
        }
        assert_eq!(stats.taken, stats.total);
        let count = server.generator.rng.usize(..5);
        server.commands(count);
        let now_ms = server.driver.now_ms;
        let mut again = load(&encode(&batches, &server.driver.keyspace, now_ms), now_ms);
        let alone = contents(&again);
        assert!(
            alone.iter().all(|entry| before.contains(entry)),
            "round {round}: a captured entry is newer than the capture's beginning"
        );
        replay(&mut again, &server.log);
        let (ours, theirs) = (contents(&server.driver.keyspace), contents(&again));
        assert!(ours == theirs, "round {round}: {ours:?}\n{theirs:?}");
        complete += 1;
        entries += before.len();
        left_out += before.len() - alone.len();
    }
    eprintln!("{complete} captures complete, {left_out} of {entries} entries left out");
    assert!(complete > ROUNDS / 2 && left_out > entries / 50);
}

/// Runs the commands `before`, begins a fuzzy capture, runs the commands `behind`, and only then
/// takes the entries. Returns whether replaying `behind` on top of the entries gives the data set.
fn is_done_again(before: &[&[&str]], behind: &[&[&str]]) -> bool {
    let mut server = Server::new(7);
    for command in before {
        server.run(command);
    }
    server.driver.keyspace.begin_capture(CaptureKind::Fuzzy);
    server.log.clear();
    for command in behind {
        server.run(command);
    }
    let mut batches = Vec::new();
    let budget = CaptureBudget { size: 1 << 20, entries: 1000 };
    while server.driver.keyspace.capture_state() == CaptureState::Running {
        server.driver.keyspace.capture_step(budget, &mut batches);
    }
    let now_ms = server.driver.now_ms;
    let mut again = load(&encode(&batches, &server.driver.keyspace, now_ms), now_ms);
    replay(&mut again, &server.log);
    contents(&again) == contents(&server.driver.keyspace)
}

#[test]
fn what_depends_on_the_old_value_has_it() {
    let behind: [&[&[&str]]; 12] = [
        &[&["SET", "k", "new"]],
        &[&["SET", "k", "new", "XX"]],
        &[&["SET", "k", "new", "KEEPTTL"]],
        &[&["INCR", "k"]],
        &[&["INCRBYFLOAT", "k", "1.5"]],
        &[&["APPEND", "k", "9"]],
        &[&["SETRANGE", "k", "1", "9"]],
        &[&["COPY", "k", "other"], &["SET", "k", "new"]],
        &[&["COPY", "k", "k", "DB", "1"], &["DEL", "k"]],
        &[&["RENAME", "k", "other"], &["SET", "other", "new"]],
        &[&["MOVE", "k", "1"], &["SET", "k", "new"]],
        &[&["PERSIST", "k"], &["SET", "k", "new", "KEEPTTL"]],
    ];
    for commands in behind {
        let before: &[&[&str]] = &[&["SET", "k", "100", "PXAT", "1800000000000"]];
        assert!(is_done_again(before, commands), "{commands:?}");
    }
    let before: &[&[&str]] = &[&["HSET", "k", "a", "1", "b", "2"]];
    for commands in [
        [&["HSET", "k", "a", "3"][..], &["DEL", "k"]],
        [&["HDEL", "k", "a"], &["HDEL", "k", "b"]],
        [&["COPY", "k", "other"], &["DEL", "k"]],
    ] {
        assert!(is_done_again(before, &commands), "{commands:?}");
    }
    let before: &[&[&str]] = &[&["SADD", "k", "1", "2", "3"], &["SADD", "l", "2", "3", "4"]];
    for commands in [
        [&["SINTERSTORE", "other", "k", "l"][..], &["DEL", "k", "l"]],
        [&["SUNIONSTORE", "k", "k", "l"], &["SET", "l", "new"]],
        [&["SDIFFSTORE", "other", "k", "l"], &["RENAME", "other", "l"]],
        [&["SMOVE", "k", "l", "1"], &["DEL", "k"]],
        [&["SPOP", "k"], &["SPOP", "l", "2"]],
        [&["SPOP", "k", "3"], &["SADD", "k", "7"]],
        [&["SREM", "k", "1", "2", "3"], &["SADD", "k", "1"]],
    ] {
        assert!(is_done_again(before, &commands), "{commands:?}");
    }
    let before: &[&[&str]] = &[&["RPUSH", "k", "1", "2", "3"], &["RPUSH", "l", "2", "3", "4"]];
    for commands in [
        [&["LPUSH", "k", "0"][..], &["RPOP", "k"]],
        [&["LMOVE", "k", "l", "LEFT", "RIGHT"], &["DEL", "l"]],
        [&["RPOPLPUSH", "k", "k"], &["LSET", "k", "0", "9"]],
        [&["LMPOP", "2", "k", "l", "LEFT", "COUNT", "9"], &["RPUSH", "k", "7"]],
        [&["LTRIM", "k", "1", "1"], &["LINSERT", "k", "BEFORE", "2", "1"]],
        [&["LREM", "k", "0", "2"], &["RPUSH", "k", "2"]],
    ] {
        assert!(is_done_again(before, &commands), "{commands:?}");
    }
}

/// The purpose of a fuzzy capture is that writes need not keep old values for it. So during such a
/// capture, writes must free as much memory as without a capture.
#[test]
fn what_is_overwritten_is_not_held() {
    let mut server = Server::new(7);
    let value = "v".repeat(5_000);
    for key in 0..1_000 {
        server.run(&["SET", &format!("key:{key}"), &value]);
    }
    for (kind, held_max) in [(CaptureKind::PointInTime, 6_000_000), (CaptureKind::Fuzzy, 0)] {
        server.driver.keyspace.begin_capture(kind);
        for key in 0..900 {
            server.run(&["SET", &format!("key:{key}"), &value]);
        }
        server.run(&["DEL", "key:950", "key:951"]);
        let stats = server.driver.keyspace.capture_stats();
        assert_eq!(stats.taken, 902);
        assert!(stats.owned_size <= held_max, "{kind:?}: {}", stats.owned_size);
        assert_eq!(stats.owned_size == 0, kind == CaptureKind::Fuzzy);
        server.driver.keyspace.end_capture();
        while server.driver.keyspace.capture_state() != CaptureState::Idle {
            let budget = CaptureBudget { size: 1 << 20, entries: 1000 };
            server.driver.keyspace.capture_step(budget, &mut Vec::new());
        }
        server.run(&["SET", "key:950", &value]);
        server.run(&["SET", "key:951", &value]);
    }
}
