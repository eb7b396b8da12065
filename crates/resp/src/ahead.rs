//! A quick look at requests that have arrived but have not been parsed yet.

/// The most bytes that a count or length may have, including the `\r`. This module does not look at
/// a request with a longer count or length.
const DIGITS_MAX: usize = 7;

/// This module does not look at a request with more arguments than this (including the command's
/// name), because the search for the end of a request has to skip all its arguments.
const ARGS_MAX: usize = 32;

/// The arguments of a request that has arrived but has not been parsed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead<'a> {
    /// The argument after the command's name. For most commands, it is a key.
    pub first: &'a [u8],
    /// The argument after `first`; empty if there is none. For most commands of a set or a hash, it
    /// is a member or a field.
    pub second: &'a [u8],
    /// The offset at which the request ends.
    pub end: usize,
}

/// Looks at the complete requests at the start of `bytes`.
///
/// Use this for hints only, because hardly anything is checked. The iterator ends at the first
/// request that is incomplete, that is inline, that has no argument or too many arguments, or that
/// breaks the protocol.
pub fn requests_ahead(bytes: &[u8]) -> impl Iterator<Item = Ahead<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (len, mut next) = number(bytes, at, b'*')?;
        if !(2..=ARGS_MAX).contains(&len) {
            return None;
        }
        let mut args = [&bytes[..0]; 2];
        for index in 0..len {
            let (size, start) = number(bytes, next, b'$')?;
            if let 1 | 2 = index {
                args[index - 1] = bytes.get(start..start + size)?;
            }
            next = start + size + 2;
        }
        at = next;
        let [first, second] = args;
        (at <= bytes.len()).then_some(Ahead { first, second, end: at })
    })
}

/// Reads the number on a line that begins with `kind`. Returns the number, and where the next line
/// begins.
fn number(bytes: &[u8], at: usize, kind: u8) -> Option<(usize, usize)> {
    if *bytes.get(at)? != kind {
        return None;
    }
    let mut value = 0;
    for at in at + 1..=at + DIGITS_MAX {
        let byte = *bytes.get(at)?;
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return (byte == b'\r').then_some((value, at + 2));
        }
        value = value * 10 + usize::from(digit);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(bytes: &str) -> Vec<(&str, &str, usize)> {
        let text = |bytes| std::str::from_utf8(bytes).expect("the request is UTF-8");
        let found = requests_ahead(bytes.as_bytes());
        found.map(|ahead| (text(ahead.first), text(ahead.second), ahead.end)).collect()
    }

    #[test]
    fn whole_requests_are_seen_up_to_one_that_is_not() {
        let set = "*3\r\n$3\r\nSET\r\n$2\r\nab\r\n$1\r\nv\r\n";
        let get = "*2\r\n$3\r\nGET\r\n$0\r\n\r\n";
        let both = format!("{set}{get}");
        assert_eq!(found(&both), [("ab", "v", set.len()), ("", "", both.len())]);
        for cut in 0..both.len() {
            let seen = usize::from(cut >= set.len());
            assert_eq!(found(&both[..cut]).len(), seen, "cut at {cut}");
        }
        for other in
            ["PING\r\n", "*1\r\n$4\r\nPING\r\n", "*33\r\n", "*2\r\n:1\r\n", "*-1\r\n", "*\r\n"]
        {
            assert_eq!(found(&format!("{set}{other}{get}")).len(), 1, "{other:?}");
        }
    }

    #[test]
    fn lengths_beyond_what_is_there_are_harmless() {
        for bytes in
            ["*2\r\n$9999999\r\n", "*2\r\n$1\r\na\r\n$9999999\r\n", "*99999999999999999999"]
        {
            assert_eq!(found(bytes), []);
        }
    }

    /// An argument whose length has more digits takes too much time to hash just for a hint.
    #[test]
    fn a_request_with_a_longer_length_is_left_alone() {
        let get = |length| format!("*2\r\n$3\r\nGET\r\n${length}\r\na\r\n");
        assert_eq!(found(&get("000001")).len(), 1);
        assert_eq!(found(&get("0000001")), []);
    }
}
