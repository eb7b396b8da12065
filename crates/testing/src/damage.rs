//! Random damage to bytes, for tests of code that reads untrusted bytes.

use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::random::seed;

/// The environment variable that says for how many seconds [`fuzz`] runs.
const SECONDS: &str = "SLIMIO_FUZZ_SECONDS";

/// Number of seconds that a run takes if the environment variable is not set.
const SECONDS_DEFAULT: u64 = 2;

/// Bytes that have a special meaning in formats, such as end marks, signs and length marks.
const BYTES: &[u8] =
    &[0, 1, 2, 3, 0x3f, 0x40, 0x7f, 0x80, 0x81, 0xc0, 0xc3, 0xe0, 0xf0, 0xfe, 0xff];

/// Integers that may make a reader's sums overflow, or make a reader allocate too much.
const INTEGERS: &[u64] = &[
    0,
    1,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x10000,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    i64::MAX as u64,
    u64::MAX,
];

/// Calls `check` with random cases for some seconds. Each case has its own random generator. If a
/// case fails, its seed is printed. With this seed in `SLIMIO_SEED`, the next run begins with the
/// failed case.
pub fn fuzz(mut check: impl FnMut(&mut Rng)) {
    let set = std::env::var(SECONDS).ok();
    let seconds = set.map_or(SECONDS_DEFAULT, |text| text.parse().expect("a number of seconds"));
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let first = seed();
    let mut count = 0;
    loop {
        let seed = first.wrapping_add(count);
        let named = Named(seed);
        check(&mut Rng::with_seed(seed));
        drop(named);
        count += 1;
        if Instant::now() >= deadline {
            break;
        }
    }
    eprintln!("{count} cases");
}

/// Prints the seed of a case that panics.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to begin with this case, set SLIMIO_SEED={}", self.0);
        }
    }
}

/// Damages `bytes` in one to four places. `others` are undamaged byte strings of the same format. A
/// piece of one of them may be copied into `bytes`.
pub fn damage(rng: &mut Rng, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    for _ in 0..=rng.usize(..4) {
        damage_once(rng, bytes, others);
    }
}

fn damage_once(rng: &mut Rng, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    let at = rng.usize(..=bytes.len());
    let end = bytes.len().min(at + 1 + rng.usize(..16));
    match rng.usize(..9) {
        0 => bytes.truncate(at),
        1 => {
            bytes.drain(at..end);
        }
        2 => {
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
        3 => {
            let new: Vec<u8> = (0..rng.usize(..8)).map(|_| rng.u8(..)).collect();
            bytes.splice(at..at, new);
        }
        4 => {
            let Some(other) = others.get(rng.usize(..others.len().max(1))) else { return };
            let from = rng.usize(..=other.len());
            let to = other.len().min(from + rng.usize(..64));
            let kept = if rng.bool() { end } else { bytes.len() };
            bytes.splice(at..kept, other[from..to].iter().copied());
        }
        5 => {
            let integer = INTEGERS[rng.usize(..INTEGERS.len())];
            let raw = if rng.bool() { integer.to_le_bytes() } else { integer.to_be_bytes() };
            let size = [1, 2, 4, 8][rng.usize(..4)];
            for (byte, new) in bytes[at..].iter_mut().zip(&raw[..size]) {
                *byte = *new;
            }
        }
        _ => {
            let Some(byte) = bytes.get_mut(at) else { return };
            *byte = match rng.usize(..4) {
                0 => *byte ^ 1 << rng.u32(..8),
                1 => BYTES[rng.usize(..BYTES.len())],
                2 => byte.wrapping_add(rng.u8(1..4)),
                _ => byte.wrapping_sub(rng.u8(1..4)),
            };
        }
    }
}
