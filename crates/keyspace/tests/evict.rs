//! Tests which keys are evicted, how many are evicted, and what is logged.

mod common;
#[path = "common/contents.rs"]
mod contents;

use std::collections::{BTreeMap, HashMap};

use common::Driver;
use fastrand::Rng;
use slimio_keyspace::{
    Config, DbIndex, Effects, EvictionConfig, EvictionPolicy, Keyspace, Payload, Touched, no_args,
};
use slimio_testing::random::{Generator, seed};

const NOW_MS: i64 = 1_700_000_000_000;

/// A keyspace that evicts before every command, and a second keyspace that replays the log of the
/// first.
struct Pair {
    live: Driver,
    replayed: Keyspace,
    used_max: usize,
    evicted: Vec<(u16, Vec<u8>)>,
}

impl Pair {
    fn new(policy: EvictionPolicy, used_max: usize, seed: u64) -> Self {
        let mut live = Driver::new(seed);
        live.now_ms = NOW_MS;
        live.keyspace.set_eviction(EvictionConfig { policy, ..EvictionConfig::default() });
        let replayed = Keyspace::new(Config::default(), u128::from(seed) << 64 | 1);
        Self { live, replayed, used_max, evicted: Vec::new() }
    }

    /// Evicts down to `used_max`. Returns whether enough could be evicted.
    fn make_room(&mut self) -> bool {
        let mut effects = Effects::new();
        let mut is_enough = true;
        while self.live.keyspace.used_bytes() > self.used_max {
            let before = self.live.keyspace.used_bytes();
            let Some(freed) = self.live.keyspace.evict(self.live.now_ms, &mut effects) else {
                is_enough = false;
                break;
            };
            assert_eq!(self.live.keyspace.used_bytes() + freed, before);
        }
        for touched in effects.touched(no_args()) {
            let Touched::Key { db, hash, key } = touched else { panic!("a database was touched") };
            assert_eq!(hash, self.live.keyspace.hash(&key.to_bytes()));
            self.evicted.push((db.0, key.to_bytes().into_owned()));
        }
        let mut payload = Payload::default();
        payload.begin(self.live.db);
        payload.add(&effects, no_args());
        self.replayed.apply(self.live.db, payload.bytes()).expect("deletions can be replayed");
        is_enough
    }

    fn run<T: AsRef<[u8]>>(&mut self, args: &[T]) -> Vec<u8> {
        let db = self.live.db;
        let reply = self.live.run(args);
        self.replayed
            .apply(db, self.live.payload.bytes())
            .expect("a logged command can be replayed");
        reply
    }
}

/// Contents of a value, and its expiry.
type Content = (Vec<Vec<u8>>, Option<i64>);

fn contents(keyspace: &Keyspace, db: u16) -> BTreeMap<Vec<u8>, Content> {
    let entries = keyspace.entries(DbIndex(db));
    entries.map(|e| (e.key.to_vec(), (contents::words(e.value), e.expires_at_ms))).collect()
}

fn policies() -> impl Iterator<Item = (EvictionPolicy, &'static str)> {
    EvictionPolicy::ALL.into_iter().filter(|(policy, _)| *policy != EvictionPolicy::NoEviction)
}

#[test]
fn what_is_evicted_is_logged() {
    let seed = seed();
    for (policy, name) in policies() {
        let mut generator = Generator::new(seed, 30_000);
        let mut pair = Pair::new(policy, 3_000, seed);
        for step in 0..4_000 {
            pair.live.now_ms += generator.rng.usize(..20) as i64;
            generator.now_ms = pair.live.now_ms;
            if generator.rng.usize(..50) == 0 {
                pair.live.db = DbIndex(generator.rng.usize(..3) as u16);
            }
            pair.make_room();
            pair.run(&generator.command());
            pair.live.check();
            if step % 100 == 0 {
                for db in 0..3 {
                    let (ours, theirs) =
                        (contents(&pair.live.keyspace, db), contents(&pair.replayed, db));
                    assert!(ours == theirs, "{name}: step {step}, db {db}: {ours:?}\n{theirs:?}");
                }
            }
        }
        assert!(pair.evicted.len() > 20, "{name}: only {} keys were evicted", pair.evicted.len());
        assert_eq!(pair.live.keyspace.stats().evicted_keys, pair.evicted.len() as u64);
    }
}

#[test]
fn memory_stays_below_its_limit_and_only_those_go_that_may() {
    let seed = seed();
    for (policy, name) in policies() {
        let is_volatile = name.starts_with("volatile");
        let mut rng = Rng::with_seed(seed);
        let mut pair = Pair::new(policy, 2 << 20, seed);
        for index in 0..2_000 {
            pair.run(&["SET".into(), format!("persistent:{index}"), "x".repeat(rng.usize(..200))]);
        }
        for index in 0..20_000 {
            pair.live.now_ms += 10;
            pair.live.db = DbIndex(rng.usize(..2) as u16);
            let size = if rng.usize(..100) == 0 { 50_000 } else { rng.usize(..400) };
            let ttl = (1_000_000 + rng.usize(..1_000_000)).to_string();
            pair.run(&["SET".into(), format!("key:{index}"), "x".repeat(size), "EX".into(), ttl]);
            assert!(pair.make_room(), "{name}: no key to evict");
            assert!(pair.live.keyspace.used_bytes() <= pair.used_max);
        }
        assert!(
            pair.evicted.len() > 10_000,
            "{name}: only {} keys were evicted",
            pair.evicted.len()
        );
        let persistent = pair.evicted.iter().filter(|(_, key)| key.starts_with(b"persistent"));
        assert_eq!(persistent.count() == 0, is_volatile, "{name}");
        for db in 0..2 {
            let of_this = pair.evicted.iter().filter(|(of, _)| *of == db).count();
            assert!(
                of_this > pair.evicted.len() / 4,
                "{name}: only {of_this} keys were evicted in db {db}"
            );
            assert!(contents(&pair.live.keyspace, db) == contents(&pair.replayed, db), "{name}");
        }
    }
}

#[test]
fn without_keys_that_may_go_there_is_nothing_to_evict() {
    let mut effects = Effects::new();
    for (policy, name) in EvictionPolicy::ALL {
        let mut pair = Pair::new(policy, 0, 1);
        assert_eq!(pair.live.keyspace.evict(NOW_MS, &mut effects), None, "{name}");
        pair.run(&["SET", "key", "value"]);
        let may_go = name.starts_with("allkeys");
        assert!(!pair.make_room(), "an empty table takes some bytes, too");
        assert_eq!(pair.live.keyspace.dbsize(DbIndex(0)), usize::from(!may_go), "{name}");
        if name.starts_with("volatile") {
            pair.run(&["EXPIRE", "key", "100"]);
            pair.make_room();
            assert_eq!(pair.live.keyspace.dbsize(DbIndex(0)), 0, "{name}");
        }
    }
}

/// Few keys have an expiry: one in ten thousand in the first round, one in a hundred in the other
/// rounds. Random draws must find each key with an expiry about equally often.
#[test]
fn few_keys_that_expire_are_found_among_many() {
    const COUNT: usize = 100_000;
    let mut first = HashMap::new();
    for round in 0..300u64 {
        let mut pair = Pair::new(EvictionPolicy::VolatileRandom, 0, round);
        // Each round has another seed, which puts the same keys into other buckets.
        let count = if round == 0 { COUNT } else { 1_000 };
        for index in 0..count {
            pair.live.run(&["SET".to_owned(), index.to_string(), "x".to_owned()]);
        }
        let expiring = 10;
        for index in 0..expiring {
            pair.live.run(&["EXPIRE".to_owned(), (index * 77).to_string(), "100".to_owned()]);
        }
        let mut effects = Effects::new();
        for index in 0..expiring {
            pair.live.keyspace.evict(NOW_MS, &mut effects).expect("a key with an expiry");
            if index == 0 {
                let Some(Touched::Key { key, .. }) = effects.touched(no_args()).next() else {
                    panic!("no key was evicted")
                };
                *first.entry(key.to_bytes().into_owned()).or_insert(0) += 1;
            }
        }
        assert_eq!(pair.live.keyspace.evict(NOW_MS, &mut effects), None);
        assert_eq!(pair.live.keyspace.dbsize(DbIndex(0)), count - expiring);
    }
    assert_eq!(first.len(), 10, "{first:?}");
    assert!(first.values().all(|count| (10..60).contains(count)), "{first:?}");
}

/// The eviction pool remembers keys that were drawn for earlier evictions. If a client uses such a
/// key after the draw, the key must not be evicted.
#[test]
fn what_was_used_since_it_was_drawn_stays() {
    const COUNT: usize = 100;
    const OLD: usize = 20;
    let policy = EvictionPolicy::AllKeysLru;
    let mut pair = Pair::new(policy, 0, 1);
    let config = EvictionConfig { policy, samples: 64, ..EvictionConfig::default() };
    pair.live.keyspace.set_eviction(config);
    for key in 0..COUNT {
        if key == OLD {
            pair.live.now_ms += 1_000_000;
        }
        pair.run(&["SET".to_owned(), key.to_string(), "x".to_owned()]);
    }
    let evict = |pair: &mut Pair| {
        pair.used_max = pair.live.keyspace.used_bytes() - 1;
        assert!(pair.make_room());
        let (_, key) = pair.evicted.pop().expect("a key was evicted");
        String::from_utf8_lossy(&key).parse::<usize>().expect("a number") < OLD
    };
    pair.live.now_ms += 10_000;
    assert!(evict(&mut pair), "the first evicted key must be an old one");
    for key in 0..OLD {
        pair.run(&["GET".to_owned(), key.to_string()]);
    }
    for _ in 0..10 {
        assert!(!evict(&mut pair), "a key that was just used was evicted");
    }
}

#[test]
fn those_that_expire_first_go_first() {
    let mut pair = Pair::new(EvictionPolicy::VolatileTtl, 0, 1);
    for index in 0..1_000 {
        pair.run(&[
            "SET".into(),
            index.to_string(),
            "x".into(),
            "EX".into(),
            (index + 10).to_string(),
        ]);
    }
    pair.used_max = pair.live.keyspace.used_bytes() / 2;
    assert!(pair.make_room());
    let numbers = pair
        .evicted
        .iter()
        .map(|(_, key)| String::from_utf8_lossy(key).parse::<usize>().expect("a number"));
    let mean = numbers.sum::<usize>() / pair.evicted.len();
    let best = pair.evicted.len() / 2;
    assert!(mean < best * 11 / 10, "the mean of the evicted keys is {mean}, not {best}");
}

/// Reads random keys, and sets each key that is missing, like a program that uses the server as a
/// cache. Returns the share of reads that found their key. The first reads are not counted, because
/// they fill the cache.
fn hit_rate(policy: EvictionPolicy, now_step_ms: i64) -> f64 {
    const KEYS: usize = 20_000;
    let mut pair = Pair::new(policy, 400 << 10, 5);
    let mut rng = Rng::with_seed(9);
    let (mut reads, mut hits) = (0, 0);
    for index in 0..150_000 {
        pair.live.now_ms += now_step_ms;
        let key = zipf(&mut rng, KEYS).to_string();
        let is_hit = pair.live.run(&["GET", &key]) != b"$-1\r\n";
        if !is_hit {
            let mut effects = Effects::new();
            while pair.live.keyspace.used_bytes() > pair.used_max {
                pair.live.keyspace.evict(pair.live.now_ms, &mut effects).expect("a key");
            }
            pair.live.run(&["SET", &key, &"x".repeat(64)]);
        }
        if index > 50_000 {
            reads += 1;
            hits += usize::from(is_hit);
        }
    }
    f64::from(hits as u32) / f64::from(reads)
}

/// A random number below `count`. The frequency of number `n` is about proportional to 1 / (n + 1).
/// The method is Devroye's inversion.
fn zipf(rng: &mut Rng, count: usize) -> usize {
    let uniform = rng.u64(..) as f64 / u64::MAX as f64;
    ((count as f64 + 1.0).powf(uniform) - 1.0) as usize
}

#[test]
fn what_is_used_stays() {
    let random = hit_rate(EvictionPolicy::AllKeysRandom, 10);
    let lru = hit_rate(EvictionPolicy::AllKeysLru, 10);
    let lfu = hit_rate(EvictionPolicy::AllKeysLfu, 10);
    assert!(lru > random + 0.02, "hit rates: random {random}, LRU {lru}");
    assert!(lfu > lru, "hit rates: LRU {lru}, LFU {lfu}");
}
