//! An emulated SSD as a device: it stores data, and its operations take as long as they would on
//! NAND.
//!
//! ```text
//!  path ── op ──► core: mapping, collector, clocks ──► when it completes
//!     └─── bytes ──► data: a file, with each block at its logical address
//! ```
//!
//! The file holds each logical block at its logical address, so nothing in the file moves when the
//! collector copies a page. Blocks that hold nothing read as zeros or as a pattern, and take no
//! room in the file.
//!
//! # What the drive promises
//! The drive keeps the contract of [`Device`]. If the drive has a cache, a write that was not
//! submitted as durable completes when the cache has room for it. Until a flush, a
//! [power cut](EmulatedDrive::cut_power) may lose such a write. The cache hides the latency of
//! writes, but every write still goes to the NAND. A deallocation takes effect when it is
//! acknowledged. The deallocation then removes all data of its blocks, including data that was
//! written between the request and the acknowledgement.

mod account;
mod admin;
mod cache;
mod core;
mod data;
mod deallocation;
mod durability;
mod freeing;
mod journal;
mod made;
mod memory;
mod old_state;
mod queue;
mod real_time;
mod recovery;
mod remembered;
mod request;
mod state_file;
mod undo;
mod virtual_time;
mod watch;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slimio_device::{
    Contents, Device, DeviceError, FdpAccount, IN_FLIGHT_DEFAULT, LBA_SIZE, MappedFile, OpenError,
    PlacementId, WholeDevice,
};

use self::account::Account;
use self::core::Core;
use self::data::Data;
use self::durability::Durability;
use self::real_time::RealTimePath;
use self::remembered::{Refusal, Remembered};
use self::state_file::Lost;
use self::virtual_time::VirtualTimePath;
use crate::{Clocked, Config, Counters, Ftl, Isolation};

pub use self::deallocation::Canceller;
pub(crate) use self::made::SavedConfig;
pub use self::queue::DriveQueue;
pub use self::watch::DriveWatch;

/// The clock that determines when a drive's operations complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The machine's clock. Each path has a thread that waits for as long as NAND would take.
    Real,
    /// The drive's own clock, which advances only when a caller waits for the drive or polls it. No
    /// thread sleeps, and the same work always takes the same time.
    Virtual,
}

/// Where a drive's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataPlace {
    /// In a file without a name, which is deleted with the drive.
    Temporary,
    /// In the file at this path, which is created if it is missing. The drive's configuration,
    /// mapping, counters and events are in a second file, the state file. The state file's name is
    /// that of the data file with `.mapping` appended. No matter how the process ends, the next
    /// process that opens the drive finds the state that the last acknowledged operation left.
    /// Operations that were still in flight may have taken effect, too. If the state file is
    /// missing or damaged, all data in the data file counts as written by the first handle, in the
    /// order of the blocks.
    File(PathBuf),
    /// Nowhere. A written block reads as a pattern made from its address.
    Dropped,
}

/// What a read returns for blocks that hold nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deallocated {
    /// Zeros. The drive promises zeros to hosts (001b in NVMe's DLFEAT).
    Zeros,
    /// Bytes of the value `0xDD`, which reveal a host that relies on zeros. The drive promises no
    /// value to hosts (000b in DLFEAT).
    Pattern,
}

impl Deallocated {
    fn byte(self) -> u8 {
        match self {
            Self::Zeros => 0,
            Self::Pattern => 0xDD,
        }
    }
}

/// How an emulated drive is made.
#[derive(Clone, Debug)]
pub struct DriveOptions {
    /// The drive's configuration.
    pub config: Config,
    /// Whether hosts see the drive's handles. If not, the drive is a conventional one.
    pub has_fdp: bool,
    /// The clock that determines when operations complete.
    pub clock: Clock,
    /// Where the drive's bytes are.
    pub data: DataPlace,
    /// The number of blocks that the volatile cache holds. With 0, the drive has no cache, and
    /// every write is stable.
    pub cache_lbas: u32,
    /// Time from the request for a deallocation until the deallocation takes effect and is
    /// acknowledged.
    pub deallocate_latency: Duration,
    /// What a read returns for blocks that hold nothing.
    pub deallocated: Deallocated,
    /// Whether flushes and durable writes are also made durable in the file system of the drive's
    /// file, so that the data survives a failure of the machine. Such a drive reports a volatile
    /// cache, because hosts send no flushes to a drive without a cache.
    pub is_sync: bool,
    /// Whether the drive's power may be cut. If so, the drive keeps in memory the data that writes
    /// and deallocations have replaced, for as long as a power cut could undo them.
    pub can_lose_power: bool,
    /// The most operations that may be in flight on one path.
    pub in_flight_max: u32,
}

impl DriveOptions {
    /// A drive without a volatile cache, with its data in a temporary file. It has data placement
    /// if it has several handles.
    pub fn new(config: Config, clock: Clock) -> Self {
        Self {
            has_fdp: config.handles > 1,
            config,
            clock,
            data: DataPlace::Temporary,
            cache_lbas: 0,
            deallocate_latency: Duration::ZERO,
            deallocated: Deallocated::Zeros,
            is_sync: false,
            can_lose_power: false,
            in_flight_max: IN_FLIGHT_DEFAULT,
        }
    }

    /// Checks that the drive exists, so that opening it does not create a new one.
    ///
    /// # Errors
    /// If the drive's file is missing.
    pub fn check_exists(&self) -> Result<(), OpenError> {
        match &self.data {
            DataPlace::File(path) if !path.exists() => {
                Err(OpenError::Missing { path: path.clone() })
            }
            _ => Ok(()),
        }
    }
}

/// An emulated SSD in this process.
pub struct EmulatedDrive {
    core: Shared,
    data: Arc<Data>,
    options: DriveOptions,
    /// Why the drive's mapping is lost, if it is lost.
    lost: Option<Lost>,
    placements: Vec<PlacementId>,
}

/// What all paths of a drive share.
#[derive(Clone, Debug)]
struct Shared {
    core: Arc<Mutex<Core>>,
    /// How often the power was cut.
    cuts: Arc<AtomicU64>,
    /// How many deallocations have taken effect.
    deallocations: Arc<AtomicU64>,
    durability: Arc<Durability>,
    /// When this process opened the drive, by the machine's clock.
    start: Instant,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Core> {
        // The thread whose panic poisoned the lock has reported that panic.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time since this process opened the drive, by the machine's clock.
    fn real_now(&self) -> Duration {
        self.start.elapsed()
    }
}

impl EmulatedDrive {
    /// Creates a drive, or opens the file of an existing one.
    ///
    /// # Errors
    /// [`OpenError::Unsuitable`] if a drive with these options can't work, or if the drive in the
    /// file has another size or was made with other options. [`OpenError::InUse`] if the file is
    /// already open.
    pub fn open(options: DriveOptions) -> Result<Self, OpenError> {
        let name = match &options.data {
            DataPlace::File(path) => path.clone(),
            DataPlace::Temporary | DataPlace::Dropped => "emulated".into(),
        };
        let unsuitable = |why| OpenError::Unsuitable { path: name.clone(), why };
        options.config.check().map_err(|error| unsuitable(error.to_string()))?;
        let (data, is_new) = Data::open(&options.data, options.config.lba_count)?;
        let data = Arc::new(data);
        let made = SavedConfig::of(&options);
        let remembered = Remembered::open(&data, is_new, made).map_err(|error| match error {
            Refusal::Unsuitable(why) => unsuitable(why),
            Refusal::Open(error) => error,
        })?;
        if is_new {
            data.make_room(options.config.lba_count)?;
        }
        let Remembered { ftl, journal, lost } = remembered;
        let has_fdp = options.has_fdp;
        let placements = options.config.placements().filter(|_| has_fdp).collect();
        let durability = Durability::new(options.is_sync, data.clone(), journal.as_ref());
        let core = Core::new(Clocked::of(ftl), data.clone(), journal, &options);
        let (cuts, durability) = (core.cuts(), Arc::new(durability));
        let deallocations = core.deallocations.clone();
        let core = Arc::new(Mutex::new(core));
        Ok(Self {
            core: Shared { core, cuts, deallocations, durability, start: Instant::now() },
            data,
            placements,
            options,
            lost,
        })
    }

    /// Cuts the power and turns it on again. Writes and deallocations that are not stable yet
    /// survive on the blocks for which `survives` returns true, and are undone on the others. All
    /// paths that are open now fail from then on.
    ///
    /// # Panics
    /// If [`DriveOptions::can_lose_power`] was false.
    pub fn cut_power(&self, survives: impl FnMut(u64) -> bool) {
        self.core.lock().cut_power(survives);
    }

    /// Makes all earlier operations durable, as a flush does. Without [`DriveOptions::is_sync`],
    /// this call does nothing.
    ///
    /// # Errors
    /// If something could not be made durable, now or earlier.
    pub fn make_durable(&self) -> Result<(), DeviceError> {
        self.core.make_durable()
    }

    /// The drive's counters as they are now.
    pub fn counters(&self) -> Counters {
        self.core.lock().drive.ftl().counters().clone()
    }

    /// Calls `look` with the mapping as it is now.
    pub fn with_ftl<T>(&self, look: impl FnOnce(&Ftl) -> T) -> T {
        look(self.core.lock().drive.ftl())
    }

    /// Opens a queue, whose operations begin in the calling thread. Any number of queues and paths
    /// may be open.
    ///
    /// # Panics
    /// If the drive has [`Clock::Virtual`].
    pub fn open_queue(&self) -> DriveQueue {
        assert_eq!(self.options.clock, Clock::Real, "a queue works only with the machine's clock");
        DriveQueue::new(self.core.clone(), self.data.clone(), self.options.in_flight_max)
    }

    /// Returns a [`DriveWatch`], with which a caller can look at the drive while other code uses
    /// it.
    pub fn watch(&self) -> DriveWatch {
        DriveWatch(self.core.clone())
    }

    /// What a read returns for blocks that hold nothing.
    pub fn deallocated(&self) -> Deallocated {
        self.options.deallocated
    }

    /// The time since this process opened the drive, by the drive's own clock.
    pub fn now(&self) -> Duration {
        self.core.lock().drive_now(&self.core)
    }
}

impl WholeDevice for EmulatedDrive {
    fn lba_count(&self) -> u64 {
        self.options.config.lba_count
    }

    fn contents(&self) -> Result<Contents, OpenError> {
        self.data.contents()
    }

    fn open_path(&mut self) -> Result<Box<dyn Device + Send>, OpenError> {
        let (core, data) = (self.core.clone(), self.data.clone());
        let in_flight_max = self.options.in_flight_max;
        Ok(match self.options.clock {
            Clock::Virtual => Box::new(VirtualTimePath::new(core, data, in_flight_max)),
            Clock::Real => Box::new(RealTimePath::new(core, data, in_flight_max)?),
        })
    }

    fn map(&mut self, offset: u64, size: usize) -> Result<MappedFile, OpenError> {
        self.map_range(offset, size)
    }

    fn placements(&self) -> &[PlacementId] {
        &self.placements
    }

    fn fdp(&self) -> Option<Box<dyn FdpAccount>> {
        let handles = if self.options.has_fdp { self.options.config.handles } else { 0 };
        Some(Box::new(Account::new(self.core.clone(), handles)))
    }

    fn is_best(&self) -> bool {
        // An emulated drive can be opened in only one way, so this way is the best.
        true
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let config = &self.options.config;
        let geometry = &config.geometry;
        vec![
            ("device", "emulated SSD".into()),
            ("size", format!("{} bytes", config.lba_count * LBA_SIZE as u64)),
            ("NAND", format!("{} bytes", geometry.page_count() * LBA_SIZE as u64)),
            ("dies", format!("{} on {} channels", geometry.die_count(), geometry.channels)),
            ("reclaim unit", format!("{} bytes", geometry.unit_size())),
            ("placements", self.placements.len().to_string()),
            ("collector", format!("{:?}, {:?}", config.victims, config.thresholds)),
            ("timing", format!("{:?}", config.timing)),
        ]
    }

    fn describe(&self) -> String {
        let config = &self.options.config;
        let isolation = match config.isolation {
            _ if config.initial_handles > 0 => "persistently or initially",
            Isolation::Initial => "initially",
            Isolation::Persistent => "persistently",
        };
        let groups = match config.groups {
            1 => String::new(),
            groups => format!(" in {groups} reclaim groups"),
        };
        let placement = match config.handles {
            _ if !self.options.has_fdp => "no data placement".to_owned(),
            count => format!("{count} {isolation} isolated handles{groups}"),
        };
        let cache = match self.options.cache_lbas {
            0 => "no volatile write cache".to_owned(),
            lbas => format!("volatile write cache of {}", Size(u64::from(lbas) * LBA_SIZE as u64)),
        };
        format!(
            "emulated SSD of {}, {} reclaim units of {}, {placement}, {cache}, data in {}",
            Size(config.lba_count * LBA_SIZE as u64),
            config.geometry.unit_count(),
            Size(config.geometry.unit_size()),
            self.data
        )
    }

    fn notes(&self) -> Vec<String> {
        let survives = match &self.options.data {
            DataPlace::File(_) if self.options.is_sync => {
                "acknowledged writes survive the end of the server's process (kill -9), and a \
                 failure of the machine if they were flushed"
            }
            DataPlace::File(_) => {
                "acknowledged writes survive the end of the server's process (kill -9), but not a \
                 failure of the machine: nothing is synced to the disk that the drive's file is on"
            }
            DataPlace::Temporary | DataPlace::Dropped => {
                "acknowledged writes are lost when the server's process ends"
            }
        };
        let lost = self.lost.map(|lost| lost.to_string());
        std::iter::once(format!("the SSD is emulated: {survives}")).chain(lost).collect()
    }
}

/// Formats a count of bytes with a unit.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(shift, _)| self.0 >> shift > 0) {
            Some((shift, name)) if self.0.is_multiple_of(1 << shift) => {
                write!(f, "{} {name}", self.0 >> shift)
            }
            Some((shift, name)) => {
                write!(f, "{:.1} {name}", self.0 as f64 / (1_u64 << shift) as f64)
            }
            None => write!(f, "{} bytes", self.0),
        }
    }
}

/// The size of the drive whose bytes are in a file, if there is such a file.
pub fn size_of_drive_in(path: &Path) -> Option<u64> {
    path.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len())
}
