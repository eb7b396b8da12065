//! Reads the data after a restart. A unit is a command or a transaction. Each client has noted the
//! units that it sent. This module finds out up to which unit the data contains what a client
//! wrote.

use std::collections::{BTreeMap, VecDeque};

use super::model::{Found, Model, Moment};
use super::workload::{Unit, keys_of};
use crate::client::{Client, Reply, encode};
use crate::error::{BenchError, Result};

/// How many of the units that a client had in flight were found after a restart, and how many were
/// not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) kept: u64,
    pub(super) gone: u64,
}

/// All keys of client `owner` that the server holds.
pub(super) fn read_keys(client: &mut Client, owner: usize) -> Result<BTreeMap<Vec<u8>, Found>> {
    let mut requests = Vec::new();
    for key in keys_of(owner) {
        encode(&[b"GET", &key], &mut requests);
        encode(&[b"PEXPIRETIME", &key], &mut requests);
    }
    client.send(&requests)?;
    let mut found = BTreeMap::new();
    for key in keys_of(owner) {
        let replies = (client.receive()?, client.receive()?);
        let expires_at_ms = match &replies {
            (Reply::Bulk(_), Reply::Integer(-1)) => None,
            (Reply::Bulk(_), Reply::Integer(at_ms)) if *at_ms > 0 => Some(*at_ms as u64),
            (Reply::Nil, Reply::Integer(-2)) => continue,
            other => {
                let name = String::from_utf8_lossy(&key);
                return Err(BenchError::Broken(format!(
                    "GET and PEXPIRETIME of {name} had impossible replies: {other:?}"
                )));
            }
        };
        if let (Reply::Bulk(value), _) = replies {
            found.insert(key, Found { value, expires_at_ms });
        }
    }
    Ok(found)
}

/// Checks that the server holds `key_count` keys in all, and therefore only the keys of clients.
pub(super) fn nothing_else(client: &mut Client, key_count: u64) -> Result<()> {
    let size = client.expect(&["DBSIZE"])?;
    if size == Reply::Integer(key_count as i64) {
        return Ok(());
    }
    Err(BenchError::Broken(format!(
        "the server holds {size:?} keys, but the clients know of {key_count}"
    )))
}

/// Finds how many units from the start of `in_flight` must be applied to `model` so that `model`
/// equals `found`, and applies these units. The model already contains all units up to
/// `acknowledged`. The resulting state must not be older than unit `observed`.
pub(super) fn settle(
    model: &mut Model,
    in_flight: &VecDeque<(Unit, Moment)>,
    found: &BTreeMap<Vec<u8>, Found>,
    acknowledged: u64,
    observed: u64,
) -> Result<Settled> {
    let mut state = model.clone();
    let mut reached = acknowledged;
    let mut differences = Vec::new();
    for kept in 0..=in_flight.len() {
        let difference = if reached < observed {
            Some(format!("a client has already seen unit {observed}"))
        } else {
            state.difference(found)
        };
        let Some(difference) = difference else {
            state.learn_expiries(found);
            *model = state;
            return Ok(Settled { kept: kept as u64, gone: (in_flight.len() - kept) as u64 });
        };
        differences.push(format!("with units up to {reached}: {difference}"));
        if let Some((unit, moment)) = in_flight.get(kept) {
            state.apply(unit, *moment);
            reached = unit.sequence;
        }
    }
    Err(BenchError::Broken(format!(
        "the data is in no permitted state; {acknowledged} units were acknowledged, and {} were \
         in flight:\n  {}",
        in_flight.len(),
        differences.join("\n  ")
    )))
}

#[cfg(test)]
mod tests {
    use super::super::workload::Action;
    use super::*;

    const MOMENT: Moment = Moment { sent_ms: 1000, replied_ms: 1010 };

    fn set(key: &str, value: &str) -> Action {
        Action::Set { key: key.into(), value: value.into() }
    }

    fn single(sequence: u64, action: Action) -> (Unit, Moment) {
        (Unit { sequence, actions: vec![action], transaction: false }, MOMENT)
    }

    fn there(keys: &[(&str, &str)]) -> BTreeMap<Vec<u8>, Found> {
        let found = |value: &str| Found { value: value.into(), expires_at_ms: None };
        keys.iter().map(|(key, value)| (key.as_bytes().to_vec(), found(value))).collect()
    }

    /// Audits `found` after one acknowledged unit (`a` = 1) and the units `in_flight`.
    fn audit(
        in_flight: Vec<(Unit, Moment)>,
        found: &BTreeMap<Vec<u8>, Found>,
        observed: u64,
    ) -> Result<Settled> {
        let mut model = Model::default();
        model.apply(&single(1, set("a", "1")).0, MOMENT);
        settle(&mut model, &in_flight.into(), found, 1, observed)
    }

    fn broken(result: &Result<Settled>) -> bool {
        matches!(result, Err(BenchError::Broken(_)))
    }

    #[test]
    fn in_flight_units_may_be_there_or_not() {
        let in_flight = || vec![single(2, set("b", "2")), single(3, set("a", "3"))];
        let kept = |found: &[(&str, &str)]| audit(in_flight(), &there(found), 0).unwrap().kept;
        assert_eq!(kept(&[("a", "1")]), 0);
        assert_eq!(kept(&[("a", "1"), ("b", "2")]), 1);
        assert_eq!(kept(&[("a", "3"), ("b", "2")]), 2);
    }

    #[test]
    fn loss_gaps_halves_and_inventions_are_noticed() {
        let in_flight = || vec![single(2, set("b", "2")), single(3, set("a", "3"))];
        for (what, found) in [
            ("the loss of an acknowledged write", there(&[])),
            ("the loss of an acknowledged write before a later write", there(&[("b", "2")])),
            ("a gap between two writes", there(&[("a", "3")])),
            ("an invented key", there(&[("a", "1"), ("c", "9")])),
            ("an invented value", there(&[("a", "9")])),
        ] {
            assert!(broken(&audit(in_flight(), &found, 0)), "{what} was not noticed");
        }
        let actions = vec![set("b", "2"), set("c", "3")];
        let half = vec![(Unit { sequence: 2, actions, transaction: true }, MOMENT)];
        assert!(broken(&audit(half.clone(), &there(&[("a", "1"), ("b", "2")]), 0)));
        assert!(audit(half, &there(&[("a", "1"), ("b", "2"), ("c", "3")]), 0).is_ok());
        let pairs = vec![(b"b".to_vec(), b"2".to_vec()), (b"c".to_vec(), b"3".to_vec())];
        let mset = vec![single(2, Action::MSet { pairs })];
        assert!(broken(&audit(mset, &there(&[("a", "1"), ("c", "3")]), 0)));
    }

    #[test]
    fn what_a_client_was_shown_may_not_go_away() {
        let in_flight = || vec![single(2, set("b", "2"))];
        assert!(broken(&audit(in_flight(), &there(&[("a", "1")]), 2)));
        assert!(audit(in_flight(), &there(&[("a", "1"), ("b", "2")]), 2).is_ok());
    }

    #[test]
    fn expiries_must_lie_where_the_clock_was() {
        let action = Action::SetPx { key: b"b".to_vec(), value: b"2".to_vec(), ttl_ms: 500 };
        for (at_ms, fine) in
            [(None, false), (Some(1499), false), (Some(1500), true), (Some(1511), false)]
        {
            let mut found = there(&[("a", "1"), ("b", "2")]);
            found.get_mut(&b"b"[..]).unwrap().expires_at_ms = at_ms;
            let result = audit(vec![single(2, action.clone())], &found, 0);
            assert_eq!(result.is_ok(), fine, "{at_ms:?}");
        }
    }
}
