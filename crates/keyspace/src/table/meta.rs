//! The attributes of an entry. They are in the entry's bucket.

use crate::access::Access;
use crate::collection::{CollectionRef, Form};
use crate::kinds::Packing;
use crate::value::{StringRef, ValueRef};

/// The attributes of an entry. They can be read without reading the entry's own memory.
///
/// ```text
/// 31     30 29      26    25      24       23                         0
/// | written | packing  | epoch | expires |  access time or frequency   |
/// |         | of small |       |         |                             |
/// ```
///
/// `written` says how a string was written, for `OBJECT ENCODING`. `packing` is the packing of a
/// small entry's collection. `epoch` says whether the capture of a running snapshot has taken the
/// entry. The access time or frequency is for eviction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meta(u32);

impl Meta {
    const ACCESS: u32 = (1 << 24) - 1;
    const EXPIRES: u32 = 1 << 24;
    const EPOCH: u32 = 1 << 25;

    const PACKING_SHIFT: u32 = 26;
    const PACKING_MASK: u32 = 0xf << Self::PACKING_SHIFT;

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

    pub(super) fn new(packing: Option<Packing>, expires: bool) -> Self {
        let mut meta = Self::default();
        meta.set_packing(packing);
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

    /// The packing of a small entry's value; `None` for a string.
    pub(super) fn packing(self) -> Option<Packing> {
        Packing::of_number((self.0 & Self::PACKING_MASK) >> Self::PACKING_SHIFT)
    }

    pub(super) fn set_packing(&mut self, packing: Option<Packing>) {
        let number = packing.map_or(0, Packing::number);
        self.0 = self.0 & !Self::PACKING_MASK | number << Self::PACKING_SHIFT;
    }

    /// The value of a small entry, read from its bytes.
    pub(super) fn view(self, value: &[u8]) -> ValueRef<'_> {
        match self.packing() {
            None => ValueRef::String(StringRef::Inline(value)),
            Some(packing) => ValueRef::Collection(CollectionRef(Form::Inline(packing, value))),
        }
    }
}

/// How a string was written. Redis encodes the same bytes differently depending on how they were
/// written, and `OBJECT ENCODING` shows the encoding. For types other than strings, this value has
/// no meaning. As in Redis, it is lost at a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Written {
    /// The string was set as a whole.
    #[default]
    Whole = 0,
    /// The string was appended to, or written over in part.
    InParts = 1,
    /// The string was computed, and is kept as text even if it is an integer.
    AsText = 2,
    /// The string is a copy of a string that was set as a whole. If the string is an integer, Redis
    /// uses a shared integer object for the original, but not for the copy.
    Copied = 3,
}

/// One of two alternating values. An entry's epoch says whether the running capture still has to
/// take the entry. Between captures all entries have the same epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epoch(bool);

impl Epoch {
    pub(crate) fn turned(self) -> Self {
        Self(!self.0)
    }
}
