//! A model of a client's keys. It applies the commands, in as little code as possible.

use std::collections::BTreeMap;

use super::workload::{Action, Unit};
use crate::client::Reply;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Model {
    held: BTreeMap<Vec<u8>, Held>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    value: Vec<u8>,
    expiry: Option<Expiry>,
}

/// The bounds of an expiry time, in milliseconds since 1970. A relative expiry counts from the
/// moment when the server read its clock. That moment is only known to be between the
/// request and the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Expiry {
    earliest_ms: u64,
    latest_ms: u64,
}

/// The value and the expiry time of a key, as a server returns them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) value: Vec<u8>,
    /// Milliseconds since 1970.
    pub(super) expires_at_ms: Option<u64>,
}

/// Bounds of the time at which the server executed a unit (a command or a transaction), in
/// milliseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) sent_ms: u64,
    pub(super) replied_ms: u64,
}

impl Model {
    /// Applies a unit, and returns the reply that the unit must have; for a transaction, that is
    /// the reply of EXEC. The result is `None` if the model cannot know the reply.
    pub(super) fn apply(&mut self, unit: &Unit, moment: Moment) -> Option<Reply> {
        if !unit.transaction {
            return self.act(&unit.actions[0], moment);
        }
        let replies = unit.actions.iter().map(|action| self.act(action, moment));
        replies.collect::<Option<Vec<Reply>>>().map(Reply::Array)
    }

    fn act(&mut self, action: &Action, moment: Moment) -> Option<Reply> {
        let ok = || Reply::Status("OK".into());
        let integer = |truth: bool| Reply::Integer(truth.into());
        Some(match action {
            Action::Set { key, value } => {
                self.put(key, value, None);
                ok()
            }
            Action::SetPx { key, value, ttl_ms } => {
                let expiry = Expiry {
                    earliest_ms: moment.sent_ms + ttl_ms,
                    latest_ms: moment.replied_ms + ttl_ms,
                };
                self.put(key, value, Some(expiry));
                ok()
            }
            Action::SetPxAt { key, value, at_ms } => {
                self.put(key, value, Some(Expiry::exactly(*at_ms)));
                ok()
            }
            Action::SetNx { key, value } => {
                let missing = !self.held.contains_key(key);
                if missing {
                    self.put(key, value, None);
                }
                integer(missing)
            }
            Action::GetSet { key, value } => {
                let before = self.get(key);
                self.put(key, value, None);
                before
            }
            Action::GetDel { key } => {
                let before = self.get(key);
                self.held.remove(key);
                before
            }
            Action::Append { key, value } => {
                let held = self.held.entry(key.clone()).or_insert_with(Held::empty);
                held.value.extend_from_slice(value);
                Reply::Integer(held.value.len() as i64)
            }
            Action::IncrBy { key, by } => {
                let held = self.held.entry(key.clone()).or_insert_with(Held::zero);
                let text = std::str::from_utf8(&held.value).unwrap_or_default();
                let sum = text.parse::<i64>().expect("INCRBY needs a number") + by;
                held.value = sum.to_string().into_bytes();
                Reply::Integer(sum)
            }
            Action::Del { keys } => {
                let gone = keys.iter().filter(|&key| self.held.remove(key).is_some());
                Reply::Integer(gone.count() as i64)
            }
            Action::MSet { pairs } => {
                for (key, value) in pairs {
                    self.put(key, value, None);
                }
                ok()
            }
            Action::Rename { from, to } => match self.held.remove(from) {
                None => Reply::Error("ERR no such key".into()),
                Some(held) => {
                    self.held.insert(to.clone(), held);
                    ok()
                }
            },
            Action::PExpireAt { key, at_ms } => match self.held.get_mut(key) {
                None => integer(false),
                Some(held) => {
                    held.expiry = Some(Expiry::exactly(*at_ms));
                    integer(true)
                }
            },
            Action::Persist { key } => {
                let had = self.held.get_mut(key).and_then(|held| held.expiry.take());
                integer(had.is_some())
            }
            Action::Get { key } => self.get(key),
            Action::Peek { .. } => return None,
        })
    }

    fn put(&mut self, key: &[u8], value: &[u8], expiry: Option<Expiry>) {
        self.held.insert(key.to_vec(), Held { value: value.to_vec(), expiry });
    }

    fn get(&self, key: &[u8]) -> Reply {
        self.held.get(key).map_or(Reply::Nil, |held| Reply::Bulk(held.value.clone()))
    }

    /// Describes the first key that differs from what a server shows. `None` if all keys are equal.
    pub(super) fn difference(&self, found: &BTreeMap<Vec<u8>, Found>) -> Option<String> {
        let name = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        for (key, held) in &self.held {
            match found.get(key) {
                None => return Some(format!("{} is missing", name(key))),
                Some(found) if found.value != held.value => {
                    return Some(format!(
                        "{} holds {} instead of {}",
                        name(key),
                        shown(&found.value),
                        shown(&held.value)
                    ));
                }
                Some(found) if !held.may_expire_at(found.expires_at_ms) => {
                    return Some(format!(
                        "{} expires at {:?} instead of {:?}",
                        name(key),
                        found.expires_at_ms,
                        held.expiry
                    ));
                }
                Some(_) => {}
            }
        }
        let extra = found.keys().find(|&key| !self.held.contains_key(key))?;
        Some(format!("{} exists, but should not", name(extra)))
    }

    /// Replaces the known bounds of each expiry by the exact time that the server shows. If the
    /// server shows another time after a later restart, the ledger notices.
    pub(super) fn learn_expiries(&mut self, found: &BTreeMap<Vec<u8>, Found>) {
        for (key, held) in &mut self.held {
            let shown = found.get(key).and_then(|found| found.expires_at_ms);
            held.expiry = shown.map(Expiry::exactly);
        }
    }
}

impl Expiry {
    fn exactly(at_ms: u64) -> Self {
        Self { earliest_ms: at_ms, latest_ms: at_ms }
    }
}

impl Held {
    fn empty() -> Self {
        Self { value: Vec::new(), expiry: None }
    }

    fn zero() -> Self {
        Self { value: b"0".to_vec(), expiry: None }
    }

    fn may_expire_at(&self, expires_at_ms: Option<u64>) -> bool {
        match (self.expiry, expires_at_ms) {
            (None, None) => true,
            (Some(expiry), Some(at_ms)) => (expiry.earliest_ms..=expiry.latest_ms).contains(&at_ms),
            _ => false,
        }
    }
}

/// Length and first bytes of a value, as text.
fn shown(value: &[u8]) -> String {
    let head = &value[..value.len().min(24)];
    format!("{} bytes {:?}", value.len(), String::from_utf8_lossy(head))
}
