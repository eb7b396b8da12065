"""A volume on a block device: a loop device in memory, which can run out of space."""

import random

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


@slimio_only
class SmallDevice(TestCase):
    """The log and the snapshots take extents from one pool, and none of them has a fixed share."""

    seconds = 30
    size = 128 << 20
    value_size = 100_000
    # Number of bytes that a snapshot would get if the log and each of the three slots had a quarter
    # of the space.
    quarter = (size - (64 << 20)) // 4

    def setUp(self):
        with Server(start=False) as server:
            mount = server.folder + "-memory"
        self.loop = LoopDevice(self, mount, size=self.size, memory_size="160m")

    def server(self, **flags):
        server = Server(volume=self.loop.path, **flags)
        self.addCleanup(server.close)
        return server

    def fill(self, client, count, first=0):
        """Sets values that can't be compressed, and that are different for each key."""
        for number in range(first, first + count):
            client("SET", f"key:{number}", self.value(number))

    def value(self, number):
        return random.Random(number).randbytes(self.value_size)

    def snapshot(self, server, client, command, field):
        """Takes a snapshot. While the server takes a snapshot for the log, it refuses the command,
        so the command is sent again until the server accepts it. Returns INFO at the end of the
        snapshot."""
        until(lambda: client.raw(command)[0] == b"+", 20, f"{command} being taken")

        def ended():
            now = server.info("persistence")
            is_running = now[f"{field}_in_progress"] != "0"
            return not is_running and now.get("aof_rewrite_scheduled") != "1" and now

        return until(ended, 20, f"the end of {command}")

    def test_a_data_set_larger_than_a_quarter(self):
        server = self.server(maxmemory="0")
        count = self.quarter * 4 // 3 // self.value_size
        with server.client() as client:
            self.fill(client, count)
            for _ in range(3):
                now = self.snapshot(server, client, "BGREWRITEAOF", "aof_rewrite")
                self.assertEqual(now["aof_last_bgrewrite_status"], "ok")
        own = server.info("slimio")
        self.assertGreater(int(own["volume_snapshot_bytes"]), self.quarter)
        server.restart()
        with server.client() as client:
            self.assertEqual(client("DBSIZE"), count)
            for number in range(0, count, 17):
                self.assertEqual(client("GET", f"key:{number}"), self.value(number))

    def test_a_point_in_time_that_does_not_fit_fails_alone(self):
        server = self.server(maxmemory="0")
        count = self.quarter * 4 // 3 // self.value_size
        with server.client() as client:
            self.fill(client, count)
            now = self.snapshot(server, client, "BGREWRITEAOF", "aof_rewrite")
            self.assertEqual(now["aof_last_bgrewrite_status"], "ok")
            now = self.snapshot(server, client, "BGSAVE", "rdb_bgsave")
            self.assertEqual(now["rdb_last_bgsave_status"], "err", (now, server.info("slimio")))
            own = server.info("slimio")
            self.assertIn("make room on the volume", own["snapshot_save_error"])
            # There is still room for the log, and for the snapshot that frees the log's space.
            self.fill(client, count // 2)
            now = self.snapshot(server, client, "BGREWRITEAOF", "aof_rewrite")
            self.assertEqual(now["aof_last_bgrewrite_status"], "ok")
            for number in range(count // 2, count):
                client("DEL", f"key:{number}")
            now = self.snapshot(server, client, "BGREWRITEAOF", "aof_rewrite")
            self.assertEqual(now["aof_last_bgrewrite_status"], "ok")
            now = self.snapshot(server, client, "BGSAVE", "rdb_bgsave")
            self.assertEqual(now["rdb_last_bgsave_status"], "ok", server.info("slimio"))
        server.restart()
        with server.client() as client:
            self.assertEqual(client("DBSIZE"), count // 2)

    def test_memory_is_limited_so_that_snapshots_fit(self):
        server = self.server()
        with server.client() as client:
            limit = int(server.info("memory")["maxmemory"])
            room = int(server.info("slimio")["volume_bytes"])
            self.assertEqual(limit, room // 4096 // 10 * 3 * 4096)
            count = 0
            while True:
                kind, text = client.raw("SET", f"key:{count}", self.value(count))
                if kind == b"-":
                    self.assertTrue(text.startswith(b"OOM"), text)
                    break
                count += 1
            for _ in range(10):
                count -= 1
                client("DEL", f"key:{count}")
            for number in range(3 * count):
                client("SET", f"key:{number % count}", self.value(number % count)[:-1])
            for _ in range(2):
                now = self.snapshot(server, client, "BGSAVE", "rdb_bgsave")
                self.assertEqual(now["rdb_last_bgsave_status"], "ok", server.info("slimio"))
                now = self.snapshot(server, client, "BGREWRITEAOF", "aof_rewrite")
                self.assertEqual(now["aof_last_bgrewrite_status"], "ok")
        server.restart()
        with server.client() as client:
            self.assertEqual(client("DBSIZE"), count)
