"""DUMP and RESTORE in both directions, between SlimIO and stock Redis."""

import unittest

from differential.payloads import VALUES, WRONG_VALUES, payload
from harness.server import Server
from harness.target import TestCase, stock_is_installed


@unittest.skipUnless(stock_is_installed(), "needs stock redis-server")
class Dump(TestCase):
    def setUp(self):
        self.ours = self.enterContext(Server(enable_debug_command="yes"))
        self.stock = self.enterContext(Server(stock=True, enable_debug_command="yes", sanitize_dump_payload="yes"))
        self.clients = [self.ours.client().raw, self.stock.client().raw]

    def values(self):
        fields = [word for number in range(3000) for word in (f"field {number}", "v" * (number % 90))]
        yield ["SET", "k", ""]
        yield ["SET", "k", "text"]
        yield ["SET", "k", "-1234567"]
        yield ["SET", "k", "compressible " * 5000]
        yield ["SET", "k", bytes(range(256)) * 8000]
        yield ["HSET", "k", "f", "v", "g", "12"]
        yield ["HSET", "k", "f", "v" * 500]
        yield ["HSET", "k", *fields]

    def read(self, client):
        kind = client("TYPE", "k")
        items = client("GET", "k") if kind[1] == b"string" else client("HGETALL", "k")
        value = items[1] if kind[1] == b"string" else sorted(zip(items[1][::2], items[1][1::2]))
        return kind, value, client("OBJECT", "ENCODING", "k")

    def test_what_one_has_dumped_the_other_restores(self):
        for command in self.values():
            for source, target in [self.clients, self.clients[::-1], [self.clients[0]] * 2]:
                with self.subTest(command=str(command)[:60], source=self.clients.index(source)):
                    source("DEL", "k")
                    source(*command)
                    wanted = self.read(source)
                    payload = source("DUMP", "k")[1]
                    target("DEL", "k")
                    self.assertEqual(target("RESTORE", "k", 0, payload), (b"+", b"OK"))
                    found = self.read(target)
                    self.assertEqual(found[:2], wanted[:2])
                    if command[0] == "HSET":
                        self.assertEqual(found[2], wanted[2])
                    self.assertEqual(
                        target("RESTORE", "k", 0, payload)[1],
                        b"BUSYKEY Target key name already exists.",
                    )
                    self.assertEqual(target("RESTORE", "k", 0, payload, "REPLACE")[0], b"+")

    def test_damaged_values_are_refused(self):
        for value in WRONG_VALUES:
            with self.subTest(value=value):
                replies = [client("RESTORE", "k", 0, payload(value)) for client in self.clients]
                self.assertEqual(replies, [(b"-", b"ERR Bad data format")] * 2)

    def test_no_damage_is_worse_than_an_error(self):
        # Only SlimIO is tested, because stock Redis accepts some of these payloads and only logs a
        # warning.
        ours = self.clients[0]
        for value in VALUES:
            for at in range(len(value)):
                for bit in range(8):
                    damaged = value[:at] + bytes([value[at] ^ 1 << bit]) + value[at + 1 :]
                    reply = ours("RESTORE", "k", 0, payload(damaged), "REPLACE")
                    self.assertIn(reply, [(b"+", b"OK"), (b"-", b"ERR Bad data format")])
        self.assertEqual(ours("PING")[1], b"PONG")

    def test_what_was_restored_outlives_the_process(self):
        ours = self.clients[0]
        for command in self.values():
            ours("DEL", "k")
            ours(*command)
            ours("RESTORE", f"copy of {str(command)[:40]}", 100_000_000, ours("DUMP", "k")[1])
        names = [name[1] for name in ours("KEYS", "copy*")[1]]
        before = ours("DEBUG", "DIGEST-VALUE", *names)
        self.ours.restart()
        ours = self.ours.client().raw
        self.assertEqual(ours("DEBUG", "DIGEST-VALUE", *names), before)
        for name in names:
            self.assertGreater(ours("PTTL", name)[1], 99_000_000)

    def test_digests_are_those_of_stock(self):
        for number, command in enumerate(self.values()):
            for client in self.clients:
                client("SELECT", number % 3)
                client(command[0], f"key {number}", *command[2:])
                if number % 2:
                    client("PEXPIREAT", f"key {number}", 10**13)
            keys = [f"key {number}", "nothing"]
            ours, stock = (client("DEBUG", "DIGEST-VALUE", *keys) for client in self.clients)
            self.assertEqual(ours, stock, str(command)[:60])
            ours, stock = (client("DEBUG", "DIGEST") for client in self.clients)
            self.assertEqual(ours, stock, str(command)[:60])
