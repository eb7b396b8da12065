//! The commands that took at least `slowlog-log-slower-than`, newest first.
//!
//! The time of an entry is the time of the command alone, as the command thread's clock measures
//! it. This time does not include waits for the log, for room in the log or for the network. An
//! entry keeps a bounded part of its request.

use std::collections::VecDeque;
use std::time::Duration;

use slimio_resp::{Arg, Args};
use slimio_storage::Lsn;

/// Largest number of arguments that an entry keeps.
const ARGS_MAX: usize = 32;
/// Largest number of bytes of each argument that an entry keeps.
const ARG_SIZE_MAX: usize = 128;
/// Replaces an argument that is a secret.
const REDACTED: &[u8] = b"(redacted)";
/// Directives whose value is a secret.
const SECRETS: [&str; 4] = ["requirepass", "masterauth", "masteruser", "tls-key-file-pass"];

/// A command that was slow.
#[derive(Debug)]
pub(crate) struct SlowCommand {
    pub(crate) id: u64,
    /// When the command ended, in seconds since 1970.
    pub(crate) at_s: i64,
    pub(crate) took: Duration,
    pub(crate) args: Vec<Vec<u8>>,
    pub(crate) address: String,
    pub(crate) client_name: Vec<u8>,
    /// Position in the log that the reply to the command depends on. The entry is not shown before
    /// that reply may be sent.
    pub(crate) needs: Lsn,
}

impl SlowCommand {
    /// `needs` of a command in a transaction that has not ended yet.
    pub(crate) const UNSETTLED: Lsn = Lsn(u64::MAX);
}

#[derive(Debug, Default)]
pub(crate) struct SlowLog {
    entries: VecDeque<SlowCommand>,
    next_id: u64,
}

impl SlowLog {
    /// Adds a command whose reply depends on the log up to `needs`, and forgets the oldest commands
    /// so that at most `len_max` are kept.
    pub(crate) fn add(
        &mut self,
        at_s: i64,
        took: Duration,
        args: Args<'_>,
        who: (String, &[u8]),
        needs: Lsn,
        len_max: usize,
    ) {
        let (address, client_name) = who;
        let entry = SlowCommand {
            id: self.next_id,
            at_s,
            took,
            args: shorten(args),
            address,
            client_name: client_name.to_vec(),
            needs,
        };
        self.next_id += 1;
        self.entries.push_front(entry);
        self.truncate(len_max);
    }

    /// Called when a transaction has ended. Sets the position in the log that the entries of the
    /// transaction's commands depend on.
    pub(crate) fn settle(&mut self, needs: Lsn) {
        let unsettled = self.entries.iter_mut().take_while(|e| e.needs == SlowCommand::UNSETTLED);
        unsettled.for_each(|entry| entry.needs = needs);
    }

    /// All entries, newest first.
    pub(crate) fn entries(&self) -> &VecDeque<SlowCommand> {
        &self.entries
    }

    /// Forgets the oldest commands, so that at most `len_max` are kept.
    pub(crate) fn truncate(&mut self, len_max: usize) {
        self.entries.truncate(len_max);
    }

    /// `SLOWLOG RESET`. The numbering of new entries does not restart.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}

/// The arguments as an entry keeps them: bounded in number and size, without secrets.
fn shorten(args: Args<'_>) -> Vec<Vec<u8>> {
    let kept = if args.len() > ARGS_MAX { ARGS_MAX - 1 } else { args.len() };
    let mut short: Vec<Vec<u8>> =
        (0..kept)
            .map(|index| {
                if is_secret(args, index) {
                    REDACTED.to_vec()
                } else {
                    shorten_arg(args.get(index))
                }
            })
            .collect();
    if kept < args.len() {
        short.push(format!("... ({} more arguments)", args.len() - kept).into_bytes());
    }
    short
}

fn shorten_arg(arg: Arg<'_>) -> Vec<u8> {
    let size = arg.size();
    let mut short: Vec<u8> = arg.chunks().flatten().take(ARG_SIZE_MAX).copied().collect();
    if size > ARG_SIZE_MAX {
        short.extend(format!("... ({} more bytes)", size - ARG_SIZE_MAX).into_bytes());
    }
    short
}

fn is_secret(args: Args<'_>, index: usize) -> bool {
    let name = args.get(0);
    if name.is("auth") {
        return index > 0;
    }
    let follows = |word: &str, distance: usize| {
        index > distance && index - distance > 0 && args.get(index - distance).is(word)
    };
    if name.is("hello") {
        return follows("auth", 1) || follows("auth", 2);
    }
    name.is("config")
        && args.get(1).is("set")
        && index % 2 == 1
        && index > 2
        && SECRETS.iter().any(|secret| args.get(index - 1).is(secret))
}

#[cfg(test)]
mod tests {
    use slimio_resp::Request;

    use super::*;

    fn shortened(words: &[&str]) -> Vec<String> {
        let mut request = Request::default();
        let mut bytes = Vec::new();
        for word in words {
            request.push_range(bytes.len(), word.len());
            bytes.extend_from_slice(word.as_bytes());
        }
        let short = shorten(request.args(&bytes));
        short.into_iter().map(|arg| String::from_utf8(arg).unwrap()).collect()
    }

    #[test]
    fn much_is_cut_short() {
        let long = "x".repeat(200);
        let short = shortened(&["SET", "k", &long]);
        assert_eq!(short[2], format!("{}... (72 more bytes)", &long[..128]));

        let mut words = vec!["DEL"];
        words.extend(std::iter::repeat_n("k", 40));
        let short = shortened(&words);
        assert_eq!(short.len(), 32);
        assert_eq!(short[31], "... (10 more arguments)");
        assert_eq!(shortened(&words[..32]).len(), 32);
    }

    #[test]
    fn secrets_are_not_kept() {
        assert_eq!(shortened(&["AUTH", "me", "pw"]), ["AUTH", "(redacted)", "(redacted)"]);
        assert_eq!(
            shortened(&["hello", "3", "AUTH", "me", "pw", "SETNAME", "n"]),
            ["hello", "3", "AUTH", "(redacted)", "(redacted)", "SETNAME", "n"]
        );
        assert_eq!(
            shortened(&["config", "set", "timeout", "1", "requirepass", "pw"]),
            ["config", "set", "timeout", "1", "requirepass", "(redacted)"]
        );
        assert_eq!(shortened(&["set", "requirepass", "pw"])[2], "pw");
    }
}
