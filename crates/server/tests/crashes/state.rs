//! The data in a server's memory, as a client reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::script::{DB_COUNT, KEY_COUNT, encode_line};
use crate::common::Client;

/// A state keeps this number of bytes of each value for messages, and a hash of the whole value.
const SHOWN_SIZE: usize = 24;

/// What a key holds, and the date at which the key expires, in milliseconds since 1970. The date is
/// -1 if the key does not expire.
type Entry = (String, i64);

/// The keys that exist, by database and key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    keys: BTreeMap<(u8, u8), Entry>,
    /// The number of keys of each database, as `DBSIZE` reports it.
    sizes: Vec<i64>,
}

impl State {
    /// The state at a later time, without the keys that have expired by then.
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

    /// The state without the sizes of databases. While the log is full, the sizes count expired
    /// keys that nobody can read any more.
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

/// Reads the whole state. `None` if the server has ended or refuses reads.
pub(crate) fn read(client: &mut Client) -> Option<State> {
    let mut requests = Vec::new();
    for db in 0..DB_COUNT {
        encode_line(&format!("SELECT {db}"), &mut requests);
        for key in 0..KEY_COUNT {
            for command in ["GET", "HGETALL", "SMEMBERS", "LRANGE", "PEXPIRETIME"] {
                let rest = if command == "LRANGE" { " 0 -1" } else { "" };
                encode_line(&format!("{command} k{key}{rest}"), &mut requests);
            }
        }
        // `DBSIZE` counts an expired key until a request touches the key, so `DBSIZE` comes last.
        encode_line("DBSIZE", &mut requests);
    }
    if !client.try_send_bytes(&requests) {
        return None;
    }
    let mut state = State::default();
    for db in 0..DB_COUNT {
        let _selected = client.try_read()?;
        for key in 0..KEY_COUNT {
            let string = client.try_read()?;
            let (hash, set) = (client.try_read()?, client.try_read()?);
            let list = client.try_read()?;
            let expires_at = number(&client.try_read()?)?;
            let content = match (string.first(), hash.first()) {
                (Some(b'$'), Some(b'-')) => described(&string),
                (Some(b'-'), Some(b'*')) if !string.starts_with(b"-MISCONF") => sorted(&hash, 2),
                (Some(b'-'), Some(b'-')) if set.starts_with(b"*") => sorted(&set, 1),
                (Some(b'-'), Some(b'-')) if list.starts_with(b"*") => described(&list),
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

/// Sorts the elements of a hash or set, because they have no order. Each element has `count`
/// strings.
fn sorted(reply: &[u8], count: usize) -> String {
    let words = bulks(reply);
    let mut elements: Vec<_> = words.chunks(count).map(<[Vec<u8>]>::concat).collect();
    elements.sort();
    described(&[b"*".repeat(count), elements.concat()].concat())
}

/// The bulk strings of a reply that is an array.
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
