"""Traces the system calls of a server, by strace."""

import os
import re
import shutil
import tempfile

from .server import Server

# Calls that have several operations, with the index of the argument that selects the operation.
KINDS = {"io_uring_register": 1, "fcntl": 1, "ioctl": 1, "fallocate": 1, "madvise": 2, "prctl": 0}

LINE = re.compile(r"^\d+ +\[ *(\d+)\] (\w+)\((.*)")


def strace():
    """The path of strace, or None if strace is not installed."""
    return shutil.which("strace")


def calls_of(use, **flags):
    """Runs `use` on a server. Returns every system call that the server makes, as {name: call}. A
    call is a tuple such as the functions of `refusing.py` take: (number, None). For calls in
    `KINDS`, each kind that occurs also has an entry. Its key is "NAME:VALUE", and its call is
    (number, (index, value))."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace")
        launcher = [strace(), "-f", "-n", "-X", "raw", "-s", "0", "-o", path]
        with Server(launcher=launcher, **flags) as server:
            use(server)
            # SHUTDOWN ends the server. If strace were killed instead, the server would run on.
            with server.client() as client:
                client.socket.sendall(b"SHUTDOWN\r\n")
                server.process.wait(30)
        with open(path) as trace:
            return dict(call for line in trace for call in parse(line))


def parse(line):
    found = LINE.match(line)
    if not found:
        return
    number, name, rest = int(found[1]), found[2], found[3]
    yield name, (number, None)
    if name in KINDS:
        index = KINDS[name]
        value = re.split(r"[,) ]+", rest)[index]
        yield f"{name}:{value}", (number, (index, int(value, 0) & 0xFFFFFFFF))
