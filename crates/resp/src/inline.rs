//! Inline requests: words on a line, as a person types them.

use crate::blob::Blob;
use crate::request::Request;

/// Splits `line` into words by Redis's rules of quoting, and adds the words to `request`. `"…"`
/// allows the escapes `\n \r \t \b \a \xHH`, and any other escaped character stands for itself.
/// `'…'` allows only `\'`. After a closing quote, the word must end. A zero byte ends the line.
/// Returns `None` if a quote is not closed, or is closed within a word.
///
/// Words without quotes become ranges of the line; words with quotes are copied.
pub(crate) fn split(line: &[u8], request: &mut Request) -> Option<()> {
    let line = line.split(|&byte| byte == 0).next().unwrap_or_default();
    let mut position = 0;
    loop {
        while line.get(position).is_some_and(|&byte| is_space(byte)) {
            position += 1;
        }
        if position == line.len() {
            return Some(());
        }
        let size = line[position..]
            .iter()
            .position(|&byte| is_space(byte) || byte == b'"' || byte == b'\'')
            .unwrap_or(line.len() - position);
        if line.get(position + size).is_none_or(|&byte| is_space(byte)) {
            request.push_range(position, size);
            position += size;
        } else {
            let (word, end) = quoted_word(line, position)?;
            request.push_blob(Blob::from_bytes(&word));
            position = end;
        }
    }
}

/// Reads the partly or fully quoted word at `start`. Returns the word and where it ends.
fn quoted_word(line: &[u8], start: usize) -> Option<(Vec<u8>, usize)> {
    let mut word = Vec::new();
    let mut position = start;
    while let Some(&byte) = line.get(position) {
        if is_space(byte) {
            break;
        }
        position += 1;
        if byte != b'"' && byte != b'\'' {
            word.push(byte);
            continue;
        }
        position = quotation(line, position, byte, &mut word)?;
        if line.get(position).is_some_and(|&next| !is_space(next)) {
            return None;
        }
        break;
    }
    Some((word, position))
}

/// Appends the text between two quotes. `position` is the position after the opening quote. Returns
/// the position after the closing quote.
fn quotation(line: &[u8], mut position: usize, quote: u8, word: &mut Vec<u8>) -> Option<usize> {
    loop {
        let byte = *line.get(position)?;
        position += 1;
        if byte == quote {
            return Some(position);
        }
        match (byte, line.get(position)) {
            (b'\\', Some(&escaped)) if quote == b'"' => {
                let hex = (escaped == b'x')
                    .then(|| Some((hex(line.get(position + 1))?, hex(line.get(position + 2))?)))
                    .flatten();
                if let Some((high, low)) = hex {
                    word.push(high * 16 + low);
                    position += 3;
                } else {
                    word.push(match escaped {
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'b' => 8,
                        b'a' => 7,
                        other => other,
                    });
                    position += 1;
                }
            }
            (b'\\', Some(b'\'')) => {
                word.push(b'\'');
                position += 1;
            }
            _ => word.push(byte),
        }
    }
}

fn hex(byte: Option<&u8>) -> Option<u8> {
    char::from(*byte?).to_digit(16).map(|digit| digit as u8)
}

/// Whether C's `isspace` accepts the byte. This includes the vertical tab.
fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
        let mut request = Request::new();
        split(line, &mut request)?;
        Some(request.args(line).iter().map(|arg| arg.to_bytes().into_owned()).collect())
    }

    #[test]
    fn words_are_split_and_unquoted() {
        let cases: [(&[u8], &[&[u8]]); 12] = [
            (b"", &[]),
            (b" \t ", &[]),
            (b"set k v", &[b"set", b"k", b"v"]),
            (b"  set\tk  v ", &[b"set", b"k", b"v"]),
            (br#"set k "a b""#, &[b"set", b"k", b"a b"]),
            (br#""\x41\x4g\n\q\\\"""#, &[b"Ax4g\nq\\\""]),
            (br"'a\'b\n'", &[br"a'b\n"]),
            (br#"ab"cd" e"#, &[b"abcd", b"e"]),
            (br#""""#, &[b""]),
            (b"a\0b c", &[b"a"]),
            (br#"k'x"y'"#, &[br#"kx"y"#]),
            (b"a\x0bb", &[b"a", b"b"]),
        ];
        for (line, expected) in cases {
            assert_eq!(words(line).expect("the quotes are balanced"), expected, "{line:?}");
        }
    }

    #[test]
    fn quotes_must_be_closed_at_the_end_of_a_word() {
        let cases: [&[u8]; 7] =
            [b"\"", b"'", b"\"a", b"a'", b"\"a\"b", b"'a'\"b\"", b"set k \"a\0\""];
        for line in cases {
            assert_eq!(words(line), None, "{line:?}");
        }
    }
}
