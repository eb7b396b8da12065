//! Writes entries to an RDB file.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use slimio_keyspace::{DbIndex, EntryView, Keyspace, Usage, ValueSink, encode_value, rdb_type};
use slimio_rdb::{Attributes, Encoder, FileWriter, Version};

/// Value of the file's field `redis-ver`: the version of Redis that this server is compatible with.
/// If Redis makes a file, this field has the version of the Redis server.
const REDIS_VERSION_NOTE: &[u8] = crate::REDIS_VERSION.as_bytes();

/// How an RDB file is written.
#[derive(Clone, Copy, Debug)]
pub struct ExportOptions {
    /// The version of the format. Redis 7.0 writes version 10.
    pub version: Version,
    /// Whether strings are compressed by LZF if this makes them shorter.
    pub compresses: bool,
    /// Entries that were read are collected in memory. Whenever they take at least this many bytes,
    /// they are written to the file.
    pub batch_size: usize,
}

impl ExportOptions {
    /// A batch size that makes the fixed cost of a batch negligible.
    pub const BATCH_SIZE: usize = 64 << 20;
}

/// An RDB file being written, under a temporary name beside its path.
#[derive(Debug)]
pub struct Exporter {
    writer: Option<FileWriter<File>>,
    path: PathBuf,
    unfinished: PathBuf,
    version: Version,
    keys: u64,
    /// The database that was selected last.
    db: Option<DbIndex>,
    pub(super) batch_size: usize,
}

impl Exporter {
    /// Begins a file. A file that exists at `path` stays until [`finish`](Self::finish) replaces
    /// it.
    ///
    /// # Errors
    /// If the file cannot be made, or if `path` is something other than a file. The error is a
    /// sentence for the user.
    pub fn create(path: &Path, options: ExportOptions) -> Result<Self, String> {
        let path = replaced_by(path)?;
        let name = path.file_name().ok_or_else(|| format!("{} names no file", path.display()))?;
        let mut unfinished = name.to_os_string();
        unfinished.push(format!(".unfinished-{}", std::process::id()));
        let unfinished = path.with_file_name(unfinished);
        let failed = |error: &dyn std::fmt::Display| {
            format!("cannot write {}: {error}; nothing has changed", unfinished.display())
        };
        let open = || {
            let mut options = OpenOptions::new();
            let file = options.write(true).create_new(true).mode(0o600).open(&unfinished)?;
            // The new file gets the permissions of the file that it replaces.
            if let Ok(old) = path.metadata() {
                file.set_permissions(old.permissions())?;
            }
            Ok(file)
        };
        let file = open().map_err(|e: std::io::Error| failed(&e))?;
        let encoder = if options.compresses { Encoder::new } else { Encoder::uncompressed };
        let writer = FileWriter::with(file, encoder(options.version)).map_err(|e| failed(&e))?;
        let mut exporter = Self {
            writer: Some(writer),
            path,
            unfinished,
            version: options.version,
            keys: 0,
            db: None,
            batch_size: options.batch_size,
        };
        exporter.notes()?;
        Ok(exporter)
    }

    fn notes(&mut self) -> Result<(), String> {
        let encoder = self.encoder()?;
        encoder.aux(b"redis-ver", REDIS_VERSION_NOTE);
        encoder.aux(b"redis-bits", b"64");
        Ok(())
    }

    /// Number of keys that were written so far.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Writes entries of a keyspace. `place` gets an entry's database and key, and returns the
    /// database for this entry in the file; `None` leaves the entry out.
    ///
    /// # Errors
    /// If the file cannot be written. The error is a sentence for the user.
    pub fn add(
        &mut self,
        keyspace: &Keyspace,
        place: impl Fn(DbIndex, &[u8]) -> Option<DbIndex>,
    ) -> Result<(), String> {
        for number in 0..keyspace.config().db_count {
            let from = DbIndex(number as u16);
            for entry in keyspace.entries(from) {
                let Some(db) = place(from, entry.key) else { continue };
                if self.db != Some(db) {
                    self.encoder()?.select_db(db.0.into());
                    self.db = Some(db);
                }
                // The replay of the log notes one and the same time as the last use of every key
                // that it touches. Idle times end at this time. With an earlier end, an idle time
                // could be negative.
                self.entry(&entry, keyspace.usage(&entry, keyspace.replay_time()))?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, entry: &EntryView<'_>, usage: Option<Usage>) -> Result<(), String> {
        self.keys += 1;
        let (idle_s, freq) = match usage {
            Some(Usage::IdleSeconds(idle_s)) => (Some(idle_s), None),
            Some(Usage::Freq(freq)) => (None, Some(freq)),
            None => (None, None),
        };
        let attributes = Attributes { expire_at_ms: entry.expires_at_ms, idle_s, freq };
        let rdb_type = rdb_type(entry.value, self.version);
        self.encoder()?.key(entry.key, rdb_type, attributes);
        encode_value(self, entry.value)
    }

    /// Completes the file, syncs it, and renames it to its final path. Returns the file's size in
    /// bytes.
    ///
    /// # Errors
    /// If the file cannot be completed, synced or renamed. The error is a sentence for the user. If
    /// only the sync of the directory failed, the new file is complete and at its final path. After
    /// any other error, the file that was at this path before is still there.
    pub fn finish(mut self) -> Result<u64, String> {
        let writer = self.writer.take().expect("the writer exists until `finish` takes it");
        let failed = |error: &dyn std::fmt::Display| said(&self.unfinished, &self.path, error);
        let mut file = writer.finish().map_err(|e| failed(&e))?;
        file.flush().and_then(|()| file.sync_all()).map_err(|e| failed(&e))?;
        let size = file.metadata().map_err(|e| failed(&e))?.len();
        std::fs::rename(&self.unfinished, &self.path).map_err(|e| failed(&e))?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = File::open(folder.unwrap_or(Path::new(".")));
        folder.and_then(|folder| folder.sync_all()).map_err(|e| {
            format!(
                "{} is complete, but its folder cannot be synced: {e}. A power cut may still bring \
                 back the previous file, or leave no file. Choose another --out",
                self.path.display()
            )
        })?;
        Ok(size)
    }
}

/// The path of the file that an export to `path` makes or replaces. If `path` is a symbolic link to
/// a file, this is the link's target. If the link's target does not exist, this is the link itself.
///
/// # Errors
/// If `path` is a symbolic link to a file and cannot be followed, or if `path` exists but is no
/// regular file, because an export must replace only regular files. The error is a sentence for the
/// user.
fn replaced_by(path: &Path) -> Result<PathBuf, String> {
    match path.metadata() {
        Ok(found) if !found.is_file() => {
            Err(format!("{} is no regular file; choose another --out", path.display()))
        }
        Ok(_) if path.is_symlink() => {
            path.canonicalize().map_err(|e| format!("cannot follow {}: {e}", path.display()))
        }
        // Any other problem shows as an error when the file is made.
        _ => Ok(path.to_path_buf()),
    }
}

fn said(unfinished: &Path, path: &Path, error: &dyn std::fmt::Display) -> String {
    format!(
        "cannot write {}: {error}; {} is as it was. Make room, or choose another --out",
        unfinished.display(),
        path.display()
    )
}

impl ValueSink for Exporter {
    type Error = String;

    fn encoder(&mut self) -> Result<&mut Encoder, String> {
        let unfinished = &self.unfinished;
        let writer = self.writer.as_mut().expect("the writer exists until `finish` takes it");
        writer.encoder().map_err(|e| said(unfinished, &self.path, &e))
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // This fails after a successful export, because the file then has its final name.
        let _ = std::fs::remove_file(&self.unfinished);
    }
}
