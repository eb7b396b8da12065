"""`CLIENT PAUSE`, `UNPAUSE` and `UNBLOCK`: the same steps on SlimIO and on stock redis-server."""

import select
import time
import unittest

from harness.resp import encode
from harness.server import Server
from harness.target import TestCase, slimio_only, stock_is_installed
from harness.wait import until

LONG_MS = 600_000
SHORT_MS = 200


class Steps:
    """The tests of this file. Each subclass runs them against one server."""

    def serve(self, **flags):
        server = Server(stock=self.stock, **flags)
        self.addCleanup(server.close)
        return server

    def connect(self, server, name):
        client = server.client()
        self.addCleanup(client.close)
        client("CLIENT", "SETNAME", name)
        return client

    def line_of(self, observer, name):
        lines = observer("CLIENT", "LIST").decode().split("\n")
        fields = [dict(field.split("=", 1) for field in line.split(" ")) for line in lines if line]
        return next(line for line in fields if line["name"] == name)

    def postpone(self, observer, client, name, *command):
        """Sends a command that the pause must hold up, and waits until the server holds it up."""
        client.send(encode(*command))
        word = command[0].lower()

        def is_held():
            line = self.line_of(observer, name)
            return line["cmd"] == word and "b" in line["flags"]

        until(is_held, what=f"{command} being held up")
        self.assertTrue(is_silent(client), f"{command} was answered in a pause")

    def test_writes_wait_and_reads_do_not(self):
        server = self.serve()
        admin, writer = self.connect(server, "admin"), self.connect(server, "writer")
        queueing, reader = self.connect(server, "queueing"), self.connect(server, "reader")
        admin("SET", "k", "old")
        queueing("MULTI")
        queueing("SET", "k", "queued")
        self.assertEqual(admin("CLIENT", "PAUSE", LONG_MS, "WRITE"), b"OK")
        self.postpone(admin, writer, "writer", "SET", "k", "new")
        # A transaction that writes waits as a whole; a transaction that only reads runs.
        self.postpone(admin, queueing, "queueing", "EXEC")
        reader("MULTI")
        reader("GET", "k")
        self.assertEqual(reader("EXEC"), [b"old"])
        # A malformed command gets its error at once.
        self.assertEqual(reader.raw("SET", "k")[0], b"-")
        self.assertEqual(server.info("clients")["blocked_clients"], "2")
        # A later pause that is shorter does not end the first pause early.
        self.assertEqual(admin("CLIENT", "PAUSE", 1, "WRITE"), b"OK")
        self.assertEqual(admin("GET", "k"), b"old")
        self.assertEqual(admin("CLIENT", "UNPAUSE"), b"OK")
        self.assertEqual(writer.read(), (b"+", b"OK"))
        self.assertEqual(queueing.read(), (b"*", [(b"+", b"OK")]))
        self.assertEqual(admin("GET", "k"), b"queued", "the held writes must run in the order in which they came")
        self.assertEqual(server.info("clients")["blocked_clients"], "0")

    def test_what_follows_in_a_pipeline_waits_too(self):
        server = self.serve()
        admin, client = self.connect(server, "admin"), self.connect(server, "client")
        admin("CLIENT", "PAUSE", LONG_MS, "WRITE")
        self.postpone(admin, client, "client", "SET", "k", "1")
        client.send(encode("GET", "k") + encode("INCR", "k") + encode("GET", "k"))
        self.assertEqual(admin("GET", "k"), None)
        self.assertTrue(is_silent(client))
        admin("CLIENT", "UNPAUSE")
        replies = [client.read() for _ in range(4)]
        self.assertEqual(replies, [(b"+", b"OK"), (b"$", b"1"), (b":", 2), (b"$", b"2")])

    def test_everything_waits_until_the_time_is_over(self):
        server = self.serve()
        admin, other = self.connect(server, "admin"), self.connect(server, "other")
        for command, reply in [(("PING",), b"PONG"), (("CLIENT", "UNPAUSE"), b"OK"), (("GET", "k"), None)]:
            began = time.monotonic()
            self.assertEqual(admin("CLIENT", "PAUSE", SHORT_MS), b"OK")
            self.assertEqual(other(*command), reply)
            self.assertGreaterEqual(time.monotonic() - began, SHORT_MS / 1000, command)

    def test_a_client_that_waits_can_be_killed(self):
        server = self.serve()
        admin, writer = self.connect(server, "admin"), self.connect(server, "writer")
        admin("CLIENT", "PAUSE", LONG_MS, "WRITE")
        self.postpone(admin, writer, "writer", "SET", "k", "v")
        self.assertEqual(admin("CLIENT", "KILL", "ID", self.line_of(admin, "writer")["id"]), 1)
        self.assertTrue(writer.closed_by_server())
        admin("CLIENT", "UNPAUSE")
        self.assertEqual(admin("GET", "k"), None)

    def test_keys_do_not_expire_by_themselves_in_a_pause(self):
        server = self.serve(hz=500)
        admin = self.connect(server, "admin")
        admin.pipeline([["SET", "short", "v", "PX", 20], ["CLIENT", "PAUSE", LONG_MS, "WRITE"]])

        def now_ms():
            seconds, microseconds = admin("TIME")
            return int(seconds) * 1000 + int(microseconds) // 1000

        # The test waits for many rounds of active expiry, none of which may delete the key.
        over = now_ms() + 100
        until(lambda: now_ms() > over, what="the end of the key's lifetime")
        self.assertEqual(admin("DBSIZE"), 1)
        # A command that finds the expired key does not delete it either.
        for reads in (["GET", "short"], ["EXISTS", "short"], ["MGET", "short", "other"], ["TYPE", "short"],
                      ["TTL", "short"], ["OBJECT", "ENCODING", "short"], ["KEYS", "*"], ["SCAN", "0"]):
            reply = admin(*reads)
            self.assertNotIn(b"short", reply[1] if reads[0] == "SCAN" else [reply], reads)
            self.assertEqual(admin("DBSIZE"), 1, reads)
        admin.pipeline([["MULTI"], ["GET", "short"]])
        self.assertEqual(admin("EXEC"), [None])
        self.assertEqual(admin("DBSIZE"), 1)
        self.assertEqual(server.info("stats")["expired_keys"], "0")
        admin("CLIENT", "UNPAUSE")
        until(lambda: admin("DBSIZE") == 0, what="expiry")


@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class Stock(Steps, TestCase):
    stock = True
    seconds = 2


@slimio_only
class Ours(Steps, TestCase):
    stock = False
    seconds = 2

    def test_who_waits_for_the_log_is_let_go(self):
        server = self.serve()
        admin, waiter = self.connect(server, "admin"), self.connect(server, "waiter")
        for reason, reply in [
            ((), (b"*", [(b":", 1), (b":", 0)])),
            (("TIMEOUT",), (b"*", [(b":", 1), (b":", 0)])),
            (("ERROR",), (b"-", b"UNBLOCKED client unblocked via CLIENT UNBLOCK")),
        ]:
            # WAITAOF waits for one replica, which does not exist.
            self.postpone(admin, waiter, "waiter", "WAITAOF", 0, 1, 0)
            number = self.line_of(admin, "waiter")["id"]
            self.assertEqual(admin("CLIENT", "UNBLOCK", number, *reason), 1)
            self.assertEqual(waiter.read(), reply)
            self.assertEqual(admin("CLIENT", "UNBLOCK", number, *reason), 0)
        self.assertEqual(server.info("errorstats")["errorstat_UNBLOCKED"], "count=1")

    def test_who_is_held_up_by_a_pause_is_not_in_a_command_that_blocks(self):
        server = self.serve()
        admin, writer = self.connect(server, "admin"), self.connect(server, "writer")
        admin("CLIENT", "PAUSE", LONG_MS, "WRITE")
        self.postpone(admin, writer, "writer", "SET", "k", "v")
        self.assertEqual(admin("CLIENT", "UNBLOCK", self.line_of(admin, "writer")["id"]), 0)
        admin("CLIENT", "UNPAUSE")
        self.assertEqual(writer.read(), (b"+", b"OK"))


def is_silent(client):
    """Whether nothing has arrived from the server."""
    return not select.select([client.socket], [], [], 0)[0]
