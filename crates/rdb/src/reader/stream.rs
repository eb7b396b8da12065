//! Streams: nodes of packed entries, then the state of the stream, its groups and their consumers.
//!
//! ```text
//! nodes, each: | its first id, as a string of 16 bytes | listpack, as a string |
//! | entries | last id | first id* | largest deleted id* | entries ever added* |
//! groups, each: | name | last delivered id | entries read* |
//!   pending, each: | id: 16 bytes | delivered at: 8 bytes | deliveries |
//!   consumers, each: | name | seen at: 8 bytes | active at: 8 bytes** |
//!     pending, each: | id: 16 bytes |
//! ```
//!
//! Before every list that is marked "each" comes the count of its items. Fields with one star exist
//! from type 19 on, and those with two stars from type 21 on. An id is two numbers, each encoded as
//! a length, or, if the layout says so, 16 bytes in big-endian order. Times are Unix milliseconds.
//! (`rdbSaveObject` in Redis's `rdb.c`.)

use std::io::Read;

use crate::element::Element;
use crate::error::{Error, Malformed};
use crate::length::Input;
use crate::listpack::Listpack;
use crate::source::Source;
use crate::version::ValueType;

/// The id of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    /// Unix milliseconds, usually.
    pub ms: u64,
    /// A number that tells entries of the same millisecond apart.
    pub sequence: u64,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEntry {
    /// Its id.
    pub id: StreamId,
    /// Fields and their values, in the order in which they were given.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A part of a stream. The parts come in the order of these variants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamPart {
    /// Some entries, ascending. Deleted entries are left out.
    Entries(Vec<StreamEntry>),
    /// The state of the whole stream. This part comes once, after all entries.
    Info {
        /// How many entries there are.
        len: u64,
        /// The largest id that an entry ever had.
        last_id: StreamId,
        /// The smallest id that an entry has.
        first_id: Option<StreamId>,
        /// The largest id of a deleted entry.
        deleted_id_max: Option<StreamId>,
        /// How many entries were ever added.
        added_count: Option<u64>,
    },
    /// A group begins.
    Group {
        /// Its name.
        name: Vec<u8>,
        /// The last entry that the group delivered.
        last_id: StreamId,
        /// How many entries the group has read, if that is known.
        read_count: Option<u64>,
    },
    /// An entry that the group has delivered, but that nobody has acknowledged.
    Pending {
        /// The entry.
        id: StreamId,
        /// When the entry was delivered last, in Unix milliseconds.
        delivered_at_ms: i64,
        /// How often the entry was delivered.
        delivery_count: u64,
    },
    /// A consumer of the group begins.
    Consumer {
        /// Its name.
        name: Vec<u8>,
        /// When the consumer last tried to read, in Unix milliseconds.
        seen_at_ms: i64,
        /// When the consumer last read something, in Unix milliseconds.
        active_at_ms: Option<i64>,
    },
    /// One of the group's pending entries. This entry belongs to the consumer.
    ConsumerPending(StreamId),
}

/// A place in a stream: what comes next, and how many items of it are left.
#[derive(Clone, Debug)]
pub(super) struct StreamState {
    has_counts: bool,
    has_active: bool,
    groups: u64,
    consumers: u64,
    next: Next,
}

#[derive(Clone, Copy, Debug)]
enum Next {
    NodeCount,
    Nodes(u64),
    GroupCount,
    Group,
    PendingCount,
    Pending(u64),
    ConsumerCount,
    Consumer,
    ConsumerPendingCount,
    ConsumerPending(u64),
}

impl StreamState {
    /// The place at the beginning of a stream of this type.
    pub(super) fn new(value_type: ValueType) -> Self {
        Self {
            has_counts: matches!(value_type, ValueType::Stream2 | ValueType::Stream3),
            has_active: value_type == ValueType::Stream3,
            groups: 0,
            consumers: 0,
            next: Next::NodeCount,
        }
    }

    /// The next part; `None` at the end.
    pub(super) fn part<R: Read>(
        &mut self,
        source: &mut Source<R>,
    ) -> Result<Option<StreamPart>, Error> {
        loop {
            match self.next {
                Next::NodeCount => self.next = Next::Nodes(source.length()?),
                Next::Nodes(0) => {
                    self.next = Next::GroupCount;
                    return self.info(source).map(Some);
                }
                Next::Nodes(rest) => {
                    self.next = Next::Nodes(rest - 1);
                    return node(source).map(|entries| Some(StreamPart::Entries(entries)));
                }
                Next::GroupCount => {
                    self.groups = source.length()?;
                    self.next = Next::Group;
                }
                Next::Group if self.groups == 0 => return Ok(None),
                Next::Group => {
                    self.groups -= 1;
                    self.next = Next::PendingCount;
                    return self.group(source).map(Some);
                }
                Next::PendingCount => self.next = Next::Pending(source.length()?),
                Next::Pending(0) => self.next = Next::ConsumerCount,
                Next::Pending(rest) => {
                    self.next = Next::Pending(rest - 1);
                    let id = raw_id(source.array()?);
                    let delivered_at_ms = i64::from_le_bytes(source.array()?);
                    let delivery_count = source.length()?;
                    return Ok(Some(StreamPart::Pending { id, delivered_at_ms, delivery_count }));
                }
                Next::ConsumerCount => {
                    self.consumers = source.length()?;
                    self.next = Next::Consumer;
                }
                Next::Consumer if self.consumers == 0 => self.next = Next::Group,
                Next::Consumer => {
                    self.consumers -= 1;
                    self.next = Next::ConsumerPendingCount;
                    let name = source.string()?;
                    let seen_at_ms = i64::from_le_bytes(source.array()?);
                    let mut active_at_ms = None;
                    if self.has_active {
                        active_at_ms = Some(i64::from_le_bytes(source.array()?));
                    }
                    return Ok(Some(StreamPart::Consumer { name, seen_at_ms, active_at_ms }));
                }
                Next::ConsumerPendingCount => {
                    self.next = Next::ConsumerPending(source.length()?);
                }
                Next::ConsumerPending(0) => self.next = Next::Consumer,
                Next::ConsumerPending(rest) => {
                    self.next = Next::ConsumerPending(rest - 1);
                    return Ok(Some(StreamPart::ConsumerPending(raw_id(source.array()?))));
                }
            }
        }
    }

    fn info<R: Read>(&self, source: &mut Source<R>) -> Result<StreamPart, Error> {
        let len = source.length()?;
        let last_id = id(source)?;
        let (mut first_id, mut deleted_id_max, mut added_count) = (None, None, None);
        if self.has_counts {
            first_id = Some(id(source)?);
            deleted_id_max = Some(id(source)?);
            added_count = Some(source.length()?);
        }
        Ok(StreamPart::Info { len, last_id, first_id, deleted_id_max, added_count })
    }

    fn group<R: Read>(&self, source: &mut Source<R>) -> Result<StreamPart, Error> {
        let name = source.string()?;
        let last_id = id(source)?;
        let mut read_count = None;
        if self.has_counts {
            // An unknown count is written as -1.
            read_count = Some(source.length()?).filter(|count| *count != u64::MAX);
        }
        Ok(StreamPart::Group { name, last_id, read_count })
    }
}

fn id<R: Read>(source: &mut Source<R>) -> Result<StreamId, Error> {
    Ok(StreamId { ms: source.length()?, sequence: source.length()? })
}

fn raw_id(bytes: [u8; 16]) -> StreamId {
    let both = u128::from_be_bytes(bytes);
    StreamId { ms: (both >> 64) as u64, sequence: both as u64 }
}

fn node<R: Read>(source: &mut Source<R>) -> Result<Vec<StreamEntry>, Error> {
    let offset = source.offset();
    let master = source.string()?;
    let Ok(master) = <[u8; 16]>::try_from(master).map(raw_id) else {
        return Err(Malformed("the id of a stream's node does not have 16 bytes").at(offset));
    };
    let offset = source.offset();
    entries(master, &source.string()?).map_err(|what| what.at(offset))
}

/// Marks an entry that was deleted in place.
const DELETED: i64 = 1;
/// Marks an entry that has the same field names as the node.
const SAME_FIELDS: i64 = 2;

/// The entries of a node. First come the counts, and the field names that most entries share. Then
/// each entry follows:
///
/// ```text
/// | marks | id minus the node's id | fields and values | count of its elements |
/// ```
fn entries(master: StreamId, listpack: &[u8]) -> Result<Vec<StreamEntry>, Malformed> {
    let mut elements = Listpack::open(listpack)?;
    let live_count = integer(&mut elements)?;
    let deleted_count = integer(&mut elements)?;
    let shared_len = count(&mut elements)?;
    let shared: Vec<Vec<u8>> =
        (0..shared_len).map(|_| string(&mut elements)).collect::<Result<_, _>>()?;
    if integer(&mut elements)? != 0 {
        return Err(Malformed("the fields of a stream's node do not end where they should"));
    }
    let mut entries = Vec::new();
    let mut deleted = 0;
    while let Some(marks) = elements.next() {
        let Element::Integer(marks) = marks? else { return Err(NO_INTEGER) };
        let id = StreamId {
            ms: master.ms.wrapping_add_signed(integer(&mut elements)?),
            sequence: master.sequence.wrapping_add_signed(integer(&mut elements)?),
        };
        let mut fields = Vec::new();
        let elements_len = if marks & SAME_FIELDS == 0 {
            let len = count(&mut elements)?;
            for _ in 0..len {
                fields.push((string(&mut elements)?, string(&mut elements)?));
            }
            4 + 2 * len
        } else {
            for field in &shared {
                fields.push((field.clone(), string(&mut elements)?));
            }
            3 + shared.len()
        };
        if count(&mut elements)? != elements_len {
            return Err(Malformed("an entry of a stream is not as long as it says"));
        }
        if marks & DELETED == 0 {
            entries.push(StreamEntry { id, fields });
        } else {
            deleted += 1;
        }
    }
    if (entries.len() as i64, deleted) != (live_count, deleted_count) {
        return Err(Malformed("a stream's node does not have as many entries as it says"));
    }
    Ok(entries)
}

const NO_INTEGER: Malformed = Malformed("a stream's node lacks an integer that it needs");

fn integer(elements: &mut Listpack<'_>) -> Result<i64, Malformed> {
    match elements.next().transpose()? {
        Some(Element::Integer(value)) => Ok(value),
        _ => Err(NO_INTEGER),
    }
}

fn count(elements: &mut Listpack<'_>) -> Result<usize, Malformed> {
    usize::try_from(integer(elements)?).map_err(|_| NO_INTEGER)
}

fn string(elements: &mut Listpack<'_>) -> Result<Vec<u8>, Malformed> {
    let element = elements.next().transpose()?;
    element.map(|it| it.to_vec()).ok_or(Malformed("a stream's node is cut off"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listpack::ListpackWriter;

    fn packed(elements: &[&str]) -> Vec<u8> {
        let mut writer = ListpackWriter::new();
        for element in elements {
            writer.push(element.as_bytes());
        }
        writer.finish().to_vec()
    }

    const MASTER: StreamId = StreamId { ms: 1000, sequence: 5 };

    #[test]
    fn entries_with_shared_and_own_fields_and_deleted_ones() {
        let node = packed(&[
            "2", "1", "2", "a", "b", "0", // the node
            "2", "0", "0", "1", "2", "5", // an entry with the node's fields
            "3", "1", "0", "3", "4", "5", // a deleted entry with the node's fields
            "0", "2", "-5", "1", "c", "x", "6", // an entry with a field of its own
        ]);
        let entry = |ms, sequence, fields: &[(&str, &str)]| StreamEntry {
            id: StreamId { ms, sequence },
            fields: fields
                .iter()
                .map(|(f, v)| (f.as_bytes().into(), v.as_bytes().into()))
                .collect(),
        };
        let expected = [entry(1000, 5, &[("a", "1"), ("b", "2")]), entry(1002, 0, &[("c", "x")])];
        assert_eq!(entries(MASTER, &node).unwrap(), expected);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let wrong: [&[&str]; 7] = [
            &["1", "0", "1", "a", "0"],
            &["0", "0", "1", "a", "1"],
            &["1", "0", "1", "a", "0", "2", "0", "0", "v", "5"],
            &["1", "0", "1", "a", "0", "2", "0", "0", "v"],
            &["1", "0", "1", "a", "0", "x", "0", "0", "v", "4"],
            &["1", "0", "-1", "0"],
            &["1", "0", "9223372036854775807", "a"],
        ];
        for elements in wrong {
            assert!(entries(MASTER, &packed(elements)).is_err(), "{elements:?}");
        }
        let right = ["1", "0", "1", "a", "0", "2", "0", "0", "v", "4"];
        assert_eq!(entries(MASTER, &packed(&right)).unwrap().len(), 1);
    }
}
