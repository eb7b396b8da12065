"""An image file with unreadable bytes, on which a loop device can be made. A file system in user
space serves the image, its only file. Linux has modules for unreadable devices, but most kernels
are built without these modules."""

import ctypes
import errno
import fcntl
import os
import stat
import struct
import subprocess
import sys

from .wait import until

GETATTR, OPEN, READ, WRITE, RELEASE, FSYNC, FLUSH, INIT = 3, 14, 15, 16, 18, 20, 25, 26
FORGET, INTERRUPT, DESTROY, BATCH_FORGET = 2, 36, 38, 42
HEADER = struct.Struct("<IIQQIIII")
REQUEST_SIZE = 1 << 20
WRITE_SIZE = 128 << 10
# Reads and writes bypass the kernel's cache.
DIRECT_IO = 1


class SpoiltImage:
    """`path` is the image. It goes away with the test. If no such image can be made, the test is
    skipped."""

    def __init__(self, test, path, size):
        if os.geteuid() != 0:
            test.skipTest("a file system in user space needs root")
        if not os.path.exists("/dev/fuse"):
            test.skipTest("this kernel has no FUSE")
        self.path, self.backing, self.control = path, path + ".bytes", path + ".spoilt"
        for name in (self.path, self.backing, self.control):
            open(name, "wb").close()
            test.addCleanup(os.remove, name)
        os.truncate(self.backing, size)
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        command = [sys.executable, "-B", "-m", "harness.spoilt_image"]
        self.process = subprocess.Popen(
            [*command, self.backing, self.path, self.control],
            cwd=here, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        test.addCleanup(self.end)

        def is_there():
            if self.process.poll() is not None:
                test.skipTest(f"FUSE does not work: {self.process.stderr.read().decode()}")
            return os.stat(self.path).st_size == size

        until(is_there, what="the image")

    def end(self):
        self.take_away()
        self.process.stderr.close()

    def take_away(self):
        """Makes the whole image unreadable and unwritable from now on."""
        subprocess.run(["umount", "-l", self.path], check=False, capture_output=True)
        self.process.kill()
        self.process.wait()

    def shrink(self, size):
        """Makes the image smaller. Returns when no write beyond the new end can succeed any
        more."""

        def is_small():
            # A write that was under way may have made the image longer again. So each call cuts the
            # image.
            os.truncate(self.backing, size)
            return os.stat(self.path).st_size == size

        until(is_small, what="the smaller image")

    def spoil(self, *ranges):
        """From now on, the bytes in these ranges can't be read, and all other bytes can."""
        with open(self.control + ".new", "w", encoding="utf-8") as file:
            file.writelines(f"{start} {end}\n" for start, end in ranges)
        os.replace(self.control + ".new", self.control)


def place_of(path, offset):
    """The place of a file's byte at `offset`, as an offset on the file system's device."""
    fiemap = 0xC020660B
    with open(path, "rb") as file:
        asked = struct.pack("=QQLLLL", offset, 1, 0, 0, 1, 0) + bytes(56)
        answer = fcntl.ioctl(file, fiemap, asked)
    logical, physical = struct.unpack_from("=QQ", answer, 32)
    return physical + offset - logical


def serve(backing, mount, control):
    """Runs the file system until it is unmounted."""
    image = os.open(backing, os.O_RDWR)
    fuse = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fuse},rootmode=100600,user_id=0,group_id=0,allow_other"
    if libc.mount(b"slimio-test", mount.encode(), b"fuse", 0, options.encode()) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    while True:
        try:
            request = os.read(fuse, REQUEST_SIZE)
        except OSError as error:
            if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                continue
            return
        _, opcode, unique, *_ = HEADER.unpack_from(request)
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            continue
        if opcode == DESTROY:
            return
        try:
            number, body = 0, answer(image, control, opcode, request[HEADER.size :])
        except OSError as error:
            number, body = -error.errno, b""
        os.write(fuse, struct.pack("<IiQ", 16 + len(body), number, unique) + body)


def answer(image, control, opcode, body):
    if opcode == INIT:
        head = struct.pack("<IIIIHHIIHHI", 7, 31, 0, 0, 16, 12, WRITE_SIZE, 1, 0, 0, 0)
        return head + bytes(28)
    if opcode == GETATTR:
        size = os.fstat(image).st_size
        times = (0,) * 6
        mode = stat.S_IFREG | 0o600
        numbers = struct.pack("<QQQQQQ", 1, size, size // 512, *times[:3])
        return bytes(16) + numbers + struct.pack("<10I", *times[3:], mode, 1, 0, 0, 0, 4096, 0)
    if opcode == OPEN:
        return struct.pack("<QII", 1, DIRECT_IO, 0)
    if opcode == READ:
        _, offset, size = struct.unpack_from("<QQI", body)
        with open(control, encoding="utf-8") as file:
            for line in file:
                start, end = map(int, line.split())
                if offset < end and start < offset + size:
                    raise OSError(errno.EIO, "spoilt")
        return os.pread(image, size, offset)
    if opcode == WRITE:
        _, offset, size = struct.unpack_from("<QQI", body)
        if offset + size > os.fstat(image).st_size:
            raise OSError(errno.EIO, "beyond the end")
        return struct.pack("<II", os.pwrite(image, body[40 : 40 + size], offset), 0)
    if opcode in (FLUSH, FSYNC, RELEASE):
        return b""
    raise OSError(errno.ENOSYS, "not here")


if __name__ == "__main__":
    serve(*sys.argv[1:])
