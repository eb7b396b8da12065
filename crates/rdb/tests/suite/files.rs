//! Whole files: written data is read back, and every type of every version is understood.

use crate::maker::{Contents, Maker, read_all};
use proptest::prelude::*;
use slimio_rdb::{
    Attributes, Checksum, Encoder, Error, Field, FileReader, FileWriter, Item, Kind, Part,
    STRING_PIECE_SIZE, Value, ValueType, Version,
};

fn version(number: u16) -> Version {
    Version::to_read(number).unwrap()
}

/// A file with every type that `version` may contain.
fn every_type(version: Version) -> Maker {
    let mut maker = Maker::new(version);
    maker.old_types();
    maker.listpack_types();
    maker.streams(&[ValueType::Stream, ValueType::Stream2, ValueType::Stream3]);
    if version.is_valkey() {
        maker.valkey_types();
    } else {
        maker.newest_types();
    }
    maker.modules_and_functions();
    maker
}

#[test]
fn every_type_is_read() {
    for number in [9, 10, 11, 12, 80] {
        let maker = every_type(version(number));
        let Contents { keys, others } = read_all(&maker.file()).unwrap();
        let found: Vec<(Vec<u8>, Value)> =
            keys.iter().map(|(key, value)| (key.name.clone(), value.clone())).collect();
        assert_eq!(found, maker.expected);
        let expiring: Vec<_> =
            keys.iter().filter_map(|(key, _)| key.attributes.expire_at_ms).collect();
        assert_eq!(expiring, [2_000_000_000_000]);
        let (module, _) = keys.last().unwrap();
        assert_eq!(module.module.as_deref(), Some("AAAAAAAAB"));
        assert!(others.contains(&Item::ModuleAux { module: "AAAAAAAAB".into() }));
        assert!(others.contains(&Item::Function(b"#!lua name=library\n".to_vec())));
        assert!(others.contains(&Item::ResizeDb { db: 0, key_count: 40, expiring_count: 3 }));
    }
}

#[test]
fn what_is_not_read_of_a_value_is_passed_over() {
    let maker = every_type(version(12));
    let file = maker.file();
    for part_count in 0..3 {
        let mut reader = FileReader::open(&file[..]).unwrap();
        let mut names = Vec::new();
        while let Some(item) = reader.next_item().unwrap() {
            if let Item::Key(key) = item {
                names.push(key.name);
                for _ in 0..part_count {
                    reader.next_part().unwrap();
                }
            }
        }
        let expected: Vec<_> = maker.expected.iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(names, expected);
        assert_eq!(reader.checksum(), Some(Checksum::Matches));
        assert_eq!(reader.offset(), file.len() as u64);
        assert_eq!(reader.next_item().unwrap(), None, "no item follows the end");
    }
}

#[test]
fn files_without_a_checksum_are_read_and_wrong_checksums_are_not() {
    let mut writer = FileWriter::new(Vec::new(), Version::DEFAULT).unwrap().without_checksum();
    writer.encoder().unwrap().select_db(3);
    let mut file = writer.finish().unwrap();
    assert_eq!(file, b"REDIS0010\xfe\x03\xff\0\0\0\0\0\0\0\0");
    let mut reader = FileReader::open(&file[..]).unwrap();
    assert_eq!(reader.next_item().unwrap(), None);
    assert_eq!(reader.checksum(), Some(Checksum::Absent));

    let end = file.len() - 1;
    file[end] = 1;
    let error = read_all(&file).unwrap_err();
    assert!(matches!(error, Error::Checksum { stored: 0x0100_0000_0000_0000, .. }), "{error}");
    // Files of versions up to 4 have no checksum.
    let keys = read_all(b"REDIS0004\xfe\x00\x00\x01k\x01v\xff").unwrap().keys;
    assert_eq!(keys[0].1, Value::String(b"v".to_vec()));
}

#[test]
fn what_nobody_can_read_is_named() {
    let cases: [(&[u8], &str); 5] = [
        (
            b"\x06\x03key\x81\0\0\0\0\0\0\x04\x02",
            "the value of key, in the first layout of the module AAAAAAAAB",
        ),
        (b"\xf6\x01a", "functions of a release candidate"),
        (b"\x1a\x03key", "values of the unknown type 26"),
        (b"\x08\x03key", "values of the unknown type 8"),
        (b"\xf3\x03key\x00", "values of the unknown type 243"),
    ];
    for (bytes, sentence) in cases {
        let mut writer = FileWriter::new(Vec::new(), Version::DEFAULT).unwrap();
        writer.encoded(bytes).unwrap();
        let error = read_all(&writer.finish().unwrap()).unwrap_err().to_string();
        assert!(error.contains(sentence), "{error}");
        assert!(error.contains("at byte 9"), "{error}");
    }
}

#[test]
fn after_an_error_there_are_only_errors() {
    let file = b"REDIS0010\xfe\x00\x04\x01k\x02\x01f\x01v\x82";
    let mut reader = FileReader::open(&file[..]).unwrap();
    assert!(matches!(reader.next_item(), Ok(Some(Item::Key(_)))));
    assert!(matches!(reader.next_part(), Ok(Some(Part::Field(_)))));
    for _ in 0..3 {
        assert!(reader.next_part().is_err());
        assert!(reader.next_item().is_err());
    }
}

/// Bytes that compress to about half their size.
fn half_compressible(size: usize) -> Vec<u8> {
    let mut state = 1_u32;
    (0..size)
        .map(|i| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if i / 64 % 2 == 0 { (state >> 24) as u8 } else { b'x' }
        })
        .collect()
}

#[test]
fn large_strings_come_in_pieces() {
    let sizes = [
        0,
        1,
        STRING_PIECE_SIZE - 1,
        STRING_PIECE_SIZE,
        STRING_PIECE_SIZE + 1,
        3 * STRING_PIECE_SIZE,
        3 * STRING_PIECE_SIZE + 77,
    ];
    for encoder in [Encoder::new(Version::DEFAULT), Encoder::uncompressed(Version::DEFAULT)] {
        let mut writer = FileWriter::with(Vec::new(), encoder).unwrap();
        for size in sizes {
            for value in [half_compressible(size), vec![b'y'; size]] {
                let encoder = writer.encoder().unwrap();
                encoder.key(b"k", ValueType::String, Attributes::default());
                encoder.string(&value);
            }
        }
        let file = writer.finish().unwrap();
        let mut reader = FileReader::open(&file[..]).unwrap();
        for size in sizes {
            for expected in [half_compressible(size), vec![b'y'; size]] {
                assert!(matches!(reader.next_item(), Ok(Some(Item::Key(_)))));
                let mut value = Vec::new();
                while let Some(part) = reader.next_part().unwrap() {
                    let Part::String { bytes, rest_size } = part else { panic!("{part:?}") };
                    assert!(bytes.len() == STRING_PIECE_SIZE || rest_size == 0);
                    value.extend_from_slice(&bytes);
                    assert_eq!(value.len() + rest_size as usize, size);
                }
                assert!(value == expected, "{size}");
            }
        }
        assert_eq!(reader.next_item().unwrap(), None);
    }
}

#[test]
fn memory_does_not_grow_with_the_value() {
    // A string of 64 MiB compressed to 740 KiB, and a hash of a million fields.
    let size = 64 << 20;
    let mut compressed = vec![0, b'z'];
    for _ in 0..(size - 1) / 264 {
        compressed.extend_from_slice(&[0xe0, 0xff, 0]);
    }
    let rest = (size - 1) % 264;
    compressed.extend_from_slice(&[0xe0, rest as u8 - 9, 0]);
    let mut writer = FileWriter::new(Vec::new(), Version::DEFAULT).unwrap();
    let encoder = writer.encoder().unwrap();
    encoder.key(b"bomb", ValueType::String, Attributes::default());
    encoder.byte(0xc3);
    encoder.length(compressed.len() as u64);
    encoder.length(size as u64);
    encoder.raw(&compressed);
    encoder.key(b"hash", ValueType::Hash, Attributes::default());
    encoder.hash_start(1_000_000);
    for field in 0..1_000_000_i64 {
        let encoder = writer.encoder().unwrap();
        encoder.integer(field);
        encoder.integer(-field);
    }
    let file = writer.finish().unwrap();

    let (mut bytes, mut fields) = (0, 0_i64);
    let memory = allocation_counter::measure(|| {
        let mut reader = FileReader::open(&file[..]).unwrap();
        while reader.next_item().unwrap().is_some() {
            while let Some(part) = reader.next_part().unwrap() {
                match part {
                    Part::String { bytes: piece, .. } => {
                        assert!(piece.iter().all(|byte| *byte == b'z'));
                        bytes += piece.len();
                    }
                    Part::Field(field) => {
                        assert_eq!(field.name, fields.to_string().as_bytes());
                        fields += 1;
                    }
                    part => panic!("{part:?}"),
                }
            }
        }
    });
    assert_eq!((bytes, fields), (size, 1_000_000));
    assert!(memory.bytes_max < 2 << 20, "{} bytes", memory.bytes_max);
}

#[derive(Clone, Debug)]
struct Entry {
    db: u64,
    name: Vec<u8>,
    attributes: Attributes,
    value: Value,
    is_packed: bool,
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        any::<i64>().prop_map(|value| value.to_string().into_bytes()),
        any::<i16>().prop_map(|value| value.to_string().into_bytes()),
        ("[a-c]{1,9}", 0..999_usize).prop_map(|(text, count)| text.repeat(count).into_bytes()),
    ]
}

fn entry() -> impl Strategy<Value = Entry> {
    let field =
        (text(), text()).prop_map(|(name, value)| Field { name, value, expire_at_ms: None });
    let value = prop_oneof![
        text().prop_map(Value::String),
        proptest::collection::vec(field, 0..20).prop_map(Value::Hash),
    ];
    let attributes = (any::<Option<i64>>(), any::<Option<u64>>(), any::<Option<u8>>())
        .prop_map(|(expire_at_ms, idle_s, freq)| Attributes { expire_at_ms, idle_s, freq });
    (0..16_u64, text(), attributes, value, any::<bool>()).prop_map(
        |(db, name, attributes, value, is_packed)| Entry { db, name, attributes, value, is_packed },
    )
}

fn write(writer: &mut FileWriter<Vec<u8>>, entry: &Entry) {
    let encoder = writer.encoder().unwrap();
    encoder.select_db(entry.db);
    match &entry.value {
        Value::String(value) => {
            encoder.key(&entry.name, ValueType::String, entry.attributes);
            encoder.string(value);
        }
        Value::Hash(fields) if entry.is_packed => {
            encoder.key(&entry.name, encoder.version().packed_hash(), entry.attributes);
            encoder.packed_hash(fields.iter().map(|field| (&field.name[..], &field.value[..])));
        }
        Value::Hash(fields) => {
            encoder.key(&entry.name, ValueType::Hash, entry.attributes);
            encoder.hash_start(fields.len() as u64);
            for field in fields {
                encoder.string(&field.name);
                encoder.string(&field.value);
            }
        }
        value => panic!("this test cannot write {value:?}"),
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        number in 9..=12_u16,
        compresses in any::<bool>(),
        entries in proptest::collection::vec(entry(), 0..12),
    ) {
        let version = Version::to_write(number).unwrap();
        let encoder =
            if compresses { Encoder::new(version) } else { Encoder::uncompressed(version) };
        let mut writer = FileWriter::with(Vec::new(), encoder).unwrap();
        for entry in &entries {
            write(&mut writer, entry);
        }
        let size = writer.size();
        let file = writer.finish().unwrap();
        prop_assert_eq!(file.len() as u64, size + 9);
        let Contents { keys, others } = read_all(&file).unwrap();
        prop_assert_eq!(others, vec![]);
        prop_assert_eq!(keys.len(), entries.len());
        for ((key, value), entry) in keys.iter().zip(&entries) {
            prop_assert_eq!(key.db, entry.db);
            prop_assert_eq!(&key.name, &entry.name);
            prop_assert_eq!(key.attributes, entry.attributes);
            prop_assert_eq!(value, &entry.value);
            prop_assert!(matches!(key.kind(), Kind::String | Kind::Hash));
        }
    }
}
