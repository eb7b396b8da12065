//! The log's mapped buffers outlive the process. A process may die between any two stores to them.
//! Recovery must always be able to read what the buffers then hold.

use std::time::Duration;

use crate::common::{
    Client, Kind, SMALL, SimMedia, WAL, formatted, formatted_as, options, reopen, script,
};
use slimio_device::LBA_SIZE;
use slimio_sim::{Limits, SimConfig};
use slimio_storage::{FormatOptions, Policy, Room};

#[test]
fn an_append_may_stop_at_any_byte() {
    let script = script(8);
    let config = SimConfig::default();
    let limits = Limits { exhaustive_max: 4, random_count: 0, torn: false };
    let mut count = 0;
    for appended in 0..script.len() {
        let mut media = formatted(config, Kind::Files);
        // This crash point is never reached. It is set because the disk watches mapped memory only
        // while a crash is planned.
        media.disk.crash_after(1_000_000);
        let (volume, _) = reopen(&mut media, &options(Policy::EverySec)).expect("the volume opens");
        let mut client = Client::new(volume, media.disk.clone(), 0);
        for record in &script[..appended] {
            assert!(client.append(record));
            client.turn(appended % 2 == 0);
        }
        let before = client.disk.mapped_now();
        assert!(client.append(&script[appended]));
        let after = client.disk.mapped_now();
        assert_eq!(client.volume.log.kept(), client.volume.log.appended());
        let mut images = client.disk.crash_now().process_images(&limits);
        let image = images.last_mut().expect("a crash leaves at least one image");

        let changed: Vec<usize> = (0..before.len()).filter(|&at| before[at] != after[at]).collect();
        let step = (changed.len() / 100).max(1);
        for cut in changed.iter().step_by(step).copied().chain([before.len()]) {
            for is_forward in [true, false] {
                // Either only the stores below `cut` have happened, or only the stores from `cut`
                // on.
                let (first, second) =
                    if is_forward { (&after, &before) } else { (&before, &after) };
                image.mapped = [&first[..cut], &second[cut..]].concat();
                let mut media = SimMedia::from_image(config, Kind::Files, image);
                let (_, recovered) =
                    reopen(&mut media, &options(Policy::EverySec)).expect("the volume opens");
                assert!(
                    script.starts_with(&recovered),
                    "{appended} records, cut at {cut}: a record differs"
                );
                assert!(
                    recovered.len() >= appended,
                    "{appended} records, cut at {cut}: one is lost"
                );
                assert!(
                    recovered.len() <= appended + 1,
                    "{appended} records, cut at {cut}: too many"
                );
                count += 1;
            }
        }
    }
    assert!(count > 700, "only {count} cuts were tried");
}

#[test]
fn another_number_of_buffers_may_be_asked_for() {
    let script = script(5);
    let mut media = formatted(SimConfig::default(), Kind::Files);
    media.disk.crash_after(1_000_000);
    let (volume, _) = reopen(&mut media, &options(Policy::EverySec)).expect("the volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    client.write(&script, 9);
    let limits = Limits { exhaustive_max: 0, random_count: 0, torn: false };
    let image = client.disk.crash_now().process_images(&limits).swap_remove(0);
    for buffer_count in [1, 3, 4, 9] {
        let mut media = SimMedia::from_image(SimConfig::default(), Kind::Files, &image);
        let mut options = options(Policy::EverySec);
        options.buffer_count = buffer_count;
        let (volume, recovered) = reopen(&mut media, &options).expect("the volume opens");
        assert_eq!(recovered, script);
        assert!(volume.report.rescued_bytes > 0);
        let mut client = Client::new(volume, media.disk.clone(), recovered.len());
        client.write(&script, 1);
        client.settle();
        drop(client);
        let (_, recovered) = reopen(&mut media, &options).expect("the volume opens");
        assert_eq!(recovered, [&script[..], &script[..]].concat());
    }
}

#[test]
fn without_mapping_a_write_is_kept_when_it_is_written() {
    let mut media = formatted(SimConfig::default(), Kind::Files);
    media.can_map = false;
    let (volume, _) = reopen(&mut media, &options(Policy::EverySec)).expect("the volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    let lsn = client.volume.log.append(0, &[b"payload"]);
    assert!(client.volume.log.kept() < lsn);
    client.turn(true);
    assert_eq!(client.volume.log.kept(), lsn);
    assert!(client.volume.log.durable() < lsn);
}

/// Rescued records are those that were only in the buffers. Recovery must append them in the same
/// batches as before. In other batches, the records could need more blocks.
#[test]
fn what_is_rescued_needs_no_more_room_than_it_had() {
    let layout = FormatOptions { segment_lbas: 12, ..SMALL };
    let mut media = formatted_as(SimConfig::default(), Kind::Files, &layout);
    // This crash point is never reached. It is set because the disk watches mapped memory only
    // while a crash is planned.
    media.disk.crash_after(1_000_000);
    let mut options = options(Policy::Always);
    (options.buffer_count, options.commits_in_flight) = (20, 20);
    let (volume, _) = reopen(&mut media, &options).expect("the volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    client.pass(Duration::from_secs(1));
    client.disk.faults(|faults| {
        faults.full = true;
        faults.held.extend((0..24).map(|lba| (WAL, lba)));
    });
    let mut script = Vec::new();
    // Batches of one block alternate with batches of nearly two blocks. Each batch of nearly two
    // blocks starts with a small record.
    'full: loop {
        for sizes in [&[4000][..], &[80, 7880]] {
            for &size in sizes {
                let log = &mut client.volume.log;
                if log.room(size as u64) == Room::Full {
                    break 'full;
                }
                script.push((0, vec![script.len() as u8; size]));
                log.append(0, &[&script[script.len() - 1].1]);
            }
            client.turn(false);
        }
    }
    let limits = Limits { exhaustive_max: 0, random_count: 0, torn: false };
    let image = client.disk.crash_now().process_images(&limits).swap_remove(0);
    let mut media = SimMedia::from_image(SimConfig::default(), Kind::Files, &image);
    media.disk.faults(|faults| faults.full = true);
    let (volume, recovered) = reopen(&mut media, &options).expect("the volume opens");
    assert_eq!(recovered, script);
    assert!(volume.report.rescued_bytes > 20 * LBA_SIZE as u64, "{:?}", volume.report);
}
