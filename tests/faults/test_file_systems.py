"""Tests a server on ext4, XFS and btrfs. The file system becomes full, or the volume's files are
copied by reflink, or the size of files is limited. No signal may end the server, nothing may hang,
errors must be clear messages, and no acknowledged write may be lost."""

import errno
import os
import resource

from harness.file_system import SmallFileSystem
from harness.loop_device import run
from harness.server import Server, StartError
from harness.target import TestCase, slimio_only
from harness.tool import tool
from harness.wait import until

VALUE = "x" * 3000
TIMEOUT = 30


class Writer:
    """Writes values, and remembers the acknowledged ones."""

    def __init__(self, test):
        self.test, self.count, self.acknowledged = test, 0, {}

    def write(self, server, count, after=lambda: None):
        """Writes `count` values, and returns whether all were acknowledged. Calls `after` after
        every tenth write."""
        try:
            with server.client(timeout=TIMEOUT) as client:
                for number in range(count):
                    key, value = f"key:{self.count % 40}", f"{self.count}:{VALUE}"
                    self.count += 1
                    kind, text = client.raw("SET", key, value)
                    if kind == b"-":
                        self.test.assertTrue(text.startswith(b"MISCONF"), text)
                        return False
                    self.acknowledged[key] = value.encode()
                    if number % 10 == 9:
                        after()
        except ConnectionError:
            # Whether this write took effect is unknown. The server must still be alive, and must
            # say that its log is latched.
            self.acknowledged.pop(key, None)
            self.test.assertTrue(server.is_alive(), ended(server))
            self.test.assertEqual(server.info()["log_latched"], "1")
            return False
        return True

    def check(self, server):
        with server.client(timeout=TIMEOUT) as client:
            for key, value in self.acknowledged.items():
                found = client("GET", key)
                self.test.assertEqual(found and found[:20], value[:20], key)


def ended(server):
    return f"the server has ended with {server.process.returncode}: {server.said()[-2000:]}"


class OnFileSystem:
    """The tests that run on each kind of file system."""

    seconds = 60
    policy = "everysec"

    def setUp(self):
        with Server(start=False) as server:
            self.fs = SmallFileSystem(self, self.kind, server.folder + "-mount")
        self.volume = self.fs.make_folder("volume")
        self.writer = Writer(self)

    def server(self, **flags):
        flags = {"log_segment_size": "1mb", "appendfsync": self.policy} | flags
        server = Server(volume=self.volume, **flags)
        # This cleanup ends the server before the volume's file system is unmounted.
        self.addCleanup(server.close)
        return server

    def killed_and_back(self, server):
        """Kills the server, and tries to start it again on the full disk. Returns whether it has
        started."""
        server.kill()
        try:
            server.start()
        except StartError as error:
            self.assertNotIn("exit status -", str(error), "a signal ended the server")
            self.assertRegex(str(error), "space|room")
            return False
        self.writer.check(server)
        return True

    def run_full(self, server):
        """Fills the disk, writes, and kills the server several times. Then makes room. After that,
        writes must succeed."""
        self.fs.fill()
        self.writer.write(server, 200, self.fs.write_back)
        self.assertTrue(server.is_alive(), ended(server))
        self.writer.check(server) if server.info()["log_latched"] == "0" else None
        for _ in range(2):
            if self.killed_and_back(server):
                # Dirty pages are written back, so that the next store to a mapped page needs room
                # on the full file system.
                self.fs.write_back()
                self.writer.write(server, 5)
                self.assertTrue(server.is_alive(), ended(server))
        self.fs.make_room()
        server.restart()
        self.writer.check(server)
        until(lambda: self.writer.write(server, 1), what="a write to succeed after room was made")
        server.restart()
        self.writer.check(server)

    def test_full_while_it_serves(self):
        server = self.server()
        self.assertTrue(self.writer.write(server, 100, self.fs.write_back))
        self.run_full(server)

    def test_a_limit_on_the_size_of_files(self):
        size = 24 << 20
        server = Server(volume=self.volume, start=False, log_segment_size="1mb", appendfsync=self.policy)
        self.addCleanup(server.close)
        server.preexec = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        server.start()
        for _ in range(60):
            if not self.writer.write(server, 300):
                break
        self.assertTrue(server.is_alive(), ended(server))
        self.writer.check(server)
        server.restart()
        self.writer.check(server)


class OnReflinks(OnFileSystem):
    def test_copied_while_it_serves_then_full(self):
        server = self.server()
        self.assertTrue(self.writer.write(server, 100, self.fs.write_back))
        self.fs.copy(self.volume, "copy")
        self.run_full(server)

    def test_copied_then_full_before_a_start(self):
        server = self.server()
        self.assertTrue(self.writer.write(server, 100, self.fs.write_back))
        server.kill()
        self.fs.copy(self.volume, "copy")
        self.fs.fill()
        if self.killed_and_back(server):
            self.writer.write(server, 5)
        self.fs.make_room()
        server.restart()
        self.writer.check(server)


@slimio_only
class OnExt4(OnFileSystem, TestCase):
    kind = "ext4"


@slimio_only
class OnXfs(OnReflinks, TestCase):
    kind = "xfs"

    def test_the_buffers_alone_are_copied_then_full(self):
        """The log must go on without its mapped buffers. From then on, a record is acknowledged
        only when it is written to the log."""
        server = self.server()
        self.assertTrue(self.writer.write(server, 100, self.fs.write_back))
        self.fs.copy(os.path.join(self.volume, "buffers"), "copy")
        self.fs.fill()
        self.assertTrue(self.writer.write(server, 100, self.fs.write_back), server.said())
        self.assertEqual(server.info()["log_buffers"], "private")
        self.assertIn("could not provide a page of the log's mapped buffers", server.said())
        for _ in range(2):
            server.kill()
            # Fills the disk again. At the kill or later, the kernel may have freed space that it
            # had kept for the server.
            self.fs.write_back()
            self.fs.fill()
            server.start()
            self.writer.check(server)
            self.assertTrue(self.writer.write(server, 20, self.fs.write_back), server.said())
            self.assertEqual(server.info()["log_buffers"], "private", "mapped buffers need room, but the disk is full")
            self.assertIn("no space", server.info()["io_path_why_not_better"])
        self.fs.make_room()
        os.remove(os.path.join(self.fs.mount, "copy"))
        server.restart()
        self.writer.check(server)
        self.assertEqual(server.info()["log_buffers"], "mapped")

    def test_buffers_that_are_shared_are_made_anew(self):
        server = self.server()
        self.assertTrue(self.writer.write(server, 50, self.fs.write_back))
        server.kill()
        before = os.stat(os.path.join(self.volume, "buffers")).st_ino
        self.fs.copy(self.volume, "copy")
        server.start()
        self.writer.check(server)
        self.assertNotEqual(os.stat(os.path.join(self.volume, "buffers")).st_ino, before)
        self.assertEqual(server.info()["log_buffers"], "mapped")


@slimio_only
class OnBtrfs(OnReflinks, TestCase):
    kind = "btrfs"

    def test_it_says_that_buffers_are_private(self):
        info = self.server().info()
        self.assertEqual(info["log_buffers"], "private")
        self.assertIn("when its record is written", info["io_path_why_not_better"])

    def test_a_quota_that_is_used_up(self):
        """At the limit of a quota, btrfs refuses even overwrites, so no server can start. The
        tools can still inspect and verify the volume. Once the quota is raised, a server starts
        with all data."""
        run("btrfs", "quota", "enable", self.fs.mount)
        server = self.server()
        self.assertTrue(self.writer.write(server, 20))
        run("btrfs", "qgroup", "limit", "24M", self.volume)
        ballast = os.path.join(self.volume, "ballast")
        with self.assertRaises(OSError) as raised, open(ballast, "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        self.assertEqual(raised.exception.errno, errno.EDQUOT)
        server.kill()
        with self.assertRaises(StartError) as refused:
            server.start()
        self.assertRegex(str(refused.exception), "writing .*no space left; make room")
        for name in ("inspect", "verify"):
            status, said = tool(name, "--volume", self.volume)
            self.assertEqual(status, 0, said)
        run("btrfs", "qgroup", "limit", "none", self.volume)
        server.start()
        self.writer.check(server)
