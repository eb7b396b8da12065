//! An end that was asked for and is given up.

use std::path::Path;
use std::time::Duration;

use slimio_server::WallClock;
use slimio_sim::{SimConfig, SimDisk};

use crate::common::{BACK_ENDS, Client, Running, config, encode};
use crate::crashes::{Kind, SimMedia, launch_on};

/// Runs a check against a server without a log, on a simulated disk, over both back ends.
fn without_log(check: impl Fn(Running, SimDisk)) {
    for back_end in BACK_ENDS {
        if back_end == "uring"
            && let Err(refused) = slimio_ring::probe()
        {
            eprintln!("SKIPPED with io_uring: {refused}");
            continue;
        }
        let media = SimMedia::new(SimConfig::default(), Kind::Files);
        let disk = media.disk.clone();
        let directives = "appendonly no\nlog-buffers 4\nenable-debug-command yes";
        let mut config = config(back_end, Path::new("simulated"), directives);
        config.set("save", "").unwrap();
        let server = launch_on(media, false, config, WallClock::System).serving();
        let mut client = server.connect();
        assert_eq!(client.call(&["DEBUG", "POPULATE", "1000", "k", "100"]), "+OK\r\n");
        check(server, disk);
    }
}

fn is_refused(client: &mut Client) -> bool {
    client.read() == b"-ERR Errors trying to SHUTDOWN. Check logs.\r\n"
}

#[test]
fn a_large_value_behind_an_end_that_is_given_up_is_whole() {
    let value = b"SET other 1\r\n".repeat(30_000);
    let whole = [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
    let bytes = [b"SHUTDOWN SAVE\r\n".to_vec(), encode(&[b"SET", b"large", &value])].concat();
    without_log(|server, disk| {
        disk.faults(|faults| faults.full = true);
        let mut client = server.connect();
        client.set_patience(Duration::from_secs(4));
        for _ in 0..20 {
            for piece in bytes.chunks(8 << 10) {
                client.send_bytes(piece);
            }
            assert!(is_refused(&mut client));
            assert_eq!(client.read(), b"+OK\r\n");
            client.send(&["GET", "large"]);
            assert!(client.read() == whole, "it is another value");
            assert_eq!(client.call(&["EXISTS", "other"]), ":0\r\n");
        }
        server.stop();
    });
}
