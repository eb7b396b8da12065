//! A small collection in one piece of memory, in one of four layouts.

use crate::element::Element;
use crate::error::Malformed;
use crate::{intset, listpack, ziplist, zipmap};

/// How elements are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Listpack,
    Ziplist,
    Intset,
    Zipmap,
}

/// The bytes of a collection, and a place in them.
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    bytes: Vec<u8>,
    cursor: Cursor,
}

#[derive(Clone, Debug)]
enum Cursor {
    Listpack(listpack::Cursor),
    Ziplist(ziplist::Cursor),
    Intset(intset::Cursor),
    Zipmap(zipmap::Cursor),
}

impl Packed {
    /// Checks at least the header. Each element is checked when it is read.
    pub(crate) fn open(layout: Layout, bytes: Vec<u8>) -> Result<Self, Malformed> {
        let cursor = match layout {
            Layout::Listpack => Cursor::Listpack(listpack::Cursor::open(&bytes)?),
            Layout::Ziplist => Cursor::Ziplist(ziplist::Cursor::open(&bytes)?),
            Layout::Intset => Cursor::Intset(intset::Cursor::open(&bytes)?),
            Layout::Zipmap => Cursor::Zipmap(zipmap::Cursor::open(&bytes)?),
        };
        Ok(Self { bytes, cursor })
    }

    /// The next element; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Element<'_>>, Malformed> {
        let bytes = &self.bytes;
        match &mut self.cursor {
            Cursor::Listpack(cursor) => cursor.next(bytes),
            Cursor::Ziplist(cursor) => cursor.next(bytes),
            Cursor::Intset(cursor) => cursor.next(bytes),
            Cursor::Zipmap(cursor) => cursor.next(bytes),
        }
        .transpose()
    }

    /// The next element. It must exist, because it completes a pair or triple.
    pub(crate) fn partner(&mut self) -> Result<Element<'_>, Malformed> {
        self.next()?.ok_or(Malformed("a packed value ends between elements that belong together"))
    }
}
