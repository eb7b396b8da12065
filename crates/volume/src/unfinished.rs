//! Recognises the files that an unfinished first start leaves in a directory.
//!
//! A first start makes the files one by one. Each file is durable before the next is made. When all
//! files are there, the start begins to write the superblock. If the start is interrupted before
//! that write, the directory has some or all of the files. They may have a length already, but they
//! hold no data. All their bytes are zero, except in one block: the last block of the file that is
//! made for the log's buffers. If the start is interrupted later, the superblock has the
//! [mark](slimio_storage::is_unfinished) of a volume that is being made. In both cases the next
//! start makes the volume. A directory in any other state may hold a volume, so its files are never
//! overwritten.

use std::fs::File;
use std::io::Read as _;

use slimio_device::{CLAIM_FILE_NAME, Directory, LBA_SIZE, LOCK_FILE_NAME, OpenError};
use slimio_planted::is_planted;
use slimio_storage::layout::SUPERBLOCK_AREA_LBAS_MIN;
use slimio_storage::{Area, SlotName, is_unfinished};

use crate::directory::BUFFERS;

/// The lock files. The server makes them before it looks for a volume, so their presence does not
/// show that there is a volume.
pub(crate) const LOCKS: [&str; 2] = [LOCK_FILE_NAME, CLAIM_FILE_NAME];

/// The name of the file with the log's buffers while that file is being made.
pub(crate) const NEW_BUFFERS: &str = "buffers.new";

/// The most bytes that one read takes.
const READ_SIZE: usize = 1 << 20;

/// How much of a volume a directory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    /// Files of a volume that was never finished. No file holds data.
    Empty,
    /// A volume whose superblock has the mark of a volume that is being made.
    Marked,
    /// A volume, whole or not.
    Volume,
}

/// Looks for a volume in a directory that this process has locked. If there is a superblock's file
/// and [`holds_nothing`] is false, opens a path to the superblock and looks for the mark.
///
/// # Errors
/// When the directory can't be listed.
pub(crate) fn look(directory: &mut Directory) -> Result<Found, OpenError> {
    let superblock = Area::Superblock.name();
    if !directory.has_file(superblock) {
        return Ok(Found::Nothing);
    }
    if holds_nothing(directory)? && !is_planted("unfinished-unseen") {
        return Ok(Found::Empty);
    }
    // Errors are ignored here, because recovery reports them.
    let mut path = directory.open_path(superblock).ok();
    let is_marked = path.as_mut().is_some_and(|path| is_unfinished(&mut **path) == Ok(true));
    Ok(if is_marked { Found::Marked } else { Found::Volume })
}

/// Whether the directory has only files that the first steps of making a volume leave, and none of
/// these files holds data.
///
/// If there are buffers in the file for the log's buffers, or bytes in the file of a snapshot slot,
/// the file belongs to a volume that was complete once.
fn holds_nothing(directory: &Directory) -> Result<bool, OpenError> {
    let slots = SlotName::ALL.map(|slot| Area::Snapshot(slot).name());
    for name in directory.names()? {
        let Ok(file) = File::open(directory.file_path(&name)) else { return Ok(false) };
        let Ok(size) = file.metadata().map(|metadata| metadata.len()) else { return Ok(false) };
        let is_empty = match name.as_str() {
            name if name == Area::Superblock.name() => {
                size <= SUPERBLOCK_AREA_LBAS_MIN * LBA_SIZE as u64 && is_zero(file)
            }
            name if name == Area::Wal.name() => {
                if is_planted("log-looked-at-briefly") {
                    is_zero(file.take(64 << 10))
                } else {
                    is_zero(file)
                }
            }
            name if slots.contains(&name) => size == 0,
            BUFFERS | NEW_BUFFERS => size <= LBA_SIZE as u64,
            name => LOCKS.contains(&name),
        };
        if !is_empty {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether all bytes can be read, and are zero.
fn is_zero(mut file: impl std::io::Read) -> bool {
    let mut bytes = vec![0; READ_SIZE];
    loop {
        match file.read(&mut bytes) {
            Ok(0) => return true,
            Ok(count) if bytes[..count].iter().all(|&byte| byte == 0) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            _ => return false,
        }
    }
}
