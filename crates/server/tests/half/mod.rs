//! Clients that have stopped sending. Some still wait for their replies, and some have
//! disconnected.

use std::time::Duration;

use crate::common::{BACK_ENDS, Client, encode, start_held, until};
use crate::{info, serving};

/// Number and size of the words that a client sends after a request that waits. The server reads
/// only a limited number of bytes after such a request. All words together are a few kilobytes
/// longer than this limit. The bytes above the limit must fit into the socket's buffer, where the
/// kernel may count 30 KB as 100 KB.
const BEHIND: [usize; 2] = [36, 29_200];

fn count_of(client: &mut Client, command: &str) -> usize {
    client.call(&["CLIENT", "LIST"]).matches(&format!(" cmd={command} ")).count()
}

#[test]
fn who_sends_nothing_more_is_answered() {
    for policy in ["always", "everysec"] {
        serving(&format!("appendfsync {policy}"), |server| {
            for i in 0..50 {
                let mut client = server.connect();
                client.send(&["SET", &format!("k{i}"), "v"]);
                client.end_sending();
                assert_eq!(client.read(), b"+OK\r\n");
                assert_eq!(client.read_to_end(), b"");
            }
        });
    }
}

/// The client's input ends before the replies are ready, and one reply is larger than the socket's
/// buffer. The client must get all replies nevertheless.
#[test]
fn who_sends_nothing_more_is_answered_whatever_it_takes() {
    serving("appendfsync everysec\nenable-debug-command yes", |server| {
        let mut client = server.connect();
        assert_eq!(client.call(&["DEBUG", "POPULATE", "100000"]), "+OK\r\n");
        let value = "x".repeat(8 << 20);
        assert_eq!(client.call(&["SET", "large", &value]), "+OK\r\n");
        client.send_bytes(b"KEYS *\r\nSAVE\r\nGET large\r\nPING\r\n");
        client.end_sending();
        assert!(client.read().starts_with(b"*100001\r\n"));
        assert_eq!(client.read(), b"+OK\r\n");
        assert_eq!(client.read().len(), value.len() + "$8388608\r\n\r\n".len());
        assert_eq!(client.read(), b"+PONG\r\n");
        assert_eq!(client.read_to_end(), b"");
    });
}

#[test]
fn who_sends_nothing_more_behind_much_is_answered() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some((server, gate)) = start_held(back_end, &volume, "save 3600 1000") else {
            continue;
        };
        let mut client = server.connect();
        gate.shut();
        let [count, size] = BEHIND;
        let word = vec![b'x'; size];
        client.send_bytes(b"SET k 1\r\nWAITAOF 1 0 0\r\n");
        client.send_bytes(&encode(&[b"ECHO", &word]).repeat(count));
        client.end_sending();
        std::thread::sleep(Duration::from_millis(100));
        gate.open();
        assert_eq!(client.read(), b"+OK\r\n");
        assert_eq!(client.read(), b"*2\r\n:1\r\n:0\r\n");
        for _ in 0..count {
            assert_eq!(client.read().len(), size + "$29200\r\n\r\n".len());
        }
        assert_eq!(client.read_to_end(), b"");
        server.stop();
    }
}

/// A pause holds up a client. The server does not read from the client, because the client has
/// already sent many bytes. Nevertheless, the server must notice that the client has disconnected.
#[test]
fn who_has_gone_in_a_pause_does_not_stay() {
    serving("", |server| {
        let mut client = server.connect();
        assert_eq!(client.call(&["CLIENT", "PAUSE", "100000", "WRITE"]), "+OK\r\n");
        let [count, size] = BEHIND;
        let gone: Vec<Client> = (0..5)
            .map(|_| {
                let mut gone = server.connect();
                gone.send_bytes(&encode(&[b"SET", b"k", &vec![b'x'; size]]).repeat(1 + count));
                gone
            })
            .collect();
        until("the clients are not blocked", || info(&mut client, "blocked_clients") == "5");
        drop(gone);
        until("the clients stay connected", || info(&mut client, "connected_clients") == "1");
    });
}

#[test]
fn who_has_gone_does_not_stay() {
    serving("appendfsync everysec", |server| {
        let mut client = server.connect();
        let [count, size] = BEHIND;
        for behind in [0, count] {
            let gone: Vec<Client> = (0..5)
                .map(|_| {
                    let mut gone = server.connect();
                    gone.send(&["WAITAOF", "0", "1", "0"]);
                    gone.send_bytes(&encode(&[b"SET", b"k", &vec![b'x'; size]]).repeat(behind));
                    gone
                })
                .collect();
            until("a WAITAOF is not running", || count_of(&mut client, "waitaof") == gone.len());
            // After this pause, everything that the clients sent has arrived.
            std::thread::sleep(Duration::from_millis(100));
            drop(gone);
            until("the clients stay connected", || count_of(&mut client, "waitaof") == 0);
        }
    });
}
