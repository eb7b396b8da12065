//! Kills processes that use a drive. After each kill, compares the drive with the requests that it
//! had acknowledged.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use slimio_device::{Buffer, LBA_SIZE, Lba, LbaRange, Op, PlacementId, Token, WholeDevice};
use slimio_sim::Random;
use slimio_ssd::{Clock, Config, DataPlace, DriveOptions, DriveQueue, EmulatedDrive, Ftl, Timing};

use crate::drive::drive;
use crate::model::{Ask, Model, are_same, placements};

/// The environment variables with the drive's file and with the seed.
const FILE: &str = "SLIMIO_SSD_KILLED_FILE";
const SEED: &str = "SLIMIO_SSD_KILLED_SEED";

/// The name of the test that the child process runs.
const NAME: &str = "killed::what_was_acknowledged_is_there_whenever_it_is_killed";

const ROUNDS: u64 = 40;
/// In three of four rounds, the wait before the kill begins only after this many requests were
/// acknowledged. Without such rounds, each process on a busy machine might be killed before it has
/// done anything.
const DONE_MIN: u64 = 150;

fn options(file: &Path) -> DriveOptions {
    let mut config = Config::scaled(12 << 20);
    config.timing = Timing::NONE;
    let data = DataPlace::File(file.to_path_buf());
    DriveOptions { data, ..DriveOptions::new(config, Clock::Real) }
}

fn stamp(seed: u64, number: u64) -> u64 {
    (seed << 32) | (number + 1)
}

/// Runs an operation to its end.
fn run(queue: &mut DriveQueue, op: Op) -> Option<Buffer> {
    queue.begin(Token(0), op, Instant::now());
    let mut completions = Vec::new();
    while completions.is_empty() {
        queue.poll(&mut completions);
    }
    let completion = completions.remove(0);
    assert_eq!(completion.result, Ok(()));
    completion.buffer
}

fn ask(drive: &EmulatedDrive, queue: &mut DriveQueue, asked: Ask, stamp: u64) {
    match asked {
        Ask::Write { lba, count, placement } => {
            let mut buffer = Buffer::zeroed(count as usize);
            for word in buffer.chunks_exact_mut(8) {
                word.copy_from_slice(&stamp.to_le_bytes());
            }
            let placement = PlacementId(placement);
            drop(run(queue, Op::Write { lba: Lba(lba), buffer, placement, durable: false }));
        }
        Ask::Deallocate { lba, count } => {
            let range = LbaRange { start: Lba(lba), end: Lba(lba + count) };
            drop(run(queue, Op::Deallocate { range }));
        }
        Ask::Update { placement } => {
            drive.watch().update_handles(&placements(placement)).expect("the handle exists");
        }
        Ask::Enable { handle, kind, is_enabled } => {
            let watch = drive.watch();
            watch.enable_events(handle, &[kind.code()], is_enabled).expect("the handle exists");
        }
    }
}

/// Uses the drive in a file until the process is killed.
fn use_until_killed(file: &Path) {
    let seed = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.expect("the parent sets the seed");
    let options = options(file);
    let lbas = options.config.lba_count;
    let drive = drive(&options);
    let (mut queue, mut random) = (drive.open_queue(), Random::new(seed));
    // Standard error is a pipe that the parent reads. The test harness itself writes nothing to
    // standard error.
    let mut told = std::io::stderr();
    for number in 0.. {
        let asked = Ask::random(&mut random, lbas);
        told.write_all(b"b").expect("the parent reads the pipe");
        ask(&drive, &mut queue, asked, stamp(seed, number));
        told.write_all(b"a").expect("the parent reads the pipe");
    }
}

/// Runs the test below in a child process. Once the process has done at least `least` requests,
/// waits for the time `after`, and then kills the process. Returns how many requests the process
/// had begun, and how many of them were acknowledged.
fn run_and_kill(file: &Path, seed: u64, least: u64, after: Duration) -> (u64, u64) {
    let test = std::env::current_exe().expect("the path of this test is known");
    let mut child = Command::new(test)
        .args(["--exact", NAME, "--nocapture"])
        .env(FILE, file)
        .env(SEED, seed.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the child can be started");
    let mut pipe = child.stderr.take().expect("standard error is a pipe");
    let (enough, has_enough) = channel();
    let reader = std::thread::spawn(move || {
        // The child writes two letters for each request.
        let mut told = vec![0; 2 * least as usize];
        if pipe.read_exact(&mut told).is_ok() {
            // The send fails only if the test has failed and no longer receives.
            let _ = enough.send(());
        }
        pipe.read_to_end(&mut told).expect("the pipe can be read");
        told
    });
    // `recv` also returns if the process ends early. Then the assertion below shows what the
    // process wrote.
    let _ = has_enough.recv();
    std::thread::sleep(after);
    child.kill().expect("the child runs until it is killed");
    let ended = child.wait().expect("the child has ended");
    let told = reader.join().expect("the reader does not panic");
    assert_eq!(
        ended.code(),
        None,
        "the child ended before it was killed: {}",
        String::from_utf8_lossy(&told)
    );
    let told = String::from_utf8_lossy(&told);
    let count = |letter| told.matches(letter).count() as u64;
    (count('b'), count('a'))
}

#[test]
fn what_was_acknowledged_is_there_whenever_it_is_killed() {
    // The child processes run this test, too. For them, the test ends here.
    if let Some(file) = std::env::var_os(FILE) {
        return use_until_killed(Path::new(&file));
    }
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let options = options(&file);
    let lbas = options.config.lba_count;
    let mut model = Model::new(options.config.clone());
    let mut random = Random::new(11);
    let mut all = 0;
    for seed in 0..ROUNDS {
        let after = Duration::from_micros(2000 + random.below(60_000));
        let least = if seed % 4 == 0 { 0 } else { DONE_MIN };
        let (begun, done) = run_and_kill(&file, seed, least, after);
        assert!(
            begun - done <= 1,
            "{begun} requests were begun, but only {done} were acknowledged"
        );
        all += done;
        let drive = drive(&options);
        assert_eq!(drive.notes().len(), 1, "the drive must have lost nothing: {:?}", drive.notes());
        drive.with_ftl(Ftl::check);
        let mut asks = Random::new(seed);
        for number in 0..done {
            model.apply(Ask::random(&mut asks, lbas), stamp(seed, number));
        }
        // A request that was begun but not acknowledged may have taken effect or not. The same
        // holds for each of its blocks.
        let before = model.clone();
        if !drive.with_ftl(|ftl| are_same(ftl, &model.ftl)) {
            assert!(
                begun > done,
                "round {seed}: the drive has lost some of {done} acknowledged requests"
            );
            model.apply(Ask::random(&mut asks, lbas), stamp(seed, done));
            let is_same = drive.with_ftl(|ftl| are_same(ftl, &model.ftl));
            assert!(
                is_same,
                "round {seed}: the state is neither that after {done} requests nor that after one more"
            );
        }
        let mut queue = drive.open_queue();
        for lba in 0..lbas {
            let read = Op::Read { lba: Lba(lba), buffer: Buffer::zeroed(1) };
            let read = run(&mut queue, read).expect("the read returns its buffer");
            let words: Vec<&[u8]> = read.chunks_exact(8).collect();
            assert_eq!(read.len(), LBA_SIZE);
            assert!(words.iter().all(|word| *word == words[0]), "block {lba} is torn");
            let found = u64::from_le_bytes(words[0].try_into().expect("a word has eight bytes"));
            let expected = [&model, &before].map(|model| model.stamps.get(&lba).copied());
            let is_right = |expected: &Option<u64>| expected.unwrap_or_default() == found;
            assert!(
                expected.iter().any(is_right),
                "round {seed}: block {lba} has the wrong stamp {found:x}"
            );
            if let Some(stamp) = model.stamps.get_mut(&lba) {
                *stamp = found;
            }
        }
    }
    assert!(all > 100 * ROUNDS, "only {all} requests were done");
    assert!(model.ftl.counters().copied_bytes() > 0, "the collector has copied nothing");
}
