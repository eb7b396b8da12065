//! The attributes of an entry in its slot.

use crate::access::Access;
use crate::hash::HashRef;
use crate::value::{StringRef, ValueRef};

/// The attributes of an entry, known without looking at it.
///
/// ```text
/// 31     30 29      26    25      24       23                         0
/// | written | kind     | epoch | expires |  access time or frequency   |
/// |         | of small |       |         |                             |
/// ```
///
/// `written` says how a string was written, for `OBJECT ENCODING`. `kind` says what the bytes of a
/// small entry's value are. `epoch` says whether a running capture has taken the entry. The last
/// access is for eviction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meta(u32);

impl Meta {
    const ACCESS: u32 = (1 << 24) - 1;
    const EXPIRES: u32 = 1 << 24;
    const EPOCH: u32 = 1 << 25;

    const KIND_SHIFT: u32 = 26;
    const KIND_MASK: u32 = 0xf << Self::KIND_SHIFT;

    const WRITTEN_SHIFT: u32 = 30;

    pub(crate) const SIZE: usize = size_of::<u32>();

    pub(crate) fn to_bytes(self) -> [u8; Self::SIZE] {
        self.0.to_le_bytes()
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        Self(u32::from_le_bytes(bytes))
    }

    pub(crate) fn access(self) -> Access {
        Access::from_bits(self.0)
    }

    pub(super) fn new(kind: Kind, expires: bool) -> Self {
        let mut meta = Self::default();
        meta.set_kind(kind);
        meta.set_expires(expires);
        meta
    }

    pub(super) fn expires(self) -> bool {
        self.0 & Self::EXPIRES != 0
    }

    pub(super) fn set_expires(&mut self, expires: bool) {
        self.0 = self.0 & !Self::EXPIRES | if expires { Self::EXPIRES } else { 0 };
    }

    pub(super) fn epoch(self) -> Epoch {
        Epoch(self.0 & Self::EPOCH != 0)
    }

    pub(super) fn set_epoch(&mut self, epoch: Epoch) {
        self.0 = self.0 & !Self::EPOCH | if epoch.0 { Self::EPOCH } else { 0 };
    }

    pub(super) fn set_access(&mut self, access: Access) {
        self.0 = self.0 & !Self::ACCESS | access.bits();
    }

    pub(crate) fn written(self) -> Written {
        match self.0 >> Self::WRITTEN_SHIFT {
            0 => Written::Whole,
            1 => Written::InParts,
            2 => Written::AsText,
            _ => Written::Copied,
        }
    }

    pub(super) fn set_written(&mut self, written: Written) {
        let rest = self.0 & !(u32::MAX << Self::WRITTEN_SHIFT);
        self.0 = rest | (written as u32) << Self::WRITTEN_SHIFT;
    }

    pub(super) fn kind(self) -> Kind {
        match (self.0 & Self::KIND_MASK) >> Self::KIND_SHIFT {
            0 => Kind::String,
            _ => Kind::Hash,
        }
    }

    pub(super) fn set_kind(&mut self, kind: Kind) {
        self.0 = self.0 & !Self::KIND_MASK | (kind as u32) << Self::KIND_SHIFT;
    }
}

/// How a string was written. Redis encodes the same bytes in different ways depending on it, and
/// reports the encoding. It is meaningless for other values. A restart forgets it, as in Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Written {
    /// It was set as a whole.
    #[default]
    Whole = 0,
    /// It was appended to, or written over in part.
    InParts = 1,
    /// It was computed, and is kept as text even if it is an integer.
    AsText = 2,
    /// It is a copy of a string that was set as a whole, so no integer that keys share.
    Copied = 3,
}

/// The type of the bytes of a small entry's value. Meaningless for a large entry, whose value has
/// its own type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    String = 0,
    /// A listpack of fields and values.
    Hash = 1,
}

impl Kind {
    pub(super) fn view(self, value: &[u8]) -> ValueRef<'_> {
        match self {
            Kind::String => ValueRef::String(StringRef::Inline(value)),
            Kind::Hash => ValueRef::Hash(HashRef::Inline(value)),
        }
    }
}

/// One of two alternating values. An entry's epoch says whether the running capture has still to
/// take it. Between captures all entries have the same epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epoch(bool);

impl Epoch {
    pub(crate) fn turned(self) -> Self {
        Self(!self.0)
    }
}
