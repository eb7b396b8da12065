//! The names of changes, as Redis' keyspace notifications give them.
//!
//! The name of a command does not say what happened to each of its keys. For example, `RENAME` has
//! the event `rename_from` for one key, and the event `rename_to` for the other key. So a command
//! names an event whenever it notes a change. This module declares the events of keys of any type.
//! The folder of a type declares the events of that type.

/// What happened to a key. Only a reference is stored, so that a noted change stays small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event(pub(crate) &'static Named);

/// An event's class and name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Named(pub(crate) Class, pub(crate) &'static str);

/// A class of events. Redis' directive `notify-keyspace-events` names each class by a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Changes of keys of any type.
    Generic,
    /// Changes of strings.
    String,
    /// Changes of lists.
    List,
    /// Changes of hashes.
    Hash,
    /// Changes of sets.
    Set,
    /// A key was deleted because it had expired.
    Expired,
    /// A key was deleted because memory was short.
    Evicted,
    /// A key was created. The event of the change that created it follows.
    New,
}

impl Class {
    /// The letter in `notify-keyspace-events`.
    pub fn letter(self) -> char {
        match self {
            Self::Generic => 'g',
            Self::String => '$',
            Self::List => 'l',
            Self::Hash => 'h',
            Self::Set => 's',
            Self::Expired => 'x',
            Self::Evicted => 'e',
            Self::New => 'n',
        }
    }
}

impl Event {
    /// The event's class.
    pub fn class(self) -> Class {
        self.0.0
    }

    /// The event's name, for example `rename_from`.
    pub fn name(self) -> &'static str {
        self.0.1
    }

    /// Whether no client has asked for the change: the key has expired, or was evicted.
    pub fn is_unasked(self) -> bool {
        matches!(self.class(), Class::Expired | Class::Evicted)
    }
}

/// Declares events of a class.
macro_rules! events {
    ($class:ident: $($id:ident $name:literal),* $(,)?) => {$(
        pub(crate) const $id: $crate::events::Event = $crate::events::Event(
            &$crate::events::Named($crate::events::Class::$class, $name),
        );
    )*};
}
pub(crate) use events;

events!(Generic: DEL "del", EXPIRE "expire", PERSIST "persist", RESTORE "restore");
events!(Generic: RENAME_FROM "rename_from", RENAME_TO "rename_to");
events!(Generic: MOVE_FROM "move_from", MOVE_TO "move_to", COPY_TO "copy_to");
events!(Expired: EXPIRED "expired");
events!(Evicted: EVICTED "evicted");
events!(New: NEW "new");
