//! What the ledger's clients send. (The ledger is a test that kills a server again and again.) Each
//! client uses a few keys. The seed alone chooses everything but the expiry times.

use fastrand::Rng;

use crate::client::encode;

/// How many keys of a client hold strings, and how many hold numbers. There are few keys, so that
/// most writes overwrite a value.
pub(super) const STRING_KEY_COUNT: u64 = 24;
pub(super) const COUNTER_KEY_COUNT: u64 = 6;
/// The largest number of commands in a transaction, of keys in a DEL, and of pairs in an MSET.
const GROUP_LEN_MAX: u64 = 5;
/// How far in the future expiries lie, in milliseconds: so far that no key expires.
const TTL_MS: std::ops::Range<u64> = 86_400_000..864_000_000;

/// One command on the client's own keys, or a read of another client's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Set {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    SetPx {
        key: Vec<u8>,
        value: Vec<u8>,
        ttl_ms: u64,
    },
    SetPxAt {
        key: Vec<u8>,
        value: Vec<u8>,
        at_ms: u64,
    },
    SetNx {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    GetSet {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    GetDel {
        key: Vec<u8>,
    },
    Append {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    IncrBy {
        key: Vec<u8>,
        by: i64,
    },
    Del {
        keys: Vec<Vec<u8>>,
    },
    MSet {
        pairs: Vec<(Vec<u8>, Vec<u8>)>,
    },
    Rename {
        from: Vec<u8>,
        to: Vec<u8>,
    },
    PExpireAt {
        key: Vec<u8>,
        at_ms: u64,
    },
    Persist {
        key: Vec<u8>,
    },
    Get {
        key: Vec<u8>,
    },
    /// GET of a key of client `owner`.
    Peek {
        owner: usize,
        key: Vec<u8>,
    },
}

/// One action, or several in a transaction. A unit must be recovered whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// Position among all units that this client ever sent, from 1.
    pub(super) sequence: u64,
    pub(super) actions: Vec<Action>,
    pub(super) transaction: bool,
}

pub(super) fn string_key(owner: usize, index: u64) -> Vec<u8> {
    format!("ledger:{owner}:s{index}").into_bytes()
}

pub(super) fn counter_key(owner: usize, index: u64) -> Vec<u8> {
    format!("ledger:{owner}:n{index}").into_bytes()
}

pub(super) fn keys_of(owner: usize) -> impl Iterator<Item = Vec<u8>> {
    let strings = (0..STRING_KEY_COUNT).map(move |index| string_key(owner, index));
    strings.chain((0..COUNTER_KEY_COUNT).map(move |index| counter_key(owner, index)))
}

/// Chooses the next unit of client `owner`, which is one of `client_count` clients. Only expiries
/// depend on `now_ms`.
pub(super) fn choose(
    rng: &mut Rng,
    owner: usize,
    client_count: usize,
    sequence: u64,
    now_ms: u64,
) -> Unit {
    let mut choice = Choice { rng, owner, client_count, sequence, now_ms };
    let transaction = choice.rng.u64(..100) < 10;
    let count = if transaction { 2 + choice.rng.u64(..GROUP_LEN_MAX - 1) } else { 1 };
    let actions = (0..count).map(|_| choice.action(transaction)).collect();
    Unit { sequence, actions, transaction }
}

struct Choice<'a> {
    rng: &'a mut Rng,
    owner: usize,
    client_count: usize,
    sequence: u64,
    now_ms: u64,
}

impl Choice<'_> {
    fn action(&mut self, in_transaction: bool) -> Action {
        match self.rng.u64(..100) {
            0..24 => Action::Set { key: self.string(), value: self.value() },
            24..30 => {
                Action::SetPx { key: self.string(), value: self.value(), ttl_ms: self.ttl_ms() }
            }
            30..34 => Action::SetPxAt {
                key: self.string(),
                value: self.value(),
                at_ms: self.now_ms + self.ttl_ms(),
            },
            34..38 => Action::SetNx { key: self.string(), value: self.value() },
            38..42 => Action::GetSet { key: self.string(), value: self.value() },
            42..46 => Action::GetDel { key: self.string() },
            46..54 => Action::Append { key: self.string(), value: self.value() },
            54..64 => {
                Action::IncrBy { key: self.counter(), by: self.rng.u64(..2001) as i64 - 1000 }
            }
            64..72 => Action::Del { keys: self.some(Self::any_key) },
            72..80 => Action::MSet { pairs: self.some(|choice| (choice.string(), choice.value())) },
            80..83 => Action::Rename { from: self.string(), to: self.string() },
            83..86 => Action::PExpireAt { key: self.any_key(), at_ms: self.now_ms + self.ttl_ms() },
            86..88 => Action::Persist { key: self.any_key() },
            88..94 if !in_transaction && self.client_count > 1 => self.peek(),
            _ => Action::Get { key: self.any_key() },
        }
    }

    fn peek(&mut self) -> Action {
        let others = self.client_count as u64 - 1;
        let owner = (self.owner + 1 + self.rng.u64(..others) as usize) % self.client_count;
        Action::Peek { owner, key: string_key(owner, self.rng.u64(..STRING_KEY_COUNT)) }
    }

    fn some<T>(&mut self, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..=self.rng.u64(..GROUP_LEN_MAX)).map(|_| one(self)).collect()
    }

    fn string(&mut self) -> Vec<u8> {
        string_key(self.owner, self.rng.u64(..STRING_KEY_COUNT))
    }

    fn counter(&mut self) -> Vec<u8> {
        counter_key(self.owner, self.rng.u64(..COUNTER_KEY_COUNT))
    }

    fn any_key(&mut self) -> Vec<u8> {
        if self.rng.u64(..100) < 20 { self.counter() } else { self.string() }
    }

    fn ttl_ms(&mut self) -> u64 {
        TTL_MS.start + self.rng.u64(..TTL_MS.end - TTL_MS.start)
    }

    /// A value that names the client and the unit that wrote it. Most values are small. A few are
    /// larger than a batch of the log is by default (`log-buffer-size`).
    fn value(&mut self) -> Vec<u8> {
        let size = match self.rng.u64(..200) {
            0 => self.rng.u64(..600 << 10),
            1..20 => self.rng.u64(..8 << 10),
            _ => self.rng.u64(..200),
        };
        let mut value = stamp(self.owner, self.sequence);
        let start = value.len();
        value.resize(start + size as usize, 0);
        self.rng.fill(&mut value[start..]);
        value
    }
}

/// The start of every string value.
fn stamp(owner: usize, sequence: u64) -> Vec<u8> {
    format!("{owner}.{sequence}.").into_bytes()
}

/// The client and the unit that wrote a value. If a later unit appended to the value, the value
/// still has the stamp of its first write. The unit in the stamp is then only a lower bound. With a
/// lower bound, the audit may miss a loss, but never reports a false loss.
pub(super) fn read_stamp(value: &[u8]) -> Option<(usize, u64)> {
    let mut parts = value.splitn(3, |&byte| byte == b'.');
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok();
    Some((number()? as usize, number()?))
}

impl Unit {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        if self.transaction {
            encode(&[b"MULTI"], out);
        }
        for action in &self.actions {
            action.write(out);
        }
        if self.transaction {
            encode(&[b"EXEC"], out);
        }
    }
}

impl Action {
    fn write(&self, out: &mut Vec<u8>) {
        let number = |number: u64| number.to_string().into_bytes();
        match self {
            Self::Set { key, value } => encode(&[b"SET", key, value], out),
            Self::SetPx { key, value, ttl_ms } => {
                encode(&[b"SET", key, value, b"PX", &number(*ttl_ms)], out);
            }
            Self::SetPxAt { key, value, at_ms } => {
                encode(&[b"SET", key, value, b"PXAT", &number(*at_ms)], out);
            }
            Self::SetNx { key, value } => encode(&[b"SETNX", key, value], out),
            Self::GetSet { key, value } => encode(&[b"GETSET", key, value], out),
            Self::GetDel { key } => encode(&[b"GETDEL", key], out),
            Self::Append { key, value } => encode(&[b"APPEND", key, value], out),
            Self::IncrBy { key, by } => encode(&[b"INCRBY", key, by.to_string().as_bytes()], out),
            Self::Del { keys } => {
                let mut words: Vec<&[u8]> = vec![b"DEL"];
                words.extend(keys.iter().map(Vec::as_slice));
                encode(&words, out);
            }
            Self::MSet { pairs } => {
                let mut words: Vec<&[u8]> = vec![b"MSET"];
                words.extend(pairs.iter().flat_map(|(key, value)| [&key[..], &value[..]]));
                encode(&words, out);
            }
            Self::Rename { from, to } => encode(&[b"RENAME", from, to], out),
            Self::PExpireAt { key, at_ms } => {
                encode(&[b"PEXPIREAT", key, &number(*at_ms)], out);
            }
            Self::Persist { key } => encode(&[b"PERSIST", key], out),
            Self::Get { key } | Self::Peek { key, .. } => encode(&[b"GET", key], out),
        }
    }
}
