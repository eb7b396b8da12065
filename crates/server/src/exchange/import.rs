//! Reads an RDB file into a keyspace, and writes a keyspace to a new volume.

use std::io::Read;
use std::time::{Duration, Instant};

use slimio_keyspace::{
    CaptureBudget, CaptureKind, CaptureState, Chunk, ChunkEncoder, ChunkOptions, DbIndex, Effects,
    Keyspace, Part, Payload, Usage, no_args,
};
use slimio_rdb::{Field, FileReader, Item, Key, Kind, Part as Piece};
use slimio_storage::{
    Error, Policy, RecoverOptions, RecoverSink, SlotWriter, SnapshotEvent, SnapshotKind, Storage,
    Volume, WriterOptions, recover,
};

use super::{OnProgress, keep_usage, now_ms};
use crate::config::Config;
use crate::core::Core;
use crate::explain::explain;
use crate::server::make_volume;

/// At most this many fields are put into a hash at once.
const FIELDS_AT_ONCE: usize = 64;

/// Reads a whole RDB file into a keyspace with as many databases as the configuration says. `size`
/// is the file's size in bytes.
///
/// # Errors A sentence that says what is wrong with the file, or which of its contents this server
/// does not support.
pub fn import_file(
    file: impl Read,
    size: u64,
    config: &Config,
    on_progress: OnProgress<'_>,
) -> Result<Keyspace, String> {
    let mut reader = FileReader::open(file).map_err(|e| e.to_string())?;
    let mut target = Target {
        keyspace: Core::empty_keyspace(config, 0),
        effects: Effects::new(),
        payload: Payload::default(),
        now_ms: now_ms(),
    };
    target.keyspace.set_replay_time(target.now_ms);
    while let Some(item) = reader.next_item().map_err(|e| e.to_string())? {
        match item {
            Item::Key(key) => target.key(&key, &mut reader)?,
            Item::Function(_) => return Err("it holds functions, which are not supported".into()),
            Item::ModuleAux { module } => {
                return Err(format!(
                    "it holds data of the module {module}, which is not supported"
                ));
            }
            Item::Aux { .. } | Item::ResizeDb { .. } | Item::SlotImport { .. } => {}
        }
        on_progress(reader.offset(), size);
    }
    Ok(target.keyspace)
}

/// The keyspace, and the buffers in which commands for it are built.
struct Target {
    keyspace: Keyspace,
    effects: Effects,
    payload: Payload,
    /// Time of the import, in milliseconds since 1970.
    now_ms: i64,
}

impl Target {
    fn key<R: Read>(&mut self, key: &Key, reader: &mut FileReader<R>) -> Result<(), String> {
        let name = String::from_utf8_lossy(&key.name).into_owned();
        let kind = match key.kind() {
            Kind::String | Kind::Hash => key.kind(),
            _ if key.module.is_some() => {
                let module = key.module.as_deref().unwrap_or_default();
                return Err(format!(
                    "the key '{name}' is of the module {module}, which is not supported"
                ));
            }
            other => {
                return Err(format!(
                    "the key '{name}' is a {other:?}, a type that is not supported yet"
                ));
            }
        };
        if key.db >= self.keyspace.config().db_count as u64 {
            return Err(format!(
                "the key '{name}' is in database {}, and there are {}; use --databases",
                key.db,
                self.keyspace.config().db_count
            ));
        }
        let db = DbIndex(key.db as u16);
        let mut pairs: Vec<Field> = Vec::new();
        let mut is_first = true;
        while let Some(part) = reader.next_part().map_err(|e| e.to_string())? {
            match part {
                Piece::String { bytes, .. } => {
                    let verb: &[u8] = if is_first { b"SET" } else { b"APPEND" };
                    self.run(db, &[verb, &key.name, &bytes])?;
                    is_first = false;
                }
                Piece::Field(field) if field.expire_at_ms.is_some() => {
                    return Err(format!(
                        "fields of the hash '{name}' expire, which is not supported"
                    ));
                }
                Piece::Field(field) => {
                    pairs.push(field);
                    if pairs.len() == FIELDS_AT_ONCE {
                        self.fields(db, &key.name, &pairs)?;
                        pairs.clear();
                    }
                }
                _ => return Err(format!("the key '{name}' is no {kind:?} after all")),
            }
        }
        self.fields(db, &key.name, &pairs)?;
        if let Some(at_ms) = key.attributes.expire_at_ms {
            let digits = at_ms.to_string();
            self.run(db, &[b"PEXPIREAT", &key.name, digits.as_bytes()])?;
        }
        let idle = key.attributes.idle_s.map(Usage::IdleSeconds);
        if let Some(usage) = key.attributes.freq.map(Usage::Freq).or(idle) {
            // All keys of a file have the same kind of usage (idle time or frequency).
            keep_usage(&mut self.keyspace, usage);
            self.keyspace.set_usage(db, &key.name, usage, self.now_ms);
        }
        Ok(())
    }

    fn fields(&mut self, db: DbIndex, key: &[u8], pairs: &[Field]) -> Result<(), String> {
        if pairs.is_empty() {
            return Ok(());
        }
        let mut args: Vec<&[u8]> = vec![b"HSET", key];
        for pair in pairs {
            args.extend([&*pair.name, &*pair.value]);
        }
        self.run(db, &args)
    }

    /// Runs a command as if it came from the log, so that no key expires by itself.
    fn run(&mut self, db: DbIndex, args: &[&[u8]]) -> Result<(), String> {
        let parts: Vec<Part<'_>> = args.iter().map(|arg| Part::Bytes(arg)).collect();
        self.effects.clear();
        self.effects.log(db, &parts);
        self.payload.begin(db);
        self.payload.add(&self.effects, no_args());
        self.keyspace.apply(db, self.payload.bytes()).map(drop).map_err(|e| e.to_string())
    }
}

/// Makes a new volume that holds the entries of a keyspace. The volume is durable when this
/// function returns.
///
/// # Errors A sentence with a remedy. After an error, a new volume may exist. If so, it is empty.
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
    let plan = plan.expect("nothing is under way in a volume that was just made");
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
        let why = "the volume is new".into();
        Err(Error::ChunkRefused { index: Some(chunk.index()), why })
    }

    fn record(&mut self, _: slimio_storage::Record<'_>) -> Result<(), String> {
        Err("the volume is new".into())
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
            Some(SnapshotEvent::Obsolete(_)) => unreachable!("nothing is in the log"),
            None => {}
        }
        if let Some(latch) = volume.log.latched() {
            let error = latch.error.clone();
            return Err(Error::Device { doing: "writing the superblock", error });
        }
    }
}
