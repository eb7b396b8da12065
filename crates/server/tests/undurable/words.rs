//! Requests for any row of the command table, drawn at random.

use fastrand::Rng;
use slimio_testing::random::pick;

use super::rows::Row;

/// The keys of the initial data set, and `new`, which does not exist.
pub(crate) const KEYS: [&str; 9] =
    ["str", "num", "hash", "set", "list", "ttl", "gone", "still", "new"];

const NUMBERS: [&str; 8] = ["0", "1", "2", "7", "-1", "100", "4102444800", "4102444800000"];

const WORDS: [&str; 26] = [
    "1.5",
    "f1",
    "f2",
    "f3",
    "value",
    "v",
    "NX",
    "XX",
    "GT",
    "LT",
    "GET",
    "EX",
    "PX",
    "KEEPTTL",
    "PERSIST",
    "REPLACE",
    "DB",
    "MATCH",
    "*",
    "COUNT",
    "TYPE",
    "string",
    "hash",
    "WITHVALUES",
    "ASYNC",
    "new",
];

/// In [`LINES`], this word stands for a random key.
const KEY: &str = "KEY";

/// Lines of arguments for some rows, because random arguments would rarely be valid there, or would
/// do harm. An entry has the name of the row, then whether the row gets no other arguments, then
/// the lines.
const LINES: &[(&str, bool, &[&str])] = &[
    ("auth", true, &["word", "default word"]),
    // With other timeouts, the test would wait for long.
    ("blmove", true, &["list new LEFT RIGHT 0.01", "KEY KEY LEFT LEFT 0.01", "KEY list LEFT X 0"]),
    ("blmpop", true, &["0.01 1 list LEFT", "0.01 2 KEY KEY RIGHT COUNT 2", "0.01 0 KEY LEFT"]),
    ("blpop", true, &["list 0.01", "new list 0.01", "KEY KEY 0.01", "KEY -1"]),
    ("brpop", true, &["list 0.01", "new list 0.01", "KEY KEY 0.01", "KEY x"]),
    ("brpoplpush", true, &["list new 0.01", "list list 0.01", "KEY KEY 0.01"]),
    ("client|kill", true, &["127.0.0.1:1", "ID 4102444800", "ADDR 127.0.0.1:1 SKIPME yes"]),
    ("client|list", true, &["", "TYPE normal", "ID 1 2 3"]),
    ("client|no-evict", true, &["on", "off"]),
    ("client|no-touch", true, &["on", "off"]),
    // With other arguments, the server would not serve the test for a while.
    ("client|pause", true, &["0", "0 WRITE"]),
    // With other arguments, there is no reply.
    ("client|reply", true, &["ON"]),
    ("client|setinfo", true, &["LIB-NAME word", "LIB-VER 1"]),
    ("client|unblock", true, &["4102444800", "4102444800 ERROR"]),
    ("command", true, &[""]),
    ("command|getkeys", true, &["GET KEY", "MSET KEY v KEY v", "COPY KEY KEY"]),
    ("config|get", true, &["maxmemory*", "timeout hz"]),
    ("config|set", true, &["timeout 0", "timeout 0 hz 500"]),
    ("copy", false, &["KEY KEY", "KEY KEY REPLACE", "KEY KEY DB 1", "KEY KEY DB 1 REPLACE"]),
    ("debug|digest", true, &[""]),
    ("debug|digest-value", true, &["KEY", "KEY KEY"]),
    ("debug|help", true, &[""]),
    ("debug|object", true, &["KEY"]),
    ("debug|populate", true, &["3", "2 new", "2 str 10"]),
    ("debug|reload", true, &[""]),
    ("debug|set-active-expire", true, &["0"]),
    ("debug|sleep", true, &["0"]),
    ("expire", false, &["KEY 100", "KEY 100 NX", "KEY 100 XX", "KEY -1", "KEY 100 GT"]),
    ("expireat", false, &["KEY 4102444800", "KEY 4102444800 LT", "KEY 1"]),
    ("flushall", false, &["", "ASYNC", "SYNC"]),
    ("flushdb", false, &["", "ASYNC", "SYNC"]),
    ("getex", false, &["KEY", "KEY PERSIST", "KEY EX 100"]),
    ("hello", true, &["2", "3", "3 SETNAME word"]),
    ("hrandfield", false, &["KEY", "KEY 2", "KEY -5 WITHVALUES"]),
    ("hscan", false, &["KEY 0", "KEY 0 MATCH * COUNT 10"]),
    ("info", true, &["", "everything", "keyspace", "commandstats memory"]),
    ("keys", false, &["*", "s*"]),
    ("latency|graph", true, &["command"]),
    ("linsert", false, &["list BEFORE text v", "list AFTER none v", "KEY BEFORE 2 2"]),
    ("lmove", false, &["list new LEFT RIGHT", "list list RIGHT LEFT", "KEY KEY LEFT LEFT"]),
    ("lmpop", false, &["1 list LEFT", "2 new list RIGHT COUNT 2", "2 KEY KEY LEFT"]),
    ("lpop", false, &["list", "list 2", "KEY 100"]),
    ("lpos", false, &["list 2", "list 2 RANK -1 COUNT 0", "KEY text"]),
    ("lrange", false, &["list 0 -1", "list 1 2", "KEY 0 1"]),
    ("lrem", false, &["list 0 2", "list -1 2", "KEY 1 text"]),
    ("lset", false, &["list 0 v", "list -1 v", "KEY 1 v"]),
    ("ltrim", false, &["list 0 1", "list 1 -1", "KEY 0 -1"]),
    ("memory|usage", false, &["KEY", "KEY SAMPLES 0"]),
    ("move", false, &["KEY 1", "KEY 0"]),
    ("pexpire", false, &["KEY 100000", "KEY 1 XX"]),
    ("pexpireat", false, &["KEY 4102444800000", "KEY 1"]),
    ("rpop", false, &["list", "list 2", "KEY 100"]),
    ("rpoplpush", false, &["list new", "list list", "KEY KEY"]),
    ("scan", false, &["0", "0 MATCH s*", "0 COUNT 100 TYPE hash"]),
    ("select", false, &["0", "1", "2"]),
    ("set", false, &["KEY v NX", "KEY v XX", "KEY v GET", "KEY v KEEPTTL", "KEY v EX 100 NX GET"]),
    // Other arguments would end the server.
    ("shutdown", true, &["ABORT", "SAVE NOSAVE"]),
    ("sdiffstore", false, &["new set KEY", "set set", "KEY KEY KEY"]),
    ("sintercard", false, &["1 set", "2 set KEY", "2 set new LIMIT 2"]),
    ("sinterstore", false, &["new set KEY", "set set set", "KEY KEY KEY"]),
    ("slowlog|get", true, &["-1", ""]),
    ("smismember", false, &["set 1 value 100", "KEY 1 2"]),
    ("smove", false, &["set new 1", "set set 7", "KEY KEY text"]),
    ("spop", false, &["set", "set 2", "KEY 100"]),
    ("srandmember", false, &["set", "set 2", "KEY -5"]),
    ("sscan", false, &["set 0", "KEY 0 MATCH * COUNT 10"]),
    ("sunionstore", false, &["new set KEY", "set set set", "KEY KEY KEY"]),
    ("swapdb", false, &["0 1", "0 2", "1 1"]),
    ("waitaof", true, &["0 0 0", "1 0 1", "0 1 1"]),
];

pub(crate) fn draw(row: &Row, rng: &mut Rng) -> Vec<String> {
    let mut request: Vec<String> = row.name.split('|').map(str::to_uppercase).collect();
    let found = LINES.iter().find(|(name, ..)| *name == row.name);
    if let Some((_, is_all, lines)) = found
        && (*is_all || rng.usize(..3) > 0)
    {
        let words = pick(rng, lines).split_whitespace();
        request.extend(words.map(|word| if word == KEY { pick(rng, &KEYS) } else { word }.into()));
        return request;
    }
    let (mut len, has_more) = row.len();
    if has_more {
        len += rng.usize(..3) * row.step();
    }
    for index in request.len()..len {
        let is_number = rng.usize(..2) == 0;
        let word = match row.is_key(index, len) {
            true => pick(rng, &KEYS),
            false if is_number => pick(rng, &NUMBERS),
            false => pick(rng, &WORDS),
        };
        request.push(word.to_owned());
    }
    request
}

/// Whether a reply is an error that says that the request is not valid.
pub(crate) fn is_improper(reply: &[u8]) -> bool {
    let reply = String::from_utf8_lossy(reply);
    let signs =
        ["syntax error", "wrong number", "unknown", "not an integer", "not a valid", "must"];
    reply.starts_with('-') && signs.iter().any(|sign| reply.contains(sign))
}
