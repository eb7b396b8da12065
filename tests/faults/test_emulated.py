"""A volume on an emulated SSD with data placement is overwritten several times. The SSD's garbage
collection must copy nothing."""

import os
import random
import shutil
import tempfile

from harness.server import Server, refusal
from harness.target import TARGET, TestCase, slimio_only
from harness.tool import tool
from harness.wait import until

SIZE = 144 << 20
# The test writes at least `ROUNDS * SIZE` bytes to the drive.
ROUNDS = 4
KEYS = 250
VALUE_SIZE = 64 << 10
LIFETIMES = ("superblock", "log", "wal_snapshot", "snapshot")
# While the log is longer than this, the writer waits. Without this wait, on a busy machine, the
# client would fill the log faster than the server writes snapshots.
LOG_BYTES_MAX = 64 << 20
# The test waits at most this long for INFO to have new values of the drive's counters.
COUNTED_SECONDS = 30


@slimio_only
class Emulated(TestCase):
    seconds = 60

    def setUp(self):
        os.makedirs(TARGET.folder, exist_ok=True)
        self.folder = tempfile.mkdtemp(prefix="drive-", dir=TARGET.folder)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.name = f"emulated:{self.folder}/drive"
        self.random = random.Random(TARGET.seed)
        self.expected = {}

    def server(self):
        server = Server(
            volume=f"{self.name},size={SIZE},spare=15%,timing=none",
            appendfsync="always",
            log_segment_size="1mb",
            auto_aof_rewrite_min_size="8mb",
        )
        self.addCleanup(server.close)
        return server

    def test_an_export_beside_the_server_leaves_its_point_in_time(self):
        server = self.server()
        with server.client() as client:
            client("SET", "k", "old")
            client("SAVE")
            client("SET", "k", "new")
            saves = server.info()["snapshot_saves_complete"]
            code, said = tool("export", "--volume", self.name, "--server", f"127.0.0.1:{server.port}",
                              "--out", os.path.join(self.folder, "out.rdb"))
            self.assertEqual(code, 1, said)
            self.assertIn("stop the server", said)
            self.assertEqual(server.info()["snapshot_saves_complete"], saves)

    def write_over(self, server):
        """Sends random commands and starts snapshots, until the host has written `ROUNDS` times the
        drive's size."""
        snapshots = 0
        with server.client() as client:
            while self.written(server) < ROUNDS * SIZE:
                until(lambda: self.is_idle(server), what="the snapshots to end and the log to be short")
                snapshots += client.raw("BGSAVE")[0] == b"+"
                for _ in range(100):
                    self.step(client)
        self.assertGreater(snapshots, ROUNDS)
        until(lambda: self.is_idle(server), what="the end of the last snapshot")

    def is_idle(self, server):
        own = server.info("persistence")
        is_snapshotting = "1" in (own["rdb_bgsave_in_progress"], own["aof_rewrite_in_progress"])
        return not is_snapshotting and int(own["aof_current_size"]) < LOG_BYTES_MAX

    def step(self, client):
        key = f"key:{self.random.randrange(KEYS)}"
        if self.random.randrange(8) == 0:
            client("DEL", key)
            self.expected.pop(key, None)
        else:
            value = self.random.randbytes(self.random.randrange(1, 2 * VALUE_SIZE))
            client("SET", key, value)
            self.expected[key] = value

    def written(self, server):
        own = server.info("slimio")
        return sum(self.bytes_of(own, lifetime) for lifetime in LIFETIMES)

    def bytes_of(self, own, lifetime):
        return int(own[f"placement_{lifetime}"].rpartition("bytes=")[2])

    def counted(self, server):
        """Waits until the drive's counters in INFO are new enough to include `ROUNDS * SIZE` bytes
        from the host. Returns the fields of INFO."""

        def fresh():
            own = server.info("slimio")
            return int(own["device_host_bytes"]) >= ROUNDS * SIZE and own

        return until(fresh, COUNTED_SECONDS, "the server to read the drive's counters")

    def check_data(self, server):
        with server.client() as client:
            self.assertEqual(client("DBSIZE"), len(self.expected))
            for key, value in self.expected.items():
                self.assertEqual(client("GET", key), value, key)

    def test_with_placement_nothing_is_copied_and_a_kill_loses_nothing(self):
        server = self.server()
        self.write_over(server)
        own = self.counted(server)
        self.assertEqual(own["placement_count"], "8")
        for lifetime in LIFETIMES:
            self.assertGreater(self.bytes_of(own, lifetime), 0, lifetime)
        self.assertGreaterEqual(float(own["device_waf"]), 1)
        self.assertLessEqual(float(own["device_waf"]), 1.005, own)
        self.assertGreater(int(own["device_erased_bytes"]), SIZE)
        self.assertIn("(kill -9)", own["io_path_why_not_better"])
        server.restart()
        self.check_data(server)
        # The drive has started again with the server. It must still know where its data is, and its
        # counters must go on.
        after = self.counted(server)
        self.assertNotIn("is lost", after["io_path_why_not_better"])
        for field in ("device_host_bytes", "device_media_bytes", "device_erased_bytes"):
            self.assertGreaterEqual(int(after[field]), int(own[field]), field)
        self.assertLessEqual(float(after["device_waf"]), 1.005, after)
        self.assertEqual(server.terminate(), 0, server.said())
        self.check_by_name_alone()

    def check_by_name_alone(self):
        """Opens the drive by its name alone. This works because the drive's options are kept beside
        its file."""
        code, text = tool("inspect", "--volume", self.name)
        self.assertEqual(code, 0, text)
        self.assertIn(" reclaim units: ", text)
        self.assertNotIn("is lost", text)
        code, text = tool("verify", "--volume", self.name)
        self.assertEqual(code, 0, text)
        said = refusal(volume=f"{self.name},fdp=off")
        self.assertIn("made with fdp=on, not off", said)
        server = Server(volume=self.name)
        self.addCleanup(server.close)
        self.assertEqual(server.info("slimio")["placement_count"], "8")
        self.check_data(server)
