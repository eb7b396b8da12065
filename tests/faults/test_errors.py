"""Writes and flushes fail. The log must be latched: it takes no writes until a restart. A write that
could be lost must not be acknowledged."""

import errno
import unittest

from harness.faults import SpoiltServer, compiler
from harness.target import TestCase, slimio_only
from harness.wait import until

ATTEMPT_SECONDS = 10


@slimio_only
@unittest.skipIf(compiler() is None, "there is no C compiler for the library that makes writes fail")
class FailingDevice(TestCase):
    seconds = 15

    def server(self, **flags):
        # The preloaded library sees only calls through libc. Errors of io_uring are tested on the
        # simulated device.
        server = SpoiltServer(io_backend="plain", log_segment_size="1mb", **flags)
        self.addCleanup(server.close)
        return server

    def write_until_latched(self, server, acknowledged):
        """Writes until a write is refused or its connection is closed."""

        def attempt():
            try:
                with server.client(timeout=ATTEMPT_SECONDS) as client:
                    for _ in range(50):
                        number = len(acknowledged)
                        kind, text = client.raw("SET", f"key:{number}", number)
                        if kind == b"-":
                            self.assertTrue(text.startswith(b"MISCONF"), text)
                            return True
                        acknowledged.append(number)
            except ConnectionError:
                return True
            return False

        until(attempt, ATTEMPT_SECONDS, "the server to notice the failure")

    def check_latched(self, server, acknowledged):
        with server.client() as client:
            kind, text = client.raw("SET", "more", "x")
            self.assertEqual(kind, b"-")
            self.assertTrue(text.startswith(b"MISCONF"), text)
            self.assertEqual(client("GET", "key:0"), b"0")
            self.assertEqual(client("PING"), b"PONG")
        self.assertIn("latch", "\n".join(server.info("slimio")).lower())
        self.assertTrue(server.is_alive())
        # The fault has ended, but the log stays latched.
        server.spoil()
        with server.client() as client:
            self.assertEqual(client.raw("SET", "more", "x")[0], b"-")
        server.restart()
        with server.client() as client:
            for number in acknowledged:
                self.assertEqual(client("GET", f"key:{number}"), b"%d" % number)
            self.assertEqual(client("SET", "more", "x"), b"OK")

    def run_fault(self, policy, **fault):
        server = self.server(appendfsync=policy)
        acknowledged = []
        with server.client() as client:
            for number in range(10):
                client("SET", f"key:{number}", number)
                acknowledged.append(number)
            client("WAITAOF", 1, 0, 5000)
        server.spoil(**fault)
        self.write_until_latched(server, acknowledged)
        self.check_latched(server, acknowledged)

    def test_a_write_of_the_log(self):
        for policy in ("always", "everysec", "no"):
            for number in (errno.EIO, errno.ENOSPC):
                with self.subTest(f"{policy}, {errno.errorcode[number]}"):
                    self.run_fault(policy, write=number, path_end="/wal")

    def test_a_flush_of_the_log(self):
        # The fault also makes writes fail, because a durable write may include its flush. Then
        # there is no separate flush that could fail.
        for policy in ("always", "everysec"):
            with self.subTest(policy):
                self.run_fault(policy, write=errno.EIO, flush=errno.EIO, path_end="/wal")

    def test_the_superblock(self):
        server = self.server(appendfsync="everysec")
        acknowledged = []
        with server.client() as client:
            for number in range(10):
                client("SET", f"key:{number}", number)
                acknowledged.append(number)
        server.spoil(write=errno.EIO, flush=errno.EIO, path_end="/super")
        # The superblock is written only when the log takes its next segment, after some megabytes.
        with server.client(timeout=ATTEMPT_SECONDS) as client:
            for _ in range(400):
                try:
                    if client.raw("SET", "big", "x" * 100_000)[0] == b"-":
                        break
                except ConnectionError:
                    break
            else:
                self.fail("the server did not notice that it cannot write its superblock")
        self.check_latched(server, acknowledged)

    def test_a_superblock_that_cannot_be_written_at_start(self):
        server = self.server()
        with server.client() as client:
            client("SET", "k", "v")
        server.kill()
        server.spoil(write=errno.EIO, flush=errno.EIO, path_end="/super")
        server.spawn()
        server.process.wait(20)
        self.assertGreater(server.process.returncode, 0)
        self.assertIn("super", server.said())
        server.spoil()
        server.start()
        with server.client() as client:
            self.assertEqual(client("GET", "k"), b"v")
