"""A server is killed at any point of its first start on a volume. The next start must complete the
volume."""

import os
import random
import shutil
import subprocess
import tempfile
import unittest

from harness.faults import compiler
from harness.kill_at import Killer
from harness.loop_device import LoopDevice, run, unmount
from harness.server import Server
from harness.target import TARGET, TestCase, slimio_only
from harness.tool import tool

# Flags for small volumes, because these tests make many volumes.
SMALL = {"log_segment_size": "1mb", "log_buffers": 4, "log_buffer_size": "64kb"}
TWICE_ROUNDS = 20
# More calls than a first start makes.
CALLS_MAX = 20_000
KEY_COUNT = 30


class Killed(TestCase):
    """The parts that the tests below share."""

    def setUp(self):
        os.makedirs(TARGET.folder, exist_ok=True)
        self.folder = tempfile.mkdtemp(prefix="killed-", dir=TARGET.folder)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.killer = Killer(self.folder)
        self.step = 1
        self.volume = os.path.join(self.folder, "above", "volume")
        os.makedirs(os.path.dirname(self.volume))

    def empty(self):
        shutil.rmtree(self.volume, ignore_errors=True)

    def each_call(self, is_killed_at, check):
        """Kills a process at the first call that `Killer` counts, a new process at the second call,
        and so on, each time on an empty volume. With a `step` above 1, only every `step`-th call is
        tried. Returns the number of calls that a process makes. With a `step` above 1, this number
        is too high by up to `step - 1`."""
        for number in range(1, CALLS_MAX, self.step):
            self.empty()
            with self.subTest(f"call {number}"):
                if not is_killed_at(number):
                    self.assertGreater(number, 20, "the process makes too few calls for this test")
                    return number - 1
                check()
        return self.fail("the process makes more than `CALLS_MAX` calls")

    def check_serves_beside(self, counts):
        """Like `check_serves`, but restores the volume afterwards."""
        os.makedirs(self.volume, exist_ok=True)
        kept = self.volume + "-kept"
        shutil.copytree(self.volume, kept)
        self.check_serves(counts)
        shutil.rmtree(self.volume)
        os.rename(kept, self.volume)

    def check_serves(self, counts=(0,), **flags):
        """Checks that a server starts, that its number of keys is in `counts`, and that a write
        survives a restart."""
        with Server(volume=self.volume, **SMALL, **flags) as server:
            with server.client() as client:
                self.assertIn(client("DBSIZE"), counts)
                self.assertEqual(client("SET", "k", "v"), b"OK")
            server.restart()
            with server.client() as client:
                self.assertEqual(client("GET", "k"), b"v")


@slimio_only
@unittest.skipIf(compiler() is None, "there is no C compiler for the program that kills servers")
class FirstStart(Killed):
    seconds = 130

    def killed(self, number, **flags):
        return self.killer.server(number, self.folder, volume=self.volume, **SMALL, **flags)

    def calls(self, **flags):
        return self.each_call(
            lambda number: self.killed(number, **flags), lambda: self.check_serves(**flags)
        )

    def test_at_each_call(self):
        print("killed at", self.calls(), "calls")

    def test_at_each_call_without_io_uring(self):
        if TARGET.is_without_io_uring:
            self.skipTest("in this run, all tests are without io_uring")
        print("killed at", self.calls(io_backend="plain"), "calls")

    def test_at_each_call_behind_a_kill(self):
        """The first start is killed while it makes the file of the log's buffers. The second start
        is killed at each of its calls in turn. The third start must cope with all that is left,
        including an unfinished file."""
        number = 1
        while not os.path.exists(os.path.join(self.volume, "buffers.new")):
            self.empty()
            self.assertTrue(self.killed(number), "the server never makes `buffers.new`")
            number += 1
        left = self.volume + "-left"
        shutil.copytree(self.volume, left)

        def is_killed_at(number):
            shutil.copytree(left, self.volume)
            return self.killed(number)

        print("killed at", self.each_call(is_killed_at, self.check_serves), "calls")

    def test_twice_at_drawn_calls(self):
        self.empty()
        last = 1
        while self.killed(last):
            self.empty()
            last *= 2
        draw = random.Random(TARGET.seed)
        for _ in range(TARGET.rounds or TWICE_ROUNDS):
            self.empty()
            first, second = draw.randrange(1, last), draw.randrange(1, last)
            with self.subTest(f"calls {first}, then {second}"):
                self.killed(first)
                self.killed(second)
                self.check_serves()


@slimio_only
@unittest.skipIf(compiler() is None, "there is no C compiler for the program that kills servers")
class Tools(Killed):
    """Tools make a volume by the same calls as a server, but the volume is larger, so that each
    round takes longer. A short run of the tests therefore kills at every fifth call only."""

    seconds = 100

    def setUp(self):
        super().setUp()
        self.step = 1 if TARGET.is_every_call else 5

    def dump(self):
        """Makes an RDB file with some keys, and returns its path."""
        path = os.path.join(self.folder, "dump.rdb")
        with Server(**SMALL) as server:
            self.fill(server)
            server.terminate()
            status, said = tool("export", "--volume", server.volume, "--out", path)
            self.assertEqual(status, 0, said)
        return path

    def fill(self, server):
        with server.client() as client:
            client.pipeline([["SET", f"key:{n}", n] for n in range(KEY_COUNT)])

    def test_format(self):
        command = ["format", "--volume", self.volume]

        def check():
            status, said = tool(*command)
            if status != 0:
                self.assertIn("there is one already", said)
            self.check_serves()

        print("killed at", self.each_call(lambda n: self.killer.tool(n, *command), check), "calls")

    def test_import(self):
        command = ["import", "--in", self.dump(), "--volume", self.volume]

        def check():
            self.check_serves_beside([0, KEY_COUNT])
            status, said = tool(*command)
            if status != 0:
                self.assertIn(f"holds {KEY_COUNT} keys", said)
            self.check_serves([KEY_COUNT])

        print("killed at", self.each_call(lambda n: self.killer.tool(n, *command), check), "calls")

    def test_a_volume_that_is_replaced(self):
        """After a kill, the volume must have all of its contents or none, even if nobody repeats
        the command."""
        with Server(volume=self.volume, **SMALL) as server:
            self.fill(server)
        original = self.volume + "-original"
        shutil.copytree(self.volume, original)
        command = ["format", "--force", "--volume", self.volume]

        def is_killed_at(number):
            shutil.copytree(original, self.volume)
            return self.killer.tool(number, *command)

        def check():
            self.check_serves_beside([0, KEY_COUNT])
            status, said = tool(*command)
            self.assertEqual(status, 0, said)
            self.check_serves()

        print("killed at", self.each_call(is_killed_at, check), "calls")


@slimio_only
@unittest.skipIf(compiler() is None, "there is no C compiler for the program that kills servers")
class PowerCut(Killed):
    """A first start is killed, and then the power is cut. A power cut loses everything that the
    kernel has not written back to the device, even names and lengths of files."""

    seconds = 60

    def setUp(self):
        super().setUp()
        self.step = 1 if TARGET.is_every_call else 6
        self.image = os.path.join(self.folder, "image")
        self.mount = os.path.join(self.folder, "mounted")
        self.volume = os.path.join(self.mount, "some", "where", "volume")
        os.makedirs(self.mount)
        if os.geteuid() != 0:
            self.skipTest("mounting a file system needs root")
        self.is_mounted = False
        self.addCleanup(self.unmount)
        self.pristine = os.path.join(self.folder, "pristine")
        try:
            with open(self.pristine, "wb") as file:
                file.truncate(64 << 20)
            run("mkfs.ext4", "-q", "-E", "nodiscard", self.pristine)
            self.mount_copy_of(self.pristine)
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f"no file system can be mounted: {getattr(error, 'stderr', error)}")

    def mount_copy_of(self, image):
        run("cp", "--sparse=always", image, self.image)
        # With a commit interval of 300 s, the kernel writes nothing back by itself. So the image
        # does not change while `cut_power` copies it.
        run("mount", "-o", "loop,commit=300", self.image, self.mount)
        self.is_mounted = True

    def unmount(self):
        if self.is_mounted:
            unmount(self.mount)
            self.is_mounted = False

    def empty(self):
        self.unmount()
        self.mount_copy_of(self.pristine)

    def cut_power(self):
        cut = os.path.join(self.folder, "cut")
        run("cp", "--sparse=always", self.image, cut)
        self.unmount()
        self.mount_copy_of(cut)

    def is_killed_at(self, number):
        return self.killer.server(number, self.folder, volume=self.volume, **SMALL)

    def test_behind_a_kill(self):
        def check():
            self.cut_power()
            self.check_serves()

        self.each_call(self.is_killed_at, check)

    def test_behind_the_start_behind_a_kill(self):
        def check():
            with Server(volume=self.volume, appendfsync="always", **SMALL) as server:
                with server.client() as client:
                    self.assertEqual(client("SET", "durable", "1"), b"OK")
            self.cut_power()
            self.check_serves([1])

        self.each_call(self.is_killed_at, check)


@slimio_only
@unittest.skipIf(compiler() is None, "there is no C compiler for the program that kills servers")
class Device(Killed):
    seconds = 60

    def setUp(self):
        super().setUp()
        loop = LoopDevice(self, os.path.join(self.folder, "memory"), 96 << 20, "128m")
        self.volume = loop.path

    def empty(self):
        run("blkdiscard", self.volume)

    def test_at_each_call(self):
        print(
            "killed at",
            self.each_call(
                lambda n: self.killer.server(n, self.folder, volume=self.volume, **SMALL),
                self.check_serves,
            ),
            "calls",
        )
