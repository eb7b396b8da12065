//! Traces are replayed on a drive.
#![expect(clippy::unwrap_used, reason = "a failing helper fails the test")]

use slimio_ssd::replay::{NotSeparate, Outcome, Precondition, Replay, ReplayError};
use slimio_ssd::trace::{ByteRange, TraceEvent, TraceHeader, TraceReader, TraceWriter};
use slimio_ssd::{Config, Ftl, Isolation};

const PAGE: u64 = 4096;

fn config() -> Config {
    Config { handles: 2, ..Config::scaled(64 << 20) }
}

fn trace(device_bytes: u64, events: &[TraceEvent]) -> Vec<u8> {
    let header = TraceHeader { device_bytes, about: Vec::new() };
    let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
    for (index, event) in events.iter().enumerate() {
        writer.push(index as u64, event).unwrap();
    }
    writer.finish().unwrap()
}

fn replayed(events: &[TraceEvent], precondition: Precondition) -> Result<Outcome, ReplayError> {
    let config = config();
    let bytes = trace(config.lba_count * PAGE, events);
    let replay = Replay { config, handles: vec![0, 1], precondition, stretch: 1 };
    replay.run(TraceReader::new(&bytes[..])?)
}

fn replayed_on(config: Config, handles: Vec<u16>, events: &[TraceEvent]) -> Outcome {
    let bytes = trace(config.lba_count * PAGE, events);
    let replay = Replay { config, handles, precondition: Precondition::Empty, stretch: 1 };
    replay.run(TraceReader::new(&bytes[..]).unwrap()).unwrap()
}

fn write(stream: u8, start: u64, size: u64) -> TraceEvent {
    TraceEvent::Write { stream, range: ByteRange::new(start, size) }
}

#[test]
fn a_page_is_written_when_a_part_of_it_is_and_freed_when_all_of_it_is() {
    let deallocate = |start, size| TraceEvent::Deallocate { range: ByteRange::new(start, size) };
    let events = [
        TraceEvent::Mark("begin".into()),
        write(0, PAGE - 512, 1024),
        write(1, 8 * PAGE, 4 * PAGE),
        TraceEvent::Mark("a part of two pages, and four".into()),
        deallocate(8 * PAGE + 512, 4 * PAGE - 1024),
        TraceEvent::WriteZeros { range: ByteRange::new(20 * PAGE, PAGE) },
        TraceEvent::Flush,
    ];
    let outcome = replayed(&events, Precondition::Empty).unwrap();
    let last = outcome.points.last().unwrap();
    assert_eq!((last.host_bytes, last.media_bytes), (7 * PAGE, 7 * PAGE));
    assert!(
        (last.utilization * config().lba_count as f64 - 5.0).abs() < 1e-6,
        "two pages must be freed"
    );
    assert_eq!(outcome.waf(), Some(1.0));
    let handles: Vec<u64> =
        outcome.counters.handles().iter().map(|counters| counters.host_pages).collect();
    assert_eq!(handles, [3, 4]);
    assert_eq!(outcome.marks[1], (6 * PAGE, "a part of two pages, and four".to_owned()));
}

/// Overwrites the pages of a full drive, once by replaying a trace and once directly. Both drives
/// must count the same.
#[test]
fn what_a_replay_counts_is_what_the_drive_counts() {
    let config = config();
    let lbas: Vec<u64> =
        (0..config.lba_count * 4).map(|index| index * 7919 % config.lba_count).collect();
    let events: Vec<TraceEvent> =
        lbas.iter().map(|lba| write((lba % 2) as u8, lba * PAGE, PAGE)).collect();
    let outcome = replayed(&events, Precondition::Written).unwrap();
    let mut drive = Ftl::new(config.clone()).unwrap();
    for lba in 0..config.lba_count {
        drive.write(lba, 0).unwrap();
    }
    let before = drive.counters().clone();
    for lba in lbas {
        drive.write(lba, (lba % 2) as u16).unwrap();
    }
    assert_eq!(outcome.counters, *drive.counters());
    let last = outcome.points.last().unwrap();
    assert_eq!(
        last.host_bytes,
        4 * config.lba_count * PAGE,
        "the writes of the precondition must not count"
    );
    assert_eq!(last.media_bytes, drive.counters().media_bytes() - before.media_bytes());
    assert!(outcome.waf().unwrap() > 1.0 && outcome.waf_of_second_half().unwrap() > 1.0);
    assert!(outcome.points.len() > 400, "there must be a point for each hundredth of the capacity");
}

/// At the end, the replay's count of mixed units (reclaim units with data of several streams) must
/// agree with the drive's mapping. If streams share a handle, the replay must report mixed units.
#[test]
fn streams_are_followed_into_every_reclaim_unit() {
    let lbas = config().lba_count;
    let quarter = lbas / 4;
    // Two streams write in turn, each at random places in its half of the drive. Then a quarter of
    // the drive is deallocated.
    let mut random = fastrand::Rng::with_seed(1);
    let turns = (0..12 * quarter).map(|index| {
        let stream = index % 2;
        let lba = stream * 2 * quarter + random.u64(..2 * quarter);
        write(stream as u8, lba * PAGE, PAGE)
    });
    let mut events: Vec<TraceEvent> = turns.collect();
    let range = ByteRange::new(quarter * PAGE, quarter * PAGE);
    events.push(TraceEvent::Deallocate { range });
    let apart = replayed(&events, Precondition::Empty).unwrap();
    assert_eq!(apart.separation.written, [6 * quarter, 6 * quarter]);
    assert_eq!((&apart.separation.changed[..], apart.separation.mixed_units_max), (&[][..], 0));
    assert_eq!(apart.separation.check(2, &[]), Ok(()));
    assert_eq!(apart.separation.check(3, &[]), Err(NotSeparate::Nothing { stream: 2 }));

    let together = replayed_on(config(), vec![0, 0], &events);
    let units = together.separation.mixed_units_max;
    assert_eq!(together.separation.check(2, &[]), Err(NotSeparate::Mixed { units }));
    // Count the mixed units directly, in the mapping that the same writes leave.
    let mut drive = Ftl::new(config()).unwrap();
    for event in &events {
        match event {
            TraceEvent::Write { range, .. } => drive.write(range.start / PAGE, 0).unwrap(),
            _ => drive.deallocate(quarter, quarter).unwrap(),
        }
    }
    let unit_pages = config().geometry.unit_pages();
    let mut streams = vec![[false; 2]; config().geometry.unit_count() as usize];
    for lba in 0..lbas {
        if let Some(page) = drive.page_of(lba) {
            streams[(page.0 / unit_pages) as usize][usize::from(lba >= 2 * quarter)] = true;
        }
    }
    let mixed = streams.iter().filter(|held| **held == [true, true]).count() as u32;
    assert!(
        mixed > 0 && drive.counters().copied_bytes() > 0,
        "the writes must mix units (they mixed {mixed}) and make the collector copy"
    );
    assert_eq!(together.points.last().unwrap().mixed_units, mixed);

    // With initially isolated handles, copies of both handles' data share a unit. So that unit has
    // blocks of both streams.
    let initial = Config { isolation: Isolation::Initial, ..config() };
    let copied = replayed_on(initial, vec![0, 1], &events);
    assert!(copied.counters.mixed().copied_pages > 0 && copied.separation.mixed_units_max > 0);
}

/// A trace is replayed on a small drive, and stretched on a large one. The large drive is larger by
/// the stretch factor. Both replays must write and copy the same shares of their drives.
#[test]
fn a_stretched_trace_is_the_same_experiment_on_a_larger_drive() {
    let small = Config::scaled(45 << 20);
    let large = Config::scaled(180 << 20);
    assert_eq!(large.lba_count, 4 * small.lba_count);
    let mut random = fastrand::Rng::with_seed(2);
    let lbas = small.lba_count;
    let events: Vec<TraceEvent> =
        (0..6 * lbas).map(|_| write(0, random.u64(..lbas) * PAGE, PAGE)).collect();
    let bytes = trace(lbas * PAGE, &events);
    let replayed = |config: &Config, stretch| {
        let (config, handles) = (Config { handles: 1, ..config.clone() }, Vec::new());
        let replay = Replay { config, handles, precondition: Precondition::Empty, stretch };
        replay.run(TraceReader::new(&bytes[..]).unwrap())
    };
    let (one, four) = (replayed(&small, 1).unwrap(), replayed(&large, 4).unwrap());
    assert_eq!(four.counters.host_bytes(), 4 * one.counters.host_bytes());
    let [small_waf, large_waf] = [one, four].map(|outcome| outcome.waf().unwrap());
    assert!(
        small_waf > 1.3 && (large_waf / small_waf - 1.0).abs() < 0.02,
        "the WAF is {small_waf} on the small drive, {large_waf} on the large one"
    );
    let error = replayed(&large, 5).unwrap_err().to_string();
    assert!(error.starts_with("the trace is of a device of 235929600 bytes"), "{error}");
}

#[test]
fn a_block_that_changes_its_stream_is_noticed_unless_it_was_deallocated() {
    let range = ByteRange::new(0, 2 * PAGE);
    let first = [write(0, 0, 2 * PAGE), write(1, 8 * PAGE, PAGE)];
    let again = [write(1, 0, 2 * PAGE)];
    let checked = |events: &[TraceEvent], sharing: &[u8]| {
        replayed(events, Precondition::Empty).unwrap().separation.check(2, sharing)
    };
    let changed = Err(NotSeparate::Changed { from: 0, to: 1, blocks: 2 });
    let in_place = [&first[..], &again].concat();
    assert_eq!(checked(&in_place, &[]), changed);
    assert_eq!(checked(&in_place, &[0]), changed, "stream 1 does not share blocks");
    assert_eq!(checked(&in_place, &[1, 0]), Ok(()));
    let deallocate = [TraceEvent::Deallocate { range }];
    assert_eq!(checked(&[&first[..], &deallocate, &again].concat(), &[]), Ok(()));
}

/// A recorder that was killed leaves whole blocks, but no end block.
#[test]
fn a_trace_that_was_not_finished_is_replayed_as_far_as_it_goes() {
    let config = config();
    let header = TraceHeader { device_bytes: config.lba_count * PAGE, about: Vec::new() };
    let mut bytes = Vec::new();
    let mut writer = TraceWriter::new(&mut bytes, &header).unwrap();
    writer.push(0, &write(0, 0, PAGE)).unwrap();
    writer.push(1, &write(1, PAGE, PAGE)).unwrap();
    writer.flush().unwrap();
    writer.push(2, &write(1, 2 * PAGE, PAGE)).unwrap();
    drop(writer);
    let replay =
        Replay { config, handles: vec![0, 1], precondition: Precondition::Empty, stretch: 1 };
    let outcome = replay.run(TraceReader::new(&bytes[..]).unwrap()).unwrap();
    assert_eq!(outcome.cut_after, Some(2));
    assert_eq!(outcome.counters.host_bytes(), 2 * PAGE);
}

#[test]
fn a_trace_that_can_not_be_replayed_is_refused_with_a_sentence() {
    let config = config();
    let bytes = trace(config.lba_count * PAGE + 512, &[]);
    let replay = |config: Config, bytes: &[u8]| {
        let replay =
            Replay { config, handles: Vec::new(), precondition: Precondition::Empty, stretch: 1 };
        replay.run(TraceReader::new(bytes).unwrap()).unwrap_err().to_string()
    };
    let text = replay(config.clone(), &bytes);
    assert!(
        text.starts_with("the trace is of a device of 58982912 bytes, but the drive has"),
        "{text}"
    );
    let bytes = trace(config.lba_count * PAGE, &[write(0, 0, PAGE), write(0, PAGE, PAGE)]);
    // The cut is in the middle of the only block with events.
    let text = replay(config.clone(), &bytes[..bytes.len() - 30]);
    assert_eq!(text, "the trace is cut off after 0 events: its recording was not finished");
    let text = replay(Config { handles: 0, ..config }, &bytes);
    assert!(text.contains("handles, not 0"), "{text}");
}
