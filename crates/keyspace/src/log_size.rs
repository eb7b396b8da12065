//! Computes how much space in the log a command may need, before the command runs.

use std::ops::Range;

use slimio_resp::Args;

use crate::command::{Command, Flags, KeyRange};

/// An effect is the command that is logged for a request. It is at most this many bytes longer than
/// the request. These bytes are for a `SELECT` before the effect, an absolute time in place of a
/// number of seconds, the option for such a time, and the count of the effect's arguments.
pub const EFFECT_SIZE_BESIDE: u64 = 48;

/// Bytes of a logged deletion without its key: a `SELECT`, the name of the command, and the count
/// of arguments.
const DELETION_SIZE: u64 = 19;

/// If a request has at most this many arguments, each argument is looked up by its index.
const FEW_ARGS_MAX: usize = 16;

/// Size in bytes of the longest extended-precision number, which is logged in decimal digits.
const LONG_DOUBLE_SIZE_MAX: u64 = 5 << 10;

impl<F> Command<F> {
    /// Upper bound, in bytes, of a record's payload for this command with these arguments,
    /// including the deletion of expired keys. This bound is for commands that write. For other
    /// commands, [`Effects::limit`](crate::Effects::limit) sets the bound.
    pub fn log_size_max(&self, args: Args<'_>) -> u64 {
        if args.len() <= FEW_ARGS_MAX {
            return EFFECT_SIZE_BESIDE + self.log_size_of(args, 0..args.len());
        }
        let mut keys = self.key_indices(args).peekable();
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

    /// How much the arguments in `range` contribute to [`log_size_max`](Self::log_size_max). That
    /// bound is the contribution of all arguments plus a constant.
    #[inline]
    pub fn log_size_of(&self, args: Args<'_>, range: Range<usize>) -> u64 {
        let request: u64 = range.clone().map(|index| arg_size(args.get(index).size())).sum();
        let over: u64 = match self.keys {
            KeyRange { first: 0, .. } => 0,
            // This case has a fast path, because most commands have one key, and every write
            // computes this size.
            KeyRange { first: 1, last: 1, .. } if range.contains(&1) => {
                deletion_size_max(args.get(1).size())
            }
            _ => {
                let keys = self.key_indices_from(range.start, args);
                let keys = keys.take_while(|index| *index < range.end);
                keys.map(|index| deletion_size_max(args.get(index).size())).sum()
            }
        };
        self.with_computed(request, over)
    }

    /// The sum of three sizes: of the request, of the deletions of its keys if all of them have
    /// expired, and of a number that the command may compute. `over` is the size of the deletions
    /// in one database.
    #[inline]
    fn with_computed(&self, request: u64, over: u64) -> u64 {
        let finds = if self.flags.has(Flags::TWO_DBS) { 2 } else { 1 };
        let computed = if self.flags.has(Flags::LONG_EFFECT) { LONG_DOUBLE_SIZE_MAX } else { 0 };
        request + finds * over + computed
    }
}

/// Upper bound of the bytes in a payload that the deletion of one key takes.
pub(crate) fn deletion_size_max(key_size: usize) -> u64 {
    DELETION_SIZE + arg_size(key_size)
}

/// Upper bound of the bytes that an argument of a logged command takes, including the varint of its
/// size.
fn arg_size(size: usize) -> u64 {
    size as u64 + if size < 1 << 7 { 1 } else { 10 }
}
