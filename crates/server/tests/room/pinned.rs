//! A pinned snapshot, while the log needs room. A client pins a snapshot with `SLIMIO PIN`, so that
//! no other snapshot takes its slot.

use crate::common::{BACK_ENDS, start, until};
use crate::info;

/// The snapshot in one slot is pinned. The log needs room, so the server begins a snapshot after
/// which the log becomes shorter. This snapshot finds a slot, because the server gives up the
/// running `BGSAVE`. So the pin must stay.
#[test]
fn a_pinned_snapshot_that_is_in_nobodys_way_stays() {
    for back_end in BACK_ENDS {
        // If no request comes for a tenth of a second because the machine is busy, `BGSAVE` runs
        // without a limit and ends too early. In this case, there is no `BGSAVE` to give up, and
        // the pinned snapshot is in the way.
        assert!(
            (0..5).any(|_| stays_in_nobodys_way(back_end)),
            "{back_end}: the machine was always too busy"
        );
    }
}

/// Returns true if the pinned snapshot was not in the way. Panics if the server gave up the pin
/// although this snapshot was not in the way.
fn stays_in_nobodys_way(back_end: &str) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let directives = "enable-debug-command yes\nauto-aof-rewrite-percentage 0\n\
        log-segment-size 1mb\nlog-size-max 24mb\nlog-buffers 16\nlog-buffer-size 64kb";
    let volume = dir.path().join("volume");
    let Some(server) = start(back_end, &volume, directives) else { return true };
    let (mut client, mut reader) = (server.connect(), server.connect());
    assert_eq!(client.call(&["DEBUG", "POPULATE", "9000", "k", "1000"]), "+OK\r\n");
    assert!(client.call(&["BGREWRITEAOF"]).starts_with("+Background"));
    until("the rewrite does not end", || info(&mut client, "aof_rewrite_in_progress") == "0");
    assert!(reader.call(&["SLIMIO", "PIN"]).starts_with('$'));

    let value = "v".repeat(30_000);
    let mut write = || assert_eq!(client.call(&["SET", "k:1", &value]), "+OK\r\n");
    write();
    let mut observer = server.connect();
    assert_eq!(observer.call(&["CONFIG", "SET", "snapshot-rate", "1"]), "+OK\r\n");
    assert_eq!(observer.call(&["BGSAVE"]), "+Background saving started\r\n");
    let before = info(&mut observer, "aof_rewrites");
    let saves = info(&mut observer, "snapshot_saves_complete");
    until("no rewrite begins although the log fills", || {
        (0..20).for_each(|_| write());
        info(&mut observer, "aof_rewrites") != before
    });
    if info(&mut observer, "snapshot_saves_complete") != saves {
        server.stop();
        return false;
    }
    assert_eq!(reader.call(&["PING"]), "+PONG\r\n", "{back_end}: the server gave up the pin");
    server.stop();
    true
}
