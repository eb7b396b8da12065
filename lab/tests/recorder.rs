//! The recorded device: its trace holds exactly the requests that were made to the device, to the
//! byte.
//!
//! The tests need root, FUSE and loop devices. If one of them is missing, the tests say so.
#![expect(clippy::unwrap_used, reason = "if a test cannot go on, it fails")]

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::Scratch;
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use slimio_lab::recorder::{
    FileSystemKind, Place, RecordedDisk, Recording, Workload, can_record, drive_bytes,
};
use slimio_lab::server::Policy;
use slimio_ssd::trace::{
    ByteRange, Tape, TraceError, TraceEvent, TraceHeader, TraceReader, TraceRecord,
};

const SIZE: u64 = 64 << 20;

fn header() -> TraceHeader {
    TraceHeader { device_bytes: SIZE, about: vec![("workload".into(), "a test".into())] }
}

/// Whether devices can be recorded on this machine. If not, prints the reason.
fn is_possible() -> bool {
    let refused = can_record();
    if let Err(why) = &refused {
        eprintln!("SKIPPED: no device was recorded: {why}");
    }
    refused.is_ok()
}

fn disk(scratch: &Scratch, trace: &Path) -> Option<RecordedDisk> {
    if !is_possible() {
        return None;
    }
    let tape = Arc::new(Tape::new(File::create(trace).unwrap(), &header()).unwrap());
    Some(RecordedDisk::new(&scratch.path, SIZE, tape).unwrap())
}

fn read(trace: &Path) -> Result<Vec<TraceRecord>, TraceError> {
    TraceReader::new(File::open(trace).unwrap())?.collect()
}

/// A buffer that direct I/O accepts: it begins at a page boundary and consists of whole pages.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn new(size: usize, byte: u8) -> Self {
        let bytes = vec![byte; size + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Self { bytes, start }
    }

    fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.bytes.len() - 4096 + self.start]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        let end = self.bytes.len() - 4096 + self.start;
        &mut self.bytes[self.start..end]
    }
}

/// Joins adjacent writes into one, and adjacent deallocations into one, because the kernel may
/// split a long request anywhere.
fn joined(records: &[TraceRecord]) -> Vec<TraceEvent> {
    let mut events: Vec<TraceEvent> = Vec::new();
    for TraceRecord { event, .. } in records {
        match (events.last_mut(), event) {
            (Some(TraceEvent::Write { range: last, .. }), TraceEvent::Write { range, .. })
            | (Some(TraceEvent::Deallocate { range: last }), TraceEvent::Deallocate { range })
                if last.end == range.start =>
            {
                last.end = range.end;
            }
            _ => events.push(event.clone()),
        }
    }
    events
}

#[test]
fn known_writes_discards_and_flushes_are_recorded_to_the_byte() {
    let scratch = Scratch::new();
    let trace = scratch.path.join("trace");
    let Some(disk) = disk(&scratch, &trace) else { return };
    let direct = OFlags::DIRECT.bits() as i32;
    let mut options = OpenOptions::new();
    let device = options.read(true).write(true).custom_flags(direct).open(disk.device()).unwrap();
    let write = |start, size| TraceEvent::Write { stream: 0, range: ByteRange::new(start, size) };

    let mut expected = vec![TraceEvent::Mark("begin".into())];
    disk.tape().record(&expected[0]).unwrap();
    // There are writes of one block, of several blocks, and of more than the kernel hands on in one
    // request. They are not in the order of their addresses.
    for (start, size) in [(8 << 20, 4096), (4096, 40960), (16 << 20, 5 << 20), (0, 4096)] {
        device.write_all_at(Aligned::new(size as usize, 7).get(), start).unwrap();
        expected.push(write(start, size));
    }
    device.sync_data().unwrap();
    expected.push(TraceEvent::Flush);
    let mut discard = Command::new("blkdiscard");
    discard.arg(disk.device()).args(["--offset", "4096", "--length", "1052672"]);
    assert!(discard.status().unwrap().success());
    expected.push(TraceEvent::Deallocate { range: ByteRange::new(4096, 1_052_672) });
    device.write_all_at(Aligned::new(4096, 9).get(), SIZE - 4096).unwrap();
    expected.push(write(SIZE - 4096, 4096));

    let mut found = Aligned::new(12288, 1);
    device.read_exact_at(found.get_mut(), 0).unwrap();
    let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
    assert!(found.get()[..4096].iter().all(|&byte| byte == 7) && is_zero(&found.get()[4096..]));
    drop(device);

    let events = disk.finish().unwrap();
    let records = read(&trace).unwrap();
    assert_eq!(events, records.len() as u64);
    let events = joined(&records);
    let begin = events.iter().position(|event| *event == expected[0]).unwrap();
    // The loop driver flushes its backing file when the device is attached.
    assert!(events[..begin].iter().all(|event| *event == TraceEvent::Flush), "{events:?}");
    assert_eq!(events[begin..], expected);
    assert!(records.is_sorted_by_key(|record| record.time_ns));
    assert!(!scratch.path.join("disk").exists(), "the disk was not removed");
}

#[test]
fn a_recording_that_was_not_finished_is_refused() {
    let scratch = Scratch::new();
    let trace = scratch.path.join("trace");
    let Some(disk) = disk(&scratch, &trace) else { return };
    let device = OpenOptions::new().write(true).open(disk.device()).unwrap();
    device.write_all_at(&[1; 8192], 0).unwrap();
    device.sync_all().unwrap();
    drop(device);
    drop(disk);
    let error = read(&trace).unwrap_err();
    assert!(matches!(error, TraceError::Cut { .. }), "{error}");
}

/// The workload is scaled for a drive of an eighth of the file system's size. So there is room even
/// if snapshots are written slowly while the log grows.
#[test]
fn what_stock_redis_writes_and_its_file_system_discards_is_recorded() {
    let scratch = Scratch::new();
    if !is_possible() {
        return;
    }
    let Some(server) = scratch.stock(Policy::EverySec) else { return };
    let workload = Workload { repetitions: 2, ..Workload::scaled(64 << 20) };
    let set_bytes = u64::from(workload.repetitions) * workload.requests * 4096;
    for (file_system, discard) in [(FileSystemKind::Ext4, true), (FileSystemKind::Xfs, false)] {
        let device_bytes = 512 << 20;
        let trace = scratch.path.join("trace");
        let recording = Recording {
            program: server.program.clone(),
            place: Place::FileSystem { kind: file_system, discard },
            policy: Policy::EverySec,
            device_bytes,
            workload: workload.clone(),
            folder: scratch.path.join("recording"),
            trace: trace.clone(),
        };
        let events = recording.run().unwrap();
        let records = read(&trace).unwrap();
        assert_eq!(events, records.len() as u64);
        let mut marks = 0;
        let (mut written, mut discarded) = (0, 0);
        for record in &records {
            match &record.event {
                TraceEvent::Mark(_) => marks += 1,
                TraceEvent::Write { range, .. } => written += range.size(),
                // Discards by mkfs are not counted.
                TraceEvent::Deallocate { range } if marks > 0 => discarded += range.size(),
                _ => {}
            }
        }
        assert!(written > set_bytes, "{file_system}: {set_bytes} bytes set, {written} written");
        assert!(marks >= 2 + workload.repetitions, "{file_system}: only {marks} marks");
        let header = TraceReader::new(File::open(&trace).unwrap()).unwrap().header().clone();
        assert_eq!(header.device_bytes, device_bytes);
        assert_eq!(header.get("discard"), Some(if discard { "yes" } else { "no" }));
        assert_eq!(discarded > 0, discard, "{file_system}: {discarded} bytes discarded");
    }
}

/// Starts a process that records stock Redis on ext4, and waits until the file system is mounted.
/// Also waits for the trace file, because a recording makes this file only once the mount of an
/// earlier recording is gone.
fn start_recording(scratch: &Scratch, redis: &Path, trace: &Path) -> Child {
    let mut recording = Command::new(env!("CARGO_BIN_EXE_slimio-lab"));
    recording.args(["trace", "--size", "360", "--redis"]).arg(redis);
    recording.arg("--folder").arg(&scratch.path).arg("--out").arg(trace);
    let mounted = |_| scratch.path.join("slimio-trace/mounted");
    start_and_wait(&mut recording, mounted, || trace.exists())
}

/// Starts a process that makes a file system. Waits until the file system is mounted and `is_begun`
/// holds. `mounted` returns the mount point for the process id.
fn start_and_wait(
    command: &mut Command,
    mounted: impl FnOnce(u32) -> PathBuf,
    is_begun: impl Fn() -> bool,
) -> Child {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let point = mounted(child.id()).display().to_string();
    wait_until("the file system is mounted", || {
        assert!(child.try_wait().unwrap().is_none(), "the process ended by itself");
        is_begun() && mounts().contains(&point)
    });
    child
}

/// Sends SIGTERM to a process. Waits until the process has ended, and its mounts and loop devices
/// are gone.
fn ask_to_end(scratch: &Scratch, mut child: Child) {
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
    assert!(!child.wait().unwrap().success());
    wait_until("mounts and loop devices are gone", || !is_anything_left(&scratch.path));
}

fn mounts() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap()
}

/// Whether anything is mounted in the folder, or a loop device uses a file in the folder.
fn is_anything_left(folder: &Path) -> bool {
    let folder = folder.display().to_string();
    let is_over = |entry: fs::DirEntry| {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file"));
        backing.is_ok_and(|backing| backing.starts_with(&folder))
    };
    mounts().contains(&folder)
        || fs::read_dir("/sys/block").unwrap().any(|entry| is_over(entry.unwrap()))
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "waited two minutes in vain for this: {what}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_recording_that_was_killed_does_not_block_the_next() {
    let scratch = Scratch::new();
    if !is_possible() {
        return;
    }
    let Some(stock) = scratch.stock(Policy::EverySec) else { return };
    let [first, second] = ["first", "second"].map(|name| scratch.path.join(name));
    let mut killed = start_recording(&scratch, &stock.program, &first);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(is_anything_left(&scratch.path), "the killed recording left nothing mounted");

    let next = start_recording(&scratch, &stock.program, &second);
    // While this recording runs, no other recording can use the same folder.
    let mut other = Command::new(env!("CARGO_BIN_EXE_slimio-lab"));
    other.args(["trace", "--size", "360", "--redis"]).arg(&stock.program);
    other.arg("--folder").arg(&scratch.path).arg("--out").arg(scratch.path.join("other"));
    let other = other.output().unwrap();
    assert!(!other.status.success());
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(said.contains("another recording runs in"), "{said}");

    ask_to_end(&scratch, next);
    for trace in [first, second] {
        let error = read(&trace).unwrap_err();
        assert!(matches!(error, TraceError::Cut { .. }), "{error}");
    }
}

/// The experiment's data may be in memory, so leftovers would take up memory.
#[test]
fn a_runtime_experiment_that_is_asked_to_end_leaves_nothing() {
    let scratch = Scratch::new();
    if !is_possible() {
        return;
    }
    let Some(stock) = scratch.stock(Policy::EverySec) else { return };
    let mut runtime = Command::new(env!("CARGO_BIN_EXE_slimio-lab"));
    runtime.args(["runtime", "--drive", "paper", "--host", "stock", "--policy", "everysec"]);
    runtime.args(["--size", "384", "--ru", "8", "--slimio", "slimio", "--redis"]);
    runtime.arg(&stock.program).arg("--folder").arg(&scratch.path);
    runtime.arg("--out").arg(scratch.path.join("out"));
    let folder = |pid| scratch.path.join(format!("slimio-runtime-{pid}"));
    let running = start_and_wait(&mut runtime, |pid| folder(pid).join("mounted"), || true);
    let folder = folder(running.id());
    ask_to_end(&scratch, running);
    assert!(!folder.exists(), "the experiment left its folder");
}

#[test]
fn a_trace_is_used_again_only_if_it_is_whole_and_made_alike() {
    let scratch = Scratch::new();
    let recording = |seed| Recording {
        program: "redis-server".into(),
        place: Place::Device,
        policy: Policy::EverySec,
        device_bytes: SIZE,
        workload: Workload { seed, ..Workload::scaled(SIZE) },
        folder: scratch.path.join("recording"),
        trace: scratch.path.join("trace"),
    };
    assert!(recording(1).is_there().unwrap_err().contains("No such file"));
    let header = recording(1).header();
    let tape = Tape::new(File::create(scratch.path.join("trace")).unwrap(), &header).unwrap();
    tape.record(&TraceEvent::Flush).unwrap();
    let cut = recording(1).is_there().unwrap_err();
    assert!(cut.contains("its recording was not finished"), "{cut}");
    tape.finish().unwrap();
    assert_eq!(recording(1).is_there(), Ok(()));
    let other = recording(2).is_there().unwrap_err();
    assert!(other.starts_with("its workload is ") && other.ends_with("seed 2"), "{other}");
    let larger = Recording { device_bytes: 2 * SIZE, ..recording(1) };
    assert_eq!(larger.is_there(), Err(format!("the trace is of a device of {SIZE} bytes")));
}

#[test]
fn a_size_that_can_not_be_replayed_is_refused_at_once() {
    for mib in [360, 720, 1440, 2880, 5760, 23040] {
        assert_eq!(drive_bytes(mib).unwrap(), mib << 20);
    }
    let refused = |mib| drive_bytes(mib).unwrap_err().to_string();
    assert!(refused(1500).ends_with("take 1485 or 1530"), "{}", refused(1500));
    assert!(refused(0).contains("too small; the smallest has 360 MiB"));
    assert!(refused(u64::MAX).contains("too large"));
}
