//! Reads an RDB file into a keyspace, and writes a keyspace to a new volume.

use std::io::Read;
use std::time::{Duration, Instant};

use slimio_keyspace::{
    CaptureBudget, CaptureKind, CaptureState, Chunk, ChunkEncoder, ChunkOptions, DbIndex, Incoming,
    Keyspace, Usage, ValueRefused,
};
use slimio_rdb::{FileReader, Item, Key};
use slimio_storage::{
    Error, Policy, RecoverOptions, RecoverSink, SlotWriter, SnapshotEvent, SnapshotKind, Storage,
    Volume, WriterOptions, recover,
};

use super::{OnProgress, keep_usage, now_ms};
use crate::config::Config;
use crate::engine::Engine;
use crate::explain::explain;
use crate::server::make_volume;

/// Reads a whole RDB file into a keyspace with as many databases as the configuration says. `size`
/// is the file's size in bytes.
///
/// # Errors
/// If the file is damaged, or holds contents that this server does not support. The error is a
/// sentence for the user.
pub fn import_file(
    file: impl Read,
    size: u64,
    config: &Config,
    on_progress: OnProgress<'_>,
) -> Result<Keyspace, String> {
    let mut reader = FileReader::open(file).map_err(|e| e.to_string())?;
    let mut keyspace = Engine::empty_keyspace(config, 0);
    keyspace.set_replay_time(now_ms());
    while let Some(item) = reader.next_item().map_err(|e| e.to_string())? {
        match item {
            Item::Key(key) => load_key(&mut keyspace, &key, &mut reader)?,
            Item::Function(_) => return Err("the file holds unsupported functions".into()),
            Item::ModuleAux { module } => {
                return Err(format!(
                    "the file holds data of the module {module}, which is not supported"
                ));
            }
            Item::Aux { .. } | Item::ResizeDb { .. } | Item::SlotImport { .. } => {}
        }
        on_progress(reader.offset(), size);
    }
    Ok(keyspace)
}

/// Reads the value of a key, and adds the key and its value to the keyspace.
fn load_key<R: Read>(
    keyspace: &mut Keyspace,
    key: &Key,
    reader: &mut FileReader<R>,
) -> Result<(), String> {
    let name = String::from_utf8_lossy(&key.name);
    if let Some(module) = &key.module {
        return Err(format!(
            "the key '{name}' has a type of the module {module}, which is not supported"
        ));
    }
    let db_count = keyspace.config().db_count;
    let Some(db) = u16::try_from(key.db).ok().filter(|db| usize::from(*db) < db_count) else {
        return Err(format!(
            "the key '{name}' is in database {}, but there are only {db_count} databases; use \
             --databases",
            key.db
        ));
    };
    let db = DbIndex(db);
    let refused = |why: ValueRefused| format!("the key '{name}' {why}");
    let mut incoming = Incoming::new(key.value_type, keyspace).map_err(refused)?;
    while let Some(part) = reader.next_part().map_err(|e| format!("{e} (the key '{name}')"))? {
        incoming.add(part).map_err(refused)?;
    }
    let expires_at_ms = key.attributes.expire_at_ms;
    let loaded = keyspace.load_incoming(db, &key.name, incoming, expires_at_ms);
    loaded.map_err(|e| e.to_string())?;
    let idle = key.attributes.idle_s.map(Usage::IdleSeconds);
    if let Some(usage) = key.attributes.freq.map(Usage::Freq).or(idle) {
        // All keys of a file have the same kind of usage (idle time or frequency).
        keep_usage(keyspace, usage);
        keyspace.set_usage(db, &key.name, usage, keyspace.replay_time());
    }
    Ok(())
}

/// Makes a new volume that holds the entries of a keyspace. The volume is durable when this
/// function returns.
///
/// # Errors
/// If the volume cannot be made or written. The error is a sentence with a remedy. After an error,
/// a new volume may exist. If so, the volume is empty.
pub fn write_volume(
    storage: &mut Storage,
    config: &Config,
    keyspace: &mut Keyspace,
    now_ms: u64,
    on_progress: OnProgress<'_>,
) -> Result<(), String> {
    let name = storage.name.clone();
    let failed = |error: Error| format!("cannot write the volume {name}: {}", explain(&error));
    make_volume(storage, config, storage.exists)?;
    let buffer_count = config.int("log-buffers") as usize;
    let options = RecoverOptions::new(Policy::Always, buffer_count, Instant::now());
    let mut volume = recover(&mut *storage.media, &options, &mut NewVolumeSink).map_err(failed)?;
    let plan = volume.log.begin_snapshot(SnapshotKind::Wal, now_ms);
    let plan = plan.expect("a new volume has no running snapshot");
    let path = volume.slot_paths.get(plan.slot);
    let mut writer = SlotWriter::begin(path, plan, WriterOptions::default()).map_err(failed)?;
    let options = ChunkOptions {
        compresses: config.yes("rdbcompression"),
        eviction: *keyspace.eviction(),
        now_ms: now_ms as i64,
    };
    let mut encoder = ChunkEncoder::new(options);
    let mut emit = |chunk: Chunk<'_>| writer.chunk(path, chunk.payload, chunk.keys as u32);
    keyspace.begin_capture(CaptureKind::PointInTime);
    let total = keyspace.capture_stats().total as u64;
    while keyspace.capture_state() == CaptureState::Running {
        let mut taken = Vec::new();
        keyspace.capture_step(CaptureBudget { size: 1 << 20, entries: 10_000 }, &mut taken);
        for batch in &taken {
            encoder.encode(batch, &mut emit).map_err(failed)?;
        }
        on_progress(keyspace.capture_stats().taken as u64, total);
    }
    encoder.finish(&mut emit).map_err(failed)?;
    keyspace.end_capture();
    let summary = writer.finish(path).map_err(failed)?;
    volume.log.adopt(summary);
    adopt(&mut volume).map_err(failed)
}

/// A sink for the recovery of a new volume. It refuses everything, because a new volume holds
/// nothing.
pub(crate) struct NewVolumeSink;

impl RecoverSink for NewVolumeSink {
    fn chunk(&mut self, chunk: slimio_storage::Chunk) -> Result<(), Error> {
        let why = "a new volume holds no snapshot".into();
        Err(Error::ChunkRefused { index: Some(chunk.index()), why })
    }

    fn record(&mut self, _: slimio_storage::Record<'_>) -> Result<(), String> {
        Err("a new volume holds no records".into())
    }
}

/// Drives the log until the superblock names the snapshot.
fn adopt(volume: &mut Volume) -> Result<(), Error> {
    loop {
        let now = Instant::now();
        if volume.log.drive(&mut *volume.log_path, now) {
            volume.log_path.kick();
        }
        volume.log.wait(&mut *volume.log_path, Some(Duration::ZERO));
        volume.log.reap(&mut *volume.log_path, now);
        if let Some(job) = volume.log.next_job(now) {
            let outcome = volume.keeper.run(&mut volume.keeper_paths, job);
            volume.log.job_done(outcome, now);
        }
        match volume.log.take_snapshot_event() {
            Some(SnapshotEvent::Adopted(_)) => return Ok(()),
            Some(SnapshotEvent::Obsolete(_)) => unreachable!("the log holds no FLUSHALL"),
            None => {}
        }
        if let Some(latch) = volume.log.latched() {
            let error = latch.error.clone();
            return Err(Error::Device { doing: "writing the superblock", error });
        }
    }
}
