//! Requests on the elements of sets, hashes and lists: how requests are written, what data they
//! need, and which replies are right.
//!
//! | mix | request | data before the first request |
//! |---|---|---|
//! | `sadd` | `SADD` of one new member to a large set | the set |
//! | `sadd-new` | `SADD` of 5 members to a new key | nothing |
//! | `spop` | `SPOP` of one member | a large set |
//! | `sismember` | `SISMEMBER`, all hits | the set |
//! | `sinter` | `SINTER` of two sets of 1,000 members, half of which they share | the two sets |
//! | `hset` | `HSET` of a field that a large hash has | the hash |
//! | `hget` | `HGET`, all hits | the hash |
//! | `lpush`, `rpush` | a push of one element to a large list | the list |
//! | `lpop`, `rpop` | a pop of one element | a large list |
//! | `lrange:LEN` | `LRANGE` of the first `LEN` elements | the list |
//! | `linsert` | `LINSERT` amid 1,000 elements, or `LREM` of an inserted element | the short list |
//! | `lpos` | `LPOS` of the last of 1,000 elements | the short list |
//! | `lrem` | `LREM` of an element that a list of 1,000 does not have | the short list |
//!
//! Members, fields and elements look like keys: `key:000000000042`.

use fastrand::Rng;

use crate::client::Client;
use crate::error::Result;
use crate::reply::Seen;
use crate::request::{KEY_SIZE, RequestWriter};

/// Number of members of each set that `sadd-new` makes.
pub const SMALL_SET_LEN: u64 = 5;
/// Number of members of each set of `sinter`.
pub const INTERSECTED_LEN: u64 = 1000;
/// Number of members that both sets of `sinter` have.
pub const SHARED_LEN: u64 = 500;

/// Number of elements of the short list of `linsert`, `lpos` and `lrem`.
pub const SHORT_LIST_LEN: u64 = 1000;

const LEFT: &str = "left";
const RIGHT: &str = "right";

/// The data that must exist before the first request of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Nothing.
    Nothing,
    /// Every key of the key range.
    Keys,
    /// A set with every member of the key range.
    Set,
    /// A hash with every field of the key range.
    Hash,
    /// Two sets that share half of their members.
    TwoSets,
    /// A list with every element of the key range.
    List,
    /// A list of [`SHORT_LIST_LEN`] elements.
    ShortList,
}

/// Makes the list of `linsert`, `lpos` and `lrem`.
pub fn make_short_list(client: &mut Client) -> Result<()> {
    let elements = (0..SHORT_LIST_LEN).map(|element| format!("key:{element:012}"));
    let words: Vec<String> =
        ["RPUSH".to_owned(), "short".to_owned()].into_iter().chain(elements).collect();
    client.expect(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
    Ok(())
}

/// Makes the two sets of `sinter`.
pub fn make_two_sets(client: &mut Client) -> Result<()> {
    let right_from = INTERSECTED_LEN - SHARED_LEN;
    for (key, from) in [(LEFT, 0), (RIGHT, right_from)] {
        let members = (from..from + INTERSECTED_LEN).map(|member| format!("key:{member:012}"));
        let words: Vec<String> =
            ["SADD".to_owned(), key.to_owned()].into_iter().chain(members).collect();
        client.expect(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// One request on elements, not yet encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementOp {
    /// `SADD` of a new member to the large set.
    Add {
        /// The member's number.
        member: u64,
    },
    /// `SADD` of [`SMALL_SET_LEN`] members to a new key.
    AddSmall {
        /// The key's number.
        key: u64,
    },
    /// `SPOP` of one member of the large set.
    Pop,
    /// `SISMEMBER` of a member that the large set has.
    IsMember {
        /// The member's number.
        member: u64,
    },
    /// `SINTER` of two sets of [`INTERSECTED_LEN`] members.
    Intersect,
    /// `HSET` of one field of the large hash.
    SetField {
        /// The field's number.
        field: u64,
    },
    /// `HGET` of a field that the large hash has.
    GetField {
        /// The field's number.
        field: u64,
    },
    /// `LPUSH` or `RPUSH` of an element to the large list.
    Push {
        /// `LPUSH` or `RPUSH`.
        name: &'static str,
        /// The element's number.
        element: u64,
    },
    /// `LPOP` or `RPOP` of the large list.
    PopEnd {
        /// `LPOP` or `RPOP`.
        name: &'static str,
    },
    /// `LRANGE` of the first elements of the large list.
    Range {
        /// Number of elements.
        len: u64,
    },
    /// `LINSERT` before the middle element of the short list.
    Insert,
    /// `LREM` of one element that [`Insert`](Self::Insert) has inserted.
    RemoveInserted,
    /// `LPOS` of the last element of the short list.
    Find,
    /// `LREM` of an element that the short list does not have.
    RemoveAbsent,
}

impl ElementOp {
    /// Whether the request only reads.
    pub fn is_read(self) -> bool {
        matches!(
            self,
            Self::IsMember { .. }
                | Self::Intersect
                | Self::GetField { .. }
                | Self::Range { .. }
                | Self::Find
        )
    }

    /// Bytes of the keys, members and values that the request writes.
    pub fn payload_size(self, value_size: usize) -> u64 {
        match self {
            Self::Add { .. } | Self::Push { .. } => KEY_SIZE as u64,
            Self::AddSmall { .. } => (1 + SMALL_SET_LEN) * KEY_SIZE as u64,
            Self::SetField { .. } => (KEY_SIZE + value_size) as u64,
            Self::Insert => 1,
            _ => 0,
        }
    }

    /// Whether a reply is right. The generator itself checks error replies and the values of
    /// fields.
    pub fn is_answered_by(self, seen: &Seen) -> bool {
        match (self, seen) {
            (Self::Add { .. } | Self::IsMember { .. }, Seen::Integer(1))
            | (Self::SetField { .. } | Self::RemoveInserted, Seen::Integer(0 | 1))
            | (Self::RemoveAbsent, Seen::Integer(0)) => true,
            (Self::Push { .. } | Self::Insert, &Seen::Integer(len)) => len > 0,
            (Self::Find, &Seen::Integer(at)) => at >= SHORT_LIST_LEN as i64 - 1,
            (Self::Range { len }, &Seen::Array { strings, nils: 0 }) => strings == len,
            (Self::AddSmall { .. }, &Seen::Integer(added)) => added == SMALL_SET_LEN as i64,
            (Self::Pop | Self::PopEnd { .. }, &Seen::Bulk { len, .. }) => len == KEY_SIZE,
            (Self::Intersect, &Seen::Array { strings, nils: 0 }) => strings == SHARED_LEN,
            _ => false,
        }
    }

    /// Appends the request to `out`.
    pub(crate) fn write(self, writer: &RequestWriter, rng: &mut Rng, out: &mut Vec<u8>) {
        match self {
            Self::Add { member } => {
                out.extend_from_slice(b"*3\r\n$4\r\nSADD\r\n$3\r\nset\r\n");
                writer.write_key(member, out);
            }
            Self::AddSmall { key } => {
                let count = 2 + SMALL_SET_LEN;
                out.extend_from_slice(format!("*{count}\r\n$4\r\nSADD\r\n").as_bytes());
                writer.write_key(key, out);
                (0..SMALL_SET_LEN).for_each(|member| writer.write_key(key + member, out));
            }
            Self::Pop => out.extend_from_slice(b"*2\r\n$4\r\nSPOP\r\n$3\r\nset\r\n"),
            Self::IsMember { member } => {
                out.extend_from_slice(b"*3\r\n$9\r\nSISMEMBER\r\n$3\r\nset\r\n");
                writer.write_key(member, out);
            }
            Self::Intersect => {
                out.extend_from_slice(b"*3\r\n$6\r\nSINTER\r\n$4\r\nleft\r\n$5\r\nright\r\n");
            }
            Self::SetField { field } => {
                out.extend_from_slice(b"*4\r\n$4\r\nHSET\r\n$4\r\nhash\r\n");
                writer.write_key(field, out);
                writer.write_value(field, rng, out);
            }
            Self::Push { name, element } => {
                out.extend_from_slice(format!("*3\r\n$5\r\n{name}\r\n$4\r\nlist\r\n").as_bytes());
                writer.write_key(element, out);
            }
            Self::PopEnd { name } => {
                out.extend_from_slice(format!("*2\r\n$4\r\n{name}\r\n$4\r\nlist\r\n").as_bytes());
            }
            Self::Range { len } => {
                let last = (len - 1).to_string();
                let words = format!("$1\r\n0\r\n${}\r\n{last}\r\n", last.len());
                out.extend_from_slice(b"*4\r\n$6\r\nLRANGE\r\n$4\r\nlist\r\n");
                out.extend_from_slice(words.as_bytes());
            }
            Self::Insert => {
                out.extend_from_slice(b"*5\r\n$7\r\nLINSERT\r\n$5\r\nshort\r\n$6\r\nBEFORE\r\n");
                writer.write_key(SHORT_LIST_LEN / 2, out);
                out.extend_from_slice(b"$1\r\nx\r\n");
            }
            Self::RemoveInserted => {
                out.extend_from_slice(b"*4\r\n$4\r\nLREM\r\n$5\r\nshort\r\n$1\r\n1\r\n$1\r\nx\r\n");
            }
            Self::Find => {
                out.extend_from_slice(b"*3\r\n$4\r\nLPOS\r\n$5\r\nshort\r\n");
                writer.write_key(SHORT_LIST_LEN - 1, out);
            }
            Self::RemoveAbsent => {
                out.extend_from_slice(b"*4\r\n$4\r\nLREM\r\n$5\r\nshort\r\n$1\r\n0\r\n");
                writer.write_key(SHORT_LIST_LEN, out);
            }
            Self::GetField { field } => {
                out.extend_from_slice(b"*3\r\n$4\r\nHGET\r\n$4\r\nhash\r\n");
                writer.write_key(field, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::ValuePool;

    fn written(op: ElementOp) -> String {
        let writer = RequestWriter::new(ValuePool::new(3, 1.0, 1));
        let mut out = Vec::new();
        op.write(&writer, &mut Rng::with_seed(1), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn requests_are_resp() {
        let key = |number: u64| format!("$16\r\nkey:{number:012}\r\n");
        assert_eq!(
            written(ElementOp::Add { member: 7 }),
            format!("*3\r\n$4\r\nSADD\r\n$3\r\nset\r\n{}", key(7))
        );
        let members: String = (9..14).map(key).collect();
        assert_eq!(
            written(ElementOp::AddSmall { key: 9 }),
            format!("*7\r\n$4\r\nSADD\r\n{}{members}", key(9))
        );
        assert_eq!(
            written(ElementOp::SetField { field: 7 }),
            format!("*4\r\n$4\r\nHSET\r\n$4\r\nhash\r\n{}$3\r\nxxx\r\n", key(7))
        );
        assert_eq!(
            written(ElementOp::Push { name: "LPUSH", element: 7 }),
            format!("*3\r\n$5\r\nLPUSH\r\n$4\r\nlist\r\n{}", key(7))
        );
        assert_eq!(
            written(ElementOp::Range { len: 100 }),
            "*4\r\n$6\r\nLRANGE\r\n$4\r\nlist\r\n$1\r\n0\r\n$2\r\n99\r\n"
        );
    }

    #[test]
    fn a_reply_that_shows_less_work_is_wrong() {
        let add = ElementOp::Add { member: 1 };
        assert!(add.is_answered_by(&Seen::Integer(1)));
        assert!(!add.is_answered_by(&Seen::Integer(0)), "an SADD that adds no member is wrong");
        assert!(
            !ElementOp::Pop.is_answered_by(&Seen::Nil),
            "an SPOP that finds no member is wrong"
        );
        let shared = Seen::Array { strings: SHARED_LEN - 1, nils: 0 };
        assert!(!ElementOp::Intersect.is_answered_by(&shared));
        assert!(!ElementOp::Range { len: SHARED_LEN }.is_answered_by(&shared));
        assert!(
            !ElementOp::Find.is_answered_by(&Seen::Nil),
            "an LPOS that finds no element is wrong"
        );
    }
}
