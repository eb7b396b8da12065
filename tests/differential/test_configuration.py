"""The server's directives, compared with stock redis-server and `docs/configuration.md`."""

import os
import re
import unittest

from harness.resp import encode
from harness.server import Server
from harness.target import TestCase, slimio_only, stock_is_installed

DOCUMENT = os.path.join(os.path.dirname(__file__), "../../docs/configuration.md")
# Directives that the harness sets itself.
OF_THE_HARNESS = {"port", "dir", "volume"}


def rows():
    """For each directive in the document, whether the document notes a difference from Redis."""
    found = {}
    with open(DOCUMENT, encoding="utf-8") as file:
        for line in file:
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            for name in re.findall("`([^`]+)`", cells[0]) if line.startswith("| `") else []:
                found[name] = cells[-1] != ""
    return found


@slimio_only
@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class Defaults(TestCase):
    def test_every_directive_is_there_and_what_differs_is_written_down(self):
        shown = []
        for server in (Server(), Server(stock=True, save="3600 1 300 100 60 10000", appendonly="no")):
            with server, server.client() as client:
                words = [word.decode() for word in client("CONFIG", "GET", "*")]
            shown.append(dict(zip(words[::2], words[1::2])))
        ours, theirs = shown
        self.assertEqual(ours["dir"], os.path.dirname(ours["volume"]))
        documented = rows()
        self.assertEqual(sorted(set(theirs) - set(ours)), [], "SlimIO lacks directives of stock Redis")
        self.assertEqual(sorted(set(ours) ^ set(documented)), [])
        for name in sorted(set(theirs) - OF_THE_HARNESS):
            if ours[name] != theirs[name]:
                self.assertTrue(documented[name], f"{name}: SlimIO {ours[name]!r}, Redis {theirs[name]!r}, but no note")

    def test_every_directive_can_be_set_or_not_as_in_redis(self):
        """Sets each directive to its present value, and to all kinds of values. If a directive has
        an effect only at the start, setting it must be refused."""
        values = ["", "abc", "-1", "0", "1", "7", "101", "70000", "yes", "local", "1mb", "1x", "50%", "-50%", "1 2",
                  "1 2 3", "normal 1mb 2 3", '"']
        with Server() as ours, Server(stock=True) as theirs:
            clients = [server.client() for server in (ours, theirs)]
            words = [[word.decode() for word in client("CONFIG", "GET", "*")] for client in clients]
            before = [dict(zip(words[::2], words[1::2])) for words in words]
            for name in sorted(set(before[1]) - set(SET_OTHERWISE)):
                for value in [None, *values]:
                    replies = [client.raw("CONFIG", "SET", name, shown[name] if value is None else value)
                               for client, shown in zip(clients, before)]
                    with self.subTest(name=name, value=value):
                        self.assertEqual(*[kind for kind, _ in replies], replies)
                        self.assertEqual(*[FOR_A_START.findall(text) for _, text in replies], replies)
                for client, shown in zip(clients, before):
                    client.raw("CONFIG", "SET", name, shown[name])
            for client in clients:
                client.close()


    def test_numbers_and_names_are_read_as_in_redis(self):
        pair = ("hash-max-ziplist-entries", "hash-max-listpack-entries")
        sets = [["timeout", number] for number in ("+1", "01", "-0", "-1", "0", "1", " 1", "1 ", "", "1.0", "0x1", "x")]
        sets += [
            ["slowlog-log-slower-than", "-01"], ["slowlog-log-slower-than", "-7"], ["Timeout", "x"], ["TIMEOUT", "-1"],
            ["Slave-Priority", "x"], ["slave-priority", "-1"], ["Replica-Priority", "x"], ["maxmemory-policy", "x"],
            # Both names of a directive in one command, and one name twice.
            [pair[0], 7, pair[1], 8], [pair[1], 9, pair[0], 10], [pair[0], 7, pair[0].upper(), 8],
            ["replica-priority", 7, "slave-priority", 8], ["slave-priority", 7, "timeout", 1, "slave-priority", 8],
            [pair[0], 7, pair[1], "x"], [pair[0], "x", pair[1], 7],
            # Several errors: both servers must report the same one.
            ["hz", "x", "Databases", 3], ["Databases", 3, "nosuch", 1], ["nosuch", 1, "databases", 3], ["timeout", 5, "dir", "/"],
            ["timeout", 1, "timeout", 2, "nosuch", 3], ["timeout", "x", "timeout", 2], ["databases", 3, "databases", 3],
            ["timeout", 5, "hz", "x"], ["appendonly", "maybe", "timeout", "x"],
        ]
        with Server() as ours, Server(stock=True) as theirs, ours.client() as one, theirs.client() as other:
            for words in sets:
                with self.subTest(words):
                    self.assertEqual(one.raw("CONFIG", "SET", *words), other.raw("CONFIG", "SET", *words))
                    for name in ("timeout", "slowlog-log-slower-than", "slave-priority", *pair):
                        asked = ["CONFIG", "GET", name]
                        if name not in pair or words[0] in pair:
                            self.assertEqual(one(*asked), other(*asked))


FOR_A_START = re.compile(rb"can't set .* config")
AT_START = "SlimIO reads it only at the start"
CHECKED = "SlimIO refuses an invalid value"
FREE = "it has no effect in SlimIO, so SlimIO does not check it"
ONLY = "SlimIO allows only one value"
# Directives that `test_every_directive_can_be_set_or_not_as_in_redis` leaves out, each with the
# reason.
SET_OTHERWISE = {
    "port": AT_START, "bind": AT_START, "requirepass": "after a change, the test would need the password",
    "maxclients": "SlimIO accepts more clients than the machine allows", "hz": "SlimIO refuses a value out of range, and stock clamps it",
    **dict.fromkeys(["auto-aof-rewrite-min-size", "client-output-buffer-limit", "cluster-link-sendbuf-limit",
                     "hash-max-listpack-value", "hash-max-ziplist-value", "hll-sparse-max-bytes", "maxmemory",
                     "maxmemory-clients", "stream-node-max-bytes", "zset-max-listpack-value", "zset-max-ziplist-value"], CHECKED),
    **dict.fromkeys(["cluster-announce-hostname", "oom-score-adj-values", "proc-title-template",
                     "shutdown-on-sigint", "shutdown-on-sigterm"], FREE),
    **dict.fromkeys(["activedefrag", "aof-timestamp-enabled", "min-replicas-to-write",
                     "min-slaves-to-write", "notify-keyspace-events", "tls-port"], ONLY),
}

FILE = """# The head stays
maxclients 77

# Twice: one line remains
timeout 5
timeout 9
proto-max-bulk-len 10mb
# between
slave-read-only no
tcp-keepalive 10
# the end
"""
CHANGES = [
    ("timeout", "7"), ("tcp-keepalive", "300"), ("hz", "50"), ("proto-max-bulk-len", "3145728"),
    ("requirepass", "two \"words\"\\"), ("client-output-buffer-limit", "normal 1048576 1000 9"),
    ("slowlog-max-len", "5"), ("lfu-log-factor", "3"), ("rdbcompression", "no"),
]
# Directives that only one of the two servers writes, or whose values differ between the servers.
NOT_COMPARED = {
    "port", "dir", "save", "appendonly", "user", "volume", "latency-tracking-info-percentiles",
}


class Rewrite(TestCase):
    """`CONFIG REWRITE`"""

    def server(self, text, stock=False):
        server = Server(stock=stock, start=False)
        self.addCleanup(server.close)
        self.path = os.path.join(server.folder, "server.conf")
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)
        server.command = [*server.command, self.path]
        return server.start()

    def written(self):
        with open(self.path, encoding="utf-8") as file:
            return file.read()

    def change(self, server):
        with server.client() as client:
            for name, value in CHANGES:
                self.assertEqual(client("CONFIG", "SET", name, value), b"OK")
            self.assertEqual(client("CONFIG", "REWRITE"), b"OK")

    @slimio_only
    @unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
    def test_the_file_is_the_one_that_stock_writes(self):
        parts = []
        for stock in (False, True):
            self.change(self.server(FILE, stock))
            old, new = self.written().split("# Generated by CONFIG REWRITE\n")
            lines = [line for line in new.splitlines() if line.split()[0] not in NOT_COMPARED]
            # Stock leaves an empty line where it removes a line.
            parts.append(([line for line in old.splitlines() if line], sorted(lines)))
        self.assertEqual(*parts)

    def test_a_restart_finds_what_was_set(self):
        server = self.server(FILE)
        self.change(server)
        shown = []
        for again in (False, True):
            if again:
                server.restart()
            with server.client() as client:
                client("AUTH", "two \"words\"\\")
                shown.append(client("CONFIG", "GET", "*"))
                text = self.written()
                self.assertEqual(client("CONFIG", "REWRITE"), b"OK")
        self.assertEqual(*[dict(zip(words[::2], words[1::2])) | {b"port": b""} for words in shown])
        # Only the port has changed: the tests choose a new one.
        without_port = [re.sub(r"(?m)^port .*\n", "", version) for version in (text, self.written())]
        self.assertEqual(*without_port)

    def test_the_file_stays_as_it_is_when_it_cannot_be_written(self):
        server = self.server(FILE)
        os.remove(self.path)
        os.mkdir(self.path)
        with server.client() as client:
            kind, text = client.raw("CONFIG", "REWRITE")
            self.assertEqual((kind, text), (b"-", b"ERR Rewriting config file: Is a directory"))
            self.assertEqual(client("PING"), b"PONG")
        self.assertEqual(os.listdir(self.path), [])
        beside = [name for name in os.listdir(server.folder) if name.startswith("server.conf")]
        self.assertEqual(beside, ["server.conf"])

    @slimio_only
    def test_killed_while_it_writes_it_leaves_a_whole_file(self):
        server = self.server(FILE)
        acknowledged = 0
        for life in range(20):
            sent = acknowledged
            with server.client() as client:
                numbers = range(acknowledged + 1, acknowledged + 200)
                requests = [
                    encode("CONFIG", "SET", "maxclients", 1000 + number) + encode("CONFIG", "REWRITE")
                    for number in numbers
                ]
                client.send(b"".join(requests))
                for number in numbers[: 3 * life]:
                    self.assertEqual([client.read(), client.read()], [(b"+", b"OK")] * 2)
                    acknowledged = number
                sent = numbers[-1]
                server.kill()
            found = re.findall(r"(?m)^maxclients (\d+)$", self.written())
            self.assertEqual(len(found), 1, self.written())
            self.assertTrue(acknowledged <= int(found[0]) - 1000 <= sent or life == 0, found)
            self.assertIn("# The head stays\n", self.written())
            self.assertIn("# the end\n", self.written())
            acknowledged = max(acknowledged, int(found[0]) - 1000)
            server.start()

    @slimio_only
    def test_owner_and_permissions_stay_and_others_are_served_meanwhile(self):
        server = self.server(FILE)
        os.chmod(self.path, 0o600)
        with server.client() as client, server.client() as other:
            for number in range(100):
                client.send(encode("CONFIG", "SET", "timeout", number) + encode("CONFIG", "REWRITE"))
                self.assertEqual(other("SET", "k", number), b"OK")
                self.assertEqual([client.read(), client.read()], [(b"+", b"OK")] * 2)
                self.assertIn(f"timeout {number}\n", self.written())
            # In a transaction, the reply to CONFIG REWRITE must come in the command's place.
            client("MULTI")
            client("CONFIG", "REWRITE")
            client("PING")
            self.assertEqual(client("EXEC"), [b"OK", b"PONG"])
        self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o600)
