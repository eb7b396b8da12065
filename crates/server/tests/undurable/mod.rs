//! What nobody may see of a write that is not durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{BACK_ENDS, Client, start_on, until};
use crate::held::hold;

/// Waits until the client of this name has had its command run.
fn wait_until_run(observer: &mut Client, name: &str, command: &str) {
    let has_run = |list: &str| {
        let mut lines = list.lines().filter(|line| line.contains(&format!("name={name} ")));
        lines.any(|line| line.contains(&format!("cmd={command} ")))
    };
    until(&format!("{name} was not served"), || has_run(&observer.call(&["CLIENT", "LIST"])));
}

#[test]
fn under_always_nobody_reads_what_is_not_durable() {
    let requests: [(&[&str], &str); 6] = [
        (&["GET", "changed"], "$3\r\nnew\r\n"),
        (&["GET", "deleted"], "$-1\r\n"),
        (&["STRLEN", "changed"], ":3\r\n"),
        (&["MGET", "untouched", "deleted"], "*2\r\n$1\r\ny\r\n$-1\r\n"),
        (&["DBSIZE"], ":2\r\n"),
        // A write that changes nothing says so because of a record that is not durable.
        (&["SETNX", "changed", "other"], ":0\r\n"),
    ];
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let is_shut = Arc::new(AtomicBool::new(false));
        let held = Arc::clone(&is_shut);
        let volume = dir.path().join("volume");
        let Some(server) = start_on(back_end, &volume, "appendfsync always", |s| hold(s, held))
        else {
            continue;
        };
        let mut observer = server.connect();
        let mut writer = server.connect();
        let old = ["MSET", "changed", "old", "deleted", "x", "untouched", "y"];
        assert_eq!(writer.call(&old), "+OK\r\n");
        assert_eq!(writer.call(&["CLIENT", "SETNAME", "writer"]), "+OK\r\n");

        is_shut.store(true, Ordering::SeqCst);
        writer.send(&["SET", "changed", "new"]);
        writer.send(&["DEL", "deleted"]);
        wait_until_run(&mut observer, "writer", "del");
        let mut readers = Vec::new();
        for (number, (request, _)) in requests.iter().enumerate() {
            let (mut reader, name) = (server.connect(), format!("reader{number}"));
            assert_eq!(reader.call(&["CLIENT", "SETNAME", &name]), "+OK\r\n");
            reader.send(request);
            wait_until_run(&mut observer, &name, &request[0].to_lowercase());
            readers.push(reader);
        }
        assert_eq!(observer.call(&["GET", "untouched"]), "$1\r\ny\r\n");
        assert!(writer.is_silent(), "a write was acknowledged that is not durable");
        for (reader, (request, _)) in readers.iter_mut().zip(&requests) {
            assert!(reader.is_silent(), "{request:?} was answered from what is not durable");
        }

        is_shut.store(false, Ordering::SeqCst);
        // The log's path does not know that it may speak again: any turn asks it.
        assert_eq!(observer.call(&["PING"]), "+PONG\r\n");
        assert_eq!(writer.read(), b"+OK\r\n");
        assert_eq!(writer.read(), b":1\r\n");
        for (reader, (request, reply)) in readers.iter_mut().zip(&requests) {
            assert_eq!(String::from_utf8_lossy(&reader.read()), *reply, "{request:?}");
        }
        server.stop();
    }
}
