//! Sources of an export: a volume that nobody else has open, or a slot that a server has pinned for
//! the export.

use std::collections::HashMap;

use slimio_device::Device;
use slimio_keyspace::{DB_COUNT_MAX, DbIndex, Keyspace, Loader, LogTail, decode_chunk};
use slimio_storage::{
    Chunk, Error, Progress, READ_AHEAD_CHUNKS, Record, RecoverSink, RootChoice, SlotReader,
    SlotSummary, Storage, VolumeId, read,
};

use super::export::Exporter;
use super::{OnProgress, keep_usage, now_ms, roomy_keyspace};
use crate::explain::explain;

/// Loads a snapshot into a keyspace.
pub(super) struct SnapshotLoad<'a> {
    keyspace: Keyspace,
    /// Bytes that the keyspace takes while it has no entries.
    empty_size: usize,
    loader: Loader,
    on_progress: OnProgress<'a>,
}

impl<'a> SnapshotLoad<'a> {
    pub(super) fn new(on_progress: OnProgress<'a>) -> Self {
        let mut keyspace = roomy_keyspace();
        keyspace.set_replay_time(now_ms());
        let empty_size = keyspace.used_bytes();
        Self { keyspace, empty_size, loader: Loader::new(), on_progress }
    }

    /// Bytes that the entries take in memory.
    fn size(&self) -> usize {
        self.keyspace.used_bytes() - self.empty_size
    }

    fn clear(&mut self) {
        let (eviction, now_ms) = (*self.keyspace.eviction(), self.keyspace.replay_time());
        self.keyspace = roomy_keyspace();
        self.keyspace.set_eviction(eviction);
        self.keyspace.set_replay_time(now_ms);
    }

    fn load(&mut self, chunk: &Chunk) -> Result<(), Error> {
        let refused = |why: String| Error::ChunkRefused { index: Some(chunk.index()), why };
        let decode = |keyspace: &Keyspace| {
            let decoded =
                decode_chunk(chunk.payload()?, &keyspace.decode_context(keyspace.replay_time()));
            decoded.map_err(|e| refused(e.to_string()))
        };
        let mut decoded = decode(&self.keyspace)?;
        // The snapshot says which kind of usage (idle time or frequency) it holds. If the keyspace
        // keeps another kind, the chunk is decoded again.
        if let Some(usage) = decoded.usage()
            && keep_usage(&mut self.keyspace, usage)
        {
            decoded = decode(&self.keyspace)?;
        }
        let context = self.keyspace.decode_context(self.keyspace.replay_time());
        let joined = self.loader.join(decoded, &context);
        joined.and_then(|joined| self.keyspace.load(joined)).map_err(|e| refused(e.to_string()))
    }

    fn end(&mut self) -> Result<(), Error> {
        let whole = std::mem::take(&mut self.loader).finish();
        whole.map_err(|e| Error::ChunkRefused { index: None, why: e.to_string() })
    }
}

impl RecoverSink for SnapshotLoad<'_> {
    fn chunk(&mut self, chunk: Chunk) -> Result<(), Error> {
        self.load(&chunk)
    }

    fn chunks_end(&mut self) -> Result<(), Error> {
        self.end()
    }

    fn record(&mut self, record: Record<'_>) -> Result<(), String> {
        self.keyspace.apply(DbIndex(record.db), record.payload).map(drop).map_err(|e| e.to_string())
    }

    fn progress(&mut self, progress: Progress) {
        (self.on_progress)(progress.bytes_done, progress.bytes_total);
    }
}

/// Reads a volume's data set into memory, as a recovery from `root` would rebuild it. Writes
/// nothing to the volume.
///
/// # Errors
/// If the data set cannot be read exactly. The error is a sentence with a remedy.
pub fn load_volume(
    storage: &mut Storage,
    root: RootChoice,
    on_progress: OnProgress<'_>,
) -> Result<Keyspace, String> {
    let mut loading = SnapshotLoad::new(on_progress);
    read(&mut *storage.media, root, &mut loading)
        .map_err(|e| format!("cannot read the volume {}: {}", storage.name, explain(&e)))?;
    Ok(loading.keyspace)
}

/// Writes a volume's data set to a file, as a recovery from `root` would rebuild it. Writes nothing
/// to the volume. Keeps in memory all keys that the log touches. The other keys pass through memory
/// in batches. If the log has a record whose keys are not known, keeps the whole data set in
/// memory.
///
/// # Errors
/// If the volume cannot be read, or if the file cannot be written. The error is a sentence with a
/// remedy.
pub fn export_volume(
    storage: &mut Storage,
    root: RootChoice,
    exporter: &mut Exporter,
    on_progress: OnProgress<'_>,
) -> Result<(), String> {
    let name = &storage.name;
    let failed = |error: Error| format!("cannot read the volume {name}: {}", explain(&error));
    let mut noting = Noting(LogTail::new(DB_COUNT_MAX));
    read(&mut *storage.media, root, &mut noting).map_err(failed)?;
    let Noting(tail) = noting;
    if !tail.is_known() {
        let keyspace = load_volume(storage, root, on_progress)?;
        return exporter.add(&keyspace, |db, _| Some(db));
    }
    let loading = SnapshotLoad::new(on_progress);
    let mut kept = roomy_keyspace();
    kept.set_replay_time(loading.keyspace.replay_time());
    let mut sink = ExportSink { tail, loading, kept, exporter, failed: None };
    let done = read(&mut *storage.media, root, &mut sink);
    let ExportSink { kept, exporter, failed: why, .. } = sink;
    match why {
        Some(why) => return Err(why),
        None => done.map_err(failed)?,
    }
    exporter.add(&kept, |db, _| Some(db))
}

/// Notes which keys the log touches, without reading the snapshot.
struct Noting(LogTail);

impl RecoverSink for Noting {
    fn wants_snapshot(&self) -> bool {
        false
    }

    fn chunk(&mut self, _: Chunk) -> Result<(), Error> {
        Ok(())
    }

    fn record(&mut self, record: Record<'_>) -> Result<(), String> {
        self.0.note(DbIndex(record.db), record.payload).map_err(|e| e.to_string())
    }
}

/// Divides the snapshot's keys. Those that the log does not touch go to the exporter, batch by
/// batch. The others are kept, and the log is replayed on them.
struct ExportSink<'a> {
    tail: LogTail,
    /// Entries of the snapshot that have not been passed on yet.
    loading: SnapshotLoad<'a>,
    /// The keys that the log touches.
    kept: Keyspace,
    exporter: &'a mut Exporter,
    /// Why the file could not be written; `None` if no write has failed.
    failed: Option<String>,
}

impl ExportSink<'_> {
    fn pass_on(&mut self) -> Result<(), Error> {
        let Self { tail, loading, kept, exporter, .. } = self;
        let keyspace = &loading.keyspace;
        kept.set_eviction(*keyspace.eviction());
        let dbs = (0..DB_COUNT_MAX).map(|number| DbIndex(number as u16));
        let filled: Vec<_> = dbs.filter(|db| keyspace.dbsize(*db) > 0).collect();
        let places: HashMap<_, _> = filled.iter().map(|db| (*db, tail.place_of(*db))).collect();
        for db in filled {
            kept.add_from(keyspace, db, |key| tail.touches(key));
        }
        let place = |db, key: &[u8]| if tail.touches(key) { None } else { places[&db] };
        let added = exporter.add(keyspace, place);
        loading.clear();
        added.map_err(|why| {
            // This error only ends the reading. The caller reports `failed` instead.
            self.failed = Some(why);
            Error::Refused { lsn: slimio_storage::Lsn(0), why: String::new() }
        })
    }
}

impl RecoverSink for ExportSink<'_> {
    fn chunk(&mut self, chunk: Chunk) -> Result<(), Error> {
        self.loading.load(&chunk)?;
        if self.loading.size() >= self.exporter.batch_size { self.pass_on() } else { Ok(()) }
    }

    fn chunks_end(&mut self) -> Result<(), Error> {
        self.loading.end()?;
        self.pass_on()
    }

    fn record(&mut self, record: Record<'_>) -> Result<(), String> {
        self.kept.apply(DbIndex(record.db), record.payload).map(drop).map_err(|e| e.to_string())
    }

    fn progress(&mut self, progress: Progress) {
        self.loading.progress(progress);
    }
}

/// A slot that does not change while it is read.
pub struct SlotSource<'a> {
    /// A path to the slot.
    pub device: &'a mut dyn Device,
    /// The volume that the slot belongs to.
    pub volume_id: VolumeId,
    /// The snapshot that is in the slot.
    pub summary: SlotSummary,
}

impl std::fmt::Debug for SlotSource<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotSource").field("summary", &self.summary).finish_non_exhaustive()
    }
}

/// Writes the snapshot in a slot to a file. Only a bounded part of the snapshot is in memory at a
/// time.
///
/// # Errors
/// If the slot cannot be read, or if the file cannot be written. The error is a sentence with a
/// remedy.
pub fn export_slot(
    source: SlotSource<'_>,
    exporter: &mut Exporter,
    on_progress: OnProgress<'_>,
) -> Result<(), String> {
    let SlotSource { device, volume_id, summary } = source;
    let failed = |error: Error| format!("cannot read the snapshot: {}", explain(&error));
    let mut reader =
        SlotReader::open(device, volume_id, summary, READ_AHEAD_CHUNKS).map_err(failed)?;
    let mut nobody = |_, _| {};
    let mut loading = SnapshotLoad::new(&mut nobody);
    while let Some(chunk) = reader.next_chunk(device).map_err(failed)? {
        loading.load(&chunk).map_err(failed)?;
        on_progress(reader.done_bytes(), reader.total_bytes());
        reader.give_back(chunk.into_buffer());
        if loading.size() >= exporter.batch_size {
            exporter.add(&loading.keyspace, |db, _| Some(db))?;
            // Clearing loses no parts of an incomplete value, because the loader keeps them.
            loading.clear();
        }
    }
    loading.end().map_err(failed)?;
    exporter.add(&loading.keyspace, |db, _| Some(db))
}
