"""Several clients at once, drawn at random: keys that are watched, that expire between commands, and
databases that change places, on SlimIO and on stock redis-server."""

import random
import time
import unittest

from harness.server import Server
from harness.target import TARGET, TestCase, stock_is_installed

CLIENTS = 3
STEPS = 400
ROUNDS = 20
KEYS = ("a", "b")
DBS = ("0", "1")
# A key that lives for a millisecond has expired behind it.
EXPIRED_AFTER_SECONDS = 0.003


def drawn(draw):
    """A command, the likelier the more often it is here."""
    key, other, db = draw.choice(KEYS), draw.choice(KEYS), draw.choice(DBS)
    return draw.choice([
        ["WATCH", key], ["WATCH", key], ["WATCH", key, other], ["UNWATCH"],
        ["MULTI"], ["MULTI"], ["MULTI"], ["EXEC"], ["EXEC"], ["EXEC"], ["DISCARD"],
        ["SET", key, "v"], ["SET", key, "v", "PX", "1"], ["SET", key, "v", "PX", "1"],
        ["APPEND", key, "w"], ["GET", key], ["GET", key], ["EXISTS", key, other], ["DEL", key],
        ["PERSIST", key], ["PEXPIRE", key, "1"], ["PEXPIRE", key, "100000"], ["RENAME", key, other],
        ["MOVE", key, db], ["COPY", key, other, "DB", db], ["SELECT", db],
        ["SWAPDB", *DBS], ["SWAPDB", *DBS], ["SWAPDB", db, db], ["FLUSHDB"], ["FLUSHALL"],
        ["DBSIZE"],
    ])


@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class SeveralClients(TestCase):
    seconds = 30

    def setUp(self):
        self.servers = [Server(stock=stock, enable_debug_command="yes") for stock in (False, True)]
        for server in self.servers:
            self.addCleanup(server.close)

    def test_watched_keys_and_swapped_databases(self):
        for number in range(TARGET.rounds or ROUNDS):
            seed = TARGET.seed * 1000 + number
            with self.subTest(seed=seed):
                self.run_round(random.Random(seed))

    def run_round(self, draw):
        clients = [[server.client() for server in self.servers] for _ in range(CLIENTS)]
        try:
            for client in clients[0]:
                client("FLUSHALL")
                # Which key it would delete by itself, and when, is a matter of chance.
                client("DEBUG", "SET-ACTIVE-EXPIRE", "0")
            history = []
            for _ in range(STEPS):
                number, command = draw.randrange(CLIENTS), drawn(draw)
                replies = [client.raw(*command) for client in clients[number]]
                history.append((number, *command, replies[1]))
                lines = "\n".join(map(str, history[-30:]))
                self.assertEqual(*replies, f"{command}, behind\n{lines}")
                if command[-1] == "1" or command[0] == "EXEC":
                    time.sleep(EXPIRED_AFTER_SECONDS)
        finally:
            for pair in clients:
                for client in pair:
                    client.close()

