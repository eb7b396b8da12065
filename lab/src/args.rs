//! Command-line flags: `--name value`, `--name=value` and `--switch`; a flag that nobody asks for
//! is an error.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::error::{BenchError, Result};

/// Flags of one subcommand.
#[derive(Debug, Default)]
pub struct Args {
    given: BTreeMap<String, Option<String>>,
}

impl Args {
    /// Reads flags; `switches` are the names that take no value.
    pub fn parse(words: impl IntoIterator<Item = String>, switches: &[&str]) -> Result<Self> {
        let mut given = BTreeMap::new();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let Some(name) = word.strip_prefix("--") else {
                return Err(BenchError::Usage(format!("{word}: flags begin with --")));
            };
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None if switches.contains(&name) => (name.to_owned(), None),
                None => {
                    let value = words.next();
                    let missing = || BenchError::Usage(format!("--{name} needs a value"));
                    (name.to_owned(), Some(value.ok_or_else(missing)?))
                }
            };
            given.insert(name, value);
        }
        Ok(Self { given })
    }

    /// Whether the switch is there. A flag that was asked for is used up.
    pub fn switch(&mut self, name: &str) -> bool {
        self.given.remove(name).is_some()
    }

    /// The flag's text.
    pub fn text(&mut self, name: &str) -> Option<String> {
        self.given.remove(name).flatten()
    }

    /// The flag's value, or `default`.
    pub fn value<T: FromStr>(&mut self, name: &str, default: T) -> Result<T> {
        Ok(self.optional(name)?.unwrap_or(default))
    }

    /// The flag's value, if it is there.
    pub fn optional<T: FromStr>(&mut self, name: &str) -> Result<Option<T>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let wrong = |_| BenchError::Usage(format!("--{name} cannot be {text:?}"));
        text.parse().map(Some).map_err(wrong)
    }

    /// Complains about flags that nobody asked for.
    pub fn finish(self) -> Result<()> {
        match self.given.into_keys().next() {
            None => Ok(()),
            Some(name) => Err(BenchError::Usage(format!("unknown flag --{name}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args> {
        Args::parse(line.split_whitespace().map(str::to_owned), &["quick"])
    }

    #[test]
    fn flags_are_read_and_used_up() {
        let mut args = parse("--clients 50 --quick --mix=ycsb-a").unwrap();
        assert_eq!(args.value("clients", 1).unwrap(), 50);
        assert!(args.switch("quick"));
        assert_eq!(args.text("mix").as_deref(), Some("ycsb-a"));
        assert_eq!(args.value("pipeline", 3).unwrap(), 3);
        args.finish().unwrap();
    }

    #[test]
    fn mistakes_are_named() {
        assert!(matches!(parse("clients 50"), Err(BenchError::Usage(_))));
        assert!(matches!(parse("--clients"), Err(BenchError::Usage(_))));
        assert!(parse("--clients x").unwrap().value("clients", 1).is_err());
        let message = parse("--clinets 5").unwrap().finish().unwrap_err().to_string();
        assert!(message.contains("--clinets"), "{message}");
    }
}
