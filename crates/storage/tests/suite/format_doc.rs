//! Checks that `docs/format.md` matches the code. With `UPDATE_EXPECT=1`, the test rewrites the
//! file.

use std::fmt::Write;
use std::path::Path;

use slimio_device::LBA_SIZE;
use slimio_storage::layout::{self, Field};

fn table(text: &mut String, fields: &[Field]) {
    text.push_str("| offset | size | field | meaning |\n|---:|---:|---|---|\n");
    for Field { name, offset, size, meaning } in fields {
        writeln!(text, "| {offset} | {size} | `{name}` | {meaning} |").expect("a string grows");
    }
}

fn render() -> String {
    let mut text = format!(
        "# What is on the volume: format versions 2 to 6

Rendered from the constants in `crates/storage/src/layout.rs` by a test; change those, then run the
test with `UPDATE_EXPECT=1`.

All integers are little-endian. Bytes that no field covers are written as zero and must read as zero.
A block is {LBA_SIZE} bytes. An LSN is a position in the stream of records, in bytes; a record's own
LSN is the position right behind it.

Checksums are XXH3 (64 bits). Those of batches and records are mixed with volume id, epoch and LSN:
bytes that are intact, but stale or of another volume, do not verify.

## Areas

| area | file in a directory | what it holds |
|---|---|---|
| superblock | `super` | {copies} copies of {copy_lbas} blocks each: two at the head, two at the end |
| log | `wal` | slots, each of which holds one segment, or nothing |
| snapshot slots | `snapshot-a` `snapshot-b` `snapshot-c` | each a snapshot, or nothing that counts |
| mapped buffers | `buffers` | batches not yet in the log, each in a buffer of `batch_lbas_max` blocks; then a block with the size of all buffers together, in bytes |

On a device there is one space of blocks:

```text
| superblock: first half | mapped buffers | extent | extent | ... | superblock: second half |
0                        1 MiB            65 MiB
```

Log and snapshot slots are made of extents, equal pieces of the device, of which there are at most
{extents}. No area has a share of its own: an extent is a piece of the log, a piece of a slot, or free,
and the superblock says which. The length of an extent is the smallest power of two, at least 256 blocks
(1 MiB), with which this limit is kept. A segment of the log has a whole number of extents, or an extent
has a whole number of segments.

The mapped buffers on a device are 64 MiB; no block behind them has their size.

## Versions

| version | what | opened by this program |
|---|---|---|
| 1 | before snapshots | no: export with the program that made it, and import with this one |
| 2 | files; up to this version also a device, in four fixed shares | files, yes; a device, no: export it with the program that made it, make a new volume with `slimio format --force`, and import |
| 3 | a device in extents | yes; if the device reports an identity, the volume becomes one of version 4 |
| 4 | a device in extents, with the identity of the device in the superblock | yes |
| 5 | as 2, 3 or 4, with a snapshot that needs some of the log behind it | yes |
| 6 | as 2 to 5; chunks and records may hold values of every type | yes |

This program writes version 6. A server that opens a volume of an earlier version moves it to version 6
before it appends anything: two updates of the superblock, so that no copy of the earlier version is
left. A power cut in between leaves a volume that both programs read. After the second update, programs
that only read earlier versions refuse the volume. Tools that only read a volume leave its version as
it is. To go back, `slimio export` the data set, and `slimio import` it with the earlier program, which
refuses types that it does not know.

Since version 5, a volume may hold a WAL-snapshot that was taken while clients went on writing. It may
lack entries that were overwritten or deleted while it was taken; the log behind it, up to `consistent`,
has those changes. A log that ends before that is damaged.

Up to version 5, values are strings and hashes. Since version 6, they are of any type, and in the chunks
of a snapshot each type has a number: 0 string, 1 list, 2 set, 4 hash. A type that the program does not know is
refused, with its number or with the command that made it. Everything but the superblock and the
payloads is the same in versions 2 to 6.

## Superblock

An update with an even sequence writes copies 0 and 2, one with an odd sequence copies 1 and 3; one
after the other, each durable. The valid copy with the highest sequence is in force.

",
        extents = layout::EXTENTS_MAX,
        copies = layout::SUPERBLOCK_COPIES,
        copy_lbas = layout::SUPERBLOCK_COPY_LBAS,
    );
    table(&mut text, layout::superblock::FIELDS);
    text.push_str(
        "
### While a volume is made

The mark is written at the place of copy 0, before anything else is written. The second superblock
overwrites it. If it is there and no copy is valid, the volume was never finished: nothing counts, and
the volume is made anew.

",
    );
    table(&mut text, layout::unfinished::FIELDS);
    text.push_str(
        "
### Extents in the superblock

Each has an entry of 16 bits: 0 when it is free; else its area in bits 13-15 (1 log; 2, 3, 4 slot a, b,
c) and its place in the area, counted from 0, in bits 0-12. Block `n` of an area is block
`n % extent_lbas` of its extent `n / extent_lbas`. The log's area may have holes, where nothing is.
The map is that of the moment when the superblock was written. Extents that were taken since are free
in it: nothing in them counts.

### Identity in the superblock

The identity distinguishes the device from all others, whatever its name is today. For an NVMe
namespace, it is serial number and namespace id, as `nvme serial SERIAL namespace ID`. For another
block device, it is what the kernel reports (device-mapper uuid, for an encrypted device without the
name that it was opened under; wwid; serial number), with the number of the partition. Files, including
those of an emulated SSD, have none, nor do devices of which the kernel reports nothing. A volume whose
identity is not that of its device is a copy: it is refused unless the copy is accepted. A volume
without an identity takes that of its device when it is opened.

### Snapshot slots in the superblock

Recovery starts from the root, the snapshot in one of the slots, and replays the log behind its LSN;
without a root, from the empty data set. A slot is in one of three roles; there is at most one
WAL-snapshot and one on-demand snapshot, so there is always a reserve to write the next one to.

",
    );
    table(&mut text, layout::slot_record::FIELDS);
    write!(
        text,
        "
## Batch

A batch is one write: a header, records, zeros up to a whole block. It never crosses segments. The
first {open} bytes, the open half, are written when the batch is opened in its buffer; the rest when
it is submitted. At most {in_flight} are in flight.

A tail pair is two blocks, to which the same growing batch is written alternately. The block with more
records counts, and the next batch lies behind both. But if a batch of a later epoch continues the block
with fewer records, that block counts: the write of the other one, by a server that had died, reached
the device late.

The log is read from parent to parent, from its start. It must come to a batch whose checksum is
`cut_parent` of the superblock; behind that, batches of older epochs do not count. A log that does not
lead there is damaged: another batch is in the place of that one.

",
        open = layout::batch::FIELDS[5].offset,
        in_flight = layout::WAL_IN_FLIGHT_MAX,
    )
    .expect("a string grows");
    table(&mut text, layout::batch::FIELDS);
    text.push_str(
        "
## Record

A record larger than the room in a batch is cut in fragments, each with this header. It counts when
all its fragments are there.

",
    );
    table(&mut text, layout::record::FIELDS);
    snapshot(&mut text);
    text
}

fn snapshot(text: &mut String) {
    write!(
        text,
        "
## Snapshot

```text
| header | chunk | chunk | ... | index | trailer |
```

Each part starts at a block. The superblock has the checksum of the trailer, the trailer those of
header and index, the index that of each chunk. All are mixed with volume id, slot, epoch and number,
and with what the part is: what a slot held before never verifies as part of a later snapshot.

A chunk is at most {chunk_lbas} blocks long, so that one read fetches it. Storage does not interpret its
payload.

### Header of a slot

",
        chunk_lbas = layout::CHUNK_LBAS_MAX,
    )
    .expect("a string grows");
    table(text, layout::slot_header::FIELDS);
    text.push_str("\n### Header of a chunk\n\n");
    table(text, layout::chunk::FIELDS);
    text.push_str("\n### Entry of the index\n\n");
    table(text, layout::index_entry::FIELDS);
    text.push_str("\n### Trailer\n\n");
    table(text, layout::trailer::FIELDS);
}

#[test]
fn format_md_says_what_the_code_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/format.md");
    let rendered = render();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &rendered).expect("docs/format.md can be written");
    }
    let found = std::fs::read_to_string(&path).expect("docs/format.md exists");
    assert_eq!(found, rendered, "run this test with UPDATE_EXPECT=1");
}
