"""Overwrites and changes a log in many ways, and checks which syncs of the log flush the device.

whole.rs runs this script with a preloaded library. The library makes overwrites of whole blocks
durable at once, so that a sync has nothing to do after them. It passes all other changes on to the
kernel, and then also the next sync. The keeper is the process that started this script."""

import array
import ctypes
import fcntl
import mmap
import os
import socket
import subprocess
import sys

PATH, DEVICE, WHAT = sys.argv[1:4]
libc = ctypes.CDLL(None)
BLOCK = 4096
SIZE = 64 * BLOCK


def aligned(byte, count=1):
    memory = mmap.mmap(-1, count * BLOCK)
    memory[:] = bytes([byte]) * (count * BLOCK)
    return memoryview(memory)


def flushes():
    """How often the device has flushed its cache. A sync by the kernel causes a flush, and so does
    a direct write that is durable."""
    with open(f"/sys/block/{DEVICE}/stat") as text:
        return int(text.read().split()[15])


def direct_is_open(path=PATH):
    own = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 200]
    return os.path.realpath(path) in own


def quiet(fd, call):
    """Whether a call causes no flush. The call is repeated up to 50 times, because the kernel may
    flush at the same moment for another reason."""
    for _ in range(50):
        before = flushes()
        call(fd)
        if flushes() == before:
            return True
    return False


def settled():
    """Opens the log, and syncs it until a further sync causes no flush."""
    fd = os.open(PATH, os.O_RDWR)
    os.fdatasync(fd)
    assert quiet(fd, os.fdatasync), "a further sync must cause no flush"
    return fd


def python(text):
    subprocess.run([sys.executable, "-c", "import os, sys\n" + text, PATH], check=True)


def by_child(fd):
    child = os.fork()
    if child == 0:
        os.pwrite(fd, b"child", 77)
        os._exit(0)
    os.waitpid(child, 0)


def by_copy(fd):
    other = os.dup(fd)
    os.pwrite(other, b"copy", 5)


def by_control(fd):
    other = fcntl.fcntl(fd, fcntl.F_DUPFD, 20)
    os.pwrite(other, b"copy", 5)


def by_message(fd):
    here, there = socket.socketpair()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    here.sendmsg([b"x"], rights)
    _, ancillary, _, _ = there.recvmsg(1, socket.CMSG_LEN(4))
    os.pwrite(array.array("i", ancillary[0][2])[0], b"message", 5)


def by_heir(fd):
    os.set_inheritable(fd, True)
    text = f"import os; os.pwrite({fd}, b'heir', 9)"
    subprocess.run([sys.executable, "-c", text], close_fds=False, check=True)


def by_map(fd):
    mapped = mmap.mmap(fd, BLOCK)
    mapped[100] = 7
    return mapped


def by_stream(fd):
    libc.fdopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.fdopen(fd, b"r+"))
    libc.fputs(b"stream", stream)
    libc.fflush(stream)


def by_many(fd):
    # The library has no room for this many descriptors.
    many = [os.open(PATH, os.O_RDWR) for _ in range(250)]
    os.fdatasync(fd)
    os.pwrite(many[-1], b"many", 5)


def by_file_stream(fd):
    libc.fopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.fopen(PATH.encode(), b"r+"))
    libc.fputs(b"stream", stream)
    libc.fclose(stream)


def copied(fd):
    with open("/proc/self/exe", "rb") as source:
        os.lseek(fd, 0, os.SEEK_SET)
        os.sendfile(fd, source.fileno(), 0, 100)


# After each of these calls, the library must pass the next sync on to the kernel.
CHANGES = [
    lambda fd: os.pwrite(fd, b"some", 100),
    lambda fd: os.pwrite(fd, aligned(3)[:BLOCK - 1], 0),
    lambda fd: os.pwritev(fd, [b"some", b"more"], 100),
    lambda fd: os.pwritev(fd, [aligned(3)], 0, os.RWF_HIPRI),
    lambda fd: os.write(fd, b"some"),
    lambda fd: os.writev(fd, [b"some", b"more"]),
    lambda fd: os.ftruncate(fd, SIZE - BLOCK),
    lambda fd: os.ftruncate(fd, SIZE),
    lambda fd: os.posix_fallocate(fd, 0, SIZE + BLOCK),
    lambda fd: libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(BLOCK)),
    lambda fd: os.pwrite(fd, aligned(3), 0),  # fills the new hole
    lambda fd: os.copy_file_range(fd, fd, 100, BLOCK, 3 * BLOCK),
    copied,
    by_child,
    lambda fd: python("os.pwrite(os.open(sys.argv[1], os.O_WRONLY), b'other', 33)"),
    lambda fd: os.truncate(PATH, SIZE - BLOCK),
    lambda fd: os.truncate(PATH, SIZE),
    # The write fails, because the address is invalid. The failure must do no harm.
    lambda fd: libc.pwrite(fd, ctypes.c_void_p(65536), BLOCK, ctypes.c_long(0)),
    # O_APPEND stays on, so every later write also needs the kernel's sync.
    lambda fd: fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND) or os.pwrite(fd, aligned(3), 0),
]
FOR_GOOD = [by_file_stream, by_copy, by_control, by_message, by_heir, by_map, by_stream, by_many]


def changes():
    for number, change in enumerate(CHANGES):
        fd = settled()
        change(fd)
        before = flushes()
        os.fdatasync(fd)
        assert flushes() > before, f"the sync after change {number} must cause a flush"
        os.close(fd)
    for change in FOR_GOOD:
        # After one of these changes, the library leaves every later sync of the file to the kernel.
        # So each change gets a new file.
        os.rename(PATH, PATH + change.__name__)
        with open(PATH, "wb") as file:
            file.write(bytes(SIZE))
            os.fsync(file.fileno())
        fd = settled()
        kept = change(fd)
        for _ in range(2):
            before = flushes()
            os.fdatasync(fd)
            assert flushes() > before, f"each sync after {change.__name__} must cause a flush"
        del kept


def direct():
    os.close(os.open(PATH, os.O_RDWR))
    # The first opening of a log connects the library to the keeper. This connection stays open, so
    # the descriptors are counted after that opening.
    count = len(os.listdir("/proc/self/fd"))
    for flags in (0, os.O_DSYNC):
        fd = os.open(PATH, os.O_RDWR | flags)
        assert direct_is_open()
        os.fdatasync(fd)
        for round in range(1, 20):
            before = flushes()
            assert os.pwrite(fd, aligned(round, 2), round * BLOCK) == 2 * BLOCK
            assert flushes() > before
            assert quiet(fd, os.fdatasync)
            assert os.pwritev(fd, [aligned(round), aligned(round)], round * BLOCK) == 2 * BLOCK
            with open(PATH, "rb") as file:
                file.seek(round * BLOCK)
                assert file.read(2 * BLOCK) == aligned(round, 2)
        # The position and flags of the program's descriptor have not changed.
        assert os.lseek(fd, 0, os.SEEK_CUR) == 0
        assert fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_DIRECT | os.O_DSYNC) == flags
        # If the program itself sets O_DIRECT, the library passes the program's writes on unchanged.
        # Such writes need a sync.
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        os.pwrite(fd, aligned(8), 0)
        if not flags:
            before = flushes()
            os.fdatasync(fd)
            assert flushes() > before
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        # Another process that shares the open file can set O_APPEND. Then Linux appends every
        # write, whatever its offset.
        child = os.fork()
        if child == 0:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_APPEND)
            os._exit(0)
        os.waitpid(child, 0)
        os.pwrite(fd, aligned(9), 0)
        assert os.fstat(fd).st_size == SIZE + BLOCK
        os.ftruncate(fd, SIZE)
        os.close(fd)
        assert len(os.listdir("/proc/self/fd")) == count, "the library closes its own descriptor, too"
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_APPEND, os.O_RDWR | os.O_DIRECT):
        fd = os.open(PATH, flags)
        assert not direct_is_open()
        os.close(fd)


def is_locked():
    text = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    tried = subprocess.run([sys.executable, "-c", text, PATH], stderr=subprocess.DEVNULL)
    return tried.returncode != 0


def locks():
    fd = os.open(PATH, os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    for round in range(4):
        os.pwrite(fd, aligned(round), 0)
        os.pwrite(fd, b"some", 0)
        os.fdatasync(fd)
    # When `again` is opened, the library must close no descriptor of the file. Otherwise the kernel
    # would release the lock.
    again = os.open(PATH, os.O_RDWR)
    os.pwrite(again, aligned(5), 0)
    assert is_locked()
    os.close(fd)
    os.close(again)
    assert not is_locked()
    # The same must hold for a shared lock on a read-only descriptor.
    reading = os.open(PATH, os.O_RDONLY)
    fcntl.lockf(reading, fcntl.LOCK_SH)
    fd = os.open(PATH, os.O_RDWR)
    os.pwrite(fd, aligned(6), 0)
    assert is_locked()
    os.close(fd)
    os.close(reading)


def orphan():
    """Kills the keeper. A process that started before goes on as usual. A process that starts later
    syncs its own writes."""
    fd = settled()
    os.kill(os.getppid(), 9)
    assert quiet(fd, os.fdatasync)
    by_child(fd)
    before = flushes()
    os.fdatasync(fd)
    assert flushes() > before
    assert quiet(fd, os.fdatasync)
    before = flushes()
    python("os.pwrite(os.open(sys.argv[1], os.O_WRONLY), b'other', 33)")
    assert flushes() > before, "a process without a keeper syncs its own writes"
    print("done", flush=True)


{"changes": changes, "direct": direct, "locks": locks, "orphan": orphan}[WHAT]()
