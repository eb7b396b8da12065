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

A test renders this file from the constants in `crates/storage/src/layout.rs` and from texts in
`crates/storage/tests/suite/format_doc.rs`. Change those, then run the test with `UPDATE_EXPECT=1`.

All integers are little-endian. Bytes that no field covers are written as zero and must read as zero.
A block is {LBA_SIZE} bytes. An LSN is a position in the stream of records, in bytes. A record's own
LSN is the position right after the record.

Checksums are XXH3 (64 bits). The checksums of batches and records are mixed with volume id, epoch and
LSN. So stale bytes, or bytes of another volume, have wrong checksums even if they are intact.

## Areas

| area | file in a directory | what it holds |
|---|---|---|
| superblock | `super` | {copies} copies of {copy_lbas} blocks each: two at the head, two at the end |
| log | `wal` | slots, each of which holds one segment, or nothing |
| snapshot slots | `snapshot-a` `snapshot-b` `snapshot-c` | each holds a snapshot, or nothing that counts |
| mapped buffers | `buffers` | batches that are not in the log yet, each in a buffer of `batch_lbas_max` blocks; then a block with the total size of the buffers in bytes |

On a device there is one space of blocks:

```text
| superblock: first half | mapped buffers | extent | extent | ... | superblock: second half |
0                        1 MiB            65 MiB
```

Log and snapshot slots are made of extents. Extents are equal pieces of the device, at most {extents} of
them. No area has a fixed share of the device: an extent is a piece of the log, a piece of a slot, or
free, and the superblock says which. The length of an extent is at least 256 blocks (1 MiB). It is the
smallest power of two for which the device has no more extents than the limit. Either a segment of the
log has a whole number of extents, or an extent has a whole number of segments.

On a device, the mapped buffers are 64 MiB, and no block after them holds their size.

## Versions

| version | what | opened by this program |
|---|---|---|
| 1 | no snapshots | no: export the data set with the program that made the volume, and import it with this program |
| 2 | files, or a device in four fixed shares | in files, yes; on a device, no: export the data set with the program that made the volume, make a new volume with `slimio format --force`, and import the data set |
| 3 | a device in extents | yes; if the device reports an identity, the server stores it in the superblock |
| 4 | a device in extents, with the identity of the device in the superblock | yes |
| 5 | as 2, 3 or 4, but a snapshot may need some of the log after it | yes |
| 6 | as 2 to 5, but chunks and records may hold values of every type | yes |

This program writes version 6. A server that opens a volume of an earlier version moves the volume to
version 6 before it appends anything. It updates the superblock twice, so that no copy of the earlier
version is left. If power is cut between these two updates, both the earlier program and this program can
read the volume. After the second update, programs that do not know version 6 refuse the volume.
Tools that only read a volume do not change its version. To go back to an earlier program, run
`slimio export` with this program and `slimio import` with the earlier one. The earlier program refuses
types that it does not know.

Since version 5, a volume may hold a WAL-snapshot that was taken while clients went on writing. Such a
snapshot may lack entries that were overwritten or deleted while it was taken. The log after the
snapshot, up to the LSN `consistent`, has these changes. A log that ends before that LSN is damaged.

Up to version 5, values are strings and hashes. Since version 6, values are of any type, and in the
chunks of a snapshot each type has a number: 0 string, 1 list, 2 set, 4 hash. If the program does not
know a type, it refuses the value. The error names the type's number, or the command that made the value.
Versions 2 to 6 differ only in the superblock, in the payloads, and in the field `version` of a
snapshot slot's header.

## Superblock

An update with an even sequence writes copies 0 and 2. An update with an odd sequence writes copies 1
and 3. The first copy is durable before the second is written. The valid copy with the highest sequence
is in force.

",
        extents = layout::EXTENTS_MAX,
        copies = layout::SUPERBLOCK_COPIES,
        copy_lbas = layout::SUPERBLOCK_COPY_LBAS,
    );
    table(&mut text, layout::superblock::FIELDS);
    text.push_str(
        "
### While a volume is made

The mark of an unfinished volume is written at the place of copy 0, before anything else is written. The
second update of the superblock overwrites the mark. If there is a mark but no valid copy, the volume was
never finished. Nothing on the volume counts then, and the volume is made anew.

",
    );
    table(&mut text, layout::unfinished::FIELDS);
    text.push_str(
        "
### Extents in the superblock

Each extent has an entry of 16 bits. The entry is 0 if the extent is free. Otherwise bits 13-15 hold its
area (1 log; 2, 3, 4 slot a, b, c), and bits 0-12 hold its place in the area, counted from 0. Block `n` of
an area is block `n % extent_lbas` of the area's extent `n / extent_lbas`. The log's area may have holes,
which have no extent. The map of extents is from the moment when the superblock was written. Extents that
were taken later are free in the map, and nothing in them counts.

### Identity in the superblock

The identity distinguishes the device from all others, even if the device's name changes. For an NVMe
namespace, the identity is `nvme serial SERIAL namespace ID`. For another block device, the kernel reports
a device-mapper uuid, a wwid or a serial number. The identity is the first of these that exists, with the
number of the partition. The uuid of an encrypted device ends with the name under which the device was
opened, and the identity leaves out this name. Files, including those of an emulated SSD, have no
identity. Devices for which the kernel reports none of these values have no identity either. A volume
whose stored identity differs from its device's identity is a copy. A copy is refused unless it is
accepted. When a volume without an identity is opened, it takes the identity of its device.

### Snapshot slots in the superblock

Recovery starts from the root, which is the snapshot in one of the slots, and replays the log after the
root's LSN. Without a root, recovery starts from the empty data set. A slot has one of three roles:
WAL-snapshot, on-demand snapshot or reserve. There is at most one WAL-snapshot and one on-demand
snapshot, so there is always a reserve for the next snapshot.

",
    );
    table(&mut text, layout::slot_record::FIELDS);
    write!(
        text,
        "
## Batch

A batch is one write: a header, records, and zeros up to the end of a block. A batch never crosses the
end of a segment. The first {open} bytes of the header are the open half. They are written when the batch
is opened in its buffer. The rest of the header is written when the batch is submitted. At most
{in_flight} batches are in flight.

A tail pair is two blocks. The same growing batch is written to them alternately. The block with more
records counts, and the next batch lies after both blocks. There is one exception: if a batch of a later
epoch continues the block with fewer records, the block with fewer records counts. In this case, a server
submitted the block with more records and then died, and this write reached the device late.

Recovery reads the log from its start, batch after batch. Each batch has the checksum of its parent, which
is the batch before it. If the log starts before the last recovery's cut, one of the batches must have the
checksum `cut_parent` of the superblock. After this batch, batches of older epochs do not count. If no batch
has this checksum, the log is damaged, because another batch is in the place of the batch before the cut.

",
        open = layout::batch::FIELDS[5].offset,
        in_flight = layout::WAL_IN_FLIGHT_MAX,
    )
    .expect("a string grows");
    table(&mut text, layout::batch::FIELDS);
    text.push_str(
        "
## Record

A record that is larger than the room in a batch is cut into fragments, and each fragment has this header.
The record counts only if all its fragments were found.

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

Each part starts at the start of a block. The superblock has the checksum of the trailer. The trailer has
the checksums of header and index, and the index has the checksum of each chunk. All checksums are mixed
with volume id, slot, epoch and snapshot number, and with the kind of the part. So the checks never
mistake old contents of a slot for a part of a later snapshot.

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
