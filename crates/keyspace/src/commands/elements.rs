//! Replies with the elements of collections. A large collection is read in steps, from a clone that
//! no later write changes.

use slimio_resp::{Protocol, ReplyBuf};

use super::lookup::Found;
use super::scan::{STEP_COST_MAX, parse_cursor, reply_scan, scan_options};
use super::text;
use crate::collection::hashed::Position;
use crate::collection::{CollectionRef, Element};
use crate::context::{Context, Outcome, Steps};
use crate::kinds::{STRINGS_MAX, ValueType};
use crate::table::worth_deferring;
use crate::value::{Value, ValueRef};

/// The largest number of elements that a client's command handles without a break. If a writing
/// command has more elements to handle, it runs in steps. Meanwhile it holds its keys: other
/// clients' requests for these keys wait.
pub const ELEMENTS_AT_ONCE_MAX: usize = 2048;

/// Number of elements after which a call of a scan ends. It also ends a step that replies with a
/// range of a list, and a step of a random draw that goes through all elements.
pub(crate) const STEP_ELEMENTS_MAX: usize = 1024;

/// Bytes of replies after which a step ends.
pub(crate) const STEP_SIZE_MAX: usize = 64 * 1024;

/// What to reply for each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The first string: a member, or the field of a hash.
    First,
    /// The second string: the value of a field.
    Second,
    /// All strings, one after the other.
    All,
    /// An array of all strings.
    Arrays,
}

impl Wanted {
    pub(crate) fn reply(self, element: &[Element<'_>], reply: &mut ReplyBuf) {
        let strings = match self {
            Wanted::First => &element[..1],
            Wanted::Second => &element[1..2],
            Wanted::All => element,
            Wanted::Arrays => {
                reply.array(element.len());
                element
            }
        };
        for string in strings {
            string.reply(reply);
        }
    }

    /// Both strings of each element, in the form in which this protocol replies with pairs.
    pub(crate) fn pairs(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Resp2 => Wanted::All,
            Protocol::Resp3 => Wanted::Arrays,
        }
    }
}

/// The reply that holds the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    Array,
    Set,
    Map,
}

impl Head {
    /// Begins a reply of this many elements.
    pub(crate) fn reply(self, len: usize, reply: &mut ReplyBuf) {
        match self {
            Head::Array => reply.array(len),
            Head::Set => reply.set(len),
            Head::Map => reply.map(len),
        }
    }
}

/// Groups strings into elements of `count` strings each, and passes each element to `each`.
pub(crate) fn each_element<'a>(
    count: usize,
    strings: impl Iterator<Item = Element<'a>>,
    mut each: impl FnMut(&[Element<'a>]),
) {
    let (mut element, mut len) = ([Element::Integer(0); STRINGS_MAX], 0);
    for string in strings {
        element[len] = string;
        len += 1;
        if len == count {
            each(&element[..count]);
            len = 0;
        }
    }
}

impl Context<'_> {
    /// Replies with all elements of the collection at a key, which may not exist.
    pub(crate) fn reply_all(&mut self, found: &Found<'_>, wanted: Wanted, head: Head) -> Outcome {
        let value = found.spot.map(|spot| self.keyspace.db(found.db).value(spot));
        let collection = value.and_then(ValueRef::as_collection);
        if let Some(collection) = collection
            && collection.is_large()
        {
            let walk = ElementsWalk::new(collection.to_value(), wanted, head, self.reply);
            return Box::new(walk).resume(self);
        }
        head.reply(collection.map_or(0, CollectionRef::len), self.reply);
        if let Some(collection) = collection {
            let count = collection.value_type().strings();
            each_element(count, collection.strings(), |element| wanted.reply(element, self.reply));
        }
        Outcome::Reply
    }
}

/// Runs `HSCAN` or `SSCAN`, which reply with all strings of some elements. The scan of a large
/// collection continues at the cursor. A whole scan returns every element that was present during
/// the whole scan.
pub(crate) fn scan_elements(context: &mut Context<'_>, value_type: ValueType) -> Outcome {
    let Some(cursor) = parse_cursor(&context.args.bytes(2)) else {
        return context.error(text::INVALID_CURSOR);
    };
    let found = context.read(1);
    if context.is_wrong(&found, value_type) {
        return Outcome::Reply;
    }
    if found.spot.is_none() {
        reply_scan(context.reply, 0, 0);
        return Outcome::Reply;
    }
    let Some(options) = scan_options(context, 3, false) else { return Outcome::Reply };
    let mut out = context.reply.for_parts();
    let (mut position, mut count, mut seen, mut cost) = (Position::END, 0, 0, 0);
    let mut each = |element: &[Element<'_>]| {
        let name = element[0].to_bytes();
        seen += 1;
        cost += options.cost_of(&name);
        if options.matches(&name) {
            Wanted::All.reply(element, &mut out);
            count += element.len();
        }
        (seen, cost)
    };
    if let Some(collection) = context.value(&found).and_then(ValueRef::as_collection) {
        if let Some(tree) = collection.tree() {
            position = Position(cursor);
            let wanted = options.count.min(STEP_ELEMENTS_MAX);
            let (mut seen, mut cost) = (0, 0);
            // No scan returns a cursor beyond the end. If a client sends such a cursor, the scan
            // ends at once.
            while position < Position::END && seen < wanted && cost < STEP_COST_MAX {
                position = tree.walk(position, &mut |element| (seen, cost) = each(element));
            }
        } else {
            // Returns all elements at once, whatever the cursor is, as Redis does.
            each_element(collection.strings_each(), collection.strings(), |element| {
                each(element);
            });
        }
    }
    let cursor = if position < Position::END { position.0 } else { 0 };
    reply_scan(context.reply, cursor, count);
    context.reply.append(&out);
    Outcome::Reply
}

/// A walk over all elements of a collection, as it was when the walk began.
#[derive(Debug)]
pub(crate) struct ElementsWalk {
    source: Value,
    /// Count of elements found so far.
    index: usize,
    wanted: Wanted,
    head: Head,
    /// The elements found so far, as replies.
    out: ReplyBuf,
}

impl ElementsWalk {
    /// A walk over a collection. The elements will be appended to `reply`.
    ///
    /// Panics if the value is no collection.
    pub(crate) fn new(source: Value, wanted: Wanted, head: Head, reply: &ReplyBuf) -> Self {
        assert!(source.as_ref().as_collection().is_some(), "the value is a collection");
        Self { source, index: 0, wanted, head, out: reply.for_parts() }
    }
}

impl Steps for ElementsWalk {
    fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        let Self { source, index, wanted, out, .. } = &mut *self;
        let collection = source.as_ref().as_collection().expect("the walk is over a collection");
        let len = collection.len();
        let count = collection.value_type().strings();
        while *index < len && !out.is_cut() {
            let (start, first) = (out.len(), *index);
            while *index < len
                && *index - first < ELEMENTS_AT_ONCE_MAX
                && out.len() - start < STEP_SIZE_MAX
            {
                each_element(count, collection.strings_of_leaf(*index), |element| {
                    wanted.reply(element, out);
                    *index += 1;
                });
            }
            if *index < len {
                // Sealing `out` makes its bytes shareable. So the last step need not copy all
                // replies.
                out.seal();
            }
            if context.mode.yields() && *index < len {
                return Outcome::Yield(self);
            }
        }
        self.head.reply(len, context.reply);
        end_of_steps(context, &self.out, self.source)
    }

    fn has_all(&self) -> bool {
        true
    }

    fn made(&self) -> Option<&ReplyBuf> {
        Some(&self.out)
    }
}

/// Ends a reply that was made in steps from a value: appends `parts` to the reply. The value goes
/// to the garbage, because this is the last reference to the value if the key was deleted
/// meanwhile.
pub(crate) fn end_of_steps(context: &mut Context<'_>, parts: &ReplyBuf, source: Value) -> Outcome {
    context.reply.append(parts);
    context.keyspace.displaced.garbage.add_value(worth_deferring(source));
    Outcome::Reply
}
