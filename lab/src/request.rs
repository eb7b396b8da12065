//! Encodes operations: copies templates, and patches the key's digits and the value into the
//! copies.

use fastrand::Rng;

use crate::mix::Op;
use crate::values::ValuePool;

/// Number of digits in a key. Keys look like those of `redis-benchmark`: `key:000000000042`.
const KEY_DIGIT_COUNT: usize = 12;
const KEY_PREFIX: &[u8] = b"key:";
/// Length of a key, in bytes.
pub const KEY_SIZE: usize = KEY_PREFIX.len() + KEY_DIGIT_COUNT;
/// Size in bytes of a value's mark: the start of the value, which holds the number of its key
/// (little-endian). The mark shows whether a reply holds the value of the right key. A value that
/// is shorter than a mark has no mark.
pub const MARK_SIZE: usize = 8;

/// Writes requests; holds the templates and the pool of values.
#[derive(Clone, Debug)]
pub struct RequestWriter {
    set: Vec<u8>,
    set_key_at: usize,
    get: Vec<u8>,
    get_key_at: usize,
    bulk_key: Vec<u8>,
    bulk_value_head: Vec<u8>,
    values: ValuePool,
}

impl RequestWriter {
    /// A writer of requests whose values come from `values`.
    pub fn new(values: ValuePool) -> Self {
        let mut bulk_key = format!("${KEY_SIZE}\r\n").into_bytes();
        bulk_key.extend_from_slice(KEY_PREFIX);
        bulk_key.extend_from_slice(&[b'0'; KEY_DIGIT_COUNT]);
        bulk_key.extend_from_slice(b"\r\n");
        let bulk_value_head = format!("${}\r\n", values.value_size()).into_bytes();

        let mut set = b"*3\r\n$3\r\nSET\r\n".to_vec();
        set.extend_from_slice(&bulk_key);
        let set_key_at = set.len() - KEY_DIGIT_COUNT - 2;

        let mut get = b"*2\r\n$3\r\nGET\r\n".to_vec();
        get.extend_from_slice(&bulk_key);
        let get_key_at = get.len() - KEY_DIGIT_COUNT - 2;

        Self { set, set_key_at, get, get_key_at, bulk_key, bulk_value_head, values }
    }

    /// Length of every value, in bytes.
    pub fn value_size(&self) -> usize {
        self.values.value_size()
    }

    /// Appends the first request of `op` to `out`. In a request with several keys, key 0 follows
    /// key `key_count - 1`.
    pub fn write(&self, op: Op, key_count: u64, rng: &mut Rng, out: &mut Vec<u8>) {
        match op {
            Op::Set { key } => {
                let start = out.len();
                out.extend_from_slice(&self.set);
                patch_key(&mut out[start + self.set_key_at..], key);
                self.write_value(key, rng, out);
            }
            Op::Get { key } | Op::ReadModifyWrite { key } => {
                let start = out.len();
                out.extend_from_slice(&self.get);
                patch_key(&mut out[start + self.get_key_at..], key);
            }
            Op::MSet { key, len } => {
                out.extend_from_slice(format!("*{}\r\n$4\r\nMSET\r\n", 1 + 2 * len).as_bytes());
                for key in neighbours(key, len, key_count) {
                    self.write_key(key, out);
                    self.write_value(key, rng, out);
                }
            }
            Op::MGet { key, len } => {
                out.extend_from_slice(format!("*{}\r\n$4\r\nMGET\r\n", 1 + len).as_bytes());
                for key in neighbours(key, len, key_count) {
                    self.write_key(key, out);
                }
            }
            Op::Element(op) => op.write(self, rng, out),
        }
    }

    /// Appends a key, member or field as an argument.
    pub(crate) fn write_key(&self, key: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.bulk_key);
        let digits_at = out.len() - KEY_DIGIT_COUNT - 2;
        debug_assert!(digits_at > start);
        patch_key(&mut out[digits_at..], key);
    }

    /// Appends a value of `key` as an argument.
    pub(crate) fn write_value(&self, key: u64, rng: &mut Rng, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bulk_value_head);
        let start = out.len();
        out.extend_from_slice(self.values.pick(rng));
        if self.values.value_size() >= MARK_SIZE {
            out[start..start + MARK_SIZE].copy_from_slice(&key.to_le_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// The `len` key numbers from `key` on, wrapping at `key_count`.
pub fn neighbours(key: u64, len: u64, key_count: u64) -> impl Iterator<Item = u64> {
    (0..len).map(move |step| (key + step) % key_count.max(1))
}

fn patch_key(digits: &mut [u8], mut key: u64) {
    for digit in digits[..KEY_DIGIT_COUNT].iter_mut().rev() {
        *digit = b'0' + (key % 10) as u8;
        key /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(op: Op, value_size: usize) -> Vec<u8> {
        let writer = RequestWriter::new(ValuePool::new(value_size, 1.0, 1));
        let mut out = Vec::new();
        writer.write(op, 10, &mut Rng::with_seed(1), &mut out);
        out
    }

    #[test]
    fn requests_are_resp() {
        assert_eq!(
            written(Op::Set { key: 42 }, 3),
            b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000042\r\n$3\r\nxxx\r\n"
        );
        assert_eq!(
            written(Op::Get { key: 7 }, 3),
            b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000007\r\n"
        );
        assert_eq!(
            written(Op::MGet { key: 9, len: 2 }, 3),
            b"*3\r\n$4\r\nMGET\r\n$16\r\nkey:000000000009\r\n$16\r\nkey:000000000000\r\n"
        );
        assert_eq!(
            written(Op::MSet { key: 1, len: 1 }, 1),
            b"*3\r\n$4\r\nMSET\r\n$16\r\nkey:000000000001\r\n$1\r\nx\r\n"
        );
    }

    #[test]
    fn a_value_names_its_key() {
        let bytes = written(Op::Set { key: 0x0102 }, 16);
        assert!(bytes.ends_with(b"\x02\x01\0\0\0\0\0\0xxxxxxxx\r\n"));
    }
}
