//! `DEBUG DIGEST` and `DEBUG DIGEST-VALUE`: sums by which two data sets, or two values, can be
//! compared. Redis computes the same sums (`computeDatasetDigest` in its `debug.c`).

use std::fmt::Write as _;

use sha1::{Digest as _, Sha1};

use crate::collection::Element;
use crate::context::{Context, Outcome, Steps};
use crate::keyspace::DbIndex;
use crate::kinds::ValueType;
use crate::table::{Position, worth_deferring};
use crate::value::{StringRef, Value, ValueRef};

const SUM_SIZE: usize = 20;

/// A step ends after this many bytes of strings.
const STEP_SIZE: usize = 128 << 10;

/// The fixed cost of a string, as the count of bytes that could be summed in the same time.
const STRING_COST: usize = 64;

/// A sum.
#[derive(Clone, Copy, Debug, Default)]
struct Sum([u8; SUM_SIZE]);

impl Sum {
    /// Adds bytes in such a way that the order of such additions does not matter.
    fn add(&mut self, bytes: &[u8]) {
        self.add_hash(Sha1::digest(bytes).into());
    }

    /// Adds bytes in such a way that the order of such additions matters.
    fn chain(&mut self, bytes: &[u8]) {
        self.chain_hash(Sha1::digest(bytes).into());
    }

    fn add_hash(&mut self, hash: [u8; SUM_SIZE]) {
        self.0.iter_mut().zip(hash).for_each(|(byte, more)| *byte ^= more);
    }

    fn chain_hash(&mut self, hash: [u8; SUM_SIZE]) {
        self.add_hash(hash);
        self.0 = Sha1::digest(self.0).into();
    }

    fn to_hex(self) -> String {
        self.0.iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("writing to a string never fails");
            hex
        })
    }

    /// Adds an element of a collection.
    fn add_element(&mut self, value_type: ValueType, strings: &[Element<'_>]) {
        match value_type {
            ValueType::String => unreachable!("a string is not a collection"),
            ValueType::List => self.chain(&strings[0].to_bytes()),
            ValueType::Set => self.add(&strings[0].to_bytes()),
            ValueType::Hash => {
                let mut pair = Sum::default();
                for string in strings {
                    pair.chain(&string.to_bytes());
                }
                self.add(&pair.0);
            }
        }
    }
}

/// A value that is being summed up, as it was when the summing began.
#[derive(Debug)]
struct Summing {
    value: Value,
    expires: bool,
    /// The next piece of a large string, or the next element of a collection.
    next: usize,
    /// For a large string, the hash of those pieces that were read so far.
    hasher: Sha1,
    sum: Sum,
}

impl Summing {
    /// Begins with `sum`, which is either the sum of the key or the sum of nothing.
    fn new(value: ValueRef<'_>, expires: bool, mut sum: Sum) -> Self {
        sum.chain(&u32::from(value.value_type().number()).to_be_bytes());
        Self { value: value.to_value(), expires, next: 0, hasher: Sha1::new(), sum }
    }

    /// Adds the next piece of a large string, all of any other string, or the rest of a leaf of a
    /// collection. Subtracts the cost from `left`. Returns the sum once the whole value is added.
    fn step(&mut self, left: &mut usize) -> Option<Sum> {
        let Self { value, next, hasher, sum, .. } = self;
        let value = value.as_ref();
        let is_over = match value {
            ValueRef::String(StringRef::Blob(blob)) => {
                hasher.update(&blob.pieces()[*next][..]);
                *left = left.saturating_sub(blob.pieces()[*next].len());
                *next += 1;
                let is_over = *next == blob.pieces().len();
                if is_over {
                    sum.chain_hash(hasher.finalize_reset().into());
                }
                is_over
            }
            ValueRef::String(string) => {
                sum.chain(&string.as_arg().to_bytes());
                *left = left.saturating_sub(STRING_COST + string.size());
                true
            }
            ValueRef::Collection(collection) => {
                let mut strings = collection.strings_of_leaf(*next);
                let (value_type, mut element) = (value.value_type(), Vec::new());
                loop {
                    element.clear();
                    element.extend(strings.by_ref().take(value_type.strings()));
                    if element.is_empty() {
                        break;
                    }
                    sum.add_element(value_type, &element);
                    let size: usize = element.iter().map(|it| STRING_COST + it.size()).sum();
                    *left = left.saturating_sub(size);
                    *next += 1;
                }
                *next == collection.len()
            }
        };
        if is_over && self.expires {
            self.sum.add(b"!!expire!!");
        }
        is_over.then_some(self.sum)
    }
}

/// `DEBUG DIGEST-VALUE key...`: the sum of each value. The sum for a key that does not exist is
/// zero.
pub fn debug_digest_value(context: &mut Context<'_>) -> Outcome {
    Box::new(ValueSums { next: 2, sums: Vec::new(), summing: None }).resume(context)
}

#[derive(Debug)]
struct ValueSums {
    /// The next argument.
    next: usize,
    sums: Vec<Sum>,
    summing: Option<Summing>,
}

impl Steps for ValueSums {
    fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        let mut left = STEP_SIZE;
        loop {
            if let Some(summing) = &mut self.summing {
                if let Some(sum) = summing.step(&mut left) {
                    self.sums.push(sum);
                    let summing = self.summing.take().map(|summing| summing.value);
                    give_up(context, summing);
                }
            } else if self.next < context.args.len() {
                let found = context.peek(self.next);
                let expires = context.expires_at_ms(&found).is_some();
                match context.value(&found) {
                    Some(value) => {
                        self.summing = Some(Summing::new(value, expires, Sum::default()));
                    }
                    None => self.sums.push(Sum::default()),
                }
                self.next += 1;
                left = left.saturating_sub(STRING_COST);
            } else {
                context.reply.array(self.sums.len());
                self.sums.iter().for_each(|sum| context.reply.simple(&sum.to_hex()));
                return Outcome::Reply;
            }
            if left == 0 && context.mode.yields() {
                return Outcome::Yield(self);
            }
        }
    }
}

/// `DEBUG DIGEST`: the sum of the whole data set, without keys that have expired. The sum is
/// computed in steps. If the data set changes between the steps, the sum is not that of any one
/// point in time.
pub fn debug_digest(context: &mut Context<'_>) -> Outcome {
    let sum = Sum::default();
    let position = Position::START;
    Box::new(DataSum { db: 0, position, sum, waiting: Vec::new() }).resume(context)
}

#[derive(Debug)]
struct DataSum {
    db: u16,
    position: Position,
    sum: Sum,
    /// The values that still have to be summed up, from the bucket that was taken last.
    waiting: Vec<Summing>,
}

impl Steps for DataSum {
    fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        let mut left = STEP_SIZE;
        loop {
            if let Some(summing) = self.waiting.last_mut() {
                if let Some(sum) = summing.step(&mut left) {
                    self.sum.add(&sum.0);
                    let summing = self.waiting.pop().map(|summing| summing.value);
                    give_up(context, summing);
                }
            } else if usize::from(self.db) < context.keyspace.db_count() {
                self.take_bucket(context);
                left = left.saturating_sub(STRING_COST);
            } else {
                context.reply.simple(&self.sum.to_hex());
                return Outcome::Reply;
            }
            if left == 0 && context.mode.yields() {
                return Outcome::Yield(self);
            }
        }
    }
}

impl DataSum {
    /// Takes the values of the next bucket.
    fn take_bucket(&mut self, context: &mut Context<'_>) {
        let db = DbIndex(self.db);
        context.look_at(db);
        let table = context.keyspace.db(db).table();
        if self.position == Position::START && table.len() > 0 {
            self.sum.chain(&u32::from(self.db).to_be_bytes());
        }
        let (next, entries) = table.walk(self.position);
        for (spot, slot) in entries {
            if !context.has_expired(db, spot) {
                let mut key = Sum::default();
                key.chain(slot.key());
                self.waiting.push(Summing::new(slot.value(), slot.expires(), key));
            }
        }
        self.position = next;
        if next == Position::END {
            (self.db, self.position) = (self.db + 1, Position::START);
        }
    }
}

/// Moves the value to the garbage, because this may be the last reference to the value: the key may
/// have been deleted meanwhile.
fn give_up(context: &mut Context<'_>, value: Option<Value>) {
    context.keyspace.displaced.garbage.add_value(value.and_then(worth_deferring));
}
