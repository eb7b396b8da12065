//! The snapshot check on a running server's volume: its findings and their consequences. The root
//! is the snapshot that recovery starts from. A reserve is a slot for the next snapshot.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use slimio_device::LBA_SIZE;
use slimio_storage::layout::TRAILER_MAGIC;

use crate::common::{BACK_ENDS, Client, POLL_EVERY, patience, start, threads};
use crate::info;

/// Number of LBAs that are read from a slot. Every snapshot of these tests fits in that many.
const LOOK_LBAS: usize = 64;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Header,
    Chunk,
    Index,
    Trailer,
}

/// Flips a bit in one part of the snapshot in a slot.
pub(crate) fn damage(volume: &Path, slot: usize, part: Part) {
    let path = volume.join(["snapshot-a", "snapshot-b", "snapshot-c"][slot]);
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut bytes = vec![0; LOOK_LBAS * LBA_SIZE];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let mut blocks = bytes.chunks(LBA_SIZE);
    let trailer = blocks.position(|block| block.starts_with(&TRAILER_MAGIC)).unwrap();
    let (lba, offset) = match part {
        Part::Header => (0, 20),
        Part::Chunk => (1, 100),
        Part::Index => (trailer - 1, 3),
        Part::Trailer => (trailer, 40),
    };
    let place = lba * LBA_SIZE + offset;
    file.write_all_at(&[bytes[place] ^ 0x10], place as u64).unwrap();
}

fn wait_until(client: &mut Client, what: &str, is_so: impl Fn(&mut Client) -> bool) {
    let deadline = Instant::now() + patience();
    while !is_so(client) {
        assert!(
            Instant::now() < deadline,
            "waited too long for {what}: {}{}",
            client.call(&["INFO", "slimio"]),
            threads()
        );
        std::thread::sleep(POLL_EVERY);
    }
}

/// Takes a snapshot, waits until it is adopted, and returns its slot.
pub(crate) fn take(client: &mut Client, command: &str) -> usize {
    let (count, kind) = match command {
        "BGSAVE" => ("snapshot_saves_complete", "kind=on-demand,"),
        _ => ("snapshot_rewrites_complete", "kind=wal,"),
    };
    let taken: u64 = info(client, count).parse().unwrap();
    assert!(client.call(&[command]).starts_with("+Background"));
    wait_until(client, command, |client| info(client, count) == (taken + 1).to_string());
    slot_of(client, kind)
}

/// The slot whose line in INFO contains `words`.
fn slot_of(client: &mut Client, words: &str) -> usize {
    let text = client.call(&["INFO", "slimio"]);
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("snapshot_slot_"));
    let line = lines.find(|line| line.contains(words)).unwrap_or_else(|| panic!("{words}: {text}"));
    line[..1].parse().unwrap()
}

fn check(client: &mut Client) {
    assert_eq!(client.call(&["SLIMIO", "CHECK"]), "+Background check of the snapshots started\r\n");
    wait_until(client, "the end of the check", |client| {
        info(client, "snapshot_check_running") == "0"
    });
}

#[test]
fn a_damaged_root_is_found_and_replaced() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let directives = "snapshot-check-rate 1gb";
        let Some(server) = start(back_end, &volume, directives) else { continue };
        let mut client = server.connect();
        let parts = [Part::Header, Part::Chunk, Part::Index, Part::Trailer];
        for (key, part) in parts.into_iter().enumerate() {
            assert_eq!(client.call(&["SET", &key.to_string(), &"x".repeat(500)]), "+OK\r\n");
            let slot = take(&mut client, "BGREWRITEAOF");
            assert_eq!(
                info(&mut client, "snapshot_check_damaged"),
                "0",
                "{part:?}: damage was found before the check"
            );
            check(&mut client);
            assert_eq!(info(&mut client, "snapshot_check_damaged"), "0", "{part:?}");
            let bytes: u64 = info(&mut client, "snapshot_check_bytes").parse().unwrap();
            assert!(bytes >= 4 * LBA_SIZE as u64, "{bytes}");
            assert_ne!(info(&mut client, "snapshot_check_last_time"), "0");

            let rewrites: u64 = info(&mut client, "snapshot_rewrites_complete").parse().unwrap();
            damage(&volume, slot, part);
            check(&mut client);
            wait_until(&mut client, "a new root", |client| {
                info(client, "snapshot_rewrites_complete") == (rewrites + 1).to_string()
            });
            assert_ne!(slot_of(&mut client, ",root=1,"), slot, "{part:?}");
            assert_eq!(info(&mut client, "snapshot_check_damaged"), "0", "{part:?}");
            check(&mut client);
            assert_eq!(info(&mut client, "snapshot_rewrites_complete"), (rewrites + 1).to_string());
        }
        server.stop();
        let server = start(back_end, &volume, directives).unwrap();
        assert_eq!(server.connect().call(&["DBSIZE"]), format!(":{}\r\n", parts.len()));
        server.stop();
    }
}

#[test]
fn a_damaged_point_in_time_is_said_and_left() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some(server) = start(back_end, &volume, "snapshot-check-rate 1gb") else { continue };
        let mut client = server.connect();
        assert_eq!(client.call(&["SLIMIO", "CHECK"]), "-ERR there is no snapshot yet\r\n");
        assert_eq!(client.call(&["SET", "k", "v"]), "+OK\r\n");
        let slot = take(&mut client, "BGSAVE");
        damage(&volume, slot, Part::Chunk);
        check(&mut client);
        assert_eq!(info(&mut client, "snapshot_check_damaged"), "1");
        let what = info(&mut client, &format!("snapshot_damage_{slot}"));
        let area = ["snapshot-a", "snapshot-b", "snapshot-c"][slot];
        let place = format!("the snapshot in {area} is damaged: chunk 0 at block 1");
        assert!(what.starts_with(&place), "{what}");
        // The damage must not cause a rewrite: recovery does not need this snapshot, and a new
        // snapshot could not have the same point in time.
        assert_eq!(info(&mut client, "snapshot_rewrites_complete"), "0");
        assert_eq!(slot_of(&mut client, "kind=on-demand,"), slot);
        take(&mut client, "BGSAVE");
        assert_eq!(info(&mut client, "snapshot_check_damaged"), "0");
        server.stop();
    }
}

#[test]
fn a_reserve_gives_back_what_is_far_too_much_and_a_slot_in_use_nothing() {
    /// Bytes of a slot that once held a large snapshot.
    const LONG: u64 = 320 << 20;
    /// After a slot was shortened, it has fewer bytes than this.
    const KEPT: u64 = 66 << 20;
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some(server) = start(back_end, &volume, "appendfsync always") else { continue };
        let mut client = server.connect();
        assert_eq!(client.call(&["SET", "k", "v"]), "+OK\r\n");
        let root = take(&mut client, "BGREWRITEAOF");
        server.stop();
        let names = ["snapshot-a", "snapshot-b", "snapshot-c"];
        let path = |slot: usize| volume.join(names[slot]);
        for slot in 0..names.len() {
            OpenOptions::new().write(true).open(path(slot)).unwrap().set_len(LONG).unwrap();
        }
        let size = |slot: usize| path(slot).metadata().unwrap().len();
        let server = start(back_end, &volume, "appendfsync always").unwrap();
        let mut client = server.connect();
        for slot in (0..names.len()).filter(|&slot| slot != root) {
            wait_until(&mut client, "a shorter reserve", |_| size(slot) < KEPT);
        }
        assert_eq!(size(root), LONG);
        assert_ne!(take(&mut client, "BGREWRITEAOF"), root);
        wait_until(&mut client, "a shorter slot of the former root", |_| size(root) < KEPT);
        server.stop();
        let server = start(back_end, &volume, "appendfsync always").unwrap();
        assert_eq!(server.connect().call(&["GET", "k"]), "$1\r\nv\r\n");
        server.stop();
    }
}

#[test]
fn a_check_gives_way_and_can_be_stopped() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        // At this rate, the second piece is due only hours after the first.
        let directives = "snapshot-check-rate 1";
        let Some(server) = start(back_end, &dir.path().join("volume"), directives) else {
            continue;
        };
        let mut client = server.connect();
        let begin = |client: &mut Client| client.call(&["SLIMIO", "CHECK"]);
        let started = "+Background check of the snapshots started\r\n";
        let is_over = |client: &mut Client| info(client, "snapshot_check_running") == "0";
        assert_eq!(client.call(&["SET", "k", "v"]), "+OK\r\n");

        let slot = take(&mut client, "BGSAVE");
        assert_eq!(begin(&mut client), started);
        let running = "-ERR Background check of the snapshots already in progress\r\n";
        assert_eq!(begin(&mut client), running);
        take(&mut client, "BGREWRITEAOF");
        assert!(!is_over(&mut client), "the check ended before its snapshot was gone");
        assert_ne!(take(&mut client, "BGSAVE"), slot);
        wait_until(&mut client, "the end of the check", is_over);
        assert_eq!(info(&mut client, "snapshot_check_damaged"), "0");

        assert_eq!(begin(&mut client), started);
        assert_eq!(client.call(&["CONFIG", "SET", "snapshot-check-rate", "0"]), "+OK\r\n");
        wait_until(&mut client, "the end of the check", is_over);
        let off = "-ERR snapshot-check-rate is 0, so nothing is read; set it first\r\n";
        assert_eq!(begin(&mut client), off);
        server.stop();
    }
}
