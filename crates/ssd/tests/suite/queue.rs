//! Tests queues of an emulated drive. Operations of a queue begin in the caller's thread.

use std::time::{Duration, Instant, SystemTime};

use slimio_device::{
    Buffer, Completion, DeviceError, LBA_SIZE, Lba, Op, PlacementId, Token, WholeDevice,
};
use slimio_ssd::{Clock, DataPlace, DriveOptions, DriveQueue, EventKind, FtlError, Timing};

use crate::drive::{byte_at, do_all, drive, options, range, write};

fn real() -> DriveOptions {
    options(Clock::Real)
}

/// Waits until everything in flight has completed.
fn reap(queue: &mut DriveQueue) -> Vec<Completion> {
    let mut completions = Vec::new();
    while let Some(due) = queue.next_due() {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        queue.poll(&mut completions);
    }
    assert_eq!(queue.in_flight(), 0);
    completions
}

fn run(queue: &mut DriveQueue, op: Op) -> Completion {
    queue.begin(Token(1), op, Instant::now());
    reap(queue).remove(0)
}

#[test]
fn what_is_begun_in_a_queue_is_on_the_drive() {
    let mut drive = drive(&real());
    let mut queue = drive.open_queue();
    assert_eq!(run(&mut queue, write(5, 3, 7, true)).result, Ok(()));
    let read = run(&mut queue, Op::Read { lba: Lba(4), buffer: Buffer::zeroed(5) });
    let read = read.buffer.expect("the read returns its buffer");
    let bytes: Vec<u8> = read.chunks(LBA_SIZE).map(|block| block[0]).collect();
    assert_eq!(bytes, [0xDD, 7, 7, 7, 0xDD], "empty blocks differ from written ones");
    assert_eq!(run(&mut queue, Op::Flush).result, Ok(()));
    let mut path = drive.open_path().expect("a path opens");
    assert_eq!(byte_at(&mut *path, 6), 7);
    do_all(&mut *path, [Op::Deallocate { range: range(6, 7) }]);
    let read = run(&mut queue, Op::Read { lba: Lba(6), buffer: Buffer::zeroed(1) });
    assert!(read.buffer.expect("the read returns its buffer").iter().all(|byte| *byte == 0xDD));
    assert_eq!(run(&mut queue, Op::Deallocate { range: range(5, 6) }).result, Ok(()));
    assert_eq!(drive.with_ftl(slimio_ssd::Ftl::mapped_count), 1);
    let lbas = queue.geometry().lba_count;
    assert_eq!(run(&mut queue, write(lbas, 1, 1, false)).result, Err(DeviceError::OutOfRange));
    let beyond = range(lbas, lbas + 1);
    let refused = run(&mut queue, Op::Deallocate { range: beyond });
    assert_eq!(refused.result, Err(DeviceError::OutOfRange));
}

/// After a reset of its controller, a host may immediately write to blocks whose deallocation was
/// still in flight.
#[test]
fn a_deallocation_of_a_queue_that_is_gone_takes_nothing_away() {
    let latency = Duration::from_millis(5);
    let drive = drive(&DriveOptions { deallocate_latency: latency, ..real() });
    for is_dropped in [false, true] {
        let mut gone = drive.open_queue();
        assert_eq!(run(&mut gone, write(5, 1, 1, true)).result, Ok(()));
        gone.begin(Token(1), Op::Deallocate { range: range(5, 6) }, Instant::now());
        let canceller = gone.canceller();
        let left = if is_dropped {
            drop(gone);
            None
        } else {
            canceller.cancel();
            Some(gone)
        };
        let mut queue = drive.open_queue();
        assert_eq!(run(&mut queue, write(5, 1, 2, true)).result, Ok(()));
        std::thread::sleep(latency * 2);
        let read = run(&mut queue, Op::Read { lba: Lba(5), buffer: Buffer::zeroed(1) });
        assert_eq!(read.buffer.expect("the read returns its buffer")[0], 2);
        drop(left);
    }
}

/// A deallocation reserves room in the journal as soon as it begins. If it is cancelled, it must
/// give the room back.
#[test]
fn cancelled_deallocations_leave_their_room_in_the_journal() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let data = DataPlace::File(folder.path().join("drive"));
    let latency = Duration::from_millis(5);
    let drive = drive(&DriveOptions { data, deallocate_latency: latency, ..real() });
    // The loop begins 10,000 deallocations. The journal of such a small drive has room for only
    // 8192 entries.
    for _ in 0..10 {
        let mut gone = drive.open_queue();
        for _ in 0..1000 {
            gone.begin(Token(1), Op::Deallocate { range: range(5, 6) }, Instant::now());
        }
        drop(gone);
        std::thread::sleep(latency * 2);
        let mut queue = drive.open_queue();
        assert_eq!(run(&mut queue, write(5, 1, 1, true)).result, Ok(()));
    }
}

#[test]
fn operations_complete_when_they_are_due_and_in_that_order() {
    let drive = drive(&real());
    let mut queue = drive.open_queue();
    let before = Instant::now();
    // The first operation programs two pages on one die. The second operation waits until another
    // die has programmed one page. The third one reads a block that holds nothing.
    queue.begin(Token(1), write(0, 9, 1, true), before);
    queue.begin(Token(2), Op::Read { lba: Lba(3), buffer: Buffer::zeroed(1) }, before);
    queue.begin(Token(3), Op::Read { lba: Lba(100), buffer: Buffer::zeroed(1) }, before);
    assert_eq!(queue.in_flight(), 3);
    let due = queue.next_due().expect("three operations are in flight");
    assert_eq!(due, before, "a read of an empty block takes no time");
    let completions = reap(&mut queue);
    assert!(before.elapsed() >= 2 * Timing::PAPER.program);
    let order: Vec<u64> = completions.iter().map(|completion| completion.token.0).collect();
    assert_eq!(order, [3, 2, 1]);
    assert_eq!(queue.next_due(), None);
}

#[test]
fn an_operation_waits_from_its_arrival_on() {
    let drive = drive(&real());
    let mut queue = drive.open_queue();
    let arrived = Instant::now();
    std::thread::sleep(Timing::PAPER.program);
    queue.begin(Token(1), write(0, 1, 1, true), arrived);
    assert_eq!(queue.next_due(), Some(arrived + Timing::PAPER.program));
    let mut completions = Vec::new();
    queue.poll(&mut completions);
    assert_eq!(completions.len(), 1, "the operation was already due when it began");
}

#[test]
fn queues_of_several_threads_lead_to_one_drive() {
    let mut none = real();
    none.config.timing = Timing::NONE;
    let drive = drive(&none);
    let lbas = drive.lba_count();
    std::thread::scope(|scope| {
        for part in 0..4 {
            let mut queue = drive.open_queue();
            scope.spawn(move || {
                for round in 0..3 {
                    for lba in (part..lbas).step_by(4) {
                        assert_eq!(run(&mut queue, write(lba, 1, round, false)).result, Ok(()));
                    }
                }
            });
        }
    });
    drive.with_ftl(slimio_ssd::Ftl::check);
    assert_eq!(drive.counters().host_bytes(), 3 * lbas * LBA_SIZE as u64);
    let mut queue = drive.open_queue();
    for lba in 0..lbas {
        let read = run(&mut queue, Op::Read { lba: Lba(lba), buffer: Buffer::zeroed(1) });
        assert!(read.buffer.expect("the read returns its buffer").iter().all(|byte| *byte == 2));
    }
}

#[test]
fn a_queue_from_before_a_power_cut_is_gone() {
    let drive = drive(&DriveOptions { cache_lbas: 64, can_lose_power: true, ..real() });
    let mut queue = drive.open_queue();
    assert_eq!(run(&mut queue, write(0, 1, 1, true)).result, Ok(()));
    queue.begin(Token(1), write(0, 1, 2, false), Instant::now());
    queue.begin(Token(2), Op::Read { lba: Lba(0), buffer: Buffer::zeroed(1) }, Instant::now());
    drive.cut_power(|_| false);
    let results: Vec<_> = reap(&mut queue).into_iter().map(|done| done.result).collect();
    assert_eq!(results, [Err(DeviceError::Gone), Err(DeviceError::Gone)]);
    assert_eq!(run(&mut queue, Op::Flush).result, Err(DeviceError::Gone));
    let mut queue = drive.open_queue();
    let read = run(&mut queue, Op::Read { lba: Lba(0), buffer: Buffer::zeroed(1) });
    assert_eq!(read.buffer.expect("the read returns its buffer")[0], 1);
}

#[test]
fn handles_are_updated_all_or_none() {
    let drive = drive(&real());
    let (watch, mut queue) = (drive.watch(), drive.open_queue());
    let left = || [1, 2].map(|handle| drive.with_ftl(|ftl| ftl.handle_pages_left(handle)));
    for handle in [1, 2] {
        let placement = PlacementId(handle);
        let buffer = Buffer::zeroed(1);
        let op = Op::Write { lba: Lba(0), buffer, placement, durable: false };
        assert_eq!(run(&mut queue, op).result, Ok(()));
    }
    let before = left();
    let refused = watch.update_handles(&[PlacementId(1), PlacementId(8)]);
    assert_eq!(refused, Err(FtlError::UnknownHandle { handle: 8, handles: 8 }));
    assert_eq!(left(), before, "a refused update changes no handle");
    let earliest = SystemTime::UNIX_EPOCH.elapsed().expect("the clock is later than 1970");
    assert_eq!(watch.update_handles(&[PlacementId(1), PlacementId(2)]), Ok(()));
    let latest = SystemTime::UNIX_EPOCH.elapsed().expect("the clock is later than 1970");
    assert_ne!(left(), before);
    let events = watch.host_events();
    let about: Vec<_> = events.iter().map(|event| (event.kind, event.placement)).collect();
    let not_full = |handle| (EventKind::UnitNotFull, Some(PlacementId(handle)));
    assert_eq!(about, [not_full(1), not_full(2)]);
    // The drive's clock and the machine's clock may round differently.
    let slack = Duration::from_millis(20);
    for event in events {
        let at = Duration::from_millis(event.time_ms);
        assert!(at + slack >= earliest && at <= latest + slack, "{at:?}");
    }
}

#[test]
fn which_events_are_recorded_is_asked_and_told_by_code() {
    let drive = drive(&real());
    let watch = drive.watch();
    let all = [(0, true), (2, true), (3, true), (0x80, true), (0x81, true)];
    assert_eq!(watch.enabled_events(7), all);
    assert_eq!(watch.enabled_events(8), [], "handle 8 does not exist");
    watch.enable_events(7, &[0x81, 0x55, 3], false).expect("handle 7 exists");
    let some = [(0, true), (2, true), (3, false), (0x80, true), (0x81, false)];
    assert_eq!(watch.enabled_events(7), some);
    assert!(watch.enable_events(8, &[0], false).is_err());
}
