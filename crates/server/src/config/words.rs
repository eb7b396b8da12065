//! Splits lines of a configuration file into words, and finds the name nearest to a misspelt one.

/// Splits a line as Redis does: blanks separate words, `"…"` may hold escapes, and `'…'` is
/// verbatim except for `\'`. Unlike in Redis, a quote within a word is an ordinary character.
/// Returns `None` if a quote is not closed, if anything but a blank follows the closing quote, or
/// if `\x` is not followed by two hexadecimal digits.
pub(super) fn split(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut bytes = line.iter().copied().peekable();
    let mut words = Vec::new();
    loop {
        while bytes.next_if(u8::is_ascii_whitespace).is_some() {}
        let Some(first) = bytes.peek().copied() else { return Some(words) };
        let mut word = Vec::new();
        if first == b'"' || first == b'\'' {
            bytes.next();
            loop {
                match bytes.next()? {
                    b if b == first => break,
                    b'\\' if first == b'"' => word.push(match bytes.next()? {
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'b' => 8,
                        b'a' => 7,
                        b'x' => {
                            let (high, low) = (hex(bytes.next()?)?, hex(bytes.next()?)?);
                            high * 16 + low
                        }
                        other => other,
                    }),
                    b'\\' if bytes.peek() == Some(&b'\'') => {
                        bytes.next();
                        word.push(b'\'');
                    }
                    b => word.push(b),
                }
            }
            if bytes.peek().is_some_and(|b| !b.is_ascii_whitespace()) {
                return None;
            }
        } else {
            while let Some(b) = bytes.next_if(|b| !b.is_ascii_whitespace()) {
                word.push(b);
            }
        }
        words.push(word);
    }
}

fn hex(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|d| d as u8)
}

/// The name that becomes `wrong` with the fewest edits; `None` if `wrong` differs too much from
/// every name.
pub(super) fn nearest<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = wrong.to_ascii_lowercase();
    let budget = (wrong.len() / 3).max(2);
    names
        .map(|name| (distance(wrong.as_bytes(), name.as_bytes()), name))
        .filter(|(distance, _)| *distance <= budget)
        .min()
        .map(|(_, name)| name)
}

/// The number of edits (insert, delete, replace, swap neighbours) that turn one word into the
/// other.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut here = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replace = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            here[j] = replace.min(above[j] + 1).min(here[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                here[j] = here[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut above, here);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_escapes_are_those_of_redis() {
        let words = |line: &str| split(line.as_bytes());
        assert_eq!(words("  a  b\tc "), Some(vec!["a".into(), "b".into(), "c".into()]));
        assert_eq!(
            words(r#"x "a b\x41\n" 'c\'d'"#),
            Some(vec!["x".into(), "a bA\n".into(), "c'd".into()])
        );
        assert_eq!(words(r#"x "\xe9\xff""#), Some(vec!["x".into(), vec![0xe9, 0xff]]));
        assert_eq!(words(r#"save """#), Some(vec!["save".into(), Vec::new()]));
        assert_eq!(words(r#"x "open"#), None);
        assert_eq!(words(r#"x "a"b"#), None);
        assert_eq!(words(r#"x "\xZZ""#), None);
        assert_eq!(words(""), Some(vec![]));
    }

    #[test]
    fn a_slip_of_the_hand_is_recognised_and_nonsense_is_not() {
        let names = ["appendfsync", "appendonly", "port", "bind"];
        let near = |wrong| nearest(wrong, names.into_iter());
        assert_eq!(near("appendfysnc"), Some("appendfsync"));
        assert_eq!(near("APPENDONLI"), Some("appendonly"));
        assert_eq!(near("prot"), Some("port"));
        assert_eq!(near("wholly-different"), None);
    }
}
