"""Several clients send random commands at once, to SlimIO and to stock redis-server. Keys are
watched, keys expire between commands, and databases are swapped."""

import io
import random
import select
import time
import unittest

from differential.info import fields
from differential.replies import same
from differential.test_random import different_state
from harness.resp import Client, encode
from harness.server import Server
from harness.target import TARGET, TestCase, stock_is_installed
from harness.wait import until

CLIENTS = 3
STEPS = 400
ROUNDS = 20
KEYS = ("a", "b")
DBS = ("0", "1")
# Lifetime of a key that is to expire soon. No `PEXPIRE` sets this lifetime, because stock Redis
# reads the clock twice in a `PEXPIRE`. If the lifetime passes between the two readings, stock Redis
# deletes the key immediately.
SOON_MS = "2"
# After this time, a key with the lifetime `SOON_MS` has expired.
EXPIRED_AFTER_SECONDS = 0.004


def drawn(draw):
    """A random command, weighted by how often it is listed."""
    key, other, db = draw.choice(KEYS), draw.choice(KEYS), draw.choice(DBS)
    return draw.choice([
        ["WATCH", key], ["WATCH", key], ["WATCH", key, other], ["UNWATCH"],
        ["MULTI"], ["MULTI"], ["MULTI"], ["EXEC"], ["EXEC"], ["EXEC"], ["DISCARD"],
        ["SET", key, "v"], ["SET", key, "v", "PX", SOON_MS], ["SET", key, "v", "PX", SOON_MS],
        ["APPEND", key, "w"], ["GET", key], ["GET", key], ["EXISTS", key, other], ["DEL", key],
        ["PERSIST", key], ["GETEX", key, "PX", SOON_MS], ["PEXPIRE", key, "100000"], ["RENAME", key, other],
        ["MOVE", key, db], ["COPY", key, other, "DB", db], ["SELECT", db],
        ["SWAPDB", *DBS], ["SWAPDB", *DBS], ["SWAPDB", db, db], ["FLUSHDB"], ["FLUSHALL"],
        ["DBSIZE"],
    ])


def is_soon(command):
    """Whether a command lets a key expire soon."""
    return command[-1] == SOON_MS and "PX" in command


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
                # Active expiry is off, because otherwise the two servers would delete an expired
                # key at different times.
                client("DEBUG", "SET-ACTIVE-EXPIRE", "0")
            history = []
            for _ in range(STEPS):
                number, command = draw.randrange(CLIENTS), drawn(draw)
                replies = [client.raw(*command) for client in clients[number]]
                history.append((number, *command, replies[1]))
                lines = "\n".join(map(str, history[-30:]))
                self.assertEqual(*replies, f"{command}, after these commands:\n{lines}")
                if is_soon(command) or command[0] == "EXEC":
                    time.sleep(EXPIRED_AFTER_SECONDS)
        finally:
            for pair in clients:
                for client in pair:
                    client.close()


PAUSED_STEPS = 250
PAUSED_ROUNDS = 20
LONG_MS = 600_000
SHORT_MS = 20


class Arriving(Client):
    """A client whose replies are read without waiting."""

    def __init__(self, address):
        super().__init__(address)
        self.id = self("CLIENT", "ID")
        self.socket.setblocking(False)
        self.received = b""
        self.whole = []

    def has(self, count):
        """Whether `count` replies have arrived."""
        try:
            while piece := self.socket.recv(1 << 16):
                self.received += piece
        except BlockingIOError:
            pass
        self.stream = io.BytesIO(self.received)
        try:
            while True:
                at = self.stream.tell()
                self.whole.append(self.read())
        except ConnectionError:
            self.received = self.received[at:]
        return len(self.whole) >= count

    def take(self, count):
        taken, self.whole = self.whole[:count], self.whole[count:]
        return taken


class Pair:
    """The same client on both servers, and its commands that have no reply yet."""

    def __init__(self, servers):
        self.servers = servers
        self.clients = []
        self.connect()

    def connect(self):
        self.close()
        self.clients = [Arriving(server.address) for server in self.servers]
        self.open, self.in_multi, self.is_held = [], False, False

    def close(self):
        for client in self.clients:
            client.close()

    def send(self, commands, replied):
        """Sends `commands`, of which `replied` get a reply."""
        data = b"".join(encode(*command) for command in commands)
        for client in self.clients:
            client.send(data)
        self.open += replied

    def has_replied(self):
        return all([client.has(len(self.open)) for client in self.clients])

    def take(self):
        """The replies that have arrived from both servers, as (command, our reply, stock's
        reply)."""
        count = min(len(self.open), *(len(client.whole) for client in self.clients))
        replies = list(zip(self.open, *(client.take(count) for client in self.clients)))
        self.open = self.open[len(replies):]
        for command, _, reply in replies:
            if command[0] == "MULTI" and reply == (b"+", b"OK"):
                self.in_multi = True
            elif command[0] in ("EXEC", "DISCARD"):
                self.in_multi = False
        return replies


def unit(draw, pair, number, is_paused):
    """Commands that belong together, and the commands among them that get a reply."""
    chance = draw.random()
    is_free = not pair.in_multi and not pair.open
    if chance < 0.04 and is_free:
        inner = [other for other in (plain(draw, number, True) for _ in range(3)) if other[0] not in ("MULTI", "EXEC")]
        commands = [["CLIENT", "REPLY", "OFF"], *inner, ["CLIENT", "REPLY", "ON"]]
        return commands, commands[-1:]
    if chance < 0.08 and is_free:
        commands = [["CLIENT", "REPLY", "SKIP"], ["APPEND", draw.choice(KEYS), "s"], ["PING"]]
        return commands, commands[-1:]
    if chance < 0.11 and is_free:
        commands = [["HELLO", draw.choice("23")]]
        return commands, commands
    commands = [plain(draw, number, is_paused or not is_free) for _ in range(draw.choice([1, 1, 1, 1, 2, 4]))]
    if len(commands) > 1:
        # No key may expire soon, because these commands are sent together. The key might expire
        # between two of them on only one server.
        commands = [command for command in commands if not is_soon(command)] or [["PING"]]
    return commands, commands


def plain(draw, number, is_timeless):
    """A command; if `is_timeless`, it sets no expiry in the near future."""
    key, db = draw.choice(KEYS), draw.choice(DBS)
    command = draw.choice([drawn(draw), drawn(draw), ["APPEND", key, str(number)], ["INCR", "n"], ["GET", "n"],
                           ["SET", key, "v", "PXAT", "1"], ["PEXPIREAT", key, "1"], ["HSET", "h", key, str(number)],
                           ["HGET", "h", key], ["EXISTS", key], ["MOVE", key, db], ["INCR", key], ["NOSUCH"], ["GET"]])
    return ["SET", key, "v", "PX", "100000"] if is_soon(command) and is_timeless else command


@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class PausedClients(TestCase):
    """Like `SeveralClients`, but commands are paused, clients are killed, and some clients turn
    replies off."""

    seconds = 20

    def setUp(self):
        self.servers = [Server(stock=stock, enable_debug_command="yes") for stock in (False, True)]
        self.observers = []
        for server in self.servers:
            self.addCleanup(server.close)
            self.observers.append(server.client())
            self.addCleanup(self.observers[-1].close)

    def both(self, *command):
        replies = [observer.raw(*command) for observer in self.observers]
        self.note("observer", command, replies[1])
        self.assertEqual(*replies, self.lines())

    def note(self, who, command, reply=None):
        self.history.append((who, *command, reply))

    def lines(self):
        return "after these steps:\n" + "\n".join(map(str, self.history[-60:]))

    def test_replies_and_state_are_those_of_redis(self):
        for number in range(TARGET.rounds or PAUSED_ROUNDS):
            seed = TARGET.seed * 1000 + number
            self.history = []
            with self.subTest(seed=seed):
                self.run_round(random.Random(seed))

    def run_round(self, draw):
        self.both("CLIENT", "UNPAUSE")
        self.both("DEBUG", "SET-ACTIVE-EXPIRE", "0")
        self.both("FLUSHALL")
        self.pairs = [Pair(self.servers) for _ in range(CLIENTS + 1)]
        self.is_paused = False
        try:
            for _ in range(PAUSED_STEPS):
                self.step(draw)
            self.go_on()
            found = different_state(self.observers)
            self.both("SELECT", 0)
            self.assertIsNone(found, self.lines())
        finally:
            for pair in self.pairs:
                pair.close()

    def step(self, draw):
        number = draw.randrange(len(self.pairs))
        pair = self.pairs[number]
        chance = draw.random()
        if chance < 0.03:
            self.both("CLIENT", "PAUSE", LONG_MS, "WRITE")
            self.is_paused = True
        elif chance < 0.08:
            self.go_on()
        elif chance < 0.09 and not self.is_paused:
            self.pause_all(draw)
        elif chance < 0.11:
            replies = [observer.raw("CLIENT", "KILL", "ID", client.id)
                       for observer, client in zip(self.observers, pair.clients)]
            self.note("observer", ("CLIENT", "KILL", number), replies[1])
            self.assertEqual(*replies, self.lines())
            pair.connect()
        else:
            self.ask(draw, number)

    def ask(self, draw, number):
        pair = self.pairs[number]
        commands, replied = unit(draw, pair, number, self.is_paused)
        for command in commands:
            self.note(number, command)
        was_held = pair.is_held
        held = sum(other.is_held for other in self.pairs)
        pair.send(commands, replied)
        for client in [] if was_held else pair.clients:
            # The reply mostly arrives within microseconds, so a short wait is enough.
            select.select([client.socket], [], [], EXPIRED_AFTER_SECONDS)
        if was_held:
            # These commands wait for the command that is held up.
            return
        self.until(lambda: pair.has_replied() or all(blocked(o) == held + 1 for o in self.observers), pair)
        pair.is_held = not pair.has_replied()
        self.check(number)
        if pair.is_held:
            self.note(number, ["is held up"])
        elif any(is_soon(command) or command[0] == "EXEC" for command in commands):
            time.sleep(EXPIRED_AFTER_SECONDS)

    def until(self, condition, pair):
        try:
            until(condition)
        except TimeoutError:
            found = [(client.whole, client.received) for client in pair.clients]
            self.fail(f"replies to {pair.open} are missing: {found}, {self.lines()}")

    def check(self, number):
        """Compares the replies that a client has received."""
        pair = self.pairs[number]
        for command, ours, theirs in pair.take():
            self.note(number, ["got"], theirs)
            is_same = same("hello", ours, theirs) if command[0] == "HELLO" else ours == theirs
            self.assertTrue(is_same, f"{command}: {ours}, not {theirs}, {self.lines()}")
        self.assertEqual(*[client.whole for client in pair.clients], self.lines())

    def go_on(self):
        """Ends the pause. The commands that were held up then run in the order in which they
        came."""
        self.both("CLIENT", "UNPAUSE")
        self.is_paused = False
        for number, pair in enumerate(self.pairs):
            self.until(pair.has_replied, pair)
            pair.is_held = False
            self.check(number)

    def pause_all(self, draw):
        """Pauses all commands, even reads, and even the command that would end the pause."""
        self.both("CLIENT", "PAUSE", SHORT_MS, "ALL")
        for number in draw.sample(range(len(self.pairs)), 3):
            commands, replied = unit(draw, self.pairs[number], number, True)
            self.pairs[number].send(commands, replied)
            for command in commands:
                self.note(number, command)
            # The commands must arrive in the same order at both servers.
            time.sleep(EXPIRED_AFTER_SECONDS)
        self.go_on()


def blocked(observer):
    return int(fields(observer("INFO", "clients"))["blocked_clients"])
