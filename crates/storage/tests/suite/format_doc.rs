//! `docs/format.md` says what the code does. `UPDATE_EXPECT=1` rewrites it.

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
    let version = layout::FORMAT_VERSION;
    let mut text = format!(
        "# What is on the volume: format version {version}

Rendered from the constants in `crates/storage/src/layout.rs` by a test; change those, then run the
test with `UPDATE_EXPECT=1`.

All integers are little-endian. Bytes that no field covers are written as zero and must read as zero.
A block is {LBA_SIZE} bytes. An LSN is a position in the stream of records, in bytes; a record's own
LSN is the position right behind it.

Checksums are XXH3 (64 bits). Those of batches and records are mixed with volume id, epoch and LSN:
what is right in itself, but stale or of another volume, does not verify.

## Areas

| area | file in a directory | what it holds |
|---|---|---|
| superblock | `super` | {copies} copies of {copy_lbas} blocks each: two at the head, two at the end |
| log | `wal` | slots, each of which holds one segment, or nothing |
| snapshot slots | `snapshot-a` `snapshot-b` `snapshot-c` | each a snapshot, or nothing that counts |
| mapped buffers | `buffers` | batches not yet in the log, each in a buffer of `batch_lbas_max` blocks; then a block that says how many bytes those are |

## Superblock

An update with an even sequence writes copies 0 and 2, one with an odd sequence copies 1 and 3; one
after the other, each durable. The valid copy with the highest sequence is in force.

",
        copies = layout::SUPERBLOCK_COPIES,
        copy_lbas = layout::SUPERBLOCK_COPY_LBAS,
    );
    table(&mut text, layout::superblock::FIELDS);
    text.push_str(
        "
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

A tail pair is two blocks that hold the same growing batch by turns: the one with more records
counts, and what follows lies behind both.

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
all of them are there.

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

A chunk is at most {chunk_lbas} blocks long, so that one read fetches it. What its payload means is
not storage's matter.

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
