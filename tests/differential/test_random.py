"""Sends the same random commands to SlimIO and to Redis, over two connections to each. Every reply
must be equal, and at the end the whole state must be equal, too.

A difference is cut down to the few commands that still show it. `--seed` reproduces a run.
"""

import random
import unittest

from differential.commands import Draw, DrawLarge, DrawOfLists, DrawOfSets
from differential.replies import SLACK_MS, near, pairs, same
from harness.server import Server
from harness.target import TARGET, TestCase, stock_is_installed

COMMANDS_PER_ROUND = 400
ROUNDS = 200
LARGE_ROUNDS = 6
LIVES = 12
LARGE_LIVES = 3
DB_COUNT = 16
CHOOSING = ("spop", "srandmember")
DIFFERENCES_MAX = 8


class Pair:
    """The same connections to both servers."""

    def __init__(self, servers):
        self.servers = servers
        self.connections = []
        self.reset()

    def reset(self):
        """Fresh connections, empty databases."""
        self.reconnect()
        for client in self.connections[0]:
            client("FLUSHALL")

    def reconnect(self):
        self.close()
        self.connections = [[server.client() for server in self.servers] for _ in range(2)]

    def close(self):
        for pair in self.connections:
            for client in pair:
                client.close()

    def run(self, script):
        """Runs steps of (connection, list of commands). Returns the first difference, or None."""
        queued = [[], []]
        for number, (who, commands) in enumerate(script):
            for part in parts(commands):
                replies = [client.pipeline(part) for client in self.connections[who]]
                for command, ours, theirs in zip(part, *replies):
                    name = str(command[0]).lower()
                    if not same(name, ours, theirs, queued[who]):
                        return number, command, ours, theirs
                    if theirs == (b"+", b"QUEUED"):
                        queued[who].append(name)
                    elif name in ("exec", "discard", "reset"):
                        queued[who] = []
                if name in CHOOSING and not self.settle(who, command, ours, theirs, queued[who]):
                    return number, command, ours, theirs
        return self.state_difference(len(script))

    def settle(self, who, command, ours, theirs, queued):
        """Called after a command that chooses members at random. Makes the sets of both servers
        equal again. Returns whether our server's choice was allowed."""
        key = command[1:2]
        stock = self.connections[who][1]
        if theirs == (b"+", b"QUEUED"):
            # The command is only queued, so its choice is not known yet. If it will remove members
            # of its choice, the whole set is removed after it.
            if str(command[0]).lower() == "spop" and key:
                for client in self.connections[who]:
                    client("DEL", *key)
                queued.append("del")
            return True
        if ours[0] == b"-" or ours[1] in (None, []):
            return True
        mine, other = ([reply] if reply[0] == b"$" else reply[1] for reply in (ours, theirs))
        mine, other = ([word for _, word in words] for words in (mine, other))
        if str(command[0]).lower() == "srandmember":
            may_repeat = len(command) > 2 and str(command[2]).startswith("-")
            members = set(stock("SMEMBERS", *key))
            return members.issuperset(mine) and (may_repeat or len(set(mine)) == len(mine))
        if sorted(mine) == sorted(other):
            return len(set(mine)) == len(mine)
        # Members are added before others are removed, so that the set is never empty and the key
        # stays.
        stock("SADD", *key, *other)
        return stock("SREM", *key, *mine) == len(mine)

    def state_difference(self, number):
        clients = [server.client() for server in self.servers]
        try:
            found = different_state(clients)
        finally:
            for client in clients:
                client.close()
        return found and (number, *found)


def parts(commands):
    """The commands in pieces. Each command that chooses members at random ends a piece."""
    part = []
    for command in commands:
        part.append(command)
        if str(command[0]).lower() in CHOOSING:
            yield part
            part = []
    if part:
        yield part


def different_state(clients):
    """The first key that differs between the servers, or None. The result has the form (command,
    ours, theirs), and the command is `["(state of)", key]`.
    """
    ours, theirs = map(state_of, clients)
    for place in sorted(set(ours) | set(theirs)):
        mine, other = ours.get(place), theirs.get(place)
        if mine is None or other is None or mine[0] != other[0] or not near(mine[1], other[1], SLACK_MS):
            return ["(state of)", place], mine, other
    return None


def state_of(client):
    """Every key of every database, with its value and the date at which it expires.

    The remaining time is not used, because the two servers are asked at different times, which may
    be far apart.
    """
    state = {}
    for db in range(DB_COUNT):
        client("SELECT", db)
        keys = client("KEYS", "*")
        strings = client.pipeline([["GET", key] for key in keys])
        hashes = client.pipeline([["HGETALL", key] for key in keys])
        sets = client.pipeline([["SMEMBERS", key] for key in keys])
        lists = client.pipeline([["LRANGE", key, 0, -1] for key in keys])
        # Each of these commands reads one type, so all but one reply with an error. The errors are
        # compared, too.
        hashes = [(kind, sorted(pairs((kind, items))) if kind == b"*" else items) for kind, items in hashes]
        sets = [(kind, sorted(items) if kind == b"*" else items) for kind, items in sets]
        values = list(zip(strings, hashes, sets, lists))
        times = client.pipeline([["PEXPIRETIME", key] for key in keys])
        for key, value, time in zip(keys, values, times):
            state[db, key] = (value, time[1])
    return state


def draw_script(draw):
    """Steps of one or more commands, on either connection."""
    script = []
    count = 0
    while count < COMMANDS_PER_ROUND:
        commands = [draw.command() for _ in range(draw.random.choice([1, 1, 2, 5, 20]))]
        script.append((draw.random.choice([0, 0, 1]), commands))
        count += len(commands)
    return script


def cut_down(pair, script, shows):
    """A shorter script that still shows the difference: leaves out halves, quarters, … in turn."""
    script = [(who, [command]) for who, commands in script for command in commands]
    size = len(script) // 2
    while size:
        at = 0
        while at < len(script):
            shorter = script[:at] + script[at + size :]
            pair.reset()
            if shows(pair.run(shorter)):
                script = shorter
            else:
                at += size
        size //= 2
    pair.reset()
    return script, pair.run(script)


class Compared(TestCase):
    """Base class of the tests that compare replies."""

    def run_rounds(self, draw_class, rounds):
        with Server() as ours, Server(stock=True) as theirs:
            pair = Pair([ours, theirs])
            self.addCleanup(pair.close)
            found = {}
            for seed in range(TARGET.seed, TARGET.seed + rounds):
                pair.reset()
                script = draw_script(draw_class(random.Random(seed)))
                difference = pair.run(script)
                # One difference of each kind is enough, because cutting a script down takes long.
                if difference is not None and kind_of(difference) not in found:
                    text = explain(pair, seed, script[: difference[0] + 1], difference)
                    found[kind_of(difference)] = text
                if len(found) == DIFFERENCES_MAX:
                    break
            self.assertEqual(len(found), 0, "\n\n".join(found.values()))


def kind_of(difference):
    """The command, and the types of the two replies."""
    _, command, ours, theirs = difference
    return str(command[0]).lower(), ours and ours[0], theirs and theirs[0]


def explain(pair, seed, script, difference):
    """Cuts the script down, and describes the difference in words."""
    wanted = kind_of(difference)

    def shows(found):
        return found is not None and kind_of(found) == wanted

    script, difference = cut_down(pair, script, shows)
    lines = [f"seed {seed}; these commands, from an empty server:"]
    lines += [f"  connection {who}: {brief(commands[0])}" for who, commands in script]
    if difference is not None:
        _, command, ours, theirs = difference
        lines += [f"at {brief(command)}", f"  ours:    {brief(ours)}", f"  Redis's: {brief(theirs)}"]
    return "\n".join(lines)


def brief(value):
    text = repr(value)
    return text if len(text) < 600 else f"{text[:300]} … {text[-300:]} ({len(text)} characters)"


@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class RandomCommands(Compared):
    seconds = 60

    def test_replies_and_state_are_those_of_redis(self):
        self.run_rounds(Draw, TARGET.rounds or ROUNDS)


@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class Sets(Compared):
    seconds = 60

    def test_replies_and_state_are_those_of_redis(self):
        self.run_rounds(DrawOfSets, TARGET.rounds or ROUNDS)


@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class Lists(Compared):
    seconds = 60

    def test_replies_and_state_are_those_of_redis(self):
        self.run_rounds(DrawOfLists, TARGET.rounds or ROUNDS)


@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class LargeValues(Compared):
    seconds = 30

    def test_replies_and_state_are_those_of_redis(self):
        self.run_rounds(DrawLarge, TARGET.rounds or LARGE_ROUNDS)


@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class KilledInBetween(TestCase):
    """Runs random commands, kills the server, and starts it again. The state must equal that of a
    Redis that was not killed."""

    seconds = 30

    def run_lives(self, draw_class, lives, **flags):
        with Server(**flags) as ours, Server(stock=True) as theirs:
            pair = Pair([ours, theirs])
            self.addCleanup(pair.close)
            for seed in range(TARGET.seed, TARGET.seed + lives):
                pair.reconnect()
                script = draw_script(draw_class(random.Random(seed)))
                # The classes above compare replies; this one compares only the state.
                pair.run(script)
                self.assertIsNone(pair.state_difference(0), f"seed {seed}, before the kill")
                ours.restart()
                difference = pair.state_difference(0)
                self.assertIsNone(difference, f"seed {seed}, after the kill: {brief(difference)}")

    def test_each_policy(self):
        for policy in ("always", "everysec", "no"):
            # If stock Redis itself is under test, it gets `always`, because otherwise it may lose
            # its last writes with a kill.
            policy = "always" if TARGET.is_stock else policy
            with self.subTest(policy):
                self.run_lives(Draw, LIVES, appendfsync=policy)

    def test_sets(self):
        self.run_lives(DrawOfSets, LIVES, appendfsync="always")

    def test_lists(self):
        self.run_lives(DrawOfLists, LIVES, appendfsync="always")

    def test_large_values(self):
        self.run_lives(DrawLarge, LARGE_LIVES, appendfsync="always")
