//! The mixes of operations that clients send, YCSB's among them.
//!
//! YCSB's records become strings, one per key, and YCSB's operations become commands on strings:
//!
//! | mix | operations | keys |
//! |---|---|---|
//! | `ycsb-a` | 50 % GET, 50 % SET | zipfian |
//! | `ycsb-b` | 95 % GET, 5 % SET | zipfian |
//! | `ycsb-c` | GET | zipfian |
//! | `ycsb-d` | 95 % GET, 5 % SET of a new key | latest |
//! | `ycsb-e` | 95 % MGET of 1 to 100 neighbouring keys (a scan), 5 % SET of a new key | zipfian |
//! | `ycsb-f` | 50 % GET, 50 % GET and then SET of the same key, timed as one | zipfian |
//!
//! A scan in YCSB asks for the records that follow a key in key order. YCSB's Redis binding keeps a
//! sorted set for that. The keys of strings have no order, so here the neighbours of a key are the
//! keys with the next numbers. `MGET` reads as many values as the scan would.
//!
//! The mixes on sets, hashes and lists are in [`crate::elements`].

use fastrand::Rng;

use crate::elements::{ElementOp, Fill};
use crate::error::{BenchError, Result};
use crate::keys::{KeyDistribution, KeyPicker};

/// Longest scan, in keys, as in YCSB.
const SCAN_LEN_MAX: u64 = 100;
/// The largest number of keys of an MSET.
const MSET_LEN_MAX: u64 = 1024;

/// One operation, not yet encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// `SET key value`.
    Set {
        /// Key number.
        key: u64,
    },
    /// `GET key`.
    Get {
        /// Key number.
        key: u64,
    },
    /// `GET key`. After its reply, `SET key value`.
    ReadModifyWrite {
        /// Key number.
        key: u64,
    },
    /// `MSET` of `len` consecutive keys. After the key with the highest number comes key 0.
    MSet {
        /// First key's number.
        key: u64,
        /// Number of keys.
        len: u64,
    },
    /// `MGET` of `len` consecutive keys. After the key with the highest number comes key 0.
    MGet {
        /// First key's number.
        key: u64,
        /// Number of keys.
        len: u64,
    },
    /// A request on the elements of a collection.
    Element(ElementOp),
}

impl Op {
    /// Whether the operation only reads.
    pub fn is_read(self) -> bool {
        match self {
            Self::Get { .. } | Self::MGet { .. } => true,
            Self::Set { .. } | Self::MSet { .. } | Self::ReadModifyWrite { .. } => false,
            Self::Element(op) => op.is_read(),
        }
    }
}

/// Takes the number of a key, member or field, and makes a request on elements.
type ElementVerb = fn(u64) -> ElementOp;

#[derive(Clone, Copy, Debug)]
enum Verb {
    Set,
    Get,
    Insert,
    ReadModifyWrite,
    Scan,
    MSet { len: u64 },
    Element(ElementVerb),
}

/// Verbs with their weights.
type Weights = Vec<(u64, Verb)>;

/// A stream of operations.
#[derive(Clone, Debug)]
pub struct Mix {
    weights: Weights,
    weight_sum: u64,
    keys: KeyPicker,
    fill: Fill,
    is_once: bool,
}

impl Mix {
    /// The mix called `name`: `set`, `get`, `mset:LEN`, `ratio:SETS:GETS`, `ycsb-a` to `ycsb-f`, or
    /// a mix of [`crate::elements`]. If `distribution` is given, the keys have this distribution
    /// instead of the mix's own.
    pub fn named(
        name: &str,
        key_count: u64,
        distribution: Option<KeyDistribution>,
    ) -> Result<Self> {
        let (weights, own, fill) = parse(name)?;
        let weight_sum = weights.iter().map(|&(weight, _)| weight).sum();
        if weight_sum == 0 {
            return Err(BenchError::Usage(format!("all weights of mix {name} are 0")));
        }
        let distribution = distribution.unwrap_or(own);
        let keys = KeyPicker::new(distribution, key_count);
        let is_once =
            matches!(name, "spop" | "lpop" | "rpop") || distribution == KeyDistribution::New;
        Ok(Self { weights, weight_sum, keys, fill, is_once })
    }

    /// The data that must exist before the first request.
    pub fn fill(&self) -> Fill {
        self.fill
    }

    /// Whether each request makes the data set larger or smaller. If so, servers can be compared
    /// only after the same number of requests.
    pub fn is_once(&self) -> bool {
        self.is_once
    }

    /// The present number of keys. Inserts make the number grow.
    pub fn key_count(&self) -> u64 {
        self.keys.count()
    }

    /// The next operation.
    pub fn pick(&mut self, rng: &mut Rng) -> Op {
        match self.pick_verb(rng) {
            Verb::Set => Op::Set { key: self.keys.pick(rng) },
            Verb::Get => Op::Get { key: self.keys.pick(rng) },
            Verb::Insert => Op::Set { key: self.keys.insert() },
            Verb::ReadModifyWrite => Op::ReadModifyWrite { key: self.keys.pick(rng) },
            Verb::MSet { len } => Op::MSet { key: self.keys.pick(rng), len },
            Verb::Element(op) => Op::Element(op(self.keys.pick(rng))),
            Verb::Scan => Op::MGet { key: self.keys.pick(rng), len: 1 + rng.u64(..SCAN_LEN_MAX) },
        }
    }

    fn pick_verb(&self, rng: &mut Rng) -> Verb {
        if let [(_, only)] = self.weights[..] {
            return only;
        }
        let mut ticket = rng.u64(..self.weight_sum);
        for &(weight, verb) in &self.weights {
            if ticket < weight {
                return verb;
            }
            ticket -= weight;
        }
        unreachable!("the ticket is below the sum of the weights");
    }
}

fn parse(name: &str) -> Result<(Weights, KeyDistribution, Fill)> {
    use KeyDistribution::{Latest, New, Uniform, Zipfian};
    let element = |op: ElementVerb, keys: KeyDistribution, fill: Fill| {
        Ok((vec![(1, Verb::Element(op))], keys, fill))
    };
    let number = |text: &str| {
        text.parse::<u64>()
            .map_err(|_| BenchError::Usage(format!("mix {name}: {text} is not a number")))
    };
    let parts: Vec<&str> = name.split(':').collect();
    let (weights, keys) = match parts[..] {
        ["sadd"] => return element(|member| ElementOp::Add { member }, New, Fill::Set),
        ["sadd-new"] => return element(|key| ElementOp::AddSmall { key }, New, Fill::Nothing),
        ["spop"] => return element(|_| ElementOp::Pop, Uniform, Fill::Set),
        ["sismember"] => {
            return element(|member| ElementOp::IsMember { member }, Uniform, Fill::Set);
        }
        ["sinter"] => return element(|_| ElementOp::Intersect, Uniform, Fill::TwoSets),
        ["hset"] => return element(|field| ElementOp::SetField { field }, Uniform, Fill::Hash),
        ["hget"] => return element(|field| ElementOp::GetField { field }, Uniform, Fill::Hash),
        ["lpush"] => {
            let push = |element| ElementOp::Push { name: "LPUSH", element };
            return element(push, New, Fill::List);
        }
        ["rpush"] => {
            let push = |element| ElementOp::Push { name: "RPUSH", element };
            return element(push, New, Fill::List);
        }
        ["lpop"] => return element(|_| ElementOp::PopEnd { name: "LPOP" }, Uniform, Fill::List),
        ["rpop"] => return element(|_| ElementOp::PopEnd { name: "RPOP" }, Uniform, Fill::List),
        ["lrange", "100"] => {
            return element(|_| ElementOp::Range { len: 100 }, Uniform, Fill::List);
        }
        ["lrange", "600"] => {
            return element(|_| ElementOp::Range { len: 600 }, Uniform, Fill::List);
        }
        ["linsert"] => {
            let verbs: [ElementVerb; 2] = [|_| ElementOp::Insert, |_| ElementOp::RemoveInserted];
            let weights = verbs.map(|verb| (1, Verb::Element(verb))).into();
            return Ok((weights, Uniform, Fill::ShortList));
        }
        ["lpos"] => return element(|_| ElementOp::Find, Uniform, Fill::ShortList),
        ["lrem"] => return element(|_| ElementOp::RemoveAbsent, Uniform, Fill::ShortList),
        ["set"] => (vec![(1, Verb::Set)], Uniform),
        ["get"] => (vec![(1, Verb::Get)], Uniform),
        ["mset", len] => {
            let len = number(len)?;
            if !(1..=MSET_LEN_MAX).contains(&len) {
                return Err(BenchError::Usage(format!("mix mset takes 1 to {MSET_LEN_MAX} keys")));
            }
            (vec![(1, Verb::MSet { len })], Uniform)
        }
        ["ratio", sets, gets] => {
            (vec![(number(sets)?, Verb::Set), (number(gets)?, Verb::Get)], Uniform)
        }
        ["ycsb-a"] => (vec![(50, Verb::Get), (50, Verb::Set)], Zipfian),
        ["ycsb-b"] => (vec![(95, Verb::Get), (5, Verb::Set)], Zipfian),
        ["ycsb-c"] => (vec![(1, Verb::Get)], Zipfian),
        ["ycsb-d"] => (vec![(95, Verb::Get), (5, Verb::Insert)], Latest),
        ["ycsb-e"] => (vec![(95, Verb::Scan), (5, Verb::Insert)], Zipfian),
        ["ycsb-f"] => (vec![(50, Verb::Get), (50, Verb::ReadModifyWrite)], Zipfian),
        _ => {
            return Err(BenchError::Usage(format!(
                "unknown mix {name}; the mixes are set, get, mset:LEN, ratio:SETS:GETS, ycsb-a … ycsb-f, \
                 sadd, sadd-new, spop, sismember, sinter, hset, hget, lpush, rpush, lpop, rpop, \
                 lrange:100, lrange:600, linsert, lpos, lrem"
            )));
        }
    };
    Ok((weights, keys, Fill::Keys))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(name: &str, is: impl Fn(Op) -> bool) -> f64 {
        let mut mix = Mix::named(name, 1000, None).unwrap();
        let mut rng = Rng::with_seed(9);
        let draws = 20_000;
        let hits = (0..draws).filter(|_| is(mix.pick(&mut rng))).count();
        hits as f64 / f64::from(draws)
    }

    #[test]
    fn mixes_have_their_shares() {
        let reads = |op| matches!(op, Op::Get { .. } | Op::MGet { .. });
        for (name, expected) in [
            ("set", 0.0),
            ("get", 1.0),
            ("ratio:1:9", 0.9),
            ("ycsb-a", 0.5),
            ("ycsb-b", 0.95),
            ("ycsb-c", 1.0),
            ("ycsb-d", 0.95),
            ("ycsb-e", 0.95),
            ("ycsb-f", 0.5),
        ] {
            let is = share(name, reads);
            assert!((is - expected).abs() < 0.015, "{name}: {is}");
        }
    }

    #[test]
    fn inserts_make_new_keys() {
        let mut mix = Mix::named("ycsb-d", 10, None).unwrap();
        let mut rng = Rng::with_seed(9);
        for _ in 0..1000 {
            mix.pick(&mut rng);
        }
        assert!(mix.key_count() > 20, "{}", mix.key_count());
    }

    #[test]
    fn nonsense_is_refused() {
        for name in ["", "sets", "mset:0", "mset:x", "ratio:0:0", "ycsb-g"] {
            let refused = Mix::named(name, 10, None);
            assert!(matches!(refused, Err(BenchError::Usage(_))), "{name}");
        }
    }
}
