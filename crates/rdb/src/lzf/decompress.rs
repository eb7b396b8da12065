//! The decompressor, which does not trust its input.

use slimio_planted::is_planted;

use super::{LONG, WINDOW};
use crate::error::Malformed;

/// Decompressing makes a string at most this many times longer, because three bytes become at most
/// 264 bytes. A string that claims to become longer is refused before it is read.
const GROWTH_MAX: usize = 88;

/// Decompresses `compressed` and appends the result to `out`. The result must be exactly `size`
/// bytes.
///
/// Never writes more than `size` bytes. Allocates nothing if `compressed` is too short to become
/// `size` bytes. On an error, the contents of `out` are unchanged.
pub fn decompress(compressed: &[u8], size: usize, out: &mut Vec<u8>) -> Result<(), Malformed> {
    if size / GROWTH_MAX > compressed.len() && !is_planted("believe-sizes") {
        return Err(Malformed("a compressed string claims to be longer than it can be"));
    }
    let before = out.len();
    out.resize(before + size, 0);
    let progress = decode(compressed, &mut out[before..], 0);
    match progress {
        Ok(progress) if progress.read == compressed.len() && progress.written == size => Ok(()),
        Ok(_) => {
            out.truncate(before);
            Err(Malformed("a compressed string is not as long as it says"))
        }
        Err(error) => {
            out.truncate(before);
            Err(error)
        }
    }
}

/// How far a call of [`decode`] has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes of the input that were used.
    pub(crate) read: usize,
    /// Where the output ends now.
    pub(crate) written: usize,
}

/// Decodes literals and matches, and writes them after `out[..written]`. A match can refer to bytes
/// of `out[..written]`. Stops at the end of the input. Also stops if the next literals, or the next
/// match, are incomplete or do not fit in `out`.
pub(crate) fn decode(
    input: &[u8],
    out: &mut [u8],
    mut written: usize,
) -> Result<Progress, Malformed> {
    let mut read = 0;
    while let Some((&control, rest)) = input[read..].split_first() {
        let control = usize::from(control);
        let length = control >> 5;
        if length == 0 {
            let size = control + 1;
            let (Some(literals), Some(room)) =
                (rest.get(..size), out.get_mut(written..written + size))
            else {
                break;
            };
            room.copy_from_slice(literals);
            read += 1 + size;
            written += size;
            continue;
        }
        let (size, low, used) = match rest {
            [more, low, ..] if length == LONG => (LONG + 2 + usize::from(*more), *low, 3),
            [low, ..] if length < LONG => (length + 2, *low, 2),
            _ => break,
        };
        let distance = ((control & 0x1f) << 8 | usize::from(low)) + 1;
        debug_assert!(distance <= WINDOW);
        if distance > written {
            return Err(Malformed("a compressed string refers to bytes before its beginning"));
        }
        if written + size > out.len() {
            break;
        }
        repeat(out, written, distance, size);
        read += used;
        written += size;
    }
    Ok(Progress { read, written })
}

/// Copies `size` bytes to `at`, from the place that is `distance` bytes before `at`. The result is
/// that of a copy byte by byte: if the two ranges overlap, the first `distance` bytes repeat.
fn repeat(out: &mut [u8], at: usize, distance: usize, size: usize) {
    let from = at - distance;
    if distance == 1 {
        let byte = out[from];
        out[at..at + size].fill(byte);
    } else if distance >= size {
        out.copy_within(from..from + size, at);
    } else {
        // After each copy, the next copy can be twice as long.
        let mut done = 0;
        while done < size {
            let now = (distance + done).min(size - done);
            out.copy_within(from..from + now, at + done);
            done += now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decompressed(compressed: &[u8], size: usize) -> Result<Vec<u8>, Malformed> {
        let mut out = Vec::new();
        decompress(compressed, size, &mut out).map(|()| out)
    }

    #[test]
    fn each_form_is_read() {
        assert_eq!(decompressed(b"\x02abc", 3).unwrap(), b"abc");
        // The first string has a match of three bytes, three bytes back. The second has a match of
        // nine bytes, which overlaps its own output.
        assert_eq!(decompressed(b"\x02abc\x20\x02", 6).unwrap(), b"abcabc");
        assert_eq!(decompressed(b"\x01ab\xe0\x00\x01", 11).unwrap(), b"abababababa");
        assert_eq!(decompressed(b"\x00a\xe0\xff\x00", 265).unwrap(), [b'a'; 265]);
        assert_eq!(decompressed(b"", 0).unwrap(), b"");
    }

    #[test]
    fn what_is_wrong_is_refused() {
        let wrong: [(&[u8], usize); 9] = [
            (b"", 1),
            (b"\x02ab", 3),
            (b"\x02abc", 2),
            (b"\x02abc", 4),
            (b"\x20\x00", 3),
            (b"\x00a\x20\x01", 4),
            (b"\x00a\x20", 4),
            (b"\x00a\xe0\x00", 10),
            (b"\x00a", usize::MAX),
        ];
        for (compressed, size) in wrong {
            let mut out = b"before".to_vec();
            assert!(decompress(compressed, size, &mut out).is_err(), "{compressed:?} {size}");
            assert_eq!(out, b"before");
            assert!(out.capacity() < 1000, "the claimed size was allocated");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300), size in 0..4000_usize) {
            if let Ok(out) = decompressed(&bytes, size) {
                prop_assert_eq!(out.len(), size);
            }
        }
    }
}
