"""Some parts of the format of a volume (`docs/format.md`). Tests use these parts to damage a volume
in a directory."""

import os
import struct

LBA_SIZE = 4096
COPY_SIZE = 4 * LBA_SIZE
COPY_COUNT = 4
SUPERBLOCK_MAGIC = b"SlimIO\r\n"
VERSION_OFFSET = 8
SEQUENCE_OFFSET = 32
BATCH_MAGIC = b"SlWB"


def superblock_path(volume):
    return os.path.join(volume, "super")


def log_path(volume):
    return os.path.join(volume, "wal")


def copy_offset(volume, copy):
    """Byte offset of a copy of the superblock. Two copies are at the start of the superblock's
    file, and two are at its end."""
    if copy < 2:
        return copy * COPY_SIZE
    return os.path.getsize(superblock_path(volume)) - (COPY_COUNT - copy) * COPY_SIZE


def read_copy(volume, copy):
    return read_at(superblock_path(volume), copy_offset(volume, copy), COPY_SIZE)


def sequence_of(volume, copy):
    return struct.unpack_from("<Q", read_copy(volume, copy), SEQUENCE_OFFSET)[0]


def read_at(path, offset, size):
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(size)


def write_at(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def flip_bit(path, offset):
    write_at(path, offset, bytes([read_at(path, offset, 1)[0] ^ 0x10]))


def damage_copy(volume, copy):
    """Flips one bit that the copy's checksum covers."""
    flip_bit(superblock_path(volume), copy_offset(volume, copy) + SEQUENCE_OFFSET + 1)


def batch_offsets(volume):
    """Byte offsets, in the log's file, of blocks that look like the start of a batch."""
    offsets = []
    with open(log_path(volume), "rb") as file:
        offset = 0
        while block := file.read(1 << 20):
            for at in range(0, len(block), LBA_SIZE):
                if block.startswith(BATCH_MAGIC, at):
                    offsets.append(offset + at)
            offset += len(block)
    return offsets
