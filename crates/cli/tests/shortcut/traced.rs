//! Tests `slimio shortcut run` on a disk that records what it receives. When `fdatasync` returns,
//! the disk must have received all earlier writes to the log, and after them a flush.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;
use std::sync::Arc;

use slimio_lab::recorder::{FileSystemKind, Mounted, RecordedDisk, can_record};
use slimio_ssd::trace::{ByteRange, Tape, TraceEvent, TraceHeader, TraceReader, TraceRecord};

use super::{Place, Running};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shortcut/traced.py");
const DEVICE_SIZE: u64 = 384 << 20;
const LOG_SIZE: usize = 1 << 20;
const BLOCK: u64 = 4096;
const STEPS: usize = 150;

/// Whether `events` has a write of the block that begins at byte `block`, and a flush after the
/// last such write.
fn is_durable(events: &[TraceEvent], block: u64) -> bool {
    let covers = |event: &TraceEvent| match event {
        TraceEvent::Write { range: ByteRange { start, end }, .. } => {
            *start <= block && block + BLOCK <= *end
        }
        _ => false,
    };
    let written = events.iter().rposition(covers);
    written.is_some_and(|at| events[at..].contains(&TraceEvent::Flush))
}

#[test]
fn what_two_processes_make_durable_has_reached_the_disk() {
    let Some(place) = Place::new() else { return };
    if let Err(why) = can_record() {
        return eprintln!("SKIPPED: no device can be recorded: {why}");
    }
    for kind in [FileSystemKind::Ext4, FileSystemKind::Xfs] {
        let seed = fastrand::u32(..);
        println!("seed {seed} on {kind}");
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace");
        let header = TraceHeader { device_bytes: DEVICE_SIZE, about: Vec::new() };
        let tape = Arc::new(Tape::new(File::create(&trace).unwrap(), &header).unwrap());
        let disk = RecordedDisk::new(folder.path(), DEVICE_SIZE, tape).unwrap();
        let point = folder.path().join("mounted");
        let mounted = Mounted::new(kind, disk.device(), DEVICE_SIZE, false, &point).unwrap();
        let log = point.join("ib_logfile0");
        fs::write(&log, vec![0; LOG_SIZE]).unwrap();
        File::open(&log).unwrap().sync_all().unwrap();
        let mut command =
            place.run(&[&"--profile", &"mariadb", &"--", &"python3", &"-B", &SCRIPT, &log]);
        command.arg(seed.to_string()).arg(STEPS.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = Running(command.spawn().unwrap());
        let mut input = running.stdin.take().unwrap();
        for line in BufReader::new(running.stdout.take().unwrap()).lines() {
            disk.tape().record(&TraceEvent::Mark(line.unwrap())).unwrap();
            input.write_all(b"\n").unwrap();
        }
        assert!(running.wait().unwrap().success(), "{}", place.said());
        mounted.finish().unwrap();
        disk.finish().unwrap();
        let reader = TraceReader::new(File::open(&trace).unwrap()).unwrap();
        let events: Vec<TraceEvent> =
            reader.map(|record| record.map(|TraceRecord { event, .. }| event).unwrap()).collect();
        let mut steps = 0;
        let mut start = 0;
        for (at, event) in events.iter().enumerate() {
            let TraceEvent::Mark(blocks) = event else { continue };
            for block in blocks.split_whitespace() {
                let durable = is_durable(&events[start..at], block.parse().unwrap());
                assert!(
                    durable,
                    "step {steps}: the block at byte {block} of the disk is not durable"
                );
            }
            start = at;
            steps += 1;
        }
        assert_eq!(steps, STEPS);
    }
}
