"""Runs the unmodified program redis-benchmark against the server."""

import csv
import io
import subprocess

from harness.server import Server
from harness.target import TestCase

TESTS = "ping_inline,ping_mbulk,set,get,incr,mset"


class RedisBenchmark(TestCase):
    seconds = 20

    def run_benchmark(self, server, *args):
        out = subprocess.run(
            ["redis-benchmark", "-p", str(server.port), "--csv", "-t", TESTS, *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=200,
            check=False,
        )
        self.assertEqual(out.returncode, 0, out.stderr)
        rows = list(csv.DictReader(io.StringIO(out.stdout.decode())))
        self.assertEqual(len(rows), 6, out.stdout)
        for row in rows:
            self.assertGreater(float(row["rps"]), 0, row)

    def test_one_request_at_a_time(self):
        with Server() as server:
            self.run_benchmark(server, "-n", "5000", "-c", "50")
            self.assertEqual(server.info("keyspace").get("db0", "").split(",")[0], "keys=2")

    def test_pipelined_random_keys_and_large_values(self):
        with Server() as server:
            self.run_benchmark(server, "-n", "10000", "-P", "16", "-r", "1000")
            self.run_benchmark(server, "-n", "2000", "-d", "65536", "-r", "10")

    def test_each_policy(self):
        for policy in ("always", "everysec", "no"):
            with self.subTest(policy), Server(appendfsync=policy) as server:
                self.run_benchmark(server, "-n", "2000", "-P", "4")

    def test_over_a_unix_socket_with_a_password(self):
        with Server(unixsocket="u.sock", requirepass="pw") as server:
            path = f"{server.folder}/u.sock" if not server.is_stock else f"{server.volume}/u.sock"
            self.run_benchmark(server, "-s", path, "-a", "pw", "-n", "2000")
