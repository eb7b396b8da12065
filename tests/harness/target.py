"""Which server the tests run against. `run.py` sets the server, and the runner sets the `Way` of
starting the server."""

import os
import shlex
import shutil
import sys
import unittest
from typing import NamedTuple


class Target:
    """The server under test, and stock redis-server to compare it with."""

    def __init__(self):
        self.command = ["slimio", "serve"]
        self.stock_command = ["redis-server"]
        self.launcher = []
        self.folder = "target/blackbox"
        self.clients = "target/clients"
        self.peers = "target/peers"
        self.seed = 1
        self.rounds = 0
        self.is_every_call = False

    @property
    def is_stock(self):
        """Whether stock redis-server itself is under test. If so, tests of features that only
        SlimIO has are skipped."""
        return "slimio" not in os.path.basename(self.command[0])

    @property
    def is_without_io_uring(self):
        return bool(self.launcher)

    def set_command(self, text):
        command = shlex.split(text)
        found = shutil.which(command[0])
        if found is None:
            raise SystemExit(f"{command[0]} is not a program that can be run")
        self.command = [os.path.abspath(found), *command[1:]]


TARGET = Target()


class Way(NamedTuple):
    """How the server under test is started, and where."""

    mark: str
    """Appended to the name of a test."""
    launcher: list[str]
    """Put in front of the server's command line."""
    folder: str
    """Where servers put their data."""

    def choose(self):
        TARGET.launcher, TARGET.folder = self.launcher, self.folder


def with_io_uring(folder):
    return Way("", [], folder)


def without_io_uring(folder):
    refusing = os.path.join(os.path.dirname(os.path.abspath(__file__)), "without_io_uring.py")
    return Way(" without io_uring", [sys.executable, "-B", refusing], folder)


def slimio_only(test):
    """Marks tests of features that only SlimIO has."""
    if isinstance(test, type):
        setup = test.setUp

        def set_up(self):
            if TARGET.is_stock:
                self.skipTest("not for stock redis-server")
            setup(self)

        test.setUp = set_up
        return test

    def wrapper(self, *args, **kwargs):
        if TARGET.is_stock:
            self.skipTest("not for stock redis-server")
        return test(self, *args, **kwargs)

    wrapper.__name__ = test.__name__
    wrapper.__doc__ = test.__doc__
    return wrapper


def stock_is_installed():
    return shutil.which(TARGET.stock_command[0]) is not None


class TestCase(unittest.TestCase):
    """Like `unittest.TestCase`, but shows whole differences, however long."""

    maxDiff = None
