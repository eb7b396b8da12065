//! The rows of the command table, as the server itself reports them.

use crate::common::Client;

/// A command, or a subcommand such as `client|list`.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// The row's name in `CLIENT LIST`.
    pub(crate) called: String,
    arity: i64,
    flags: Vec<String>,
    /// Positions of the first and the last key, and the step from one key to the next.
    keys: (i64, i64, i64),
}

impl Row {
    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|f| f == flag)
    }

    /// Whether the row reads or writes the data set.
    pub(crate) fn is_data(&self) -> bool {
        self.has("write") || self.has("readonly")
    }

    /// The least number of arguments, including the words of the row's name, and whether there can
    /// be more arguments.
    pub(crate) fn len(&self) -> (usize, bool) {
        (self.arity.unsigned_abs() as usize, self.arity < 0)
    }

    /// If the position of the last key is counted from the end of the request, the step from one
    /// key to the next; otherwise 1.
    pub(crate) fn step(&self) -> usize {
        if self.keys.1 < 0 { self.keys.2 as usize } else { 1 }
    }

    /// Whether argument `index` of `len` is a key.
    pub(crate) fn is_key(&self, index: usize, len: usize) -> bool {
        let (first, last, step) = self.keys;
        let (index, len) = (index as i64, len as i64);
        let last = if last < 0 { len + last } else { last };
        first > 0 && (first..=last).contains(&index) && (index - first) % step == 0
    }
}

/// All rows. A command with subcommands has no row of its own, but a row for each subcommand.
/// `COMMAND` has both, because it also works without a subcommand. The words that follow `DEBUG`
/// count as subcommands.
pub(crate) fn all(client: &mut Client) -> Vec<Row> {
    let mut rows = Vec::new();
    for described in ask(client, &["COMMAND"]).list() {
        let row = row(described);
        let subcommands = described.list()[9].list();
        rows.extend(subcommands.iter().map(self::row));
        if row.name == "debug" {
            let help = ask(client, &["DEBUG", "HELP"]);
            let lines = help.list().iter().map(Value::text);
            let words = lines.filter_map(|line| line.split([' ', '\r']).next());
            for word in words.filter(|word| !word.is_empty() && *word != "DEBUG") {
                let name = format!("debug|{}", word.to_lowercase());
                rows.push(Row { name, ..row.clone() });
            }
        } else if subcommands.is_empty() || row.name == "command" {
            rows.push(row);
        }
    }
    rows
}

fn ask(client: &mut Client, request: &[&str]) -> Value {
    client.send(request);
    let reply = client.read();
    let (value, rest) = parse(std::str::from_utf8(&reply).unwrap());
    assert!(rest.is_empty());
    value
}

fn row(described: &Value) -> Row {
    let described = described.list();
    let name = described[0].text().to_owned();
    Row {
        called: name.clone(),
        name,
        arity: described[1].number(),
        flags: described[2].list().iter().map(|flag| flag.text().to_owned()).collect(),
        keys: (described[3].number(), described[4].number(), described[5].number()),
    }
}

enum Value {
    Text(String),
    Number(i64),
    List(Vec<Value>),
}

impl Value {
    fn text(&self) -> &str {
        let Self::Text(text) = self else { panic!("not a text") };
        text
    }

    fn number(&self) -> i64 {
        let Self::Number(number) = self else { panic!("not a number") };
        *number
    }

    fn list(&self) -> &[Self] {
        let Self::List(list) = self else { panic!("not a list") };
        list
    }
}

/// Returns the first reply in `bytes`, and the rest.
fn parse(bytes: &str) -> (Value, &str) {
    let (line, mut rest) = bytes.split_once("\r\n").unwrap();
    let (kind, word) = line.split_at(1);
    let value = match kind {
        "+" => Value::Text(word.to_owned()),
        ":" => Value::Number(word.parse().unwrap()),
        "$" => {
            let (text, behind) = rest.split_at(word.parse().unwrap());
            rest = behind.strip_prefix("\r\n").unwrap();
            Value::Text(text.to_owned())
        }
        "*" => {
            let mut list = Vec::new();
            for _ in 0..word.parse().unwrap() {
                let (value, behind) = parse(rest);
                list.push(value);
                rest = behind;
            }
            Value::List(list)
        }
        other => panic!("the reply has the unexpected kind {other}"),
    };
    (value, rest)
}
