//! Integers as Redis reads and writes them.

/// Reads an integer as strictly as Redis does. Only the canonical spelling is allowed: no `+` sign,
/// no leading zeros, no spaces, no `-0`.
pub fn parse_i64(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut magnitude: u64 = 0;
    for &digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // This cannot overflow a u64, because there are at most 19 digits.
        magnitude = magnitude * 10 + u64::from(digit);
    }
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// Memory for one printed integer.
pub type DecimalBuffer = itoa::Buffer;

/// Appends `value` in decimal digits.
pub fn format_i64(value: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(DecimalBuffer::new().format(value).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_spelling_is_an_integer() {
        for value in [0, 1, -1, 9, 10, 1234, i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1] {
            let mut text = Vec::new();
            format_i64(value, &mut text);
            assert_eq!(parse_i64(&text), Some(value));
        }
        for text in [
            "",
            "-",
            "+1",
            "01",
            "-01",
            "-0",
            " 1",
            "1 ",
            "1a",
            "0x1",
            "00",
            "9223372036854775808",
            "-9223372036854775809",
            "99999999999999999999",
            "1\0",
        ] {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text:?}");
        }
    }
}
