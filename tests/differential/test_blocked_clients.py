"""Several clients wait for lists at once, on SlimIO and on stock redis-server. Both servers must
serve the same clients, with the same elements, in the same order. All pushed elements differ, so
the replies show the order."""

import random
import unittest

from differential.test_random import different_state
from differential.test_several_clients import Arriving
from harness.resp import encode
from harness.server import Server
from harness.target import TARGET, TestCase, stock_is_installed
from harness.wait import until

CLIENTS = 6
STEPS = 250
ROUNDS = 15
KEYS = ("a", "b", "c")
ENDS = ("LEFT", "RIGHT")


class Pair:
    """The same client on both servers. While one of its requests waits, it sends nothing more."""

    def __init__(self, servers):
        self.clients = [Arriving(server.address) for server in servers]
        self.open, self.waits_for = 0, ()

    def send(self, commands):
        for client in self.clients:
            client.send(b"".join(encode(*command) for command in commands))
        self.open += len(commands)
        self.waits_for = keys_of(commands)

    def close(self):
        for client in self.clients:
            client.close()


def keys_of(commands):
    """The keys that the first blocking command in `commands` waits for."""
    for name, *words in commands:
        if name in ("BLPOP", "BRPOP"):
            return words[:-1]
        if name in ("BLMOVE", "BRPOPLPUSH"):
            return words[:1]
        if name == "BLMPOP":
            return words[2:2 + int(words[1])]
    return ()


@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class BlockedClients(TestCase):
    seconds = 40

    def setUp(self):
        self.servers = [Server(stock=stock) for stock in (False, True)]
        self.observers = []
        for server in self.servers:
            self.addCleanup(server.close)
            self.observers.append(server.client())
            self.addCleanup(self.observers[-1].close)

    def test_who_is_served_is_the_same(self):
        for number in range(TARGET.rounds or ROUNDS):
            seed = TARGET.seed * 1000 + number
            self.history, self.pushed, self.served = [], 0, 0
            with self.subTest(seed=seed):
                self.run_round(random.Random(seed))
                self.assertGreater(self.served, STEPS // 10, "too few clients waited and were then served")

    def run_round(self, draw):
        self.both("FLUSHALL")
        self.pairs = [Pair(self.servers) for _ in range(CLIENTS)]
        try:
            for _ in range(STEPS):
                self.step(draw)
            for pair in self.pairs:
                if pair.open:
                    self.unblock(draw, pair)
            self.assertIsNone(different_state(self.observers), self.lines())
            self.both("SELECT", 0)
        finally:
            for pair in self.pairs:
                pair.close()

    def step(self, draw):
        number = draw.randrange(CLIENTS)
        pair = self.pairs[number]
        if pair.open:
            chance = draw.random()
            if chance < 0.1:
                self.unblock(draw, pair)
            elif chance < 0.15:
                self.replace(draw, number)
            return
        commands = self.unit(draw)
        self.history.append((number, *commands))
        pair.send(commands)
        self.settle()

    def both(self, *command):
        replies = [observer.raw(*command) for observer in self.observers]
        self.history.append(("observer", command))
        self.assertEqual(*replies, self.lines())

    def unblock(self, draw, pair):
        how = draw.choice([[], ["TIMEOUT"], ["ERROR"]])
        replies = [observer.raw("CLIENT", "UNBLOCK", client.id, *how)
                   for observer, client in zip(self.observers, pair.clients)]
        self.history.append(("observer", "UNBLOCK", self.pairs.index(pair), how, replies[1]))
        self.assertEqual(*replies, self.lines())
        self.settle()

    def replace(self, draw, number):
        """Ends the connection of a waiting client: the client hangs up, or the server kills it."""
        pair = self.pairs[number]
        is_killed = draw.random() < 0.5
        self.history.append((number, "is killed" if is_killed else "hangs up"))
        for observer, client in zip(self.observers, pair.clients):
            if is_killed:
                observer("CLIENT", "KILL", "ID", client.id)
            else:
                client.close()
            # The test waits until the server has seen the end of the connection, because an element
            # that is pushed earlier would be lost.
            until(lambda: not observer("CLIENT", "LIST", "ID", client.id))
        pair.close()
        self.pairs[number] = Pair(self.servers)

    def elements(self, draw, most):
        count = draw.randint(1, most)
        self.pushed += count
        return [f"e{self.pushed - index}" for index in range(count)]

    def unit(self, draw):
        if draw.random() < 0.15:
            inner = [self.command(draw, False) for _ in range(draw.randint(1, 4))]
            return [["MULTI"], *inner, ["EXEC"]]
        commands = [self.command(draw, True)]
        if commands[0][0].startswith("B"):
            # Requests after a blocking command wait for it.
            commands += draw.choice([[], [], [["LLEN", draw.choice(KEYS)]], [["RPUSH", draw.choice(KEYS), "behind"]]])
        return commands

    def command(self, draw, is_alone):
        key, other = draw.choice(KEYS), draw.choice(KEYS)
        several = [draw.choice(KEYS) for _ in range(draw.randint(1, 3))]
        choices = [
            ["RPUSH", key, *self.elements(draw, 3)], ["LPUSH", key, *self.elements(draw, 3)],
            ["BLPOP", *several, "0"], ["BRPOP", *several, "0"], ["BLPOP", key, "0"],
            ["BLMOVE", key, other, draw.choice(ENDS), draw.choice(ENDS), "0"], ["BRPOPLPUSH", key, other, "0"],
            ["BLMPOP", "0", len(several), *several, draw.choice(ENDS), "COUNT", draw.randint(1, 3)],
            ["BLMOVE", key, other, draw.choice(ENDS), draw.choice(ENDS), "0"],
        ]
        if draw.random() < 0.3:
            choices = [
                ["LPOP", key], ["RPOP", key, "2"], ["DEL", key], ["SET", key, "s"], ["RENAME", key, other],
                ["COPY", key, other, "REPLACE"], ["LMOVE", key, other, *ENDS], ["MOVE", key, "1"], ["RPUSHX", key, "x"],
                ["LMPOP", "2", key, other, "LEFT"], ["LTRIM", key, "1", "-1"], ["FLUSHALL"], ["HSET", key, "f", "v"],
                ["LINSERT", key, "BEFORE", "x", "y"], ["LREM", key, "1", "x"],
            ]
            waiting = {waited for pair in self.pairs if pair.open for waited in pair.waits_for}
            if is_alone and len(waiting) < 2:
                # If several keys become ready at once, stock serves their clients in any order.
                choices += [["SWAPDB", "0", "1"]] * 3
        return draw.choice(choices)

    def settle(self):
        """Waits until, on both servers, each client either has all its replies or is blocked. Then
        compares the replies."""
        for index, observer in enumerate(self.observers):
            try:
                until(lambda: self.is_quiet(index, observer))
            except TimeoutError:
                self.fail(f"on server {index}, a client neither got all replies nor was blocked, {self.lines()}")
        for number, pair in enumerate(self.pairs):
            ours, theirs = [client.take(len(client.whole)) for client in pair.clients]
            if theirs:
                self.history.append((number, "got", theirs))
            self.assertEqual(ours, theirs, f"client {number}, {self.lines()}")
            if theirs and pair.waits_for:
                self.served += 1
            pair.open -= len(theirs)

    def is_quiet(self, index, observer):
        # The replies that have come are read before CLIENT LIST. Each client that still lacks a
        # reply must then be listed as blocked.
        clients = [pair.clients[index] for pair in self.pairs]
        lacking = [client.id for client, pair in zip(clients, self.pairs) if not client.has(pair.open)]
        if not lacking:
            return True
        listed = observer("CLIENT", "LIST", "ID", *lacking).decode().splitlines()
        return len(listed) == len(lacking) and all(" flags=b " in line for line in listed)

    def lines(self):
        return "after these steps:\n" + "\n".join(map(str, self.history[-60:]))
