//! Measures how fast values are encoded as RDB and decoded again, in megabytes of values per second
//! on one core. The column `LZF` is for compressing alone, `LZF back` for decompressing alone.
//!
//! `cargo bench -p slimio-rdb`

#![expect(clippy::print_stdout, reason = "the benchmark prints its measurements")]

use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

use slimio_rdb::{
    Attributes, Compressor, Decoder, Encoder, FileReader, FileWriter, ValueType, Version,
    decompress,
};

/// Total size in bytes of the values of one kind. The processor's caches cannot hold this many
/// bytes, so the processor reads the values from memory, as in a snapshot.
const POOL_SIZE: usize = 64 << 20;
/// Size in bytes of one unit: a run of random bytes, and the filler after it.
const UNIT_SIZE: usize = 256;
/// Duration of one measurement. The fastest of [`ROUNDS`] measurements is the result.
const ROUND: Duration = Duration::from_millis(200);
const ROUNDS: usize = 3;

fn main() {
    println!(
        "values                 size  share |  LZF MB/s  Encoder MB/s | Decoder MB/s  LZF back MB/s"
    );
    for (name, random_share) in
        [("incompressible", 1.0), ("half-compressible", 0.5), ("constant", 0.0)]
    {
        for size in [64, 256, 1024, 4096, 65_536] {
            measure(name, size, &pool(size, random_share));
        }
    }
    let bytes = pool(4096, 1.0);
    let checksum = best(|| {
        let mut writer =
            FileWriter::new(io::sink(), Version::DEFAULT).expect("a write to a sink never fails");
        writer.encoded(black_box(&bytes)).expect("a write to a sink never fails");
        bytes.len()
    });
    println!("\nchecksum: {checksum:.0} MB/s");
    println!(
        "\nfiles, half-compressible      size | written MB/s     keys/s | read MB/s     keys/s"
    );
    for size in [64, 4096] {
        measure_files(size, &pool(size, 0.5));
    }
}

fn measure(name: &str, size: usize, pool: &[u8]) {
    let mut compressor = Compressor::new();
    let lzf = speed(pool, size, |value| {
        black_box(compressor.compress(black_box(value)));
    });
    let mut encoder = Encoder::new(Version::DEFAULT);
    let encode = speed(pool, size, |value| {
        encoder.clear();
        encoder.string(black_box(value));
        black_box(encoder.bytes());
    });
    encoder.clear();
    let sample: Vec<&[u8]> = pool.chunks_exact(size).take((4 << 20) / size).collect();
    for value in &sample {
        encoder.string(value);
    }
    let share = encoder.size() as f64 / (sample.len() * size) as f64;
    let decode = best(|| {
        let mut decoder = Decoder::new(encoder.bytes());
        while !decoder.is_at_end() {
            black_box(decoder.string().and_then(|text| text.to_vec()))
                .expect("a string that was just encoded can be decoded");
        }
        sample.len() * size
    });
    let compressed: Vec<Vec<u8>> =
        sample.iter().filter_map(|value| compressor.compress(value).map(<[u8]>::to_vec)).collect();
    let mut out = Vec::new();
    let back = best(|| {
        for bytes in &compressed {
            out.clear();
            decompress(bytes, size, &mut out)
                .expect("a string that was just compressed can be decompressed");
        }
        compressed.len() * size
    });
    println!(
        "{name:<20} {size:>6} {share:>6.2} | {lzf:>9.0} {encode:>13.0} | {decode:>12.0} {back:>14.0}"
    );
}

/// Measures how fast whole files are written and read. The keys are short, and the values are
/// strings of `size` bytes.
fn measure_files(size: usize, pool: &[u8]) {
    let pool = &pool[..16 << 20];
    let mut file = Vec::new();
    let written = best(|| {
        file.clear();
        let mut writer =
            FileWriter::new(&mut file, Version::DEFAULT).expect("a write to memory never fails");
        for (index, value) in pool.chunks_exact(size).enumerate() {
            let encoder = writer.encoder().expect("a write to memory never fails");
            encoder.key(&key(index), ValueType::String, Attributes::default());
            encoder.string(value);
        }
        writer.finish().expect("a write to memory never fails");
        pool.len()
    });
    let read = best(|| {
        let mut reader =
            FileReader::open(&file[..]).expect("a file that was just written can be read");
        while let Some(item) = reader.next_item().expect("a file that was just written can be read")
        {
            black_box(item);
            black_box(reader.next_part().expect("a file that was just written can be read"));
        }
        pool.len()
    });
    let keys = |speed: f64| speed * 1e6 / size as f64;
    let (written_keys, read_keys) = (keys(written), keys(read));
    println!("{size:>34} | {written:>12.0} {written_keys:>10.0} | {read:>9.0} {read_keys:>10.0}");
}

fn key(index: usize) -> [u8; 16] {
    let mut key = *b"key:000000000000";
    let mut rest = index;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// Calls `run` with each value of the pool in turn. Returns the speed in megabytes per second.
fn speed(pool: &[u8], size: usize, mut run: impl FnMut(&[u8])) -> f64 {
    let mut values = pool.chunks_exact(size).cycle();
    best(|| {
        for value in values.by_ref().take(64) {
            run(value);
        }
        64 * size
    })
}

/// Calls `run` again and again. Each call returns how many bytes it has processed. Returns the
/// speed of the fastest round, in megabytes per second.
fn best(mut run: impl FnMut() -> usize) -> f64 {
    let mut best = 0.0_f64;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let mut done = 0;
        while begun.elapsed() < ROUND {
            done += run();
        }
        best = best.max(done as f64 / 1e6 / begun.elapsed().as_secs_f64());
    }
    best
}

/// Makes the bytes of all values. Each unit of a value begins with random bytes, which make up
/// `random_share` of the unit. The rest of the unit is filler.
fn pool(size: usize, random_share: f64) -> Vec<u8> {
    let unit_size = UNIT_SIZE.min(size);
    let random_size = (unit_size as f64 * random_share) as usize;
    let mut bytes = vec![b'x'; POOL_SIZE];
    let mut random = fastrand::Rng::with_seed(1);
    for unit in bytes.chunks_mut(unit_size) {
        random.fill(&mut unit[..random_size]);
    }
    bytes
}
