//! Staged records, which are built beside the log, in buffers of their own.

use slimio_sim::SimConfig;
use slimio_storage::{Policy, Room};

use crate::common::{BATCH_SIZE, Client, Kind, formatted, options, reopen, small_script};

/// The buffers of a staged record are not mapped from a file, so they end with the process. If the
/// log put later records into such a buffer, these records would outlive the process only once they
/// were written.
#[test]
fn what_comes_behind_it_is_kept_at_once() {
    let mut media = formatted(SimConfig::default(), Kind::Files);
    // This crash point is never reached. It is set because the disk watches mapped memory only
    // while a crash is planned.
    media.disk.crash_after(1_000_000);
    let (volume, _) = reopen(&mut media, &options(Policy::EverySec)).expect("the volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    let payload = vec![7; 2 * BATCH_SIZE];
    while client.volume.log.room(payload.len() as u64) == Room::Wait {
        client.turn(true);
    }
    let mut record = client.volume.log.stage(3);
    payload.chunks(1000).for_each(|part| record.write(part));
    let lsn = client.volume.log.append_staged(record);
    assert!(client.volume.log.kept() < lsn, "the buffers of a staged record are not mapped");
    client.settle();
    assert_eq!(client.volume.log.kept(), lsn);

    let script = small_script(9);
    for record in &script {
        assert!(client.append(record));
        assert_eq!(client.volume.log.kept(), client.volume.log.appended());
        client.turn(true);
    }
    client.settle();
    drop(client);
    let (_, recovered) = reopen(&mut media, &options(Policy::EverySec)).expect("the volume opens");
    assert_eq!(recovered, [&[(3, payload)], &script[..]].concat());
}
