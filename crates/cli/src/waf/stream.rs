//! The SlimIO paper's benchmark on SlimIO's own log, snapshot slots, superblock and extents, in
//! virtual time. There are no commands and no data set. The speeds of clients and of snapshots are
//! assumed.

use std::path::Path;
use std::time::{Duration, Instant};

use slimio_device::LBA_SIZE;
use slimio_ssd::workload::PaperRun;
use slimio_storage::layout::WAL_SLOTS_MAX;
use slimio_storage::{
    Chunk, Error, FormatOptions, Lsn, Policy, Record as LogRecord, RecoverOptions, RecoverSink,
    Room, SlotName, SlotWriter, SnapshotKind, Volume, VolumeId, WriterOptions, format, recover,
};

use super::hollow::{Hollow, Record};

/// Bytes that a SET has in the log in addition to its value.
const COMMAND_OVERHEAD: usize = 40;
/// Bytes that a key has in a snapshot in addition to its value.
const ENTRY_OVERHEAD: usize = 24;
/// Number of entries in a chunk of a snapshot.
const CHUNK_ENTRIES: u64 = 64;
/// The log has buffers of the same size and number as in the server.
const BUFFER_LBAS: u32 = (256 << 10) / LBA_SIZE as u32;
const BUFFER_COUNT: usize = 64;
const COMMITS_IN_FLIGHT: usize = 2;

/// How fast clients and snapshots are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// SETs a second while no snapshot is being written.
    pub(super) alone: f64,
    /// SETs a second while a snapshot is being written.
    pub(super) beside: f64,
    /// Keys that a snapshot writes in a second.
    pub(super) keys: f64,
}

impl Pace {
    /// The pace that the SlimIO paper measured.
    pub(super) fn of_paper(policy: Policy) -> Self {
        let (alone, beside, seconds) = match policy {
            Policy::Always => (33_128.0, 25_542.0, 109.0),
            _ => (75_676.0, 42_517.0, 110.0),
        };
        let keys = PaperRun::scaled(PaperRun::DRIVE_BYTES).key_count as f64;
        Self { alone, beside, keys: keys / seconds }
    }
}

/// The log and the snapshots of a server, the keeper of its superblock, and the virtual time of its
/// clients.
pub(super) struct Server {
    volume: Volume,
    record: Record,
    run: PaperRun,
    began: Instant,
    time: Duration,
    turn_alone: Duration,
    turn_beside: Duration,
    /// Entries of a snapshot that are written in a turn.
    entries_per_turn: f64,
    entries_due: f64,
    snapshot: Option<SlotWriter>,
    /// Entries of the snapshot that are not written yet.
    entries_left: u64,
    wants_snapshot: bool,
    /// The LSN at which the log was last rewritten.
    rewritten_at: Lsn,
    command: Vec<u8>,
    chunk: Vec<u8>,
}

impl Server {
    /// Makes a volume on `device`, which has `device_bytes` bytes.
    ///
    /// # Errors
    /// If the volume can't be made. The error is a sentence for the user.
    pub(super) fn new(
        device: Hollow,
        device_bytes: u64,
        record: Record,
        run: PaperRun,
        policy: Policy,
    ) -> Result<Self, String> {
        let opened = slimio_volume::open_on(Path::new("generated"), Box::new(device), u64::MAX);
        let mut storage = opened.map_err(|error| error.to_string())?;
        let layout = FormatOptions {
            volume_id: VolumeId(1),
            segment_lbas: PaperRun::segment_bytes(device_bytes) / LBA_SIZE as u64,
            batch_lbas_max: BUFFER_LBAS,
            wal_slots_max: WAL_SLOTS_MAX,
            replace: false,
        };
        let began = Instant::now();
        let options = RecoverOptions {
            commits_in_flight: COMMITS_IN_FLIGHT,
            ..RecoverOptions::new(policy, BUFFER_COUNT, began)
        };
        let made = format(&mut *storage.media, &layout);
        let volume = made.and_then(|()| recover(&mut *storage.media, &options, &mut Nothing));
        let pace = Pace::of_paper(policy);
        let turn = |rate: f64| Duration::from_secs_f64(run.clients as f64 / rate);
        Ok(Self {
            volume: volume.map_err(|error| error.to_string())?,
            record,
            began,
            time: Duration::ZERO,
            turn_alone: turn(pace.alone),
            turn_beside: turn(pace.beside),
            entries_per_turn: run.clients as f64 / pace.beside * pace.keys,
            entries_due: 0.0,
            snapshot: None,
            entries_left: 0,
            wants_snapshot: false,
            rewritten_at: Lsn::default(),
            command: vec![7; run.value_size + COMMAND_OVERHEAD],
            chunk: vec![7; (run.value_size + ENTRY_OVERHEAD) * CHUNK_ENTRIES as usize],
            run,
        })
    }

    /// Runs the SlimIO paper's benchmark to its end.
    ///
    /// # Errors
    /// If the drive is too small for the benchmark, or an operation can't be recorded.
    pub(super) fn run(mut self) -> Result<(), Error> {
        self.record.mark("set every key once");
        self.serve(self.run.key_count)?;
        // The log may have grown so long that a rewrite was started. That rewrite must end first.
        self.end_snapshot()?;
        self.begin(SnapshotKind::Wal)?;
        self.end_snapshot()?;
        for repetition in 1..=self.run.repetitions {
            self.record.mark(&format!("repetition {repetition}: BGSAVE"));
            self.wants_snapshot = true;
            self.serve(self.run.requests)?;
        }
        self.record.mark("the last SET");
        self.end_snapshot()?;
        self.settle()
    }

    /// Writes the rest of the snapshot under way, if there is one.
    fn end_snapshot(&mut self) -> Result<(), Error> {
        while self.snapshot.is_some() {
            self.snapshot_chunk()?;
        }
        Ok(())
    }

    /// Serves this many SETs in turns of one SET per client, and advances the snapshot after each
    /// turn.
    fn serve(&mut self, requests: u64) -> Result<(), Error> {
        for _ in 0..requests / self.run.clients as u64 {
            for _ in 0..self.run.clients {
                self.make_room()?;
                self.volume.log.append(0, &[&self.command]);
            }
            self.time += if self.snapshot.is_some() { self.turn_beside } else { self.turn_alone };
            self.settle()?;
            self.snapshots()?;
        }
        Ok(())
    }

    /// While the log has no room, clients wait until a snapshot lets the log drop its beginning.
    fn make_room(&mut self) -> Result<(), Error> {
        while self.volume.log.room(self.command.len() as u64) != Room::Free {
            self.settle()?;
            if self.volume.log.room(self.command.len() as u64) == Room::Free {
                break;
            }
            if self.snapshot.is_some() {
                self.snapshot_chunk()?;
            } else {
                self.begin(SnapshotKind::Wal)?;
            }
        }
        Ok(())
    }

    fn snapshots(&mut self) -> Result<(), Error> {
        if self.snapshot.is_none() {
            let log_bytes = self.volume.log.appended().0 - self.rewritten_at.0;
            if std::mem::take(&mut self.wants_snapshot) {
                return self.begin(SnapshotKind::OnDemand);
            }
            if log_bytes >= self.run.log_bytes {
                return self.begin(SnapshotKind::Wal);
            }
            return Ok(());
        }
        self.entries_due += self.entries_per_turn;
        while self.entries_due >= CHUNK_ENTRIES as f64 && self.snapshot.is_some() {
            self.entries_due -= CHUNK_ENTRIES as f64;
            self.snapshot_chunk()?;
        }
        Ok(())
    }

    fn begin(&mut self, kind: SnapshotKind) -> Result<(), Error> {
        self.settle()?;
        let too_small = || Error::TooSmall { what: "the drive has no room for a snapshot".into() };
        let plan = self.volume.log.begin_snapshot(kind, 0).ok_or_else(too_small)?;
        self.record.mark(match kind {
            SnapshotKind::Wal => "WAL-snapshot",
            SnapshotKind::OnDemand => "on-demand snapshot",
        });
        if kind == SnapshotKind::Wal {
            self.rewritten_at = self.volume.log.appended();
        }
        let device = self.volume.slot_paths.get(plan.slot);
        self.snapshot = Some(SlotWriter::begin(device, plan, WriterOptions::default())?);
        self.entries_left = self.run.key_count;
        self.entries_due = 0.0;
        Ok(())
    }

    /// Writes the next chunk of the snapshot. If no entries are left, ends the snapshot.
    fn snapshot_chunk(&mut self) -> Result<(), Error> {
        let Some(mut writer) = self.snapshot.take() else { return Ok(()) };
        let device = self.volume.slot_paths.get(writer.plan().slot);
        let entries = self.entries_left.min(CHUNK_ENTRIES);
        if entries > 0 {
            let size = self.chunk.len() / CHUNK_ENTRIES as usize * entries as usize;
            writer.chunk(device, &self.chunk[..size], entries as u32)?;
            self.entries_left -= entries;
            self.snapshot = Some(writer);
            return Ok(());
        }
        let summary = writer.finish(device)?;
        self.volume.log.adopt(summary);
        self.settle()?;
        self.give_back_reserves()
    }

    /// Deallocates the slots that hold no snapshot, as the server does when a snapshot is adopted.
    fn give_back_reserves(&mut self) -> Result<(), Error> {
        let held = self.volume.log.snapshots();
        let reserves = SlotName::ALL.map(|slot| (slot, held.get(slot).is_none()));
        for (slot, _) in reserves.into_iter().filter(|(_, is_reserve)| *is_reserve) {
            let doing = "deallocating a reserve slot";
            let failed = |error| Error::Device { doing, error };
            while self.volume.slot_paths.give_back(slot, 0).map_err(failed)? {}
        }
        Ok(())
    }

    /// Lets the log, and the keeper of the superblock, do the work that is due.
    fn settle(&mut self) -> Result<(), Error> {
        self.record.set_time(self.time);
        let now = self.began + self.time;
        let Volume { log, log_path, keeper, keeper_paths, .. } = &mut self.volume;
        loop {
            let is_queued = log.drive(&mut **log_path, now);
            log.reap(&mut **log_path, now);
            let job = log.next_job(now);
            let is_idle = !is_queued && job.is_none();
            if let Some(job) = job {
                log.job_done(keeper.run(keeper_paths, job), now);
            }
            if let Some(latch) = log.latched() {
                let error = latch.error.clone();
                return Err(Error::Device { doing: "writing the log", error });
            }
            if is_idle {
                return Ok(());
            }
        }
    }
}

/// Ignores recovered data, because a new volume holds none.
struct Nothing;

impl RecoverSink for Nothing {
    fn chunk(&mut self, _: Chunk) -> Result<(), Error> {
        Ok(())
    }

    fn record(&mut self, _: LogRecord<'_>) -> Result<(), String> {
        Ok(())
    }
}
