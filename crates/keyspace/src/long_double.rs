//! Decimal numbers, computed as in the widest format of a PC's processor.
//!
//! `INCRBYFLOAT` adds numbers of 64 bits precision and prints 17 digits behind the point. With the
//! 53 bits of an `f64` the same sums would print differently (`10.5 + 0.1` as
//! 10.59999999999999964), so the format is computed here: reading, adding and printing each round
//! once, to the nearest, ties to even. Where Redis runs on a processor without that format, it
//! prints other digits.
//!
//! Texts are read exactly, with the integers of `num-bigint`. The crate `rustc_apfloat` has the whole
//! format and agrees with the processor too, but clients could hold it up: 5 KiB of digits for the
//! middle between two numbers take it 11 ms to read, and 1e4931 takes it 3 ms to print. Here, both
//! take less than 0.1 ms.

use std::cmp::Ordering;

use num_bigint::BigUint;

/// Longest text, in bytes, that is read as a number.
const TEXT_SIZE_MAX: usize = 5 * 1024 - 1;

/// Greatest binary exponent of the leading bit.
const EXPONENT_MAX: i32 = 16_383;

/// Least binary exponent of the last bit. Numbers near it have fewer than 64 bits.
const EXPONENT_MIN: i32 = -16_445;

/// Greatest decimal exponent that is computed with, for an integer of at most `TEXT_SIZE_MAX` digits:
/// farther out, only zero is in range.
const DECIMAL_EXPONENT_MAX: i32 = 12_000;

/// Digits printed behind the point, at most.
const FRACTION_DIGITS: usize = 17;

/// Extra bits that a sum is computed with before it is rounded.
const GUARD: u32 = 62;

/// A finite number or an infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LongDouble {
    Infinite {
        negative: bool,
    },
    /// `mantissa * 2^exponent`; the leading bit of the mantissa is set unless the number is zero.
    Finite {
        negative: bool,
        mantissa: u64,
        exponent: i32,
    },
}

use LongDouble::{Finite, Infinite};

impl From<i64> for LongDouble {
    fn from(value: i64) -> Self {
        Self::rounded(value < 0, u128::from(value.unsigned_abs()), 0)
    }
}

impl LongDouble {
    pub(crate) const ZERO: LongDouble = Finite { negative: false, mantissa: 0, exponent: 0 };

    /// Reads a number as Redis does, by the rules of C's `strtold`: decimal or hexadecimal, with an
    /// exponent, or an infinity. `None` for anything else, for NaN, and for numbers that are too
    /// large, or too small but not zero.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        if text.is_empty() || text.len() > TEXT_SIZE_MAX {
            return None;
        }
        let (negative, text) = split_sign(text);
        if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity") {
            return Some(Infinite { negative });
        }
        let hex = text.strip_prefix(b"0x").or_else(|| text.strip_prefix(b"0X"));
        match hex {
            Some(text) => parse_digits(text, 16, b'p')?.round(negative),
            None => parse_digits(text, 10, b'e')?.with_power_of_two().round(negative),
        }
    }

    pub(crate) fn is_finite(self) -> bool {
        matches!(self, Finite { .. })
    }

    /// The sum; `None` if it is not a number or infinite.
    pub(crate) fn add(self, other: Self) -> Option<Self> {
        let (Finite { .. }, Finite { .. }) = (self, other) else { return None };
        let (large, small) =
            if self.magnitude_cmp(other) == Ordering::Less { (other, self) } else { (self, other) };
        let (
            Finite { negative, mantissa: a, exponent },
            Finite { negative: small_negative, mantissa: b, exponent: small_exponent },
        ) = (large, small)
        else {
            return None;
        };
        if b == 0 {
            // Zeros of different sign make a positive one.
            return Some(if a == 0 && negative != small_negative { Self::ZERO } else { large });
        }
        // Bits lost behind the guard bits set the last guard bit.
        let distance = exponent.abs_diff(small_exponent);
        let a = u128::from(a) << GUARD;
        let b = u128::from(b) << GUARD;
        let shifted = b.checked_shr(distance).unwrap_or(0);
        let lost = distance >= 128 || (shifted << distance) != b;
        let b = shifted | u128::from(lost);
        let sum = if negative == small_negative { a + b } else { a - b };
        if sum == 0 {
            return Some(Self::ZERO);
        }
        Self::rounded(negative, sum, exponent - GUARD as i32).in_range()
    }

    /// Prints up to 17 digits behind the point, without zeros at the end.
    ///
    /// Panics for an infinity.
    pub(crate) fn format(self) -> String {
        let Finite { negative, mantissa, exponent } = self else {
            panic!("an infinity has no digits")
        };
        let mut text = if exponent >= 0 {
            (BigUint::from(mantissa) << exponent).to_string()
        } else {
            let scaled = u128::from(mantissa) * 10u128.pow(FRACTION_DIGITS as u32);
            let digits = shift_right_rounding(scaled, exponent.unsigned_abs()).to_string();
            let digits = format!("{digits:0>width$}", width = FRACTION_DIGITS + 1);
            let (integer, fraction) = digits.split_at(digits.len() - FRACTION_DIGITS);
            let text = format!("{integer}.{fraction}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        };
        if negative && text != "0" {
            text.insert(0, '-');
        }
        text
    }

    fn magnitude_cmp(self, other: Self) -> Ordering {
        let key = |number| match number {
            Finite { mantissa: 0, .. } => (i32::MIN, 0),
            Finite { mantissa, exponent, .. } => (exponent, mantissa),
            Infinite { .. } => (i32::MAX, 0),
        };
        key(self).cmp(&key(other))
    }

    /// The number nearest to `bits * 2^exponent`, however large. `bits` has at most 127 bits.
    fn rounded(negative: bool, bits: u128, exponent: i32) -> Self {
        let size = 128 - bits.leading_zeros() as i32;
        let (bits, exponent) = match (size - 64).max(EXPONENT_MIN - exponent) {
            down @ 1.. => (shift_right_rounding(bits, down as u32), exponent + down),
            _ => (bits, exponent),
        };
        if bits == 0 {
            return Finite { negative, mantissa: 0, exponent: 0 };
        }
        // 64 bits, or a power of two: nothing is lost.
        let up = bits.leading_zeros();
        let mantissa = (bits << up >> 64) as u64;
        Finite { negative, mantissa, exponent: exponent + 64 - up as i32 }
    }

    fn in_range(self) -> Option<Self> {
        match self {
            Finite { exponent, .. } if exponent + 63 > EXPONENT_MAX => None,
            _ => Some(self),
        }
    }
}

/// `bits / 2^shift`, to the nearest, ties to even; for a `shift` from 1 and at most 127 bits.
fn shift_right_rounding(bits: u128, shift: u32) -> u128 {
    if shift >= 128 {
        return 0;
    }
    let half = 1 << (shift - 1);
    let odd = bits >> shift & 1;
    (bits + half - 1 + odd) >> shift
}

/// Splits off a sign. Says whether it is a minus, and returns the rest.
pub(crate) fn split_sign(text: &[u8]) -> (bool, &[u8]) {
    match text.split_first() {
        Some((sign @ (b'-' | b'+'), rest)) => (*sign == b'-', rest),
        _ => (false, text),
    }
}

/// An integer of any size, scaled by a power of ten or of two.
struct Scaled {
    integer: BigUint,
    exponent: i32,
}

/// Reads digits with a point and an exponent; `None` if there is anything else.
fn parse_digits(text: &[u8], base: u32, exponent_mark: u8) -> Option<Scaled> {
    let per_digit = if base == 16 { 4 } else { 1 };
    let mut digits = Vec::with_capacity(text.len());
    let (mut point, mut exponent) = (false, 0);
    for (index, &byte) in text.iter().enumerate() {
        if byte == b'.' && !point {
            point = true;
        } else if let Some(digit) = char::from(byte).to_digit(base) {
            digits.push(digit as u8);
            exponent -= if point { per_digit } else { 0 };
        } else if byte.eq_ignore_ascii_case(&exponent_mark) {
            exponent += parse_exponent(&text[index + 1..])?;
            break;
        } else {
            return None;
        }
    }
    if digits.is_empty() {
        return None;
    }
    Some(Scaled { integer: BigUint::from_radix_be(&digits, base)?, exponent })
}

/// Reads a signed integer, capped far out of any range.
fn parse_exponent(text: &[u8]) -> Option<i32> {
    let (negative, digits) = split_sign(text);
    if digits.is_empty() {
        return None;
    }
    let mut value = 0;
    for &byte in digits {
        let digit = char::from(byte).to_digit(10)?;
        value = (value * 10 + digit as i32).min(1_000_000);
    }
    Some(if negative { -value } else { value })
}

impl Scaled {
    /// From a power of ten to one of two. A quotient with a remainder is cut to 67 bits or more, the
    /// last of them set for what is lost.
    fn with_power_of_two(self) -> Self {
        let exponent = self.exponent.clamp(-DECIMAL_EXPONENT_MAX, DECIMAL_EXPONENT_MAX);
        // The twos of the ten stay in the exponent.
        let power = BigUint::from(5u32).pow(exponent.unsigned_abs());
        if exponent >= 0 {
            return Self { integer: self.integer * power, exponent };
        }
        let shift = (66 + power.bits()).saturating_sub(self.integer.bits());
        let integer = self.integer << shift;
        let quotient = &integer / &power;
        let more = &quotient * &power != integer;
        Self { integer: quotient << 1 | BigUint::from(more), exponent: exponent - shift as i32 - 1 }
    }

    /// The nearest number. `None` if this is too large, or too small but not zero.
    fn round(&self, negative: bool) -> Option<LongDouble> {
        let skipped = self.integer.bits().saturating_sub(126);
        let more = self.integer.trailing_zeros().is_some_and(|zeros| zeros < skipped);
        let bits = u128::try_from(&self.integer >> skipped).ok()? << 1 | u128::from(more);
        let number = LongDouble::rounded(negative, bits, self.exponent + skipped as i32 - 1);
        let vanished = bits != 0 && matches!(number, Finite { mantissa: 0, .. });
        if vanished { None } else { number.in_range() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(a: &str, b: &str) -> String {
        let parse = |text: &str| LongDouble::parse(text.as_bytes()).expect("a number");
        parse(a).add(parse(b)).expect("finite").format()
    }

    #[test]
    fn sums_look_as_on_the_processor() {
        let cases = [
            ("10.5", "0.1", "10.6"),
            ("5.0e3", "200", "5200"),
            ("0", "0", "0"),
            ("-0", "-0", "0"),
            ("3", "-3", "0"),
            ("0.1", "0.2", "0.3"),
            ("1", "1e-17", "1.00000000000000001"),
            ("1", "-1e-17", "0.99999999999999999"),
            ("-1.25", "0.5", "-0.75"),
            ("0x1p4", "0", "16"),
            ("0x.8", "0", "0.5"),
            ("17179869184", "1", "17179869185"),
            ("1e20", "1", "100000000000000000000"),
            ("18446744073709551615", "0", "18446744073709551615"),
            ("18446744073709551615", "1", "18446744073709551616"),
            ("1e-18", "0", "0"),
            ("6e-18", "0", "0.00000000000000001"),
            ("1e-4940", "1e-4940", "0"),
            (".5", "5.", "5.5"),
        ];
        for (a, b, expected) in cases {
            assert_eq!(sum(a, b), expected, "{a} + {b}");
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in [
            "", " 1", "1 ", "abc", "1e", "1e+", ".", "nan", "-nan", "0x", "1.2.3", "1e5000",
            "1e-5000", "--1", "1_0", "infx", "0x1p", "e5",
        ] {
            assert_eq!(LongDouble::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(LongDouble::parse(b"-iNf"), Some(Infinite { negative: true }));
        assert_eq!(LongDouble::parse(&[b'1'; TEXT_SIZE_MAX + 1]), None);
    }

    #[test]
    fn what_the_processor_printed() {
        for line in include_str!("../tests/fixtures/long_double.tsv").lines() {
            let columns: Vec<_> = line.split('\t').collect();
            let [a, b, expected] = columns[..] else { panic!("not three columns: {line:?}") };
            let found = match (LongDouble::parse(a.as_bytes()), LongDouble::parse(b.as_bytes())) {
                (Some(a), Some(b)) => a.add(b).map_or("infinite".to_owned(), LongDouble::format),
                _ => "refused".to_owned(),
            };
            assert_eq!(found, expected, "{a:?} + {b:?}");
        }
    }

    /// The least number is 2^-16445. Half of it is a tie with zero.
    #[test]
    fn more_than_half_the_least_number_is_not_too_small() {
        for text in ["0x1.8p-16446", "0x1.000001p-16446", "-2e-4951"] {
            assert_eq!(sum(text, "1"), "1", "{text}");
        }
        for text in ["0x1p-16446", "-1.8e-4951"] {
            assert_eq!(LongDouble::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_sum_is_never_too_small() {
        assert_eq!(sum("0x1.4p-16445", "-0x1p-16445"), "0");
        let least = LongDouble::parse(b"0x1.4p-16445").expect("in range");
        assert_eq!(least, LongDouble::parse(b"0x1p-16445").expect("in range"));
    }

    #[test]
    fn an_exponent_of_any_length_is_read() {
        let zero = LongDouble::ZERO;
        assert_eq!(LongDouble::parse(b"0e99999999999"), Some(zero));
        assert_eq!(LongDouble::parse(b"0x0p-99999999999"), Some(zero));
        assert_eq!(LongDouble::parse(b"1e99999999999"), None);
        assert_eq!(LongDouble::parse(b"1e-99999999999"), None);
        let digits = |exponent| format!("0.{}1e{exponent}", "0".repeat(5000));
        assert_eq!(LongDouble::parse(digits(5001).as_bytes()), Some(LongDouble::from(1)));
    }

    #[test]
    fn infinities_have_no_sum() {
        let infinite = Infinite { negative: false };
        assert_eq!(infinite.add(LongDouble::ZERO), None);
        let most = LongDouble::parse(b"1.1e4932").expect("in range");
        assert_eq!(most.add(most), None);
    }
}
