//! Sends random commands to a keyspace and to stock `redis-server`. The replies must be equal, byte
//! for byte. Exceptions are random choices, unordered replies, times, and the bytes of dumps.

mod common;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::Driver;
use fastrand::Rng;
use slimio_keyspace::DbIndex;
use slimio_resp::{Protocol, parse_i64};
use slimio_testing::random::{Generator, seed};
use slimio_testing::raw::RawConnection;
use slimio_testing::server::Server;
use slimio_testing::stock;
use tempfile::TempDir;

/// For how long random commands are sent.
const RUN_TIME: Duration = Duration::from_secs(8);

/// The largest allowed difference, in milliseconds, between a time in a reply of ours and the same
/// time in the stock server's reply. The two sides read the clock one after the other.
const TIME_TOLERANCE_MS: i64 = 5_000;

/// No command runs within this many milliseconds of the expiry of a key.
const CLOCK_TOLERANCE_MS: i64 = 40;

/// A stock server that the test starts.
struct Stock {
    server: Server,
    _folder: TempDir,
}

impl Stock {
    /// Starts a stock server. Returns `None` if no stock server is installed.
    fn start() -> Option<Self> {
        let (folder, config) = stock(&["--enable-debug-command", "yes"])?;
        let server = Server::start(&config).expect("the server starts");
        Some(Self { server, _folder: folder })
    }

    fn connect(&self, protocol: Protocol) -> RawConnection {
        let mut connection =
            RawConnection::connect(self.server.address()).expect("the server listens");
        if protocol == Protocol::Resp3 {
            connection.run(&["HELLO", "3"]);
        }
        connection
    }
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as i64
}

/// A keyspace, and the stock server with a connection for each protocol.
struct Pair {
    ours: Driver,
    stock: [RawConnection; 2],
}

impl Pair {
    fn run<T: AsRef<[u8]>>(&mut self, resp3: bool, args: &[T]) -> (Vec<u8>, Vec<u8>) {
        // The keyspace and the stock server read the clock one after the other. No key may expire
        // between the two reads.
        while self.expires_soon(now_ms()) {
            std::thread::yield_now();
        }
        self.ours.now_ms = now_ms();
        self.ours.protocol = if resp3 { Protocol::Resp3 } else { Protocol::Resp2 };
        let ours = self.ours.run(args);
        (ours, self.stock[usize::from(resp3)].run(args))
    }

    fn expires_soon(&self, now_ms: i64) -> bool {
        (0..3).any(|db| {
            let mut entries = self.ours.keyspace.entries(DbIndex(db));
            entries.any(|entry| {
                let left_ms = entry.expires_at_ms.map(|at| at.saturating_sub(now_ms));
                left_ms.is_some_and(|left_ms| left_ms.abs() < CLOCK_TOLERANCE_MS)
            })
        })
    }

    fn select(&mut self, db: u16) {
        self.ours.db = DbIndex(db);
        for connection in &mut self.stock {
            assert_eq!(connection.run(&["SELECT", &db.to_string()]), b"+OK\r\n");
        }
    }

    /// Checks that both sides have the same keys with the same values and expiry. Expired keys do
    /// not count.
    fn assert_same_contents(&mut self) {
        for db in 0..3 {
            self.select(db);
            let (ours, stock) = self.run(false, &["KEYS", "*"]);
            assert_eq!(sorted_strings(&ours), sorted_strings(&stock), "keys of db {db}");
            for key in sorted_strings(&ours) {
                let (ours, stock) = self.run(true, &[b"TYPE", &key[..]]);
                assert_eq!(ours, stock, "{key:?} in db {db}");
                if ours == b"+set\r\n" {
                    let (ours, stock) = self.run(true, &[b"SMEMBERS", &key[..]]);
                    assert!(sorted_strings(&ours) == sorted_strings(&stock), "{key:?} in db {db}");
                } else if ours == b"+list\r\n" {
                    let (ours, stock) = self.run(true, &[b"LRANGE", &key[..], b"0", b"-1"]);
                    assert!(ours == stock, "{key:?} in db {db}");
                } else {
                    let read: &[u8] = if ours == b"+hash\r\n" { b"HGETALL" } else { b"GET" };
                    let (ours, stock) = self.run(true, &[read, &key[..]]);
                    assert!(sorted_pairs(&ours) == sorted_pairs(&stock), "{key:?} in db {db}");
                }
                let (ours, stock) = self.run(true, &[b"PEXPIRETIME", &key[..]]);
                assert_same_time(&ours, &stock, 1, &key);
            }
        }
    }
}

/// The strings of an array reply, sorted.
fn sorted_strings(reply: &[u8]) -> Vec<Vec<u8>> {
    let mut strings = strings(reply);
    strings.sort();
    strings
}

/// The strings of an array reply, including those of nested arrays.
fn strings(reply: &[u8]) -> Vec<Vec<u8>> {
    let mut strings = Vec::new();
    let mut rest = &reply[line_end(reply)..];
    while !rest.is_empty() {
        let head = line_end(rest);
        if rest[0] != b'$' {
            rest = &rest[head..];
            continue;
        }
        let size = parse_i64(&rest[1..head - 2]).expect("a size") as usize;
        strings.push(rest[head..head + size].to_vec());
        rest = &rest[head + size + 2..];
    }
    strings
}

/// The pairs of a reply that is a map or an array of pairs. Each pair is joined into one string,
/// and these strings are sorted. A reply of another kind is returned whole.
fn sorted_pairs(reply: &[u8]) -> Vec<Vec<u8>> {
    if !matches!(reply[0], b'*' | b'%') {
        return vec![reply.to_vec()];
    }
    let strings = strings(reply);
    let mut pairs: Vec<_> = strings.chunks(2).map(|pair| pair.join(&b"\r\n"[..])).collect();
    pairs.sort();
    pairs
}

fn line_end(reply: &[u8]) -> usize {
    reply.iter().position(|&byte| byte == b'\n').expect("a line") + 1
}

fn assert_same_time(ours: &[u8], stock: &[u8], unit_ms: i64, what: &[u8]) {
    let time = |reply: &[u8]| {
        let digits = reply.strip_prefix(b":")?.strip_suffix(b"\r\n")?;
        parse_i64(digits).filter(|&time| time >= 0)
    };
    match (time(ours), time(stock)) {
        (Some(a), Some(b)) => {
            let apart_ms = (a - b).saturating_abs().saturating_mul(unit_ms);
            assert!(apart_ms <= TIME_TOLERANCE_MS, "{what:?}: {a} and {b}");
        }
        _ => assert_eq!(lossy(ours), lossy(stock), "{what:?}"),
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]).into_owned()
}

#[test]
fn replies_are_those_of_redis() {
    let Some(server) = Stock::start() else { return };
    let seed = seed();
    let mut generator = Generator { now_ms: now_ms(), ..Generator::new(seed, 1 << 50) };
    let stock = [server.connect(Protocol::Resp2), server.connect(Protocol::Resp3)];
    let mut pair = Pair { ours: Driver::new(seed), stock };
    pair.stock[0].run(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);

    let start = Instant::now();
    let mut count = 0;
    while start.elapsed() < RUN_TIME {
        // The absolute times in commands are drawn around the present time, or around the time one
        // hour later. Times of the second kind are in the future for both sides, although the sides
        // run the command one after the other.
        generator.now_ms = now_ms() + 3_600_000 * i64::from(generator.rng.usize(..2) == 0);
        let words = generator.command();
        let resp3 = generator.rng.usize(..2) == 0;
        if overflows(&words) {
            continue;
        }
        compare(&mut pair, resp3, &words);
        pair.ours.check();
        if generator.rng.usize(..50) == 0 {
            let db = generator.rng.usize(..3) as u16;
            pair.select(db);
        }
        if generator.rng.usize(..2000) == 0 {
            pair.assert_same_contents();
        }
        count += 1;
    }
    pair.assert_same_contents();
    eprintln!("{count} commands compared");
    assert!(count > 1000, "too few commands compared: {count}");
}

/// Whether this is a `RESTORE` whose time to live overflows in the stock server. The stock server
/// then treats the key as expired. In this keyspace, the key expires at the last possible time.
fn overflows(words: &[Vec<u8>]) -> bool {
    let ttl_ms = words.get(2).and_then(|word| str::from_utf8(word).ok()?.parse().ok());
    words[0].eq_ignore_ascii_case(b"restore") && ttl_ms.is_some_and(|ttl_ms: i64| ttl_ms > 1 << 60)
}

/// Both sides round sums of numbers with many digits in the same way.
#[test]
fn float_sums_are_those_of_redis() {
    let Some(server) = Stock::start() else { return };
    let seed = seed();
    let mut rng = Rng::with_seed(seed);
    let mut stock = server.connect(Protocol::Resp2);
    let mut ours = Driver::new(seed);
    for _ in 0..10_000 {
        let number = float(&mut rng);
        let words =
            if rng.usize(..3) == 0 { ["SET", "f", &number] } else { ["INCRBYFLOAT", "f", &number] };
        assert_eq!(lossy(&ours.run(&words)), lossy(&stock.run(&words)), "{words:?}");
        let sum = ["GET", "f"];
        assert_eq!(lossy(&ours.run(&sum)), lossy(&stock.run(&sum)), "{words:?}");
    }
}

/// A number with a random count of digits. It may have a point or an exponent.
fn float(rng: &mut Rng) -> String {
    let mut number = if rng.usize(..3) == 0 { "-".to_owned() } else { String::new() };
    let hexadecimal = rng.usize(..10) == 0;
    let digits = if hexadecimal { "0123456789abcDEF" } else { "0123456789" };
    if hexadecimal {
        number.push_str("0x");
    }
    let count_max = if rng.usize(..10) == 0 { 60 } else { 22 };
    let count = 1 + rng.usize(..count_max);
    let point = rng.usize(..2 * count);
    for index in 0..count {
        if index == point {
            number.push('.');
        }
        let digit = rng.usize(..digits.len());
        number.push_str(&digits[digit..=digit]);
    }
    if rng.usize(..4) == 0 {
        let reach = if rng.usize(..20) == 0 { 10_000 } else { 40 };
        let exponent = rng.usize(..reach) as i64 - reach as i64 / 2;
        number.push(if hexadecimal { 'p' } else { 'e' });
        number.push_str(&exponent.to_string());
    }
    number
}

/// Runs a command on both sides and compares the deterministic part of the replies.
fn compare(pair: &mut Pair, resp3: bool, words: &[Vec<u8>]) {
    let name = words[0].to_ascii_lowercase();
    let shown: Vec<String> = words.iter().map(|word| lossy(word)).collect();
    match &name[..] {
        b"scan" | b"hscan" | b"sscan" => compare_scan(pair, resp3, words),
        b"spop" => compare_pop(pair, resp3, words),
        b"srandmember" => compare_random_members(pair, resp3, words),
        b"smembers" | b"sinter" | b"sunion" | b"sdiff" => {
            let (ours, stock) = pair.run(resp3, words);
            assert_eq!(ours[..line_end(&ours)], stock[..line_end(&stock)], "{shown:?}");
            if !ours.starts_with(b"-") {
                assert!(sorted_strings(&ours) == sorted_strings(&stock), "{shown:?}");
            }
        }
        b"hgetall" | b"hkeys" | b"hvals" => {
            let (ours, stock) = pair.run(resp3, words);
            assert_eq!(ours[..line_end(&ours)], stock[..line_end(&stock)], "{shown:?}");
            if name == b"hgetall" {
                assert!(sorted_pairs(&ours) == sorted_pairs(&stock), "{shown:?}");
            } else if ours.starts_with(b"*") {
                assert!(sorted_strings(&ours) == sorted_strings(&stock), "{shown:?}");
            }
        }
        b"hrandfield" => compare_random_fields(pair, resp3, words),
        b"dbsize" | b"randomkey" => {
            // Expired keys would count until a command finds them. So the scan deletes them first.
            pair.run(resp3, &["SCAN", "0", "COUNT", "10000"]);
            let (ours, stock) = pair.run(resp3, words);
            if name == b"randomkey" && ours.starts_with(b"$") && !ours.starts_with(b"$-") {
                assert!(stock.starts_with(b"$") && !stock.starts_with(b"$-"), "{shown:?}");
                let key = &ours[line_end(&ours)..ours.len() - 2];
                let (_, there) = pair.run(resp3, &[b"EXISTS", key]);
                assert_eq!(there, b":1\r\n", "{shown:?}");
            } else {
                assert_eq!(lossy(&ours), lossy(&stock), "{shown:?}");
            }
        }
        b"keys" => {
            let (ours, stock) = pair.run(resp3, words);
            if ours.starts_with(b"*") {
                assert_eq!(sorted_strings(&ours), sorted_strings(&stock), "{shown:?}");
            } else {
                assert_eq!(lossy(&ours), lossy(&stock), "{shown:?}");
            }
        }
        b"dump" => {
            // The stock server may pack or compress the same value in another way. So the bytes are
            // not compared. A black-box test checks that the stock server accepts our dumps.
            let (ours, stock) = pair.run(resp3, words);
            let is_dump = |reply: &[u8]| reply.starts_with(b"$") && !reply.starts_with(b"$-");
            if !is_dump(&ours) || !is_dump(&stock) {
                assert_eq!(lossy(&ours), lossy(&stock), "{shown:?}");
            }
        }
        b"ttl" | b"pttl" | b"expiretime" | b"pexpiretime" => {
            let (ours, stock) = pair.run(resp3, words);
            let unit_ms = if name[0] == b'p' { 1 } else { 1000 };
            assert_same_time(&ours, &stock, unit_ms, shown.join(" ").as_bytes());
        }
        _ => {
            let (ours, stock) = pair.run(resp3, words);
            assert_eq!(lossy(&ours), lossy(&stock), "{shown:?}");
            assert_eq!(ours, stock, "{shown:?}");
        }
    }
}

/// With `SPOP`, both sides would remove the same number of members, but not the same members. So
/// this keyspace chooses: the stock server is told to remove the same members, and must have all of
/// them.
fn compare_pop(pair: &mut Pair, resp3: bool, words: &[Vec<u8>]) {
    let shown = lossy(&words.join(&b' '));
    let key = words.get(1).cloned().unwrap_or_default();
    let (_, before) = pair.run(true, &[b"TYPE".to_vec(), key.clone()]);
    let is_popped = before == b"+set\r\n" && (2..=3).contains(&words.len());
    let count = words.get(2).map_or(Some(1), |word| parse_i64(word)).unwrap_or(-1);
    if !is_popped || count <= 0 {
        let (ours, stock) = pair.run(resp3, words);
        assert_eq!(lossy(&ours), lossy(&stock), "{shown}");
        return;
    }
    let len: i64 = {
        let (_, stock) = pair.run(resp3, &[b"SCARD".to_vec(), key.clone()]);
        parse_i64(&stock[1..line_end(&stock) - 2]).expect("a count")
    };
    pair.ours.protocol = if resp3 { Protocol::Resp3 } else { Protocol::Resp2 };
    let ours = pair.ours.run(words);
    let members = if words.len() == 2 {
        vec![ours[line_end(&ours)..ours.len() - 2].to_vec()]
    } else {
        assert_eq!(ours[0], if resp3 { b'~' } else { b'*' }, "{shown}");
        strings(&ours)
    };
    assert_eq!(members.len() as i64, count.min(len), "{shown}");
    let removal = [vec![b"SREM".to_vec(), key], members].concat();
    let removed = pair.stock[usize::from(resp3)].run(&removal);
    assert_eq!(lossy(&removed), format!(":{}\r\n", count.min(len)), "{shown}");
}

/// Both sides reply with the same number of members, but the members may differ. The members from
/// this keyspace must be in the set.
fn compare_random_members(pair: &mut Pair, resp3: bool, words: &[Vec<u8>]) {
    let (ours, stock) = pair.run(resp3, words);
    let shown = lossy(&words.join(&b' '));
    assert_eq!(ours[0], stock[0], "{shown}");
    if ours.starts_with(b"-") || ours.starts_with(b"$-") || ours.starts_with(b"_") {
        assert_eq!(lossy(&ours), lossy(&stock), "{shown}");
        return;
    }
    let found = if ours.starts_with(b"$") {
        vec![ours[line_end(&ours)..ours.len() - 2].to_vec()]
    } else {
        assert_eq!(ours[..line_end(&ours)], stock[..line_end(&stock)], "{shown}");
        strings(&ours)
    };
    let (_, members) = pair.run(true, &[b"SMEMBERS".to_vec(), words[1].clone()]);
    let members = sorted_strings(&members);
    assert!(found.iter().all(|member| members.binary_search(member).is_ok()), "{shown}");
    let may_repeat = words.get(2).is_some_and(|word| word.starts_with(b"-"));
    let mut distinct = found.clone();
    distinct.sort();
    distinct.dedup();
    assert!(may_repeat || distinct.len() == found.len(), "{shown}");
}

/// Both sides reply with the same number of fields, but the fields may differ. The fields from this
/// keyspace must be in the hash, with their values.
fn compare_random_fields(pair: &mut Pair, resp3: bool, words: &[Vec<u8>]) {
    let (ours, stock) = pair.run(resp3, words);
    let shown = lossy(&words.join(&b' '));
    assert_eq!(ours[0], stock[0], "{shown}");
    let key = words.get(1).cloned().unwrap_or_default();
    let (reply, _) = pair.run(true, &[b"HGETALL".to_vec(), key]);
    let present = if reply.starts_with(b"%") { strings(&reply) } else { Vec::new() };
    let present: Vec<_> = present.chunks(2).collect();
    let with_values = words.len() > 3;
    if !ours.starts_with(b"*") || words.len() < 3 {
        if ours.starts_with(b"$") && !ours.starts_with(b"$-") {
            let field = &ours[line_end(&ours)..ours.len() - 2];
            assert!(present.iter().any(|pair| pair[0] == field), "{shown}");
        } else {
            assert_eq!(lossy(&ours), lossy(&stock), "{shown}");
        }
        return;
    }
    assert_eq!(ours[..line_end(&ours)], stock[..line_end(&stock)], "{shown}");
    let mut found = strings(&ours);
    if with_values {
        assert!(
            found.chunks(2).all(|pair| present.iter().any(|other| **other == *pair)),
            "{shown}"
        );
        found = found.chunks(2).map(|pair| pair[0].clone()).collect();
    }
    assert!(found.iter().all(|field| present.iter().any(|pair| pair[0] == *field)), "{shown}");
    if !words[2].starts_with(b"-") {
        let count = found.len();
        found.sort();
        found.dedup();
        assert_eq!(found.len(), count, "{shown}: a field twice");
    }
}

/// Follows the cursor of each side to the end. All replies of our side together must have the same
/// keys, members, or fields with values as all replies of the stock server.
fn compare_scan(pair: &mut Pair, resp3: bool, words: &[Vec<u8>]) {
    let (ours, stock) = pair.run(resp3, words);
    if !ours.starts_with(b"*") || !stock.starts_with(b"*") {
        assert_eq!(lossy(&ours), lossy(&stock), "{}", lossy(&words.join(&b' ')));
        return;
    }
    let cursor_index = if words[0].eq_ignore_ascii_case(b"scan") { 1 } else { 2 };
    let strings_each = if words[0].eq_ignore_ascii_case(b"hscan") { 2 } else { 1 };
    if words[cursor_index] != b"0" {
        // A cursor other than 0 is valid only on the side that returned it.
        return;
    }
    let mut found = [Vec::new(), Vec::new()];
    for (index, first) in [ours, stock].into_iter().enumerate() {
        let mut reply = first;
        loop {
            // The reply is `*2`, then the cursor as a string, then an array of keys.
            let rest = &reply[line_end(&reply)..];
            let rest = &rest[line_end(rest)..];
            let cursor = rest[..line_end(rest) - 2].to_vec();
            let strings = strings(&rest[line_end(rest)..]);
            found[index].extend(strings.chunks(strings_each).map(|pair| pair.join(&b"\r\n"[..])));
            if cursor == b"0" {
                break;
            }
            let mut words = words.to_vec();
            words[cursor_index] = cursor;
            reply = if index == 0 {
                pair.ours.run(&words)
            } else {
                pair.stock[usize::from(resp3)].run(&words)
            };
        }
        found[index].sort();
    }
    found[1].dedup();
    assert_eq!(found[0], found[1], "{}", lossy(&words.join(&b' ')));
}
