//! Power cuts on an emulated SSD with a volatile cache. The volume on the SSD is opened as the
//! server opens it. Each drive goes through many random lives. A life ends when the power is cut:
//! at a random operation, which may be during recovery, or after the last step of the life.

use slimio_device::LBA_SIZE;
use slimio_sim::Random;
use slimio_storage::{FormatOptions, Policy, Volume, VolumeId, format};

use crate::common::drive::SwitchedDrive;
use crate::common::random::{Oracle, Step, policy};
use crate::common::{Client, Disk, Script, options, reopen};

/// The drive's size in bytes, which is enough for the superblock, the buffers and twelve extents.
const SIZE: u64 = 78 << 20;

const LAYOUT: FormatOptions = FormatOptions {
    volume_id: VolumeId(77),
    segment_lbas: 64,
    batch_lbas_max: 16,
    wal_slots_max: 32,
    replace: true,
};

const DRIVES: u64 = 12;

/// Number of lives on each drive, apart from the last one.
const LIVES: usize = 16;

/// The largest number of steps of a life. After these steps, power is cut.
const STEPS_MAX: usize = 600;

/// A random number below 2^`bits`. All magnitudes are equally likely.
fn any_size(random: &mut Random, bits: u64) -> u64 {
    let below = 1 << random.below(bits + 1);
    random.below(below)
}

fn step(random: &mut Random) -> Step {
    match random.below(25) {
        0..=10 => Step::Append(any_size(random, 18) as usize),
        11..=13 => Step::Turn,
        14..=15 => Step::Idle,
        16 => Step::Pass(random.below(1500)),
        17 => Step::Policy(random.below(3) as u8),
        18 => Step::RequestDurable,
        19 => Step::Release,
        20..=21 => Step::Snapshot(random.coin()),
        22 => Step::CancelSnapshot,
        23 => Step::GiveBack,
        _ => Step::Resume,
    }
}

/// Opens the volume. Returns `None` if the power was cut before the volume was open.
fn open(drive: &SwitchedDrive, policy: Policy) -> Option<(Volume, Script)> {
    match reopen(&mut *drive.storage().media, &options(policy)) {
        Ok(opened) => Some(opened),
        Err(error) => {
            assert!(drive.has_crashed(), "{error}");
            None
        }
    }
}

/// Treats the log's mapped buffers as a power cut would: each buffer keeps either all of its
/// contents or nothing.
fn lose_buffers(drive: &SwitchedDrive, random: &mut Random) {
    let size = LAYOUT.batch_lbas_max as usize * LBA_SIZE;
    let buffers = drive.storage().media.open_buffers(size).expect("the buffers can be mapped");
    for mut buffer in buffers.into_iter().take(options(Policy::Always).buffer_count) {
        if random.coin() {
            buffer.fill(0);
        }
    }
}

/// Totals over several lives.
#[derive(Debug, Default)]
struct Tally {
    /// Lives that ended before the volume was open.
    in_recovery: usize,
    /// Records that were reported durable, so no power cut may lose them.
    promised: usize,
    log_bytes: u64,
    deallocated_bytes: u64,
}

/// Runs [`LIVES`] lives on one drive, and then a last life, in which the power is cut only after
/// its last step.
fn live(spec: &str, seed: u64, tally: &mut Tally) {
    let mut random = Random::new(seed);
    let drive = SwitchedDrive::new(spec, seed);
    format(&mut *drive.storage().media, &LAYOUT).expect("the drive has room for the volume");
    let (mut oracle, mut at_least) = (Oracle::default(), 0);
    for life in 0..=LIVES {
        let context = format!("{spec}, seed {seed}, life {life}");
        // In every life but the last, the power is cut after this many operations at the latest.
        let operations = 1 + any_size(&mut random, 13);
        drive.turn_on((life < LIVES).then_some(operations));
        let Some((volume, recovered)) = open(&drive, policy(random.below(3) as u8)) else {
            tally.in_recovery += 1;
            lose_buffers(&drive, &mut random);
            continue;
        };
        oracle.recovered(&recovered, at_least, &context);
        let mut client = Client::new(volume, drive.clone(), oracle.len());
        client.history = recovered;
        for _ in 0..STEPS_MAX {
            if client.is_over() {
                break;
            }
            oracle.perform(&mut client, &step(&mut random));
        }
        at_least = client.durable;
        tally.log_bytes += client.volume.log.stats().log_bytes;
        drive.cut_now();
        drop(client);
        lose_buffers(&drive, &mut random);
    }
    tally.promised += at_least;
    tally.deallocated_bytes += drive.deallocated() * LBA_SIZE as u64;
}

fn lives(options: &str) {
    let mut tally = Tally::default();
    for seed in 0..DRIVES {
        live(&format!("size={SIZE},ru=1M,{options}"), seed, &mut tally);
    }
    // The lives must test at least as much as when this test was written.
    let Tally { in_recovery, promised, log_bytes, deallocated_bytes } = tally;
    let is_enough = in_recovery >= 50 && promised >= 12_000 && log_bytes >= 150 << 20;
    assert!(is_enough && deallocated_bytes >= 60 << 20, "the lives have shrunk to {tally:?}");
}

#[test]
fn random_lives_lose_nothing_when_power_is_cut() {
    lives("cache=1M");
}

#[test]
fn random_lives_lose_nothing_where_deallocations_are_late() {
    lives("cache=1M,deallocate=40");
}

#[test]
fn random_lives_lose_nothing_without_a_cache() {
    lives("cache=0");
}
