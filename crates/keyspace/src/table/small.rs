//! Entries that are one allocation without any waste.
//!
//! ```text
//! | expires at, ms: i64, only if the key expires | key size: 1 or 2 bytes | key ... | value ... |
//! ```

use slimio_resp::Arg;

use super::meta::Meta;

/// Size in bytes of the largest entry that is one allocation. The size includes the key, the value,
/// and the bytes before them.
pub(crate) const SMALL_SIZE_MAX: usize = 1024;

/// Size in bytes of the expiry in a small entry.
pub(super) const EXPIRY_SIZE: usize = 8;

/// Size in bytes of the key's length, which precedes the key.
fn head_size(key: &[u8]) -> usize {
    if key.len() < 0x80 { 1 } else { 2 }
}

/// Size in bytes that an entry would have in small form, even if it is too large for that form.
pub(super) fn size(key: &[u8], value: Arg<'_>, expires_at_ms: Option<i64>) -> usize {
    let expiry_size = if expires_at_ms.is_some() { EXPIRY_SIZE } else { 0 };
    expiry_size + head_size(key) + key.len() + value.size()
}

/// Makes a small entry; `None` if the entry is too large for that form.
pub(super) fn make(key: &[u8], value: Arg<'_>, expires_at_ms: Option<i64>) -> Option<Box<[u8]>> {
    let size = size(key, value, expires_at_ms);
    if size > SMALL_SIZE_MAX {
        return None;
    }
    let mut bytes = Vec::with_capacity(size);
    if let Some(at) = expires_at_ms {
        bytes.extend_from_slice(&at.to_le_bytes());
    }
    if head_size(key) == 1 {
        bytes.push(key.len() as u8);
    } else {
        bytes.extend_from_slice(&[key.len() as u8 | 0x80, (key.len() >> 7) as u8]);
    }
    bytes.extend_from_slice(key);
    value.chunks().for_each(|chunk| bytes.extend_from_slice(chunk));
    Some(bytes.into_boxed_slice())
}

/// The time at which a small entry expires, in milliseconds since 1970.
pub(super) fn expiry(bytes: &[u8], meta: Meta) -> Option<i64> {
    let at = bytes.first_chunk().filter(|_| meta.expires())?;
    Some(i64::from_le_bytes(*at))
}

/// Key and value of a small entry.
pub(super) fn split(bytes: &[u8], expires: bool) -> (&[u8], &[u8]) {
    let (start, size) = key_place(bytes, expires);
    bytes[start..].split_at(size)
}

pub(super) fn value_start(bytes: &[u8], expires: bool) -> usize {
    let (start, size) = key_place(bytes, expires);
    start + size
}

/// Start and size of the key of a small entry.
fn key_place(bytes: &[u8], expires: bool) -> (usize, usize) {
    let head = if expires { EXPIRY_SIZE } else { 0 };
    let low = usize::from(bytes[head]);
    if low < 0x80 {
        return (head + 1, low);
    }
    (head + 2, low & 0x7f | usize::from(bytes[head + 1]) << 7)
}
