//! Reads values of any layout as strings, lists, sets, sorted sets, hashes and streams.

use std::io::Read;

use super::large::LargeLzf;
use super::stream::{StreamPart, StreamState};
use super::{FileReader, STRING_PIECE_SIZE};
use crate::element::Element;
use crate::error::{Error, Malformed};
use crate::length::{Input, StringHead};
use crate::packed::{Layout, Packed};
use crate::source::Source;
use crate::version::{Kind, ValueType};

/// A part of a value. Which parts a value has depends on its [`Kind`].
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// A whole string, or a piece of a large one.
    String {
        /// The bytes. Each piece except the last has [`STRING_PIECE_SIZE`] bytes.
        bytes: Vec<u8>,
        /// How many bytes follow in other pieces, according to the file.
        rest_size: u64,
    },
    /// The next element of a list, or a member of a set.
    Element(Vec<u8>),
    /// A member of a sorted set.
    Scored {
        /// The member.
        member: Vec<u8>,
        /// Its score, which is a number.
        score: f64,
    },
    /// A field of a hash.
    Field(Field),
    /// A part of a stream.
    Stream(StreamPart),
}

/// A field of a hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// When the field expires, in Unix milliseconds.
    pub expire_at_ms: Option<i64>,
}

/// A whole value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A string.
    String(Vec<u8>),
    /// The elements in order.
    List(Vec<Vec<u8>>),
    /// The members in the order of the file.
    Set(Vec<Vec<u8>>),
    /// Members and their scores in the order of the file.
    SortedSet(Vec<(Vec<u8>, f64)>),
    /// The fields in the order of the file.
    Hash(Vec<Field>),
    /// The parts in the order of the file.
    Stream(Vec<StreamPart>),
    /// A module's value, which was skipped.
    Module,
}

impl Value {
    /// An empty value of this kind.
    pub(super) fn empty(kind: Kind) -> Self {
        match kind {
            Kind::String => Self::String(Vec::new()),
            Kind::List => Self::List(Vec::new()),
            Kind::Set => Self::Set(Vec::new()),
            Kind::SortedSet => Self::SortedSet(Vec::new()),
            Kind::Hash => Self::Hash(Vec::new()),
            Kind::Stream => Self::Stream(Vec::new()),
            Kind::Module => Self::Module,
        }
    }

    pub(super) fn push(&mut self, part: Part) {
        match (self, part) {
            (Self::String(value), Part::String { bytes, .. }) if value.is_empty() => *value = bytes,
            (Self::String(value), Part::String { bytes, .. }) => value.extend_from_slice(&bytes),
            (Self::List(value) | Self::Set(value), Part::Element(element)) => value.push(element),
            (Self::SortedSet(value), Part::Scored { member, score }) => {
                value.push((member, score));
            }
            (Self::Hash(value), Part::Field(field)) => value.push(field),
            (Self::Stream(value), Part::Stream(part)) => value.push(part),
            (value, part) => unreachable!("{part:?} is no part of {value:?}"),
        }
    }
}

/// The rest of a value, which is still to be read.
#[derive(Debug)]
pub(super) enum Open {
    Nothing,
    /// The whole value, which has this type.
    Unread(ValueType),
    /// This many bytes of a large string.
    Plain(u64),
    LargeLzf(Box<LargeLzf>),
    /// This many elements of a list or set.
    Elements(Kind, u64),
    /// This many members, each with a score.
    Scored {
        rest: u64,
        is_binary: bool,
    },
    /// This many fields.
    Fields {
        rest: u64,
        expiry: Expiry,
    },
    /// A collection packed in one string, which begins at `offset`.
    Packed {
        packed: Packed,
        shape: Shape,
        offset: u64,
    },
    /// The count of a list's unread nodes, and the node that is open, with its offset.
    Quicklist {
        rest: u64,
        is_second: bool,
        node: Option<(Packed, u64)>,
    },
    Stream(StreamState),
    Module,
}

/// Where the expiry time of a hash's field is, and in which form.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expiry {
    /// Fields have no expiry time.
    None,
    /// In front of the field, encoded like a length; 0 means none.
    InFront,
    /// In front of the field, encoded like a length. 0 means none. Any other number is one more
    /// than the time's distance from the smallest time of the hash's fields.
    Above(i64),
    /// After the value, in eight bytes; -1 means none.
    Behind,
}

/// What the elements of a packed value are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    Elements(Kind),
    Scored,
    Fields,
    ExpiringFields,
}

impl Open {
    /// The kind of the value.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Unread(value_type) => value_type.kind(),
            Self::Plain(_) | Self::LargeLzf(_) => Kind::String,
            Self::Elements(kind, _) | Self::Packed { shape: Shape::Elements(kind), .. } => *kind,
            Self::Scored { .. } | Self::Packed { shape: Shape::Scored, .. } => Kind::SortedSet,
            Self::Fields { .. } | Self::Packed { .. } => Kind::Hash,
            Self::Quicklist { .. } => Kind::List,
            Self::Stream(_) => Kind::Stream,
            Self::Nothing | Self::Module => Kind::Module,
        }
    }
}

impl<R: Read> FileReader<R> {
    pub(super) fn read_part(&mut self) -> Result<Option<Part>, Error> {
        let source = &mut self.source;
        if let Open::Unread(value_type) = self.open {
            if value_type == ValueType::String {
                let (part, open) = string(source)?;
                self.open = open;
                return Ok(Some(part));
            }
            self.open = begin(value_type, source)?;
        }
        let part = match &mut self.open {
            Open::Nothing | Open::Unread(_) => None,
            Open::Plain(rest) => plain_piece(rest, source)?,
            Open::LargeLzf(large) if large.rest() == 0 => None,
            Open::LargeLzf(large) => {
                let bytes = large.piece(source)?;
                Some(Part::String { bytes, rest_size: large.rest() })
            }
            Open::Elements(_, 0) | Open::Scored { rest: 0, .. } | Open::Fields { rest: 0, .. } => {
                None
            }
            Open::Elements(_, rest) => {
                *rest -= 1;
                Some(Part::Element(source.string()?))
            }
            Open::Scored { rest, is_binary } => {
                *rest -= 1;
                Some(scored(source, *is_binary)?)
            }
            Open::Fields { rest, expiry } => {
                *rest -= 1;
                Some(Part::Field(field(source, *expiry)?))
            }
            Open::Packed { packed, shape, offset } => {
                packed_part(packed, *shape).map_err(|what| what.at(*offset))?
            }
            Open::Quicklist { rest, is_second, node } => {
                quicklist_part(rest, *is_second, node, source)?
            }
            Open::Stream(state) => state.part(source)?.map(Part::Stream),
            Open::Module => {
                skip_module(source)?;
                None
            }
        };
        if part.is_none() {
            self.open = Open::Nothing;
        }
        Ok(part)
    }
}

/// The first part of a string, and the rest of the string.
fn string<R: Read>(source: &mut Source<R>) -> Result<(Part, Open), Error> {
    let offset = source.offset();
    let piece_size = STRING_PIECE_SIZE as u64;
    match source.string_head()? {
        StringHead::Plain(mut size) if size > piece_size => {
            let part = plain_piece(&mut size, source)?;
            let part = part.ok_or(Error::Corrupt { offset, what: "a string without bytes" })?;
            Ok((part, Open::Plain(size)))
        }
        StringHead::Lzf { compressed_size, size } if compressed_size.max(size) > piece_size => {
            let mut large = Box::new(LargeLzf::new(offset, compressed_size, size));
            let bytes = large.piece(source)?;
            Ok((Part::String { bytes, rest_size: large.rest() }, Open::LargeLzf(large)))
        }
        head => {
            let bytes = source.string_behind(head, offset)?;
            Ok((Part::String { bytes, rest_size: 0 }, Open::Nothing))
        }
    }
}

fn plain_piece<R: Read>(rest: &mut u64, source: &mut Source<R>) -> Result<Option<Part>, Error> {
    if *rest == 0 {
        return Ok(None);
    }
    let size = (*rest).min(STRING_PIECE_SIZE as u64);
    let mut bytes = Vec::new();
    source.append(size, &mut bytes)?;
    *rest -= size;
    Ok(Some(Part::String { bytes, rest_size: *rest }))
}

/// Reads the head of a value, in front of its first part.
fn begin<R: Read>(value_type: ValueType, source: &mut Source<R>) -> Result<Open, Error> {
    let kind = value_type.kind();
    Ok(match value_type {
        ValueType::List | ValueType::Set => Open::Elements(kind, source.length()?),
        ValueType::SortedSet | ValueType::SortedSet2 => {
            let is_binary = value_type == ValueType::SortedSet2;
            Open::Scored { rest: source.length()?, is_binary }
        }
        ValueType::Hash => Open::Fields { rest: source.length()?, expiry: Expiry::None },
        ValueType::HashExpiryPreGa => {
            Open::Fields { rest: source.length()?, expiry: Expiry::InFront }
        }
        ValueType::HashExpiry => {
            let expiry = Expiry::Above(i64::from_le_bytes(source.array()?));
            Open::Fields { rest: source.length()?, expiry }
        }
        ValueType::ValkeyHashExpiry => {
            Open::Fields { rest: source.length()?, expiry: Expiry::Behind }
        }
        ValueType::HashListpackExpiry => {
            // The smallest expiry time is skipped, because the listpack has all expiry times.
            source.array::<8>()?;
            packed(Layout::Listpack, Shape::ExpiringFields, source)?
        }
        ValueType::HashListpackExpiryPreGa => {
            packed(Layout::Listpack, Shape::ExpiringFields, source)?
        }
        ValueType::HashZipmap => packed(Layout::Zipmap, Shape::Fields, source)?,
        ValueType::HashZiplist => packed(Layout::Ziplist, Shape::Fields, source)?,
        ValueType::HashListpack => packed(Layout::Listpack, Shape::Fields, source)?,
        ValueType::ListZiplist => packed(Layout::Ziplist, Shape::Elements(kind), source)?,
        ValueType::SetIntset => packed(Layout::Intset, Shape::Elements(kind), source)?,
        ValueType::SetListpack => packed(Layout::Listpack, Shape::Elements(kind), source)?,
        ValueType::SortedSetZiplist => packed(Layout::Ziplist, Shape::Scored, source)?,
        ValueType::SortedSetListpack => packed(Layout::Listpack, Shape::Scored, source)?,
        ValueType::ListQuicklist | ValueType::ListQuicklist2 => {
            let is_second = value_type == ValueType::ListQuicklist2;
            Open::Quicklist { rest: source.length()?, is_second, node: None }
        }
        ValueType::Stream | ValueType::Stream2 | ValueType::Stream3 => {
            Open::Stream(StreamState::new(value_type))
        }
        ValueType::String | ValueType::ModulePreGa | ValueType::Module2 => Open::Module,
    })
}

fn packed<R: Read>(layout: Layout, shape: Shape, source: &mut Source<R>) -> Result<Open, Error> {
    let (packed, offset) = open_packed(layout, source)?;
    Ok(Open::Packed { packed, shape, offset })
}

fn open_packed<R: Read>(layout: Layout, source: &mut Source<R>) -> Result<(Packed, u64), Error> {
    let offset = source.offset();
    let bytes = source.string()?;
    let packed = Packed::open(layout, bytes).map_err(|what| what.at(offset))?;
    Ok((packed, offset))
}

fn scored<R: Read>(source: &mut Source<R>, is_binary: bool) -> Result<Part, Error> {
    let member = source.string()?;
    let offset = source.offset();
    let score = if is_binary {
        f64::from_le_bytes(source.array()?)
    } else {
        match source.byte()? {
            253 => f64::NAN,
            254 => f64::INFINITY,
            255 => f64::NEG_INFINITY,
            size => {
                let mut digits = Vec::new();
                source.append(size.into(), &mut digits)?;
                number(&digits)
            }
        }
    };
    if score.is_nan() {
        return Err(NO_NUMBER.at(offset));
    }
    Ok(Part::Scored { member, score })
}

const NO_NUMBER: Malformed = Malformed("a score is not a number");

/// The number that the decimal digits spell; NaN if they are malformed.
fn number(digits: &[u8]) -> f64 {
    std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

fn field<R: Read>(source: &mut Source<R>, expiry: Expiry) -> Result<Field, Error> {
    let offset = source.offset();
    let wrong = Malformed("a field expires at an impossible time");
    let in_front = match expiry {
        Expiry::InFront | Expiry::Above(_) => source.length()?,
        Expiry::None | Expiry::Behind => 0,
    };
    let (name, value) = (source.string()?, source.string()?);
    let expire_at_ms = match expiry {
        Expiry::None => None,
        Expiry::InFront | Expiry::Above(_) if in_front == 0 => None,
        Expiry::InFront => Some(i64::try_from(in_front).map_err(|_| wrong.at(offset))?),
        Expiry::Above(min_ms) => {
            Some(min_ms.checked_add_unsigned(in_front - 1).ok_or(wrong.at(offset))?)
        }
        Expiry::Behind => Some(i64::from_le_bytes(source.array()?)).filter(|at_ms| *at_ms != -1),
    };
    Ok(Field { name, value, expire_at_ms })
}

fn packed_part(packed: &mut Packed, shape: Shape) -> Result<Option<Part>, Malformed> {
    let Some(first) = packed.next()? else { return Ok(None) };
    let first = first.to_vec();
    Ok(Some(match shape {
        Shape::Elements(_) => Part::Element(first),
        Shape::Scored => {
            let score = match packed.partner()? {
                Element::Integer(score) => score as f64,
                Element::Bytes(digits) => number(digits),
            };
            if score.is_nan() {
                return Err(NO_NUMBER);
            }
            Part::Scored { member: first, score }
        }
        Shape::Fields => {
            let value = packed.partner()?.to_vec();
            Part::Field(Field { name: first, value, expire_at_ms: None })
        }
        Shape::ExpiringFields => {
            let value = packed.partner()?.to_vec();
            let Element::Integer(at_ms) = packed.partner()? else {
                return Err(Malformed("the expiry time of a field is not an integer"));
            };
            let expire_at_ms = Some(at_ms).filter(|at_ms| *at_ms != 0);
            Part::Field(Field { name: first, value, expire_at_ms })
        }
    }))
}

/// A node of a list of type [`ValueType::ListQuicklist2`] begins with this number if the node is
/// one large element.
const NODE_PLAIN: u64 = 1;
/// A node of a list of type [`ValueType::ListQuicklist2`] begins with this number if the node is a
/// listpack.
pub const NODE_PACKED: u64 = 2;

fn quicklist_part<R: Read>(
    rest: &mut u64,
    is_second: bool,
    node: &mut Option<(Packed, u64)>,
    source: &mut Source<R>,
) -> Result<Option<Part>, Error> {
    loop {
        if let Some((packed, offset)) = node {
            let part = packed_part(packed, Shape::Elements(Kind::List));
            if let Some(part) = part.map_err(|what| what.at(*offset))? {
                return Ok(Some(part));
            }
            *node = None;
        }
        let Some(after) = rest.checked_sub(1) else { return Ok(None) };
        *rest = after;
        if !is_second {
            *node = Some(open_packed(Layout::Ziplist, source)?);
            continue;
        }
        let offset = source.offset();
        match source.length()? {
            NODE_PLAIN => return source.string().map(Part::Element).map(Some),
            NODE_PACKED => *node = Some(open_packed(Layout::Listpack, source)?),
            _ => return Err(Malformed("a node of a list has an unknown form").at(offset)),
        }
    }
}

/// Marks in front of the pieces of a module's data. (`RDB_MODULE_OPCODE_` in Redis's `rdb.h`.)
const MODULE_EOF: u64 = 0;
const MODULE_SIGNED: u64 = 1;
pub(super) const MODULE_UNSIGNED: u64 = 2;
const MODULE_FLOAT: u64 = 3;
const MODULE_DOUBLE: u64 = 4;
const MODULE_STRING: u64 = 5;

/// Skips a module's data, up to its end mark.
pub(super) fn skip_module<R: Read>(source: &mut Source<R>) -> Result<(), Error> {
    loop {
        let offset = source.offset();
        match source.length()? {
            MODULE_EOF => return Ok(()),
            MODULE_SIGNED | MODULE_UNSIGNED => {
                source.length()?;
            }
            MODULE_FLOAT => source.skip(4)?,
            MODULE_DOUBLE => source.skip(8)?,
            MODULE_STRING => source.skip_string()?,
            _ => return Err(Malformed("a module's data has an unknown mark").at(offset)),
        }
    }
}
