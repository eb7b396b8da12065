"""Something that a start needs is missing. The server must say truthfully what is missing, and what
to do about it."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import tempfile

from harness.loop_device import run, unmount
from harness.server import START_SECONDS, Server, StartError
from harness.target import TARGET, TestCase, slimio_only
from harness.tool import tool
from harness.wait import until

SMALL = {"log_segment_size": "1mb", "log_buffers": 4, "log_buffer_size": "64kb", "maxclients": 10}
# More descriptors than a server and its clients need, so a start must succeed before the test
# reaches this number.
DESCRIPTORS_MAX = 80


@slimio_only
class Remedies(TestCase):
    seconds = 20

    def setUp(self):
        os.makedirs(TARGET.folder, exist_ok=True)
        self.folder = tempfile.mkdtemp(prefix="lacking-", dir=TARGET.folder)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.volume = os.path.join(self.folder, "volume")

    def refusal(self, preexec=None, **flags):
        """Starts a server. Returns the last line of its output if it refuses, or None if it
        serves."""
        server = Server(start=False, volume=self.volume, **(SMALL | flags))
        server.preexec = preexec
        with server:
            server.take_port()
            server.spawn()
            try:
                # Without spare descriptors no client can connect. So the line "Ready to accept",
                # which the server prints just before it serves, counts as well.
                ready = lambda: "Ready to accept" in server.said() or server.is_serving()
                until(ready, START_SECONDS, "the server to serve or to refuse")
                return None
            except StartError:
                self.assertEqual(server.process.returncode, 1, server.said())
                self.assertNotIn("panicked", server.said())
                return server.said().splitlines()[-1]

    def check_said(self, said, *words):
        for word in ("slimio: cannot", *words):
            self.assertIn(word, said)
        self.assertNotIn("nothing else uses it", said)
        self.assertNotIn("right to", said)

    def check_serves(self):
        self.assertIsNone(self.refusal())

    def test_too_many_open_files(self):
        """Tries more and more descriptors until a server starts. At first there is no volume. Later
        tries find the volume of an earlier try."""
        if TARGET.is_without_io_uring:
            self.skipTest("the program that starts the server without io_uring needs descriptors itself")
        for backend in ("auto", "plain"):
            refused = 0
            for count in range(4, DESCRIPTORS_MAX):
                with self.subTest(f"{count} descriptors, {backend}"):
                    limit = (count, count)
                    said = self.refusal(
                        lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit),
                        io_backend=backend,
                    )
                    if said is None:
                        break
                    refused += 1
                    self.check_said(said, "open files", "ulimit -n", "LimitNOFILE")
            else:
                self.fail("no start succeeded with fewer than `DESCRIPTORS_MAX` descriptors")
            self.assertGreater(refused, 5)
            shutil.rmtree(self.volume)

    def test_too_long_files(self):
        def limit(size):
            # At the limit, the kernel also sends a signal, which kills the process unless the
            # signal is ignored.
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        # The first size is too small for the superblock. Each other size is too small for the log
        # or for its buffers.
        for size in (32 << 10, 64 << 10, 128 << 10, (1 << 20) - 1):
            with self.subTest(size):
                said = self.refusal(lambda: limit(size))
                self.check_said(said, self.volume, "longer", "ulimit -f", "LimitFSIZE")
        self.check_serves()
        said = self.refusal(lambda: limit(128 << 10), log_buffers=8)
        self.check_said(said, "buffers", "longer", "ulimit -f")
        self.check_serves()

    @contextlib.contextmanager
    def mounted(self, *options):
        """Mounts a file system or a folder at the volume's path. Unmounts it at the end."""
        if os.geteuid() != 0:
            self.skipTest("mounting needs root")
        os.makedirs(self.volume, exist_ok=True)
        try:
            run("mount", *options, self.volume)
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f"the mount failed: {getattr(error, 'stderr', error)}")
        try:
            yield
        finally:
            unmount(self.volume)

    def test_no_room_for_a_new_volume(self):
        """Makes the file system larger and larger. Once the file system is large enough, a server
        must start in the same directory."""
        with self.mounted("-t", "tmpfs", "-o", "size=4k", "slimio-test"):
            refused = 0
            for pages in range(1, 2000):
                run("mount", "-o", f"remount,size={4 * pages ** 2}k", self.volume)
                with self.subTest(f"{pages ** 2} pages"):
                    said = self.refusal()
                    if said is None:
                        break
                    refused += 1
                    self.check_said(said, self.volume, "no space left", "make room")
            self.assertGreater(refused, 5)

    def test_no_room_for_names(self):
        with self.mounted("-t", "tmpfs", "-o", "nr_inodes=4", "slimio-test"):
            self.check_said(self.refusal(), self.volume, "no space left", "df -i")

    def test_a_file_system_that_is_read_only(self):
        words = ["Read-only", "mount the file system for writing"]
        here = os.path.join(self.folder, "here")
        os.makedirs(here)
        with self.mounted("-o", "bind,ro", here):
            self.check_said(self.refusal(), self.volume, *words)
            status, said = tool("format", "--volume", os.path.join(self.volume, "below"))
            self.assertEqual(status, 1)
            self.check_said(said, self.volume, *words)
        self.check_serves()
        with self.mounted("-o", "bind,ro", self.volume):
            self.check_said(self.refusal(), self.volume, *words)
            for verb in ("inspect", "verify"):
                status, said = tool(verb, "--volume", self.volume)
                self.assertEqual(status, 1)
                self.check_said(said, self.volume, *words)
        self.check_serves()

    def test_what_others_own(self):
        """If permissions are the cause, the error must say so."""
        if os.geteuid() != 0:
            self.skipTest("running as another user needs root")
        os.makedirs(self.volume)
        os.chmod(self.volume, 0o700)
        nobody = 65534
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        os.chmod(folder, 0o755)
        program = shutil.copy(TARGET.command[0], folder)
        place = os.path.join(folder, "volume")
        os.makedirs(place, mode=0o700)
        line = [program, "format", "--volume", place]
        done = subprocess.run(
            line, capture_output=True, text=True, user=nobody, group=nobody, cwd=folder, check=False
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("Permission denied", done.stderr)
        self.assertIn("give this user", done.stderr)
