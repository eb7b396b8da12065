//! Tests the emulated drive as a device.

use std::time::Duration;

use slimio_device::{
    Buffer, Device, DeviceError, LBA_SIZE, Lba, LbaRange, Op, PlacementId, Token, WholeDevice,
};
use slimio_sim::{Random, contract};
use slimio_ssd::{Clock, Config, DataPlace, Deallocated, DriveOptions, EmulatedDrive, Timing};

pub(crate) fn options(clock: Clock) -> DriveOptions {
    let options = DriveOptions::new(Config::scaled(24 << 20), clock);
    // For a block that holds nothing, the drive returns a pattern. If it returned zeros, a test
    // could not tell them from zeros in the drive's file.
    DriveOptions { deallocated: Deallocated::Pattern, ..options }
}

pub(crate) fn drive(options: &DriveOptions) -> EmulatedDrive {
    EmulatedDrive::open(options.clone()).expect("the drive opens")
}

fn buffer(lbas: usize, byte: u8) -> Buffer {
    let mut buffer = Buffer::zeroed(lbas);
    buffer.fill(byte);
    buffer
}

pub(crate) fn write(lba: u64, lbas: usize, byte: u8, durable: bool) -> Op {
    let (buffer, placement) = (buffer(lbas, byte), PlacementId(0));
    Op::Write { lba: Lba(lba), buffer, placement, durable }
}

pub(crate) fn range(start: u64, end: u64) -> LbaRange {
    LbaRange { start: Lba(start), end: Lba(end) }
}

/// Runs one operation to its end.
pub(crate) fn run(path: &mut dyn Device, op: Op) -> (Option<Buffer>, Result<(), DeviceError>) {
    path.submit(Token(1), op).expect("nothing is in flight");
    let mut completions = Vec::new();
    while completions.is_empty() {
        path.wait(None, &mut completions);
    }
    let completion = completions.remove(0);
    (completion.buffer, completion.result)
}

pub(crate) fn do_all(path: &mut dyn Device, ops: impl IntoIterator<Item = Op>) {
    for op in ops {
        assert_eq!(run(path, op).1, Ok(()));
    }
}

/// The value that all bytes of a block have.
pub(crate) fn byte_at(path: &mut dyn Device, lba: u64) -> u8 {
    let (read, result) = run(path, Op::Read { lba: Lba(lba), buffer: Buffer::zeroed(1) });
    assert_eq!(result, Ok(()));
    let read = read.expect("the read returns its buffer");
    assert!(read.iter().all(|byte| *byte == read[0]), "block {lba} is torn");
    read[0]
}

#[test]
fn what_holds_nothing_reads_as_zeros_unless_a_pattern_is_wanted() {
    for (deallocated, byte) in [(Deallocated::Zeros, 0), (Deallocated::Pattern, 0xDD)] {
        let mut drive = drive(&DriveOptions { deallocated, ..options(Clock::Virtual) });
        assert_eq!(drive.deallocated(), deallocated);
        let mut path = drive.open_path().expect("a path opens");
        do_all(&mut *path, [write(0, 2, 1, true), Op::Deallocate { range: range(1, 2) }]);
        assert_eq!([0, 1, 2].map(|lba| byte_at(&mut *path, lba)), [1, byte, byte]);
    }
}

fn contract(options: &DriveOptions) {
    let mut last = None;
    contract::check_all(|| {
        let mut drive = drive(options);
        let path = drive.open_path().expect("a path opens");
        // This assignment drops the drive of the previous call, and its file.
        last = Some(drive);
        path
    });
    drop(last);
}

#[test]
fn in_virtual_time_it_is_a_device_like_any_other() {
    contract(&options(Clock::Virtual));
}

#[test]
fn with_a_cache_in_virtual_time_it_is_a_device_like_any_other() {
    let deallocate_latency = Duration::from_millis(3);
    let cached = DriveOptions { cache_lbas: 64, deallocate_latency, ..options(Clock::Virtual) };
    contract(&DriveOptions { can_lose_power: true, ..cached });
}

#[test]
fn in_real_time_it_is_a_device_like_any_other() {
    contract(&options(Clock::Real));
}

#[test]
fn with_a_cache_in_real_time_it_is_a_device_like_any_other() {
    let deallocate_latency = Duration::from_millis(3);
    contract(&DriveOptions { cache_lbas: 64, deallocate_latency, ..options(Clock::Real) });
}

#[test]
fn a_write_takes_as_long_as_its_die() {
    let mut drive = drive(&options(Clock::Virtual));
    let mut path = drive.open_path().expect("a path opens");
    assert_eq!(drive.config_dies(), 8);
    do_all(&mut *path, [write(0, 8, 1, false)]);
    assert_eq!(drive.now(), Timing::PAPER.program);
    let before = drive.now();
    do_all(&mut *path, [write(8, 9, 1, true)]);
    assert_eq!(drive.now(), before + 2 * Timing::PAPER.program);
    let before = drive.now();
    assert_eq!(byte_at(&mut *path, 3), 1);
    assert_eq!(drive.now(), before + Timing::PAPER.read);
}

trait Dies {
    fn config_dies(&self) -> u32;
}

impl Dies for EmulatedDrive {
    fn config_dies(&self) -> u32 {
        self.with_ftl(|ftl| ftl.config().geometry.die_count())
    }
}

#[test]
fn in_real_time_nothing_is_over_before_its_time() {
    let mut drive = drive(&options(Clock::Real));
    let mut path = drive.open_path().expect("a path opens");
    for round in 0..20 {
        let before = std::time::Instant::now();
        do_all(&mut *path, [write(round * 16, 16, 1, false)]);
        assert!(before.elapsed() >= 2 * Timing::PAPER.program);
    }
}

#[test]
fn two_paths_lead_to_the_same_drive() {
    for clock in [Clock::Virtual, Clock::Real] {
        let mut drive = drive(&options(clock));
        let mut one = drive.open_path().expect("a path opens");
        let mut other = drive.open_path().expect("a path opens");
        do_all(&mut *one, [write(5, 3, 7, true)]);
        assert_eq!(byte_at(&mut *other, 6), 7);
        do_all(&mut *other, [Op::Deallocate { range: range(5, 7) }]);
        assert_eq!(byte_at(&mut *one, 6), 0xDD, "block 6 must hold nothing");
        assert_eq!(byte_at(&mut *one, 7), 7);
        assert_eq!(drive.counters().host_bytes(), 3 * LBA_SIZE as u64);
        assert_eq!(drive.with_ftl(slimio_ssd::Ftl::mapped_count), 1);
    }
}

fn losing_power() -> DriveOptions {
    DriveOptions { cache_lbas: 256, can_lose_power: true, ..options(Clock::Virtual) }
}

#[test]
fn what_was_not_flushed_is_gone_when_power_is_cut() {
    let mut drive = drive(&losing_power());
    let mut path = drive.open_path().expect("a path opens");
    do_all(&mut *path, [write(0, 8, 1, true)]);
    // Block 1 is overwritten durably. Block 2 is overwritten before a flush, block 3 before and
    // after the flush, and block 4 after the flush.
    do_all(&mut *path, [write(1, 1, 2, true), write(2, 1, 2, false), write(3, 1, 2, false)]);
    do_all(&mut *path, [Op::Flush, write(3, 1, 3, false), write(4, 1, 3, false)]);
    // This write is in flight, and does not complete before the cut.
    path.submit(Token(9), write(5, 1, 4, true)).expect("the queue has room");
    path.kick();
    drive.cut_power(|_| false);
    let mut completions = Vec::new();
    path.wait(None, &mut completions);
    assert_eq!(completions[0].result, Err(DeviceError::Gone));
    assert_eq!(run(&mut *path, Op::Flush).1, Err(DeviceError::Gone), "the path must stay gone");
    let mut path = drive.open_path().expect("a path opens");
    let found: Vec<u8> = (0..6).map(|lba| byte_at(&mut *path, lba)).collect();
    assert_eq!(found, [1, 2, 2, 2, 1, 1]);
}

#[test]
fn any_of_what_was_not_flushed_may_survive() {
    let mut random = Random::new(3);
    for _ in 0..20 {
        let mut drive = drive(&losing_power());
        let mut path = drive.open_path().expect("a path opens");
        do_all(&mut *path, [write(0, 16, 1, true), write(0, 16, 2, false)]);
        let survivors: Vec<bool> = (0..16).map(|_| random.coin()).collect();
        drive.cut_power(|lba| survivors[lba as usize]);
        let mut path = drive.open_path().expect("a path opens");
        for (lba, survived) in survivors.into_iter().enumerate() {
            assert_eq!(byte_at(&mut *path, lba as u64), if survived { 2 } else { 1 });
        }
    }
}

#[test]
fn a_flush_saves_what_was_over_before_it_and_not_more() {
    let mut drive = drive(&losing_power());
    let mut path = drive.open_path().expect("a path opens");
    do_all(&mut *path, [write(0, 4, 1, true), write(0, 1, 2, false)]);
    // The flush and the write are in flight at the same time, so the flush does not cover the
    // write.
    path.submit(Token(1), Op::Flush).expect("the queue has room");
    path.submit(Token(2), write(1, 1, 2, false)).expect("the queue has room");
    let mut completions = Vec::new();
    while path.in_flight() > 0 {
        path.wait(None, &mut completions);
    }
    drive.cut_power(|_| false);
    let mut path = drive.open_path().expect("a path opens");
    assert_eq!((byte_at(&mut *path, 0), byte_at(&mut *path, 1)), (2, 1));
}

#[test]
fn what_held_nothing_holds_nothing_again_when_power_is_cut() {
    let mut drive = drive(&losing_power());
    let mut path = drive.open_path().expect("a path opens");
    do_all(&mut *path, [write(0, 1, 1, true), write(1, 1, 1, false)]);
    let mapped = |drive: &EmulatedDrive| drive.with_ftl(slimio_ssd::Ftl::mapped_count);
    assert_eq!(mapped(&drive), 2);
    drive.cut_power(|_| false);
    let mut path = drive.open_path().expect("a path opens");
    assert_eq!((byte_at(&mut *path, 0), byte_at(&mut *path, 1)), (1, 0xDD));
    assert_eq!(mapped(&drive), 1);
}

#[test]
fn a_deallocation_is_stable_once_it_was_flushed() {
    let mut drive = drive(&losing_power());
    let mut path = drive.open_path().expect("a path opens");
    let to = |lba| Op::Write {
        lba: Lba(lba),
        buffer: buffer(1, 1),
        placement: PlacementId(3),
        durable: true,
    };
    do_all(&mut *path, [to(0), to(1), to(2)]);
    do_all(&mut *path, [Op::Deallocate { range: range(0, 1) }, Op::Flush]);
    do_all(&mut *path, [Op::Deallocate { range: range(1, 3) }]);
    let before = drive.counters();
    drive.cut_power(|lba| lba == 2);
    let mut path = drive.open_path().expect("a path opens");
    let found: Vec<u8> = (0..3).map(|lba| byte_at(&mut *path, lba)).collect();
    assert_eq!(found, [0xDD, 1, 0xDD]);
    assert_eq!(drive.counters(), before, "a power cut must write nothing");
    let owner = |report: slimio_ssd::UnitReport| report.owner.filter(|_| report.valid > 0);
    let owners: Vec<_> = drive.with_ftl(|ftl| ftl.units().filter_map(owner).collect());
    assert_eq!(owners, [slimio_ssd::Owner::Handle(3)], "block 1 must be in a unit of handle 3");
}

#[test]
fn a_cut_undoes_what_is_on_its_way_in_real_time() {
    let mut drive = drive(&DriveOptions { clock: Clock::Real, ..losing_power() });
    for _ in 0..30 {
        let mut path = drive.open_path().expect("a path opens");
        do_all(&mut *path, [write(0, 512, 1, true)]);
        path.submit(Token(2), write(0, 512, 2, false)).expect("the queue has room");
        path.kick();
        drive.cut_power(|_| false);
        // Dropping the path waits for its thread to end.
        drop(path);
        let mut path = drive.open_path().expect("a path opens");
        let lost = (0..512).find(|lba| byte_at(&mut *path, *lba) != 1);
        assert_eq!(lost, None);
    }
}

#[test]
fn a_durable_write_takes_no_room_in_the_cache() {
    let mut drive = drive(&losing_power());
    let mut path = drive.open_path().expect("a path opens");
    path.submit(Token(1), write(0, 256, 1, true)).expect("the queue has room");
    path.submit(Token(2), write(256, 256, 1, false)).expect("the queue has room");
    let mut completions = Vec::new();
    path.wait(None, &mut completions);
    let first: Vec<Token> = completions.iter().map(|completion| completion.token).collect();
    assert_eq!(first, [Token(2)], "the whole second write must find room in the cache");
    assert!(drive.now() < Timing::PAPER.program);
}

/// A file system may take long to free space, and the drive is locked meanwhile. A path must still
/// report its geometry without waiting for the lock.
#[test]
fn what_a_path_can_do_is_known_while_the_drive_is_busy() {
    for clock in [Clock::Virtual, Clock::Real] {
        let mut drive = drive(&options(clock));
        let path = drive.open_path().expect("a path opens");
        let lba_count = drive.with_ftl(|ftl| (path.geometry().lba_count, ftl.config().lba_count));
        assert_eq!(lba_count.0, lba_count.1);
    }
}

#[test]
fn a_large_drive_that_holds_nothing_takes_no_memory() {
    let resident = || {
        let pages = std::fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
        let pages: u64 = pages
            .split(' ')
            .nth(1)
            .expect("the line has two fields")
            .parse()
            .expect("the field is a number");
        pages * 4096
    };
    let before = resident();
    let ftl = slimio_ssd::Ftl::new(Config::scaled(1 << 40)).expect("the configuration is valid");
    // The mapping reserves 2.3 GiB of addresses, but takes memory only for the parts that were
    // written. The limit leaves room for the memory of other tests that run at the same time.
    assert!(resident() < before + (500 << 20));
    assert_eq!(ftl.mapped_count(), 0);
}

#[test]
fn what_is_used_again_before_its_deallocation_is_acknowledged_is_lost() {
    let deallocate_latency = Duration::from_millis(10);
    let mut drive = drive(&DriveOptions { deallocate_latency, ..options(Clock::Virtual) });
    let mut path = drive.open_path().expect("a path opens");
    do_all(&mut *path, [write(0, 8, 1, true)]);
    path.submit(Token(2), Op::Deallocate { range: range(0, 8) }).expect("the queue has room");
    path.submit(Token(3), write(4, 1, 2, true)).expect("the queue has room");
    let mut completions = Vec::new();
    path.wait(None, &mut completions);
    assert_eq!(completions[0].token, Token(3), "the write must complete first");
    assert_eq!(drive.with_ftl(slimio_ssd::Ftl::mapped_count), 8);
    path.wait(None, &mut completions);
    assert_eq!(completions[1].token, Token(2));
    assert!(drive.now() >= deallocate_latency);
    assert_eq!(
        byte_at(&mut *path, 4),
        0xDD,
        "the write must be lost, because the deallocation is acknowledged after it"
    );
    do_all(&mut *path, [write(4, 1, 3, true)]);
    assert_eq!(byte_at(&mut *path, 4), 3);
}

#[test]
fn placements_lead_to_handles_and_are_accounted() {
    let mut drive = drive(&options(Clock::Virtual));
    assert_eq!(drive.placements().len(), 8);
    let mut path = drive.open_path().expect("a path opens");
    let to = |placement, lba| Op::Write {
        lba: Lba(lba),
        buffer: buffer(2, 1),
        placement: PlacementId(placement),
        durable: true,
    };
    do_all(&mut *path, [to(0, 0), to(3, 2), to(3, 4), to(99, 6)]);
    let account = drive.fdp().expect("the drive has an FDP account");
    let counters = drive.counters();
    let by_handle: Vec<u64> = counters.handles().iter().map(|of| of.host_pages).collect();
    assert_eq!(
        by_handle,
        [4, 0, 0, 4, 0, 0, 0, 0],
        "writes with an unknown placement must go to the first handle"
    );
    let events = account.host_events().expect("the events can be read");
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].name(), events[0].placement), ("invalid placement id", Some(99)));
    let unit = account.unit_blocks().expect("the size of a unit is known");
    let handles = account.handles().expect("the handles can be read");
    assert_eq!((handles.len(), handles[3].unit_blocks_left), (8, unit - 4));
    account.start_fresh_unit(PlacementId(3)).expect("the handle exists");
    assert_eq!(account.handles().expect("the handles can be read")[3].unit_blocks_left, unit);
    assert!(account.start_fresh_unit(PlacementId(8)).is_err());
    let statistics = account.statistics().expect("the statistics can be read");
    assert_eq!(statistics.host_bytes, 8 * LBA_SIZE as u128);
    assert_eq!(statistics.media_bytes, (8 + u128::from(unit) - 4) * LBA_SIZE as u128);
}

#[test]
fn a_conventional_drive_has_one_frontier() {
    let mut drive = drive(&DriveOptions { has_fdp: false, ..options(Clock::Virtual) });
    assert!(drive.placements().is_empty());
    let mut path = drive.open_path().expect("a path opens");
    let placement = PlacementId(2);
    let op = Op::Write { lba: Lba(1), buffer: buffer(1, 1), placement, durable: true };
    do_all(&mut *path, [op]);
    assert_eq!(drive.counters().handles()[0].host_pages, 1);
    assert_eq!(drive.with_ftl(|ftl| ftl.host_events().count()), 0);
    assert!(
        drive.watch().update_handle(PlacementId(0)).is_err(),
        "a conventional drive must have no handles"
    );
    assert_eq!(
        drive
            .fdp()
            .expect("the drive has an FDP account")
            .handles()
            .expect("the list can be read")
            .len(),
        0
    );
}

#[test]
fn dropped_data_reads_as_its_address() {
    let mut drive = drive(&DriveOptions { data: DataPlace::Dropped, ..options(Clock::Virtual) });
    let mut path = drive.open_path().expect("a path opens");
    do_all(&mut *path, [write(0x0101, 1, 9, true)]);
    let (read, _) = run(&mut *path, Op::Read { lba: Lba(0x0101), buffer: Buffer::zeroed(1) });
    let read = read.expect("the read returns its buffer");
    assert_eq!(read[LBA_SIZE - 8..], 0x0101_u64.to_le_bytes());
    assert_eq!(byte_at(&mut *path, 1), 0xDD);
}

#[test]
fn a_drive_that_can_not_work_is_refused_with_a_sentence() {
    let mut bad = options(Clock::Virtual);
    bad.config.lba_count += 1;
    let Err(refused) = EmulatedDrive::open(bad).map(drop) else {
        panic!("an invalid configuration is not refused")
    };
    assert!(refused.to_string().contains("not whole reclaim units"), "{refused}");
}
