//! Where an export reads: a volume that nobody else has open, or a slot that a server keeps for it.

use slimio_device::Device;
use slimio_keyspace::{DbIndex, Keyspace, Loader, decode_chunk};
use slimio_storage::{
    Chunk, Error, Progress, READ_AHEAD_CHUNKS, Record, RecoverSink, RootChoice, SlotReader,
    SlotSummary, Storage, VolumeId, read,
};

use super::export::Exporter;
use super::{Heard, keep_usage, now_ms, roomy_keyspace};
use crate::server::explain;

/// Bytes in memory from which what was read of a slot is written out.
const BATCH_SIZE: usize = 64 << 20;

/// Fills a keyspace.
struct Filling<'a> {
    keyspace: Keyspace,
    loader: Loader,
    /// When this is, in milliseconds since 1970.
    now_ms: i64,
    heard: Heard<'a>,
}

impl<'a> Filling<'a> {
    fn new(heard: Heard<'a>) -> Self {
        let now_ms = now_ms();
        let mut keyspace = roomy_keyspace();
        keyspace.set_replay_time(now_ms);
        Self { keyspace, loader: Loader::new(), now_ms, heard }
    }

    /// Drops all entries.
    fn clear(&mut self) {
        let eviction = *self.keyspace.eviction();
        self.keyspace = roomy_keyspace();
        self.keyspace.set_eviction(eviction);
    }

    fn load(&mut self, chunk: &Chunk) -> Result<(), Error> {
        let refused = |why: String| Error::ChunkRefused { index: chunk.index(), why };
        let decode = |keyspace: &Keyspace| {
            let decoded = decode_chunk(chunk.payload()?, &keyspace.decode_context(self.now_ms));
            decoded.map_err(|e| refused(e.to_string()))
        };
        let mut decoded = decode(&self.keyspace)?;
        // The snapshot itself says what was known of the uses of keys when it was taken.
        if let Some(usage) = decoded.usage()
            && keep_usage(&mut self.keyspace, usage)
        {
            decoded = decode(&self.keyspace)?;
        }
        let loaded = self.loader.load(&mut self.keyspace, decoded);
        loaded.map_err(|e| refused(e.to_string()))
    }

    fn end(&mut self) -> Result<(), Error> {
        let whole = std::mem::take(&mut self.loader).finish();
        whole.map_err(|e| Error::ChunkRefused { index: u64::MAX, why: e.to_string() })
    }
}

impl RecoverSink for Filling<'_> {
    fn chunk(&mut self, chunk: Chunk) -> Result<(), Error> {
        self.load(&chunk)
    }

    fn chunks_end(&mut self) -> Result<(), Error> {
        self.end()
    }

    fn record(&mut self, record: Record<'_>) -> Result<(), String> {
        self.keyspace.apply(DbIndex(record.db), record.payload).map_err(|e| e.to_string())
    }

    fn progress(&mut self, progress: Progress) {
        (self.heard)(progress.bytes_done, progress.bytes_total);
    }
}

/// Reads what opening a volume would bring back, into memory. Nothing is written to it.
///
/// # Errors
/// A sentence with a remedy when it cannot be read exactly.
pub fn load_volume(
    storage: &mut Storage,
    root: RootChoice,
    heard: Heard<'_>,
) -> Result<Keyspace, String> {
    let mut filling = Filling::new(heard);
    read(&mut *storage.media, root, &mut filling)
        .map_err(|e| format!("cannot read the volume {}: {}", storage.name, explain(&e)))?;
    Ok(filling.keyspace)
}

/// A slot that stays as it is while it is read.
pub struct SlotSource<'a> {
    /// A path to it.
    pub device: &'a mut dyn Device,
    /// The volume that it is of.
    pub volume_id: VolumeId,
    /// What is in it.
    pub summary: SlotSummary,
}

impl std::fmt::Debug for SlotSource<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotSource").field("summary", &self.summary).finish_non_exhaustive()
    }
}

/// Writes what is in a slot to a file, a bounded part of it in memory at a time.
///
/// # Errors
/// A sentence with a remedy.
pub fn export_slot(
    source: SlotSource<'_>,
    exporter: &mut Exporter,
    heard: Heard<'_>,
) -> Result<(), String> {
    let SlotSource { device, volume_id, summary } = source;
    let failed = |error: Error| format!("cannot read the snapshot: {}", explain(&error));
    let mut reader =
        SlotReader::open(device, volume_id, summary, READ_AHEAD_CHUNKS).map_err(failed)?;
    let mut nobody = |_, _| {};
    let mut filling = Filling::new(&mut nobody);
    let start_size = filling.keyspace.used_bytes();
    while let Some(chunk) = reader.next_chunk(device).map_err(failed)? {
        filling.load(&chunk).map_err(failed)?;
        heard(reader.done_bytes(), reader.total_bytes());
        reader.give_back(chunk.into_buffer());
        if filling.keyspace.used_bytes() - start_size >= BATCH_SIZE {
            exporter.add(&filling.keyspace, false)?;
            // What has come of a value in parts is the loader's.
            filling.clear();
        }
    }
    filling.end().map_err(failed)?;
    exporter.add(&filling.keyspace, false)
}
