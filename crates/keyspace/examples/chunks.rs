//! Prints the cost of encoding, decoding and loading a snapshot: CPU time per key and megabytes per
//! second.
//!
//! `cargo run --release -p slimio-keyspace --example chunks [COUNT SIZE]` measures COUNT keys of 16
//! bytes with values of SIZE bytes. The second half of each value is compressible. By default there
//! are runs with several sizes, and a run with one hash of 5 million fields. After decoding, a
//! value that comes in several parts is joined. For other values, joining takes no time. In the
//! server, other threads decode and join, and the command thread only loads.

#![expect(clippy::print_stdout, reason = "the example prints its measurements")]

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use slimio_keyspace::{
    CaptureBudget, CaptureKind, CaptureState, Captured, Chunk, ChunkEncoder, ChunkOptions, Config,
    Context, DbIndex, Effects, EvictionConfig, Keyspace, Loader, Mode, command_table, decode_chunk,
};
use slimio_resp::{OwnedRequest, ReplyBuf};

/// The server's allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const BUDGET: CaptureBudget = CaptureBudget { size: 256 * 1024, entries: 500 };

fn main() {
    let args: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    if let [count, size] = args[..] {
        return measure(count, size);
    }
    for (count, size) in [(3_000_000, 16), (3_000_000, 64), (100_000, 4096)] {
        measure(count, size);
    }
    measure_hash(5_000_000, 16);
}

fn measure_hash(fields: usize, size: usize) {
    println!("a hash of {fields} fields, values of {size} bytes");
    let mut keyspace = Keyspace::new(Config::default(), 0x5eed);
    fill(&mut keyspace, &[b"HSET", b"hash"], fields, size);
    let captured = capture(&mut keyspace);
    let (chunks, time) = encode(&captured, &keyspace, true);
    report("encode", time, fields, size);
    let loaded = load(&chunks, fields, size);
    assert_eq!(loaded.dbsize(DbIndex(0)), 1);
}

fn measure(keys: usize, size: usize) {
    println!("{keys} keys, values of {size} bytes");
    let mut keyspace = Keyspace::new(Config::default(), 0x5eed);
    fill(&mut keyspace, &[b"SET"], keys, size);
    assert_eq!(keyspace.dbsize(DbIndex(0)), keys);
    for compresses in [true, false] {
        let captured = capture(&mut keyspace);
        let (chunks, time) = encode(&captured, &keyspace, compresses);
        drop(captured);
        let bytes: usize = chunks.iter().map(Vec::len).sum();
        println!(" {}: {bytes} bytes", if compresses { "compressed" } else { "uncompressed" });
        report("encode", time, keys, size);
        assert_eq!(load(&chunks, keys, size).dbsize(DbIndex(0)), keys);
    }
}

fn report(what: &str, time: Duration, keys: usize, size: usize) {
    let ns = time.as_nanos() as usize;
    let megabytes = (keys * (16 + size) * 1000) / ns.max(1);
    println!("  {what:7} {:5} ns a key, {megabytes} MB/s", ns / keys);
}

/// Runs a command once for each key or field. The command's arguments are `words`, then the key or
/// field, then a value.
fn fill(keyspace: &mut Keyspace, words: &[&[u8]], keys: usize, size: usize) {
    let (mut reply, mut effects) = (ReplyBuf::default(), Effects::new());
    let command = command_table().lookup(words[0]).expect("a command");
    let mut state = 1u64;
    let mut value = vec![b'v'; size];
    for index in 0..keys {
        // The first half of a value is noise; the second half is compressible.
        for byte in &mut value[..size / 2] {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
        let key = format!("key:{index:012}");
        let args = words.iter().copied().chain([key.as_bytes(), &value]);
        let request = OwnedRequest::from_args(args);
        reply.clear();
        effects.clear();
        (command.run)(&mut Context {
            keyspace,
            db: DbIndex(0),
            args: request.args(),
            now_ms: 1,
            reply: &mut reply,
            effects: &mut effects,
            mode: Mode::Client,
        });
    }
}

fn capture(keyspace: &mut Keyspace) -> Vec<Captured> {
    let mut out = Vec::new();
    keyspace.begin_capture(CaptureKind::PointInTime);
    while keyspace.capture_state() == CaptureState::Running {
        keyspace.capture_step(BUDGET, &mut out);
    }
    keyspace.end_capture();
    out
}

fn encode(
    captured: &[Captured],
    keyspace: &Keyspace,
    compresses: bool,
) -> (Vec<Vec<u8>>, Duration) {
    let start = cpu_time();
    let eviction = EvictionConfig::default();
    let mut encoder = ChunkEncoder::new(ChunkOptions { compresses, eviction, now_ms: 1 });
    encoder.resize_db(DbIndex(0), keyspace.dbsize(DbIndex(0)), 0);
    let mut chunks = Vec::new();
    let mut emit = |chunk: Chunk<'_>| -> Result<(), ()> {
        chunks.push(chunk.payload.to_vec());
        Ok(())
    };
    for captured in captured {
        encoder.encode(captured, &mut emit).expect("`emit` never fails");
    }
    encoder.finish(&mut emit).expect("`emit` never fails");
    (chunks, cpu_time().saturating_sub(start))
}

fn load(chunks: &[Vec<u8>], keys: usize, size: usize) -> Keyspace {
    let mut keyspace = Keyspace::new(Config::default(), 0xfeed);
    let context = keyspace.decode_context(1);
    let mut loader = Loader::new();
    let [mut decoding, mut joining, mut loading] = [Duration::ZERO; 3];
    for chunk in chunks {
        let start = cpu_time();
        let decoded =
            decode_chunk(chunk, &context).expect("a chunk that was just encoded can be decoded");
        let is_decoded = cpu_time();
        let joined =
            loader.join(decoded, &context).expect("a chunk that was just encoded can be joined");
        let is_joined = cpu_time();
        keyspace.load(joined).expect("a chunk that was just encoded can be loaded");
        decoding += is_decoded.saturating_sub(start);
        joining += is_joined.saturating_sub(is_decoded);
        loading += cpu_time().saturating_sub(is_joined);
    }
    loader.finish().expect("all values that came in parts are complete");
    report("decode", decoding, keys, size);
    report("join", joining, keys, size);
    report("load", loading, keys, size);
    keyspace
}

/// CPU time that this thread has used. Other processes do not affect it.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
