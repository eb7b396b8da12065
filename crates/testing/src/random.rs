//! Random data commands, for tests that compare their effects: in memory, in the log, in snapshots,
//! on a stock server. Some tests draw requests of their own instead: they shrink the requests, take
//! them from the command table, or use values that show which client wrote them.

use std::time::{SystemTime, UNIX_EPOCH};

use fastrand::Rng;

/// Picks one of the values at random.
pub fn pick<'a, T: ?Sized>(rng: &mut Rng, from: &[&'a T]) -> &'a T {
    from[rng.usize(..from.len())]
}

/// The seed of a test. To repeat a run, put its seed in `SLIMIO_SEED`. Without this variable, the
/// seed comes from the clock.
///
/// # Panics
/// When `SLIMIO_SEED` is no number.
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

/// The data commands. A name that is listed several times is drawn more often.
const COMMANDS: &str = "\
    append blmove blmpop blpop brpop brpoplpush copy dbsize decr decrby del dump exists expire expireat expiretime flushall flushdb \
    get getdel getex getrange getset hdel hdel hexists hget hgetall hincrby hincrbyfloat \
    hkeys hlen hmget hmset hrandfield hscan hset hset hset hset hsetnx hstrlen hvals incr \
    incrby incrbyfloat keys lindex linsert llen lmove lmpop lpop lpop lpos lpush lpush lpush lpushx \
    lrange lrem lset ltrim mget move mset msetnx persist pexpire pexpireat pexpiretime \
    psetex pttl randomkey rename renamenx restore restore rpop rpop \
    rpoplpush rpush rpush rpush rpushx sadd sadd sadd sadd sadd scan scard sdiff \
    sdiffstore set set set set setex setnx setrange sinter sintercard sinterstore sismember \
    smembers smismember smove smove spop spop srandmember srem srem sscan strlen substr sunion \
    sunionstore swapdb touch ttl type unlink";

/// Replies of `DUMP`, as Redis 7.0 writes them: for a string, an integer, a packed hash, a hash
/// that is not packed, a list of one node and a list of two nodes. The last reply is for a string
/// again, but its checksum is wrong.
const DUMPS: &[&[u8]] = &[
    b"\0\x04text\x0a\0\x7c\xf3\x26\x6d\xca\xb5\xa5\x31",
    b"\0\xc0\x7b\x0a\0\x48\xe2\x53\xe1\0\x7a\x67\xb9",
    b"\x10\x14\x14\0\0\0\x04\0\x81f\x02\x81v\x02\x81g\x02\x8212\x03\xff\x0a\0\x66\x2c\x88\xc3\xcf\xb6\x13\xd5",
    b"\x04\x02\x01f\x011\x01g\x01v\x0a\0\x62\xb6\xdb\x7b\xac\x84\x0b\x38",
    b"\x12\x01\x02\x0f\x0f\0\0\0\x03\0\x81x\x02\x0c\x01\xdf\xfb\x02\xff\x0a\0\xfe?-\xdc\xc5}p\x81",
    b"\x12\x02\x02\x0d\x0d\0\0\0\x02\0\x81x\x02\x81y\x02\xff\x02\x0a\x0a\0\0\0\x01\0\x81z\x02\xff\x0a\0\xd5a0,\x98\xb4\x0bD",
    b"\0\x04text\x0a\0\x7c\xf3\x26\x6d\xca\xb5\xa5\x30",
];

/// Random data commands on few keys, with arguments that are often valid.
#[derive(Clone, Debug)]
pub struct Generator {
    /// The source of all randomness. If a test also draws from this source, one seed repeats the
    /// whole run.
    pub rng: Rng,
    /// Base of all dates, in milliseconds.
    pub now_ms: i64,
    /// Longest time to live, in milliseconds. If this is large, drawn times hardly ever coincide.
    pub ttl_ms_max: usize,
    /// Names of commands. A name that is listed several times is drawn more often.
    pub names: Vec<&'static str>,
    /// The keys. Now and then, a command gets an odd word in place of a key or another argument.
    pub keys: Vec<Vec<u8>>,
}

impl Generator {
    /// A generator of every data command, on ten keys.
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
        if name.starts_with("bl") || name.starts_with("br") {
            // The words of a blocking command stay as they are, because with another timeout the
            // command might wait forever.
            return words;
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

    /// The kinds of the arguments, with a letter for each.
    fn shape(&mut self, name: &str) -> Vec<u8> {
        let mut shape = match name {
            "append" | "getset" | "set" | "setnx" => b"kv".to_vec(),
            "decr" | "expiretime" | "get" | "getdel" | "incr" | "persist" | "pexpiretime"
            | "dump" | "pttl" | "strlen" | "ttl" | "type" | "hgetall" | "hkeys" | "hlen"
            | "hvals" | "llen" | "lpop" | "rpop" | "scard" | "smembers" | "spop"
            | "srandmember" => b"k".to_vec(),
            "blmove" => b"kkllu".to_vec(),
            "blmpop" => match self.rng.usize(..3) {
                0 => b"u1kl".to_vec(),
                1 => b"u2kkl".to_vec(),
                _ => b"u2kkl#c".to_vec(),
            },
            "blpop" | "brpop" => [b"k".repeat(1 + self.rng.usize(..3)), b"u".to_vec()].concat(),
            "brpoplpush" => b"kku".to_vec(),
            "decrby" | "incrby" => b"kn".to_vec(),
            "incrbyfloat" => b"kf".to_vec(),
            "del" | "exists" | "mget" | "touch" | "unlink" => vec![b'k'; 1 + self.rng.usize(..4)],
            "expire" => b"ks".to_vec(),
            "pexpire" => b"kt".to_vec(),
            "expireat" => b"kS".to_vec(),
            "pexpireat" => b"kT".to_vec(),
            "getrange" | "lrange" | "substr" => b"krr".to_vec(),
            "hset" | "hmset" => [b"k".to_vec(), b"hv".repeat(1 + self.rng.usize(..4))].concat(),
            "hsetnx" => b"khv".to_vec(),
            "hget" | "hexists" | "hstrlen" => b"kh".to_vec(),
            "hmget" | "hdel" => [b"k".to_vec(), b"h".repeat(1 + self.rng.usize(..4))].concat(),
            "hincrby" => b"khn".to_vec(),
            "hincrbyfloat" => b"khf".to_vec(),
            "hrandfield" => b"kq".to_vec(),
            "hscan" | "sscan" => b"k0".to_vec(),
            "sadd" if self.rng.usize(..8) == 0 => [b"k".to_vec(), b"m".repeat(200)].concat(),
            "sadd" | "srem" | "smismember" => {
                [b"k".to_vec(), b"m".repeat(1 + self.rng.usize(..4))].concat()
            }
            "sismember" => b"km".to_vec(),
            "smove" => b"kkm".to_vec(),
            "sinter" | "sunion" | "sdiff" => vec![b'k'; 1 + self.rng.usize(..3)],
            "sinterstore" | "sunionstore" | "sdiffstore" => vec![b'k'; 2 + self.rng.usize(..3)],
            "sintercard" => match self.rng.usize(..3) {
                0 => b"1k".to_vec(),
                1 => b"2kk".to_vec(),
                _ => b"2kkLc".to_vec(),
            },
            "lpush" | "rpush" if self.rng.usize(..8) == 0 => {
                [b"k".to_vec(), b"v".repeat(20), b"m".repeat(400)].concat()
            }
            "lpush" | "rpush" | "lpushx" | "rpushx" => {
                [b"k".to_vec(), b"e".repeat(1 + self.rng.usize(..4))].concat()
            }
            "lindex" => b"kr".to_vec(),
            "linsert" => b"kiee".to_vec(),
            "lmove" => b"kkll".to_vec(),
            "lmpop" => match self.rng.usize(..3) {
                0 => b"1kl".to_vec(),
                1 => b"2kkl".to_vec(),
                _ => b"2kkl#c".to_vec(),
            },
            "lpos" => b"ke".to_vec(),
            "lrem" | "lset" => b"kre".to_vec(),
            "ltrim" => b"kww".to_vec(),
            "keys" => b"p".to_vec(),
            "move" => b"kd".to_vec(),
            "mset" | "msetnx" => b"kv".repeat(1 + self.rng.usize(..3)),
            "psetex" => b"ktv".to_vec(),
            "setex" => b"ksv".to_vec(),
            "rename" | "renamenx" | "copy" | "rpoplpush" => b"kk".to_vec(),
            "restore" => {
                if self.rng.usize(..3) == 0 {
                    b"ktz".to_vec()
                } else {
                    b"k0z".to_vec()
                }
            }
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
            "restore" => &[b"R"],
            "scan" => &[b"Mp", b"#c", b"Yy"],
            "hscan" | "sscan" => &[b"Mp", b"#c"],
            "spop" | "srandmember" => &[b"q"],
            "lpop" | "rpop" => &[b"c"],
            "lpos" => &[b"#c", b"Fr", b"Oc"],
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
        let text =
            match kind {
                b'k' => return self.key(),
                b'v' => return self.value(),
                b'h' => return self.field(),
                b'm' => return self.member(),
                b'e' => return self.element(),
                b'n' => return self.number(),
                b'z' => return pick(&mut self.rng, DUMPS).to_vec(),
                b'f' => return self.float(),
                b's' => {
                    let ms = self.ttl_ms();
                    (if ms > 0 { ms / 1000 + 1 } else { ms }).to_string()
                }
                b't' => self.ttl_ms().to_string(),
                b'S' => ((self.now_ms + self.ttl_ms()) / 1000).to_string(),
                b'T' => (self.now_ms + self.ttl_ms()).to_string(),
                b'r' => (self.rng.usize(..30) as i64 - 15).to_string(),
                b'o' => pick(&mut self.rng, &["0", "1", "5", "100", "70000", "-1", "536870912"])
                    .to_string(),
                b'd' => self.rng.usize(..3).to_string(),
                b'c' => pick(&mut self.rng, &["1", "3", "10", "1000", "0", "-1"]).to_string(),
                b'w' => pick(&mut self.rng, &["0", "1", "-1", "-2", "5", "-200", "100", "-100"])
                    .to_owned(),
                b'u' => pick(&mut self.rng, &["0.001", "1e-3", "0.0001", "-1", "abc"]).to_owned(),
                b'i' => pick(&mut self.rng, &["before", "AFTER"]).to_owned(),
                b'l' => pick(&mut self.rng, &["left", "RIGHT"]).to_owned(),
                b'p' => pick(&mut self.rng, &["*", "k*", "k[0-4]", "k?", "[^k]*", "**", "\\k1"])
                    .to_owned(),
                b'q' => pick(&mut self.rng, &["0", "1", "3", "-1", "-4", "200", "-200"]).to_owned(),
                b'y' => pick(&mut self.rng, &["string", "STRING", "hash", "set", "list", "nosuch"])
                    .to_owned(),
                b'0' | b'1' | b'2' => char::from(kind).to_string(),
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
                        b'L' => "LIMIT",
                        b'F' => "RANK",
                        b'O' => "MAXLEN",
                        b'a' => "ASYNC",
                        b'b' => "SYNC",
                        other => panic!("no kind of argument has the letter {}", char::from(other)),
                    };
                    return self.spelling(name);
                }
            };
        text.into_bytes()
    }

    /// A time to live of at most `ttl_ms_max`. Now and then, the time is zero, or one or two
    /// seconds in the past.
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

    /// A field of a hash: mostly one of eight names, less often one of 300 other names. So some
    /// hashes become large.
    fn field(&mut self) -> Vec<u8> {
        match self.rng.usize(..60) {
            0 => self.value(),
            1..=20 => format!("field {}", self.rng.usize(..300)).into_bytes(),
            _ => format!("f{}", self.rng.usize(..8)).into_bytes(),
        }
    }

    /// A member of a set: mostly one of ten integers, less often one of a thousand. So sets of
    /// integers are frequent, and some of these sets become large.
    fn member(&mut self) -> Vec<u8> {
        match self.rng.usize(..40) {
            0 => self.value(),
            1 => format!("member {}", self.rng.usize(..300)).into_bytes(),
            2..=10 => self.rng.usize(..1000).to_string().into_bytes(),
            _ => (self.rng.usize(..10) as i64 - 2).to_string().into_bytes(),
        }
    }

    /// An element of a list: mostly one of eight words, so that searches in lists find elements.
    fn element(&mut self) -> Vec<u8> {
        match self.rng.usize(..8) {
            0 => self.value(),
            1 => self.number(),
            _ => format!("e{}", self.rng.usize(..8)).into_bytes(),
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
