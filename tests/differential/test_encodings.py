"""`OBJECT ENCODING` after random commands on lists, sets and hashes, compared with newer servers.

SlimIO chooses encodings as Redis 7.2 and later do, so it cannot be compared with Debian's Redis
7.0. `cargo x peers` gets newer servers.
"""

import os
import random

from harness.server import Server
from harness.target import TARGET, TestCase, slimio_only

COMMANDS_PER_ROUND = 150
ROUNDS = 12
KEYS = ["a", "b", "c", "d"]
COUNTS = [1, 2, 3, 4, 5, 8, 9, 16, 17, 127, 128, 129, 130, 511, 512, 513]
# Whichever of these limits are drawn, they allow more members in an intset than in a listpack.
# Otherwise, the encoding of a set with integers and words would depend on the order in which the
# other server walks its hash tables, and that order is random.
LIMITS = {
    "set-max-intset-entries": [129, 200, 512, 600],
    "set-max-listpack-entries": [0, 1, 4, 16, 128],
    "set-max-listpack-value": [0, 1, 8, 64, 100],
    "hash-max-listpack-entries": [0, 1, 4, 16, 128, 512],
    "hash-max-listpack-value": [0, 1, 8, 64, 100],
    "list-max-listpack-size": [-5, -2, -1, 0, 1, 3, 16, 128],
}
DEFAULTS = {
    "set-max-intset-entries": 512,
    "set-max-listpack-entries": 128,
    "set-max-listpack-value": 64,
    "hash-max-listpack-entries": 128,
    "hash-max-listpack-value": 64,
    "list-max-listpack-size": -2,
}


class Draw:
    """Draws commands at random. Commands whose effect depends on chance, such as `SPOP`, are never
    drawn."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def key(self):
        return self.random.choice(KEYS)

    def words(self):
        """Successive integers, or successive words. At times, an odd word replaces one of them."""
        start = self.random.choice([0, 0, 1, 100, -5])
        mark = self.random.choice(["", "", "m"])
        words = [f"{mark}{start + n}" for n in range(self.random.choice(COUNTS))]
        if self.random.random() < 0.3:
            odd = self.random.choice(["x", "", "01", "7" * 19, "9" * 20, "y" * 8, "y" * 9, "y" * 64, "y" * 65])
            words[self.random.randrange(len(words))] = odd
        return words

    def keys(self):
        return [self.key() for _ in range(self.random.choice([1, 2, 2, 3]))]

    def command(self):
        pick = self.random.choice
        match pick(["SADD"] * 6 + ["SREM"] * 3 + ["HSET"] * 4 + ["HDEL"] * 2 + ["STORE"] * 6 + ["SMOVE"] * 2
                   + ["CONFIG"] * 3 + ["RENAME", "COPY", "DEL", "HSETNX", "HINCRBY", "RELOAD"] + ["RESTORE"] * 2 + ["PUSH"] * 6 + ["POP"] * 4 + ["LSET", "LINSERT", "LREM", "LTRIM", "LMOVE"]):
            case "SADD" | "SREM" | "HDEL" as name:
                return [name, self.key(), *self.words()]
            case "HSET":
                words = self.words()
                values = self.words() * len(words)
                return ["HSET", self.key(), *(word for pair in zip(words, values) for word in pair)]
            case "STORE":
                return [pick(["SINTERSTORE", "SUNIONSTORE", "SDIFFSTORE"]), self.key(), *self.keys()]
            case "SMOVE":
                return ["SMOVE", self.key(), self.key(), self.words()[0]]
            case "CONFIG":
                name = pick(list(LIMITS))
                return ["CONFIG", "SET", name, pick(LIMITS[name])]
            case "PUSH":
                return [pick(["LPUSH", "RPUSH", "RPUSHX"]), self.key(), *self.words()]
            case "POP":
                return [pick(["LPOP", "RPOP"]), self.key(), pick([1, 2, 8, 60, 300])]
            case "LSET":
                return ["LSET", self.key(), pick([0, 1, -1, 60]), pick(["x", "y" * 70, "z" * 5000])]
            case "LINSERT":
                return ["LINSERT", self.key(), "BEFORE", self.words()[0], pick(["x", "y" * 70, "z" * 5000])]
            case "LREM":
                return ["LREM", self.key(), pick([0, 1, -1]), self.words()[0]]
            case "LTRIM":
                return ["LTRIM", self.key(), pick([0, 1, 60]), pick([-1, -2, 100])]
            case "LMOVE":
                return ["LMOVE", self.key(), self.key(), pick(["LEFT", "RIGHT"]), pick(["LEFT", "RIGHT"])]
            case "RENAME" | "COPY" as name:
                return [name, self.key(), self.key(), *(["REPLACE"] if name == "COPY" else [])]
            case "DEL":
                return ["DEL", self.key()]
            case "HSETNX" | "HINCRBY" as name:
                return [name, self.key(), self.words()[0], self.random.randrange(1000)]
            case "RESTORE":
                return ["RESTORE", self.key(), 0, self.key(), "REPLACE"]
            case "RELOAD":
                return ["DEBUG", "RELOAD"]


class Difference(Exception):
    """The first difference between two servers that run a script."""


def run(script, clients):
    """Runs a script on two servers. Raises at the first difference."""
    for client in clients:
        client.raw("FLUSHALL")
        for name, value in DEFAULTS.items():
            client.raw("CONFIG", "SET", name, value)
    for number, command in enumerate(script):
        if command[0] == "RESTORE":
            # Both servers read the payload that SlimIO writes.
            payload = clients[0].raw("DUMP", command[3])[1]
            if payload is None:
                continue
            command = [*command[:3], payload, *command[4:]]
        replies = [client.raw(*command) for client in clients]
        seen = [[client.raw("OBJECT", "ENCODING", key)[1] for key in KEYS] for client in clients]
        if replies[0] != replies[1] or seen[0] != seen[1]:
            shown = [str(word)[:40] for word in command[:8]]
            raise Difference(f"at command {number}, {shown} of {len(command)} words: replies {replies}, encodings {seen}")


def fails(script, clients):
    try:
        run(script, clients)
    except Difference:
        return True
    return False


def cut_down(script, clients):
    """A shorter script that still shows a difference."""
    size = len(script)
    while size > 0:
        at = 0
        while at < len(script):
            shorter = script[:at] + script[at + size :]
            if fails(shorter, clients):
                script = shorter
            else:
                at += size
        size //= 2
    return script


def shown(command):
    words = [str(word)[:30] for word in command]
    return words if len(words) <= 12 else [*words[:5], f"... {len(words)} words", words[-1]]


@slimio_only
class Encodings(TestCase):
    seconds = 30

    def check(self, name):
        program = os.path.join(TARGET.peers, name, "server")
        if not os.access(program, os.X_OK):
            self.skipTest(f"{name} is not installed; cargo x peers gets it")
        servers = [self.enterContext(Server(stock=program if is_peer else False, enable_debug_command="yes"))
                   for is_peer in (False, True)]
        clients = [self.enterContext(server.client()) for server in servers]
        for number in range(TARGET.rounds or ROUNDS):
            draw = Draw(f"{TARGET.seed} {number}")
            script = [draw.command() for _ in range(COMMANDS_PER_ROUND)]
            try:
                run(script, clients)
            except Difference:
                script = cut_down(script, clients)
                with self.assertRaises(Difference) as caught:
                    run(script, clients)
                lines = "\n".join(str(shown(command)) for command in script)
                self.fail(f"round {number} of --seed {TARGET.seed}: {caught.exception}\n{lines}")

    def test_as_in_redis_8(self):
        self.check("redis-8")

    def test_as_in_valkey_9(self):
        self.check("valkey-9")
