//! Random data commands, for tests of what they leave: in memory, in the log, in snapshots, on a stock
//! server. Tests that draw requests of their own shrink them, take them from the command table, or
//! know by a value who wrote it.

use std::time::{SystemTime, UNIX_EPOCH};

use fastrand::Rng;

/// One of these words.
pub fn pick<'a, T: ?Sized>(rng: &mut Rng, from: &[&'a T]) -> &'a T {
    from[rng.usize(..from.len())]
}

/// The seed of a test: from the environment, to repeat a run, or else from the clock.
///
/// # Panics
/// When what is in the environment is no number.
pub fn seed() -> u64 {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let set = std::env::var("SLIMIO_SEED");
    let seed = set.map_or_else(
        |_| now().as_nanos() as u64,
        |text| text.parse().expect("SLIMIO_SEED is a number"),
    );
    eprintln!("seed {seed}; repeat with SLIMIO_SEED={seed}");
    seed
}

/// The data commands; one that is named more than once is drawn as often.
const COMMANDS: &str = "\
    append copy dbsize decr decrby del exists expire expireat expiretime flushall flushdb \
    get getdel getex getrange getset hdel hdel hexists hget hgetall hincrby hincrbyfloat \
    hkeys hlen hmget hmset hrandfield hscan hset hset hset hset hsetnx hstrlen hvals incr \
    incrby incrbyfloat keys mget move mset msetnx persist pexpire pexpireat pexpiretime \
    psetex pttl randomkey rename renamenx scan set set set set setex setnx setrange strlen \
    substr swapdb touch ttl type unlink";

/// Random data commands on few keys, with arguments that are often right.
#[derive(Clone, Debug)]
pub struct Generator {
    /// The source of all of them. A test may draw from it, too: one seed is the whole run.
    pub rng: Rng,
    /// Base of all dates, in milliseconds.
    pub now_ms: i64,
    /// Longest time to live, in milliseconds; if it is large, no two drawn ones coincide.
    pub ttl_ms_max: usize,
    /// Names of commands; one that is there more than once is drawn as often.
    pub names: Vec<&'static str>,
    /// The keys that are used, except where an odd one or an odd argument takes a key's place.
    pub keys: Vec<Vec<u8>>,
}

impl Generator {
    /// Every data command, on ten keys.
    pub fn new(seed: u64, ttl_ms_max: usize) -> Self {
        let keys = (0..10).map(|n| format!("k{n}").into_bytes()).collect();
        let names = COMMANDS.split(' ').collect();
        Self { rng: Rng::with_seed(seed), now_ms: 0, ttl_ms_max, names, keys }
    }

    /// The words of the next command.
    pub fn command(&mut self) -> Vec<Vec<u8>> {
        let name = pick(&mut self.rng, &self.names);
        if name.starts_with("flush") && self.rng.usize(..10) != 0 {
            return self.command();
        }
        let mut words = vec![self.spelling(name)];
        for kind in self.shape(name) {
            let word = self.word(kind);
            words.push(word);
        }
        if self.rng.usize(..40) == 0 {
            let word = self.odd();
            words.push(word);
        }
        if self.rng.usize(..40) == 0 {
            words.pop();
        }
        if self.rng.usize(..40) == 0 && words.len() > 1 {
            let index = 1 + self.rng.usize(..words.len() - 1);
            words[index] = self.odd();
        }
        if words.is_empty() {
            return self.command();
        }
        words
    }

    /// Kinds of the arguments, a letter each.
    fn shape(&mut self, name: &str) -> Vec<u8> {
        let mut shape = match name {
            "append" | "getset" | "set" | "setnx" => b"kv".to_vec(),
            "decr" | "expiretime" | "get" | "getdel" | "incr" | "persist" | "pexpiretime"
            | "pttl" | "strlen" | "ttl" | "type" | "hgetall" | "hkeys" | "hlen" | "hvals" => {
                b"k".to_vec()
            }
            "decrby" | "incrby" => b"kn".to_vec(),
            "incrbyfloat" => b"kf".to_vec(),
            "del" | "exists" | "mget" | "touch" | "unlink" => vec![b'k'; 1 + self.rng.usize(..4)],
            "expire" => b"ks".to_vec(),
            "pexpire" => b"kt".to_vec(),
            "expireat" => b"kS".to_vec(),
            "pexpireat" => b"kT".to_vec(),
            "getrange" | "substr" => b"krr".to_vec(),
            "hset" | "hmset" => [b"k".to_vec(), b"hv".repeat(1 + self.rng.usize(..4))].concat(),
            "hsetnx" => b"khv".to_vec(),
            "hget" | "hexists" | "hstrlen" => b"kh".to_vec(),
            "hmget" | "hdel" => [b"k".to_vec(), b"h".repeat(1 + self.rng.usize(..4))].concat(),
            "hincrby" => b"khn".to_vec(),
            "hincrbyfloat" => b"khf".to_vec(),
            "hrandfield" => b"kq".to_vec(),
            "hscan" => b"k0".to_vec(),
            "keys" => b"p".to_vec(),
            "move" => b"kd".to_vec(),
            "mset" | "msetnx" => b"kv".repeat(1 + self.rng.usize(..3)),
            "psetex" => b"ktv".to_vec(),
            "setex" => b"ksv".to_vec(),
            "rename" | "renamenx" | "copy" => b"kk".to_vec(),
            "scan" => b"0".to_vec(),
            "setrange" => b"kov".to_vec(),
            "swapdb" => b"dd".to_vec(),
            _ => Vec::new(),
        };
        let options: &[&[u8]] = match name {
            "set" => &[b"N", b"X", b"G", b"K", b"As", b"Bt", b"CS", b"DT"],
            "getex" => &[b"P", b"As", b"Bt", b"CS", b"DT"],
            "expire" | "pexpire" | "expireat" | "pexpireat" => &[b"N", b"X", b">", b"<"],
            "copy" => &[b"R", b"Ed"],
            "scan" => &[b"Mp", b"#c", b"Yy"],
            "hscan" => &[b"Mp", b"#c"],
            "hrandfield" => &[b"W"],
            "flushall" | "flushdb" => &[b"a", b"b"],
            _ => &[],
        };
        if name == "getex" {
            shape.push(b'k');
        }
        while !options.is_empty() && self.rng.usize(..2) != 0 {
            shape.extend_from_slice(pick(&mut self.rng, options));
        }
        shape
    }

    fn word(&mut self, kind: u8) -> Vec<u8> {
        let text = match kind {
            b'k' => return self.key(),
            b'v' => return self.value(),
            b'h' => return self.field(),
            b'n' => return self.number(),
            b'f' => return self.float(),
            b's' => {
                let ms = self.ttl_ms();
                (if ms > 0 { ms / 1000 + 1 } else { ms }).to_string()
            }
            b't' => self.ttl_ms().to_string(),
            b'S' => ((self.now_ms + self.ttl_ms()) / 1000).to_string(),
            b'T' => (self.now_ms + self.ttl_ms()).to_string(),
            b'r' => (self.rng.usize(..30) as i64 - 15).to_string(),
            b'o' => {
                pick(&mut self.rng, &["0", "1", "5", "100", "70000", "-1", "536870912"]).to_string()
            }
            b'd' => self.rng.usize(..3).to_string(),
            b'c' => pick(&mut self.rng, &["1", "3", "10", "1000", "0", "-1"]).to_string(),
            b'p' => {
                pick(&mut self.rng, &["*", "k*", "k[0-4]", "k?", "[^k]*", "**", "\\k1"]).to_owned()
            }
            b'q' => pick(&mut self.rng, &["0", "1", "3", "-1", "-4", "200", "-200"]).to_owned(),
            b'y' => pick(&mut self.rng, &["string", "STRING", "hash", "list", "nosuch"]).to_owned(),
            b'0' => "0".to_owned(),
            option => {
                let name = match option {
                    b'N' => "NX",
                    b'X' => "XX",
                    b'G' => "GET",
                    b'K' => "KEEPTTL",
                    b'P' => "PERSIST",
                    b'A' => "EX",
                    b'B' => "PX",
                    b'C' => "EXAT",
                    b'D' => "PXAT",
                    b'>' => "GT",
                    b'<' => "LT",
                    b'R' => "REPLACE",
                    b'E' => "DB",
                    b'M' => "MATCH",
                    b'#' => "COUNT",
                    b'Y' => "TYPE",
                    b'W' => "WITHVALUES",
                    b'a' => "ASYNC",
                    b'b' => "SYNC",
                    other => panic!("no word for {other}"),
                };
                return self.spelling(name);
            }
        };
        text.into_bytes()
    }

    /// A time to live up to `ttl_ms_max`; now and then zero, or one or two seconds in the past.
    fn ttl_ms(&mut self) -> i64 {
        if self.rng.usize(..8) == 0 {
            return -(self.rng.usize(..3) as i64) * 1000;
        }
        1 + self.rng.usize(..self.ttl_ms_max) as i64
    }

    fn key(&mut self) -> Vec<u8> {
        match self.rng.usize(..120) {
            0 => Vec::new(),
            1 => vec![b'k'; 300],
            2 => b"a key\r\nwith\0odd bytes".to_vec(),
            _ => self.keys[self.rng.usize(..self.keys.len())].clone(),
        }
    }

    /// Mostly one of a few names that recur, and some that make the hash a large one.
    fn field(&mut self) -> Vec<u8> {
        match self.rng.usize(..60) {
            0 => self.value(),
            1..=20 => format!("field {}", self.rng.usize(..300)).into_bytes(),
            _ => format!("f{}", self.rng.usize(..8)).into_bytes(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        match self.rng.usize(..12) {
            0..=3 => self.number(),
            4 | 5 => self.float(),
            6 => Vec::new(),
            7 => vec![b'v'; self.rng.usize(..3000)],
            8 => vec![b'x'; 30_000 + self.rng.usize(..40_000)],
            9 if self.rng.usize(..4) == 0 => vec![b'y'; 262_100 + self.rng.usize(..100)],
            _ => format!("value {}", self.rng.u64(..)).into_bytes(),
        }
    }

    fn number(&mut self) -> Vec<u8> {
        const NUMBERS: &[&str] = &[
            "0",
            "1",
            "-1",
            "10",
            "99",
            "-100",
            "9223372036854775807",
            "-9223372036854775808",
            "9223372036854775806",
            "9223372036854775808",
            "01",
            "-0",
            "+5",
            " 1",
            "1 ",
            "1.5",
            "",
        ];
        if self.rng.usize(..2) == 0 {
            return pick(&mut self.rng, NUMBERS).as_bytes().to_vec();
        }
        (self.rng.usize(..2000) as i64 - 1000).to_string().into_bytes()
    }

    fn float(&mut self) -> Vec<u8> {
        const FLOATS: &[&str] = &[
            "0",
            "1.5",
            "-2.25",
            "3.0e3",
            "1e-5",
            "0.1",
            "0.2",
            "0.3",
            "-0.0",
            "1e17",
            "1e22",
            "inf",
            "-inf",
            "nan",
            "1e400",
            "1e5000",
            "1e-5000",
            "0x1p3",
            "0x.8p-1",
            "abc",
            "",
            "5.",
            ".5",
            "1e",
            "+1.25",
            "123456789.123456789",
            "1.7976931348623157e308",
            "3.14159265358979323846",
            " 1",
            "1 ",
        ];
        if self.rng.usize(..2) == 0 {
            return pick(&mut self.rng, FLOATS).as_bytes().to_vec();
        }
        let (digits, shift) = (self.rng.u64(..) as i64, self.rng.usize(..19));
        let text = format!("{}.{:0shift$}", digits % 100_000, digits.unsigned_abs() % 10_000_000);
        text.into_bytes()
    }

    fn odd(&mut self) -> Vec<u8> {
        match self.rng.usize(..6) {
            0 => b"nonsense\r\noption\n".to_vec(),
            1 => self.number(),
            2 => self.value(),
            3 => self.spelling("ex"),
            4 => b"9223372036854775".to_vec(),
            _ => b"99999999999".to_vec(),
        }
    }

    fn spelling(&mut self, word: &str) -> Vec<u8> {
        let upper = self.rng.u64(..);
        let letter = |(i, c): (usize, char)| {
            if upper >> i & 1 == 0 { c.to_ascii_lowercase() } else { c.to_ascii_uppercase() }
        };
        word.chars().enumerate().map(letter).collect::<String>().into_bytes()
    }
}
