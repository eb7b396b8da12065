//! Compares the mapping and the collector with a naive model of NAND, on random drives with random
//! steps.

use std::collections::HashSet;
use std::num::NonZeroU32;

use proptest::prelude::*;
use slimio_device::LBA_SIZE;
use slimio_device::PlacementId;
use slimio_sim::Random;
use slimio_ssd::{
    Config, EVENTS_MAX, EventKind, FdpEventRecord, Frontiers, Ftl, FtlError, Geometry, Isolation,
    NandPage, Observer, Owner, Thresholds, Timing, UnitState, Victims,
};

use crate::naive::Naive;

/// `start`, `at` and the `count` of a deallocation are shares of the drive, in 65536ths.
#[derive(Clone, Debug)]
enum Step {
    Write {
        start: u16,
        count: u64,
        handle: u16,
    },
    /// Overwrites one block many times.
    Beat {
        at: u16,
        count: u64,
        handle: u16,
    },
    Deallocate {
        start: u16,
        count: u16,
    },
    Everything {
        handle: u16,
    },
    FreshUnit {
        handle: u16,
    },
    Background,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (any::<u16>(), 1..40_u64, any::<u16>())
            .prop_map(|(start, count, handle)| Step::Write { start, count, handle }),
        4 => (any::<u16>(), 1..60_u64, any::<u16>())
            .prop_map(|(at, count, handle)| Step::Beat { at, count, handle }),
        4 => (any::<u16>(), any::<u16>()).prop_map(|(start, count)| Step::Deallocate {
            start,
            count: count / 8
        }),
        1 => any::<u16>().prop_map(|handle| Step::Everything { handle }),
        2 => any::<u16>().prop_map(|handle| Step::FreshUnit { handle }),
        1 => Just(Step::Background),
    ];
    prop::collection::vec(step, 1..80)
}

/// Configurations that can work. Many of them have barely enough spare units.
fn configs() -> impl Strategy<Value = Config> {
    let geometry = (1..3_u32, 1..4_u32, 1..6_u32, any::<bool>(), 1..20_u32);
    let how = (
        1..5_u16,
        any::<bool>(),
        prop_oneof![Just(Victims::Greedy), Just(Victims::Fifo), Just(Victims::CostBenefit)],
        any::<bool>(),
        1..4_u16,
        0..16_u128,
    );
    let thresholds = (1..4_u32, 0..12_u32, 0..1001_u32);
    (geometry, how, thresholds, 0..5_u32).prop_map(
        |((channels, dies, pages_per_block, is_split, exported), how, thresholds, extra)| {
            let (handles, persistent, victims, shared, groups, initial_handles) = how;
            let frontiers =
                if shared && handles == 1 { Frontiers::Shared } else { Frontiers::Separate };
            let isolation = if persistent { Isolation::Persistent } else { Isolation::Initial };
            let mut config = Config {
                geometry: Geometry {
                    channels,
                    dies_per_channel: dies,
                    blocks_per_die: 1,
                    pages_per_block,
                    dies_per_unit: if is_split { NonZeroU32::new(dies) } else { None },
                },
                lba_count: 0,
                handles,
                groups,
                isolation,
                initial_handles,
                victims,
                frontiers,
                thresholds: Thresholds {
                    foreground_units: thresholds.0,
                    background_units: thresholds.1,
                    background_invalid_permille: thresholds.2,
                },
                timing: Timing::PAPER,
            };
            let units = exported + config.spare_units_min() + extra;
            let groups = if is_split { channels } else { 1 };
            config.geometry.blocks_per_die = units.div_ceil(groups);
            config.lba_count = u64::from(exported) * u64::from(config.geometry.unit_pages());
            config
        },
    )
}

fn run(config: &Config, steps: &[Step]) {
    let mut drive = Ftl::new(config.clone()).expect("the configuration is valid");
    let mut naive = Naive::new(config);
    let lbas = config.lba_count;
    let at = |share: u16| (u64::from(share) * lbas) >> 16;
    for step in steps {
        let mut write = |drive: &mut Ftl, lba: u64, handle: u16| {
            naive.handle = handle % config.handles;
            let placement = placement_of(config, handle);
            drive
                .write_observed(lba, placement, &mut naive)
                .expect("the block is within the drive");
        };
        match *step {
            Step::Write { start, count, handle } => {
                for lba in at(start)..(at(start) + count).min(lbas) {
                    write(&mut drive, lba, handle);
                }
            }
            Step::Beat { at: place, count, handle } => {
                for _ in 0..count {
                    write(&mut drive, at(place), handle);
                }
            }
            Step::Everything { handle } => {
                for lba in 0..lbas {
                    write(&mut drive, lba, handle);
                }
            }
            Step::Deallocate { start, count } => {
                let count = at(count).min(lbas - at(start));
                drive.deallocate(at(start), count).expect("the range is within the drive");
                naive.deallocate(at(start), count);
            }
            Step::FreshUnit { handle } => {
                let placement = placement_of(config, handle);
                drive.start_fresh_unit(placement, &mut naive).expect("the handle exists");
                let left = drive.handle_pages_left(placement);
                // If the collector fills the same unit as the host, the collector may already have
                // written to the fresh unit.
                let is_shared = config.frontiers == Frontiers::Shared;
                assert!(is_shared || left == Ok(config.geometry.unit_pages()), "{left:?}");
            }
            Step::Background => {
                drive.collect_in_background(&mut naive);
            }
        }
        compare(&drive, &naive);
    }
}

/// Some placement of the drive, chosen by `number`.
fn placement_of(config: &Config, number: u16) -> u16 {
    config.placement(number / config.handles % config.groups, number % config.handles).0
}

pub(crate) fn compare(drive: &Ftl, naive: &Naive) {
    let config = drive.config();
    drive.check();
    assert_eq!(drive.mapped_count(), naive.mapped_count());
    let mut pages = HashSet::new();
    for lba in 0..config.lba_count {
        let page = drive.page_of(lba);
        assert_eq!(page, naive.place(lba).map(NandPage), "block {lba}");
        if let Some(page) = page {
            assert!(pages.insert(page), "{page:?} is mapped twice");
            assert_eq!(drive.lba_of(page), Some(lba));
        }
    }
    for page in 0..config.geometry.page_count() as u32 {
        assert_eq!(drive.lba_of(NandPage(page)), naive.valid_lba(page), "page {page}");
    }
    let mut valid = 0;
    for (unit, report) in (0..).zip(drive.units()) {
        assert_eq!(report.valid, naive.valid_count(unit), "unit {unit}: {report:?}");
        assert_eq!(report.written, naive.written_count(unit), "unit {unit}: {report:?}");
        valid += u64::from(report.valid);
        assert_eq!(report.state == UnitState::Free, report.owner.is_none());
        match report.owner {
            None => assert_eq!(report.written, 0),
            Some(Owner::Mixed) => {
                let is_initial = |handle: u16| config.isolation_of(handle) == Isolation::Initial;
                assert!(naive.handles_in(unit).into_iter().all(is_initial), "unit {unit}");
            }
            Some(Owner::Handle(handle)) => {
                let others = naive.handles_in(unit).into_iter().find(|other| *other != handle);
                assert_eq!(others, None, "unit {unit} of handle {handle}");
            }
        }
    }
    assert_eq!(valid, drive.mapped_count(), "the valid counts add up to all mapped blocks");
    let groups = u32::from(config.groups);
    assert!(drive.free_units() >= config.thresholds.foreground_units / groups * groups);
    compare_counters(drive, naive);
}

fn compare_counters(drive: &Ftl, naive: &Naive) {
    let (config, counters) = (drive.config(), drive.counters());
    let bytes = |pages: u64| pages * LBA_SIZE as u64;
    let host: u64 = naive.host_pages.iter().sum();
    let copied: u64 = naive.copied_pages.iter().sum();
    assert_eq!(counters.host_bytes(), bytes(host));
    assert_eq!(counters.copied_bytes(), bytes(copied));
    assert_eq!(counters.media_bytes(), bytes(host + copied + naive.padded_pages));
    assert_eq!(counters.erased_bytes(), naive.erased_units * config.geometry.unit_size());
    let media_units: u64 = drive.units().map(|unit| u64::from(unit.written)).sum();
    assert_eq!(
        counters.media_bytes(),
        bytes(media_units) + counters.erased_bytes(),
        "each page that was written to the media is still written or was erased"
    );
    for (handle, of_handle) in counters.handles().iter().enumerate() {
        assert_eq!(of_handle.host_pages, naive.host_pages[handle]);
        if config.isolation_of(handle as u16) == Isolation::Persistent {
            assert_eq!(of_handle.copied_pages, naive.copied_pages[handle]);
        }
    }
    if (0..config.handles).all(|handle| config.isolation_of(handle) == Isolation::Persistent) {
        assert_eq!(*counters.mixed(), slimio_ssd::HandleCounters::default());
    }
}

proptest! {
    #[test]
    fn the_drive_is_like_naive_nand(config in configs(), steps in steps()) {
        run(&config, &steps);
    }
}

pub(crate) fn small() -> Config {
    let config = Config::scaled(16 << 20);
    assert_eq!(config.handles, 8);
    config
}

#[test]
fn a_full_drive_can_be_overwritten_for_ever() {
    for victims in [Victims::Greedy, Victims::Fifo, Victims::CostBenefit] {
        let mut config = Config { victims, handles: 2, ..small() };
        config.thresholds = Thresholds::LAST_MOMENT;
        let unit_pages = u64::from(config.geometry.unit_pages());
        config.geometry.blocks_per_die = 24;
        config.lba_count = u64::from(24 - config.spare_units_min()) * unit_pages;
        let mut drive = Ftl::new(config.clone()).expect("the configuration is valid");
        let mut naive = Naive::new(&config);
        let mut random = Random::new(1);
        for _ in 0..20_000 {
            let lba = random.below(config.lba_count);
            naive.handle = u16::from(lba.is_multiple_of(3));
            drive
                .write_observed(lba, naive.handle, &mut naive)
                .expect("the block is within the drive");
        }
        compare(&drive, &naive);
        assert!(drive.counters().waf().expect("the host has written") > 1.0);
    }
}

#[test]
fn lifetimes_apart_cost_nothing_and_mixed_they_do() {
    // The first half of the drive is overwritten in order. After every eighth of these writes, one
    // block of the third quarter is overwritten, also in order. So the data in the third quarter
    // lives four times as long as the data in the first half.
    let waf = |handles: u16| {
        let mut drive = Ftl::new(Config { handles, ..Config::scaled(64 << 20) })
            .expect("the configuration is valid");
        let lbas = drive.config().lba_count;
        let (window, long_lived) = (lbas / 2, lbas / 4);
        for round in 0..6 * lbas {
            drive.write(round % window, 0).expect("the block is within the drive");
            if round % 8 == 0 {
                let lba = window + round / 8 % long_lived;
                drive.write(lba, 1 % handles).expect("the block is within the drive");
            }
        }
        drive.counters().waf().expect("the host has written")
    };
    let (apart, mixed) = (waf(8), waf(1));
    assert!(apart <= 1.005, "{apart}");
    assert!(mixed > 1.05, "{mixed}");
}

#[test]
fn what_is_beyond_the_drive_is_refused_and_changes_nothing() {
    let mut drive = Ftl::new(small()).expect("the configuration is valid");
    let lbas = drive.config().lba_count;
    drive.write(lbas - 1, 7).expect("the last block and the last handle exist");
    let beyond = drive.write(lbas, 0).expect_err("the block is beyond the drive");
    assert_eq!(beyond, FtlError::OutOfRange { lba: lbas, lba_count: lbas });
    let sentence = format!("block {lbas} is beyond the drive, which has {lbas} blocks");
    assert_eq!(beyond.to_string(), sentence);
    for (lba, count) in [(lbas - 1, 2), (u64::MAX, 1), (1, u64::MAX)] {
        assert!(matches!(drive.deallocate(lba, count), Err(FtlError::OutOfRange { .. })));
    }
    let unknown = drive.write(0, 8).expect_err("handle 8 does not exist");
    assert_eq!(
        unknown.to_string(),
        "there is no handle 8: the drive has 8 handles, counted from 0"
    );
    assert_eq!((drive.mapped_count(), drive.counters().host_bytes()), (1, 4096));
}

#[test]
fn events_tell_what_became_of_the_handles() {
    let mut drive = Ftl::new(small()).expect("the configuration is valid");
    let unit_pages = u64::from(drive.config().geometry.unit_pages());
    for lba in 0..=unit_pages {
        drive.write(lba, 3).expect("the block is within the drive");
    }
    drive.set_time(1_700_000_000_000);
    drive.start_fresh_unit(3, &mut ()).expect("the handle exists");
    drive.set_time(1_700_000_000_001);
    drive.note_invalid_placement(99);
    let found: Vec<FdpEventRecord> = drive.host_events().copied().collect();
    let (placement, nsid) = (Some(PlacementId(3)), Some(1));
    let not_full = FdpEventRecord {
        kind: EventKind::UnitNotFull,
        time_ms: 1_700_000_000_000,
        placement,
        nsid,
        location: Some((0, 3)),
        specific: [0; 16],
    };
    let invalid = FdpEventRecord {
        kind: EventKind::InvalidPlacement,
        time_ms: 1_700_000_000_001,
        placement: Some(PlacementId(99)),
        location: None,
        ..not_full
    };
    assert_eq!(found, [not_full, invalid]);
    assert_eq!(drive.controller_events().count(), 0, "a full unit is no event");
    for round in 0..4 * drive.config().lba_count {
        drive
            .write(round * 31 % drive.config().lba_count, 0)
            .expect("the block is within the drive");
    }
    assert_eq!(drive.host_events().count(), 2, "controller events do not displace host events");
    assert_eq!(drive.controller_events().count(), EVENTS_MAX);
    let copied = drive.controller_events().last().expect("there is an event");
    assert_eq!((copied.kind, copied.location), (EventKind::Reallocated, Some((0, 0))));
    let codes = EventKind::ALL.map(EventKind::code);
    assert_eq!(codes, [0, 2, 3, 0x80, 0x81]);
}

/// Records the pages that the collector copies out of its latest victim.
#[derive(Default)]
struct Copies {
    from: Vec<NandPage>,
    erased: u32,
}

impl Observer for Copies {
    fn victim(&mut self, _: u32) {
        self.from.clear();
    }

    fn copy(&mut self, from: NandPage, _: NandPage) {
        self.from.push(from);
    }

    fn erase(&mut self, _: u32) {
        self.erased += 1;
    }
}

#[test]
fn a_reallocation_says_how_many_blocks_were_moved_and_which_was_the_first() {
    let mut drive = Ftl::new(small()).expect("the configuration is valid");
    let lbas = drive.config().lba_count;
    let mut copies = Copies::default();
    let mut lba_of = std::collections::HashMap::new();
    for round in 0..4 * lbas {
        let lba = round * 31 % lbas;
        drive.write_observed(lba, 2, &mut copies).expect("the block is within the drive");
        if copies.erased > 0 && !copies.from.is_empty() {
            break;
        }
        copies = Copies::default();
        lba_of.insert(drive.page_of(lba).expect("the block was written"), lba);
    }
    let event = drive.controller_events().last().expect("the collector has worked");
    assert_eq!((event.kind, event.placement), (EventKind::Reallocated, Some(PlacementId(2))));
    let mut specific = [0; 16];
    specific[0] = 1;
    specific[2..4].copy_from_slice(&(copies.from.len() as u16).to_le_bytes());
    specific[4..12].copy_from_slice(&lba_of[&copies.from[0]].to_le_bytes());
    assert_eq!(event.specific, specific);
}

#[test]
fn a_handle_records_what_it_was_told_to() {
    let mut drive = Ftl::new(small()).expect("the configuration is valid");
    drive.enable_events(3, &[EventKind::UnitNotFull], false).expect("the handle exists");
    for handle in [3, 4] {
        drive.write(0, handle).expect("the block is within the drive");
        drive.start_fresh_unit(handle, &mut ()).expect("the handle exists");
    }
    let of = |drive: &Ftl| drive.host_events().map(|event| event.location).collect::<Vec<_>>();
    assert_eq!(of(&drive), [Some((0, 4))]);
    let enabled = drive.enabled_events(3).expect("the handle exists");
    let all_but_one: Vec<_> =
        EventKind::ALL.into_iter().map(|kind| (kind.code(), kind.code() != 0)).collect();
    assert_eq!(enabled, all_but_one);
    drive.enable_events(3, &[EventKind::UnitNotFull], true).expect("the handle exists");
    drive.write(0, 3).expect("the block is within the drive");
    drive.start_fresh_unit(3, &mut ()).expect("the handle exists");
    assert_eq!(of(&drive), [Some((0, 4)), Some((0, 3))]);
    assert!(drive.enable_events(8, &[], true).is_err() && drive.enabled_events(8).is_err());
}
