//! A quick look at requests that have arrived but have not been parsed yet.

/// How many bytes of a count or length are looked at, including the `\r`.
const DIGITS_MAX: usize = 7;

/// A request with more arguments than this is not looked at, because all arguments have to be
/// skipped to find the end of the request.
const ARGS_MAX: usize = 32;

/// Looks at the whole requests at the start of `bytes`. For each of them, the iterator returns the
/// argument after the command's name, and the offset at which the request ends. For most commands,
/// this argument is a key.
///
/// Use this for hints only, because hardly anything is checked. The iterator ends at the first
/// request that is incomplete, that is inline, that has no argument or too many arguments, or that
/// breaks the protocol.
pub fn first_args(bytes: &[u8]) -> impl Iterator<Item = (&[u8], usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (len, mut next) = number(bytes, at, b'*')?;
        if !(2..=ARGS_MAX).contains(&len) {
            return None;
        }
        let mut first = None;
        for index in 0..len {
            let (size, start) = number(bytes, next, b'$')?;
            if index == 1 {
                first = bytes.get(start..start + size);
            }
            next = start + size + 2;
        }
        at = next;
        (at <= bytes.len()).then_some((first?, at))
    })
}

/// Reads the number on a line that begins with `kind`. Returns the number, and where the next line
/// begins.
fn number(bytes: &[u8], at: usize, kind: u8) -> Option<(usize, usize)> {
    let (&first, digits) = bytes.get(at..)?.split_first()?;
    if first != kind {
        return None;
    }
    let mut value = 0;
    for (index, &byte) in digits.iter().enumerate().take(DIGITS_MAX) {
        match byte {
            b'0'..=b'9' => value = value * 10 + usize::from(byte - b'0'),
            b'\r' => return Some((value, at + index + 3)),
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(bytes: &str) -> Vec<(&str, usize)> {
        let text = |bytes| std::str::from_utf8(bytes).expect("text");
        first_args(bytes.as_bytes()).map(|(arg, end)| (text(arg), end)).collect()
    }

    #[test]
    fn whole_requests_are_seen_up_to_one_that_is_not() {
        let set = "*3\r\n$3\r\nSET\r\n$2\r\nab\r\n$1\r\nv\r\n";
        let get = "*2\r\n$3\r\nGET\r\n$0\r\n\r\n";
        let both = format!("{set}{get}");
        assert_eq!(found(&both), [("ab", set.len()), ("", both.len())]);
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
}
