//! The checksum of a file. It is the CRC-64 of `crc64.c` in Redis, which the catalogue of
//! parametrised CRC algorithms calls CRC-64/REDIS. The polynomial is that of Jones. The bits of
//! each byte and of the checksum are in reflected order. Nothing is inverted at the start or the
//! end.

use crc_fast::{CrcAlgorithm, Digest};

/// A checksum that is being computed.
#[derive(Clone, Debug)]
pub struct Crc64(Digest);

impl Default for Crc64 {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc64 {
    /// The checksum of no bytes.
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc64Redis))
    }

    /// Adds bytes to the checksum.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes that were added so far.
    pub fn value(&self) -> u64 {
        self.0.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(bytes: &[u8]) -> u64 {
        let mut crc = Crc64::new();
        crc.update(bytes);
        crc.value()
    }

    #[test]
    fn it_is_the_one_that_redis_uses() {
        assert_eq!(whole(b""), 0);
        assert_eq!(whole(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn it_is_the_polynomial_bit_by_bit_whatever_the_pieces() {
        const REFLECTED: u64 = 0x95ac_9329_ac4b_c9b5;
        let bytes: Vec<u8> = (0..3000_u32).map(|i| ((i * i) >> 3) as u8).collect();
        let mut crc = Crc64::new();
        let mut expected = 0_u64;
        let mut rest = &bytes[..];
        for size in (0..).map(|i| i * 7 % 300) {
            let (now, later) = rest.split_at(size.min(rest.len()));
            crc.update(now);
            for byte in now {
                expected ^= u64::from(*byte);
                for _ in 0..8 {
                    let carry = expected & 1;
                    expected = (expected >> 1) ^ (carry * REFLECTED);
                }
            }
            assert_eq!(crc.value(), expected);
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        assert_eq!(whole(&bytes), expected);
    }
}
