//! Writes entries to an RDB file.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use slimio_keyspace::{DbIndex, EntryView, HashRef, Keyspace, StringRef, Usage, ValueRef};
use slimio_rdb::{Attributes, Encoder, FileWriter, ValueType, Version};

/// The version note in the file, as Redis writes it: which server made the file.
const REDIS_VERSION_NOTE: &[u8] = crate::REDIS_VERSION.as_bytes();

/// How an RDB file is written.
#[derive(Clone, Copy, Debug)]
pub struct ExportOptions {
    /// The version of the format: 10 is that of Redis 7.0.
    pub version: Version,
    /// Whether strings that shrink are compressed by LZF.
    pub compresses: bool,
    /// Bytes of entries in memory at which they are written out.
    pub batch_size: usize,
}

impl ExportOptions {
    /// A batch that is large enough for its cost not to matter.
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
    /// Begins a file. What is at `path` stays until [`finish`](Self::finish).
    ///
    /// # Errors
    /// A sentence when the file cannot be made.
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
            // Whoever may read the file that it replaces may read this one.
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

    /// Keys written so far.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Writes entries of a keyspace, each to the database that `place` returns for its database and
    /// key. `None` leaves it out.
    ///
    /// # Errors
    /// A sentence when the file cannot be written.
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
                // By the clock of the replay: an earlier one would put the last use in the future.
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
        match entry.value {
            ValueRef::String(string) => self.string(entry.key, string, attributes),
            ValueRef::Hash(hash) => self.hash(entry.key, hash, attributes),
        }
    }

    fn string(
        &mut self,
        key: &[u8],
        string: StringRef<'_>,
        attributes: Attributes,
    ) -> Result<(), String> {
        let encoder = self.encoder()?;
        encoder.key(key, ValueType::String, attributes);
        match string {
            StringRef::Inline(bytes) => encoder.string(bytes),
            StringRef::Piece(piece) => encoder.string(piece),
            StringRef::Blob(blob) => {
                encoder.string_start(blob.size() as u64);
                for piece in blob.pieces() {
                    self.encoder()?.raw(piece);
                }
            }
        }
        Ok(())
    }

    fn hash(
        &mut self,
        key: &[u8],
        hash: HashRef<'_>,
        attributes: Attributes,
    ) -> Result<(), String> {
        let packed = self.version.packed_hash();
        let encoder = self.encoder()?;
        if let Some(listpack) = hash.listpack() {
            encoder.key(key, packed, attributes);
            if packed == ValueType::HashListpack {
                encoder.string(listpack);
            } else {
                let pairs: Vec<_> = hash
                    .iter()
                    .map(|(field, value)| (field.to_bytes(), value.to_bytes()))
                    .collect();
                encoder.packed_hash(pairs.iter().map(|(field, value)| (&**field, &**value)));
            }
            return Ok(());
        }
        encoder.key(key, ValueType::Hash, attributes);
        encoder.hash_start(hash.len() as u64);
        for (field, value) in hash.iter() {
            let encoder = self.encoder()?;
            encoder.string(&field.to_bytes());
            encoder.string(&value.to_bytes());
        }
        Ok(())
    }

    fn encoder(&mut self) -> Result<&mut Encoder, String> {
        let unfinished = &self.unfinished;
        let writer = self.writer.as_mut().expect("it is there until the end");
        writer.encoder().map_err(|e| said(unfinished, &self.path, &e))
    }

    /// Completes the file, makes it stable and gives it its name. Returns its size in bytes.
    ///
    /// # Errors
    /// A sentence; what was at the path before is still there.
    pub fn finish(mut self) -> Result<u64, String> {
        let writer = self.writer.take().expect("it is there until the end");
        let failed = |error: &dyn std::fmt::Display| said(&self.unfinished, &self.path, error);
        let mut file = writer.finish().map_err(|e| failed(&e))?;
        file.flush().and_then(|()| file.sync_all()).map_err(|e| failed(&e))?;
        let size = file.metadata().map_err(|e| failed(&e))?.len();
        std::fs::rename(&self.unfinished, &self.path).map_err(|e| failed(&e))?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = File::open(folder.unwrap_or(Path::new(".")));
        folder.and_then(|folder| folder.sync_all()).map_err(|e| failed(&e))?;
        Ok(size)
    }
}

/// The path of the file that an export to `path` makes or replaces: behind a link, what that leads to.
///
/// # Errors
/// A sentence when something else than a file is there, which a rename would take away.
fn replaced_by(path: &Path) -> Result<PathBuf, String> {
    match path.metadata() {
        Ok(found) if !found.is_file() => {
            Err(format!("{} is no regular file; choose another --out", path.display()))
        }
        Ok(_) if path.is_symlink() => {
            path.canonicalize().map_err(|e| format!("cannot follow {}: {e}", path.display()))
        }
        // Whatever else is wrong shows when the file is made.
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

impl Drop for Exporter {
    fn drop(&mut self) {
        // It is gone already when everything went well.
        let _ = std::fs::remove_file(&self.unfinished);
    }
}
