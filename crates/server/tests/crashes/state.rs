//! What is in a server's memory.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::script::{DB_COUNT, KEY_COUNT, encode_line};
use crate::common::Client;

/// How much of a value is kept for messages, in bytes; of the rest there is a hash.
const SHOWN_SIZE: usize = 24;

/// By database and key: value and time of expiry. Keys that are not there are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State(BTreeMap<String, String>);

impl State {
    /// Everything in it that `other` does not say, too.
    pub(crate) fn difference(&self, other: &Self) -> String {
        let names = self.0.keys().chain(other.0.keys());
        let mut lines: Vec<String> = names
            .filter(|name| self.0.get(*name) != other.0.get(*name))
            .map(|name| format!("{name}: {:?}, {:?}", self.0.get(name), other.0.get(name)))
            .collect();
        lines.sort();
        lines.dedup();
        lines.join("; ")
    }
}

/// Reads all of it; `None` when the server has gone meanwhile, or lets nobody read.
pub(crate) fn read(client: &mut Client) -> Option<State> {
    let mut requests = Vec::new();
    for db in 0..DB_COUNT {
        encode_line(&format!("SELECT {db}"), &mut requests);
        for key in 0..KEY_COUNT {
            for command in ["GET", "HGETALL", "PEXPIRETIME"] {
                encode_line(&format!("{command} k{key}"), &mut requests);
            }
        }
        // Whose time was over counted until it was asked for.
        encode_line("DBSIZE", &mut requests);
    }
    if !client.try_send_bytes(&requests) {
        return None;
    }
    let mut state = BTreeMap::new();
    for db in 0..DB_COUNT {
        let _selected = client.try_read()?;
        for key in 0..KEY_COUNT {
            let (string, hash) = (client.try_read()?, client.try_read()?);
            let expiry = client.try_read()?;
            let expiry = String::from_utf8_lossy(&expiry).trim().to_owned();
            let content = match (string.first(), hash.first()) {
                (Some(b'$'), Some(b'-')) => described(&string),
                (Some(b'-'), Some(b'*')) if !string.starts_with(b"-MISCONF") => sorted(&hash),
                _ if expiry == ":-2" => continue,
                _ => return None,
            };
            state.insert(format!("{db}/k{key}"), format!("{content} {expiry}"));
        }
        let size = client.try_read()?;
        state.insert(format!("size of {db}"), String::from_utf8_lossy(&size).trim().to_owned());
    }
    Some(State(state))
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
