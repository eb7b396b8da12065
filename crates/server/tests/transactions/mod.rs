//! Transactions and snapshots: what comes back has all of a transaction, once.

use std::time::Instant;

use crate::common::{BACK_ENDS, PATIENCE, start};
use crate::info;

#[test]
fn a_snapshot_does_not_begin_within_a_transaction() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some(server) = start(back_end, &volume, "appendfsync always") else { continue };
        let mut client = server.connect();
        // Done twice, each of these is something else.
        let requests: [&[&str]; 5] = [
            &["APPEND", "text", "first"],
            &["INCR", "n"],
            &["BGREWRITEAOF"],
            &["INCR", "n"],
            &["APPEND", "text", "second"],
        ];
        assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
        for request in requests {
            assert_eq!(client.call(request), "+QUEUED\r\n");
        }
        assert!(client.call(&["EXEC"]).contains("+Background append only file rewriting "));
        let deadline = Instant::now() + PATIENCE;
        while info(&mut client, "snapshot_rewrites_complete") != "1" {
            assert!(Instant::now() < deadline, "there is no snapshot");
        }
        server.stop();
        let server = start(back_end, &volume, "appendfsync always").unwrap();
        let mut client = server.connect();
        assert_eq!(client.call(&["MGET", "text", "n"]), "*2\r\n$11\r\nfirstsecond\r\n$1\r\n2\r\n");
        server.stop();
    }
}
