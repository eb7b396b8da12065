//! If a file is truncated, damaged or malicious, the reader returns an error. It does not panic,
//! and does not allocate the sizes that the file claims.

use std::io::{self, Read};

use crate::maker::{Maker, read_all};
use slimio_rdb::{Error, FileReader, Item, ValueType, Version};

/// The largest number of bytes that the reader may allocate. This is more than enough for the
/// reader's own buffers and a piece of a large string.
const MEMORY_MAX: u64 = 1 << 20;

fn files() -> Vec<Vec<u8>> {
    [9, 12, 80]
        .map(|number| {
            let mut maker = Maker::new(Version::to_read(number).unwrap());
            maker.old_types();
            maker.listpack_types();
            maker.streams(&[ValueType::Stream, ValueType::Stream2, ValueType::Stream3]);
            if number == 80 {
                maker.valkey_types();
            } else {
                maker.newest_types();
            }
            maker.modules_and_functions();
            maker.file()
        })
        .into()
}

/// Reads everything, and checks that no more than `MEMORY_MAX` was allocated at any time.
pub(crate) fn read(file: &[u8]) -> Result<(), Error> {
    let mut result = Ok(());
    let memory = allocation_counter::measure(|| {
        result = (|| {
            let mut reader = FileReader::open(file)?;
            while let Some(item) = reader.next_item()? {
                if matches!(item, Item::Key(_)) {
                    while reader.next_part()?.is_some() {}
                }
            }
            Ok(())
        })();
    });
    assert!(
        memory.bytes_max < MEMORY_MAX,
        "the reader allocated {} bytes for {result:?}",
        memory.bytes_max
    );
    result
}

#[test]
fn a_file_that_was_cut_says_where() {
    for file in files() {
        assert!(read(&file).is_ok());
        for end in 0..file.len() {
            match read(&file[..end]).unwrap_err() {
                Error::NotRdb => assert!(end < 9),
                Error::Truncated { offset } => assert_eq!(offset, end as u64),
                error => panic!("a file cut at {end} gives a wrong error: {error}"),
            }
        }
    }
}

#[test]
fn every_flipped_bit_is_found() {
    for mut file in files() {
        for at in 0..file.len() {
            for bit in 0..8 {
                file[at] ^= 1 << bit;
                // A flipped bit can turn version 9 into version 1, which has no checksum.
                let opened = FileReader::open(&file[..]);
                let has_checksum = opened.is_ok_and(|reader| reader.version().has_checksum());
                let must_fail = has_checksum || at >= 9;
                assert!(
                    !must_fail || read(&file).is_err(),
                    "no error after a flip of bit {bit} in byte {at}"
                );
                file[at] ^= 1 << bit;
            }
        }
        assert!(read(&file).is_ok());
    }
}

#[test]
fn without_a_checksum_damage_is_survived() {
    for mut file in files() {
        let end = file.len();
        file[end - 8..].fill(0);
        let mut refused = 0;
        for at in 9..end - 8 {
            let before = file[at];
            for byte in
                (0..=255).step_by(5).chain([before ^ 1, before ^ 0x80, before.wrapping_add(1)])
            {
                file[at] = byte;
                refused += u32::from(read(&file).is_err());
            }
            file[at] = before;
        }
        assert!(refused > 10_000, "too few of the damaged files are refused: {refused}");
    }
}

#[test]
fn random_bytes_behind_every_type_are_survived() {
    let mut random = fastrand::Rng::with_seed(1);
    for version in [b"REDIS0012", b"VALKEY080"] {
        for code in 0..=255 {
            for _ in 0..200 {
                let mut file = version.to_vec();
                file.extend_from_slice(&[code, 1, b'k']);
                for _ in 0..random.usize(..12) {
                    // Bytes with small values are often read as lengths that fit in the file.
                    // Arbitrary bytes are often read as lengths that do not fit.
                    let bytes = random.u64(..).to_le_bytes();
                    let is_small = !bytes[0].is_multiple_of(3);
                    file.extend(
                        bytes[1..].iter().map(|byte| if is_small { byte % 8 } else { *byte }),
                    );
                }
                let _ = read(&file).map_err(|error| error.to_string());
            }
        }
    }
}

#[test]
fn claims_take_no_memory() {
    let large = b"\x81\x00\x00\x00\x7f\xff\xff\xff\xff";
    // A value of each type claims a count or size of half a terabyte, but only a few bytes follow.
    for code in (0..=25).filter(|code| *code != 8) {
        let mut file = b"REDIS0012".to_vec();
        file.extend_from_slice(&[code, 1, b'k']);
        file.extend_from_slice(large);
        file.extend_from_slice(&[1; 50]);
        assert!(read(&file).is_err(), "type {code}");
    }
    // A few compressed bytes claim to be a large string.
    for claim in [&b"\x80\x3f\xff\xff\xff"[..], large] {
        for code in [0, 16] {
            let mut file = b"REDIS0012".to_vec();
            file.extend_from_slice(&[code, 1, b'k', 0xc3, 5]);
            file.extend_from_slice(claim);
            file.extend_from_slice(b"\x00x\xe0\xff\x00\xff");
            assert!(read(&file).is_err(), "type {code}");
        }
    }
    // First the name of a key claims to be large, then the name of an auxiliary field.
    for head in [&b"\x00"[..], b"\xfa"] {
        let mut file = [b"REDIS0012", head, large].concat();
        file.extend_from_slice(&[1; 50]);
        assert!(matches!(read(&file), Err(Error::Unsupported { .. })));
    }
}

/// A source that always fails.
#[derive(Debug)]
struct Failing;

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::other("the disk is gone"))
    }
}

/// A source that returns one byte at a time. Between two bytes, a read is interrupted.
struct Slow<'a> {
    bytes: &'a [u8],
    was_interrupted: bool,
}

impl Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.was_interrupted = !self.was_interrupted;
        if self.was_interrupted {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let (now, later) = self.bytes.split_at(self.bytes.len().min(1));
        buffer[..now.len()].copy_from_slice(now);
        self.bytes = later;
        Ok(now.len())
    }
}

#[test]
fn sources_may_fail_and_may_be_slow() {
    let error = FileReader::open(Failing).unwrap_err();
    assert_eq!(error.to_string(), "the disk is gone");

    let file = &files()[1];
    let expected = read_all(file).unwrap().keys;
    let mut reader = FileReader::open(Slow { bytes: file, was_interrupted: false }).unwrap();
    let mut found = Vec::new();
    while let Some(item) = reader.next_item().unwrap() {
        if let Item::Key(key) = item {
            found.push((key, reader.value().unwrap()));
        }
    }
    assert_eq!(found, expected);
}
