"""Makes random system calls on a log file, and prints what the calls return. Two runs with the same
seed must print the same lines, whether or not the log takes the short path.

    python3 calls.py FOLDER SEED COUNT
"""

import ctypes
import fcntl
import hashlib
import mmap
import os
import random
import socket
import struct
import subprocess
import sys
import time

folder, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dice = random.Random(seed)
path = os.path.join(folder, "a.log")
flags = dice.choice([os.O_WRONLY, os.O_RDWR]) | os.O_CREAT | dice.choice([0, os.O_APPEND])
shown = os.O_ACCMODE | os.O_APPEND | os.O_DIRECT | os.O_ASYNC
FIDEDUPERANGE = 0xC0189436
fd = -1
written = 0


def say(*words):
    print(*words, flush=True)


def some_bytes():
    size = dice.choice([1, 10, 100, 4000, 4096, 5000, 20000, 300000])
    if dice.random() < 0.02:
        size = 3000000
    global written
    written += 1
    return bytes([1 + written % 255]) * dice.randrange(1, size + 1)


def digest(data):
    return len(data), hashlib.sha1(data).hexdigest()[:12]


def reopen():
    global fd
    if fd >= 0:
        os.close(fd)
    fd = os.open(path, flags, 0o644)
    os.lseek(fd, 0, os.SEEK_END)


def write():
    say("write", os.write(fd, some_bytes()))


def write_vector():
    say("writev", os.writev(fd, [some_bytes() for _ in range(dice.randrange(1, 5))]))


def sync():
    (os.fsync if dice.random() < 0.3 else os.fdatasync)(fd)


def ask():
    say("size", os.fstat(fd).st_size, "at", os.lseek(fd, 0, os.SEEK_CUR))
    say("flags", fcntl.fcntl(fd, fcntl.F_GETFL) & shown)


def seek():
    end = os.lseek(fd, 0, os.SEEK_END)
    say("end", end, os.lseek(fd, dice.choice([0, end // 2, end]), os.SEEK_SET))
    if dice.random() < 0.8:
        os.lseek(fd, 0, os.SEEK_END)


def cut():
    size = os.fstat(fd).st_size
    os.ftruncate(fd, dice.choice([size, size // 2, max(0, size - 7)]))
    os.lseek(fd, 0, os.SEEK_END)


def duplicate():
    other = dice.choice([lambda: os.dup(fd), lambda: fcntl.fcntl(fd, fcntl.F_DUPFD, 100)])()
    os.write(other, some_bytes())
    os.fsync(other)
    os.close(other)


def replace():
    global fd
    other = os.open("/dev/null", os.O_RDONLY)
    os.dup2(fd, other)
    os.close(fd)
    fd = other


def fork():
    child = os.fork()
    if child == 0:
        data = some_bytes()
        for start in range(0, len(data), 100000):
            os.write(fd, data[start : start + 100000])
        if dice.random() < 0.5:
            os.fdatasync(fd)
        if dice.random() < 0.5:
            os.close(fd)
        os._exit(0)
    os.waitpid(child, 0)
    some_bytes(), dice.random(), dice.random()


def copy():
    shown = subprocess.run(["cat", path], stdout=subprocess.PIPE, check=True).stdout
    say("cat", *digest(shown))


def read_here():
    with open(path, "rb") as file:
        say("read", *digest(file.read()))


def read_back():
    if flags & os.O_RDWR:
        say("pread", *digest(os.pread(fd, 10000, max(0, os.fstat(fd).st_size - 10000))))


def map_it():
    if flags & os.O_RDWR and os.fstat(fd).st_size:
        with mmap.mmap(fd, 0) as mapped:
            mapped[-1] = 200
            say("mmap", *digest(mapped[:]))


def copy_into():
    other = os.open(os.path.join(folder, "other"), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.write(other, some_bytes()[:50000])
    if flags & os.O_APPEND:
        return os.close(other)
    how = dice.choice(["sendfile", "copy_file_range"])
    if how == "sendfile":
        say(how, os.sendfile(fd, other, 0, 50000))
    else:
        say(how, os.copy_file_range(other, fd, 50000, 0))
    os.close(other)


def deduplicate():
    # Two files get the same bytes, and then share blocks if the file system can do that.
    other = os.open(os.path.join(folder, "other"), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    data = some_bytes()[:50000].ljust(8192, b"x")[:8192]
    os.write(other, data)
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, data)
    for source, target in [(other, fd), (fd, other)]:
        try:
            shared = fcntl.ioctl(source, FIDEDUPERANGE, struct.pack("QQHHIqQQiI", 0, 8192, 1, 0, 0, target, 0, 0, 0, 0))
            say("deduplicate", struct.unpack("QQHHIqQQiI", shared)[7:9])
        except OSError as error:
            say("deduplicate", error.errno)
    os.close(other)


def write_at():
    size = os.fstat(fd).st_size
    say("pwrite", os.pwrite(fd, some_bytes(), dice.choice([size, size // 2])))
    os.lseek(fd, 0, os.SEEK_END)


def some_place():
    size = os.fstat(fd).st_size
    return dice.choice([size, 0, size // 4096 * 4096, dice.randrange(size + 1), dice.randrange(size + 1)])


def write_over():
    place = some_place()
    for _ in range(dice.randrange(1, 6)):
        place += os.pwrite(fd, some_bytes()[: dice.choice([24, 4096, 50000])], place)


def write_vector_here():
    vector = (ctypes.c_void_p * 2)()
    data = some_bytes()
    vector[0], vector[1] = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data)
    say("pwritev2", ctypes.CDLL(None).pwritev2(fd, vector, 1, ctypes.c_long(-1), 0), os.lseek(fd, 0, os.SEEK_CUR))


def write_over_here():
    os.lseek(fd, some_place(), os.SEEK_SET)
    say("here", os.write(fd, some_bytes()), os.lseek(fd, 0, os.SEEK_CUR))


def read_over():
    if flags & os.O_RDWR:
        for _ in range(dice.randrange(1, 4)):
            say("pread", *digest(os.pread(fd, dice.choice([24, 4096, 500000]), some_place())))
        say("read", *digest(os.read(fd, 100)), os.lseek(fd, 0, os.SEEK_CUR))


class Control(ctypes.Structure):
    """`struct aiocb` of glibc on 64-bit machines."""

    _fields_ = [
        ("fd", ctypes.c_int), ("opcode", ctypes.c_int), ("priority", ctypes.c_int), ("bytes", ctypes.c_char_p),
        ("count", ctypes.c_size_t), ("event", ctypes.c_char * 64), ("rest", ctypes.c_char * 32),
        ("offset", ctypes.c_long), ("reserved", ctypes.c_char * 32),
    ]


def write_later():
    libc, data = ctypes.CDLL(None), some_bytes()
    control = Control(fd=fd, bytes=data, count=len(data), offset=os.fstat(fd).st_size)
    control.event = bytes(12) + b"\x01"  # SIGEV_NONE
    said = libc.aio_write(ctypes.byref(control))
    while libc.aio_error(ctypes.byref(control)) == 115:  # EINPROGRESS
        time.sleep(0.001)
    say("aio", said, libc.aio_error(ctypes.byref(control)))
    os.lseek(fd, 0, os.SEEK_END)


def allocate_behind():
    keeps_size = 1
    ctypes.CDLL(None).fallocate(fd, keeps_size, ctypes.c_long(0), ctypes.c_long(5000000))


def allocate():
    os.posix_fallocate(fd, 0, os.fstat(fd).st_size + 5000)
    os.lseek(fd, 0, os.SEEK_END)


def other_log():
    other = os.open(os.path.join(folder, "other.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(other, some_bytes())
    os.write(fd, some_bytes())
    os.fdatasync(other)
    os.close(other)
    os.write(fd, some_bytes())


def fork_and_copy():
    child = os.fork()
    if child == 0:
        os.dup2(fd, 1)
        os.write(1, b"from a child\n")
        os._exit(0)
    say("child", os.waitpid(child, 0)[1])


def exec_child():
    os.set_inheritable(fd, True)
    how = dice.choice(["exec", "fexec", "system", "spawn"])
    command = f"echo from another program >&{fd}"
    if how in ("exec", "fexec"):
        child = os.fork()
        if child == 0:
            program = "/bin/bash" if how == "exec" else os.open("/bin/bash", os.O_RDONLY)
            os.execve(program, ["bash", "-c", command], os.environ)
        say(how, os.waitpid(child, 0)[1])
    elif how == "system":
        say(how, os.system(f"bash -c '{command}'"))
    else:
        child = os.posix_spawn("/bin/bash", ["bash", "-c", command], os.environ)
        say(how, os.waitpid(child, 0)[1])
    os.set_inheritable(fd, False)


def output_of_a_program():
    say("run", subprocess.run(["echo", "output"], stdout=fd).returncode)
    actions = [(os.POSIX_SPAWN_DUP2, fd, 1)]
    child = os.posix_spawn("/bin/echo", ["echo", "spawned"], os.environ, file_actions=actions)
    say("spawn", os.waitpid(child, 0)[1])


def send():
    here, there = socket.socketpair()
    with here, there:
        socket.send_fds(here, [b"x"], [fd])
        received = socket.recv_fds(there, 1, 1)[1][0]
        say("sent", os.write(received, b"by another descriptor\n"))
        os.close(received)


def print_to():
    libc = ctypes.CDLL(None)
    say("dprintf", libc.dprintf(fd, b"%s %d %d %d %d %d\n", b"text", 1, 2, 3, 4, 5))


def lock():
    fcntl.lockf(fd, fcntl.LOCK_EX)
    read_back()
    os.close(os.dup(2))
    check = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    tried = subprocess.run([sys.executable, "-c", check, path], stderr=subprocess.DEVNULL)
    say("lock", tried.returncode)
    fcntl.lockf(fd, fcntl.LOCK_UN)


def wrong():
    for call in [
        lambda: os.writev(fd, [b"x"] * 2000),
        lambda: os.posix_fadvise(fd, 0, 0, 77),
        lambda: os.lseek(fd, -1, os.SEEK_SET),
        lambda: os.ftruncate(fd, -1),
        lambda: os.fstat(fd + 1000),
        lambda: flags & os.O_RDWR or os.pread(fd, 5, 0),
        lambda: flags & os.O_RDWR or os.read(fd, 5),
    ]:
        try:
            say("wrong", call())
        except OSError as error:
            say("wrong", error.errno)
    libc = ctypes.CDLL(None, use_errno=True)
    for call, offset in [("write", []), ("pwrite", [0]), ("read", []), ("pread", [0])]:
        ctypes.set_errno(0)
        say("null pointer", call, getattr(libc, call)(fd, None, 5, *offset), ctypes.get_errno())


def close_all():
    global fd
    os.closerange(3, 3000)
    fd = -1
    reopen()


def rename():
    global path
    new = os.path.join(folder, f"{written}.log")
    os.rename(path, new)
    path = new


def pause():
    time.sleep(dice.choice([0.001, 0.7]))


usual = [write] * 30 + [write_vector] * 5 + [sync] * 20 + [ask] * 5
if dice.random() < 0.5:
    usual += [write_over] * 20 + [write_over_here] * 5 + [write_vector_here] + [read_over] * 5 + [allocate_behind]
unusual = [
    seek, cut, duplicate, replace, fork, copy, copy, read_here, read_back, map_it, copy_into, deduplicate, write_at,
    allocate, write_later, rename, pause, close_all, other_log,
    other_log, fork_and_copy, exec_child, output_of_a_program, send, lock, wrong, print_to, reopen, reopen, reopen,
]
reopen()
for _ in range(count):
    dice.choice(usual if dice.random() < 0.9 else unusual)()
ask()
os.close(fd)
with open(path, "rb") as file:
    say("all", *digest(file.read()))
