//! Finds which keys the log after a snapshot touches, without reading the snapshot. The other keys
//! are as they are in the snapshot. So an export can copy their entries from the snapshot one after
//! the other, and they need not all be in memory at the same time.

use std::collections::HashSet;

use slimio_resp::Request;

use crate::keyspace::{ApplyError, DbIndex, Keyspace, command_table};
use crate::payload::{Commands, SELECT};
use crate::table::Written;
use crate::value::ValueRef;

/// The keys that records of a log touch.
///
/// A key is identified by its name alone, not by its database, because `MOVE`, `COPY` and `SWAPDB`
/// bring keys from one database to another. So a name counts as touched in all databases or in
/// none.
#[derive(Debug)]
pub struct LogTail {
    names: HashSet<Box<[u8]>>,
    /// For each database, the number of the database that its contents were in before the log;
    /// `None` if `FLUSHALL` or `FLUSHDB` deleted the old contents.
    from: Vec<Option<DbIndex>>,
    /// Whether the log has a command whose arguments do not say which keys or databases it changes.
    is_opaque: bool,
    request: Request,
}

impl LogTail {
    /// The tail of a log without records, for `db_count` databases.
    pub fn new(db_count: usize) -> Self {
        let from = (0..db_count).map(|number| Some(DbIndex(number as u16))).collect();
        Self { names: HashSet::new(), from, is_opaque: false, request: Request::default() }
    }

    /// Notes the keys that a record touches. Records must come in order.
    ///
    /// # Errors
    /// The same as those of [`Keyspace::apply`].
    pub fn note(&mut self, mut db: DbIndex, payload: &[u8]) -> Result<(), ApplyError> {
        self.check_db(i64::from(db.0))?;
        let mut request = std::mem::take(&mut self.request);
        let mut commands = Commands::new(payload);
        while commands.next(&mut request)? {
            let args = request.args(payload);
            let name = args.bytes(0);
            let number = |index: usize| args.get(index).to_i64().ok_or(ApplyError::Malformed);
            if name.eq_ignore_ascii_case(SELECT) && args.len() == 2 {
                db = self.check_db(number(1)?)?;
                continue;
            }
            let command = command_table().lookup(&name).filter(|row| row.accepts(args.len()));
            let command = command.ok_or_else(|| {
                ApplyError::UnknownCommand(String::from_utf8_lossy(&name).into_owned())
            })?;
            match command.name {
                "flushall" => self.from.fill(None),
                "flushdb" => self.from[usize::from(db.0)] = None,
                "swapdb" => {
                    let (a, b) = (self.check_db(number(1)?)?, self.check_db(number(2)?)?);
                    self.from.swap(usize::from(a.0), usize::from(b.0));
                }
                _ => {
                    let mut count = 0;
                    for key in command.key_indices(args).map(|index| args.bytes(index)) {
                        count += 1;
                        if !self.names.contains(&*key) {
                            self.names.insert(key.into());
                        }
                    }
                    self.is_opaque |= count == 0;
                }
            }
        }
        self.request = request;
        Ok(())
    }

    /// Whether all keys that the records touch are known. If not, the whole log has to be replayed.
    pub fn is_known(&self) -> bool {
        !self.is_opaque
    }

    /// Whether a key of this name is touched, in any database.
    pub fn touches(&self, key: &[u8]) -> bool {
        self.names.contains(key)
    }

    /// The database that holds the untouched keys of `db` after the log; `None` if `FLUSHALL` or
    /// `FLUSHDB` deleted these keys.
    pub fn place_of(&self, db: DbIndex) -> Option<DbIndex> {
        let place = self.from.iter().position(|from| *from == Some(db))?;
        Some(DbIndex(place as u16))
    }

    fn check_db(&self, number: i64) -> Result<DbIndex, ApplyError> {
        match usize::try_from(number) {
            Ok(index) if index < self.from.len() => Ok(DbIndex(number as u16)),
            _ => Err(ApplyError::NoSuchDb(number as u64)),
        }
    }
}

impl Keyspace {
    /// Adds keys of another keyspace: those keys of the database `db` that `wanted` accepts. Both
    /// keyspaces must have the same seed. Large values are shared. Existing keys stay as they are.
    pub fn add_from(&mut self, other: &Keyspace, db: DbIndex, wanted: impl Fn(&[u8]) -> bool) {
        for entry in other.entries(db).filter(|entry| wanted(entry.key)) {
            let hash = self.hash(entry.key);
            let value = (ValueRef::to_value(entry.value), Written::Whole);
            let (to, displaced) = self.db_and_displaced(db);
            if to.find(hash, entry.key).is_none() {
                let epoch = displaced.capture.epoch();
                let (expiry, access) = (entry.expires_at_ms, entry.access);
                to.insert_value(hash, entry.key, value, expiry, access, epoch);
            }
        }
    }
}
