//! How long a blocking command waits.

use std::time::Duration;

use super::counter::parse_float;
use crate::context::Context;

const NOT_A_FLOAT: &str = "ERR timeout is not a float or out of range";
/// As in Redis 7.0, this is also the error for a time that is too large.
const NEGATIVE: &str = "ERR timeout is negative";

/// Reads the longest time that a command may wait: argument `index`, in seconds. Rounds the time up
/// to whole milliseconds. Zero means no limit. If the argument is not a valid time, replies with
/// the error and returns `None`.
pub(crate) fn timeout_arg(context: &mut Context<'_>, index: usize) -> Option<Duration> {
    let Some(seconds) = parse_float(context.args.get(index)) else {
        context.error(NOT_A_FLOAT);
        return None;
    };
    let Some(Ok(milliseconds)) = seconds.thousandfold_rounded_up().map(u64::try_from) else {
        context.error(NEGATIVE);
        return None;
    };
    Some(Duration::from_millis(milliseconds))
}
