//! A whole NVMe namespace that is accessed by passthrough: the kernel's driver hands NVMe commands
//! to the device unchanged. There is no file system and no block layer in between, and writes can
//! use the device's own data placement.

mod admin;
mod commands;
mod data;
mod fdp;
mod path;
mod status;
mod sysfs;
mod wire;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use slimio_ring::{NvmeStatus, Refused};

use self::fdp::NvmeAccount;
pub use self::fdp::{FdpAccount, FdpConfiguration, FdpEvent, FdpStatistics, PlacementHandle};
use self::path::NvmePath;
use self::sysfs::Nodes;
pub(crate) use self::sysfs::nodes;
use self::wire::{IdentifyController, IdentifyNamespace, opcode};
use crate::bulk::{Bulk, Extras, Refusal};
use crate::claim::Claim;
use crate::contents::{self, Contents};
use crate::mapped_range::{self, MappedRange};
use crate::polling;
use crate::target::check_range;
use crate::{
    Buffer, Device, DeviceError, EngineChoice, IN_FLIGHT_MAX, LBA_SIZE, Lba, MappedFile, Op,
    OpenError, PathOptions, PlacementId, Token, WholeDevice, WriteCache,
};
use crate::{block, identity};

/// Limit in bytes of a command's data, if neither the kernel nor the device states a limit.
const COMMAND_SIZE_DEFAULT: u64 = 128 << 10;

/// The properties of a namespace that its commands depend on.
#[derive(Debug)]
pub(crate) struct Namespace {
    /// The directory `queue` of the block device in `/sys`. The kernel removes the directory
    /// together with the namespace.
    node: PathBuf,
    /// The generic device. Through this device, questions about the namespace reach the controller.
    generic: File,
    nsid: u32,
    /// Length of the namespace in blocks of [`LBA_SIZE`] bytes.
    lba_count: u64,
    /// One block of [`LBA_SIZE`] bytes consists of 2^n device blocks. This is the exponent n.
    blocks_shift: u32,
    /// The largest number of blocks of [`LBA_SIZE`] bytes in one command.
    command_lbas_max: u32,
    write_cache: WriteCache,
    has_deallocate: bool,
    placements: Vec<PlacementId>,
    /// The range of the block device that is mapped into memory. No command may change anything in
    /// this range.
    mapped: Arc<MappedRange>,
}

impl Namespace {
    /// Refuses an operation if it is out of range, if it is too long, or if it would change mapped
    /// blocks.
    fn check(&self, op: &Op) -> Result<(), DeviceError> {
        check_range(op, self.lba_count)?;
        self.mapped.check(op)
    }
}

/// An NVMe namespace, whose block device is opened exclusively. So as long as this value lives, no
/// other program can use the namespace. Commands are sent through the generic device.
pub struct NvmeDevice {
    nodes: Nodes,
    generic: File,
    /// The namespace's block device, opened exclusively. Nothing is read or written through it.
    claim: Claim,
    namespace: Arc<Namespace>,
    identity: Option<String>,
    model: String,
    /// Limit in bytes of an atomic write. If power fails, such a write is on the device as a whole
    /// or not at all.
    atomic_size: u64,
    in_flight_max: u32,
    bulk: Bulk,
    fdp: Fdp,
}

/// The device's data placement.
#[derive(Debug)]
enum Fdp {
    On {
        group: u16,
        configuration: Option<FdpConfiguration>,
        handles: Vec<PlacementHandle>,
    },
    /// Why there is no data placement, as a sentence without a full stop.
    Off(String),
}

impl NvmeDevice {
    /// Exclusively opens the namespace whose generic device or block device is at `path`. Nothing
    /// on the namespace is changed. To check that commands work, one block is read and a flush is
    /// run.
    ///
    /// # Errors
    /// [`OpenError::InUse`] when a process has the namespace open; [`OpenError::StillInFlight`]
    /// when a process has ended, but its operations are still in flight; [`OpenError::Forbidden`]
    /// when this process is not allowed to open the namespace; [`OpenError::Unsuitable`] when the
    /// kernel uses the namespace (for example, because it is mounted), when `path` is not a whole
    /// namespace or has an unsupported format, or when io_uring is refused.
    pub fn open(path: &Path, options: PathOptions) -> Result<Self, OpenError> {
        let nodes = sysfs::nodes(path)?;
        let unsuitable = |why: String| OpenError::unsuitable(path, why);
        if options.engine == EngineChoice::Plain {
            return Err(unsuitable(
                "passthrough needs io_uring, and plain system calls were asked \
                                   for"
                .into(),
            ));
        }
        slimio_ring::probe_wide()
            .map_err(|refused| unsuitable(format!("passthrough needs io_uring: {refused}")))?;
        let claim = block::claim(&nodes.block, 0)?;
        let generic = OpenOptions::new().read(true).write(true).open(&nodes.generic);
        let generic = generic.map_err(|error| block::refused(&nodes.generic, &error))?;
        let refused = |doing| {
            let path = nodes.generic.clone();
            move |error: DeviceError| match error {
                DeviceError::Io { errno: libc::EACCES | libc::EPERM } => {
                    OpenError::Forbidden { path, remedy: block::PERMISSION_REMEDY.into() }
                }
                error => OpenError::Device { doing, path, error },
            }
        };
        let nsid = admin::namespace_id(&generic)
            .map_err(|error| OpenError::io("looking at", &nodes.generic, &error))?;
        let identified = admin::identify(&generic, 0, nsid).map_err(refused("identifying"))?;
        let about = IdentifyNamespace::parse(&identified);
        let identified = admin::identify(&generic, 1, 0).map_err(refused("identifying"))?;
        let controller = IdentifyController::parse(&identified);
        let blocks_shift = check_format(&about).map_err(unsuitable)?;
        let fdp = find_placement(&generic, nsid, &about, &controller);
        let placements = match &fdp {
            Fdp::On { handles, .. } => {
                handles.iter().map(|handle| PlacementId(handle.placement)).collect()
            }
            Fdp::Off(_) => Vec::new(),
        };
        let again = generic.try_clone();
        let namespace = Namespace {
            node: nodes.queue.clone(),
            generic: again.map_err(|error| OpenError::io("opening", &nodes.generic, &error))?,
            nsid,
            lba_count: about.block_count >> blocks_shift,
            blocks_shift,
            command_lbas_max: command_lbas_max(
                sysfs::transfer_size_max(&nodes.queue),
                controller.mdts,
                blocks_shift,
            ),
            write_cache: if controller.has_volatile_cache {
                WriteCache::VolatileWithFua
            } else {
                WriteCache::Stable
            },
            has_deallocate: controller.has_deallocate,
            placements,
            mapped: Arc::default(),
        };
        let mut device = Self {
            generic,
            claim,
            namespace: Arc::new(namespace),
            identity: identity::of_namespace(&controller.serial, nsid),
            atomic_size: (u64::from(controller.atomic_write_power_fail) + 1) << about.block_shift,
            model: controller.model,
            in_flight_max: options.in_flight_max.clamp(1, IN_FLIGHT_MAX),
            bulk: Bulk::of_device(&options, Some(&nodes.queue)),
            fdp,
            nodes: nodes.clone(),
        };
        device.try_out(&Extras::default()).map_err(refused("trying commands on"))?;
        let mut bulk = std::mem::take(&mut device.bulk);
        bulk.try_out(|extras| device.try_out(&extras));
        device.bulk = bulk;
        Ok(device)
    }

    /// Reads a block and flushes. This checks that commands reach the device and complete.
    fn try_out(&self, extras: &Extras) -> Result<(), DeviceError> {
        let no_ring = |_| DeviceError::Io { errno: libc::ENOMEM };
        let mut path = self.path(extras).map_err(no_ring)?;
        let read = Op::Read { lba: Lba(0), buffer: path.buffer(1) };
        for op in [read, Op::Flush] {
            run(&mut path, op).1?;
        }
        Ok(())
    }

    fn path(&self, extras: &Extras) -> Result<NvmePath, Refusal> {
        let file = self.generic.try_clone().map_err(|error| Refusal::of_file(&error))?;
        let namespace = self.namespace.clone();
        NvmePath::new(namespace, file.into(), &self.claim, self.in_flight_max, extras)
    }

    fn path_for_one(&self) -> Result<NvmePath, OpenError> {
        self.path(&Extras::default()).map_err(|refusal| self.refused(&refusal.into()))
    }

    fn refused(&self, refused: &Refused) -> OpenError {
        OpenError::unsuitable(&self.nodes.generic, format!("no io_uring: {refused}"))
    }

    /// The generic device's node.
    pub fn generic(&self) -> &Path {
        &self.nodes.generic
    }

    /// The block device's node.
    pub fn block(&self) -> &Path {
        &self.nodes.block
    }

    /// The model name that the controller reports.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The FDP configuration in force, if this process may read it.
    pub fn fdp_configuration(&self) -> Option<FdpConfiguration> {
        match &self.fdp {
            Fdp::On { configuration, .. } => *configuration,
            Fdp::Off(_) => None,
        }
    }

    /// Size in bytes of the device's own blocks.
    pub fn block_size(&self) -> u64 {
        LBA_SIZE as u64 >> self.namespace.blocks_shift
    }

    /// Limit in bytes of a command's data. A longer transfer takes several commands.
    pub fn command_size_max(&self) -> u64 {
        u64::from(self.namespace.command_lbas_max) * LBA_SIZE as u64
    }
}

impl WholeDevice for NvmeDevice {
    fn lba_count(&self) -> u64 {
        self.namespace.lba_count
    }

    fn contents(&self) -> Result<Contents, OpenError> {
        // The contents are not read through the block device, because the kernel's cache of that
        // device may be stale.
        let mut path = self.path_for_one()?;
        let size = self.lba_count() * LBA_SIZE as u64;
        contents::examine_by(size, |bytes, offset| {
            let mut buffer = Buffer::zeroed(bytes.len() / LBA_SIZE);
            let lba = Lba(offset / LBA_SIZE as u64);
            let (read, result) = run(&mut path, Op::Read { lba, buffer });
            result?;
            buffer = read.expect("a read brings its buffer back");
            bytes.copy_from_slice(&buffer);
            Ok(())
        })
        .map_err(|error| OpenError::Device {
            doing: "reading",
            path: self.nodes.generic.clone(),
            error,
        })
    }

    fn open_path(&mut self) -> Result<Box<dyn Device + Send>, OpenError> {
        Ok(Box::new(self.path_for_one()?))
    }

    fn open_bulk_path(&mut self) -> Result<Box<dyn Device + Send>, OpenError> {
        let mut bulk = std::mem::take(&mut self.bulk);
        let opened = bulk.open(|extras| self.path(extras));
        self.bulk = bulk;
        Ok(Box::new(opened.map_err(|refused| self.refused(&refused))?))
    }

    fn map(&mut self, offset: u64, size: usize) -> Result<MappedFile, OpenError> {
        mapped_range::map_device(
            &self.nodes.block,
            self.claim.file(),
            &self.namespace.mapped,
            offset,
            size,
        )
    }

    fn placements(&self) -> &[PlacementId] {
        &self.namespace.placements
    }

    fn identity(&self) -> Option<String> {
        self.identity.clone()
    }

    fn fdp(&self) -> Option<Box<dyn FdpAccount>> {
        let Fdp::On { group, .. } = &self.fdp else { return None };
        let unit_size = self.fdp_configuration().map(|configuration| configuration.unit_size);
        let unit_blocks = unit_size.map(|size| size / self.block_size());
        let account = NvmeAccount::new(&self.generic, self.namespace.nsid, *group, unit_blocks);
        Some(Box::new(account.ok()?))
    }

    fn is_best(&self) -> bool {
        true
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let (generic, block) = (self.nodes.generic.display(), self.nodes.block.display());
        let mut facts = vec![
            ("device", format!("{generic}, {block}")),
            ("model", self.model.clone()),
            ("size", format!("{} bytes", self.lba_count() * LBA_SIZE as u64)),
            ("blocks", format!("{} bytes", self.block_size())),
            ("longest command", format!("{} bytes", self.command_size_max())),
            ("atomic at a power cut", format!("{} bytes", self.atomic_size)),
            ("write cache", self.namespace.write_cache.to_string()),
            ("queues to poll", polling::fact(Some(&self.nodes.queue))),
        ];
        facts.extend(self.identity.clone().map(|identity| ("identity", identity)));
        match &self.fdp {
            Fdp::Off(why) => facts.push(("FDP", format!("no: {why}"))),
            Fdp::On { handles, configuration, .. } => {
                facts.push(("FDP", format!("yes, {} placements", handles.len())));
                if let Some(configuration) = configuration {
                    facts.push(("reclaim units", describe_configuration(configuration)));
                }
                facts.extend(handles.iter().map(|handle| ("placement", handle.to_string())));
            }
        }
        facts
    }

    fn describe(&self) -> String {
        let placement = match &self.fdp {
            Fdp::On { handles, .. } => format!("FDP, {} placements", handles.len()),
            Fdp::Off(_) => "no FDP".into(),
        };
        format!(
            "NVMe passthrough on {} through io_uring ({placement}, {}){}",
            self.nodes.generic.display(),
            self.namespace.write_cache,
            self.bulk.describe()
        )
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.bulk.why_not().to_vec();
        if let Fdp::Off(why) = &self.fdp {
            notes.push(format!("no data placement: {why}"));
        }
        notes
    }
}

fn describe_configuration(configuration: &FdpConfiguration) -> String {
    let FdpConfiguration { group_count, handle_count, unit_size, is_persistently_isolated } =
        configuration;
    let isolation = if *is_persistently_isolated { "persistently" } else { "initially" };
    format!(
        "{unit_size} bytes each, {group_count} groups, {handle_count} handles, {isolation} isolated"
    )
}

/// The name of a command in a sentence, with its article.
pub(crate) fn command_name(opcode: u8) -> &'static str {
    match opcode {
        opcode::FLUSH => "a flush",
        opcode::WRITE => "a write",
        opcode::READ => "a read",
        opcode::DATASET_MANAGEMENT => "a deallocation",
        opcode::IO_MANAGEMENT_SEND => "an update of placement handles",
        _ => "a query",
    }
}

/// The specification's name of a status.
pub(crate) fn status_name(status: NvmeStatus) -> &'static str {
    status::name(status)
}

/// Runs one operation to its end.
fn run(path: &mut NvmePath, op: Op) -> (Option<Buffer>, Result<(), DeviceError>) {
    let mut completions = Vec::new();
    if let Err(op) = path.submit(Token(0), op) {
        unreachable!("the path was idle, but refused {op:?}");
    }
    while completions.is_empty() {
        path.wait(None, &mut completions);
    }
    let completion = completions.remove(0);
    (completion.buffer, completion.result)
}

/// One block of [`LBA_SIZE`] bytes consists of 2^n device blocks. Returns the exponent n, or why
/// the namespace's format is unsupported.
fn check_format(about: &IdentifyNamespace) -> Result<u32, String> {
    let ours = LBA_SIZE.trailing_zeros();
    let theirs = u32::from(about.block_shift);
    if theirs < 9 || theirs > ours {
        return Err(format!(
            "its blocks have 2^{theirs} bytes: only blocks of 512 to {LBA_SIZE} bytes are \
             supported (see nvme format --lbaf)"
        ));
    }
    if about.metadata_size > 0 {
        return Err(format!(
            "its LBA format has {} bytes of metadata with each block: only formats without \
             metadata are supported (see nvme format --lbaf)",
            about.metadata_size
        ));
    }
    Ok(ours - theirs)
}

/// The largest number of blocks of [`LBA_SIZE`] bytes in one command. The number follows from the
/// kernel's limit for the device's queue or, if the kernel states none, from the device's own
/// limit.
fn command_lbas_max(kernel_size_max: Option<u64>, mdts: u8, blocks_shift: u32) -> u32 {
    let device_size_max = match mdts {
        0 => None,
        // A command's data may have 2^`mdts` pages of the controller, and such a page has at least
        // 4096 bytes.
        mdts => 4096_u64.checked_shl(mdts.into()),
    };
    let size = kernel_size_max.or(device_size_max).unwrap_or(COMMAND_SIZE_DEFAULT);
    let field_max = u64::from(wire::BLOCKS_MAX >> blocks_shift);
    (size / LBA_SIZE as u64).clamp(1, field_max) as u32
}

/// Finds the device's placements.
fn find_placement(
    generic: &File,
    nsid: u32,
    about: &IdentifyNamespace,
    controller: &IdentifyController,
) -> Fdp {
    if !controller.has_fdp {
        return Fdp::Off("the device has no FDP".into());
    }
    let group = about.endurance_group;
    let handles = match fdp::usable(fdp::handles(generic, nsid), group) {
        Ok(handles) => handles,
        Err(why) => return Fdp::Off(why),
    };
    // Only administrators may read the configuration. If it can't be read, the device still works,
    // because only reports need the configuration.
    let index = fdp::is_on(generic, group).map_or(0, |(_, index)| index);
    Fdp::On {
        group,
        configuration: fdp::configuration(generic, group, index).ok().flatten(),
        handles,
    }
}

/// Whether a path names a character device. The generic devices of NVMe are character devices.
pub fn is_character_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.file_type().is_char_device())
}

/// Returns the block device of a namespace whose generic device is at `path`. If `path` is no
/// character device, returns `path` itself.
///
/// # Errors
/// [`OpenError::Unsuitable`] when `path` is a character device of another kind.
pub fn block_device_of(path: &Path) -> Result<PathBuf, OpenError> {
    if is_character_device(path) { Ok(nodes(path)?.block) } else { Ok(path.to_path_buf()) }
}
