//! Faults of the mapped buffers: pages that the kernel can't provide. The tests truncate the mapped
//! file while the buffers are in use. The process then meets the same fault as on a full
//! copy-on-write file system or a bad sector.
//!
//! A record is *kept* if it survives the end of the process. If a fault loses acknowledged records,
//! the log *latches*: it writes nothing any more.

use std::fs::OpenOptions;
use std::path::PathBuf;

use crate::common::{BATCH_SIZE, Client, Kind, SimMedia, formatted, options, reopen, script};
use slimio_device::{Buffer, Device, Directory, LBA_SIZE, OpenError, PathOptions};
use slimio_sim::{Limits, SimConfig};
use slimio_storage::{Area, LatchCause, Media, Policy, SlotName};

const BUFFER_COUNT: usize = 4;

/// A simulated disk, with buffers that are mapped from a file.
struct FileMedia {
    sim: SimMedia,
    directory: Directory,
    place: PathBuf,
    loses: Loses,
    /// Whether a start has mapped the file.
    is_mapped: bool,
}

/// How far a start has come when the file is truncated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loses {
    Never,
    /// As soon as the file is mapped.
    WhenMapped,
    /// When the log's path is opened again after the file was mapped. By then, recovery has read
    /// the buffers once.
    WhenRead,
}

impl FileMedia {
    fn new(place: &tempfile::TempDir) -> Self {
        let directory = Directory::open(place.path(), PathOptions::default());
        Self {
            sim: formatted(SimConfig::default(), Kind::Files),
            directory: directory.expect("no other test uses the directory"),
            place: place.path().join("buffers"),
            loses: Loses::Never,
            is_mapped: false,
        }
    }
}

impl Media for FileMedia {
    fn open_path(&mut self, area: Area) -> Result<Box<dyn Device + Send>, OpenError> {
        if area == Area::Wal && self.is_mapped && self.loses == Loses::WhenRead {
            cut(&self.place, 0);
        }
        self.sim.open_path(area)
    }

    fn make_slot(&mut self, slot: SlotName) -> Result<(), OpenError> {
        self.sim.make_slot(slot)
    }

    fn create(&mut self, super_lbas: u64, wal_lbas: u64) -> Result<(), OpenError> {
        self.sim.create(super_lbas, wal_lbas)
    }

    fn open_buffers(&mut self, size: usize) -> Result<Vec<Buffer>, OpenError> {
        if !self.place.exists() {
            return Ok(Vec::new());
        }
        let buffers = self.directory.open_mapped("buffers")?.buffers(size);
        self.is_mapped = true;
        if self.loses == Loses::WhenMapped {
            cut(&self.place, 0);
        }
        Ok(buffers)
    }

    fn make_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, OpenError> {
        Ok(self.directory.create_mapped("buffers", count * size)?.buffers(size))
    }

    fn buffers_outlive_process(&self) -> bool {
        true
    }

    fn fresh_blocks_need_zeroing(&self) -> bool {
        true
    }
}

/// Sets the length of the file, in bytes.
fn cut(place: &PathBuf, size: u64) {
    let file = OpenOptions::new().write(true).open(place);
    file.and_then(|file| file.set_len(size)).expect("the length can be set");
}

/// The medium that the next process finds: the disk as it is now, and the remaining contents of the
/// file.
fn next_life(client: &Client, place: &PathBuf) -> SimMedia {
    let limits = Limits { exhaustive_max: 0, random_count: 0, torn: false };
    let mut image = client.disk.crash_now().process_images(&limits).swap_remove(0);
    image.mapped = std::fs::read(place).expect("the file can be read");
    image.mapped.resize(BUFFER_COUNT * BATCH_SIZE, 0);
    SimMedia::from_image(SimConfig::default(), Kind::Files, &image)
}

/// A client of a new volume under `everysec`, with `count` records in the open batch.
fn client_with(media: &mut FileMedia, count: usize) -> Client {
    let (volume, _) = reopen(media, &options(Policy::EverySec)).expect("the volume opens");
    let mut client = Client::new(volume, media.sim.disk.clone(), 0);
    for record in &script(count) {
        assert!(client.append(record));
    }
    client.turn(false);
    assert_eq!(client.acknowledged, count, "a record in a mapped buffer is acknowledged at once");
    client
}

/// A record as large as a page.
fn large() -> (u16, Vec<u8>) {
    (0, vec![7; LBA_SIZE])
}

/// A client whose process has met a fault. The open batch has two pages. The first page is in the
/// file. The second page was cut off before the second record was stored in it.
fn client_behind_fault(media: &mut FileMedia) -> Client {
    let mut client = client_with(media, 1);
    let before = client.volume.log.kept();
    cut(&media.place, LBA_SIZE as u64);
    assert!(client.append(&large()));
    let log = &client.volume.log;
    assert_eq!(log.kept(), before, "only the first record is kept");
    assert_eq!(log.releasable(client.now), before);
    assert!(!log.are_buffers_kept());
    assert_eq!(log.latched(), None);
    client
}

#[test]
fn what_was_kept_before_a_fault_comes_back() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let mut media = FileMedia::new(&place);
    let client = client_behind_fault(&mut media);
    let (_, recovered) = reopen(&mut next_life(&client, &media.place), &options(Policy::EverySec))
        .expect("the volume opens");
    assert_eq!(recovered, script(1));
}

#[test]
fn what_is_stored_behind_a_fault_is_kept_when_it_is_written() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let mut media = FileMedia::new(&place);
    let mut client = client_behind_fault(&mut media);
    let lsn = client.volume.log.appended();
    for _ in 0..3 {
        client.turn(true);
    }
    assert_eq!(client.volume.log.kept(), lsn);
    assert_eq!(client.acknowledged, 2);
    assert!(client.append(&large()));
    assert_eq!(
        client.volume.log.kept(),
        lsn,
        "a record after the fault is kept only when it is written"
    );
    for _ in 0..3 {
        client.turn(true);
    }
    assert_eq!(client.acknowledged, 3);
    let (_, recovered) = reopen(&mut next_life(&client, &media.place), &options(Policy::EverySec))
        .expect("the volume opens");
    assert_eq!(recovered, [&script(1)[..], &[large(), large()]].concat());
}

#[test]
fn a_batch_that_was_lost_is_not_written() {
    let policies = [Policy::EverySec, Policy::Always];
    // Either the whole batch is lost, or only its pages after the first.
    for (policy, left) in policies.into_iter().flat_map(|policy| [(policy, 0), (policy, 1)]) {
        let place = tempfile::tempdir().expect("a directory for the test");
        let mut media = FileMedia::new(&place);
        let mut client = client_with(&mut media, 3);
        client.volume.log.set_policy(policy);
        cut(&media.place, left * LBA_SIZE as u64);
        client.volume.log.request_durable();
        for _ in 0..3 {
            client.turn(true);
        }
        let latch =
            client.volume.log.latched().expect("losing acknowledged records latches the log");
        assert_eq!(latch.cause, LatchCause::LogBuffers);
        assert!(latch.to_string().contains("mapped buffers"), "{latch}");
        assert_eq!(client.durable, 0, "a lost batch never becomes durable");
        let releasable = client.volume.log.releasable(client.now);
        assert_eq!(releasable, client.volume.log.durable());
    }
}

#[test]
fn a_record_stored_over_what_was_lost_latches_at_once() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let mut media = FileMedia::new(&place);
    let mut client = client_with(&mut media, 3);
    cut(&media.place, 0);
    client.volume.log.append(0, &[b"one more"]);
    let latch = client.volume.log.latched().expect("losing acknowledged records latches the log");
    assert_eq!(latch.cause, LatchCause::LogBuffers);
}

#[test]
fn what_comes_behind_a_fault_is_out_of_reach_of_the_next() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let mut media = FileMedia::new(&place);
    let mut client = client_behind_fault(&mut media);
    for _ in 0..3 {
        client.turn(true);
    }
    assert_eq!(client.acknowledged, 2);
    // The file is extended to its full length, and later truncated to zero.
    cut(&media.place, (BUFFER_COUNT * BATCH_SIZE) as u64);
    assert!(client.append(&large()));
    cut(&media.place, 0);
    client.settle();
    assert_eq!(client.volume.log.latched(), None);
    assert_eq!((client.acknowledged, client.durable), (3, 3));
}

#[test]
fn buffers_that_nothing_was_in_may_be_lost() {
    for policy in [Policy::EverySec, Policy::Always, Policy::No] {
        let place = tempfile::tempdir().expect("a directory for the test");
        let mut media = FileMedia::new(&place);
        let (volume, _) = reopen(&mut media, &options(policy)).expect("the volume opens");
        let mut client = Client::new(volume, media.sim.disk.clone(), 0);
        cut(&media.place, 0);
        let script = script(20);
        client.write(&script, 3);
        client.settle();
        assert_eq!((client.acknowledged, client.durable), (20, 20), "{policy:?}");
        assert_eq!(client.volume.log.latched(), None);
        let (_, recovered) = reopen(&mut next_life(&client, &media.place), &options(policy))
            .expect("the volume opens");
        assert_eq!(recovered, script);
    }
}

#[test]
fn buffers_that_can_not_be_read_at_a_start_are_no_end_of_the_log() {
    for loses in [Loses::WhenMapped, Loses::WhenRead] {
        let place = tempfile::tempdir().expect("a directory for the test");
        let mut media = FileMedia::new(&place);
        let client = client_with(&mut media, 3);
        let limits = Limits { exhaustive_max: 0, random_count: 0, torn: false };
        let image = client.disk.crash_now().process_images(&limits).swap_remove(0);
        drop(client);
        media.sim = SimMedia::from_image(SimConfig::default(), Kind::Files, &image);
        let held = std::fs::read(&media.place).expect("the file can be read");

        (media.loses, media.is_mapped) = (loses, false);
        let refused = reopen(&mut media, &options(Policy::EverySec)).err();
        let said = refused.expect("the volume must not open with less data").to_string();
        assert!(said.contains("reading the log's buffers"), "{said}");

        media.loses = Loses::Never;
        std::fs::write(&media.place, held).expect("the file can be written");
        let (_, recovered) =
            reopen(&mut media, &options(Policy::EverySec)).expect("the volume opens");
        assert_eq!(recovered, script(3));
    }
}
