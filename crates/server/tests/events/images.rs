//! Checks the LSNs of events against the disk images that a power cut can leave.

use std::path::Path;

use slimio_server::WallClock;
use slimio_sim::{Limits, SimConfig};

use super::Ear;
use crate::common::{config, launch_heard};
use crate::crashes::{Kind, SimMedia, launch_on, storage};
use crate::info;

const LIMITS: Limits = Limits { exhaustive_max: 3, random_count: 4, torn: true };

/// If the log is durable up to an event's LSN, the event's change is on every image.
#[test]
fn a_change_is_on_every_image_once_the_log_is_durable_up_to_its_lsn() {
    let directives = "appendfsync everysec\nlog-buffers 4\nlog-buffer-size 16kb\nhz 500";
    let config = || {
        let mut config = config("plain", Path::new("simulated"), directives);
        config.set("save", "").unwrap();
        config
    };
    let sim = |seed| SimConfig { seed, ..SimConfig::default() };
    let (mut kept, mut lost) = (0, 0);
    for seed in 0..4 {
        let media = SimMedia::new(sim(seed), Kind::Files);
        let (disk, ear) = (media.disk.clone(), Ear::default());
        let server = launch_heard(config(), WallClock::System, Some(ear.listener()), move |_| {
            Ok(Some(storage(media, false)))
        })
        .serving();
        let mut client = server.connect();
        for key in 0..6 {
            assert_eq!(client.call(&["SET", &format!("k{key}"), "v"]), "+OK\r\n");
        }
        client.send_bytes(b"MULTI\r\nSET k6 v\r\nSET k7 v\r\nEXEC\r\n");
        (0..4).for_each(|_| drop(client.read()));
        assert_eq!(client.call(&["WAITAOF", "1", "0", "0"]), "*2\r\n:1\r\n:0\r\n");
        // The test ignores data that becomes durable after this line. So the check is weaker, but
        // not wrong.
        let durable: u64 = info(&mut client, "log_durable_lsn").parse().unwrap();
        for key in 8..11 {
            assert_eq!(client.call(&["SET", &format!("k{key}"), "v"]), "+OK\r\n");
        }
        disk.crash_now();
        // The server fails if it has noticed that its disk is gone.
        let _ = server.abandon();
        let mut heard = ear.take();
        heard.retain(|heard| heard.text.contains(" set "));
        assert_eq!(heard.len(), 11);
        let crash = disk.crashed().unwrap();
        for image in crash.power_images(&LIMITS) {
            let media = SimMedia::from_image(sim(seed), Kind::Files, &image);
            let server = launch_on(media, true, config(), WallClock::System).served().unwrap();
            let mut client = server.connect();
            for heard in &heard {
                let key = heard.text.rsplit(' ').next().unwrap();
                let is_there = client.call(&["EXISTS", key]) == ":1\r\n";
                let is_claimed = heard.lsn.unwrap() <= durable;
                assert!(is_there || !is_claimed, "{heard:?}, {durable}, {}", image.origin);
                kept += u32::from(is_claimed);
                lost += u32::from(!is_there);
            }
            server.stop();
        }
    }
    assert!(kept > 30 && lost > 10, "too few cases: {kept} durable changes, {lost} lost changes");
}
