//! An engine with a volume, for tests of the engine's parts. The engine does only what the test
//! tells it to do.

use std::path::Path;
use std::time::{Duration, Instant};

use slimio_device::PathOptions;
use slimio_storage::{Policy, RecoverOptions, recover};

use super::{Engine, Facts};
use crate::config::Config;
use crate::connections::Connections;
use crate::exchange::NewVolumeSink;
use crate::net::{ConnId, Peer};
use crate::server::make_volume;
use crate::snapshot::SnapshotThread;
use crate::wal::Wal;

pub(super) const CONN: ConnId = ConnId { index: 0, generation: 0 };

/// An engine with a volume, and a client.
pub(super) struct Opened {
    pub(super) engine: Engine,
    pub(super) connections: Connections,
}

/// Opens a new volume, with its log on or off, and connects a client.
pub(super) fn opened(dir: &Path, is_log_on: bool) -> Opened {
    let mut config = Config::default();
    for (name, value) in [("log-segment-size", "1mb"), ("log-buffers", "8")] {
        config.set(name, value).unwrap();
    }
    let mut storage =
        slimio_volume::open(&dir.join("volume"), PathOptions::default(), true, u64::MAX).unwrap();
    make_volume(&mut storage, &config, false).unwrap();
    let options =
        RecoverOptions { is_log_on, ..RecoverOptions::new(Policy::Always, 8, Instant::now()) };
    let volume = recover(&mut *storage.media, &options, &mut NewVolumeSink).unwrap();
    let (wal, slot_paths) = Wal::new(volume).unwrap();
    let mut engine = Engine::new(config, 1, Facts::default());
    engine.gate.wal = Some(wal);
    engine.snapshots.thread = Some(SnapshotThread::start(slot_paths).unwrap());
    let mut connections = Connections::default();
    connections.accepted(&mut engine, CONN, Peer { remote: None, local: None });
    Opened { engine, connections }
}

/// Sends a request of the client. The request runs in this turn or, on a busy machine, in a later
/// turn.
pub(super) fn send(opened: &mut Opened, request: &str) {
    opened.engine.clock.begin_turn();
    opened.connections.received(&mut opened.engine, CONN, request.as_bytes());
    while opened.connections.has_behind() {
        opened.engine.clock.begin_turn();
        opened.connections.serve_behind(&mut opened.engine);
    }
}

/// Drives the log and snapshots until `is_over` returns true.
pub(super) fn settle(opened: &mut Opened, is_over: impl Fn(&Opened) -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !is_over(opened) {
        assert!(Instant::now() < until, "the test waited 20 s in vain for the expected state");
        drive_log(opened);
        opened.connections.drive_snapshots(&mut opened.engine, true);
    }
}

/// Drives the log, and nothing else, until everything in it is durable.
pub(super) fn settle_log(opened: &mut Opened) {
    let until = Instant::now() + Duration::from_secs(20);
    while opened.engine.gate.durable() < opened.engine.gate.wal.as_ref().unwrap().log().appended() {
        assert!(Instant::now() < until, "the log was not durable after 20 s");
        drive_log(opened);
    }
}

fn drive_log(opened: &mut Opened) {
    let now = Instant::now();
    let wal = opened.engine.gate.wal.as_mut().unwrap();
    wal.drive(now);
    wal.wait(Some(Duration::from_millis(1)), now);
    wal.reap(now);
}
