//! The single path by which a change of the data set reaches everything that depends on changes.
//!
//! ```text
//!  command ──────────┐
//!  transaction ──────┤              LSN      ┌─► clients that watch the keys, count of changes
//!  long request ─────┼──► put, log ─────► tell
//!  expiry, eviction ─┘                       └─► undurable changes, listener
//! ```
//!
//! Only [`Engine::put`] appends records. Only [`Engine::tell`] reports changes, in the order in
//! which they happened. The commands of a transaction share one record. So everything that needs
//! the LSN of this record is kept until the record is appended. A long request (one that takes
//! several turns) reports its changes in steps. Between these steps, other changes may be reported,
//! but only changes of other keys.

use std::borrow::Cow;
use std::ops::Range;

use slimio_keyspace::{DbIndex, Effects, Event, no_args};
use slimio_planted::is_planted;
use slimio_resp::{Arg, Args};
use slimio_storage::{Lsn, StagedRecord};

use super::{Engine, Transaction};
use crate::gate::{Change, Undurable};

/// What happened to a key.
#[derive(Debug)]
pub struct Told<'a> {
    /// The event; `None` if any key of the database may have changed.
    pub event: Option<Event>,
    /// The `CLIENT ID` of the client that asked for the change; `None` for expiry and eviction.
    pub client: Option<u64>,
    /// The database.
    pub db: DbIndex,
    /// The key. Empty if any key of the database may have changed.
    pub key: Cow<'a, [u8]>,
    /// The end of the change's record in the log; `None` if there is no log that takes records. If
    /// the log has stopped, this is a position that never becomes durable.
    pub lsn: Option<Lsn>,
}

/// Called with each event, after the event's record was appended.
pub type Listener = Box<dyn FnMut(&Told<'_>) + Send>;

/// Where the record of a change is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// There is no log that takes records.
    Nowhere,
    /// The log has stopped.
    Stopped,
    /// The change will be part of the record of the running transaction.
    Pending,
    /// The change's record ends at this LSN.
    Record(Lsn),
    /// There is no record, because the log up to this LSN already says the same.
    Said(Lsn),
}

/// What a record is made of.
#[derive(Debug)]
pub(crate) enum Source<'a> {
    /// The effects of the command that has just run.
    Command(Args<'a>),
    /// The effects of expiry or eviction.
    Unasked,
    /// The effects of a transaction.
    Transaction,
    /// The effects of a long request.
    Long(&'a Effects, Args<'a>),
    /// The record of a long request, which was built in advance.
    Staged(StagedRecord),
}

/// Something that has run, such as a command or a part of one.
#[derive(Debug)]
pub(crate) struct Ran<'a> {
    /// The effects of a long request. `None` if something else has run. [`Data`](super::Data) then
    /// holds the effects.
    pub(crate) of_long: Option<&'a Effects>,
    pub(crate) args: Args<'a>,
    /// Which of the noted items in the effects are to be reported.
    pub(crate) items: Range<usize>,
    /// The time of day of the run.
    pub(crate) now_ms: i64,
    /// The `CLIENT ID` of the client that asked for the run; 0 for expiry and eviction.
    pub(crate) client: u64,
    /// Whether `rdb_changes_since_last_save` counts the changes.
    pub(crate) is_counted: bool,
}

impl Engine {
    /// Appends a record, if there is a log that takes it. `flushed` says whether any database was
    /// emptied.
    pub(crate) fn put(&mut self, db: DbIndex, source: Source<'_>, flushed: bool) -> Place {
        let Some(wal) = &mut self.gate.wal else { return Place::Nowhere };
        if !wal.takes_records() {
            self.changed_without_log(flushed);
            return Place::Nowhere;
        }
        if wal.log().latched().is_some() {
            return Place::Stopped;
        }
        let (asked, before) = (self.gate.log_size_max, wal.log().appended());
        let lsn = match source {
            Source::Command(args) => {
                // The value is copied only once, from the request into the log's memory.
                let payload = self.data.gather.parts(&self.data.effects, db, args);
                debug_assert!(
                    payload.size() as u64 <= asked,
                    "the payload exceeds the granted room"
                );
                wal.append(db, payload.as_slice())
            }
            Source::Unasked => {
                wal.append(db, self.data.gather.parts(&self.data.effects, db, no_args()).as_slice())
            }
            Source::Transaction => {
                let payload = self.data.payload.bytes();
                debug_assert!(
                    payload.len() as u64 <= asked,
                    "the payload exceeds the granted room"
                );
                wal.append(db, &[payload])
            }
            Source::Long(effects, args) => {
                wal.append(db, self.data.gather.parts(effects, db, args).as_slice())
            }
            Source::Staged(record) => wal.append_staged(record),
        };
        let lsn = if is_planted("lsn-of-the-record-before") { before } else { lsn };
        if flushed {
            self.release_log(lsn);
        }
        Place::Record(lsn)
    }

    /// Reports what `ran` has changed. The reports go to everything that depends on changes.
    pub(crate) fn tell(&mut self, ran: &Ran<'_>, place: Place) {
        let effects = ran.of_long.unwrap_or(&self.data.effects);
        let is_planted = |name| ran.of_long.is_some() && is_planted(name);
        let touched = || effects.touched_in(ran.items.clone(), ran.args);
        if !self.data.watches.is_empty() && !is_planted("long-unwatched") {
            self.data.watches.touched(touched(), &self.data.keyspace, ran.now_ms);
        }
        if !self.data.blocking_keys.is_empty() && !is_planted("pushed-by-long-unready") {
            self.data.blocking_keys.touched(touched(), &self.data.keyspace, ran.now_ms);
        }
        if ran.is_counted && !is_planted("long-changes-uncounted") {
            self.snapshots.changes += effects.touched_count_in(ran.items.clone()) as u64;
        }
        let keeps_undurable = self.gate.keeps_undurable && !is_planted("long-undurable");
        match (place, &mut self.data.transaction) {
            (Place::Pending, Some(transaction)) => {
                transaction.changes.extend(touched().map(Change::from));
            }
            _ if keeps_undurable => {
                depend(&mut self.gate.undurable, place, touched().map(Change::from));
            }
            _ => {}
        }
        let Some(listener) = &mut self.data.listener else { return };
        for told in told(effects, ran) {
            match (place, &mut self.data.transaction) {
                (Place::Pending, Some(transaction)) => transaction.told.push(told.into_owned()),
                _ => listen(listener, &Told { lsn: place.lsn(), ..told }),
            }
        }
    }

    /// Reports the changes that were kept during a transaction. Called when it is known where the
    /// transaction's record is.
    pub(crate) fn tell_transaction(&mut self, transaction: Transaction, place: Place) {
        if self.gate.keeps_undurable {
            depend(&mut self.gate.undurable, place, transaction.changes.into_iter());
        }
        let Some(listener) = &mut self.data.listener else { return };
        let mut all = transaction.told;
        if is_planted("transaction-told-backwards") {
            all.reverse();
        }
        for told in all {
            listen(listener, &Told { lsn: place.lsn(), ..told });
        }
    }

    /// Counts changes that were applied from the log.
    pub(crate) fn count_replayed(&mut self, changes: usize) {
        self.snapshots.changes += changes as u64;
    }
}

impl Place {
    fn lsn(self) -> Option<Lsn> {
        match self {
            Self::Record(lsn) | Self::Said(lsn) => Some(lsn),
            Self::Stopped => Some(Lsn(u64::MAX)),
            Self::Nowhere | Self::Pending => None,
        }
    }
}

/// Makes replies about the changed keys depend on the record that changed them.
fn depend(undurable: &mut Undurable, place: Place, changes: impl Iterator<Item = Change>) {
    if let Place::Record(lsn) = place {
        undurable.note(lsn, changes);
    }
}

/// The events of `ran`, in order, but without their place in the log.
fn told<'a>(effects: &'a Effects, ran: &Ran<'a>) -> impl Iterator<Item = Told<'a>> {
    let asked_by = ran.client;
    effects.noted(ran.items.clone(), ran.args).flat_map(move |noted| {
        let of_db = noted.key.is_none().then_some(None);
        of_db.into_iter().chain(noted.events().map(Some)).map(move |event| Told {
            event,
            client: (!event.is_some_and(Event::is_unasked)).then_some(asked_by),
            db: noted.db,
            key: noted.key.map_or(Cow::Borrowed(&[]), Arg::to_bytes),
            lsn: None,
        })
    })
}

fn listen(listener: &mut Listener, told: &Told<'_>) {
    if is_planted("event-untold") && told.event.is_some_and(|event| event.name() == "expire") {
        return;
    }
    listener(told);
    if is_planted("event-told-twice") && told.event.is_some_and(|event| event.name() == "del") {
        listener(told);
    }
}

impl Told<'_> {
    fn into_owned(self) -> Told<'static> {
        Told { key: Cow::Owned(self.key.into_owned()), ..self }
    }
}
