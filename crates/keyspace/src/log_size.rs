//! How much of the log a command may need, known before it runs.

use std::ops::Range;

use slimio_resp::Args;

use crate::command::{Command, Flags, KeyRange};

/// Most bytes that an effect may have beyond its request: a `SELECT` before it, a date in place of
/// a number of seconds, the word that says so, and the count of its arguments.
pub const EFFECT_SIZE_BESIDE: u64 = 48;

/// Size of a `SELECT`, the name of the command, and the count of arguments.
const DELETION_SIZE: u64 = 19;

/// Arguments up to which each is looked up by its index.
const FEW_ARGS_MAX: usize = 16;

/// Longest number of extended precision in decimal digits.
const LONG_DOUBLE_SIZE_MAX: u64 = 5 << 10;

impl<F> Command<F> {
    /// Most bytes of a record's payload for this command with these arguments, including the
    /// deletion of expired keys. For commands that write; a bound for others is set with
    /// [`Effects::limit`](crate::Effects::limit).
    pub fn log_size_max(&self, args: Args<'_>) -> u64 {
        if args.len() <= FEW_ARGS_MAX {
            return EFFECT_SIZE_BESIDE + self.log_size_of(args, 0..args.len());
        }
        let mut keys = self.keys.indices(args.len()).peekable();
        let (mut request, mut over) = (0, 0);
        for (index, arg) in args.iter().enumerate() {
            let size = arg.size();
            request += arg_size(size);
            if keys.next_if_eq(&index).is_some() {
                over += deletion_size_max(size);
            }
        }
        EFFECT_SIZE_BESIDE + self.with_computed(request, over)
    }

    /// The share of some of the arguments in [`log_size_max`](Self::log_size_max), which is that of
    /// all arguments plus a constant.
    #[inline]
    pub fn log_size_of(&self, args: Args<'_>, range: Range<usize>) -> u64 {
        let request: u64 = range.clone().map(|index| arg_size(args.get(index).size())).sum();
        let over: u64 = match self.keys {
            KeyRange { first: 0, .. } => 0,
            // A fast path: most commands have one key, and this is done for every write.
            KeyRange { first: 1, last: 1, .. } if range.contains(&1) => {
                deletion_size_max(args.get(1).size())
            }
            keys => {
                let keys = keys.indices_from(range.start, args.len());
                let keys = keys.take_while(|index| *index < range.end);
                keys.map(|index| deletion_size_max(args.get(index).size())).sum()
            }
        };
        self.with_computed(request, over)
    }

    /// Together with what is computed: `over` is what the deletion of expired keys takes.
    #[inline]
    fn with_computed(&self, request: u64, over: u64) -> u64 {
        let finds = if self.flags.has(Flags::TWO_DBS) { 2 } else { 1 };
        let computed = if self.flags.has(Flags::LONG_EFFECT) { LONG_DOUBLE_SIZE_MAX } else { 0 };
        request + finds * over + computed
    }
}

/// Bytes that the deletion of one key takes in a payload, at most.
pub(crate) fn deletion_size_max(key_size: usize) -> u64 {
    DELETION_SIZE + arg_size(key_size)
}

/// Bytes that an argument of a logged command takes at most, its size included.
fn arg_size(size: usize) -> u64 {
    size as u64 + if size < 1 << 7 { 1 } else { 10 }
}
