"""`slimio rollback`, and volumes that lack a file. The tests check the output, the changes to the
volume, and the data after the next start."""

import json
import os
import subprocess

from harness.server import Server, refusal
from harness.target import TARGET, TestCase, slimio_only
from harness.volume import flip_bit
from harness.wait import until

PATIENCE = 20
SECONDS_MAX = 60


def tool(*args):
    """Runs a tool of the server's own binary. Returns exit status, standard output and standard
    error."""
    line = [TARGET.command[0], *(str(arg) for arg in args)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    return done.returncode, done.stdout, done.stderr


@slimio_only
class Rollback(TestCase):
    seconds = 30

    def written(self):
        """Returns a stopped server. Its volume has an on-demand snapshot, a WAL-snapshot, and log
        records after both."""
        server = Server(appendfsync="always", log_segment_size="1mb")
        self.addCleanup(server.close)
        with server.client() as client:
            client("MSET", "k", "old", "kept", 1)
            client("SAVE")
            client("SET", "k", "new")
            client("BGREWRITEAOF")
            until(lambda: server.info()["snapshot_rewrites_complete"] == "1", PATIENCE, "the rewrite")
            client("SET", "later", 1)
        self.assertEqual(tool("rollback", "--volume", server.volume)[0], 1, "rollback must refuse a volume in use")
        self.assertEqual(server.terminate(), 0)
        return server

    def inspect(self, server):
        status, out, complaint = tool("inspect", "--json", "--volume", server.volume)
        self.assertEqual((status, complaint), (0, ""))
        return json.loads(out)

    def slot(self, server, kind):
        found = self.inspect(server)["snapshots"]
        return next(held for held in found if held["kind"] == kind)

    def values(self, server):
        with server.client() as client:
            return client("MGET", "k", "kept", "later")

    def test_it_shows_what_would_be_lost_and_goes_back_once(self):
        server = self.written()
        before = self.inspect(server)
        status, out, complaint = tool("rollback", "--volume", server.volume)
        self.assertEqual(status, 1)
        self.assertIn("back to: the on-demand snapshot in snapshot-a, 2 entries", out)
        self.assertIn("lost: the WAL-snapshot in snapshot-b, 2 entries", out)
        self.assertIn("lost: the log from LSN", out)
        self.assertIn("nothing was changed", complaint)
        self.assertEqual(self.inspect(server), before)

        status, out, complaint = tool("rollback", "--force", "--volume", server.volume)
        self.assertEqual((status, complaint), (0, ""))
        self.assertTrue(self.slot(server, "on-demand")["is_root"])
        self.assertEqual(len(self.inspect(server)["snapshots"]), 1)
        status, out, _ = tool("rollback", "--force", "--volume", server.volume)
        self.assertEqual(status, 0)
        self.assertIn("nothing to do", out)
        server.start()
        self.assertEqual(self.values(server), [b"old", b"1", None])
        with server.client() as client:
            client("SET", "later", 2)
        server.restart()
        self.assertEqual(self.values(server), [b"old", b"1", b"2"])

    def test_a_damaged_point_in_time_is_refused(self):
        server = self.written()
        flip_bit(os.path.join(server.volume, self.slot(server, "on-demand")["slot"]), 4096 + 100)
        status, _, complaint = tool("rollback", "--force", "--volume", server.volume)
        self.assertEqual(status, 1)
        self.assertIn("is damaged", complaint)
        server.start()
        self.assertEqual(self.values(server), [b"new", b"1", b"1"])

    def test_a_point_in_time_can_be_exported_whatever_has_become_of_the_log(self):
        def shorten(path):
            os.truncate(path, 4096)

        for name, damage in (("wal", shorten), ("wal", os.remove), ("buffers", os.remove), ("buffers", shorten)):
            with self.subTest(name=name, damage=damage.__name__):
                server = self.written()
                damage(os.path.join(server.volume, name))
                refusal(volume=server.volume)
                file = os.path.join(server.folder, "kept.rdb")
                status, _, complaint = tool("export", "--snapshot", "--volume", server.volume, "--out", file)
                self.assertEqual((status, complaint), (0, ""))
                volume = os.path.join(server.folder, "another")
                status, _, complaint = tool("import", "--in", file, "--volume", volume)
                self.assertEqual((status, complaint), (0, ""))
                with Server(volume=volume) as other:
                    self.assertEqual(self.values(other), [b"old", b"1", None])

    def test_without_a_point_in_time_there_is_no_way_back(self):
        server = Server()
        self.addCleanup(server.close)
        self.assertEqual(server.terminate(), 0)
        status, _, complaint = tool("rollback", "--force", "--volume", server.volume)
        self.assertEqual(status, 1)
        self.assertIn("the volume has no on-demand snapshot", complaint)

    def test_a_missing_slot_is_said_and_nothing_is_written_by_looking(self):
        for kind in ("wal", "on-demand", None):
            with self.subTest(kind):
                server = self.written()
                name = self.slot(server, kind)["slot"] if kind else "snapshot-c"
                path = os.path.join(server.volume, name)
                os.remove(path)
                what = f"the snapshot in {name} is damaged: its file is missing"
                self.assertEqual(self.inspect(server)["missing_slots"], [name])
                _, out, _ = tool("inspect", "--volume", server.volume)
                self.assertIn(what if kind else "reserve; its file is missing", out)
                status, _, complaint = tool("verify", "--volume", server.volume)
                self.assertEqual(status, 1 if kind else 0)
                self.assertIn(what if kind else "", complaint)
                self.assertFalse(os.path.exists(path), "the tools must not create the file")
                if kind == "wal":
                    self.assertIn(what, refusal(volume=server.volume))
                    self.assertFalse(os.path.exists(path), "a server that refuses must not create the file")
                    continue
                server.start()
                self.assertIn("is lost" if kind else "is created again", server.said())
                self.assertEqual(self.values(server), [b"new", b"1", b"1"])
                self.assertTrue(os.path.exists(path))

    def test_every_tool_names_a_later_format(self):
        server = self.written()
        path = os.path.join(server.volume, "super")
        with open(path, "r+b") as file:
            # There are four copies of the superblock. In each, the format version begins at byte 8.
            for copy in range(4):
                file.seek(copy * 16384 + 8)
                file.write((99).to_bytes(4, "little"))
            file.seek(0)
            before = file.read()
        rdb = os.path.join(server.folder, "dump.rdb")
        with open(rdb, "wb") as file:
            file.write(b"REDIS0010\xff" + bytes(8))
        volume = ["--volume", server.volume]
        lines = [
            ["rollback", *volume],
            ["rollback", "--force", *volume],
            ["verify", *volume],
            ["export", "--out", rdb + ".out", *volume],
            ["import", "--in", rdb, *volume],
        ]
        sentence = (
            "the volume has format version 99; this program reads 2, 5 and 6; use the later version of "
            "SlimIO that wrote the volume, or export the volume with that version, make a new "
            "volume with slimio format --force, and import the export"
        )
        for line in lines:
            with self.subTest(line[:2]):
                status, _, complaint = tool(*line)
                self.assertEqual(status, 1)
                self.assertIn(sentence, complaint)
        self.assertIn(sentence, refusal(volume=server.volume))
        status, out, _ = tool("inspect", *volume)
        self.assertEqual(status, 0)
        self.assertIn("format version 99", out)
        with open(path, "rb") as file:
            self.assertEqual(file.read(), before, "the superblock must not change")
