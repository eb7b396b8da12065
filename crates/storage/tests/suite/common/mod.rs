//! A volume on a simulated disk, and a client that writes to the volume and notes which records
//! must survive.

pub(crate) mod drive;
pub(crate) mod enumerate;
mod media;
pub(crate) mod random;
pub(crate) mod snapshots;

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub(crate) use media::{Kind, SUPER, SimMedia, WAL, slot_space};
use slimio_device::Device;
use slimio_sim::{SimConfig, SimDisk};
use slimio_storage::{
    Area, Chunk, Error, FormatOptions, LogState, Lsn, Media, Policy, Pool, Record, RecoverOptions,
    RecoverSink, Room, SlotName, Volume, VolumeId, format, recover,
};
use snapshots::{Action, Taking, decode_records, snapshot_lbas};

/// Records that a client wrote or that recovery brought back: database and payload of each.
pub(crate) type Script = Vec<(u16, Vec<u8>)>;

pub(crate) const SMALL: FormatOptions = FormatOptions {
    volume_id: VolumeId(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
    segment_lbas: 6,
    batch_lbas_max: 2,
    wal_slots_max: 8,
    replace: false,
};

/// Bytes of a batch of a [`SMALL`] volume.
pub(crate) const BATCH_SIZE: usize = 2 * slimio_device::LBA_SIZE;

/// The moment at which virtual time starts.
pub(crate) fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

pub(crate) fn options(policy: Policy) -> RecoverOptions {
    RecoverOptions { commits_in_flight: 2, ..RecoverOptions::new(policy, 4, epoch()) }
}

/// A new small volume.
pub(crate) fn formatted(config: SimConfig, kind: Kind) -> SimMedia {
    formatted_as(config, kind, &SMALL)
}

pub(crate) fn formatted_as(config: SimConfig, kind: Kind, layout: &FormatOptions) -> SimMedia {
    let mut media = SimMedia::new(config, kind);
    format(&mut media, layout).expect("the simulated disk has room for the volume");
    media
}

/// Collects the records that recovery brings back.
#[derive(Default)]
pub(crate) struct Collector {
    pub(crate) records: Script,
    /// Errors of damaged chunks, which `chunks_end` reports. A recovery that salvages (accepts
    /// damage) goes on after such errors.
    late: Vec<Error>,
}

impl RecoverSink for Collector {
    fn chunk(&mut self, chunk: Chunk) -> Result<(), Error> {
        // `chunks_end` reports the errors, as if other threads decoded the chunks.
        match chunk.payload() {
            Ok(payload) => {
                let records = decode_records(payload);
                assert_eq!(records.len() as u32, chunk.entry_count());
                self.records.extend(records);
            }
            Err(error) => self.late.push(error),
        }
        Ok(())
    }

    fn chunks_end(&mut self) -> Result<(), Error> {
        self.late.pop().map_or(Ok(()), Err)
    }

    fn record(&mut self, record: Record<'_>) -> Result<(), String> {
        self.records.push((record.db, record.payload.to_vec()));
        Ok(())
    }
}

/// Opens a volume. Returns the volume and the records that came back.
pub(crate) fn reopen(
    media: &mut dyn Media,
    options: &RecoverOptions,
) -> Result<(Volume, Script), Error> {
    let mut collector = Collector::default();
    let volume = recover(media, options, &mut collector)?;
    Ok((volume, collector.records))
}

/// The disk under a volume, as far as the volume's client needs it.
pub(crate) trait Disk {
    /// Whether the disk has crashed. An acknowledgement after a crash does not count.
    fn has_crashed(&self) -> bool;

    /// Opens one more path to a snapshot slot of a volume. `pool` is the volume's extent pool, if
    /// the volume is on a device.
    fn open_slot(&self, pool: Option<&Pool>, slot: SlotName) -> Box<dyn Device + Send>;
}

impl Disk for SimDisk {
    fn has_crashed(&self) -> bool {
        Self::has_crashed(self)
    }

    fn open_slot(&self, pool: Option<&Pool>, slot: SlotName) -> Box<dyn Device + Send> {
        match pool {
            Some(pool) => pool.path(Area::Snapshot(slot), Box::new(self.open_path(SUPER))),
            None => Box::new(self.open_path(slot_space(slot))),
        }
    }
}

/// A client and its event loop, in virtual time.
pub(crate) struct Client<D = SimDisk> {
    pub(crate) volume: Volume,
    pub(crate) disk: D,
    pub(crate) now: Instant,
    /// Number of records that were executed, including those that came back. Executed records are
    /// also in the log, except those that were executed after the log ended.
    pub(crate) appended: usize,
    /// The executed records that make up the data set now.
    pub(crate) history: Script,
    /// Actions other than appending, each with the number of records before it.
    pub(crate) actions: VecDeque<(usize, Action)>,
    /// The snapshot under way.
    pub(crate) taking: Option<Taking>,
    /// LSNs of the appended records that the client does not know to be acknowledged, each with the
    /// number of records up to this LSN.
    lsns: VecDeque<(Lsn, usize)>,
    /// The same for the records that are not known to be durable.
    durable_lsns: VecDeque<(Lsn, usize)>,
    /// Number of records that the client knows to be acknowledged.
    pub(crate) acknowledged: usize,
    /// Number of records that are known to be durable.
    pub(crate) durable: usize,
    /// Each time the client has appended this many more records, it tells the log that the data set
    /// is empty, so that the log may release all records.
    pub(crate) release_every: Option<usize>,
    /// Whether the client waits for each record before it writes the next.
    pub(crate) is_waiting: bool,
    /// Whether the client tells the log the size of a snapshot of the data set, so that the log
    /// leaves room for it.
    pub(crate) leaves_room: bool,
    turns: usize,
}

impl<D: Disk> Client<D> {
    /// A client of a volume that holds `recovered` records.
    pub(crate) fn new(volume: Volume, disk: D, recovered: usize) -> Self {
        Self {
            volume,
            disk,
            now: epoch(),
            appended: recovered,
            history: Vec::new(),
            actions: VecDeque::new(),
            taking: None,
            lsns: VecDeque::new(),
            durable_lsns: VecDeque::new(),
            acknowledged: recovered,
            durable: recovered,
            release_every: None,
            is_waiting: false,
            leaves_room: true,
            turns: 0,
        }
    }

    /// Waits for room and appends a record. Returns false if the disk has crashed, or if the log is
    /// latched or full.
    pub(crate) fn append(&mut self, record: &(u16, Vec<u8>)) -> bool {
        let (db, payload) = record;
        self.act();
        for _ in 0..1000 {
            if self.is_over() {
                return false;
            }
            if matches!(self.volume.log.log_state(), LogState::Off | LogState::Ending) {
                self.appended += 1;
                self.history.push(record.clone());
                return true;
            }
            match self.volume.log.room(payload.len() as u64) {
                Room::Free | Room::Scarce => {
                    let (first, second) = payload.split_at(payload.len() / 3);
                    let lsn = self.volume.log.append(*db, &[first, second]);
                    self.appended += 1;
                    self.history.push(record.clone());
                    if self.release_every.is_some_and(|every| self.appended.is_multiple_of(every)) {
                        self.volume.log.release_before(lsn);
                        self.history.clear();
                    }
                    self.lsns.push_back((lsn, self.appended));
                    self.durable_lsns.push_back((lsn, self.appended));
                    return true;
                }
                Room::Wait => self.turn(true),
                Room::Last | Room::Full => return false,
            }
        }
        panic!("after 1000 turns, the log still has no room for the record");
    }

    /// One turn of the loop. If `idle` is set, the turn waits for the device and lets time pass.
    pub(crate) fn turn(&mut self, idle: bool) {
        let Volume { log, log_path, .. } = &mut self.volume;
        log.reap(&mut **log_path, self.now);
        if log.drive(&mut **log_path, self.now) {
            log_path.kick();
        }
        self.note();
        let Volume { log, log_path, keeper, keeper_paths, slot_paths, .. } = &mut self.volume;
        if idle {
            self.now += Duration::from_millis(100);
            log.wait(&mut **log_path, Some(Duration::from_millis(100)));
            log.reap(&mut **log_path, self.now);
        }
        if self.leaves_room {
            let slot_lbas = slot_paths.lengths();
            log.leave_room_for_snapshot(snapshot_lbas(&self.history), slot_lbas);
        }
        if let Some(job) = log.next_job(self.now) {
            let outcome = keeper.run(keeper_paths, job);
            log.job_done(outcome, self.now);
        }
        self.step_snapshot();
        self.turns += 1;
        // Checking after each turn would take a fifth of the time of all tests.
        if self.turns.is_multiple_of(8) {
            self.volume.log.check_all();
        }
        self.note();
    }

    fn note(&mut self) {
        // Once the log has ended, an append promises nothing.
        let is_promised = self.volume.log.snapshots().log_end().is_none();
        if self.is_over() || !is_promised {
            return;
        }
        let (free, durable) = (self.volume.log.releasable(self.now), self.volume.log.durable());
        while let Some((_, count)) = pop_below(&mut self.lsns, free) {
            self.acknowledged = count;
        }
        while let Some((_, count)) = pop_below(&mut self.durable_lsns, durable) {
            self.durable = count;
        }
    }

    /// Writes records. After every `per_turn` records, runs a turn of the loop.
    pub(crate) fn write(&mut self, records: &[(u16, Vec<u8>)], per_turn: usize) {
        for (index, record) in records.iter().enumerate() {
            if !self.append(record) {
                break;
            }
            if (index + 1).is_multiple_of(per_turn) {
                self.turn(false);
            }
            if self.is_waiting {
                self.settle();
            }
        }
        self.act();
    }

    /// Runs turns of the loop until everything that was appended is durable and no snapshot is
    /// under way.
    pub(crate) fn settle(&mut self) {
        for _ in 0..1000 {
            let log = &self.volume.log;
            let is_busy = self.taking.is_some() || log.log_state() == LogState::Ending;
            if self.is_over() || !is_busy && log.durable() == log.appended() {
                return;
            }
            self.volume.log.request_durable();
            self.turn(true);
        }
        panic!("after 1000 turns, a record is not durable or a snapshot is not finished");
    }

    /// Lets virtual time pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end && !self.is_over() {
            self.turn(true);
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.disk.has_crashed() || self.volume.log.latched().is_some()
    }
}

fn pop_below(lsns: &mut VecDeque<(Lsn, usize)>, lsn: Lsn) -> Option<(Lsn, usize)> {
    if lsns.front()?.0 <= lsn { lsns.pop_front() } else { None }
}

/// Records of mixed sizes: small ones, some that almost fill a batch, and some that take several
/// batches.
pub(crate) fn script(len: usize) -> Script {
    let sizes = [1, 100, 5000, 3000, 20_000, 40, 0, 8000, 700, 12_000, 3];
    (0..len)
        .map(|index| {
            let size = sizes[index % sizes.len()];
            let byte = |at: usize| (at * 31 + index * 7 + 1) as u8;
            ((index % 3) as u16, (0..size).map(byte).collect())
        })
        .collect()
}

/// Records of 700 to 790 bytes.
pub(crate) fn small_script(len: usize) -> Script {
    (0..len).map(|index| (0, vec![index as u8; 700 + 30 * (index % 4)])).collect()
}
