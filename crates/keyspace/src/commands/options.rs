//! The options of `SET` and `GETEX`, and expiry times.

use slimio_resp::Args;

use crate::context::Context;

/// What the command's options say about the key's expiry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Expiry {
    /// The command has no such option.
    #[default]
    Unsaid,
    /// `KEEPTTL`
    Keep,
    /// `PERSIST`
    Persist,
    /// `EX`, `PX`, `EXAT` or `PXAT`. The argument at `index` is the time.
    At { unit: Unit, index: usize },
}

/// The meaning of a time argument: seconds or milliseconds, counted from 1970 or from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) seconds: bool,
    pub(super) absolute: bool,
}

impl Unit {
    pub(super) const EX: Unit = Unit { seconds: true, absolute: false };
    pub(super) const PX: Unit = Unit { seconds: false, absolute: false };
    pub(super) const EXAT: Unit = Unit { seconds: true, absolute: true };
    pub(super) const PXAT: Unit = Unit { seconds: false, absolute: true };
}

/// The condition of `SET`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Condition {
    #[default]
    Always,
    /// `NX`
    IfMissing,
    /// `XX`
    IfPresent,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) condition: Condition,
    /// `GET`
    pub(super) get: bool,
    pub(super) expiry: Expiry,
}

/// Reads the options from `start` on. Returns `None` on a syntax error: an option is unknown, lacks
/// its argument, or contradicts an earlier option.
pub(super) fn parse(args: Args<'_>, start: usize, for_set: bool) -> Option<Options> {
    let mut options = Options::default();
    let mut index = start;
    while index < args.len() {
        let arg = args.get(index);
        let unit = [("ex", Unit::EX), ("px", Unit::PX), ("exat", Unit::EXAT), ("pxat", Unit::PXAT)]
            .into_iter()
            .find(|(name, _)| arg.is(name))
            .map(|(_, unit)| unit);
        if let Some(unit) = unit
            && index + 1 < args.len()
        {
            match options.expiry {
                Expiry::Unsaid => {}
                Expiry::At { unit: before, .. } if before == unit => {}
                _ => return None,
            }
            index += 1;
            options.expiry = Expiry::At { unit, index };
        } else if for_set && arg.is("nx") && options.condition != Condition::IfPresent {
            options.condition = Condition::IfMissing;
        } else if for_set && arg.is("xx") && options.condition != Condition::IfMissing {
            options.condition = Condition::IfPresent;
        } else if for_set && arg.is("get") {
            options.get = true;
        } else if for_set
            && arg.is("keepttl")
            && matches!(options.expiry, Expiry::Unsaid | Expiry::Keep)
        {
            options.expiry = Expiry::Keep;
        } else if !for_set
            && arg.is("persist")
            && matches!(options.expiry, Expiry::Unsaid | Expiry::Persist)
        {
            options.expiry = Expiry::Persist;
        } else {
            return None;
        }
        index += 1;
    }
    Some(options)
}

impl Context<'_> {
    /// Reads a time, which must be positive, and converts it to milliseconds since 1970. Replies
    /// with the error if the time is invalid.
    pub(super) fn expiry_arg(&mut self, index: usize, unit: Unit, command: &str) -> Option<i64> {
        let value = self.integer_arg(index)?;
        let now_ms = if unit.absolute { 0 } else { self.now_ms };
        let at_ms = (value > 0)
            .then(|| if unit.seconds { value.checked_mul(1000) } else { Some(value) })
            .flatten()
            .and_then(|value| value.checked_add(now_ms));
        if at_ms.is_none() {
            self.invalid_expiry(command);
        }
        at_ms
    }

    /// Replies that an expiry is invalid.
    pub(super) fn invalid_expiry(&mut self, command: &str) {
        self.reply.error(&format!("ERR invalid expire time in '{command}' command"));
    }
}
