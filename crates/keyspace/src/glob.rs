//! Patterns of keys.

/// Whether `text` is what `pattern` describes, by Redis's rules: `*` any characters, `?` one,
/// `[a-z]` and `[^a-z]` one of a class, `\` takes the next character for itself.
///
/// Takes at most the product of both sizes; nothing nests, whatever the pattern.
pub fn glob_match(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut position) = (0, 0);
    // Where to go on when what follows the last `*` does not match: a longer `*` is tried. Stars
    // before the last need no second try: a longer one of them would only leave less to the last.
    let mut retry: Option<(usize, usize)> = None;
    while position < text.len() {
        let matched = match pattern.get(at) {
            Some(b'*') => {
                while pattern.get(at) == Some(&b'*') {
                    at += 1;
                }
                if at == pattern.len() {
                    return true;
                }
                retry = Some((at, position));
                continue;
            }
            Some(_) => one(&pattern[at..], text[position]),
            None => None,
        };
        if let Some(size) = matched {
            at += size;
            position += 1;
        } else if let Some((star_at, star_position)) = retry {
            retry = Some((star_at, star_position + 1));
            (at, position) = (star_at, star_position + 1);
        } else {
            return false;
        }
    }
    // An empty text is not even matched by stars: who means all keys says `*`, which is not asked.
    if text.is_empty() {
        return pattern.is_empty();
    }
    pattern[at.min(pattern.len())..].iter().all(|&byte| byte == b'*')
}

/// Size of the part at the start of `pattern` that stands for one character, if it matches `byte`.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern[0] {
        b'?' => Some(1),
        b'[' => class(pattern, byte),
        b'\\' if pattern.len() >= 2 => (pattern[1] == byte).then_some(2),
        literal => (literal == byte).then_some(1),
    }
}

/// As [`one`] for a class; one that is not closed reaches to the end of the pattern.
fn class(pattern: &[u8], byte: u8) -> Option<usize> {
    let negated = pattern.get(1) == Some(&b'^');
    let mut at = if negated { 2 } else { 1 };
    let mut matched = false;
    loop {
        match &pattern[at.min(pattern.len())..] {
            [] => break,
            [b'\\', escaped, ..] => {
                matched |= *escaped == byte;
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [start, b'-', end, ..] => {
                // Characters are signed where Redis runs.
                let (start, end) = (*start as i8, *end as i8);
                matched |= (start.min(end)..=start.max(end)).contains(&(byte as i8));
                at += 3;
            }
            [literal, ..] => {
                matched |= *literal == byte;
                at += 1;
            }
        }
    }
    (matched != negated).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        let cases: [(&str, &str, bool); 32] = [
            ("*", "abc", true),
            ("**", "abc", true),
            ("*", "", false),
            ("", "", true),
            ("", "a", false),
            ("a", "", false),
            ("a*", "a", true),
            ("a**", "a", true),
            ("a*c", "abbc", true),
            ("a*c", "abbd", false),
            ("*a*b*c", "xxaxxbxxbxc", true),
            ("*a*b*c", "xxaxxbxxbx", false),
            ("*ab", "aab", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hello", false),
            ("h[^e]llo", "hallo", true),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h[a-c]llo", "hdllo", false),
            ("[\\]]", "]", true),
            ("[\\-]", "-", true),
            ("a[b", "ab", true),
            ("a[", "ab", false),
            ("a[^", "ab", true),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("a\\", "a\\", true),
            ("[]", "a", false),
            ("[a-]", "-", false),
        ];
        for (pattern, text, expected) in cases {
            let found = glob_match(pattern.as_bytes(), text.as_bytes());
            assert_eq!(found, expected, "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn many_stars_take_no_more_than_the_product_of_the_sizes() {
        let pattern = b"*a".repeat(2000);
        let mut text = b"a".repeat(1999);
        assert!(!glob_match(&pattern, &text));
        text.push(b'a');
        assert!(glob_match(&pattern, &text));
    }
}
