//! The kinds of values that directives have. Units, words and error texts are those of Redis. Only
//! the error for a text that is not UTF-8 is SlimIO's own.

use std::num::{IntErrorKind, ParseIntError};

/// The largest number of changes that a save point may ask for.
const CHANGES_MAX: i64 = i32::MAX as i64;

const NO_MEMORY_OR_PERCENT: &str = "argument must be a memory or percent value";
const WRONG_COUNT: &str = "wrong number of arguments";

/// The kind of a directive's value.
#[derive(Clone, Copy, Debug)]
pub enum ValueKind {
    /// A whole number within bounds, both inclusive.
    Int(i64, i64),
    /// A size in bytes with Redis's units (`1gb`, `10k`), within bounds, both inclusive.
    Memory(i64, i64),
    /// A size of at least 0, or a percentage of another size.
    MemoryOrPercent,
    /// `yes` or `no`.
    Bool,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// One word of any bytes: a password or a path need not be UTF-8.
    Text,
    /// One word of UTF-8.
    Utf8,
    /// Any number of words.
    Words,
    /// Any number of percentiles.
    Percentiles,
    /// Any number of pairs of seconds and changes.
    SavePoints,
    /// File permissions in octal.
    Octal,
    /// `class hard soft seconds`, once or several times.
    OutputLimits,
}

/// A limit of the memory that one client's unsent replies may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OutputLimit {
    /// Bytes at which the client is disconnected at once; 0 is no limit.
    pub hard_bytes: u64,
    /// Bytes that the replies may exceed for `soft_seconds` before the client is disconnected; 0 is
    /// no limit.
    pub soft_bytes: u64,
    /// How many seconds the soft limit may be exceeded.
    pub soft_seconds: u64,
}

/// The classes of clients that have an output limit of their own, as Redis prints the classes.
pub const OUTPUT_CLASSES: [&str; 3] = ["normal", "slave", "pubsub"];

/// A directive's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The value of an `Int`, `Memory` or `Octal` directive. For a `MemoryOrPercent` directive, a
    /// negative number is a percentage; any other number is a size.
    Int(i64),
    /// The value of a `Bool` directive.
    Bool(bool),
    /// The index of the word chosen for a `Choice` directive.
    Choice(usize),
    /// The value of a `Text` directive.
    Bytes(Vec<u8>),
    /// The value of a `Utf8`, `Words`, `Percentiles` or `SavePoints` directive.
    Text(String),
    /// The limits of an `OutputLimits` directive, one for each of [`OUTPUT_CLASSES`].
    Limits([OutputLimit; 3]),
}

impl ValueKind {
    /// Reads a value from its words. `old` is the value in force. It is needed because the words of
    /// `OutputLimits` may replace only some of the limits.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(self, words: &[impl AsRef<[u8]>], old: Option<&Value>) -> Result<Value, String> {
        if let ValueKind::Text = self {
            let [word] = words else { return Err(WRONG_COUNT.into()) };
            return Ok(Value::Bytes(word.as_ref().to_vec()));
        }
        let is_utf8 = words.iter().all(|word| std::str::from_utf8(word.as_ref()).is_ok());
        if matches!(self, ValueKind::Utf8 | ValueKind::Words) && !is_utf8 {
            return Err("argument must be UTF-8 text".into());
        }
        // The other kinds are numbers and known words. Bytes that are not UTF-8 become replacement
        // characters. No number or known word contains such a character, so these bytes are refused
        // below.
        let text = |word: &_| String::from_utf8_lossy(AsRef::as_ref(word)).into_owned();
        let words: Vec<String> = words.iter().map(text).collect();
        if let ValueKind::Words = self {
            return Ok(Value::Text(words.join(" ")));
        }
        if let ValueKind::Percentiles = self {
            return parse_percentiles(&words);
        }
        if let ValueKind::SavePoints = self {
            return parse_save_points(&words);
        }
        if let ValueKind::OutputLimits = self {
            return parse_limits(&words, old);
        }
        let [word] = &words[..] else { return Err(WRONG_COUNT.into()) };
        match self {
            ValueKind::Int(min, max) => {
                // As in Redis, the only sign allowed is a minus, and a leading zero is refused.
                let value = slimio_resp::parse_i64(word.as_bytes())
                    .ok_or("argument couldn't be parsed into an integer")?;
                within(value, min, max).map(Value::Int)
            }
            ValueKind::Memory(min, max) => {
                let value = parse_memory(word).ok_or("argument must be a memory value")?;
                within(value, min, max).map(Value::Int)
            }
            ValueKind::MemoryOrPercent => match word.strip_suffix('%') {
                Some(percent) => {
                    let value = percent.parse::<u32>().map_err(|_| NO_MEMORY_OR_PERCENT)?;
                    if value > 100 {
                        return Err("percentage argument must be less or equal to 100".into());
                    }
                    Ok(Value::Int(-i64::from(value)))
                }
                None => {
                    parse_memory(word).map(Value::Int).ok_or_else(|| NO_MEMORY_OR_PERCENT.into())
                }
            },
            ValueKind::Bool => match word.to_ascii_lowercase().as_str() {
                "yes" => Ok(Value::Bool(true)),
                "no" => Ok(Value::Bool(false)),
                _ => Err("argument must be 'yes' or 'no'".into()),
            },
            ValueKind::Choice(choices) => {
                choices.iter().position(|c| c.eq_ignore_ascii_case(word)).map(Value::Choice).ok_or(
                    format!("argument(s) must be one of the following: {}", choices.join(", ")),
                )
            }
            ValueKind::Octal => {
                let value = i64::from_str_radix(word, 8)
                    .map_err(|_| "argument couldn't be parsed as an octal number")?;
                if (0..=0o777).contains(&value) {
                    Ok(Value::Int(value))
                } else {
                    Err("argument must be between 0 and 777 inclusive".into())
                }
            }
            ValueKind::Utf8 => Ok(Value::Text(word.clone())),
            ValueKind::Text
            | ValueKind::Words
            | ValueKind::Percentiles
            | ValueKind::SavePoints
            | ValueKind::OutputLimits => unreachable!("handled above"),
        }
    }

    /// Writes a value as `CONFIG GET` shows it.
    pub fn render(self, value: &Value) -> Vec<u8> {
        match value {
            Value::Bytes(bytes) => bytes.clone(),
            _ => self.text_of(value).into_bytes(),
        }
    }

    /// The value as [`render`](Self::render) writes it, but as text: bytes that are not UTF-8 are
    /// replaced.
    pub(super) fn text_of(self, value: &Value) -> String {
        match (self, value) {
            (_, Value::Bytes(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            (ValueKind::Octal, Value::Int(value)) => format!("{value:o}"),
            (ValueKind::MemoryOrPercent, Value::Int(value)) if *value < 0 => format!("{}%", -value),
            (_, Value::Int(value)) => value.to_string(),
            (_, Value::Bool(value)) => if *value { "yes" } else { "no" }.into(),
            (ValueKind::Choice(choices), Value::Choice(index)) => choices[*index].into(),
            (_, Value::Choice(index)) => index.to_string(),
            (_, Value::Text(text)) => text.clone(),
            (_, Value::Limits(limits)) => {
                let mut words = Vec::with_capacity(12);
                for (class, limit) in OUTPUT_CLASSES.iter().zip(limits) {
                    words.push((*class).to_owned());
                    words.push(limit.hard_bytes.to_string());
                    words.push(limit.soft_bytes.to_string());
                    words.push(limit.soft_seconds.to_string());
                }
                words.join(" ")
            }
        }
    }
}

fn within(value: i64, min: i64, max: i64) -> Result<i64, String> {
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(format!("argument must be between {min} and {max} inclusive"))
    }
}

/// Reads a size: `10`, `10b`, `10k` (1000), `10kb` (1024), and likewise with m and g, in upper or
/// lower case. A negative size is refused.
fn parse_memory(word: &str) -> Option<i64> {
    let digits_end = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    let (digits, unit) = word.split_at(digits_end);
    let scale: i64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    digits.parse::<i64>().ok()?.checked_mul(scale)
}

/// As in Redis, a single word is split at each blank, so that an extra blank leaves an empty word,
/// which counts as 0.
fn parse_save_points(words: &[String]) -> Result<Value, String> {
    let invalid = || String::from("Invalid save parameters");
    let words: Vec<&str> = match words {
        [word] if word.is_empty() => Vec::new(),
        [word] => word.split(' ').collect(),
        words => words.iter().map(String::as_str).collect(),
    };
    if !words.len().is_multiple_of(2) {
        return Err(invalid());
    }
    let mut numbers = Vec::with_capacity(words.len());
    for pair in words.chunks_exact(2) {
        let (seconds, changes) = (save_number(pair[0]), save_number(pair[1]));
        let seconds = seconds.filter(|seconds| *seconds >= 1).ok_or_else(invalid)?;
        // Redis keeps the number of changes as a C int, which a larger number would overflow.
        let changes = changes.filter(|changes| (0..=CHANGES_MAX).contains(changes));
        let changes = changes.ok_or_else(invalid)?;
        numbers.extend([seconds.to_string(), changes.to_string()]);
    }
    Ok(Value::Text(numbers.join(" ")))
}

/// A number as `strtoll` reads it: blanks and a sign may precede the digits, nothing may follow
/// them, and a number out of range becomes the nearest limit. An empty word is 0.
fn save_number(word: &str) -> Option<i64> {
    let is_blank = |c: char| matches!(c, ' ' | '\t'..='\r');
    if word.is_empty() {
        return Some(0);
    }
    let number: Result<i64, _> = word.trim_start_matches(is_blank).parse();
    match number.as_ref().map_err(ParseIntError::kind) {
        Ok(number) => Some(*number),
        Err(IntErrorKind::PosOverflow) => Some(i64::MAX),
        Err(IntErrorKind::NegOverflow) => Some(i64::MIN),
        Err(_) => None,
    }
}

fn parse_percentiles(words: &[String]) -> Result<Value, String> {
    let words: Vec<&str> = words.iter().flat_map(|word| word.split_whitespace()).collect();
    for word in &words {
        let value: f64 =
            word.parse().map_err(|_| "Invalid latency-tracking-info-percentiles parameters")?;
        if !(0.0..=100.0).contains(&value) {
            return Err("latency-tracking-info-percentiles parameters should sit between \
                        [0.0,100.0]"
                .into());
        }
    }
    Ok(Value::Text(words.join(" ")))
}

/// A size in the largest unit that gives a whole number.
pub(super) fn format_memory(bytes: i64) -> String {
    for (shift, unit) in [(30, "gb"), (20, "mb"), (10, "kb")] {
        if bytes > 0 && bytes % (1 << shift) == 0 {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

fn parse_limits(words: &[String], old: Option<&Value>) -> Result<Value, String> {
    // An argument may hold several words, because `CONFIG SET` gives all words in one argument.
    let words: Vec<&str> = words.iter().flat_map(|w| w.split_ascii_whitespace()).collect();
    if words.is_empty() || !words.len().is_multiple_of(4) {
        return Err("Wrong number of arguments in buffer limit configuration.".into());
    }
    let mut limits = match old {
        Some(Value::Limits(limits)) => *limits,
        _ => Default::default(),
    };
    for four in words.chunks_exact(4) {
        let class = four[0].to_ascii_lowercase();
        let class = if class == "replica" { "slave" } else { class.as_str() };
        let index = OUTPUT_CLASSES
            .iter()
            .position(|c| *c == class)
            .ok_or("Invalid client class specified in buffer limit configuration.")?;
        let numbers = (
            parse_memory(four[1]),
            parse_memory(four[2]),
            four[3].parse::<i64>().ok().filter(|s| *s >= 0),
        );
        let (Some(hard), Some(soft), Some(seconds)) = numbers else {
            return Err(
                "Error in hard, soft or soft_seconds setting in buffer limit configuration.".into(),
            );
        };
        limits[index] = OutputLimit {
            hard_bytes: hard as u64,
            soft_bytes: soft as u64,
            soft_seconds: seconds as u64,
        };
    }
    Ok(Value::Limits(limits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(kind: ValueKind, word: &str) -> Result<Value, String> {
        kind.parse(&[word.to_owned()], None)
    }

    #[test]
    fn memory_knows_the_units_of_redis() {
        let kind = ValueKind::Memory(0, i64::MAX);
        for (word, bytes) in [
            ("0", 0),
            ("7b", 7),
            ("2k", 2000),
            ("2KB", 2048),
            ("3m", 3_000_000),
            ("3mb", 3 << 20),
            ("1g", 1_000_000_000),
            ("1GB", 1 << 30),
        ] {
            assert_eq!(parse(kind, word), Ok(Value::Int(bytes)), "{word}");
        }
        for word in ["", "x", "1t", "-1", "1 gb", "99999999999gb"] {
            assert!(parse(kind, word).is_err(), "{word}");
        }
    }

    #[test]
    fn a_percentage_is_one_in_place_of_a_size() {
        let kind = ValueKind::MemoryOrPercent;
        for (word, shown) in
            [("0", "0"), ("10%", "10%"), ("0%", "0"), ("100%", "100%"), ("1kb", "1024")]
        {
            assert_eq!(kind.text_of(&parse(kind, word).unwrap()), shown, "{word}");
        }
        for word in ["", "%", "-5", "-5%", "5.5%", "101%", "x"] {
            assert!(parse(kind, word).is_err(), "{word}");
        }
    }

    #[test]
    fn bounds_and_words_are_checked() {
        assert_eq!(
            parse(ValueKind::Int(1, 9), "10"),
            Err("argument must be between 1 and 9 inclusive".into())
        );
        assert_eq!(
            parse(ValueKind::Choice(&["a", "b"]), "c"),
            Err("argument(s) must be one of the following: a, b".into())
        );
        assert_eq!(parse(ValueKind::Choice(&["a", "b"]), "B"), Ok(Value::Choice(1)));
        assert_eq!(parse(ValueKind::Octal, "700"), Ok(Value::Int(0o700)));
        assert_eq!(ValueKind::Octal.render(&Value::Int(0o700)), b"700");
    }

    #[test]
    fn a_number_is_what_redis_takes_for_one() {
        let kind = ValueKind::Int(-9, 9);
        for (word, number) in [("0", 0), ("7", 7), ("-7", -7)] {
            assert_eq!(parse(kind, word), Ok(Value::Int(number)), "{word}");
        }
        for word in ["+1", "01", "-0", "-01", " 1", "1 ", "", "-", "+", "1.0", "1e0", "0x1"] {
            let why = "argument couldn't be parsed into an integer";
            assert_eq!(parse(kind, word), Err(why.into()), "{word:?}");
        }
    }

    #[test]
    fn only_one_word_may_be_any_bytes() {
        let parse = |kind: ValueKind| kind.parse(&[[b'1', 0xe9]], None);
        assert_eq!(parse(ValueKind::Text), Ok(Value::Bytes(vec![b'1', 0xe9])));
        for kind in [
            ValueKind::Utf8,
            ValueKind::Words,
            ValueKind::Int(0, 9),
            ValueKind::Memory(0, 9),
            ValueKind::MemoryOrPercent,
            ValueKind::Bool,
            ValueKind::Choice(&["1"]),
            ValueKind::Octal,
            ValueKind::SavePoints,
            ValueKind::Percentiles,
            ValueKind::OutputLimits,
        ] {
            assert!(parse(kind).is_err(), "{kind:?}");
        }
    }

    #[test]
    fn output_limits_change_only_the_named_class() {
        let kind = ValueKind::OutputLimits;
        let all = parse(kind, "normal 0 0 0 slave 256mb 64mb 60 pubsub 32mb 8mb 60").unwrap();
        let changed = kind.parse(&["normal 1kb 0 9".to_owned()], Some(&all)).unwrap();
        assert_eq!(
            kind.text_of(&changed),
            "normal 1024 0 9 slave 268435456 67108864 60 pubsub 33554432 8388608 60"
        );
        assert!(parse(kind, "normal 1 2").is_err());
        assert!(parse(kind, "other 1 2 3").is_err());
        assert!(parse(kind, "normal x 2 3").is_err());
    }
}
