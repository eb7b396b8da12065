//! Collections, whatever their type: how they are kept, shared, changed and walked.
//!
//! A small collection is packed: it is kept as bytes in a layout of Redis, for example a listpack,
//! just as RDB files hold it. If these bytes are few, they are in the key's own entry. Otherwise
//! these bytes have their own allocation, which is shared until it is written to. A collection with
//! many or long elements is a [tree] of packed leaves below shared branches. A clone of the tree
//! takes constant time.
//!
//! ```text
//! BucketSlot ─ Small: | expiry | key | packed |     up to 1 KiB with the key
//!            ─ Large: key, Value::Packed ─► packed   up to PACKED_SIZE_MAX
//!            ─ Large: key, Value::Tree ─► AnyTree    any number of elements
//! ```
//!
//! This module does not name any type. [`kinds`](crate::kinds) lists the types with their packings
//! and trees; the rest of a type is in its folder, as in [`hash`](crate::hash).

mod element;
mod form;
pub(crate) mod hashed;
pub(crate) mod positional;
pub(crate) mod tree;

pub use element::Element;
pub use form::CollectionRef;

pub(crate) use element::LargeString;
pub(crate) use form::{EditForm, Form};

/// Largest number of elements of a packed collection, whatever the configuration says. The limit is
/// needed because every access walks over all elements.
pub const PACKED_LEN_MAX: usize = 1024;

/// Size in bytes of the largest packed collection, whatever the configuration says. The limit is
/// needed because a write to a shared packed collection copies all of it.
pub const PACKED_SIZE_MAX: usize = 64 * 1024;

/// The strings of a collection, one after the other.
pub(crate) type Strings<'a> = Box<dyn Iterator<Item = Element<'a>> + 'a>;
