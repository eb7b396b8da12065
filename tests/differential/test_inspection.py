"""Compares SLOWLOG, LATENCY, MEMORY, OBJECT and hash commands with those of stock redis-server.
Hash commands also get wrong arguments."""

import random
import unittest

from differential.replies import pairs
from harness.server import Server
from harness.target import TARGET, TestCase, stock_is_installed

HASH_COMMANDS = """HDEL HEXISTS HGET HGETALL HINCRBY HINCRBYFLOAT HKEYS HLEN HMGET HMSET HRANDFIELD HSCAN HSET
    HSETNX HSTRLEN HVALS""".split()
ARGUMENTS_MAX = 7
NUMBERS = [
    "0", "1", "-1", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "", " 1", "1 ", "+1",
    "01", "1.5", "1e3", "0x10", "abc", "-0", "1" * 30,
]
FLOATS = [
    "0", "1", "-1.5", "0.1", "3.0e3", "1e-7", "1e308", "1.7e308", "-1e308", "inf", "-inf", "+inf", "nan", "",
    " 1", "1 ", "abc", "0x10", "1e", "5e-324", "1e4000", "1.0000000000000000001", "123456789012345678901234567890",
]


@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class Inspection(TestCase):
    seconds = 12

    def setUp(self):
        self.servers = Server(enable_debug_command="yes"), Server(stock=True, enable_debug_command="yes")
        for server in self.servers:
            self.addCleanup(server.close)

    def pair(self, resp=2):
        pair = [server.client() for server in self.servers]
        for client in pair:
            self.addCleanup(client.close)
            client("FLUSHALL")
            client("HELLO", resp)
        return pair

    def both(self, clients, *request, seen=lambda reply: reply):
        """Sends the same request to both servers. `seen` must return equal values for the two
        replies."""
        with self.subTest(" ".join(str(word)[:40] for word in request)):
            ours, theirs = (seen(client.raw(*request)) for client in clients)
            self.assertEqual(ours, theirs)

    def test_hash_commands_with_any_number_of_arguments(self):
        for resp in (2, 3):
            clients = self.pair(resp)
            for name in HASH_COMMANDS:
                for key in ("none", "text", "hash"):
                    for count in range(ARGUMENTS_MAX):
                        for client in clients:
                            client("DEL", "none", "hash")
                            client("SET", "text", "v")
                            client("HSET", "hash", "1", "1")
                        self.both(clients, name, *[key, "1", "1", "2", "3", "4", "5"][:count])
                self.both(clients, name)
                self.both(clients, "HGETALL", "hash", seen=lambda reply: sorted(pairs(reply)))

    def test_hash_counters_at_their_bounds(self):
        for resp in (2, 3):
            clients = self.pair(resp)
            for start in NUMBERS + FLOATS:
                for step in NUMBERS:
                    for client in clients:
                        client("HSET", "h", "f", start)
                    self.both(clients, "HINCRBY", "h", "f", step)
                    self.both(clients, "HGET", "h", "f")
            for start in FLOATS:
                for step in FLOATS:
                    for client in clients:
                        client("HSET", "h", "f", start)
                    self.both(clients, "HINCRBYFLOAT", "h", "f", step)
                    self.both(clients, "HGET", "h", "f")
            for command in ("HINCRBY", "HINCRBYFLOAT"):
                for key, field in (("h", "new"), ("new", "f"), ("other", "f")):
                    for step in ("abc", "7"):
                        self.both(clients, command, key, field, step)
                        self.both(clients, "EXISTS", key)

    def test_hash_replies_of_many_fields(self):
        counts = ["0", "1", "-1", "5", "-5", "300", "-300", "9223372036854775807", "-9223372036854775808",
                  "-4611686018427387904", "4611686018427387904", "x"]
        for resp in (2, 3):
            clients = self.pair(resp)
            for client in clients:
                client("HSET", "small", *[word for n in range(5) for word in (f"f{n}", n)])
                client("HSET", "large", *[word for n in range(300) for word in (f"f{n}", "v" * n)])

            def shape(reply):
                kind, items = reply
                # HRANDFIELD's choice is random, so only the shape of the reply is compared.
                return (kind, len(items), items[0][0] if items else None) if kind in b"*%" else reply

            for key in ("small", "large", "none"):
                for count in counts:
                    for rest in ([], ["WITHVALUES"], ["withvalues"], ["VALUES"], ["WITHVALUES", "x"]):
                        is_huge = count.startswith("-") and len(count) > 10
                        if is_huge and key != "none" and not (rest == ["VALUES"] or len(rest) > 1):
                            # A count so far below zero would make the reply endless. So an argument
                            # is added that makes the command invalid.
                            rest = [*rest, "x"] if rest else ["x"]
                        self.both(clients, "HRANDFIELD", key, count, *rest, seen=shape)
                for command in ("HGETALL", "HKEYS", "HVALS", "HLEN"):
                    self.both(clients, command, key, seen=lambda reply: (reply[0], ordered(reply[1])))
                self.both(clients, "HMGET", key, "f1", "f4", "none", "f1")
                self.both(clients, "HSTRLEN", key, "f4")

    def test_hscan(self):
        for resp in (2, 3):
            clients = self.pair(resp)
            fields = [word for n in range(2000) for word in (f"f{n}", n)]
            for client in clients:
                client("HSET", "small", *fields[:20])
                client("HSET", "large", *fields)
                client("SET", "text", "v")
            for rest in (
                [], ["COUNT", 3], ["MATCH", "f1*"], ["MATCH", "nosuch"], ["MATCH", "*", "COUNT", 500],
                ["count", 1, "match", "f?"], ["MATCH", "f1", "MATCH", "f2"], ["COUNT", 5, "COUNT", 7],
            ):
                for key in ("small", "large", "none"):
                    found = [scanned(client, key, rest) for client in clients]
                    with self.subTest(f"{key} {rest}"):
                        self.assertEqual(*found)
            for rest in (
                ["NOVALUES"], ["COUNT"], ["COUNT", 0], ["COUNT", -1], ["COUNT", "x"], ["COUNT", 1.5], ["MATCH"],
                ["TYPE", "hash"], ["nosuch", 1], ["COUNT", 10, "NOVALUES"], ["COUNT", "9223372036854775808"],
            ):
                for key in ("small", "none", "text"):
                    self.both(clients, "HSCAN", key, 0, *rest)
            for cursor in ("x", "", "-1", "1.5", " 0", "0 ", "18446744073709551616", "+0", "00"):
                for key in ("small", "none", "text"):
                    self.both(clients, "HSCAN", key, cursor, seen=lambda reply: reply[0] == b"-" and reply)

    def test_slow_commands(self):
        for resp in (2, 3):
            clients = self.pair(resp)
            for client in clients:
                client("SET", "text", "v")
                client("CONFIG", "SET", "slowlog-max-len", 128, "slowlog-log-slower-than", 0)
                client("SLOWLOG", "RESET")
            self.both(clients, "SLOWLOG", "LEN")
            words = [f"f{n}" for n in range(40)]
            for request in (
                ["SET", "k", "x" * 127], ["SET", "k", "x" * 128], ["SET", "k", "x" * 129], ["SET", "k", "x" * 70000],
                ["DEL", *words[:30]], ["DEL", *words[:31]], ["DEL", *words[:32]], ["DEL", *words],
                ["HSET", "h", *words], ["HGET", "text", "f"], ["NOSUCH", "a"], ["GET"], ["sEt", "K", "\r\n"],
                ["SELECT", 3], ["SELECT", 0], ["CLIENT", "SETNAME", "someone"], ["AUTH", "a", "b"],
                ["CONFIG", "SET", "requirepass", ""], ["CONFIG", "SET", "timeout", 0, "masterauth", "secret"],
                ["CONFIG", "SET", "masterauth", ""], ["MULTI"], ["GET", "k"], ["INCR", "text"], ["EXEC"],
                ["MULTI"], ["DISCARD"], ["OBJECT", "HELP"], ["COMMAND", "COUNT", "x"], ["PING"],
                ["HELLO", resp, "SETNAME", "other"], ["HELLO", resp, "AUTH", "default", "wrong"],
                ["MEMORY", "USAGE", "k"], ["SLOWLOG", "LEN"], ["DEBUG", "SLEEP", "0"], ["SCAN", 0, "COUNT", 1000],
            ):
                self.both(clients, *request, seen=lambda reply: reply[0])
            for count in ([], [0], [1], [3], [100], [-1], [-2], ["x"], [1, 2]):
                self.both(clients, "SLOWLOG", "GET", *count, seen=without_moments)
            self.both(clients, "SLOWLOG", "LEN")
            for length in (5, 0, 7):
                self.both(clients, "CONFIG", "SET", "slowlog-max-len", length)
                self.both(clients, "SLOWLOG", "LEN")
                self.both(clients, "PING")
                self.both(clients, "SLOWLOG", "GET", -1, seen=without_moments)
            self.both(clients, "SLOWLOG", "RESET")
            self.both(clients, "SLOWLOG", "GET", seen=without_moments)
            self.both(clients, "CONFIG", "SET", "slowlog-log-slower-than", 100_000)
            self.both(clients, "SLOWLOG", "RESET")
            self.both(clients, "DEBUG", "SLEEP", "0.11")
            self.both(clients, "CONFIG", "SET", "slowlog-log-slower-than", -1)
            self.both(clients, "DEBUG", "SLEEP", "0.11")
            self.both(clients, "SLOWLOG", "GET", seen=without_moments)

    def test_latency(self):
        def event(reply):
            """The names of the recorded events, without the times and lengths of the delays."""
            kind, items = reply
            return kind, [[item[0], len(item[1])] for item in items], [item[1][0] for item in items]

        for resp in (2, 3):
            clients = self.pair(resp)
            self.both(clients, "LATENCY", "RESET", seen=lambda reply: reply[0])
            self.both(clients, "CONFIG", "SET", "latency-monitor-threshold", 100)
            for _ in range(2):
                self.both(clients, "DEBUG", "SLEEP", "0.11")
            self.both(clients, "CONFIG", "SET", "latency-monitor-threshold", 1_000_000)
            self.both(clients, "LATENCY", "LATEST", seen=event)
            # Two delays in the same second are one entry.
            self.both(clients, "LATENCY", "HISTORY", "command", seen=lambda reply: (
                reply[0], reply[1][0][0], [part[0] for part in reply[1][0][1]]))
            self.both(clients, "LATENCY", "HISTORY", "COMMAND")
            self.both(clients, "LATENCY", "RESET", "nosuch")
            self.both(clients, "LATENCY", "RESET", "nosuch", "command", "command")
            self.both(clients, "LATENCY", "LATEST")
            self.both(clients, "LATENCY", "HISTORY", "command")
            self.both(clients, "LATENCY", "GRAPH", "command")

    def test_latency_histograms(self):
        def counted(reply):
            kind, items = reply
            if kind not in b"*%":
                return reply
            of_commands = []
            for name, value in pairs(reply):
                inner = pairs(value)
                of_commands.append((name, value[0], [key for key, _ in inner], inner[0][1], inner[1][1][0]))
            return kind, sorted(of_commands)

        for resp in (2, 3):
            clients = self.pair(resp)
            self.both(clients, "CONFIG", "RESETSTAT")
            for number in range(20):
                self.both(clients, "SET", "k", number)
            self.both(clients, "INCR", "none")
            self.both(clients, "HGET", "k", "wrong type")
            self.both(clients, "GET")
            self.both(clients, "NOSUCH")
            self.both(clients, "CONFIG", "GET", "timeout")
            self.both(clients, "CLIENT", "GETNAME")
            self.both(clients, "LATENCY", "LATEST")
            for names in (
                [], ["set"], ["SET"], ["set", "set"], ["get"], ["nosuch"], ["set", "nosuch", "incr"], ["config"],
                ["config|get"], ["CONFIG|GET"], ["client", "hget"], ["latency"], ["config|nosuch"],
            ):
                self.both(clients, "LATENCY", "HISTOGRAM", *names, seen=counted)
            self.both(clients, "CONFIG", "RESETSTAT")
            self.both(clients, "CONFIG", "SET", "latency-tracking", "no")
            self.both(clients, "SET", "k", 1)
            self.both(clients, "LATENCY", "HISTOGRAM", "set", seen=counted)
            self.both(clients, "CONFIG", "SET", "latency-tracking", "yes")

    def test_memory(self):
        def kinds(reply):
            kind, items = reply
            if kind not in b"*%":
                return reply
            return kind, [(key[1], value[0], kinds(value) if value[0] in b"*%" else None) for key, value in pairs(reply)]

        for resp in (2, 3):
            clients = self.pair(resp)
            for client in clients:
                client("SET", "text", "v" * 1000)
                client("HSET", "small", "f", "v")
                client("HSET", "large", *[word for n in range(2000) for word in (f"f{n}", "v" * 100)])
                client("SELECT", 3)
                client("SET", "other", 1, "EX", 100)
                client("SELECT", 0)
            self.both(clients, "MEMORY", "STATS", seen=kinds)
            for command in (["DOCTOR"], ["MALLOC-STATS"]):
                self.both(clients, "MEMORY", *command, seen=lambda reply: (reply[0], bool(reply[1])))
            self.both(clients, "MEMORY", "PURGE")
            self.both(clients, "MEMORY", "HELP")
            for command in ("STATS", "DOCTOR", "PURGE", "MALLOC-STATS", "HELP", "USAGE"):
                self.both(clients, "MEMORY", command, "x", "y")
            for key in ("text", "small", "large", "none"):
                for rest in (
                    [], ["SAMPLES", 0], ["SAMPLES", 5], ["SAMPLES", 1000000], ["samples", 1], ["SAMPLES", -1],
                    ["SAMPLES"], ["SAMPLES", "x"], ["SAMPLES", 1, 2], ["SAMPLES", 1, "SAMPLES", 2], ["COUNT", 1],
                    ["SAMPLES", "9223372036854775807"], ["SAMPLES", "9223372036854775808"],
                ):
                    self.both(clients, "MEMORY", "USAGE", key, *rest, seen=lambda reply: (
                        (b":", reply[1] > 0) if reply[0] == b":" else reply))
            for client in clients:
                self.assertGreater(client("MEMORY", "USAGE", "large", "SAMPLES", 0), 2000 * 100)
                self.assertGreater(client("MEMORY", "USAGE", "large"), 2000 * 100)
                self.assertLess(client("MEMORY", "USAGE", "small"), 200)

    def test_objects(self):
        for resp in (2, 3):
            clients = self.pair(resp)
            self.both(clients, "OBJECT", "HELP")
            for client in clients:
                client("SET", "text", "v")
                client("HSET", "hash", "f", "v")
            for command in ("ENCODING", "FREQ", "IDLETIME", "REFCOUNT", "HELP", "NOSUCH"):
                for rest in ([], ["none"], ["text", "hash"]):
                    self.both(clients, "OBJECT", command, *rest)
            # Texts near the bounds at which the encoding changes.
            for number in ("0", "-1", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "01",
                           "+1", "1.0", " 1", "", "a" * 44, "a" * 45, "1" * 19, "1" * 20, "1" * 21):
                self.both(clients, "SET", "k", number)
                self.both(clients, "OBJECT", "ENCODING", "k")
            for request in (["INCRBY", "n", 5], ["APPEND", "n", "1"], ["INCR", "n"], ["INCRBYFLOAT", "n", "0.5"],
                            ["GETSET", "n", "12"], ["GETEX", "n"], ["COPY", "n", "k", "REPLACE"]):
                self.both(clients, *request)
                if request[0] != "APPEND":
                    self.both(clients, "OBJECT", "ENCODING", "n")
                    self.both(clients, "OBJECT", "ENCODING", "k")
            for size in (64, 65):
                self.both(clients, "DEL", "h")
                self.both(clients, "HSET", "h", "f", "v" * size)
                self.both(clients, "OBJECT", "ENCODING", "h")
                self.both(clients, "DEL", "h")
                self.both(clients, "HSET", "h", "f" * size, "v")
                self.both(clients, "OBJECT", "ENCODING", "h")
            for entries in (512, 3, 0):
                self.both(clients, "CONFIG", "SET", "hash-max-listpack-entries", entries)
                self.both(clients, "DEL", "h")
                for more in (entries, 1):
                    for number in range(more):
                        self.both(clients, "HSET", "h", f"{more}:{number}", number)
                    self.both(clients, "OBJECT", "ENCODING", "h")
                self.both(clients, "HDEL", "h", "1:0")
                self.both(clients, "OBJECT", "ENCODING", "h")
            self.both(clients, "CONFIG", "SET", "hash-max-listpack-entries", 128)
            # If LFU counters do not decay, it does not matter when a minute begins.
            self.both(clients, "CONFIG", "SET", "maxmemory-policy", "allkeys-lfu", "lfu-decay-time", 0)
            self.both(clients, "SET", "counted", "v")
            for _ in range(3):
                self.both(clients, "OBJECT", "FREQ", "counted")
            self.both(clients, "OBJECT", "IDLETIME", "counted")
            self.both(clients, "CONFIG", "SET", "maxmemory-policy", "noeviction")
            self.both(clients, "OBJECT", "FREQ", "counted")

    def test_how_a_string_is_kept_is_told_by_how_it_came_to_be(self):
        clients = self.pair()
        draw = random.Random(TARGET.seed)
        values = ["1", "-7", "12345", "9223372036854775807", "x", "01", "1.5", "y" * 44, "y" * 45, "2" * 21]
        for _ in range(1500):
            key, other, value = draw.choice("abc"), draw.choice("abc"), draw.choice(values)
            number = draw.choice(["1", "0", "-2", "0.5"])
            self.both(clients, *draw.choice([
                ["SET", key, value], ["SET", key, value], ["SET", key, value, "EX", "100"], ["SETNX", key, value],
                ["GETSET", key, value], ["MSET", key, value, other, value], ["DEL", key],
                ["APPEND", key, value], ["APPEND", key, "1"], ["APPEND", key, ""],
                ["SETRANGE", key, 0, "7"], ["SETRANGE", key, 43, "z"], ["SETRANGE", key, 0, ""],
                ["INCR", key], ["DECRBY", key, 3], ["INCRBYFLOAT", key, number],
                ["PERSIST", key], ["PEXPIRE", key, 100_000], ["GETEX", key, "PERSIST"],
                ["RENAME", key, other], ["COPY", key, other, "REPLACE"], ["MOVE", key, 1],
            ]))
            self.both(clients, "OBJECT", "ENCODING", key)
            self.both(clients, "OBJECT", "REFCOUNT", key)


def ordered(items):
    return sorted(items, key=repr) if isinstance(items, list) else items


def scanned(client, key, rest):
    """Everything that a whole scan finds, without duplicates, and whether the scan took several
    steps."""
    cursor, steps, found = b"0", 0, set()
    while steps == 0 or cursor != b"0":
        _, ((_, cursor), (kind, items)) = client.raw("HSCAN", key, cursor, *rest)
        steps += 1
        assert kind == b"*" and len(items) % 2 == 0
        found.update((field[1], value[1]) for field, value in zip(items[::2], items[1::2]))
    return steps > 1, sorted(found)


def without_moments(reply):
    """The entries of the slow log without number, time and address. Also the differences between
    the numbers of successive entries."""
    kind, items = reply
    if kind != b"*":
        return reply
    entries = [(len(item[1]), item[1][3], item[1][5]) for item in items]
    numbers = [item[1][0][1] for item in items]
    return kind, entries, [first - second for first, second in zip(numbers, numbers[1:])]
