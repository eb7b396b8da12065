//! The part of a pattern between two stars: a sequence of elements, each for one character.

/// The set of bytes that match one character of the pattern.
#[derive(Clone, Debug)]
pub(crate) enum Element {
    Byte(u8),
    Any,
    Class(Box<[u64; 4]>),
}

impl Element {
    /// Reads the first element of a pattern. The pattern must not begin with a star. Returns the
    /// element and the rest of the pattern.
    ///
    /// # Panics
    /// Panics if the pattern is empty.
    pub(crate) fn parse(pattern: &[u8]) -> (Self, &[u8]) {
        match pattern {
            [b'?', rest @ ..] => (Self::Any, rest),
            [b'[', rest @ ..] => Self::parse_class(rest),
            [b'\\', escaped, rest @ ..] => (Self::Byte(*escaped), rest),
            [literal, rest @ ..] => (Self::Byte(*literal), rest),
            [] => panic!("the pattern is empty"),
        }
    }

    /// Like [`parse`](Self::parse), but `rest` begins after the opening bracket of a class. If the
    /// class is not closed, it extends to the end of the pattern.
    fn parse_class(mut rest: &[u8]) -> (Self, &[u8]) {
        let is_negated = rest.first() == Some(&b'^');
        if is_negated {
            rest = &rest[1..];
        }
        let mut set = [0_u64; 4];
        let mut add = |byte: u8| set[usize::from(byte / 64)] |= 1 << (byte % 64);
        loop {
            match rest {
                [] => break,
                [b'\\', escaped, behind @ ..] => {
                    add(*escaped);
                    rest = behind;
                }
                [b']', behind @ ..] => {
                    rest = behind;
                    break;
                }
                [start, b'-', end, behind @ ..] => {
                    // The ends of the range are compared as signed bytes, because Redis compares
                    // `char`, which is signed on most of its platforms.
                    let (start, end) = (*start as i8, *end as i8);
                    (start.min(end)..=start.max(end)).for_each(|byte| add(byte as u8));
                    rest = behind;
                }
                [literal, behind @ ..] => {
                    add(*literal);
                    rest = behind;
                }
            }
        }
        if is_negated {
            set = set.map(|word| !word);
        }
        (Self::Class(Box::new(set)), rest)
    }

    pub(crate) fn has(&self, byte: u8) -> bool {
        match self {
            Self::Byte(own) => *own == byte,
            Self::Any => true,
            Self::Class(set) => set[usize::from(byte / 64)] >> (byte % 64) & 1 == 1,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Stretch(Vec<Element>);

impl Stretch {
    pub(crate) fn push(&mut self, element: Element) {
        self.0.push(element);
    }

    /// Count of characters.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the stretch matches only its own [bytes](Self::bytes).
    pub(crate) fn is_literal(&self) -> bool {
        self.0.iter().all(|element| matches!(element, Element::Byte(_)))
    }

    pub(crate) fn bytes(&self) -> impl Iterator<Item = u8> {
        self.0.iter().filter_map(|element| match element {
            Element::Byte(byte) => Some(*byte),
            Element::Any | Element::Class(_) => None,
        })
    }

    /// Whether a text, which must be at least as long as the stretch, begins with the stretch.
    pub(crate) fn is_start_of(&self, text: &[u8]) -> bool {
        self.0.iter().zip(text).all(|(element, byte)| element.has(*byte))
    }
}

/// Finds a stretch in a text, with a bit for each character of the stretch. The algorithm is from
/// R. Baeza-Yates and G. Gonnet, *A New Approach to Text Searching*, Communications of the ACM
/// 35(10), 1992.
#[derive(Debug)]
pub(crate) struct ShiftAnd {
    /// For each of the 256 values of a byte, a mask of `words` words. Its bits say which characters
    /// of the stretch match the value.
    masks: Vec<u64>,
    words: usize,
    /// The bit of the last character, in the last word.
    last: u64,
}

impl ShiftAnd {
    pub(crate) fn new(stretch: &Stretch) -> Self {
        let words = stretch.len().div_ceil(64);
        let mut masks = vec![0; 256 * words];
        for byte in 0..=u8::MAX {
            let row = &mut masks[usize::from(byte) * words..][..words];
            for (index, element) in stretch.0.iter().enumerate() {
                row[index / 64] |= u64::from(element.has(byte)) << (index % 64);
            }
        }
        Self { masks, words, last: 1 << ((stretch.len() - 1) % 64) }
    }

    /// Count of words that are updated for each byte of a text.
    pub(crate) fn words(&self) -> usize {
        self.words
    }

    /// Where the first match in `text` ends.
    pub(crate) fn end_of_first(&self, text: &[u8]) -> Option<usize> {
        // Bit `i` says whether the first `i + 1` characters of the stretch match the `i + 1` bytes
        // of the text that end with `byte`.
        let mut state = vec![0_u64; self.words];
        for (at, &byte) in text.iter().enumerate() {
            let row = &self.masks[usize::from(byte) * self.words..][..self.words];
            let mut carry = 1;
            for (word, mask) in state.iter_mut().zip(row) {
                let next = *word >> 63;
                *word = (*word << 1 | carry) & mask;
                carry = next;
            }
            if state[self.words - 1] & self.last != 0 {
                return Some(at + 1);
            }
        }
        None
    }
}
