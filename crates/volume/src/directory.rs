//! A volume in a directory, which has a file for each area and a file for the log's buffers.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use slimio_device::{
    Buffer, Device, DeviceError, Directory, LBA_SIZE, Layer, Layered, LbaRange, MappedFile,
    OpenError, PathOptions,
};
use slimio_planted::is_planted;
use slimio_storage::{Area, Media, SlotName, Storage};

use crate::unfinished::{Found, LOCKS, NEW_BUFFERS, look};

/// The file with the log's buffers.
pub(crate) const BUFFERS: &str = "buffers";

/// The bits of a file's mode that give rights to its group and to others.
const OTHERS: u32 = 0o077;

/// Opens the volume in a directory.
///
/// # Errors
/// When the directory can't be opened, or holds something other than a volume.
pub(crate) fn open(
    path: &Path,
    options: PathOptions,
    create: bool,
    wal_size_max: u64,
) -> Result<Storage, OpenError> {
    // The directory is checked before anything is made, so that a refused directory stays as it is.
    check_directory(path)?;
    let mut directory = if create {
        Directory::open_or_create(path, options)?
    } else {
        Directory::open(path, options)?
    };
    let found = look(&mut directory)?;
    let name = directory.path().display().to_string();
    let media =
        DirectoryMedia { directory, found, outlives_process: true, not_mapped: None, wal_size_max };
    let (io_path, why_not_better) = media.io();
    let is_best = media.directory.is_best();
    Ok(Storage {
        media: Box::new(media),
        exists: found == Found::Volume,
        name,
        is_best,
        placement: None,
        io_path,
        why_not_better,
    })
}

/// Refuses a directory that holds other files, or only a part of a volume.
fn check_directory(path: &Path) -> Result<(), OpenError> {
    let Ok(entries) = std::fs::read_dir(path) else { return Ok(()) };
    let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    let refuse =
        |why: &str| Err(OpenError::Unsuitable { path: path.to_path_buf(), why: why.into() });
    if has(Area::Superblock.name()) {
        return Ok(());
    }
    let mut others = SlotName::ALL.map(Area::Snapshot).into_iter().chain([Area::Wal]);
    if others.any(|area| has(area.name())) || has(BUFFERS) {
        return refuse("the directory holds a volume whose file super is missing");
    }
    if names.iter().any(|name| !LOCKS.iter().any(|lock| name == lock)) {
        return refuse("the directory is not empty and holds no SlimIO volume");
    }
    Ok(())
}

/// A layer that keeps a file from growing beyond a limit. The layer is on top of the path to the
/// file. A path is a way to a file or device, with a queue of its own.
struct Limit {
    lbas_max: u64,
}

impl Layer for Limit {
    fn grow(&mut self, below: &mut dyn Device, lba_count: u64) -> Result<(), DeviceError> {
        if lba_count > self.lbas_max {
            return Err(DeviceError::NoSpace);
        }
        below.grow(lba_count)
    }

    fn reserve(&mut self, below: &mut dyn Device, range: LbaRange) -> Result<(), DeviceError> {
        let is_there = below.geometry().lba_count >= range.end.0;
        if is_there { Ok(()) } else { self.grow(below, range.end.0) }
    }
}

/// A directory with a file for each area.
struct DirectoryMedia {
    directory: Directory,
    /// How much of a volume the directory held when it was opened.
    found: Found,
    outlives_process: bool,
    /// Why the log's buffers are in private memory. `None` if this process has not put them there.
    not_mapped: Option<String>,
    wal_size_max: u64,
}

impl DirectoryMedia {
    /// Removes the files that an unfinished first start has left, so that every file is made anew.
    /// The old files can't be used, because it is unknown whether their lengths and names would
    /// survive a power cut.
    fn clear_unfinished(&mut self) -> Result<(), OpenError> {
        if self.found == Found::Volume {
            return Ok(());
        }
        // The unfinished start may have been killed before the directory's name was durable, so the
        // name is flushed here. The start may also have been killed after it had written the mark
        // of an unfinished volume to the superblock's file, but before this write was durable. So
        // that file is flushed, too.
        if !is_planted("own-name-unflushed") {
            self.directory.flush_own_name()?;
        }
        if self.found == Found::Marked && !is_planted("mark-unflushed") {
            self.directory.flush_file(Area::Superblock.name())?;
        }
        let slots = SlotName::ALL.map(|slot| Area::Snapshot(slot).name());
        let others = slots.into_iter().chain([NEW_BUFFERS, BUFFERS, Area::Wal.name()]);
        // The superblock's file is removed last, because the other files without it would count as
        // a damaged volume. A superblock with the mark is not removed, because its file was durable
        // before the mark was made.
        let superblock = (self.found == Found::Empty).then_some(Area::Superblock.name());
        let mut names: Vec<_> = others.chain(superblock).collect();
        if is_planted("superblock-cleared-first") {
            names.reverse();
        }
        for name in names {
            if self.directory.has_file(name) {
                self.directory.remove_file(name)?;
            }
        }
        Ok(())
    }

    /// Denies other users access to the buffers' file. Earlier versions made the file readable to
    /// everybody who could enter the directory.
    fn narrow_buffers(&self) {
        let path = self.directory.file_path(BUFFERS);
        let narrow = || {
            let mut permissions = path.metadata()?.permissions();
            if permissions.mode() & OTHERS != 0 {
                permissions.set_mode(0o600);
                std::fs::set_permissions(&path, permissions)?;
            }
            Ok(())
        };
        let narrowed: std::io::Result<()> = narrow();
        if let Err(error) = narrowed {
            log::warn!(
                "other users may read {}, which holds data that clients wrote, and the server \
                 cannot change the file's mode ({error}); deny other users access to the file or \
                 the directory",
                path.display()
            );
        }
    }

    fn io(&self) -> (String, String) {
        let mut notes = self.directory.notes();
        notes.extend(self.not_mapped.iter().map(|why| {
            format!(
                "the log's buffers are in private memory: {why}; with appendfsync everysec or no, \
                 a reply leaves when its record is written"
            )
        }));
        (self.directory.describe(), notes.join("; "))
    }

    /// Makes the log's buffers in private memory, for the reason `why`.
    fn private_buffers(
        &mut self,
        why: String,
        count: usize,
        size: usize,
    ) -> Result<Vec<Buffer>, OpenError> {
        log::warn!("the log's buffers are in private memory: {why}");
        // An empty file tells the next start that no buffers are missing. If there is no space to
        // write the empty file, the old file does no harm: its buffers are of an older epoch, that
        // is, from before this start's recovery, and a later recovery ignores them.
        match self.directory.create_mapped(BUFFERS, 0) {
            Err(OpenError::NoSpace { .. }) | Ok(_) => {}
            Err(error) => return Err(error),
        }
        self.not_mapped = Some(why);
        self.outlives_process = false;
        Ok(MappedFile::anonymous(count * size)?.buffers(size))
    }
}

impl Media for DirectoryMedia {
    fn open_path(&mut self, area: Area) -> Result<Box<dyn Device + Send>, OpenError> {
        let directory = &mut self.directory;
        Ok(match area {
            Area::Superblock => directory.open_path(area.name())?,
            Area::Snapshot(_) => directory.open_bulk_path(area.name())?,
            Area::Wal => {
                let path = directory.open_path(area.name())?;
                let limit = Limit { lbas_max: self.wal_size_max / LBA_SIZE as u64 };
                Box::new(Layered::new(limit, path))
            }
        })
    }

    fn make_slot(&mut self, slot: SlotName) -> Result<(), OpenError> {
        self.directory.create_file(Area::Snapshot(slot).name(), 0)
    }

    fn create(&mut self, super_lbas: u64, wal_lbas: u64) -> Result<(), OpenError> {
        self.clear_unfinished()?;
        // The superblock's file is made first, because the other files without it would count as a
        // damaged volume.
        let slots = SlotName::ALL.map(|slot| (Area::Snapshot(slot), 0));
        let areas = [(Area::Superblock, super_lbas), (Area::Wal, wal_lbas)];
        for (area, lbas) in areas.into_iter().chain(slots) {
            if !self.directory.has_file(area.name()) {
                self.directory.create_file(area.name(), lbas)?;
            }
        }
        // From here on, if the buffers' file is missing, records were lost.
        if !self.directory.has_file(BUFFERS) {
            self.directory.create_mapped(BUFFERS, 0)?;
        }
        self.found = Found::Volume;
        Ok(())
    }

    fn open_buffers(&mut self, size: usize) -> Result<Vec<Buffer>, OpenError> {
        let mut file = self.directory.open_mapped(BUFFERS)?;
        self.narrow_buffers();
        if !file.size().is_multiple_of(size) {
            return Err(OpenError::Unsuitable {
                path: self.directory.file_path(BUFFERS),
                why: format!("the file's length is no multiple of {size}"),
            });
        }
        file.check_readable(&self.directory.file_path(BUFFERS))?;
        // The kernel may refuse to map the file for writing, although the file could be read.
        self.outlives_process = self.directory.why_not_mapped(BUFFERS).is_none();
        Ok(file.buffers(size))
    }

    fn make_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, OpenError> {
        if let Some(why) = self.directory.why_never_mapped() {
            return self.private_buffers(why, count, size);
        }
        match self.directory.create_mapped(BUFFERS, count * size) {
            Ok(mut file) => {
                self.outlives_process = true;
                Ok(file.buffers(size))
            }
            // The server starts even on a full file system, with buffers in private memory.
            Err(error) => {
                // If private memory can't be had either, the error of the buffers' file is
                // reported.
                self.private_buffers(error.to_string(), count, size).map_err(|_| error)
            }
        }
    }

    fn buffers_outlive_process(&self) -> bool {
        self.outlives_process
    }

    fn fresh_blocks_need_zeroing(&self) -> bool {
        true
    }

    fn io_path(&self) -> Option<(String, String)> {
        Some(self.io())
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

    use super::*;

    /// The mark and the directory's own name must be durable before the first file is removed. The
    /// test sees each flush with inotify, because a flush opens the file first.
    #[test]
    fn what_was_left_is_durable_before_anything_of_it_goes() {
        let above = tempfile::tempdir().expect("a directory");
        let place = above.path().join("volume");
        std::fs::create_dir(&place).expect("the directory can be made");
        for name in [Area::Superblock.name(), Area::Wal.name()] {
            std::fs::write(place.join(name), b"").expect("the file can be written");
        }
        let directory = Directory::open(&place, PathOptions::default()).expect("it opens");
        let found = Found::Marked;
        let (outlives_process, not_mapped, wal_size_max) = (true, None, 0);
        let mut media =
            DirectoryMedia { directory, found, outlives_process, not_mapped, wal_size_max };

        let watch = inotify::init(CreateFlags::NONBLOCK).expect("directories can be watched");
        for path in [above.path(), &place] {
            let events = WatchFlags::OPEN | WatchFlags::DELETE;
            inotify::add_watch(&watch, path, events).expect("the directory can be watched");
        }
        media.clear_unfinished().expect("the unfinished volume can be cleared away");
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(watch, &mut buffer);
        let mut opened = Vec::new();
        loop {
            let event = events.next().expect("inotify reports a removed file");
            let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
            if event.events().contains(ReadFlags::DELETE) {
                assert_eq!(
                    name.as_deref(),
                    Some(Area::Wal.name()),
                    "the log's file must go, and the superblock's file with the mark must stay"
                );
                break;
            }
            opened.push(name);
        }
        assert!(opened.contains(&None), "the directory's own name was not flushed");
        let superblock = Some(Area::Superblock.name().to_owned());
        assert!(
            opened.contains(&superblock),
            "the superblock's file with the mark was not flushed"
        );
    }
}
