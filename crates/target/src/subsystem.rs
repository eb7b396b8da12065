//! The subsystem, which all connections share: the drive, its name, the list of allowed hosts, and
//! the controllers.

use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use slimio_device::{FdpAccount, LBA_SIZE, PlacementId, WholeDevice, WriteCache};
use slimio_nvme::fabrics::{Connect, ConnectData, InvalidParameter};
use slimio_nvme::{DISCOVERY_NQN, NQN_SIZE_MAX, Status};
use slimio_ssd::{Deallocated, DriveQueue, DriveWatch, EmulatedDrive, Timing};

use crate::buffers::Budget;
use crate::controller::{Controller, Kind};
use crate::errors::ErrorLog;
use crate::limits::{ALLOWED_MAX, CONTROLLERS_MAX, KEEP_ALIVE_MAX, QUEUE_DEPTH_MAX};
use crate::link::Link;
use crate::trace::Recorder;
use crate::warnings::Warnings;

/// The number of the only namespace.
pub const NSID: u32 = 1;
/// The number of the only endurance group.
pub(crate) const ENDURANCE_GROUP: u16 = 1;

/// Options of a subsystem: its names, and the hosts that may connect.
#[derive(Clone, Debug, Default)]
pub struct SubsystemOptions {
    /// The subsystem's NQN. If it is empty, an NQN is made from [`name`](Self::name).
    pub nqn: String,
    /// NQNs of the hosts that may connect. If the list is empty, any host may connect.
    pub allowed: Vec<String>,
    /// A text that identifies the drive, such as the path of its file. The serial number and the
    /// namespace's identifiers are made from this text, so they change only if the text changes.
    pub name: String,
}

impl SubsystemOptions {
    /// Checks all names.
    ///
    /// # Errors
    /// When a name is no valid NQN, when the subsystem has the name of the discovery subsystem, or
    /// when the list of allowed hosts is too long.
    pub fn check(&self) -> Result<(), OptionsError> {
        let nqn = self.nqn();
        for name in self.allowed.iter().chain([&nqn]) {
            if name.len() > NQN_SIZE_MAX || !name.starts_with("nqn.") || name.contains('\0') {
                let why = format!(
                    "{name:?} is no NVMe name: such a name begins with `nqn.` and has \
                                   at most {NQN_SIZE_MAX} bytes"
                );
                return Err(OptionsError(why));
            }
        }
        if nqn == DISCOVERY_NQN {
            return Err(OptionsError(format!("{nqn} is reserved for discovery subsystems")));
        }
        if self.allowed.len() > ALLOWED_MAX {
            return Err(OptionsError(format!(
                "the list of allowed hosts may have at most {ALLOWED_MAX} names"
            )));
        }
        Ok(())
    }

    /// The subsystem's NQN: the given one, or the one that is made from the name.
    fn nqn(&self) -> String {
        if self.nqn.is_empty() {
            let uuid = uuid_text(&uuid_of(&self.name));
            format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}")
        } else {
            self.nqn.clone()
        }
    }
}

/// Why a subsystem can't be offered, as a sentence without a full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionsError(String);

impl std::fmt::Display for OptionsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OptionsError {}

/// An NVM subsystem with one namespace: an emulated drive.
pub struct Subsystem {
    nqn: String,
    allowed: Vec<String>,
    /// Identifier of the namespace and of the drive.
    pub(crate) uuid: [u8; 16],
    drive: EmulatedDrive,
    pub(crate) watch: DriveWatch,
    pub(crate) account: Box<dyn FdpAccount>,
    pub(crate) placements: Vec<PlacementId>,
    pub(crate) lba_count: u64,
    pub(crate) has_cache: bool,
    has_timing: bool,
    pub(crate) start: Instant,
    pub(crate) counts: Counts,
    pub(crate) errors: Mutex<ErrorLog>,
    pub(crate) recorder: Option<Recorder>,
    pub(crate) warnings: Warnings,
    /// Memory for the data of all connections' commands.
    pub(crate) data_budget: Arc<Budget>,
    controllers: Mutex<Controllers>,
}

/// Counts of the hosts' commands and of media errors since the subsystem was made.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) read_commands: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) write_commands: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) media_errors: AtomicU64,
}

impl Counts {
    pub(crate) fn read(&self, bytes: usize) {
        self.read_commands.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn wrote(&self, bytes: usize) {
        self.write_commands.fetch_add(1, Ordering::Relaxed);
        self.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Controllers {
    by_id: BTreeMap<u16, Arc<Controller>>,
    last_id: u16,
}

/// Highest number that a controller may have. Higher numbers are reserved.
const CNTLID_MAX: u16 = 0xffef;

/// The refusal of a Connect: the status and the result of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectRefusal {
    pub(crate) status: Status,
    pub(crate) result: u64,
}

impl ConnectRefusal {
    pub(crate) fn parameter(parameter: InvalidParameter) -> Self {
        let status = Status::CONNECT_INVALID_PARAMETERS.dnr();
        Self { status, result: parameter.result() }
    }

    /// A refusal because the controller of an I/O queue has ended, or never existed. The status
    /// allows a retry, so the host makes a new association. A host that is told not to retry
    /// removes the drive.
    pub(crate) fn no_controller() -> Self {
        let status = Status::CONNECT_INVALID_PARAMETERS;
        Self { status, result: InvalidParameter::CNTLID.result() }
    }
}

impl From<Status> for ConnectRefusal {
    fn from(status: Status) -> Self {
        Self { status, result: 0 }
    }
}

impl std::fmt::Debug for Subsystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subsystem").field("nqn", &self.nqn).finish_non_exhaustive()
    }
}

impl Subsystem {
    /// Makes a subsystem that offers a drive. A `recorder` records the hosts' operations.
    ///
    /// # Errors
    /// When [`SubsystemOptions::check`] refuses the options.
    pub fn new(
        drive: EmulatedDrive,
        options: SubsystemOptions,
        recorder: Option<Recorder>,
    ) -> Result<Arc<Self>, OptionsError> {
        options.check()?;
        let (uuid, nqn) = (uuid_of(&options.name), options.nqn());
        let account = drive.fdp().expect("an emulated drive has an FDP account");
        Ok(Arc::new(Self {
            nqn,
            allowed: options.allowed,
            uuid,
            watch: drive.watch(),
            account,
            placements: drive.placements().to_vec(),
            lba_count: drive.lba_count(),
            has_cache: drive.open_queue().geometry().write_cache != WriteCache::Stable,
            has_timing: drive.with_ftl(|ftl| ftl.config().timing != Timing::NONE),
            drive,
            start: Instant::now(),
            counts: Counts::default(),
            errors: Mutex::default(),
            recorder,
            warnings: Warnings::default(),
            data_budget: Arc::default(),
            controllers: Mutex::default(),
        }))
    }

    /// The subsystem's NQN.
    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    /// The drive.
    pub fn drive(&self) -> &EmulatedDrive {
        &self.drive
    }

    /// The recorder of the hosts' operations, if the subsystem has one.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// Opens a queue to the drive, for one connection.
    pub fn open_queue(&self) -> DriveQueue {
        self.drive.open_queue()
    }

    /// Number of controllers at this moment.
    pub fn controller_count(&self) -> usize {
        self.lock().by_id.len()
    }

    /// The number of each controller, with its host's name.
    pub(crate) fn hosts(&self) -> Vec<(u16, String)> {
        let controllers = self.lock();
        controllers.by_id.values().map(|found| (found.id, found.host.clone())).collect()
    }

    /// Whether the drive simulates how long operations take on NAND.
    pub(crate) fn has_timing(&self) -> bool {
        self.has_timing
    }

    /// Size of the namespace, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.lba_count * LBA_SIZE as u64
    }

    /// Whether hosts see data placement.
    pub(crate) fn has_fdp(&self) -> bool {
        !self.placements.is_empty()
    }

    /// Whether deallocated blocks read as zeros.
    pub(crate) fn reads_zeros(&self) -> bool {
        self.drive.deallocated() == Deallocated::Zeros
    }

    /// Ends every controller, so that all connections close.
    pub fn end(&self) {
        // The lock is released first. When a controller ends, it waits for its connections, and
        // these may need the lock.
        let controllers = std::mem::take(&mut self.lock().by_id);
        for controller in controllers.into_values() {
            controller.end();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Controllers> {
        // If a panic has poisoned the lock, the thread that panicked has reported that.
        self.controllers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves the Connect of an admin queue, and makes a controller. Source: base specification
    /// 2.1, 6.3.
    pub(crate) fn connect_admin(
        &self,
        connect: &Connect,
        data: &ConnectData,
        link: Option<&Arc<Link>>,
        now: Instant,
    ) -> Result<Arc<Controller>, ConnectRefusal> {
        let host = checked_name(data.hostnqn.text(), InvalidParameter::HOSTNQN)?;
        let subsystem = checked_name(data.subnqn.text(), InvalidParameter::SUBNQN)?;
        let kind = if subsystem == DISCOVERY_NQN {
            Kind::Discovery
        } else if subsystem == self.nqn {
            Kind::Io
        } else {
            return Err(ConnectRefusal::parameter(InvalidParameter::SUBNQN));
        };
        if !self.allowed.is_empty() && !self.allowed.iter().any(|allowed| allowed == host) {
            let why =
                format_args!("{host} was refused, because it is not on the list of allowed hosts");
            self.warnings.say(why, now);
            return Err(Status::CONNECT_INVALID_HOST.dnr().into());
        }
        if data.cntlid != slimio_nvme::fabrics::CNTLID_ANY {
            return Err(ConnectRefusal::parameter(InvalidParameter::CNTLID));
        }
        check_size(connect)?;
        if u128::from(connect.kato) > KEEP_ALIVE_MAX.as_millis() {
            return Err(Status::KEEP_ALIVE_INVALID.dnr().into());
        }
        let mut controllers = self.lock();
        if controllers.by_id.len() >= CONTROLLERS_MAX {
            return Err(Status::CONNECT_CONTROLLER_BUSY.into());
        }
        // Numbers are not reused soon. Otherwise, a late Connect of one host might reach the
        // controller of another host.
        let mut id = controllers.last_id;
        loop {
            id = if id >= CNTLID_MAX { 1 } else { id + 1 };
            if !controllers.by_id.contains_key(&id) {
                break;
            }
        }
        controllers.last_id = id;
        let mut controller =
            Controller::new(id, kind, host, data.hostid, connect.kato, self.start, now);
        controller.admin = link.cloned();
        let controller = Arc::new(controller);
        controllers.by_id.insert(id, controller.clone());
        Ok(controller)
    }

    /// Serves the Connect of an I/O queue, which belongs to the controller that the host names.
    /// Returns the controller, and the number of its resets so far.
    pub(crate) fn connect_io(
        &self,
        connect: &Connect,
        data: &ConnectData,
        link: Option<&Arc<Link>>,
    ) -> Result<(Arc<Controller>, u64), ConnectRefusal> {
        let host = checked_name(data.hostnqn.text(), InvalidParameter::HOSTNQN)?;
        let subsystem = checked_name(data.subnqn.text(), InvalidParameter::SUBNQN)?;
        if subsystem != self.nqn {
            return Err(ConnectRefusal::parameter(InvalidParameter::SUBNQN));
        }
        let controller = self.lock().by_id.get(&data.cntlid).cloned();
        let controller = controller.ok_or(ConnectRefusal::no_controller())?;
        if controller.kind != Kind::Io {
            return Err(ConnectRefusal::parameter(InvalidParameter::CNTLID));
        }
        if controller.host != host || controller.host_id != data.hostid {
            return Err(Status::CONNECT_INVALID_HOST.dnr().into());
        }
        check_size(connect)?;
        let resets = controller.take_queue(connect.qid, link)?;
        Ok((controller, resets))
    }

    /// Removes and ends a controller, so that its connections close.
    pub(crate) fn end_controller(&self, controller: &Arc<Controller>) {
        let mut controllers = self.lock();
        if controllers.by_id.get(&controller.id).is_some_and(|known| Arc::ptr_eq(known, controller))
        {
            controllers.by_id.remove(&controller.id);
        }
        drop(controllers);
        controller.end();
    }
}

fn checked_name(name: Option<&str>, field: InvalidParameter) -> Result<&str, ConnectRefusal> {
    // Names are shown in terminals and in the log, so they must have no control characters.
    let is_clean = |name: &str| !name.contains(char::is_control);
    name.filter(|name| !name.is_empty() && name.len() <= NQN_SIZE_MAX && is_clean(name))
        .ok_or(ConnectRefusal::parameter(field))
}

/// Checks the size of a queue. A queue has at least two entries, because one is always empty.
fn check_size(connect: &Connect) -> Result<(), ConnectRefusal> {
    if (1..QUEUE_DEPTH_MAX).contains(&connect.sqsize) {
        Ok(())
    } else {
        Err(ConnectRefusal::parameter(InvalidParameter::SQSIZE))
    }
}

/// Makes a UUID of version 8 from a name. The same name always gives the same UUID.
fn uuid_of(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (seed, half) in (0..).zip(bytes.chunks_exact_mut(8)) {
        let mut hasher = twox_hash::XxHash3_64::with_seed(seed);
        hasher.write(name.as_bytes());
        half.copy_from_slice(&hasher.finish().to_be_bytes());
    }
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// The bytes as a hexadecimal text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).expect("four bits are below 16");
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let parts = [&uuid[..4], &uuid[4..6], &uuid[6..8], &uuid[8..10], &uuid[10..]];
    parts.map(hex).join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_always_gives_the_same_uuid_and_others_another() {
        let uuid = uuid_text(&uuid_of("/data/drive"));
        assert_eq!(uuid, uuid_text(&uuid_of("/data/drive")));
        assert_ne!(uuid, uuid_text(&uuid_of("/data/drive2")));
        let parts: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert_eq!(&uuid[14..15], "8");
    }
}
