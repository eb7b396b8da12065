//! Cuts the zeros off a log that was written by the short path. The short path only overwrites
//! blocks that were written before, so it first writes zeros after the log's end. If the power
//! fails before the log is given back to the kernel, these zeros are left in the file.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use slimio_device::{LBA_SIZE, WriteLease};

/// Largest number of bytes that a single read takes.
const PIECE: u64 = 1 << 20;
/// If a log of Redis or Valkey does not begin with an RDB file, it begins with one of these bytes.
/// A request begins with the first of them, and a comment with the second.
const RESP: [u8; 2] = [b'*', b'#'];
/// The first bytes of a log of Redis or Valkey that begins with an RDB file.
const RDB: &[u8; 5] = b"REDIS";

/// What [`repair`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repaired {
    /// The file has no zeros at its end that the short path could have left.
    Whole,
    /// The file was cut, and the cut is durable.
    Cut {
        /// Size in bytes before.
        before: u64,
        /// Size in bytes now.
        now: u64,
    },
}

/// Cuts a log of Redis or Valkey after its last byte that is not zero. Such a log never ends with a
/// zero by itself. A file is cut only if it ends with a whole block, because the short path leaves
/// whole blocks.
///
/// # Errors
/// * If the file can't be opened for writing, leased or read.
/// * If another program has the file open (`ResourceBusy`).
/// * If the file is no log of Redis or Valkey (`InvalidData`).
/// * If the file can't be cut, or if the cut can't be made durable. The file may then be shorter
///   already. In all other cases, it is unchanged.
pub fn repair(path: &Path) -> io::Result<Repaired> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    // A file that does not end with a zero needs no repair, even if another program has it open.
    let size = file.metadata()?.len();
    let mut last = [0];
    if size > 0 && file.read_exact_at(&mut last, size - 1).is_ok() && last != [0] {
        return Ok(Repaired::Whole);
    }
    let Some(_lease) = WriteLease::take(&file)? else {
        let why = "another program has it open; stop that program first";
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
    };
    let before = file.metadata()?.len();
    if before == 0 || before % LBA_SIZE as u64 != 0 {
        return Ok(Repaired::Whole);
    }
    let mut piece = vec![0; PIECE as usize];
    let mut end = before;
    let last = loop {
        let start = end.saturating_sub(PIECE);
        let piece = &mut piece[..(end - start) as usize];
        file.read_exact_at(piece, start)?;
        if let Some(last) = piece.iter().rposition(|byte| *byte != 0) {
            break Some((start + last as u64, piece[last]));
        }
        if start == 0 {
            break None;
        }
        end = start;
    };
    let now = last.map_or(0, |(at, _)| at + 1);
    if now == before {
        return Ok(Repaired::Whole);
    }
    let mut first = [0; RDB.len()];
    file.read_exact_at(&mut first, 0)?;
    // An RDB file without a log after it may end with zeros, because a checksum that was not
    // computed is stored as zeros.
    let is_rdb_and_log = &first == RDB && last.is_some_and(|(_, byte)| byte == b'\n');
    if now > 0 && !RESP.contains(&first[0]) && !is_rdb_and_log {
        let why =
            "it does not begin as a log of Redis or Valkey does, so zeros at its end may be data";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    file.set_len(now)?;
    file.sync_all()?;
    Ok(Repaired::Cut { before, now })
}
