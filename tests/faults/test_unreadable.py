"""The log's mapped buffers are on a disk that is partly unreadable, or goes away. No signal may end
the server, the error must be a clear message, and no acknowledged write may be lost."""

import contextlib
import os

from harness.file_system import SIZE, mount_kind, run
from harness.loop_device import attach, unmount
from harness.server import Server, refusal
from harness.spoilt_image import SpoiltImage, place_of
from harness.target import TestCase, slimio_only
from harness.wait import until

MIB, PAGE = 1 << 20, 4096
# The largest value whose record is made in the log's buffers. Such a record needs a buffer that was
# not used before.
LARGE = "x" * MIB


def forget(path, start, end):
    """Drops a file's pages from the kernel's cache, except pages that a process has mapped."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def pieces(places):
    """Returns the ranges of bytes of the pages that begin at `places`. Merges adjacent pages."""
    found = []
    for place in places:
        if found and found[-1][1] == place:
            found[-1] = (found[-1][0], place + PAGE)
        else:
            found.append((place, place + PAGE))
    return found


class Unreadable:
    """`volume` is the value of the server's directive `volume`, `buffers` is the file or device
    with the log's buffers, and `spoil(start, end)` makes bytes of the buffers unreadable."""

    seconds = 60

    def server(self, **flags):
        server = Server(volume=self.volume, log_segment_size="8mb", **flags)
        self.addCleanup(server.close)
        return server

    def fill(self, server, count=50):
        with server.client() as client:
            for number in range(count):
                self.assertEqual(client("SET", f"key:{number}", f"value:{number}"), b"OK")

    def check(self, server, count=50):
        with server.client() as client:
            for number in range(count):
                self.assertEqual(client("GET", f"key:{number}"), b"value:%d" % number)

    def test_a_hole_at_a_start(self):
        server = self.server()
        self.fill(server)
        server.kill()
        with self.nothing_cached():
            self.spoil(8 * MIB, 8 * MIB + PAGE)
        said = refusal(volume=self.volume)
        self.assertRegex(said, "reading .*Input/output error")
        self.image.spoil()
        with self.nothing_cached():
            pass
        server.start()
        self.check(server)
        self.assertEqual(server.info()["log_buffers"], "mapped")

    def test_a_hole_under_a_server(self):
        for policy in ("everysec", "always"):
            server = self.server(appendfsync=policy)
            self.fill(server)
            forget(self.buffers, self.start + MIB, self.start + 16 * MIB)
            self.spoil(MIB, 16 * MIB)
            with server.client() as client:
                self.assertEqual(client("SET", policy, LARGE), b"OK")
            self.assertEqual(server.info()["log_buffers"], "private", server.said())
            self.fill(server)
            server.kill()
            self.image.spoil()
            server.start()
            self.check(server)
            with server.client() as client:
                self.assertEqual(client("STRLEN", policy), len(LARGE))
            self.assertEqual(server.info()["log_buffers"], "mapped")
            server.close()

    def test_the_disk_goes_away(self):
        server = self.server()
        self.fill(server)
        forget(self.buffers, self.start + MIB, self.start + 16 * MIB)
        self.image.take_away()
        self.ends_in_a_sentence(server)

    def ends_in_a_sentence(self, server):
        """The server's disk has stopped working. Checks that the server latches its log, keeps its
        data in memory, and is ended by no signal."""

        def noticed():
            try:
                with server.client(timeout=10) as client:
                    for value in (LARGE, "small"):
                        kind, text = client.raw("SET", "key", value)
                        self.assertTrue(kind == b"+" or text.startswith(b"MISCONF"), text)
            except ConnectionError:
                self.assertTrue(server.is_alive(), server.said()[-2000:])
            return server.info()["log_latched"] == "1"

        until(noticed, 30, "the server to notice that its disk fails")
        self.check(server)
        self.assertGreaterEqual(server.terminate(), 0, "a signal ended the server")


class Directory(Unreadable):
    start = 0

    def setUp(self):
        with Server(start=False) as server:
            self.mount = server.folder + "-mount"
        self.image = SpoiltImage(self, self.mount + ".image", SIZE)
        os.makedirs(self.mount)
        self.addCleanup(os.rmdir, self.mount)
        self.device = attach(self, self.image.path)
        mount_kind(self, self.kind, self.mount, self.device)
        self.volume = os.path.join(self.mount, "volume")
        self.buffers = os.path.join(self.volume, "buffers")

    def spoil(self, start, end):
        pages = range(start, end, PAGE)
        places = [place_of(self.buffers, at) for at in pages]
        self.image.spoil(*pieces(places))

    @contextlib.contextmanager
    def nothing_cached(self):
        """When the `with` block ends, unmounts the file system and mounts it again. This drops the
        kernel's cache of the file system."""
        yield
        unmount(self.mount)
        run("mount", self.device, self.mount)


@slimio_only
class OnExt4(Directory, TestCase):
    kind = "ext4"


@slimio_only
class OnXfs(Directory, TestCase):
    kind = "xfs"


@slimio_only
class OnDevice(Unreadable, TestCase):
    start = MIB

    def setUp(self):
        with Server(start=False) as server:
            path = server.folder + "-image"
        self.image = SpoiltImage(self, path, 256 * MIB)
        self.volume = self.buffers = attach(self, self.image.path)

    def spoil(self, start, end):
        self.image.spoil((self.start + start, self.start + end))

    def test_the_device_shrinks(self):
        """The device becomes smaller, as a logical volume may. Then the mapped range reaches
        beyond the device's end."""
        server = self.server()
        self.fill(server)
        self.image.shrink(self.start + MIB // 4)
        run("losetup", "--set-capacity", self.volume)
        self.ends_in_a_sentence(server)

    @contextlib.contextmanager
    def nothing_cached(self):
        yield
        # The kernel drops a device's cache when no process has the device open any more. But
        # another process may still have it open, so the test drops the pages itself.
        forget(self.volume, 0, 256 * MIB)
