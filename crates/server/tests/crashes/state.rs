//! What is in a server's memory.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::script::{DB_COUNT, KEY_COUNT, encode_line};
use crate::common::Client;

/// Bytes of a value that are kept for messages; a hash covers all of it.
const SHOWN_SIZE: usize = 24;

/// What a key holds, and the date at which it expires, in milliseconds since 1970; -1 if it does not.
type Entry = (String, i64);

/// By database and key. Keys that are not there are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    keys: BTreeMap<(u8, u8), Entry>,
    /// How many keys each database says it has.
    sizes: Vec<i64>,
}

impl State {
    /// What is left of it at a later time, if nobody changes anything.
    pub(crate) fn at(&self, now_ms: i64) -> Self {
        let mut left = self.clone();
        left.keys.retain(|(db, _), (_, expires_at)| {
            let is_over = *expires_at >= 0 && now_ms > *expires_at;
            if let Some(size) = left.sizes.get_mut(usize::from(*db)) {
                *size -= i64::from(is_over);
            }
            !is_over
        });
        left
    }

    /// The same without the sizes of databases: while the log is full, these count expired keys
    /// that nobody can read any more.
    pub(crate) fn uncounted(mut self) -> Self {
        self.sizes.clear();
        self
    }

    /// Describes every difference from `other`.
    pub(crate) fn difference(&self, other: &Self) -> String {
        let names: BTreeSet<_> = self.keys.keys().chain(other.keys.keys()).collect();
        let mut parts = vec![format!("sizes {:?}, {:?}", self.sizes, other.sizes)];
        for name in names {
            let (mine, theirs) = (self.keys.get(name), other.keys.get(name));
            if mine != theirs {
                parts.push(format!("{}/k{}: {mine:?}, {theirs:?}", name.0, name.1));
            }
        }
        parts.join("; ")
    }
}

/// Reads the whole state. `None` when the server has gone meanwhile, or refuses reads.
pub(crate) fn read(client: &mut Client) -> Option<State> {
    let mut requests = Vec::new();
    for db in 0..DB_COUNT {
        encode_line(&format!("SELECT {db}"), &mut requests);
        for key in 0..KEY_COUNT {
            for command in ["GET", "HGETALL", "PEXPIRETIME"] {
                encode_line(&format!("{command} k{key}"), &mut requests);
            }
        }
        // Comes last, because expired keys count until a request touches them.
        encode_line("DBSIZE", &mut requests);
    }
    if !client.try_send_bytes(&requests) {
        return None;
    }
    let mut state = State::default();
    for db in 0..DB_COUNT {
        let _selected = client.try_read()?;
        for key in 0..KEY_COUNT {
            let (string, hash) = (client.try_read()?, client.try_read()?);
            let expires_at = number(&client.try_read()?)?;
            let content = match (string.first(), hash.first()) {
                (Some(b'$'), Some(b'-')) => described(&string),
                (Some(b'-'), Some(b'*')) if !string.starts_with(b"-MISCONF") => sorted(&hash),
                _ if expires_at == -2 => continue,
                _ => return None,
            };
            state.keys.insert((db, key), (content, expires_at));
        }
        state.sizes.push(number(&client.try_read()?)?);
    }
    Some(state)
}

fn number(reply: &[u8]) -> Option<i64> {
    std::str::from_utf8(reply.strip_prefix(b":")?).ok()?.trim().parse().ok()
}

fn described(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    let shown = &bytes[..bytes.len().min(SHOWN_SIZE)];
    format!("{:?} #{:x}", String::from_utf8_lossy(shown), hasher.finish())
}

/// A hash has no order.
fn sorted(reply: &[u8]) -> String {
    let mut words = bulks(reply);
    let mut pairs = Vec::new();
    while let (Some(value), Some(field)) = (words.pop(), words.pop()) {
        pairs.push((field, value));
    }
    pairs.sort();
    described(
        &pairs.into_iter().flat_map(|(field, value)| [field, value].concat()).collect::<Vec<u8>>(),
    )
}

/// The bulk strings of an array.
fn bulks(mut reply: &[u8]) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut line = || {
        let end = reply.iter().position(|byte| *byte == b'\n')?;
        let (line, rest) = reply.split_at(end + 1);
        reply = rest;
        let size: usize = std::str::from_utf8(&line[1..line.len() - 2]).ok()?.parse().ok()?;
        if line[0] == b'*' {
            return Some(Vec::new());
        }
        let word = reply[..size].to_vec();
        reply = &reply[size + 2..];
        Some(word)
    };
    line();
    while let Some(word) = line() {
        words.push(word);
    }
    words
}
