//! The memory limit, as clients see it.

use std::time::Instant;

use crate::common::{BACK_ENDS, Client, start, until};
use crate::{info, serving};

const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";

fn fill(client: &mut Client, count: usize, options: &[&str]) -> usize {
    let value = "x".repeat(1000);
    (0..count)
        .filter(|index| {
            let key = format!("key:{index}");
            client.call(&[&["SET", &key, &value], options].concat()) == "+OK\r\n"
        })
        .count()
}

/// Bytes in use that count towards the limit.
fn counted(client: &mut Client) -> u64 {
    let [used, uncounted] = ["used_memory", "mem_not_counted_for_evict"]
        .map(|field| info(client, field).parse::<u64>().unwrap());
    used - uncounted
}

/// Bytes of requests, of replies, and of whatever else clients need.
fn clients(client: &mut Client) -> u64 {
    info(client, "mem_clients_normal").parse().unwrap()
}

#[test]
fn the_buffers_of_the_log_are_in_use_and_no_part_of_the_limit() {
    serving("maxmemory 1mb\nlog-buffers 8\nlog-buffer-size 256kb", |server| {
        let mut client = server.connect();
        assert_eq!(client.call(&["SET", "a", "b"]), "+OK\r\n");
        let uncounted: u64 = info(&mut client, "mem_not_counted_for_evict").parse().unwrap();
        // A buffer takes memory only once it has been used. Some of the buffers are still unused.
        assert!([1, 2, 3].contains(&(uncounted / (256 * 1024))), "{uncounted}");
        let overhead: u64 = info(&mut client, "used_memory_overhead").parse().unwrap();
        assert!(overhead >= uncounted, "{overhead}");
        assert!(counted(&mut client) < 1 << 20);
        assert_eq!(client.call(&["SET", "a", "c"]), "+OK\r\n");
    });
}

#[test]
fn without_eviction_what_needs_memory_is_refused() {
    serving("maxmemory 1mb", |server| {
        let mut client = server.connect();
        let set = fill(&mut client, 2_000, &[]);
        assert!((500..1_500).contains(&set), "{set} keys fit into 1 MB");
        // The limit is lowered, because a short request might just fit below the old limit.
        assert_eq!(client.call(&["CONFIG", "SET", "maxmemory", "900kb"]), "+OK\r\n");
        assert_eq!(client.call(&["SET", "a", "b"]), OOM);
        assert_eq!(client.call(&["APPEND", "key:1", "b"]), OOM);
        assert_eq!(client.call(&["STRLEN", "key:1"]), ":1000\r\n");
        assert_eq!(client.call(&["EXPIRE", "key:1", "1000"]), ":1\r\n");
        // In a transaction, even a command that needs no memory is refused. Commands that were
        // queued before the limit was reached are not run.
        assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
        assert_eq!(client.call(&["GET", "a"]), OOM);
        assert!(client.call(&["EXEC"]).starts_with("-EXECABORT"));
        assert_eq!(client.call(&["CONFIG", "SET", "maxmemory", "0"]), "+OK\r\n");
        assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
        assert_eq!(client.call(&["SET", "a", "b"]), "+QUEUED\r\n");
        let mut other = server.connect();
        assert_eq!(other.call(&["CONFIG", "SET", "maxmemory", "900kb"]), "+OK\r\n");
        let abort = format!("-EXECABORT Transaction discarded because of: {}", &OOM[1..]);
        assert_eq!(client.call(&["EXEC"]), abort);
        assert_eq!(client.call(&["DEL", "key:1", "key:2", "key:3", "key:4"]), ":4\r\n");
        assert_eq!(client.call(&["CONFIG", "SET", "maxmemory", "1100kb"]), "+OK\r\n");
        assert_eq!(client.call(&["SET", "a", "b"]), "+OK\r\n");
        assert_eq!(info(&mut client, "evicted_keys"), "0");
        assert_eq!(info(&mut client, "errorstat_OOM"), format!("count={}", 2_000 - set + 3));
    });
}

#[test]
fn keys_go_when_memory_is_short_and_stay_away_after_a_restart() {
    for back_end in BACK_ENDS {
        for policy in ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-ttl"] {
            let dir = tempfile::tempdir().unwrap();
            let volume = dir.path().join("volume");
            let directives = format!("maxmemory 1mb\nmaxmemory-policy {policy}");
            let Some(server) = start(back_end, &volume, &directives) else { continue };
            let mut client = server.connect();
            let mut watcher = server.connect();
            assert_eq!(client.call(&["SET", "stays", "x"]), "+OK\r\n");
            assert_eq!(watcher.call(&["SET", "key:0", "x", "EX", "900"]), "+OK\r\n");
            assert_eq!(watcher.call(&["WATCH", "key:0"]), "+OK\r\n");
            assert_eq!(fill(&mut client, 5_000, &["EX", "1000"]), 5_000);
            let used = counted(&mut client);
            // Eviction comes before each command, so the last command may exceed the limit.
            assert!(used <= (1 << 20) + 4096, "{used} bytes in use");
            let evicted: u64 = info(&mut client, "evicted_keys").parse().unwrap();
            assert!(evicted > 3_000, "{evicted} evicted");
            assert_eq!(watcher.call(&["MULTI"]), "+OK\r\n");
            assert_eq!(watcher.call(&["PING"]), "+QUEUED\r\n");
            assert_eq!(watcher.call(&["EXEC"]), "*-1\r\n");
            if policy == "volatile-ttl" {
                assert_eq!(client.call(&["GET", "stays"]), "$1\r\nx\r\n");
            }
            // The limit is lifted, so that nothing is evicted from here on. Otherwise the count
            // would be wrong, because even the shutdown request could evict a key.
            assert_eq!(client.call(&["CONFIG", "SET", "maxmemory", "0"]), "+OK\r\n");
            let count = client.call(&["DBSIZE"]);
            server.stop();
            let server = start(back_end, &volume, "appendfsync everysec").unwrap();
            let mut client = server.connect();
            assert_eq!(client.call(&["DBSIZE"]), count, "{policy}");
            server.stop();
        }
    }
}

/// The memory of a disconnected client counts as free at once, not only when memory is next
/// measured.
#[test]
fn clients_that_have_left_leave_their_room_to_keys() {
    const KEYS: usize = 50;
    serving("maxmemory 11mb\nmaxmemory-policy allkeys-lru", |server| {
        let mut client = server.connect();
        let value = "x".repeat(100_000);
        let fill = |client: &mut Client| {
            for key in 0..KEYS {
                assert_eq!(client.call(&["SET", &format!("key:{key}"), &value]), "+OK\r\n");
            }
            client.call(&["DBSIZE"])[1..].trim().parse::<usize>().unwrap()
        };
        assert_eq!(fill(&mut client), KEYS);
        // A part of a request. Each argument is below 32 KiB, so the server receives it into the
        // client's ordinary buffer.
        let argument = [&b"$25000\r\n"[..], &b"x".repeat(25_000), b"\r\n"].concat();
        let half = [b"*40\r\n$4\r\nMSET\r\n".to_vec(), argument.repeat(10)].concat();
        let mut others: Vec<Client> = (0..30).map(|_| server.connect()).collect();
        assert!(others.iter_mut().all(|other| other.try_send_bytes(&half)));
        until("the parts of requests are not counted", || clients(&mut client) > 7 << 20);
        assert!(fill(&mut client) < KEYS - 10, "parts of requests must leave less room for keys");
        drop(others);
        until("the others stay connected", || client.call(&["CLIENT", "LIST"]).lines().count() < 4);
        assert_eq!(fill(&mut client), KEYS);
    });
}

#[test]
fn what_transactions_queue_and_watch_is_counted() {
    serving("appendfsync everysec", |server| {
        let mut client = server.connect();
        let clients =
            |client: &mut Client| -> usize { info(client, "mem_clients_normal").parse().unwrap() };
        let before = clients(&mut client);
        let mut other = server.connect();
        let keys: Vec<String> = (0..100).map(|key| format!("{key:02000}")).collect();
        let watch: Vec<&str> =
            ["WATCH"].into_iter().chain(keys.iter().map(|key| &key[..])).collect();
        assert_eq!(other.call(&watch), "+OK\r\n");
        let watching = clients(&mut client) - before;
        assert!((400_000..500_000).contains(&watching), "{watching} bytes");
        assert_eq!(other.call(&["UNWATCH"]), "+OK\r\n");
        assert_eq!(other.call(&["MULTI"]), "+OK\r\n");
        let without = clients(&mut client);
        for _ in 0..1000 {
            assert_eq!(other.call(&["PING"]), "+QUEUED\r\n");
        }
        let queued = clients(&mut client) - without;
        assert!((90_000..250_000).contains(&queued), "{queued} bytes");
        assert_eq!(other.call(&["DISCARD"]), "+OK\r\n");
        let after = clients(&mut client);
        assert!(after < without + 10_000, "{after} bytes after DISCARD, {without} after MULTI");
    });
}

/// Queued commands have not run yet, so they count towards the limit on the size of a request.
#[test]
fn what_a_transaction_queues_is_limited_as_a_request_is() {
    serving("client-query-buffer-limit 1mb", |server| {
        let mut client = server.connect();
        assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
        let value = "x".repeat(10_000);
        let queued = (0..200)
            .take_while(|_| {
                let mut request = Vec::new();
                for part in ["*3", "$3", "SET", "$1", "k", "$10000", &value] {
                    request.extend_from_slice(part.as_bytes());
                    request.extend_from_slice(b"\r\n");
                }
                client.try_send_bytes(&request)
                    && client.try_read().is_some_and(|reply| reply == b"+QUEUED\r\n")
            })
            .count();
        assert!((100..110).contains(&queued), "{queued} commands were queued");
    });
}

/// A lowered limit takes effect even if no command needs memory.
#[test]
fn a_lowered_limit_is_reached_while_nobody_asks() {
    serving("appendfsync everysec", |server| {
        let mut client = server.connect();
        fill(&mut client, 3_000, &[]);
        let limit = ["CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "maxmemory", "1mb"];
        assert_eq!(client.call(&limit), "+OK\r\n");
        // Each INFO also evicts, but for at most half a millisecond.
        let is_reached = (0..1_000).any(|_| counted(&mut client) <= 1 << 20);
        assert!(is_reached, "{} bytes in use", counted(&mut client));
        let keys: u64 = client.call(&["DBSIZE"])[1..].trim().parse().unwrap();
        assert!((100..1_000).contains(&keys), "{keys} keys are left in 1 MB");
    });
}

#[test]
fn keys_are_described() {
    serving("enable-debug-command yes", |server| {
        let mut client = server.connect();
        let began = Instant::now();
        assert_eq!(client.call(&["SET", "key", "value"]), "+OK\r\n");
        let idle_s = client.call(&["OBJECT", "IDLETIME", "key"])[1..].trim().parse().unwrap();
        // A clock with whole seconds measures the idle time, which may be a second too long.
        assert!((0..=began.elapsed().as_secs() + 1).contains(&idle_s), "{idle_s}");
        let mut is = |args: &[&str], reply: &str| assert_eq!(client.call(args), reply, "{args:?}");
        is(&["OBJECT", "ENCODING", "key"], "$6\r\nembstr\r\n");
        is(&["OBJECT", "REFCOUNT", "key"], ":1\r\n");
        is(&["SET", "small", "9999"], "+OK\r\n");
        is(&["OBJECT", "REFCOUNT", "small"], ":2147483647\r\n");
        is(&["INCR", "small"], ":10000\r\n");
        is(&["OBJECT", "REFCOUNT", "small"], ":1\r\n");
        is(&["OBJECT", "ENCODING", "none"], "$-1\r\n");
        is(&["MEMORY", "USAGE", "none"], "$-1\r\n");
        // The entry's slot takes 24 bytes, and the 9 bytes of the entry are rounded up to 16.
        is(&["MEMORY", "USAGE", "key", "SAMPLES", "0"], ":40\r\n");
        is(&["MEMORY", "USAGE", "key", "SAMPLES", "-1"], "-ERR syntax error\r\n");
        is(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lfu"], "+OK\r\n");
        is(&["SET", "new", "value"], "+OK\r\n");
        is(&["OBJECT", "FREQ", "new"], ":5\r\n");
        is(&["CLIENT", "NO-TOUCH", "ON"], "+OK\r\n");
        is(&["GET", "new"], "$5\r\nvalue\r\n");
        is(&["OBJECT", "FREQ", "new"], ":5\r\n");
        is(&["TOUCH", "new"], ":1\r\n");
        is(&["OBJECT", "FREQ", "new"], ":6\r\n");
        is(&["MEMORY", "PURGE"], "+OK\r\n");
        is(&["DEBUG", "OBJECT", "none"], "-ERR no such key\r\n");
        let described = client.call(&["DEBUG", "OBJECT", "key"]);
        assert!(described.starts_with("+Value at:0x"), "{described}");
        assert!(described.contains(" refcount:1 encoding:embstr serializedlength:"), "{described}");
        let stats = client.call(&["MEMORY", "STATS"]);
        for name in ["peak.allocated", "db.0", "overhead.hashtable.main", "fragmentation.bytes"] {
            assert!(stats.contains(name), "no {name} in {stats}");
        }
        assert!(client.call(&["MEMORY", "DOCTOR"]).contains("Less than 5 MB"));
        assert!(client.call(&["MEMORY", "MALLOC-STATS"]).starts_with('$'));
    });
}

#[test]
fn many_keys_are_made_for_trials() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some(server) = start(back_end, &volume, "enable-debug-command yes") else { continue };
        let mut client = server.connect();
        assert_eq!(client.call(&["SET", "k:1", "mine"]), "+OK\r\n");
        assert_eq!(client.call(&["DEBUG", "POPULATE", "1000", "k", "10"]), "+OK\r\n");
        assert_eq!(client.call(&["DEBUG", "POPULATE", "3"]), "+OK\r\n");
        let refused = "-ERR value is out of range, must be positive\r\n";
        assert_eq!(client.call(&["DEBUG", "POPULATE", "-1"]), refused);
        assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
        assert_eq!(client.call(&["DEBUG", "POPULATE", "100", "m"]), "+QUEUED\r\n");
        assert_eq!(client.call(&["EXEC"]), "*1\r\n+OK\r\n");
        server.stop();
        let server = start(back_end, &volume, "appendfsync everysec").unwrap();
        let mut client = server.connect();
        assert_eq!(client.call(&["DBSIZE"]), ":1103\r\n");
        assert_eq!(client.call(&["GET", "k:1"]), "$4\r\nmine\r\n");
        assert_eq!(client.call(&["GET", "k:7"]), "$10\r\nvalue:7\0\0\0\r\n");
        assert_eq!(client.call(&["GET", "key:2"]), "$7\r\nvalue:2\r\n");
        server.stop();
    }
}
