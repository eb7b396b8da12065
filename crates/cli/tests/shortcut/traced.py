"""Two processes overwrite a log, and make each other's writes durable: see traced.rs."""

import fcntl
import mmap
import os
import random
import struct
import sys

PATH, SEED, COUNT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
BLOCK = 4096
BLOCKS = 256
FIBMAP, FIGETBSZ = 1, 2


def aligned(byte):
    memory = mmap.mmap(-1, BLOCK)
    memory[:] = bytes([byte]) * BLOCK
    return memory


def act(fd, what, block):
    """Writes to a block in the way that `what` names, or syncs the log."""
    byte = random.randrange(256)
    if what == "whole":
        os.pwrite(fd, aligned(byte), block * BLOCK)
    elif what == "part":
        os.pwrite(fd, bytes([byte]) * 100, block * BLOCK + random.randrange(BLOCK - 100))
    elif what == "end":
        # The file grows by a hole, so the file system has to allocate a block for the write.
        os.ftruncate(fd, (block + 1) * BLOCK)
        os.pwrite(fd, aligned(byte), block * BLOCK)
    else:
        os.fdatasync(fd)


def other(requests, answers):
    fd = os.open(PATH, os.O_RDWR)
    for line in os.fdopen(requests):
        what, block = line.split()
        act(fd, what, int(block))
        os.write(answers, b".")
    os._exit(0)


random.seed(SEED)
ours, theirs = os.pipe(), os.pipe()
if os.fork() == 0:
    os.close(ours[1])
    other(ours[0], theirs[1])
fd = os.open(PATH, os.O_RDWR)


def by(who, what, block):
    if who == 0:
        return act(fd, what, block)
    os.write(ours[1], f"{what} {block}\n".encode())
    os.read(theirs[0], 1)


def place(block):
    """The byte offset, on the device, of one of the log's blocks."""
    size = struct.unpack("i", fcntl.ioctl(fd, FIGETBSZ, struct.pack("i", 0)))[0]
    at = struct.unpack("i", fcntl.ioctl(fd, FIBMAP, struct.pack("i", block * BLOCK // size)))[0]
    return at * size


end = BLOCKS
for step in range(COUNT):
    blocks = []
    for _ in range(random.randrange(1, 4)):
        what = random.choice(["whole"] * 6 + ["part"] * 2 + ["end"])
        if what == "end":
            end += 2
            block = end - 1
        else:
            block = random.randrange(end)
        by(random.randrange(2), what, block)
        blocks.append(block)
    by(random.randrange(2), "sync", 0)
    print(*[place(block) for block in blocks], flush=True)
    sys.stdin.readline()
