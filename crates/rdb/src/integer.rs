//! Strings that Redis's compact encodings can store as integers, such as `b"-12"`. Strings such as
//! `b"012"`, `b"+1"` or `b"-0"` are not stored as integers, because printing the integer would give
//! other bytes.

/// A buffer on the stack that formats an `i64` in decimal digits.
pub(crate) type Decimal = itoa::Buffer;

/// Count of characters of the longest `i64`, including its sign.
const DECIMAL_SIZE_MAX: usize = 20;

/// The integer whose canonical decimal form is `bytes`; `None` if there is no such integer.
pub(crate) fn canonical_i64(bytes: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !is_negative => return Some(0),
        [b'1'..=b'9', ..] if bytes.len() <= DECIMAL_SIZE_MAX => {}
        _ => return None,
    }
    let mut magnitude = 0_u64;
    for &digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        magnitude = magnitude.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    if is_negative { 0_i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_canonical_form_counts() {
        for value in [0, 1, -1, 9, 10, -10, i64::MAX, i64::MIN, i64::MAX - 1] {
            assert_eq!(canonical_i64(value.to_string().as_bytes()), Some(value));
        }
        let others = [
            "",
            "-",
            "-0",
            "00",
            "01",
            "+1",
            " 1",
            "1 ",
            "1a",
            "a",
            "--1",
            "9223372036854775808",
            "-9223372036854775809",
            "18446744073709551616",
            "99999999999999999999",
            "000000000000000000001",
        ];
        for text in others {
            assert_eq!(canonical_i64(text.as_bytes()), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_the_standard_library(text in "-?[0-9]{0,21}") {
            let expected = text.parse::<i64>().ok().filter(|value| value.to_string() == text);
            prop_assert_eq!(canonical_i64(text.as_bytes()), expected);
        }
    }
}
