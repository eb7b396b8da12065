"""A device that hangs must hold up only the clients that wait for the device."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from harness.held_device import HeldDevice
from harness.resp import encode
from harness.server import Server
from harness.target import TestCase, slimio_only
from harness.wait import until


def undurable_ms(server):
    return int(server.info("slimio")["log_oldest_undurable_ms"])


@slimio_only
class HungDevice(TestCase):
    def serve(self, device, **flags):
        held = device.held
        server = Server(
            volume=device.volume,
            start=False,
            log_segment_size="1mb",
            appendfsync="always",
            **flags,
        )
        self.addCleanup(server.close)
        # This cleanup runs first, because a write in a system call keeps the server from ending.
        self.addCleanup(held.let_go)
        server.preexec = held.enter
        server.start()
        return server

    def check(self, device, **flags):
        held, server = device.held, self.serve(device, **flags)
        with server.client() as writer, server.client() as other:
            for writers in ([writer], [writer, other]):
                for client in writers:
                    self.assertEqual(client("SET", "k", "before"), b"OK")
                held.wait_until_quiet()
                held.hold()
                for client in writers:
                    client.send(encode("SET", "k", "after"))
                # While there are only writers, the server itself may block on the device. But a
                # client that connects now must be served.
                with server.client() as operator:
                    self.assertIn(b"used_memory", operator("INFO"))
                    self.assertTrue(operator("MEMORY", "STATS"))
                    self.assertEqual(operator("GET", "absent"), None)
                until(lambda: undurable_ms(server) > 100, 20, "the device to hold up a write")
                held.let_go()
                for client in writers:
                    self.assertEqual(client.read(), (b"+", b"OK"))
                self.assertEqual(writer("GET", "k"), b"after")

    def test_a_block_device_that_hangs_keeps_no_reader_waiting(self):
        self.check(HeldDevice(self))

    def test_a_file_system_that_hangs_keeps_no_reader_waiting(self):
        self.check(HeldDevice(self, "ext4"), log_size_max="64mb")

    def check_who_reads_and_writes(self, device, **flags):
        """A client reads and writes in turn, so that the device begins to hang between quick
        writes. The server uses plain system calls, and such a call could block the server."""
        held, server = device.held, self.serve(device, io_backend="plain", **flags)
        is_over = threading.Event()

        def read_and_write():
            with server.client() as client:
                while not is_over.is_set():
                    client("GET", "k")
                    self.assertEqual(client("SET", "k", "v"), b"OK")

        with ThreadPoolExecutor(1) as pool:
            client = pool.submit(read_and_write)
            try:
                until(lambda: int(server.info("stats")["total_commands_processed"]) > 200)
                held.hold()
                # The test does not ask the server whether the device hangs. That would take one
                # more client, and then the server would not block.
                time.sleep(0.3)
                with server.client() as operator:
                    self.assertIn(b"used_memory", operator("INFO"))
            finally:
                is_over.set()
                held.let_go()
            client.result(20)

    def test_a_block_device_that_hangs_while_one_reads_and_writes(self):
        self.check_who_reads_and_writes(HeldDevice(self))

    def test_a_file_system_that_hangs_while_one_reads_and_writes(self):
        self.check_who_reads_and_writes(HeldDevice(self, "ext4"), log_size_max="64mb")
