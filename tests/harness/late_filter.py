"""A server that gets a seccomp filter while it runs (see `late_filter.c`)."""

import errno as numbers
import os
import signal
import subprocess

from . import refusing
from .faults import compiler
from .server import Server
from .wait import until

# Numbers of system calls on x86-64, by name.
NUMBERS = {
    "io_uring_enter": 426,
    "epoll_pwait": 281,
    "pwritev2": 328,
    "pwritev": 296,
    "fdatasync": 75,
}

__all__ = ["NUMBERS", "FilteredServer", "compiler"]


class FilteredServer(Server):
    """Like `Server`. Once `put_filter_on` has returned, the kernel refuses `calls` (names,
    separated by commas)."""

    def __init__(self, calls, errno, **options):
        super().__init__(start=False, **options)
        self.bare_launcher = self.launcher
        try:
            library = build(self.folder)
            path = os.path.join(self.folder, "filter")
            program = [(NUMBERS[name], None) for name in calls.split(",")]
            with open(path, "wb") as file:
                file.write(refusing.filter_program(program, getattr(numbers, errno)))
            variables = [f"LD_PRELOAD={library}", f"SLIMIO_TEST_FILTER={path}"]
            self.launcher = [*self.launcher, "env", *variables]
            self.start()
        except BaseException:
            self.close()
            raise

    def put_filter_on(self):
        """Puts the filter on. Returns when the filter is in force, or when the server has ended
        because of the filter."""
        before = self.filters()
        os.kill(self.process.pid, signal.SIGUSR2)
        until(lambda: not self.is_alive() or self.filters() != before, what="the filter")

    def filters(self):
        """The kernel's lines about the filters on the process, or None if the process is gone."""
        try:
            with open(f"/proc/{self.process.pid}/status") as status:
                return [line for line in status if line.startswith("Seccomp")]
        except OSError:
            return None

    def take_filter_off(self):
        """From its next start on, the server has no filter."""
        self.launcher = self.bare_launcher


def build(folder):
    library = os.path.join(folder, "late_filter.so")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "late_filter.c")
    command = [compiler(), "-O1", "-shared", "-fPIC", "-o", library, source]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return library
