//! Decimal numbers, computed as in the widest format of a PC's processor.
//!
//! `INCRBYFLOAT` adds numbers of 64 bits precision and prints 17 digits behind the point. With the
//! 53 bits of an `f64` the same sums would print differently (`10.5 + 0.1` as
//! 10.59999999999999964), so the format is computed here: reading, adding and printing each round
//! once, to the nearest, ties to even. Where Redis runs on a processor without that format, it
//! prints other digits. Numbers below 2^-16382 are kept at full precision here.

use std::cmp::Ordering;
use std::fmt::Write;

/// Longest text, in bytes, that is read as a number.
const TEXT_SIZE_MAX: usize = 5 * 1024 - 1;

/// Greatest binary exponent of the leading bit.
const EXPONENT_MAX: i32 = 16_383;

/// Binary exponent of the leading bit below which a number reads as zero.
const EXPONENT_MIN: i32 = -16_445;

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
        Self::rounded(value < 0, u128::from(value.unsigned_abs()), 0, false)
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
        let number = match hex {
            Some(digits) => parse_digits(digits, 16, b'p')?.times_power_of_two(negative),
            None => parse_digits(text, 10, b'e')?.times_power_of_ten(negative),
        };
        number.in_range()
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
        Self::rounded(negative, sum, exponent - GUARD as i32, false).in_range()
    }

    /// Prints up to 17 digits behind the point, without zeros at the end.
    ///
    /// Panics for an infinity.
    pub(crate) fn format(self) -> String {
        let Finite { negative, mantissa, exponent } = self else {
            panic!("an infinity has no digits")
        };
        let mut text = if exponent >= 0 {
            let mut integer = Big::from(u128::from(mantissa));
            integer.shift_left(exponent as usize);
            integer.to_decimal()
        } else {
            let scaled = u128::from(mantissa) * 10u128.pow(FRACTION_DIGITS as u32);
            let digits = shift_right_rounding(scaled, exponent.unsigned_abs(), false).to_string();
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

    /// Rounds `bits * 2^exponent` to 64 bits; `more`: nonzero bits below them were lost.
    fn rounded(negative: bool, bits: u128, exponent: i32, more: bool) -> Self {
        if bits == 0 {
            return Finite { negative, mantissa: 0, exponent: 0 };
        }
        let size = 128 - bits.leading_zeros();
        if size <= 64 {
            let up = 64 - size;
            return Finite {
                negative,
                mantissa: (bits as u64) << up,
                exponent: exponent - up as i32,
            };
        }
        let down = size - 64;
        let mantissa = shift_right_rounding(bits, down, more);
        let exponent = exponent + down as i32;
        match u64::try_from(mantissa) {
            Ok(mantissa) => Finite { negative, mantissa, exponent },
            // Rounded up to the next power of two.
            Err(_) => Finite { negative, mantissa: 1 << 63, exponent: exponent + 1 },
        }
    }

    fn in_range(self) -> Option<Self> {
        match self {
            Finite { mantissa, exponent, .. } if mantissa != 0 => {
                (EXPONENT_MIN..=EXPONENT_MAX).contains(&(exponent + 63)).then_some(self)
            }
            _ => Some(self),
        }
    }
}

/// `bits / 2^shift`, to the nearest, ties to even; `more`: nonzero bits below them were lost.
fn shift_right_rounding(bits: u128, shift: u32, more: bool) -> u128 {
    if shift > 128 {
        return 0;
    }
    let kept = bits.checked_shr(shift).unwrap_or(0);
    let lost = bits - kept.checked_shl(shift).unwrap_or(0);
    let half = 1u128.checked_shl(shift.saturating_sub(1)).unwrap_or(0);
    let up = match lost.cmp(&half) {
        _ if shift == 0 => false,
        Ordering::Less => false,
        Ordering::Equal => more || kept & 1 == 1,
        Ordering::Greater => true,
    };
    kept + u128::from(up)
}

/// Splits off a sign. Says whether it is a minus, and returns the rest.
pub(crate) fn split_sign(text: &[u8]) -> (bool, &[u8]) {
    match text.split_first() {
        Some((sign @ (b'-' | b'+'), rest)) => (*sign == b'-', rest),
        _ => (false, text),
    }
}

/// Digits without the point, and the exponent of ten or of two to scale them by.
struct Digits {
    integer: Big,
    exponent: i64,
}

/// Reads digits with a point and an exponent; `None` if there is anything else.
fn parse_digits(text: &[u8], base: u32, exponent_mark: u8) -> Option<Digits> {
    let per_digit = if base == 16 { 4 } else { 1 };
    let mut digits = Digits { integer: Big::default(), exponent: 0 };
    let (mut point, mut any) = (false, false);
    let mut bytes = text.iter().enumerate();
    for (index, &byte) in &mut bytes {
        if byte == b'.' && !point {
            point = true;
        } else if let Some(digit) = char::from(byte).to_digit(base) {
            any = true;
            digits.integer.multiply_add(base, digit);
            digits.exponent -= if point { per_digit } else { 0 };
        } else if byte.eq_ignore_ascii_case(&exponent_mark) && any {
            digits.exponent += parse_exponent(&text[index + 1..])?;
            break;
        } else {
            return None;
        }
    }
    any.then_some(digits)
}

/// Reads a signed integer, capped far out of any range.
fn parse_exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = split_sign(text);
    if digits.is_empty() {
        return None;
    }
    let mut value = 0;
    for &byte in digits {
        let digit = char::from(byte).to_digit(10)?;
        value = (value * 10 + i64::from(digit)).min(1_000_000);
    }
    Some(if negative { -value } else { value })
}

impl Digits {
    fn times_power_of_two(&self, negative: bool) -> LongDouble {
        let (bits, shift, more) = self.integer.leading_bits();
        let exponent = (self.exponent + shift as i64).clamp(-1_000_000, 1_000_000);
        LongDouble::rounded(negative, bits, exponent as i32, more)
    }

    fn times_power_of_ten(mut self, negative: bool) -> LongDouble {
        let zero = self.integer.is_zero();
        // Far out of range either way: no need to compute the power.
        if zero || self.exponent.abs() > 12_000 {
            let exponent = if self.exponent < 0 { -1_000_000 } else { 1_000_000 };
            return LongDouble::rounded(negative, u128::from(!zero), exponent, false);
        }
        let power = self.exponent.unsigned_abs() as usize;
        if self.exponent >= 0 {
            self.integer.multiply_by_power_of_ten(power);
            self.exponent = 0;
            return self.times_power_of_two(negative);
        }
        let mut divisor = Big::from(1);
        divisor.multiply_by_power_of_ten(power);
        // A quotient of 66 or 67 bits: enough to round once.
        let shift = 66 + divisor.bits() as i64 - self.integer.bits() as i64;
        if shift >= 0 {
            self.integer.shift_left(shift as usize);
        } else {
            divisor.shift_left(shift.unsigned_abs() as usize);
        }
        let (quotient, more) = self.integer.divide(divisor, 67);
        LongDouble::rounded(negative, quotient << 1 | u128::from(more), -shift as i32 - 1, false)
    }
}

/// A natural number of any size: 32 bits to a limb, the least first, no zeros at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Big(Vec<u32>);

impl From<u128> for Big {
    fn from(mut value: u128) -> Self {
        let mut limbs = Vec::new();
        while value > 0 {
            limbs.push(value as u32);
            value >>= 32;
        }
        Self(limbs)
    }
}

impl Big {
    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    /// Count of bits up to the leading one.
    fn bits(&self) -> usize {
        self.0.last().map_or(0, |last| self.0.len() * 32 - last.leading_zeros() as usize)
    }

    fn multiply_add(&mut self, factor: u32, addend: u32) {
        let mut carry = u64::from(addend);
        for limb in &mut self.0 {
            let product = u64::from(*limb) * u64::from(factor) + carry;
            *limb = product as u32;
            carry = product >> 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    fn multiply_by_power_of_ten(&mut self, mut power: usize) {
        // The largest power of ten in a limb has nine zeros.
        while power > 0 {
            let zeros = power.min(9);
            self.multiply_add(10u32.pow(zeros as u32), 0);
            power -= zeros;
        }
    }

    fn shift_left(&mut self, count: usize) {
        if self.is_zero() {
            return;
        }
        self.multiply_add(1 << (count % 32), 0);
        let zeros = count / 32;
        self.0.splice(0..0, std::iter::repeat_n(0, zeros));
    }

    fn shift_right_once(&mut self) {
        let mut carry = 0;
        for limb in self.0.iter_mut().rev() {
            let low = *limb & 1;
            *limb = *limb >> 1 | carry << 31;
            carry = low;
        }
        self.trim();
    }

    fn compare(&self, other: &Big) -> Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    fn subtract(&mut self, other: &Big) {
        let mut borrow = false;
        for (index, limb) in self.0.iter_mut().enumerate() {
            let (value, under) = limb.overflowing_sub(other.0.get(index).copied().unwrap_or(0));
            let (value, under_again) = value.overflowing_sub(u32::from(borrow));
            *limb = value;
            borrow = under || under_again;
        }
        self.trim();
    }

    /// Divides by `divisor`, bit by bit. The quotient must have at most `bits` bits. Also says
    /// whether there is a remainder.
    fn divide(mut self, mut divisor: Big, bits: usize) -> (u128, bool) {
        divisor.shift_left(bits);
        let mut quotient = 0;
        for _ in 0..=bits {
            quotient <<= 1;
            if self.compare(&divisor) != Ordering::Less {
                self.subtract(&divisor);
                quotient |= 1;
            }
            divisor.shift_right_once();
        }
        (quotient, !self.is_zero())
    }

    /// The leading 96 to 128 bits, how far they are shifted, and whether bits below are set.
    fn leading_bits(&self) -> (u128, usize, bool) {
        let skipped = self.0.len().saturating_sub(4);
        let bits =
            self.0[skipped..].iter().rev().fold(0, |bits, &limb| bits << 32 | u128::from(limb));
        (bits, skipped * 32, self.0[..skipped].iter().any(|&limb| limb != 0))
    }

    fn to_decimal(&self) -> String {
        const CHUNK: u32 = 1_000_000_000;
        let mut number = self.clone();
        let mut chunks = Vec::new();
        while !number.is_zero() {
            let mut rest = 0;
            for limb in number.0.iter_mut().rev() {
                let value = rest << 32 | u64::from(*limb);
                *limb = (value / u64::from(CHUNK)) as u32;
                rest = value % u64::from(CHUNK);
            }
            number.trim();
            chunks.push(rest);
        }
        let mut text = chunks.pop().unwrap_or(0).to_string();
        for chunk in chunks.iter().rev() {
            let _ = write!(text, "{chunk:09}");
        }
        text
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
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
    fn infinities_have_no_sum() {
        let infinite = Infinite { negative: false };
        assert_eq!(infinite.add(LongDouble::ZERO), None);
        let most = LongDouble::parse(b"1.1e4932").expect("in range");
        assert_eq!(most.add(most), None);
    }
}
