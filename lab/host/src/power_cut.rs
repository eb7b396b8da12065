//! Makes the images that a power cut could have left on a device, from a record of all the device's
//! operations.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// One operation of the device. Offsets and sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A write.
    Write {
        /// Where the write begins.
        offset: u64,
        /// The bytes that were written.
        data: Vec<u8>,
        /// Whether this write was stable as soon as it was finished (FUA).
        durable: bool,
    },
    /// A flush. After it, all writes that were finished before the flush are stable.
    Flush,
    /// A deallocation of a range, which reads as zeros from then on.
    Deallocate {
        /// Where the range begins.
        offset: u64,
        /// Length of the range.
        size: u64,
    },
}

/// Which unstable writes survive a cut. Stable writes always survive. A write is stable if it was
/// sent with FUA, or if a flush came after the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivors {
    /// All unstable writes.
    All,
    /// No unstable write.
    None,
    /// The unstable writes that a random generator with this seed chooses. If the last entry before
    /// the cut is among the chosen writes, only the first half of that write survives.
    Some(u64),
}

impl Entry {
    /// The same operation on a device that makes nothing stable; `None` for a flush.
    pub fn without_stability(self) -> Option<Self> {
        match self {
            Self::Write { offset, data, .. } => Some(Self::Write { offset, data, durable: false }),
            Self::Flush => None,
            entry @ Self::Deallocate { .. } => Some(entry),
        }
    }
}

/// Writes an image of the device after a power cut. The cut comes right after the first `cut`
/// entries.
///
/// # Errors
/// When the image can't be written.
pub fn write_image(
    entries: &[Entry],
    cut: usize,
    survivors: Survivors,
    size: u64,
    path: &Path,
) -> io::Result<()> {
    let file = File::create(path)?;
    file.set_len(size)?;
    for (offset, data) in surviving(&entries[..cut], survivors) {
        file.write_all_at(&data, offset)?;
    }
    Ok(())
}

/// Offset and bytes of every write that survives, in the order of the entries.
fn surviving(entries: &[Entry], survivors: Survivors) -> Vec<(u64, Cow<'_, [u8]>)> {
    let last_flush = entries.iter().rposition(|entry| *entry == Entry::Flush).unwrap_or(0);
    let last = entries.len().saturating_sub(1);
    let mut state = match survivors {
        Survivors::Some(seed) => seed | 1,
        _ => 1,
    };
    let mut there = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let (offset, mut data, durable) = match entry {
            Entry::Write { offset, data, durable } => (*offset, Cow::Borrowed(&**data), *durable),
            // A deallocation before the first surviving write changes nothing, because the image is
            // still all zeros. It is skipped, so that no zeros are allocated for it: a program that
            // makes a file system may begin with a deallocation of the whole device.
            Entry::Deallocate { .. } if there.is_empty() => continue,
            Entry::Deallocate { offset, size } => (*offset, vec![0; *size as usize].into(), false),
            Entry::Flush => continue,
        };
        let survives = durable
            || index < last_flush
            || match survivors {
                Survivors::All => true,
                Survivors::None => false,
                Survivors::Some(_) => {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    if index == last {
                        let half = data.len() / 2;
                        data.to_mut().truncate(half);
                    }
                    state & 1 == 1
                }
            };
        if survives {
            there.push((offset, data));
        }
    }
    there
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset: u64, byte: u8, durable: bool) -> Entry {
        Entry::Write { offset, data: vec![byte; 4], durable }
    }

    #[test]
    fn what_nothing_made_stable_may_be_lost() {
        let entries = [
            write(0, 1, false),
            Entry::Flush,
            write(4, 2, false),
            write(8, 3, true),
            write(12, 4, false),
        ];
        let there = |cut: usize, survivors| -> Vec<u8> {
            surviving(&entries[..cut], survivors).iter().map(|(_, data)| data[0]).collect()
        };
        assert_eq!(there(1, Survivors::None), []);
        assert_eq!(there(2, Survivors::None), [1]);
        assert_eq!(there(5, Survivors::None), [1, 3]);
        assert_eq!(there(5, Survivors::All), [1, 2, 3, 4]);
        let torn = surviving(&entries, Survivors::Some(7));
        assert!(torn.iter().all(|(offset, data)| data.len() == 4 || *offset == 12), "{torn:?}");
        let subsets: std::collections::BTreeSet<Vec<u8>> =
            (0..40).map(|seed| there(5, Survivors::Some(seed * 77))).collect();
        assert!(subsets.len() > 2, "{subsets:?}");
    }
}
