//! The record of a device's writes.
//!
//! QEMU writes the record in the format of the kernel's dm-log-writes: a superblock, then an entry
//! for each write, flush and deallocation in the order in which the device finished them. QEMU
//! writes an entry before it tells the guest that the operation is done. QEMU's NVMe controller
//! does not pass the FUA bit on to the record, so the FUA bits are read from the guest kernel's own
//! trace of the commands that the kernel sent.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use slimio_host::Failure;
use slimio_host::power_cut::Entry;

use crate::guest::said;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLAG_FLUSH: u64 = 1;
const FLAG_FUA: u64 = 1 << 1;
const FLAG_DISCARD: u64 = 1 << 2;
/// The FUA bit in a write's control field, as the kernel's trace prints the field.
const CONTROL_FUA: u64 = 1 << 14;

/// Reads a record, and gives each write the FUA bit that the write has in `trace`. `block_size` is
/// the block size of the namespace.
pub(crate) fn read(record: &Path, trace: &Path, block_size: u64) -> Result<Vec<Entry>, Failure> {
    let bytes = std::fs::read(record).map_err(|error| said(record, &error))?;
    let trace_text = std::fs::read_to_string(trace).map_err(|error| said(trace, &error))?;
    let mut entries = parse(&bytes).map_err(|why| format!("{}: {why}", record.display()))?;
    let mut sent = parse_trace(&trace_text, block_size);
    for entry in &mut entries {
        let Entry::Write { offset, data, durable } = entry else { continue };
        // Two writes of the same blocks are never in flight together, so their order is certain.
        let place = (*offset, data.len() as u64);
        let fua = sent.get_mut(&place).and_then(VecDeque::pop_front);
        *durable |= fua.ok_or_else(|| format!("the trace has no write at {place:?}"))?;
    }
    Ok(entries)
}

fn parse(bytes: &[u8]) -> Result<Vec<Entry>, String> {
    let word = |offset: usize| -> Result<u64, String> {
        let bytes = bytes.get(offset..offset + 8).ok_or("the record is cut off")?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    };
    if word(0)? != MAGIC || word(8)? != 1 {
        return Err("this is not a record of writes".into());
    }
    let (count, sector) = (word(16)?, word(24)? & 0xffff_ffff);
    let mut entries = Vec::new();
    let mut position = sector;
    for _ in 0..count {
        let at = position as usize;
        let (offset, size) = (word(at)? * sector, word(at + 8)? * sector);
        let flags = word(at + 16)?;
        position += sector;
        if flags & FLAG_DISCARD != 0 {
            entries.push(Entry::Deallocate { offset, size });
            continue;
        }
        if flags & FLAG_FLUSH != 0 {
            entries.push(Entry::Flush);
        }
        if size > 0 {
            let data = bytes.get(position as usize..(position + size) as usize);
            let data = data.ok_or("the record is cut off")?.to_vec();
            entries.push(Entry::Write { offset, data, durable: flags & FLAG_FUA != 0 });
            position += size;
        }
    }
    Ok(entries)
}

/// For each offset and size, the FUA bits of the writes there, in the order in which the writes
/// were sent.
fn parse_trace(text: &str, block_size: u64) -> BTreeMap<(u64, u64), VecDeque<bool>> {
    let mut sent: BTreeMap<_, VecDeque<bool>> = BTreeMap::new();
    for line in text.lines() {
        let Some((_, command)) = line.split_once("cmd=(nvme_cmd_write") else { continue };
        let command = command.trim_start_matches("_zeroes").trim_start();
        let field = |name: &str| -> Option<u64> {
            let value = command.split(", ").find_map(|field| field.strip_prefix(name))?;
            match value.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => value.parse().ok(),
            }
        };
        let (Some(lba), Some(len), Some(control)) = (field("slba="), field("len="), field("ctrl="))
        else {
            continue;
        };
        // The length in the trace is one less than the number of blocks.
        let place = (lba * block_size, (len + 1) * block_size);
        sent.entry(place).or_default().push_back(control & CONTROL_FUA != 0);
    }
    sent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_with_the_trace_of_its_commands() {
        let mut bytes = Vec::new();
        let mut sector = |words: &[u64]| {
            let start = bytes.len();
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            bytes.resize(start + 512, 0);
        };
        sector(&[MAGIC, 1, 3, 512]);
        sector(&[2, 1, 0, 0]);
        sector(&[0x0101]);
        sector(&[0, 0, FLAG_FLUSH, 0]);
        sector(&[8, 8, FLAG_DISCARD, 0]);
        let data = [&0x0101_u64.to_le_bytes()[..], &[0; 504]].concat();
        let expected = [
            Entry::Write { offset: 1024, data: data.clone(), durable: false },
            Entry::Flush,
            Entry::Deallocate { offset: 4096, size: 4096 },
        ];
        assert_eq!(parse(&bytes).unwrap(), expected);
        assert!(parse(&bytes[..1100]).is_err());
        assert!(parse(&[0; 512]).is_err());

        let trace = "slimio-168 [000] ..... 4.3: nvme_setup_cmd: nvme0: disk=nvme0c0n1, qid=1, \
            cmdid=32896, nsid=1, flags=0x0, meta=0x0, cmd=(nvme_cmd_write slba=2, len=0, \
            ctrl=0x4000, dsmgmt=0, reftag=0)\n";
        assert_eq!(parse_trace(trace, 512)[&(1024, 512)], [true]);
        let zeroes = trace.replace("cmd_write ", "cmd_write_zeroes ");
        assert_eq!(parse_trace(&zeroes, 512)[&(1024, 512)], [true]);
        assert_eq!(parse_trace(&trace.replace("0x4000", "0x0"), 512)[&(1024, 512)], [false]);
    }
}
