//! Concrete volumes: what `--volume` names, made into what storage works on.

use std::path::Path;

use slimio_device::{Buffer, Device, Directory, EngineChoice, MappedFile, OpenError, PathOptions};
use slimio_server::Storage;
use slimio_storage::{Area, Media};

/// The file with the log's buffers.
const BUFFERS: &str = "buffers";

/// Opens the volume that `spec` names, making a directory that is missing if `create`.
///
/// # Errors
/// A sentence with a remedy.
pub(crate) fn open(spec: &str, engine: EngineChoice, create: bool) -> Result<Storage, String> {
    let path = Path::new(spec);
    let options = PathOptions { engine, ..PathOptions::default() };
    let storage = if crate::block::is_block_device(path) {
        crate::block::open(path, options)
    } else {
        open_directory(path, options, create)
    };
    storage.map_err(|error| explain(&error, spec))
}

/// A sentence with a remedy.
fn explain(error: &OpenError, spec: &str) -> String {
    let remedy = match error {
        OpenError::InUse { .. } => "stop the program that has it, or choose another --volume",
        OpenError::Missing { .. } => "check --volume, or make one with slimio format",
        OpenError::NoSpace { .. } => "make room on the file system, or choose another --volume",
        OpenError::Unsuitable { .. } => "choose another --volume",
        OpenError::Io { .. } => "check its permissions and its device",
    };
    format!("cannot open the volume {spec}: {error}; {remedy}")
}

fn open_directory(path: &Path, options: PathOptions, create: bool) -> Result<Storage, OpenError> {
    let directory = if create {
        Directory::open_or_create(path, options)?
    } else {
        Directory::open(path, options)?
    };
    let exists = directory.has_file(Area::Superblock.name());
    if !exists && !directory.names()?.iter().all(|name| is_ours(name)) {
        return Err(OpenError::Unsuitable {
            path: directory.path().to_path_buf(),
            why: "it is not empty and holds no SlimIO volume".into(),
        });
    }
    let name = directory.path().display().to_string();
    let mut media = DirectoryMedia { directory, outlives_process: true };
    let (io_path, why_not_better) = media.describe_io(exists);
    Ok(Storage { media: Box::new(media), exists, name, io_path, why_not_better })
}

/// Names of files that an interrupted `format` may have left.
fn is_ours(name: &str) -> bool {
    name == Area::Wal.name() || name == BUFFERS
}

/// A directory with a file for each area.
struct DirectoryMedia {
    directory: Directory,
    outlives_process: bool,
}

impl DirectoryMedia {
    /// How files are reached here, which is known for certain once one was opened.
    fn describe_io(&mut self, exists: bool) -> (String, String) {
        if exists {
            // Errors are for recovery to report.
            drop(self.directory.open_path(Area::Superblock.name()));
        }
        (self.directory.describe(), self.directory.notes().join("; "))
    }
}

impl Media for DirectoryMedia {
    fn open_path(&mut self, area: Area) -> Result<Box<dyn Device + Send>, OpenError> {
        self.directory.open_path(area.name())
    }

    fn create(&mut self, super_lbas: u64, wal_lbas: u64) -> Result<(), OpenError> {
        // The superblock's file comes last: its presence says that the others are there.
        for (area, lbas) in [(Area::Wal, wal_lbas), (Area::Superblock, super_lbas)] {
            if !self.directory.has_file(area.name()) {
                self.directory.create_file(area.name(), lbas)?;
            }
        }
        Ok(())
    }

    fn open_buffers(&mut self, size: usize) -> Result<Vec<Buffer>, OpenError> {
        if !self.directory.has_file(BUFFERS) {
            return Ok(Vec::new());
        }
        let mut file = self.directory.open_mapped(BUFFERS)?;
        if !file.size().is_multiple_of(size) {
            return Err(OpenError::Unsuitable {
                path: self.directory.file_path(BUFFERS),
                why: format!("its length is no multiple of {size}"),
            });
        }
        Ok(file.buffers(size))
    }

    fn make_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, OpenError> {
        let (mut file, outlives) = match self.directory.create_mapped(BUFFERS, count * size) {
            Ok(file) => (file, true),
            Err(error @ OpenError::NoSpace { .. }) => return Err(error),
            Err(error) => {
                log::warn!("the log's buffers are in private memory: {error}");
                (MappedFile::anonymous(count * size)?, false)
            }
        };
        self.outlives_process = outlives;
        Ok(file.buffers(size))
    }

    fn buffers_outlive_process(&self) -> bool {
        self.outlives_process
    }

    fn fresh_blocks_need_zeroing(&self) -> bool {
        true
    }
}
