"""The wall clock jumps. Keys expire by this clock, as in Redis, but nothing else depends on it."""

import time
import unittest

from harness.faults import SpoiltServer, compiler
from harness.target import TestCase, slimio_only
from harness.wait import until

HOUR = 3600


@unittest.skipIf(compiler() is None, "there is no C compiler for the library that moves the clock")
class ClockJumps(TestCase):
    seconds = 8

    def setUp(self):
        self.server = SpoiltServer(timeout=600)
        self.addCleanup(self.server.close)
        self.client = self.server.client()
        self.addCleanup(self.client.close)

    def test_forward_expires_and_backward_prolongs(self):
        client = self.client
        client("SET", "k", "v", "EX", 2 * HOUR)
        client("SET", "short", "v", "EX", 100)
        client("SET", "forever", "v")
        self.server.spoil(clock_shift=HOUR)
        until(lambda: client("GET", "short") is None, what="expiry by the new clock")
        self.assertAlmostEqual(client("TTL", "k"), HOUR, delta=20)
        self.server.spoil(clock_shift=-HOUR)
        until(lambda: client("TTL", "k") > 2 * HOUR, what="the clock going back")
        self.assertAlmostEqual(client("TTL", "k"), 3 * HOUR, delta=20)
        self.assertEqual(client("GET", "k"), b"v")
        self.assertEqual(client("GET", "forever"), b"v")
        self.assertAlmostEqual(int(client("TIME")[0]), time.time() - HOUR, delta=20)

    def test_clients_are_not_disconnected(self):
        for shift in (HOUR, -HOUR, 10 * HOUR, 0):
            self.server.spoil(clock_shift=shift)
            # Meanwhile, the server does about five rounds of background work. In one of them, it would
            # disconnect the client if it measured idle time by the wall clock.
            time.sleep(0.5)
            self.assertEqual(self.client("PING"), b"PONG")

    @slimio_only
    def test_the_log_goes_on(self):
        client = self.client
        for number, shift in enumerate((0, HOUR, -HOUR, 0)):
            self.server.spoil(clock_shift=shift)
            client("SET", "k", number)
            # Under everysec, a timer makes writes durable, and WAITAOF only waits for that. So
            # WAITAOF reports no durable write if the timer has stopped.
            self.assertEqual(client("WAITAOF", 1, 0, 10_000), [1, 0])

    def test_data_survive_a_restart_with_another_clock(self):
        self.client("SET", "k", "v", "EX", 2 * HOUR)
        self.client("SET", "soon", "v", "EX", 100)
        self.server.kill()
        self.server.spoil(clock_shift=HOUR)
        self.server.start()
        with self.server.client() as client:
            self.assertEqual(client("GET", "k"), b"v")
            self.assertEqual(client("GET", "soon"), None)
