//! Finds out whether a file can take the short path, that is, whether a direct write to it is
//! durable without a change of metadata. Also finds out how many of the file's bytes have blocks
//! that must be written once before the file can take the short path.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use slimio_device::{Alignment, Attributes, Extents, FileSystem};
use slimio_planted::is_planted;

use crate::Refusal;
use crate::place::{refusal_of_file_system, refusals_of_attributes};

/// How many bytes of a file, up to its end, have written blocks, unwritten blocks or no blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes whose blocks have already been written. Another write to them changes no metadata.
    pub written: u64,
    /// Bytes whose blocks are allocated, but have not been written yet. They must be written once
    /// before the file can take the short path.
    pub unwritten: u64,
    /// Bytes without a block.
    pub holes: u64,
}

/// The result of examining a file. The examination changes nothing in the file.
#[derive(Debug)]
pub struct Probe {
    /// The file system that the file is on.
    pub file_system: FileSystem,
    /// Size in bytes.
    pub size: u64,
    /// Which blocks the file's bytes have; `None` if the file system does not tell.
    pub space: Option<Space>,
    /// The alignment that direct I/O needs; `None` if the kernel does not tell it (before Linux
    /// 6.1), or if the file takes no direct I/O.
    pub alignment: Option<Alignment>,
    /// Whether this process may hold a write lease on the file. It may if it runs as the file's
    /// owner or as root. Without the lease, other programs that open a growing file would not see
    /// the right bytes.
    pub may_lease: bool,
    /// Why the file can't take the short path. Empty if it can.
    pub refusals: Vec<Refusal>,
}

impl Probe {
    /// Examines a file. First makes the kernel write the data that is only in the page cache,
    /// because the kernel chooses the blocks for such data only when it writes the data.
    ///
    /// # Errors
    /// If the file can't be examined: it is missing, this process lacks the permission to read it,
    /// or another process holds a lease on it (`WouldBlock`).
    pub fn of(path: &Path) -> io::Result<Self> {
        // The type is checked before the file is opened, because opening a pipe or a device may
        // have effects.
        let metadata = std::fs::metadata(path)?;
        let is_regular = metadata.is_file();
        let file = open(path, if is_regular { OFlags::RDONLY } else { OFlags::PATH })?;
        let mut probe = Self {
            file_system: FileSystem::of(&file)?,
            size: metadata.len(),
            space: None,
            alignment: None,
            may_lease: rustix::process::geteuid().as_raw() == metadata.uid()
                || rustix::process::geteuid().is_root(),
            refusals: Vec::new(),
        };
        if !is_regular {
            probe.refusals.push(Refusal::NotRegular);
            return Ok(probe);
        }
        probe.refusals.extend(refusal_of_file_system(&probe.file_system));
        let writes = rustix::fs::accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS);
        if let Err(error) = writes {
            probe.refusals.push(Refusal::NotWritable(io::Error::from(error).to_string()));
        }
        probe.look_at_attributes(path, &file);
        probe.look_at_extents(&file);
        Ok(probe)
    }

    /// Whether the file can take the short path, once all of its blocks have been written.
    pub fn can_be_taken(&self) -> bool {
        self.refusals.is_empty()
    }

    fn look_at_attributes(&mut self, path: &Path, file: &File) {
        let attributes = Attributes::of(file).unwrap_or_default();
        self.alignment = attributes.direct.flatten();
        self.refusals.extend(refusals_of_attributes(&attributes));
        // A kernel that does not tell the alignment may still refuse `O_DIRECT`.
        if attributes.direct.is_none() && open(path, OFlags::RDONLY | OFlags::DIRECT).is_err() {
            self.refusals.push(Refusal::NotDirect);
        }
    }

    fn look_at_extents(&mut self, file: &File) {
        let mut space = Space::default();
        let mut end = 0;
        let (mut is_shared, mut is_special) = (false, false);
        for extent in Extents::new(file, 0..self.size, true) {
            let extent = match extent {
                Ok(extent) => extent,
                Err(error) => return self.refusals.push(Refusal::NotTold(error.to_string())),
            };
            space.holes += extent.start.saturating_sub(end);
            let start = extent.start.max(end);
            end = extent.end().min(self.size);
            let length = end.saturating_sub(start);
            if extent.is_unwritten() && !is_planted("unwritten-is-written") {
                space.unwritten += length;
            } else {
                space.written += length;
            }
            is_shared |= extent.is_shared();
            is_special |= extent.is_special();
        }
        space.holes += self.size.saturating_sub(end);
        self.space = Some(space);
        let found = [(is_shared, Refusal::Shared), (is_special, Refusal::Special)];
        self.refusals
            .extend(found.into_iter().filter_map(|(is_so, refusal)| is_so.then_some(refusal)));
    }
}

/// Opens a file. If another process holds a lease on it, fails at once instead of waiting.
fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}
