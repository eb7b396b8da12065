//! Tests that check what a long request sees as the current time, and how its memory and its
//! changes are counted. In names of tests, `it` is the long request.

use super::{MANY, mset, until_met};
use crate::common::{Client, encode, until};
use crate::undurable::held;
use crate::{info, serving};

/// How often a request names its key. A request with this many names takes several dozen turns of
/// the event loop.
const TIMES: usize = 10 * MANY;

/// `EXISTS` of one key, named so often that the request runs in steps.
fn exists(key: &[u8], times: usize) -> Vec<u8> {
    let mut words = vec![b"EXISTS".as_slice()];
    words.resize(times + 1, key);
    encode(&words)
}

#[test]
fn a_key_that_expires_meanwhile_is_there_for_all_of_its_steps() {
    held("", |world| {
        let mut reader = world.connect("reader");
        until_met("no long request ran while time passed", || {
            assert_eq!(reader.call(&["SET", "key", "value", "PX", "1000"]), "+OK\r\n");
            reader.send_bytes(&exists(b"key", TIMES));
            let is_running = |observer: &mut Client| info(observer, "long_request") == "running";
            while reader.is_silent() && !is_running(&mut world.observer) {}
            world.pass_ms(2000);
            // A turn that begins from now on sees the new time.
            let has_met = is_running(&mut world.observer);
            let count = String::from_utf8(reader.read()).unwrap();
            assert!(!has_met || count == format!(":{TIMES}\r\n"), "{count}");
            has_met
        });
    });
}

/// If a request only reads, it does not ask for room in the log, and it may run during a pause for
/// writes. So the request must not delete expired keys.
#[test]
fn one_that_only_reads_deletes_nothing_that_has_expired() {
    held("", |world| {
        let mut reader = world.connect("reader");
        assert_eq!(reader.call(&["SET", "key", "value", "PX", "1000"]), "+OK\r\n");
        assert_eq!(world.observer.call(&["CLIENT", "PAUSE", "60000", "WRITE"]), "+OK\r\n");
        world.pass_ms(2000);
        reader.send_bytes(&exists(b"key", 2000));
        assert_eq!(reader.read(), b":0\r\n");
        assert_eq!(world.observer.call(&["DBSIZE"]), ":1\r\n");
        assert_eq!(world.expired_keys(), 0);
        assert_eq!(world.observer.call(&["CLIENT", "UNPAUSE"]), "+OK\r\n");
    });
}

#[test]
fn its_request_is_in_memory_while_it_runs() {
    let request = exists(b"a-key-of-sixteen", TIMES);
    serving("appendonly no", |server| {
        let (mut client, mut observer) = (server.connect(), server.connect());
        until_met("no INFO came while a long request ran", || {
            client.send_bytes(&request);
            let mut has_met = false;
            while client.is_silent() {
                let text = observer.call(&["INFO", "everything"]);
                if !text.contains("long_request:running\r\n") {
                    continue;
                }
                has_met = true;
                let line = text.lines().find_map(|line| line.strip_prefix("mem_clients_normal:"));
                let bytes: usize = line.unwrap().trim().parse().unwrap();
                assert!(bytes > request.len(), "{bytes} counted, {} received", request.len());
            }
            assert_eq!(client.read(), b":0\r\n");
            has_met
        });
    });
}

/// Until a request with many arguments is complete, its received part is kept separately. `INFO`
/// must count this part as memory of the client.
#[test]
fn half_a_request_is_in_memory() {
    const SIZE: usize = 6 << 20;
    serving("appendonly no", |server| {
        let (mut client, mut observer) = (server.connect(), server.connect());
        let whole = exists(b"a-key-of-sixteen", TIMES);
        assert!(whole.len() > SIZE);
        client.send_bytes(&whole[..SIZE]);
        until("the received part of the request is not counted", || {
            info(&mut observer, "mem_clients_normal").parse::<usize>().unwrap() > SIZE
        });
        client.send_bytes(&whole[SIZE..]);
        assert_eq!(client.read(), b":0\r\n");
    });
}

#[test]
fn half_a_request_of_many_arguments_has_a_limit() {
    serving("appendonly no\nclient-query-buffer-limit 3mb", |server| {
        let (mut client, mut observer) = (server.connect(), server.connect());
        // The server may close the connection before everything is sent.
        client.try_send_bytes(&exists(b"a-key-of-sixteen", TIMES)[..6 << 20]);
        until("the connection was not closed", || {
            info(&mut observer, "client_query_buffer_limit_disconnections") == "1"
        });
    });
}

#[test]
fn each_of_its_keys_is_a_change() {
    serving("", |server| {
        let mut client = server.connect();
        client.send_bytes(&mset(1));
        assert_eq!(client.read(), b"+OK\r\n");
        assert_eq!(info(&mut client, "rdb_changes_since_last_save"), MANY.to_string());
    });
}
