"""The CPU time of a request must not grow faster than the request's size, whatever the request
contains."""

import os
import socket

from harness.resp import encode
from harness.server import Server
from harness.target import TestCase, slimio_only

SMALL = [word for n in range(200_000) for word in (f"key:{n:0100}", "v")]
LARGE = [word for n in range(600) for word in (f"large:{n}", "x" * 33_000)]


@slimio_only
class CpuOfRequests(TestCase):
    seconds = 10

    def setUp(self):
        self.server = Server(appendonly="no")
        self.addCleanup(self.server.close)

    def cpu_seconds(self):
        with open(f"/proc/{self.server.process.pid}/stat") as file:
            fields = file.read().rpartition(") ")[2].split(" ")
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def cost(self, command, words, is_whole=True):
        """CPU seconds that the server takes for a request. If `is_whole` is false, the request's
        end is not sent."""
        request = encode(command, *words)
        with self.server.client() as client:
            before = self.cpu_seconds()
            client.socket.sendall(request if is_whole else request[:-10])
            if is_whole:
                self.assertEqual(client.read(), (b"+", b"OK"))
            else:
                client.socket.shutdown(socket.SHUT_WR)
                self.assertEqual(client.socket.recv(1), b"")
            return self.cpu_seconds() - before

    def test_many_small_arguments_and_large_ones_behind_them(self):
        apart = self.cost("MSET", SMALL) + self.cost("MSET", LARGE)
        for is_whole in (True, False):
            # MSET would take ten times as long if all small arguments were copied for each large
            # one.
            self.assertLess(self.cost("MSET", SMALL + LARGE, is_whole), 2 * apart + 0.3)

    def test_many_watched_keys(self):
        few, many = (self.cost_of_watching(SMALL[: 2 * count : 2]) for count in (10_000, 40_000))
        # WATCH would take sixteen times as long if each key were compared with all keys before it.
        self.assertLess(many, 8 * few + 0.2)

    def cost_of_watching(self, keys):
        """CPU seconds that the server takes while one client watches all `keys`. Each WATCH has 2000
        keys, because the server accepts at most 2048."""
        with self.server.client() as client:
            before = self.cpu_seconds()
            for at in range(0, len(keys), 2000):
                self.assertEqual(client("WATCH", *keys[at : at + 2000]), b"OK")
            return self.cpu_seconds() - before

    def test_patterns(self):
        """Tries costly patterns on one long key: patterns with many stars, with many characters in
        one `[…]`, or with many characters in all. Patterns that are too long are refused."""
        stars, class_, wild = "*a" * 30_000, "*[" + "b" * 30_000 + "]*", "*?" + "a" * 4000 + "*"
        with self.server.client() as client:
            client("SET", "a" * 60_000, "v")
            for pattern in (stars, class_, wild, "*" + "a" * 40_000 + "b*"):
                for request in (["KEYS", pattern], ["SCAN", 0, "MATCH", pattern]):
                    before = self.cpu_seconds()
                    client(*request)
                    # A request would take two seconds or more if every character were tried at
                    # every place.
                    self.assertLess(self.cpu_seconds() - before, 0.2, pattern[:10])
            for pattern in ("a" * 1_100_000, "*" + "?" * 5000 + "*"):
                for request in (["KEYS", pattern], ["SCAN", 0, "MATCH", pattern]):
                    self.assertIn(b"the pattern is too long", client.raw(*request)[1])
            self.assertEqual(client("KEYS", "a" * 60_000), [b"a" * 60_000])

    def test_many_long_keys_are_looked_at_in_steps(self):
        with self.server.client() as client:
            client.pipeline([["SET", f"{n}:" + "x" * 100_000, "v"] for n in range(1000)])
            self.assertEqual(client("KEYS", "*y*"), [])
            cursor, steps = b"0", 0
            while steps == 0 or cursor != b"0":
                cursor, found = client("SCAN", cursor, "COUNT", 10_000, "MATCH", "*y*")
                self.assertEqual(found, [])
                steps += 1
            # A step searches about a megabyte of keys.
            self.assertGreater(steps, 50)
