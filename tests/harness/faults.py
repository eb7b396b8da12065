"""A server with faults: while it runs, a test can move its wall clock, and make its writes and
flushes fail (see `faults.c`)."""

import mmap
import os
import shutil
import struct
import subprocess

from .server import Server

LAYOUT = "<qii112s"


class SpoiltServer(Server):
    """Like `Server`. In addition, `spoil` sets the faults, even while the server runs."""

    def __init__(self, **options):
        super().__init__(start=False, **options)
        try:
            library = build(self.folder)
            path = os.path.join(self.folder, "faults")
            with open(path, "wb") as file:
                file.write(bytes(mmap.PAGESIZE))
            with open(path, "r+b") as file:
                self.memory = mmap.mmap(file.fileno(), 0)
            variables = [f"LD_PRELOAD={library}", f"SLIMIO_TEST_FAULTS={path}"]
            self.launcher = [*self.launcher, "env", *variables]
            self.start()
        except BaseException:
            self.close()
            raise

    def spoil(self, clock_shift=0, write=0, flush=0, path_end=""):
        """Sets the seconds that are added to the wall clock, and the error numbers with which
        writes and flushes fail. Only files whose path ends with `path_end` get errors."""
        self.memory[: struct.calcsize(LAYOUT)] = struct.pack(
            LAYOUT, clock_shift, write, flush, path_end.encode()
        )


def compiler():
    """The path of a C compiler, or None if none is installed."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(folder):
    library = os.path.join(folder, "faults.so")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "faults.c")
    command = [compiler(), "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return library
