"""A volume on a block device: a loop device on memory, whose room can run out beneath it."""

import os
import subprocess

from harness.server import Server, refusal
from harness.target import TestCase, slimio_only
from harness.wait import until

DEVICE_SIZE = 256 << 20
MEMORY_SIZE = "96m"


def run(*command):
    out = subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return out.stdout.decode().strip()


@slimio_only
class BlockDevice(TestCase):
    seconds = 15

    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("a loop device needs root")
        with Server(start=False) as server:
            self.mount = server.folder + "-memory"
        os.makedirs(self.mount)
        self.addCleanup(os.rmdir, self.mount)
        self.image = os.path.join(self.mount, "image")
        try:
            run("mount", "-t", "tmpfs", "-o", f"size={MEMORY_SIZE}", "slimio-test", self.mount)
            self.addCleanup(run, "umount", "-l", self.mount)
            with open(self.image, "wb") as file:
                file.truncate(DEVICE_SIZE)
            self.device = run("losetup", "--find", "--show", self.image)
            self.addCleanup(run, "losetup", "--detach", self.device)
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f"no loop device can be made here: {getattr(error, 'stderr', error)}")

    def server(self, **flags):
        server = Server(volume=self.device, log_segment_size="1mb", **flags)
        self.addCleanup(server.close)
        return server

    def test_kill_and_restart(self):
        for policy in ("always", "everysec"):
            server = self.server(appendfsync=policy)
            with server.client() as client:
                count = client("INCR", "lives")
                client.pipeline([["SET", f"{policy}:{n}", n] for n in range(500)])
            server.restart()
            with server.client() as client:
                self.assertEqual(client("GET", "lives"), b"%d" % count)
                self.assertEqual(client("GET", f"{policy}:499"), b"499")
            server.close()

    def test_a_device_that_holds_something_else(self):
        run("mkfs.ext4", "-q", self.device)
        said = refusal(volume=self.device)
        self.assertIn(self.device, said)
        self.assertIn("ext4", said.lower())
        run("e2fsck", "-fn", self.device)

    def test_in_use(self):
        self.server()
        said = refusal(volume=self.device)
        self.assertIn("in use", said)

    def test_an_error_of_the_device_latches(self):
        server = self.server(appendfsync="always")
        acknowledged = 0
        with server.client() as client:
            for number in range(50):
                client("SET", f"key:{number}", number)
        self.take_memory_away()

        def noticed():
            nonlocal acknowledged
            try:
                with server.client(timeout=10) as client:
                    for _ in range(20):
                        kind, text = client.raw("SET", "big", "x" * 100_000)
                        if kind == b"-":
                            self.assertTrue(text.startswith(b"MISCONF"), text)
                            return True
                        acknowledged += 1
            except ConnectionError:
                return True
            return False

        until(noticed, 30, "the error of the device being noticed")
        with server.client() as client:
            self.assertEqual(client.raw("SET", "more", "x")[0], b"-")
            self.assertEqual(client("GET", "key:7"), b"7")
        self.assertIn("latch", "\n".join(server.info("slimio")).lower())

    def take_memory_away(self):
        """Nothing is stored behind the device any more, and there is no memory to store it again.

        Blocks written from now on get an I/O error. What was there reads as zeros.
        """
        run("fallocate", "--punch-hole", "--offset", "0", "--length", str(DEVICE_SIZE), self.image)
        with open(os.path.join(self.mount, "ballast"), "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                pass
