//! Sends the same requests to this server and to stock `redis-server`. The events and their order
//! must match the notifications of the stock server.

use fastrand::Rng;
use slimio_testing::client::{Client as StockClient, Reply};
use slimio_testing::server::Server;

use super::{Ear, hearing};
use crate::common::{Client, Running, until};
use crate::info;

/// Requests whose events the test compares one by one. Each line begins with an empty data set, and
/// `|` separates its requests. In a request, `*text*count` stands for `count` words, `@size` for a
/// word of `size` bytes, and `$string` for a string as `DUMP` serializes it.
///
/// During a `PEXPIRE`, Redis reads the clock twice. If the time to live passed between the two
/// readings, Redis would delete the key at once. So each time to live is longer than the
/// time between the readings.
const LINES: &[&str] = &[
    "SET k 1|SET k 2|SET k 3 EX 100|SET k 4 KEEPTTL|SET k 5 NX|SET k 6 XX|SET k 7 GET|GET k",
    "SET k 1 EXAT 1|GET k|SETEX k 100 v|PSETEX k 100000 v|SETNX k v|SETNX l v|GETSET k w|GETSET m w",
    "MSET k 1 l 2 k 3|MSETNX k 1 m 2|MSETNX m 1 n 2|MGET k l|GETDEL k|GETDEL k|STRLEN l",
    "SET k v|GETEX k|GETEX k EX 100|GETEX k PERSIST|GETEX k PERSIST|GETEX k PXAT 1|GETEX k",
    "INCR n|DECR n|INCRBY n 5|DECRBY n 5|INCRBYFLOAT n 1.5|INCRBYFLOAT f 1|INCR f|SET t x|INCR t",
    "APPEND k a|APPEND k b|APPEND k |SETRANGE k 1 xx|SETRANGE new 2 yy|SETRANGE none 1 |GETRANGE k 0 1",
    "SET k v|EXPIRE k 100|EXPIRE k 50 GT|EXPIRE k 200 GT|PEXPIRE k 100000|PERSIST k|PERSIST k|EXPIRE x 1",
    "SET k v|EXPIRE k -1|SET k v|PEXPIREAT k 1|SET k v|EXPIREAT k 9999999999|EXPIRE k 0|EXISTS k",
    "SET k v|RENAME k l|SET k w|RENAME k l|RENAME l l|RENAMENX l m|SET k v|RENAMENX k m|RENAME x y",
    "SET k v|MOVE k 1|SET k w|MOVE k 1|SELECT 1|SET z v EX 100|MOVE z 0|SELECT 0|SWAPDB 0 1|GET k",
    "SET k v|COPY k l|COPY k l|COPY k l REPLACE|COPY k k DB 1|HSET h f v|COPY h l REPLACE|COPY x y",
    "SET k v|DEL k|DEL k|MSET k 1 l 2|DEL k x l|SET k v|UNLINK k x|SADD s 1|UNLINK s|TOUCH s|TYPE s",
    "HSET h f 1 g 2|HSET h f 1|HMSET h i 3|HSETNX h f 2|HSETNX h j 2|HDEL h x|HDEL h f x|HDEL h g i j",
    "HINCRBY h n 1|HINCRBY h n 2|HINCRBYFLOAT h n 1.5|HINCRBYFLOAT i n 1|HSET h t x|HINCRBY h t 1|HGET h t",
    "SADD s 1 2 3|SADD s 1|SADD s 4 1|SREM s 9|SREM s 1 9|SREM s 2 3 4|SREM s 2|SADD t a|HSET t f v",
    "SADD s 1|SPOP s|SPOP s|SADD s 1 2 3|SPOP s 2|SPOP s 5|SPOP s 0|SADD s 1 2|SPOP s 2|SRANDMEMBER s",
    "SADD s 1 2|SMOVE s t 1|SMOVE s t 9|SADD t 2|SMOVE s t 2|SMOVE s t 2|SMOVE t t 1|SMOVE t u 1",
    "SADD a 1 2|SADD b 2 3|SINTERSTORE c a b|SINTERSTORE c a b|SINTERSTORE c a none|SINTERSTORE c a none",
    "SADD a 1 2|SADD b 2 3|SUNIONSTORE c a b|SDIFFSTORE c a b|SDIFFSTORE a a b|SDIFFSTORE a a a|SUNIONSTORE x y",
    "RPUSH l a b c|LPUSH l x y|LPUSHX m a|RPUSHX l z|LPOP l|LPOP l 2|RPOP l 1|RPOP l 0|LPOP m|RPOP l 9|LPOP l",
    "RPUSH l a b a|LSET l 0 x|LSET l 9 y|LSET m 0 y|LINSERT l BEFORE x w|LINSERT l AFTER none w|LINSERT m AFTER x w|LREM l 0 no",
    "RPUSH l a b a|LREM l 1 a|LREM l 0 b|LREM l -5 a|LREM l 0 a|RPUSH l a b c|LTRIM l 0 -1|LTRIM l 1 1|LTRIM l 5 7|LTRIM l 0 1",
    "RPUSH l a b c|RPOPLPUSH l l|RPOPLPUSH l m|LMOVE l m LEFT RIGHT|LMOVE l m LEFT RIGHT|LMOVE l m LEFT LEFT|LMOVE m m LEFT RIGHT",
    "RPUSH l a b c d e|BLPOP l 0.01|BRPOP m l 0.01|BLMOVE l m LEFT RIGHT 0.01|BRPOPLPUSH m l 0.01|BLMPOP 0.01 2 m l LEFT COUNT 9|BLPOP l 0.01",
    "RPUSH l a b c|LMPOP 2 m l LEFT|LMPOP 2 l m RIGHT COUNT 9|LMPOP 1 l LEFT|RPUSH l a|LMOVE l l LEFT LEFT|LRANGE l 0 -1|LPOS l a",
    "SADD a 1|SET c v|SUNIONSTORE c a|SET c v|SINTERSTORE c none|SADD d 1 EX|SDIFFSTORE e d a none|SDIFFSTORE e none a",
    "SET k v PX 2|DEBUG SLEEP 0.004|GET k|SET k v PX 2|DEBUG SLEEP 0.004|SET k w|GET k",
    "SET k 1 PX 2|DEBUG SLEEP 0.004|INCR k|HSET h f v|PEXPIRE h 20|DEBUG SLEEP 0.022|HDEL h f|HSET h f v",
    "SADD a 1|PEXPIRE a 20|SADD b 1|DEBUG SLEEP 0.022|SINTERSTORE c a b|SUNIONSTORE c a b|EXISTS a b",
    "SET k v PX 2|SET l v|DEBUG SLEEP 0.004|RENAME l k|SET l v PX 2|DEBUG SLEEP 0.004|RENAME l k|COPY k l",
    "SET k v PX 2|DEBUG SLEEP 0.004|DEL k|SET k v PX 2|DEBUG SLEEP 0.004|EXPIRE k 5|PERSIST k|FLUSHALL",
    "SET k v|RESTORE k 0 $string|RESTORE k 0 $string REPLACE|RESTORE l 9000 $string|RESTORE k 1 $string REPLACE ABSTTL|RESTORE m 1 $string ABSTTL",
    "MULTI|SET k 1|INCR k|SELECT 2|SADD s a|SPOP s|SELECT 0|RENAME k l|HSET k f v|HDEL k f|EXEC|GET l",
    "SET k v|MULTI|DEL k|SET k v EX 10|INCR k|MOVE k 1|SET k v|MOVE k 1|FLUSHDB|DISCARD|MULTI|SETRANGE k 1 x|EXEC",
    "DEBUG POPULATE 3|DEBUG POPULATE 4 key|MSET *k*1200|DEL *k*1200|UNLINK *k*1200|EXISTS k1 k2",
    "HSET h *f*1500|HSET h *f*1500|HDEL h *f*1400|HDEL h *f*1500|SADD s *m*1500|SREM s *m*1400|SREM s *m*1500",
    "MSETNX *k*1200|MSETNX *k*1200|SADD s *m*3000|SADD t *m*2000|SDIFFSTORE u s t|SPOP s 1500|SPOP s 9000|SUNIONSTORE s t u",
    "APPEND k @1200000|APPEND k @1200000|SETRANGE k 10 @1200000|SET k @1200000|SETRANGE l 10 @1200000|GETDEL k",
];

/// Requests to draw at random. `%a`, `%b` and `%c` stand for random keys.
///
/// Before a request stores a set, an `EXISTS` deletes the key if the key has expired. Without the
/// `EXISTS`, the events could differ: if the stored set is empty, the command deletes the key. If
/// the key has expired by then, the event of Redis is `del`, and the event of this server is
/// `expired`.
const DRAWN: &[&str] = &[
    "SET %a 5",
    "SET %a v EX 100",
    "SETNX %a 7",
    "MSET %a 1 %b 2 %c 3",
    "MSETNX %a 1 %b 2",
    "GETSET %a 4",
    "GETDEL %a",
    "GETEX %a EX 90",
    "GETEX %a PERSIST",
    "INCR %a",
    "DECRBY %a 3",
    "INCRBYFLOAT %a 0.5",
    "APPEND %a x",
    "SETRANGE %a 3 y",
    "DEL %a %b",
    "UNLINK %a",
    "EXPIRE %a 100",
    "EXPIRE %a -1",
    "PERSIST %a",
    "RENAME %a %b",
    "RENAMENX %a %b",
    "COPY %a %b",
    "COPY %a %b REPLACE DB 1",
    "MOVE %a 1",
    "MOVE %a 0",
    "HSET %a f 1",
    "HSET %a f 1 g 2",
    "HSETNX %a f 1",
    "HDEL %a f",
    "HDEL %a f g",
    "HINCRBY %a f 1",
    "HINCRBYFLOAT %a g 1.5",
    "SADD %a a b",
    "SADD %a a",
    "SREM %a a",
    "SREM %a a b c",
    "SMOVE %a %b a",
    "SPOP %a 9",
    "RPUSH %a a b a",
    "LPUSH %a c",
    "LPUSHX %a d",
    "LPOP %a",
    "RPOP %a 2",
    "LSET %a 0 e",
    "LINSERT %a AFTER a f",
    "LREM %a 0 a",
    "LTRIM %a 1 -1",
    "LMOVE %a %b LEFT RIGHT",
    "RPOPLPUSH %a %b",
    "LMPOP 2 %a %b RIGHT COUNT 2",
    "EXISTS %a|SINTERSTORE %a %b %c",
    "EXISTS %a|SUNIONSTORE %a %b %c",
    "EXISTS %a|SDIFFSTORE %a %b %c",
    "SELECT 0",
    "SELECT 1",
    "SWAPDB 0 1",
    "GET %a",
    "PEXPIRE %a 20|DEBUG SLEEP 0.022",
    "EXISTS %a %b %c",
];

/// Number of draws from [`DRAWN`].
const DRAWN_LEN: usize = 3000;

/// This server and the stock server, with their clients.
struct Pair<'a> {
    server: &'a Running,
    address: slimio_testing::address::Address,
    ours: Client,
    ear: &'a Ear,
    stock: StockClient,
    /// The client that marks the end of a request's notifications.
    marker: StockClient,
    /// The client that receives the notifications of the stock server.
    heard: StockClient,
}

impl Pair<'_> {
    /// Sends a request to both servers. Compares the events, and whether the replies are errors.
    fn run(&mut self, words: &[Vec<u8>], context: &str) {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        self.ours.send_bytes(&crate::common::encode(&words));
        let ours = self.ours.read();
        let theirs = self.stock.call(&words).unwrap();
        let is_error = matches!(theirs, Reply::Error(_));
        let start = String::from_utf8_lossy(&ours[..ours.len().min(80)]).into_owned();
        assert_eq!(start.starts_with('-'), is_error, "{context}: {start:?} and {theirs:?}");
        let expected = self.stock_events();
        let mut told: Vec<String> = self.ear.take().into_iter().map(|heard| heard.text).collect();
        // Redis has no notifications of changes to a whole database.
        told.retain(|text| !text.contains(" - "));
        assert_eq!(told, expected, "{context}");
    }

    /// The events that the stock server has published.
    fn stock_events(&mut self) -> Vec<String> {
        // Another client sends the mark, because the main client may be in a transaction.
        self.marker.expect(&["PUBLISH", "end", "."]).unwrap();
        let mut events = Vec::new();
        loop {
            let Reply::Array(parts) = self.heard.receive().unwrap() else {
                panic!("not a message")
            };
            let text = |index: usize| match &parts[index] {
                Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                other => panic!("{other:?}"),
            };
            let channel = text(2);
            let Some((db, name)) =
                channel.strip_prefix("__keyevent@").and_then(|rest| rest.split_once("__:"))
            else {
                return events;
            };
            events.push(format!("{db} {name} {}", text(3)));
        }
    }
}

/// Runs a check with a [`Pair`]. Does nothing if no stock server is installed.
fn pairing(check: impl Fn(&mut Pair<'_>)) {
    let Some((_folder, config)) = slimio_testing::stock(&["--enable-debug-command", "yes"]) else {
        return;
    };
    let stock_server = Server::start(&config).unwrap();
    let connect = || StockClient::connect(stock_server.address()).unwrap();
    hearing("", |server, ear| {
        let (mut ours, mut stock) = (server.connect(), connect());
        assert_eq!(ours.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]), "+OK\r\n");
        stock.expect(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]).unwrap();
        stock.expect(&["CONFIG", "SET", "notify-keyspace-events", "KEAn"]).unwrap();
        stock.expect(&["FLUSHALL"]).unwrap();
        let (marker, heard, address) = (connect(), connect(), stock_server.address().clone());
        let mut pair = Pair { server, address, ours, ear, stock, marker, heard };
        pair.heard.expect(&["PSUBSCRIBE", "__keyevent@*", "end"]).unwrap();
        pair.heard.receive().unwrap();
        check(&mut pair);
    });
}

/// The words of a request.
fn words(request: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    for word in request.split(' ') {
        let many = word.strip_prefix('*').and_then(|word| word.split_once('*'));
        if let Some((text, count)) = many {
            let count: usize = count.parse().unwrap();
            words.extend((0..count).map(|number| format!("{text}{number}").into_bytes()));
        } else if let Some(size) = word.strip_prefix('@') {
            words.push(vec![b'x'; size.parse().unwrap()]);
        } else {
            words.push(word.as_bytes().to_vec());
        }
    }
    words
}

#[test]
fn each_command_has_the_events_of_redis() {
    pairing(|pair| {
        pair.run(&words("SET dumped v"), "SET dumped");
        let Reply::Bulk(dump) = pair.stock.expect(&["DUMP", "dumped"]).unwrap() else {
            panic!("`DUMP` did not reply with a string")
        };
        for line in LINES {
            for reset in ["FLUSHALL", "SELECT 0"] {
                pair.run(&words(reset), line);
            }
            for request in line.split('|') {
                let mut words = words(request);
                if let Some(index) = request.split(' ').position(|word| word == "$string") {
                    words[index].clone_from(&dump);
                }
                pair.run(&words, &format!("{request} in {line}"));
            }
        }
    });
}

#[test]
fn drawn_requests_have_the_events_of_redis() {
    let seed = slimio_testing::random::seed();
    pairing(|pair| {
        let mut rng = Rng::with_seed(seed);
        let mut queued = 0;
        for index in 0..DRAWN_LEN {
            if queued == 0 && rng.u8(..) < 12 {
                queued = rng.usize(1..8);
                pair.run(&words("MULTI"), "MULTI");
            }
            let drawn = DRAWN[rng.usize(..DRAWN.len())];
            let keys = [(); 3].map(|()| format!("k{}", rng.u8(..5)));
            let [a, b, c] = &keys;
            let drawn = drawn.replace("%a", a).replace("%b", b).replace("%c", c);
            for request in drawn.split('|') {
                pair.run(&words(request), &format!("seed {seed}, request {index}: {request}"));
            }
            if queued > 0 {
                queued -= 1;
                if queued == 0 {
                    pair.run(&words("EXEC"), &format!("seed {seed}, EXEC {index}"));
                }
            }
        }
    });
}

/// Requests of clients that wait for lists, and the requests that then create these lists,
/// separated by `|`. The event of the request that fills a list is reported first, then the events
/// of each client that is served.
const WAITING: &[(&[&str], &str)] = &[
    (&["BLPOP k 0"], "RPUSH k a"),
    (&["BLPOP k 0", "BRPOP k 0"], "RPUSH k a b c"),
    (&["BLMOVE k l LEFT RIGHT 0", "BRPOPLPUSH l m 0", "BLMPOP 0 1 m LEFT COUNT 2"], "LPUSH k a"),
    (&["BLMOVE k k LEFT RIGHT 0", "BLPOP k 0"], "RPUSH k a"),
    (&["BLPOP k 0"], "RENAME list k"),
    (&["BLPOP k 0"], "COPY list k"),
    (&["BLPOP k l 0", "BLPOP k l 0"], "MULTI|RPUSH l a|SET k s|RPUSH l b|DEL k|RPUSH k c|EXEC"),
];

#[test]
fn who_has_waited_has_the_events_of_redis() {
    pairing(|pair| {
        for (waiting, requests) in WAITING {
            pair.run(&words("FLUSHALL"), requests);
            pair.run(&words("RPUSH list v"), requests);
            let mut clients = Vec::new();
            for (index, line) in waiting.iter().enumerate() {
                let mut ours = pair.server.connect();
                let mut theirs = StockClient::connect(&pair.address).unwrap();
                let request = words(line);
                let request: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
                let encoded = crate::common::encode(&request);
                ours.send_bytes(&encoded);
                theirs.send(&encoded).unwrap();
                let count = (index + 1).to_string();
                until("a client is not blocked", || {
                    info(&mut pair.ours, "blocked_clients") == count
                        && pair.stock.info("clients").unwrap()["blocked_clients"] == count
                });
                clients.push((ours, theirs));
            }
            for request in requests.split('|') {
                pair.run(&words(request), &format!("{request} for {waiting:?}"));
            }
            for (ours, theirs) in &mut clients {
                ours.read();
                theirs.receive().unwrap();
            }
        }
    });
}
