//! The state file beside a drive's data file: two checkpoints, and a journal.
//!
//! ```text
//! | head | head | body | body | entry | entry | ... |
//! 0      4096   8192
//! ```
//!
//! A checkpoint has a head with the drive's configuration, and a body with the drive's whole state.
//! A new checkpoint overwrites the older of the two, so at any moment one of them is whole. A head
//! is written after its body. The head names the first [entry](super::request) that is not part of
//! the body. Entries are written in a ring. The ring is so long that no entry after the latest
//! checkpoint is overwritten.
//!
//! All integers are little-endian. The checksum (XXH3) of a head covers everything that follows it
//! in the head, including the checksum of the body:
//!
//! ```text
//! | magic | checksum | number | next entry | id | body's size | body's checksum | configuration |
//! 0       8          16       24           32   40            48                64
//! ```
//!
//! The file is mapped into memory, so everything stored in the file outlives the process without a
//! system call. A new file is made under another name, and gets its final name when it is whole.

use std::fmt::{self, Display};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slimio_device::{Buffer, DeviceError, ImageFile, LBA_SIZE, OpenError};
use slimio_planted::is_planted;
use twox_hash::XxHash3_64;

use super::made::{NUMBERS_MAX, SavedConfig};
use super::old_state;
use super::recovery::Recovered;
use super::request::{ENTRY_SIZE, Entry};
use crate::{Config, Ftl};

/// The first bytes of the magic of every version. The byte after them is the version.
const MAGIC_OF_ALL: [u8; 7] = *b"SLIMSSD";

const MAGIC: [u8; 8] = *b"SLIMSSD3";

const HEAD_SIZE: usize = LBA_SIZE;

/// The checksum covers the part of the head from this offset on.
const CHECKED_FROM: usize = 16;

const NUMBERS_FROM: usize = 64;

const _: () =
    assert!(NUMBERS_FROM + 8 * NUMBERS_MAX <= HEAD_SIZE, "a head has room for a configuration");

/// Half of the journal has room for at least this many entries, however small the drive is.
const ENTRIES_MIN: u64 = 4096;

/// A new process waits at most this long for a killed process to release the file.
const END_MAX: Duration = Duration::from_secs(10);

/// The layout of a state file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    body_size: usize,
    /// How many entries the journal has room for.
    pub(super) entries: u64,
}

impl Layout {
    /// A checkpoint is made at the latest when half of the journal is used. Except on small drives,
    /// the length of the journal is proportional to the size of the drive, as is the size of a
    /// checkpoint.
    pub(super) fn of(config: &Config) -> Self {
        let body_size = Ftl::encoded_size_max(config).next_multiple_of(LBA_SIZE);
        let half = (config.lba_count / 8).max(ENTRIES_MIN);
        let in_block = (LBA_SIZE / ENTRY_SIZE) as u64;
        Self { body_size, entries: (2 * half).next_multiple_of(in_block) }
    }

    fn head(number: u64) -> Range<usize> {
        let at = if number.is_multiple_of(2) { 0 } else { HEAD_SIZE };
        at..at + HEAD_SIZE
    }

    fn body(&self, number: u64) -> Range<usize> {
        let at = 2 * HEAD_SIZE + if number.is_multiple_of(2) { 0 } else { self.body_size };
        at..at + self.body_size
    }

    fn entry(&self, sequence: u64) -> Range<usize> {
        let at = 2 * (HEAD_SIZE + self.body_size);
        let at = at + (sequence % self.entries) as usize * ENTRY_SIZE;
        at..at + ENTRY_SIZE
    }

    fn size(&self) -> usize {
        2 * (HEAD_SIZE + self.body_size) + self.entries as usize * ENTRY_SIZE
    }
}

/// The head of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// The number of the checkpoint. Each checkpoint of the file has a higher number than the one
    /// before it.
    pub(super) number: u64,
    /// The sequence number of the first entry that is not in the body.
    pub(super) next: u64,
    /// The id of the file. It is also the seed of the entries' checksums.
    pub(super) id: u64,
    pub(super) body_size: u64,
    pub(super) body_checksum: u64,
    pub(super) made: SavedConfig,
}

impl Head {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_SIZE];
        bytes[..8].copy_from_slice(&MAGIC);
        let own = [self.number, self.next, self.id, self.body_size, self.body_checksum];
        for (place, number) in bytes[CHECKED_FROM..].chunks_exact_mut(8).zip(own) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        for (place, number) in bytes[NUMBERS_FROM..].chunks_exact_mut(8).zip(self.made.numbers()) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let checksum = XxHash3_64::oneshot(&bytes[CHECKED_FROM..]);
        bytes[8..CHECKED_FROM].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(
            Self::decode(&bytes).as_ref(),
            Some(self),
            "a head that was encoded can be decoded"
        );
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let checksum = XxHash3_64::oneshot(&bytes[CHECKED_FROM..]).to_le_bytes();
        if bytes[..8] != MAGIC || bytes[8..CHECKED_FROM] != checksum {
            return None;
        }
        let numbers = |from: usize| {
            let words = bytes[from..].as_chunks::<8>().0.iter();
            words.map(|number| u64::from_le_bytes(*number))
        };
        let mut own = numbers(CHECKED_FROM);
        Some(Self {
            number: own.next()?,
            next: own.next()?,
            id: own.next()?,
            body_size: own.next()?,
            body_checksum: own.next()?,
            made: SavedConfig::from_numbers(numbers(NUMBERS_FROM))?,
        })
    }

    /// The valid heads at the start of a file, the latest first.
    fn all(bytes: &[u8]) -> Vec<Self> {
        let parts = bytes.chunks_exact(HEAD_SIZE).take(2);
        let mut heads: Vec<Self> = parts.filter_map(Self::decode).collect();
        heads.sort_by_key(|head| std::cmp::Reverse(head.number));
        heads
    }
}

/// Why the drive's mapping (of logical blocks to NAND pages) could not be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// There is no valid state file beside the data file.
    All,
    /// The state file has no mapping. The file is of a version that stored the mapping only when
    /// the drive was closed, and the drive was not closed properly.
    Mapping,
    /// An entry or a checkpoint is missing, and something later shows that it existed.
    Tail,
}

impl Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BEGIN: &str =
            "the drive's data counts as written by the first handle, and the counters begin at 0";
        match self {
            Self::All => write!(
                f,
                "the SSD's mapping is lost, because the state file beside the data file (its name \
                 ends in .mapping) is missing or damaged: {BEGIN}"
            ),
            Self::Mapping => write!(
                f,
                "the SSD's mapping is lost, because the last process that had the drive open was \
                 killed, or could not write the mapping: {BEGIN}"
            ),
            Self::Tail => f.write_str(
                "the end of the SSD's mapping is lost, because the state file beside the data file \
                 (its name ends in .mapping) is damaged, or because the machine has failed: data \
                 that only the lost part mapped now counts as written by the first handle. The \
                 counters do not include the lost part",
            ),
        }
    }
}

/// The part of a drive's state that its state file still has.
pub(super) enum Found {
    /// A drive of the present format, with all or most of its mapping.
    Whole(Recovered),
    /// A drive without its mapping, or of an older format.
    Part(Option<SavedConfig>, Result<Ftl, Lost>),
}

/// The path of the state file beside a drive's data file.
#[derive(Clone, Debug)]
pub(super) struct StateFile {
    path: PathBuf,
}

impl StateFile {
    /// The state file beside the data file at `path`. The data file must exist. Links are resolved,
    /// so all links to a data file have the same state file.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let mut name = path.canonicalize()?.into_os_string();
        name.push(".mapping");
        Ok(Self { path: name.into() })
    }

    /// Reads the configuration of the drive, if there is a valid one.
    pub(super) fn read_made(&self) -> Option<SavedConfig> {
        let mut heads = Vec::new();
        io::Read::read_to_end(
            &mut io::Read::take(File::open(&self.path).ok()?, 2 * HEAD_SIZE as u64),
            &mut heads,
        )
        .ok()?;
        let latest = Head::all(&heads).into_iter().next();
        latest.map(|head| head.made).or_else(|| old_state::decode_head(&heads))
    }

    /// Reads the state that the drive's last process left.
    ///
    /// # Errors
    /// If the file has a version that this program does not know, or can't be read.
    pub(super) fn read(&self) -> Result<Found, OpenError> {
        let failed = |error: &io::Error| OpenError::Io {
            doing: "reading",
            path: self.path.clone(),
            errno: error.raw_os_error().unwrap_or_default(),
        };
        let nothing = Found::Part(None, Err(Lost::All));
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(nothing),
            opened => opened.map_err(|error| failed(&error))?,
        };
        let size = file.metadata().map_err(|error| failed(&error))?.len();
        let mut start = vec![0; 2 * HEAD_SIZE];
        let start = &mut start[..(2 * HEAD_SIZE).min(size as usize)];
        file.read_exact_at(start, 0).map_err(|error| failed(&error))?;
        drop(file);
        let heads = Head::all(start);
        let Some(latest) = heads.first() else {
            if let Some(version) = unknown_version(start) {
                let why = format!(
                    "the file was written by another version of this program, with format {}: use \
                     that version",
                    char::from(version)
                );
                return Err(OpenError::Unsuitable { path: self.path.clone(), why });
            }
            let (made, ftl) = old_state::read(&self.path);
            return Ok(Found::Part(made, ftl));
        };
        let lost = Found::Part(Some(latest.made.clone()), Err(Lost::All));
        let layout = Layout::of(&latest.made.config);
        if latest.made.config.check().is_err() || (layout.size() as u64) > size {
            return Ok(lost);
        }
        let store = Store::open(&self.path, layout)?;
        Ok(store.recover(&heads).map_or(lost, Found::Whole))
    }

    /// Makes a new file, with a first checkpoint and an id that no other file has. As the last
    /// step, the new file replaces any older state file, which is of no use or of an older format.
    /// `release` is called just before this step.
    ///
    /// # Errors
    /// If the file can't be made, or if `release` fails. An older file then stays as it was. But if
    /// only the sync of the folder fails, the new file has already replaced the older file.
    pub(super) fn create(
        &self,
        made: &SavedConfig,
        ftl: &Ftl,
        release: impl FnOnce() -> Result<(), OpenError>,
    ) -> Result<(Store, Head), OpenError> {
        let mut new = self.path.clone().into_os_string();
        new.push(".new");
        let new = PathBuf::from(new);
        // An earlier process that was killed in this function may have left such a file.
        drop(std::fs::remove_file(&new));
        let made_file = Store::create(&new, Layout::of(&made.config)).and_then(|mut store| {
            let id = XxHash3_64::oneshot(&unique());
            let head =
                Head { number: 1, next: 0, id, body_size: 0, body_checksum: 0, made: made.clone() };
            let head =
                store.checkpoint(head, ftl, &mut Vec::new(), ImageFile::sync).map_err(|error| {
                    OpenError::Device { doing: "writing", path: new.clone(), error }
                })?;
            let failed = |error: io::Error| OpenError::Io {
                doing: "renaming",
                path: new.clone(),
                errno: error.raw_os_error().unwrap_or_default(),
            };
            release()?;
            std::fs::rename(&new, &self.path).map_err(failed)?;
            if made.is_sync {
                let folder = self.path.parent().unwrap_or(Path::new("."));
                File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
            }
            Ok((store, head))
        });
        if made_file.is_err() {
            drop(std::fs::remove_file(&new));
        }
        made_file
    }
}

/// The version of a file that has no valid head, if this program does not know that version.
fn unknown_version(start: &[u8]) -> Option<u8> {
    let parts = start.chunks(HEAD_SIZE).take(2);
    let versions = parts.filter_map(|part| part.strip_prefix(&MAGIC_OF_ALL)?.first().copied());
    // A version is a graphic character. Any other byte means that the head was cut off.
    let mut unknown =
        versions.filter(|version| version.is_ascii_graphic() && !matches!(version, b'2' | b'3'));
    unknown.next()
}

/// Bytes that no other call returns.
fn unique() -> Vec<u8> {
    let time = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let mut bytes = time.as_nanos().to_le_bytes().to_vec();
    bytes.extend(std::process::id().to_le_bytes());
    bytes
}

/// An open state file.
pub(super) struct Store {
    memory: Buffer,
    pub(super) layout: Layout,
    pub(super) image: Arc<ImageFile>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.layout).finish()
    }
}

impl Store {
    fn open(path: &Path, layout: Layout) -> Result<Self, OpenError> {
        // This process has locked the drive's data file by now. So if another process still has the
        // state file locked, that process was killed, and has released only the data file so far.
        let begin = Instant::now();
        let image = loop {
            match ImageFile::open(path) {
                Err(OpenError::InUse { .. }) if begin.elapsed() < END_MAX => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                opened => break opened?,
            }
        };
        Self::map(image, layout)
    }

    fn create(path: &Path, layout: Layout) -> Result<Self, OpenError> {
        let image = ImageFile::open(path)?;
        image.set_size(layout.size() as u64)?;
        Self::map(image, layout)
    }

    fn map(image: ImageFile, layout: Layout) -> Result<Self, OpenError> {
        let memory = image.map(0, layout.size())?.buffers(layout.size()).remove(0);
        Ok(Self { memory, layout, image: Arc::new(image) })
    }

    /// Whether everything that was stored outlives the process.
    pub(super) fn is_whole(&self) -> bool {
        self.memory.outlives_process()
    }

    /// Stores an entry.
    pub(super) fn put(&mut self, entry: &Entry, id: u64) {
        let place = self.layout.entry(entry.sequence);
        self.memory[place].copy_from_slice(&entry.encode(id));
        in_this_order();
    }

    /// Makes a checkpoint of a drive. Returns `head`, with the body's size and checksum filled in.
    /// `bytes` is memory that is used for the body. With [`SavedConfig::is_sync`], `sync` makes the
    /// state file durable, once after the body and once after the head.
    ///
    /// # Errors
    /// If `sync` fails.
    pub(super) fn checkpoint(
        &mut self,
        head: Head,
        ftl: &Ftl,
        bytes: &mut Vec<u8>,
        sync: impl Fn(&ImageFile) -> Result<(), DeviceError>,
    ) -> Result<Head, DeviceError> {
        bytes.clear();
        ftl.encode(bytes);
        let head = Head {
            body_size: bytes.len() as u64,
            body_checksum: XxHash3_64::oneshot(bytes),
            ..head
        };
        let sync = |store: &Self| if head.made.is_sync { sync(&store.image) } else { Ok(()) };
        let body = self.layout.body(head.number);
        self.memory[body][..bytes.len()].copy_from_slice(bytes);
        in_this_order();
        if !is_planted("body-not-durable") {
            sync(self)?;
        }
        self.memory[Layout::head(head.number)].copy_from_slice(&head.encode());
        in_this_order();
        sync(self)?;
        Ok(head)
    }

    /// The bytes of the body of a checkpoint, if they are whole.
    pub(super) fn body(&self, head: &Head) -> Option<&[u8]> {
        let body = self.memory[self.layout.body(head.number)].get(..head.body_size as usize)?;
        (XxHash3_64::oneshot(body) == head.body_checksum).then_some(body)
    }

    /// The place of an entry in the journal.
    pub(super) fn place(&self, sequence: u64) -> &[u8; ENTRY_SIZE] {
        self.memory[self.layout.entry(sequence)]
            .first_chunk()
            .expect("the place of an entry is as long as an entry")
    }
}

/// Keeps stores in order: all stores before this call happen before all stores after it. If the
/// process is killed, the file keeps every store that was made before that moment, and none that
/// comes later in the machine code. So it is enough that the compiler does not change the order.
fn in_this_order() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use slimio_device::Lba;

    use super::*;
    use crate::{Clock, DataPlace, DriveOptions};

    /// A failure of the machine may lose anything that was stored since the last sync.
    #[test]
    fn a_head_is_stored_when_its_body_is_durable_and_is_durable_then() {
        let folder = tempfile::tempdir().expect("a directory for the test");
        let data = folder.path().join("drive");
        std::fs::write(&data, b"").expect("the data file can be made");
        let options = DriveOptions::new(Config::scaled(12 << 20), Clock::Virtual);
        let place = DataPlace::File(data.clone());
        let made = SavedConfig::of(&DriveOptions { data: place, is_sync: true, ..options });
        let ftl = Ftl::new(made.config.clone()).expect("such a drive works");
        let file = StateFile::of(&data).expect("the data file exists");
        let (mut store, head) =
            file.create(&made, &ftl, || Ok(())).expect("there is room for the state file");
        let mut body = Vec::new();
        ftl.encode(&mut body);
        let (layout, seen) = (store.layout, RefCell::new(Vec::new()));
        let sync = |image: &ImageFile| {
            let mut bytes = vec![0; layout.size()];
            image.read(Lba(0), &mut bytes).expect("the state file can be read");
            let heads = Head::all(&bytes[..2 * HEAD_SIZE]);
            let numbers = heads.iter().map(|head| head.number);
            let is_whole = bytes[layout.body(2)].starts_with(&body);
            seen.borrow_mut().push((numbers.collect::<Vec<_>>(), is_whole));
            Ok(())
        };
        let head = Head { number: 2, ..head };
        store.checkpoint(head, &ftl, &mut Vec::new(), sync).expect("the checkpoint can be stored");
        assert_eq!(seen.into_inner(), [(vec![1], true), (vec![2, 1], true)]);
    }
}
