//! A log whose writes can be held back, and what nobody may see meanwhile.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use slimio_device::{Buffer, Completion, Device, DeviceError, Geometry, Op, OpenError, Token};
use slimio_server::Storage;
use slimio_storage::{Area, Media};

use crate::common::{BACK_ENDS, Client, PATIENCE, start_on};

/// A path whose completions are kept back while `is_shut`.
struct Held {
    path: Box<dyn Device + Send>,
    is_shut: Arc<AtomicBool>,
    completions: Vec<Completion>,
}

impl Held {
    fn pass(&mut self, completions: &mut Vec<Completion>) {
        if !self.is_shut.load(Ordering::SeqCst) {
            completions.append(&mut self.completions);
        }
    }
}

impl Device for Held {
    fn geometry(&self) -> Geometry {
        self.path.geometry()
    }

    fn submit(&mut self, token: Token, op: Op) -> Result<(), Op> {
        self.path.submit(token, op)
    }

    fn kick(&mut self) {
        self.path.kick();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.path.poll(&mut self.completions);
        self.pass(completions);
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        self.path.wait(timeout, &mut self.completions);
        self.pass(completions);
    }

    fn in_flight(&self) -> usize {
        self.path.in_flight() + self.completions.len()
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.path.readiness()
    }

    fn grow(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        self.path.grow(lba_count)
    }
}

/// A volume whose log's paths are [`Held`].
struct HeldMedia {
    media: Box<dyn Media>,
    is_shut: Arc<AtomicBool>,
}

impl Media for HeldMedia {
    fn open_path(&mut self, area: Area) -> Result<Box<dyn Device + Send>, OpenError> {
        let path = self.media.open_path(area)?;
        Ok(match area {
            Area::Superblock => path,
            Area::Wal => {
                let is_shut = Arc::clone(&self.is_shut);
                Box::new(Held { path, is_shut, completions: Vec::new() })
            }
        })
    }

    fn create(&mut self, super_lbas: u64, wal_lbas: u64) -> Result<(), OpenError> {
        self.media.create(super_lbas, wal_lbas)
    }

    fn open_buffers(&mut self, size: usize) -> Result<Vec<Buffer>, OpenError> {
        self.media.open_buffers(size)
    }

    fn make_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, OpenError> {
        self.media.make_buffers(count, size)
    }

    fn buffers_outlive_process(&self) -> bool {
        self.media.buffers_outlive_process()
    }

    fn fresh_blocks_need_zeroing(&self) -> bool {
        self.media.fresh_blocks_need_zeroing()
    }
}

/// Waits until the client of this name has had its command run.
fn wait_until_run(observer: &mut Client, name: &str, command: &str) {
    let deadline = Instant::now() + PATIENCE;
    let has_run = |list: &str| {
        let mut lines = list.lines().filter(|line| line.contains(&format!("name={name} ")));
        lines.any(|line| line.contains(&format!("cmd={command} ")))
    };
    while !has_run(&observer.call(&["CLIENT", "LIST"])) {
        assert!(Instant::now() < deadline, "{name} was not served");
    }
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
        let wrap = move |storage: Storage| {
            let media = Box::new(HeldMedia { media: storage.media, is_shut: held });
            Storage { media, ..storage }
        };
        let volume = dir.path().join("volume");
        let Some(server) = start_on(back_end, &volume, "appendfsync always", wrap) else {
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
