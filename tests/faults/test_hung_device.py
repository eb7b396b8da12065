"""A device that hangs keeps those waiting who wait for it, and nobody else."""

from harness.held_device import HeldDevice
from harness.resp import encode
from harness.server import Server
from harness.target import TestCase, slimio_only
from harness.wait import until


def undurable_ms(server):
    return int(server.info("slimio")["log_oldest_undurable_ms"])


@slimio_only
class HungDevice(TestCase):
    def check(self, device, **flags):
        held = device.held
        server = Server(
            volume=device.volume,
            start=False,
            log_segment_size="1mb",
            appendfsync="always",
            **flags,
        )
        self.addCleanup(server.close)
        # Done first, because what it writes in a system call keeps it.
        self.addCleanup(held.let_go)
        server.preexec = held.enter
        server.start()
        with server.client() as writer, server.client() as other:
            for writers in ([writer], [writer, other]):
                for client in writers:
                    self.assertEqual(client("SET", "k", "before"), b"OK")
                held.wait_until_quiet()
                held.hold()
                for client in writers:
                    client.send(encode("SET", "k", "after"))
                # While there is nobody but the writers, the server may wait with them.
                with server.client() as operator:
                    self.assertIn(b"used_memory", operator("INFO"))
                    self.assertTrue(operator("MEMORY", "STATS"))
                    self.assertEqual(operator("GET", "absent"), None)
                until(lambda: undurable_ms(server) > 100, 20, "a write being held up")
                held.let_go()
                for client in writers:
                    self.assertEqual(client.read(), (b"+", b"OK"))
                self.assertEqual(writer("GET", "k"), b"after")

    def test_a_block_device_that_hangs_keeps_no_reader_waiting(self):
        self.check(HeldDevice(self))

    def test_a_file_system_that_hangs_keeps_no_reader_waiting(self):
        self.check(HeldDevice(self, "ext4"), log_size_max="64mb")
