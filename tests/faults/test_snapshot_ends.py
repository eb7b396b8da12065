"""Snapshots end early, or are damaged on the volume. The tests check the remaining data and the
errors."""

import errno
import json
import os
import random
import unittest

from harness.faults import SpoiltServer, compiler
from harness.resp import encode
from harness.server import Server, refusal
from harness.target import TestCase, slimio_only
from harness.tool import tool
from harness.volume import flip_bit
from harness.wait import until

PATIENCE = 20
KEY_COUNT = 3000
BLOCK = 4096


def fill(client):
    client.pipeline([["SET", f"k:{number}", f"value {number}" * 20] for number in range(KEY_COUNT)])


def contents(client):
    keys = sorted(client("KEYS", "*"))
    return dict(zip(keys, client("MGET", *keys))) if keys else {}


def wait_until_over(server):
    def is_over():
        info = server.info("persistence")
        names = ("rdb_bgsave_in_progress", "aof_rewrite_in_progress", "aof_rewrite_scheduled")
        return all(info[name] == "0" for name in names)

    until(is_over, PATIENCE, "the end of the snapshot")


@slimio_only
class Ends(TestCase):
    seconds = 12

    def server(self, **flags):
        server = Server(log_segment_size="1mb", **flags)
        self.addCleanup(server.close)
        return server

    def test_a_log_that_goes_on_at_once_promises_again(self):
        for policy in ("always", "everysec"):
            server = self.server(appendfsync=policy, save="")
            turns = [["CONFIG", "SET", "appendonly", word] for word in ("no", "yes")]
            with self.subTest(policy), server.client() as client:
                for number in range(30):
                    client.pipeline(turns)
                    # WAITAOF waits until the snapshot of the new log is adopted.
                    self.assertEqual(client("WAITAOF", 1, 0, 0), [1, 0], number)
                    client.pipeline([*turns, ["BGREWRITEAOF"], ["SET", "k", number]])
                    until(lambda: server.info()["log_state"] == "on", PATIENCE)
                server.kill()
            server.start()
            with server.client() as client:
                self.assertEqual(client("GET", "k"), b"29")

    def test_the_end_of_the_server_during_a_rewrite(self):
        for options in ([], ["SAVE"], ["NOSAVE"], ["NOW"], None):
            for policy in ("always", "everysec"):
                with self.subTest(f"{options} {policy}"):
                    server = self.server(appendfsync=policy)
                    with server.client() as client:
                        fill(client)
                        client("BGREWRITEAOF")
                        wait_until_over(server)
                        client.pipeline([["DEL", "k:0"], ["BGREWRITEAOF"], ["SET", "late", 1]])
                        before = contents(client)
                        requests = [["BGREWRITEAOF"], ["SET", "late", 2]]
                        if options is not None:
                            requests.append(["SHUTDOWN", *options])
                        client.send(b"".join(encode(*request) for request in requests))
                        if options is None:
                            client.read()
                            self.assertEqual(client.read(), (b"+", b"OK"))
                            server.kill()
                        else:
                            self.assertEqual(server.process.wait(PATIENCE), 0)
                    server.start()
                    with server.client() as client:
                        self.assertEqual(contents(client), before | {b"late": b"2"})
                    self.assertEqual(tool("verify", "--volume", server.volume)[0], 1, "verify must refuse a volume in use")
                    server.terminate()
                    status, said = tool("verify", "--volume", server.volume)
                    self.assertEqual(status, 0, said)
                    server.close()

    def test_killed_behind_a_rewrite_that_its_log_took_along(self):
        """`appendonly no` ends the log during a rewrite. The next start must find the data as it
        was when the log ended, without any later write."""
        server = self.server(appendfsync="always")
        with server.client() as client:
            fill(client)
            before = contents(client)
            off = ["CONFIG", "SET", "appendonly", "no"]
            replies = client.pipeline([["BGREWRITEAOF"], off, ["SET", "behind", 1]])
            self.assertEqual([reply[0] for reply in replies], [b"+"] * 3)
            until(lambda: server.info()["log_state"] == "off", PATIENCE, "the log's end")
            self.assertIn("WAL-snapshot given up: the log was turned off", server.said())
            self.assertEqual(server.info()["snapshot_rewrites_complete"], "0")
        server.flags["appendonly"] = "no"
        server.restart()
        with server.client() as client:
            self.assertEqual(contents(client), before)

    def test_killed_again_in_the_snapshot_behind_the_one_it_was_killed_in(self):
        for kind in ("BGREWRITEAOF", "BGSAVE"):
            with self.subTest(kind):
                server = self.server(appendfsync="always")
                with server.client() as client:
                    fill(client)
                for life in range(4):
                    with server.client() as client:
                        replies = client.pipeline([["SET", "life", life], [kind], [kind]])
                        self.assertEqual([reply[0] for reply in replies], [b"+", b"+", b"-"])
                        self.assertIn(b"already in progress", replies[2][1])
                        before = contents(client)
                    server.restart()
                    with server.client() as client:
                        self.assertEqual(contents(client), before)

    def damaged_at(self, held):
        """The offset of one byte in each part of a snapshot, from the beginning of its file."""
        last = held["len_lbas"] - 1
        return {
            "header": 100,
            "chunk": BLOCK + 100,
            "index": (last - 1) * BLOCK + 8,
            "trailer": last * BLOCK + 8,
        }

    def test_damage_is_found_by_verify_and_by_a_start(self):
        for part in ("header", "chunk", "index", "trailer"):
            for kind in ("wal", "on-demand"):
                with self.subTest(f"{part} of {kind}"):
                    server = self.server(appendfsync="always")
                    with server.client() as client:
                        fill(client)
                        client("SAVE")
                        client("BGREWRITEAOF")
                        wait_until_over(server)
                        client("SET", "behind", 1)
                        before = contents(client)
                    self.assertEqual(server.terminate(), 0)
                    found = json.loads(tool("inspect", "--json", "--volume", server.volume)[1])
                    held = next(held for held in found["snapshots"] if held["kind"] == kind)
                    path = os.path.join(server.volume, held["slot"])
                    flip_bit(path, self.damaged_at(held)[part])
                    what = f"the snapshot in {held['slot']} is damaged"
                    status, said = tool("verify", "--volume", server.volume)
                    self.assertEqual((status, what in said), (1, True), said)
                    if kind == "wal":
                        self.assertIn(what, refusal(volume=server.volume))
                        # Neither `verify` nor the refused start may have changed anything. So once
                        # the bit is flipped back, a server finds all data.
                        flip_bit(path, self.damaged_at(held)[part])
                    server.start()
                    with server.client() as client:
                        self.assertEqual(contents(client), before)
                    server.close()


@slimio_only
@unittest.skipIf(compiler() is None, "there is no C compiler for the library that makes writes fail")
class Failures(TestCase):
    seconds = 8

    def test_each_way_to_fail_leaves_the_last_good_state_of_each_kind(self):
        faults = {"write": errno.EIO, "flush": errno.EIO}, {"write": errno.ENOSPC}, {"flush": errno.EIO}
        for log in ("yes", "no"):
            for fault in faults:
                with self.subTest(f"appendonly {log}, {fault}"):
                    server = SpoiltServer(
                        io_backend="plain", log_segment_size="1mb", appendonly=log, save="", appendfsync="always"
                    )
                    self.addCleanup(server.close)
                    with server.client() as client:
                        fill(client)
                        client("SAVE")
                        saved = contents(client)
                        client("SET", "later", 1)
                        for command, name in (
                            ("BGSAVE", "rdb_last_bgsave_status"), ("BGREWRITEAOF", "aof_last_bgrewrite_status"),
                        ):
                            server.spoil(**fault, path_end=f"snapshot-{self.reserve(server)}")
                            for _ in range(2):
                                client(command)
                                wait_until_over(server)
                                self.assertEqual(server.info()[name], "err")
                                self.assertEqual(client("SET", "later", 2), b"OK")
                            server.spoil()
                        self.assertEqual(server.info()["log_latched"], "0")
                    server.restart()
                    with server.client() as client:
                        self.assertEqual(contents(client), saved if log == "no" else saved | {b"later": b"2"})
                        self.assertEqual(client("SAVE"), b"OK")
                    server.close()

    def test_a_log_whose_snapshot_failed_goes_on_without_being_asked_again(self):
        server = SpoiltServer(io_backend="plain", save="", auto_aof_rewrite_percentage=0)
        self.addCleanup(server.close)
        with server.client() as client:
            client("SET", "k", 1)
            client("CONFIG", "SET", "appendonly", "no")
            until(lambda: server.info()["log_state"] == "off", PATIENCE)
            server.spoil(write=errno.EIO, path_end=f"snapshot-{self.reserve(server)}")
            client("CONFIG", "SET", "appendonly", "yes")
            until(lambda: server.info()["aof_last_bgrewrite_status"] == "err", PATIENCE)
            self.assertEqual(server.info()["log_state"], "resuming")
            server.spoil()
            until(lambda: server.info()["log_state"] == "on", PATIENCE)
            client("SET", "k", 2)
        server.kill()
        server.start()
        with server.client() as client:
            self.assertEqual(client("GET", "k"), b"2")

    def reserve(self, server):
        held = [name for name in server.info() if name.startswith("snapshot_slot_")]
        return "abc"[min({0, 1, 2} - {int(name.rsplit("_", 1)[1]) for name in held})]


@slimio_only
class Memory(TestCase):
    """`snapshot-memory-limit`: at the limit, writers wait until the snapshot has written more."""

    seconds = 8

    def test_at_the_limit_writers_wait_and_others_do_not(self):
        server = Server(snapshot_memory_limit="8mb", appendfsync="no", auto_aof_rewrite_percentage=0)
        self.addCleanup(server.close)
        count, size = 600, 100_000
        draw = random.Random(1)
        with server.client() as client, server.client() as other:
            for number in range(count):
                client("SET", f"k:{number}", draw.randbytes(size))
            # The server runs these requests in the turn of its event loop in which the snapshot
            # begins. The snapshot holds no old values yet. So the requests can replace about 8 MB
            # of old values before a writer has to wait.
            flood = [["SET", f"k:{number}", "w"] for number in reversed(range(count))]
            client.send(b"".join(encode(*request) for request in [["BGSAVE"], *flood]))
            self.assertEqual(client.read()[0], b"+")
            while server.info()["rdb_bgsave_in_progress"] == "1":
                self.assertEqual(other("GET", "none"), None)
                self.assertEqual(other("SET", "other", 1), b"OK")
            self.assertEqual([client.read() for _ in flood], [(b"+", b"OK")] * count)
            info = server.info()
            self.assertEqual(info["rdb_last_bgsave_status"], "ok")
            self.assertGreater(int(info["snapshot_writes_waited"]), 0)
            self.assertGreater(int(info["rdb_last_cow_size"]), 4 << 20)
            # Beyond its limit, the snapshot holds at most one more old value.
            self.assertLess(int(info["rdb_last_cow_size"]), (8 << 20) + 2 * size)
