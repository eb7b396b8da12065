//! Makes RDB files with values of every type, and reads RDB files.

use slimio_rdb::{
    Attributes, Encoder, Error, Field, FileReader, FileWriter, Item, Key, ListpackWriter, Value,
    ValueType, Version, ZiplistWriter, opcode,
};

/// The contents of a file.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// Every key with its value.
    pub(crate) keys: Vec<(Key, Value)>,
    /// Every other item.
    pub(crate) others: Vec<Item>,
}

/// Reads a whole file.
pub(crate) fn read_all(file: &[u8]) -> Result<Contents, Error> {
    let mut reader = FileReader::open(file)?;
    let mut contents = Contents::default();
    while let Some(item) = reader.next_item()? {
        match item {
            Item::Key(key) => contents.keys.push((key, reader.value()?)),
            other => contents.others.push(other),
        }
    }
    Ok(contents)
}

fn listpack(elements: &[&[u8]]) -> Vec<u8> {
    let mut writer = ListpackWriter::new();
    for element in elements {
        writer.push(element);
    }
    writer.finish().to_vec()
}

fn ziplist(elements: &[&[u8]]) -> Vec<u8> {
    let mut writer = ZiplistWriter::new();
    for element in elements {
        writer.push(element);
    }
    writer.finish().to_vec()
}

fn intset(size: u32, integers: &[i64]) -> Vec<u8> {
    let mut bytes = size.to_le_bytes().to_vec();
    bytes.extend_from_slice(&(integers.len() as u32).to_le_bytes());
    for integer in integers {
        bytes.extend_from_slice(&integer.to_le_bytes()[..size as usize]);
    }
    bytes
}

fn strings(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn scores(members: &[(&str, f64)]) -> Value {
    Value::SortedSet(members.iter().map(|(m, score)| (m.as_bytes().to_vec(), *score)).collect())
}

fn fields(fields: &[(&str, &str, Option<i64>)]) -> Value {
    let field = |(name, value, expire_at_ms): &(&str, &str, Option<i64>)| Field {
        name: name.as_bytes().to_vec(),
        value: value.as_bytes().to_vec(),
        expire_at_ms: *expire_at_ms,
    };
    Value::Hash(fields.iter().map(field).collect())
}

/// Makes files by hand, as servers of all versions would make them. The maker also keeps the
/// contents of its file, so that a test can compare them with the contents that the reader finds.
pub(crate) struct Maker {
    version: Version,
    encoder: Encoder,
    /// The keys and values that the reader must find.
    pub(crate) expected: Vec<(Vec<u8>, Value)>,
}

impl Maker {
    pub(crate) fn new(version: Version) -> Self {
        let mut encoder = Encoder::new(version);
        encoder.aux(b"redis-ver", b"7.0.15");
        encoder.select_db(0);
        encoder.resize_db(40, 3);
        Self { version, encoder, expected: Vec::new() }
    }

    fn key(&mut self, name: &str, value_type: ValueType, value: Value) -> &mut Encoder {
        self.expected.push((name.as_bytes().to_vec(), value));
        self.encoder.key(name.as_bytes(), value_type, Attributes::default());
        &mut self.encoder
    }

    /// Adds a value that is packed in one string.
    fn packed(&mut self, name: &str, value_type: ValueType, bytes: &[u8], value: Value) {
        self.key(name, value_type, value).string(bytes);
    }

    /// Adds values of the types of Redis 2.8 to 6.2.
    pub(crate) fn old_types(&mut self) {
        let encoder = self.key("string", ValueType::String, Value::String(b"value".to_vec()));
        encoder.string(b"value");
        self.encoder.byte(opcode::EXPIRE_AT_S);
        self.encoder.raw(&2_000_000_000_i32.to_le_bytes());
        let encoder = self.key("integer", ValueType::String, Value::String(b"-70000".to_vec()));
        encoder.string(b"-70000");
        let long = vec![b'l'; 1000];
        self.key("compressed", ValueType::String, Value::String(long.clone())).string(&long);

        let elements = ["a", "1", "-40000", "bb"];
        for (name, value_type, value) in [
            ("list", ValueType::List, Value::List(strings(&elements))),
            ("set", ValueType::Set, Value::Set(strings(&elements))),
        ] {
            let encoder = self.key(name, value_type, value);
            encoder.length(elements.len() as u64);
            for element in elements {
                encoder.string(element.as_bytes());
            }
        }
        let expected = scores(&[("m", 1.5), ("inf", f64::INFINITY), ("-inf", f64::NEG_INFINITY)]);
        let encoder = self.key("zset", ValueType::SortedSet, expected.clone());
        encoder.length(3);
        encoder.raw(b"\x01m\x031.5\x03inf\xfe\x04-inf\xff");
        let encoder = self.key("zset2", ValueType::SortedSet2, expected);
        encoder.length(3);
        for (member, score) in [("m", 1.5), ("inf", f64::INFINITY), ("-inf", f64::NEG_INFINITY)] {
            encoder.string(member.as_bytes());
            encoder.raw(&f64::to_le_bytes(score));
        }
        let two = fields(&[("f", "1", None), ("gg", "value", None)]);
        let encoder = self.key("hash", ValueType::Hash, two.clone());
        encoder.hash_start(2);
        for text in ["f", "1", "gg", "value"] {
            encoder.string(text.as_bytes());
        }
        let zipmap = b"\x02\x01f\x01\x001\x02gg\x05\x00value\xff";
        self.packed("zipmap", ValueType::HashZipmap, zipmap, two.clone());
        let pairs = [&b"f"[..], b"1", b"gg", b"value"];
        self.packed("hash-ziplist", ValueType::HashZiplist, &ziplist(&pairs), two);
        let members = [&b"m"[..], b"-3", b"n", b"0.25"];
        let expected = scores(&[("m", -3.0), ("n", 0.25)]);
        self.packed("zset-ziplist", ValueType::SortedSetZiplist, &ziplist(&members), expected);
        let list = ["a", "12345678901234", "c"];
        let packed = ziplist(&list.map(str::as_bytes));
        let expected = Value::List(strings(&list));
        self.packed("list-ziplist", ValueType::ListZiplist, &packed, expected);
        for (name, size, integers) in [
            ("intset2", 2, [-5, 300]),
            ("intset4", 4, [-5, 70_000]),
            ("intset8", 8, [i64::MIN, i64::MAX]),
        ] {
            let expected = Value::Set(integers.map(|it| it.to_string().into_bytes()).into());
            self.packed(name, ValueType::SetIntset, &intset(size, &integers), expected);
        }
        let expected = Value::List(strings(&["a", "b", "1", "2"]));
        let encoder = self.key("quicklist", ValueType::ListQuicklist, expected);
        encoder.length(2);
        encoder.string(&ziplist(&[b"a", b"b"]));
        encoder.string(&ziplist(&[b"1", b"2"]));
    }

    /// Adds values of the types of Redis 7.0.
    pub(crate) fn listpack_types(&mut self) {
        let pairs = [&b"f"[..], b"1", b"gg", b"value"];
        let two = fields(&[("f", "1", None), ("gg", "value", None)]);
        self.packed("hash-listpack", ValueType::HashListpack, &listpack(&pairs), two);
        let members = [&b"m"[..], b"-3", b"n", b"0.25"];
        let expected = scores(&[("m", -3.0), ("n", 0.25)]);
        self.packed("zset-listpack", ValueType::SortedSetListpack, &listpack(&members), expected);
        let expected = Value::List(strings(&["large", "1", "2"]));
        let encoder = self.key("quicklist2", ValueType::ListQuicklist2, expected);
        encoder.raw(b"\x02\x01\x05large\x02");
        encoder.string(&listpack(&[b"1", b"2"]));
    }

    /// Adds values of the types of Redis 7.2 and 7.4, and of their release candidates.
    pub(crate) fn newest_types(&mut self) {
        let members = ["x", "17"];
        let packed = listpack(&members.map(str::as_bytes));
        let expected = Value::Set(strings(&members));
        self.packed("set-listpack", ValueType::SetListpack, &packed, expected);
        let triples = listpack(&[b"f", b"1", b"0", b"gg", b"value", b"1900000000000"]);
        let expected = fields(&[("f", "1", None), ("gg", "value", Some(1_900_000_000_000))]);
        let value_type = ValueType::HashListpackExpiryPreGa;
        self.packed("hash-23", value_type, &triples, expected.clone());
        let encoder = self.key("hash-25", ValueType::HashListpackExpiry, expected.clone());
        encoder.raw(&1_900_000_000_000_i64.to_le_bytes());
        encoder.string(&triples);
        let encoder = self.key("hash-22", ValueType::HashExpiryPreGa, expected);
        encoder.raw(b"\x02\x00\x01f\x011");
        encoder.length(1_900_000_000_000);
        encoder.raw(b"\x02gg\x05value");
        let expected = fields(&[("f", "1", Some(1007)), ("gg", "value", None)]);
        let encoder = self.key("hash-24", ValueType::HashExpiry, expected);
        encoder.raw(&1000_i64.to_le_bytes());
        encoder.raw(b"\x02\x08\x01f\x011\x00\x02gg\x05value");
    }

    /// Adds values of the types of Valkey 9.
    pub(crate) fn valkey_types(&mut self) {
        self.encoder.raw(b"\xf3\x04name\x01\x00\x40\xff");
        let expected = fields(&[("f", "1", None), ("gg", "value", Some(99))]);
        let encoder = self.key("hash-22", ValueType::ValkeyHashExpiry, expected);
        encoder.raw(b"\x02\x01f\x011");
        encoder.raw(&(-1_i64).to_le_bytes());
        encoder.raw(b"\x02gg\x05value");
        encoder.raw(&99_i64.to_le_bytes());
    }

    /// Adds streams of these types, with a group, a consumer and a pending entry.
    pub(crate) fn streams(&mut self, value_types: &[ValueType]) {
        use slimio_rdb::{StreamEntry, StreamId, StreamPart};
        let id = |ms, sequence| StreamId { ms, sequence };
        let node = listpack(&[
            b"2", b"1", b"1", b"f", b"0", // the node
            b"2", b"0", b"0", b"v", b"4", // an entry with the node's fields
            b"3", b"0", b"1", b"w", b"4", // a deleted entry with the node's fields
            b"0", b"5", b"0", b"1", b"g", b"7", b"6", // an entry with a field of its own
        ]);
        for &value_type in value_types {
            let has_counts = value_type != ValueType::Stream;
            let has_active = value_type == ValueType::Stream3;
            let entry = |id, field: &str, value: &str| StreamEntry {
                id,
                fields: vec![(field.as_bytes().to_vec(), value.as_bytes().to_vec())],
            };
            let expected = Value::Stream(vec![
                StreamPart::Entries(vec![
                    entry(id(1000, 0), "f", "v"),
                    entry(id(1005, 0), "g", "7"),
                ]),
                StreamPart::Info {
                    len: 2,
                    last_id: id(1005, 0),
                    first_id: has_counts.then_some(id(1000, 0)),
                    deleted_id_max: has_counts.then_some(id(1000, 1)),
                    added_count: has_counts.then_some(3),
                },
                StreamPart::Group {
                    name: b"group".to_vec(),
                    last_id: id(1000, 0),
                    read_count: has_counts.then_some(1),
                },
                StreamPart::Pending { id: id(1000, 0), delivered_at_ms: 77, delivery_count: 1 },
                StreamPart::Consumer {
                    name: b"consumer".to_vec(),
                    seen_at_ms: 78,
                    active_at_ms: has_active.then_some(79),
                },
                StreamPart::ConsumerPending(id(1000, 0)),
            ]);
            let raw_id = [1000_u64.to_be_bytes(), 0_u64.to_be_bytes()].concat();
            let encoder = self.key(&format!("{value_type:?}"), value_type, expected);
            encoder.length(1);
            encoder.string(&raw_id);
            encoder.string(&node);
            let lengths: &[u64] =
                if has_counts { &[2, 1005, 0, 1000, 0, 1000, 1, 3, 1] } else { &[2, 1005, 0, 1] };
            lengths.iter().copied().for_each(|length| encoder.length(length));
            encoder.string(b"group");
            let lengths: &[u64] = if has_counts { &[1000, 0, 1, 1] } else { &[1000, 0, 1] };
            lengths.iter().copied().for_each(|length| encoder.length(length));
            encoder.raw(&raw_id);
            encoder.raw(&77_i64.to_le_bytes());
            encoder.length(1);
            encoder.length(1);
            encoder.string(b"consumer");
            encoder.raw(&78_i64.to_le_bytes());
            if has_active {
                encoder.raw(&79_i64.to_le_bytes());
            }
            encoder.length(1);
            encoder.raw(&raw_id);
        }
    }

    /// Adds a module's value, a module's data that is not the value of a key, and a library of
    /// functions.
    pub(crate) fn modules_and_functions(&mut self) {
        // The module's name is AAAAAAAAB. Its data has a piece of each kind that a module can
        // write.
        let id = 1_u64 << 10 | 2;
        let marked = b"\x01\x05\x02\x06\x03abcd\x04abcdefgh\x05\x03xyz\x00";
        self.encoder.byte(opcode::MODULE_AUX);
        self.encoder.length(id);
        self.encoder.raw(b"\x02\x01");
        self.encoder.raw(marked);
        self.encoder.byte(opcode::FUNCTION);
        self.encoder.string(b"#!lua name=library\n");
        self.encoder.raw(&[opcode::SLOT_INFO, 7, 1, 0]);
        let encoder = self.key("module", ValueType::Module2, Value::Module);
        encoder.length(id);
        encoder.raw(marked);
    }

    /// The whole file.
    pub(crate) fn file(&self) -> Vec<u8> {
        let mut writer = FileWriter::new(Vec::new(), self.version).unwrap();
        writer.encoded(self.encoder.bytes()).unwrap();
        writer.finish().unwrap()
    }
}
