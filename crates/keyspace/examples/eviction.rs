//! Prints the hit rates of this keyspace and of stock `redis-server` under the same memory limit.
//!
//! `cargo run --release -p slimio-keyspace --example eviction [READS]` reads keys at random. The
//! frequency of a key is about proportional to 1 / its rank. If a read does not find its key, the
//! key is set. The stock server runs first. While the keyspace runs, its simulated clock advances
//! evenly, and in total by the time that the stock server took.

#![expect(clippy::print_stdout, reason = "the example prints its measurements")]

mod stock;

use std::time::{Duration, Instant};

use slimio_keyspace::{
    Config, Context, DbIndex, Effects, EvictionConfig, EvictionPolicy, Keyspace, Mode,
    command_table,
};
use slimio_resp::{OwnedRequest, ReplyBuf};
use stock::Stock;

const READS: usize = 400_000;
const KEYS: usize = 200_000;
const VALUE_SIZE: usize = 100;
/// Bytes that the data may take. Without a limit, the data would take about 40 MB.
const LIMIT: usize = 2 << 20;

fn main() {
    let reads = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(READS);
    println!("| policy | samples | hits, % | redis hits, % | keys | redis keys |");
    println!("|---|---|---|---|---|---|");
    for (policy, name) in EvictionPolicy::ALL.into_iter().filter(|(_, n)| n.starts_with("allkeys"))
    {
        for samples in [5, 10] {
            let stock = redis(reads, name, samples);
            let took = stock.map_or(Duration::from_secs(20), |(_, _, took)| took);
            let (hits, keys) = ours(reads, policy, samples, took);
            let (stock_hits, stock_keys) = stock.map_or_else(
                || ("not".to_owned(), "installed".to_owned()),
                |(hits, keys, _)| (format!("{hits:.2}"), keys.to_string()),
            );
            println!("| {name} | {samples} | {hits:.2} | {stock_hits} | {keys} | {stock_keys} |");
        }
    }
}

/// The keys to read, in order. All runs read the same keys.
fn wanted(reads: usize) -> impl Iterator<Item = String> {
    let mut state = 7u64;
    (0..reads).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let uniform = (state >> 11) as f64 / (1u64 << 53) as f64;
        // Turns the uniform number into a rank whose probability is about 1 / rank (inversion, by
        // Devroye).
        let rank = ((KEYS as f64 + 1.0).powf(uniform) - 1.0) as usize;
        format!("key:{rank}")
    })
}

/// Runs the reads on a stock server. Returns the percentage of hits in the second half of the
/// reads; the count of keys at the end; and the time that all reads took.
fn redis(reads: usize, policy: &str, samples: usize) -> Option<(f64, usize, Duration)> {
    let mut stock = Stock::start()?;
    let limit = (stock.info("used_memory") + LIMIT).to_string();
    let samples = samples.to_string();
    let config = ["CONFIG", "SET", "maxmemory", &limit, "maxmemory-policy", policy];
    let config = [&config[..], &["maxmemory-samples", &samples]].concat();
    assert_eq!(stock.run(&[config]), [b"+OK\r\n"]);
    let value = "x".repeat(VALUE_SIZE);
    let (mut hits, began) = (0, Instant::now());
    for (index, key) in wanted(reads).enumerate() {
        let is_hit = stock.run(&[vec!["GET", &key]])[0] != b"$-1\r\n";
        if !is_hit {
            stock.run(&[vec!["SET", &key, &value]]);
        }
        hits += usize::from(is_hit && index >= reads / 2);
    }
    let took = began.elapsed();
    let reply = stock.run(&[vec!["DBSIZE"]]).remove(0);
    let keys = String::from_utf8_lossy(&reply[1..]).trim().parse().ok()?;
    Some((percent(hits, reads / 2), keys, took))
}

fn ours(reads: usize, policy: EvictionPolicy, samples: usize, took: Duration) -> (f64, usize) {
    let mut keyspace = Keyspace::new(Config::default(), 0x5eed);
    keyspace.set_eviction(EvictionConfig { policy, samples, ..EvictionConfig::default() });
    let limit = keyspace.used_bytes() + LIMIT;
    let value = "x".repeat(VALUE_SIZE);
    let (mut reply, mut effects) = (ReplyBuf::default(), Effects::new());
    let mut hits = 0;
    for (index, key) in wanted(reads).enumerate() {
        let now_ms = 1_700_000_000_000 + (took.as_millis() * index as u128 / reads as u128) as i64;
        let mut run = |args: &[&str]| {
            let request = OwnedRequest::from_args(args);
            let command = command_table().lookup(args[0].as_bytes()).expect("a command");
            reply.clear();
            effects.clear();
            while keyspace.used_bytes() > limit {
                keyspace.evict(now_ms, &mut effects).expect("a key");
            }
            (command.run)(&mut Context {
                keyspace: &mut keyspace,
                db: DbIndex(0),
                args: request.args(),
                now_ms,
                reply: &mut reply,
                effects: &mut effects,
                mode: Mode::Client,
            });
            reply.segments(0..reply.len()).next() == Some(&b"$-1\r\n"[..])
        };
        let is_hit = !run(&["GET", &key]);
        if !is_hit {
            run(&["SET", &key, &value]);
        }
        hits += usize::from(is_hit && index >= reads / 2);
    }
    (percent(hits, reads / 2), keyspace.dbsize(DbIndex(0)))
}

fn percent(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole as f64
}
