//! Tests of reclaim groups, and of SSDs that have handles of both isolation types.

use std::collections::HashSet;

use slimio_device::PlacementId;
use slimio_sim::Random;
use slimio_ssd::{Config, EventKind, FdpEventRecord, Ftl, Owner, Thresholds};

use crate::ftl::{compare, small};
use crate::naive::Naive;

#[test]
fn a_placement_has_its_group_in_the_upper_bits() {
    let config = |groups| Config { groups, ..small() };
    let all = |groups| config(groups).placements().map(|at| at.0).collect::<Vec<_>>();
    assert_eq!((config(1).group_bits(), all(1)), (0, (0..8).collect()));
    assert_eq!(config(2).group_bits(), 1);
    assert_eq!(all(2)[7..10], [7, 0x8000, 0x8001]);
    assert_eq!((config(3).group_bits(), config(4).group_bits(), config(5).group_bits()), (2, 2, 3));
    assert_eq!(config(3).placement(2, 5), PlacementId(0x8005));
    for groups in 1..=5 {
        let config = config(groups);
        for (at, placement) in (0..).zip(config.placements()) {
            assert_eq!(config.parse_placement(placement), Some((at / 8, at % 8)));
        }
        assert_eq!(config.parse_placement(PlacementId(8)), None, "handle 8 does not exist");
    }
    assert_eq!(config(3).parse_placement(PlacementId(0xC000)), None, "group 3 does not exist");
}

/// A drive with two groups and one handle. It collects only at the last moment.
fn grouped() -> Config {
    let mut config = Config { groups: 2, handles: 1, ..small() };
    config.thresholds = Thresholds::LAST_MOMENT;
    config
}

#[test]
fn a_group_has_its_own_units() {
    let mut drive = Ftl::new(grouped()).expect("the configuration is valid");
    let config = drive.config().clone();
    let (unit_pages, quarter) = (config.geometry.unit_pages(), config.lba_count / 4);
    for round in 0..8 {
        for lba in 0..quarter {
            drive
                .write((lba * 7 + round) % quarter, 0x8000)
                .expect("the block is within the drive");
            drive.write(quarter + lba, 0).expect("the block is within the drive");
        }
    }
    let groups = |range: std::ops::Range<u64>| {
        let units =
            range.map(|lba| drive.page_of(lba).expect("the block was written").0 / unit_pages);
        units.map(|unit| unit % 2).collect::<HashSet<u32>>()
    };
    assert_eq!(groups(0..quarter), HashSet::from([1]));
    assert_eq!(groups(quarter..2 * quarter), HashSet::from([0]));
    assert!(drive.counters().erased_bytes() > 0, "the collector has worked");
    assert_eq!(drive.controller_events().filter(|at| at.kind == EventKind::HandleMoved).count(), 0);
}

#[test]
fn a_handle_whose_group_is_full_goes_on_in_another_and_says_so() {
    let mut drive = Ftl::new(grouped()).expect("the configuration is valid");
    let config = drive.config().clone();
    for lba in 0..config.lba_count {
        drive.write(lba, 0x8000).expect("the block is within the drive");
    }
    drive.check();
    assert_eq!(drive.mapped_count(), config.lba_count, "all blocks are mapped");
    let moved: Vec<FdpEventRecord> = drive.controller_events().copied().collect();
    assert!(!moved.is_empty());
    for event in moved {
        assert_eq!(
            (event.kind, event.placement),
            (EventKind::HandleMoved, Some(PlacementId(0x8000)))
        );
        assert_eq!(event.location, Some((0, 0)), "the handle goes on in the other group");
    }
    // The deallocation makes room in the full group, so the handle returns to that group.
    drive.deallocate(0, config.lba_count).expect("the range is within the drive");
    let before = drive.controller_events().count();
    for lba in 0..config.lba_count / 4 {
        drive.write(lba, 0x8000).expect("the block is within the drive");
    }
    assert_eq!(drive.controller_events().count(), before);
    drive.check();
}

#[test]
fn copied_data_ends_where_the_type_of_its_handle_says() {
    let mut config = Config { handles: 4, initial_handles: 0b0110, ..small() };
    config.thresholds = Thresholds::LAST_MOMENT;
    let mut drive = Ftl::new(config.clone()).expect("the configuration is valid");
    let mut naive = Naive::new(&config);
    let mut random = Random::new(4);
    for _ in 0..6 * config.lba_count {
        let lba = random.below(config.lba_count);
        naive.handle = (lba % 4) as u16;
        drive.write_observed(lba, naive.handle, &mut naive).expect("the block is within the drive");
    }
    compare(&drive, &naive);
    let handles_in = |owner| -> Vec<Vec<u16>> {
        let units = (0..).zip(drive.units()).filter(|(_, unit)| unit.owner == Some(owner));
        units.map(|(unit, _)| naive.handles_in(unit).into_iter().collect()).collect()
    };
    assert!(handles_in(Owner::Mixed).contains(&vec![1, 2]), "handles 1 and 2 share units");
    for (handle, mixes) in [(0, false), (1, true), (2, true), (3, false)] {
        let copied = drive.counters().handles()[usize::from(handle)].copied_pages;
        assert!(copied > 0, "the collector has copied pages of handle {handle}");
        assert!(handles_in(Owner::Handle(handle)).iter().all(|all| *all == [handle]));
        let copies = naive.copied_pages[usize::from(handle)];
        assert_eq!(
            copied < copies,
            mixes,
            "a page that was copied out of a mixed unit is counted for no handle"
        );
    }
}
