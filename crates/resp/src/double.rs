//! Doubles as Redis writes them.

/// Appends `value` with up to 17 significant digits, in decimal or exponential notation, as C's
/// `%.17g` does. Infinities are `inf` and `-inf`, and NaN is `nan`.
pub fn format_double(value: f64, out: &mut Vec<u8>) {
    const PRECISION: i32 = 17;
    if value.is_nan() {
        out.extend_from_slice(b"nan");
        return;
    }
    if value.is_infinite() {
        out.extend_from_slice(if value > 0.0 { b"inf" } else { b"-inf" });
        return;
    }
    let scientific = format!("{value:.*e}", PRECISION as usize - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..PRECISION).contains(&exponent) {
        let fixed = format!("{value:.*}", (PRECISION - 1 - exponent) as usize);
        out.extend_from_slice(trim_zeros(&fixed).as_bytes());
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        let text = format!("{}e{sign}{:02}", trim_zeros(mantissa), exponent.abs());
        out.extend_from_slice(text.as_bytes());
    }
}

/// Removes the trailing zeros of a fraction, and the decimal point if no digit is left after it.
fn trim_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_look_as_c_prints_them() {
        let cases: [(f64, &str); 14] = [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-1.5, "-1.5"),
            (0.1, "0.10000000000000001"),
            (3.0e20, "3e+20"),
            (1.0e16, "10000000000000000"),
            (1.0e17, "1e+17"),
            (1.0e-4, "0.0001"),
            (1.0e-5, "1.0000000000000001e-05"),
            (f64::MAX, "1.7976931348623157e+308"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ];
        for (value, text) in cases {
            let mut out = Vec::new();
            format_double(value, &mut out);
            assert_eq!(String::from_utf8_lossy(&out), text);
        }
    }
}
