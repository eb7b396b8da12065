//! Glob patterns for keys.

use std::fmt;
use std::ops::Range;

use memchr::{memchr, memmem};

use crate::stretch::{Element, ShiftAnd, Stretch};

/// Size in bytes of the longest pattern.
const SIZE_MAX: usize = 1 << 20;
/// A stretch is a part of the pattern between two stars. The stretches that contain a `?` or a
/// class may have at most this many characters in all.
const WILD_MAX: usize = 4096;

/// A pattern by Redis's rules: `*` matches any characters, `?` matches one character, `[a-z]`
/// matches one character of a class, `[^a-z]` matches one character that is not in a class, and `\`
/// escapes the next character.
///
/// Matching takes time in proportion to the length of the text. If there is a `?` or a class
/// between two stars, matching takes time in proportion to the pattern's [`cost`](Self::cost)
/// instead. Matching never takes time in proportion to the product of the lengths of pattern and
/// text.
#[derive(Debug)]
pub struct Glob {
    /// What the text must start with. If the pattern has no star, the whole text must match this.
    head: Stretch,
    /// The stretches between stars. They are searched for one after the other.
    middle: Vec<Search>,
    /// The bytes of the literal stretches in `middle`.
    literals: Vec<u8>,
    /// What the text must end with: the part of the pattern after its last star. `None` if the
    /// pattern has no star.
    tail: Option<Stretch>,
    /// For each byte of a text, the search for a stretch with a `?` or a class updates a bit set of
    /// one or more words. This is the count of words in the largest of these bit sets.
    words_max: usize,
    is_empty: bool,
}

/// The pattern is too long, and is refused. No reasonable pattern is that long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternTooLong;

impl fmt::Display for PatternTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the pattern is too long: at most {SIZE_MAX} bytes are allowed, and at most {WILD_MAX} \
             characters between stars (counting only parts with ? or a class)"
        )
    }
}

/// How a stretch is searched for.
#[derive(Debug)]
enum Search {
    /// A range of the pattern's literals.
    Literal(Range<usize>),
    Wild(ShiftAnd),
}

impl Glob {
    /// Reads a pattern.
    ///
    /// # Errors
    /// If the pattern is so long that matching a key could keep other clients waiting.
    pub fn new(pattern: &[u8]) -> Result<Self, PatternTooLong> {
        if pattern.len() > SIZE_MAX {
            return Err(PatternTooLong);
        }
        let mut stretches = vec![Stretch::default()];
        let mut rest = pattern;
        while let Some(&first) = rest.first() {
            if first == b'*' {
                stretches.push(Stretch::default());
                rest = &rest[1..];
            } else {
                let (element, behind) = Element::parse(rest);
                stretches.last_mut().expect("a pattern has a stretch").push(element);
                rest = behind;
            }
        }
        let tail = (stretches.len() > 1).then(|| stretches.pop()).flatten();
        let mut stretches = stretches.into_iter();
        let head = stretches.next().unwrap_or_default();
        let (mut middle, mut literals) = (Vec::new(), Vec::new());
        let (mut wild, mut words_max) = (0, 0);
        // Adjacent stars count as one.
        for stretch in stretches.filter(|stretch| stretch.len() > 0) {
            middle.push(if stretch.is_literal() {
                let start = literals.len();
                literals.extend(stretch.bytes());
                Search::Literal(start..literals.len())
            } else {
                wild += stretch.len();
                if wild > WILD_MAX {
                    return Err(PatternTooLong);
                }
                let bits = ShiftAnd::new(&stretch);
                words_max = words_max.max(bits.words());
                Search::Wild(bits)
            });
        }
        Ok(Self { head, middle, literals, tail, words_max, is_empty: pattern.is_empty() })
    }

    /// Whether `text` matches the pattern. An empty text matches only the empty pattern; it does
    /// not match `*`. A lone `*` means all keys; callers handle this pattern themselves.
    pub fn matches(&self, text: &[u8]) -> bool {
        if text.is_empty() {
            return self.is_empty;
        }
        let Some(tail) = &self.tail else {
            return self.head.len() == text.len() && self.head.is_start_of(text);
        };
        if self.head.len() + tail.len() > text.len() || !self.head.is_start_of(text) {
            return false;
        }
        let end = text.len() - tail.len();
        if !tail.is_start_of(&text[end..]) {
            return false;
        }
        // The earliest match of each stretch leaves the most text for the stretches after it.
        let mut between = &text[self.head.len()..end];
        for search in &self.middle {
            let Some(end) = self.end_of_first(search, between) else { return false };
            between = &between[end..];
        }
        true
    }

    /// Where the first match in `text` ends.
    fn end_of_first(&self, search: &Search, text: &[u8]) -> Option<usize> {
        match search {
            Search::Literal(range) => {
                let start = match &self.literals[range.clone()] {
                    [byte] => memchr(*byte, text),
                    bytes => memmem::find(text, bytes),
                };
                Some(start? + range.len())
            }
            Search::Wild(bits) => bits.end_of_first(text),
        }
    }

    /// The cost of matching a text of `size` bytes, as a number of bytes that could be scanned in
    /// about the same time.
    pub fn cost(&self, size: usize) -> usize {
        size * (1 + self.words_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &[u8], text: &[u8]) -> bool {
        Glob::new(pattern).expect("a short pattern").matches(text)
    }

    #[test]
    fn patterns_match_as_in_redis() {
        let cases: [(&str, &str, bool); 38] = [
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
            ("ab*ba", "aba", false),
            ("ab*ba", "abba", true),
            ("*b[c-e]*[^x]?*", "abdyz", true),
            ("*b[c-e]*[^x]?*", "abdxz", false),
            ("*?b*", "b", false),
            ("*?b*", "bb", true),
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
            let found = matches(pattern.as_bytes(), text.as_bytes());
            assert_eq!(found, expected, "{pattern:?} {text:?}");
        }
    }

    /// Matches by trying all possibilities. The tests compare [`Glob`] with this function.
    fn plainly(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.first() {
            None => text.is_empty(),
            Some(b'*') => (0..=text.len()).any(|skipped| plainly(&pattern[1..], &text[skipped..])),
            Some(_) => text.split_first().is_some_and(|(&byte, behind)| {
                let (element, rest) = Element::parse(pattern);
                element.has(byte) && plainly(rest, behind)
            }),
        }
    }

    #[test]
    fn random_patterns_match_what_they_describe() {
        let mut state = 1_u64;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut found = 0;
        for _ in 0..20_000 {
            let pattern: Vec<u8> = (0..draw(9)).map(|_| b"**?aab[^]-\\"[draw(11)]).collect();
            let text: Vec<u8> = (0..=draw(9)).map(|_| b"aab]"[draw(4)]).collect();
            let expected = plainly(&pattern, &text);
            assert_eq!(matches(&pattern, &text), expected, "{pattern:?} {text:?}");
            found += usize::from(expected);
        }
        assert!(found > 1000, "{found}");
    }

    #[test]
    fn stretches_may_be_longer_than_a_word() {
        for size in [63, 64, 65, 127, 128, 129, 1000] {
            let wild = [b"*".to_vec(), b"a".repeat(size - 1), b"?*".to_vec()].concat();
            let mut text = [b"b".to_vec(), b"a".repeat(size - 2), b"ba".repeat(2)].concat();
            assert!(!matches(&wild, &text), "{size}");
            text.extend(b"a".repeat(size - 1));
            assert!(!matches(&wild, &text[..text.len() - 1]), "{size}");
            text.extend(b"cc");
            assert!(matches(&wild, &text), "{size}");
        }
    }

    #[test]
    fn no_pattern_takes_the_product_of_the_sizes() {
        let stars = b"*a".repeat(SIZE_MAX / 2);
        let mut text = b"a".repeat(stars.len() / 2 - 1);
        assert!(!matches(&stars, &text));
        text.push(b'a');
        assert!(matches(&stars, &text));
        let class = [b"*[".to_vec(), b"b".repeat(60_000), b"]*".to_vec()].concat();
        assert!(!matches(&class, &b"a".repeat(1 << 20)));
        let literal = [b"*".to_vec(), b"a".repeat(60_000), b"b*".to_vec()].concat();
        assert!(!matches(&literal, &b"a".repeat(1 << 20)));
        assert_eq!(Glob::new(&literal).map(|glob| glob.cost(10)), Ok(10));
        let wild = |size| [b"*?".to_vec(), b"a".repeat(size - 1), b"*".to_vec()].concat();
        assert_eq!(Glob::new(&wild(WILD_MAX)).map(|glob| glob.cost(10)), Ok(650));
        assert_eq!(Glob::new(&wild(WILD_MAX + 1)).map(drop), Err(PatternTooLong));
        assert_eq!(Glob::new(&b"*?".repeat(WILD_MAX + 2)).map(drop), Err(PatternTooLong));
        assert_eq!(Glob::new(&b"a".repeat(SIZE_MAX + 1)).map(drop), Err(PatternTooLong));
    }
}
