"""A volume on a block device: a loop device on memory, whose room can run out beneath it."""

from harness.loop_device import LoopDevice, run
from harness.server import Server, refusal
from harness.target import TestCase, slimio_only
from harness.wait import until


@slimio_only
class BlockDevice(TestCase):
    seconds = 15

    def setUp(self):
        with Server(start=False) as server:
            mount = server.folder + "-memory"
        self.loop = LoopDevice(self, mount, size=256 << 20, memory_size="96m")
        self.device = self.loop.path

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
        self.loop.take_memory_away()

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
