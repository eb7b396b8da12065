"""Measures how long all other clients wait while one client's largest requests run. The result is
the longest turn of the event loop, in CPU time of the command thread.

    python3 -B tests/faults/stops.py [--server "PROGRAM serve"]      # the table of docs/memory.md
"""

import argparse
import contextlib
import os
import sys
import threading
import time

if __name__ == "__main__":
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from harness.resp import encode
from harness.server import Server
from harness.target import TARGET

END = b"the end of it"


def join(words):
    return b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


class Requests:
    """The largest requests of each command: `count` arguments, or values of `size` bytes."""

    def __init__(self, count, size):
        self.count, self.size = count, size
        self.large = b"x" * size
        numbers = range(count)
        self.keys = join(b"key:%d" % n for n in numbers)
        self.pairs = join(word for n in numbers for word in (b"key:%d" % n, b"v"))

    def of_many(self, *head, pairs=False):
        """A request of the words `head` and many keys or fields. If `pairs` is true, each key or
        field has a value."""
        words = [word.encode() for word in head]
        count = len(words) + (2 * self.count if pairs else self.count)
        return b"*%d\r\n%s%s" % (count, join(words), self.pairs if pairs else self.keys)

    def rows(self):
        """Yields rows. Each row has a name, the requests to run first, and the measured request or
        a function that sends it."""
        large, many = self.large, self.of_many
        keys = [many("MSET", pairs=True)]
        fields = [many("HSET", "h", pairs=True)]
        text = [encode("SET", "text", large)]
        short = [encode("SET", "text", "0123456789")]
        element = [encode("HSET", "h", "f", large)]
        draw = str(self.count)
        yield "set", [], encode("SET", "text", large)
        yield "set", text, encode("SET", "text", large, "GET")
        yield "setnx", [], encode("SETNX", "text", large)
        yield "setex", [], encode("SETEX", "text", 100, large)
        yield "psetex", [], encode("PSETEX", "text", 100_000, large)
        yield "getset", text, encode("GETSET", "text", large)
        yield "get", text, encode("GET", "text")
        yield "getdel", text, encode("GETDEL", "text")
        yield "getex", text, encode("GETEX", "text", "EX", 100)
        yield "append", short, encode("APPEND", "text", large)
        yield "setrange", text, encode("SETRANGE", "text", 7, large)
        yield "getrange", text, encode("GETRANGE", "text", 3, -2)
        yield "substr", text, encode("SUBSTR", "text", 3, -2)
        yield "strlen", text, encode("STRLEN", "text")
        for name in ("incr", "decr", "incrbyfloat", "incrby", "decrby"):
            by = [] if name in ("incr", "decr") else [1]
            yield name, text, encode(name, "text", *by)
        yield "incrby", [], encode("INCRBY", "n", large)
        for name in ("mset", "msetnx"):
            yield name, [], many(name, pairs=True)
        yield "mset", keys, many("MSET", pairs=True)
        for name in ("mget", "del", "unlink", "exists", "touch"):
            yield name, keys, many(name)
        for name in ("hset", "hmset"):
            yield name, [], many(name, "h", pairs=True)
            yield name, fields, many(name, "h", pairs=True)
        for name in ("hmget", "hdel"):
            yield name, fields, many(name, "h")
        yield "hset", [], encode("HSET", "h", "f", large)
        yield "hsetnx", [], encode("HSETNX", "h", "f", large)
        yield "hget", element, encode("HGET", "h", "f")
        yield "hincrby", element, encode("HINCRBY", "h", "f", 1)
        yield "hincrbyfloat", element, encode("HINCRBYFLOAT", "h", "f", 1)
        yield "hexists", fields, encode("HEXISTS", "h", "f")
        yield "hlen", fields, encode("HLEN", "h")
        yield "hstrlen", element, encode("HSTRLEN", "h", "f")
        for name in ("hgetall", "hkeys", "hvals"):
            yield name, fields, encode(name, "h")
        yield "hrandfield", fields, encode("HRANDFIELD", "h", draw, "WITHVALUES")
        yield "hrandfield", fields, encode("HRANDFIELD", "h", "-" + draw, "WITHVALUES")
        yield "hscan", fields, encode("HSCAN", "h", 0, "COUNT", draw)
        yield from self.of_sets(draw)
        yield from self.of_lists(draw)
        for name, value in (("copy", text), ("copy", fields), ("rename", fields), ("renamenx", fields)):
            yield name, value, encode(name, "text" if value is text else "h", "other")
        yield "move", fields, encode("MOVE", "h", 1)
        yield "del", fields, encode("DEL", "h")
        for name in ("expire", "pexpire", "expireat", "pexpireat"):
            yield name, fields, encode(name, "h", 1)
        for name in ("expiretime", "pexpiretime", "ttl", "pttl", "persist", "type"):
            yield name, fields, encode(name, "h")
        for value, key in ((text, "text"), (fields, "h")):
            yield "dump", value, encode("DUMP", key)
            yield "restore", value, restore_dump_of(key)
            yield "debug", value, encode("DEBUG", "DIGEST-VALUE", key)
        yield "debug", keys, encode("DEBUG", "DIGEST")
        yield "object", fields, encode("OBJECT", "ENCODING", "h")
        yield "memory", fields, encode("MEMORY", "USAGE", "h", "SAMPLES", 0)
        yield "keys", keys, encode("KEYS", "*")
        yield "scan", keys, encode("SCAN", 0, "COUNT", draw)
        for name in ("randomkey", "dbsize", "flushall", "flushdb"):
            yield name, keys, encode(name)
        yield "swapdb", keys, encode("SWAPDB", 0, 1)
        for name in ("bgsave", "bgrewriteaof", "save", "lastsave"):
            yield name, keys, encode(name)
        yield "debug", [], encode("DEBUG", "POPULATE", draw)
        for name in ("echo", "ping"):
            yield name, [], encode(name, large)
        yield "auth", [], encode("AUTH", large)
        yield "hello", [], encode("HELLO", 3, "SETNAME", large)
        yield "client", [], encode("CLIENT", "SETNAME", large)
        yield "client", [], many("CLIENT", "LIST", "ID")
        for name, word in (
            ("config", "GET"),
            ("config", "SET"),
            ("command", "INFO"),
            ("command", "DOCS"),
            ("command", "GETKEYS"),
            ("latency", "RESET"),
            ("latency", "HISTOGRAM"),
            ("slowlog", "GET"),
            ("slimio", "PIN"),
        ):
            yield name, [], many(name, word)
        yield "command", [], encode("COMMAND")
        yield "info", [], many("INFO")
        yield "info", [], encode("INFO", "everything")
        for name in ("select", "waitaof", "shutdown", "time"):
            yield name, [], many(name)
        yield "unknown command with a large name", [], encode(large)
        yield "unknown command with many arguments", [], many("nosuch")
        yield "a pipeline of SET", [], b"".join(encode("SET", n, "v") for n in range(self.count // 10))
        yield from self.queued()
        yield from self.watched()
        yield from self.pipelines(keys, fields)
        yield "keys that expire", [*keys, many("DEL")], expire_many
        yield "50 clients with KEYS", keys, keys_for_many

    def of_sets(self, draw):
        """The rows of sets. The members of the set `s` are the names of the keys. The set `t` has
        half of these members, and an equal number of others."""
        many = self.of_many
        other = join(b"key:%d" % (n * 2) for n in range(self.count))
        both = [many("SADD", "s"), b"*%d\r\n%s%s" % (self.count + 2, join([b"SADD", b"t"]), other)]
        yield "sadd", [], many("SADD", "s")
        yield "sadd", both, many("SADD", "s")
        # This member has only 1 MiB. A member is hashed in one step. If the member had many
        # megabytes, this step would be the longest.
        yield "sadd", [], encode("SADD", "s", self.large[: 1 << 20])
        for name in ("srem", "smismember"):
            yield name, both, many(name, "s")
        yield "sismember", both, encode("SISMEMBER", "s", "key:7")
        for name in ("scard", "smembers", "spop", "srandmember", "del"):
            yield name, both, encode(name, "s")
        yield "smove", both, encode("SMOVE", "s", "t", "key:7")
        for count in (draw, str(self.count * 2 // 3 + 1), str(self.count // 20 + 1)):
            yield "spop", both, encode("SPOP", "s", count)
            yield "srandmember", both, encode("SRANDMEMBER", "s", count)
        yield "srandmember", both, encode("SRANDMEMBER", "s", "-" + draw)
        yield "sscan", both, encode("SSCAN", "s", 0, "COUNT", draw)
        for name in ("sinter", "sunion", "sdiff"):
            yield name, both, encode(name, "s", "t")
            yield name, both, many(name, "s")
            yield name + "store", both, encode(name + "store", "d", "s", "t")
            yield name + "store", both, many(name + "store", "d", "s")
        yield "sintercard", both, encode("SINTERCARD", 2, "s", "t")
        yield "sintercard", both, many("SINTERCARD", str(self.count))

    def of_lists(self, draw):
        """The rows of lists. The elements of the list `l` are the names of the keys. The list `m`
        has one element."""
        many, half = self.of_many, str(self.count // 2)
        both = [many("RPUSH", "l"), encode("RPUSH", "m", "one")]
        for name in ("lpush", "rpush"):
            yield name, [], many(name, "l")
            yield name, both, many(name, "l")
            yield name, [], encode(name, "l", self.large)
            yield name + "x", both, many(name + "x", "l")
        for name in ("lpop", "rpop"):
            for count in ([], [half], [draw]):
                yield name, both, encode(name, "l", *count)
        for name in ("llen", "del"):
            yield name, both, encode(name, "l")
        yield "lindex", both, encode("LINDEX", "l", half)
        yield "lset", both, encode("LSET", "l", half, self.large)
        yield "lrange", both, encode("LRANGE", "l", 0, -1)
        yield "ltrim", both, encode("LTRIM", "l", half, -1)
        yield "linsert", both, encode("LINSERT", "l", "AFTER", f"key:{self.count - 1}", self.large)
        for count in (0, 1, -1):
            yield "lrem", both, encode("LREM", "l", count, "key:7")
            yield "lrem", both, encode("LREM", "l", count, "none")
        yield "lrem", [encode("RPUSH", "l", *["x"] * self.count)], encode("LREM", "l", -self.count // 2, "x")
        yield "lpos", both, encode("LPOS", "l", "none", "COUNT", 0)
        yield "lpos", both, encode("LPOS", "l", "key:7", "RANK", -1)
        yield "blpop", both, encode("BLPOP", *["none"] * 1000, "l", 0)
        yield "brpop", both, encode("BRPOP", "l", 0)
        yield "blmove", both, encode("BLMOVE", "l", "m", "LEFT", "LEFT", 0)
        yield "brpoplpush", both, encode("BRPOPLPUSH", "m", "l", 0)
        yield "blmpop", both, encode("BLMPOP", 0, 2, "none", "l", "LEFT", "COUNT", draw)
        yield "lmove", both, encode("LMOVE", "l", "m", "LEFT", "LEFT")
        yield "rpoplpush", both, encode("RPOPLPUSH", "m", "l")
        yield "lmpop", both, encode("LMPOP", 2, "none", "l", "LEFT", "COUNT", draw)
        yield "lmpop", both, b"*%d\r\n%s%s%s" % (self.count + 3, join([b"LMPOP", draw.encode()]), self.keys, join([b"LEFT"]))

    def queued(self):
        """Requests that are queued and then discarded."""
        for name in ("MSET", "EXISTS"):
            queued = self.of_many(name, pairs=name == "MSET")
            yield f"queueing {name}", [], encode("MULTI") + queued + encode("DISCARD")
        yield "queueing PING", [], encode("MULTI") + encode("PING") * self.count + encode("DISCARD")

    def watched(self):
        """Many keys that are watched, and then watched no more."""
        keys = [f"key:{n}" for n in range(self.count)]
        parts = [encode("WATCH", *keys[at : at + 2000]) for at in range(0, self.count, 2000)]
        yield "watch", [], b"".join(parts)
        yield "unwatch", [], b"".join(parts) + encode("UNWATCH")

    def pipelines(self, keys, fields):
        """Many requests that each take long, and requests that repeat an option any number of
        times."""
        yield "incrbyfloat", [], encode("INCRBYFLOAT", "n", "1e-11999") * 500
        yield "scan", keys, encode("SCAN", 0, "COUNT", 10_000, "MATCH", "*no*such*key*") * 300
        names = [f"key:{n}" for n in range(1000)]
        yield "hmget", fields, encode("HMGET", "h", *names) * 500
        yield "del", keys, encode("DEL", *names) * 500
        yield "set", [], encode("SET", "k", "v", *["NX"] * self.count)
        patterns = ["MATCH", "*a" * 1000] * 500
        yield "scan", [], encode("SCAN", 0, *patterns)
        yield "config", [], encode("CONFIG", "GET", *["*a*b*"] * 128)


def talk(server, request):
    """Sends a request, and reads its whole reply."""
    with server.client() as client:
        client.socket.settimeout(60)
        end = encode("ECHO", END)
        sender = threading.Thread(target=client.socket.sendall, args=(request + end,))
        sender.start()
        tail = b""
        while not tail.endswith(END + b"\r\n"):
            received = client.socket.recv(1 << 20)
            if not received:
                break
            tail = (tail + received)[-64:]
        sender.join()


def restore_dump_of(key):
    """A function that dumps a key, and then restores the payload as another key."""

    def restore(server, _count):
        with server.client() as client:
            payload = client("DUMP", key)
            client("CONFIG", "RESETSTAT")
        talk(server, encode("RESTORE", "other", 0, payload))

    return restore


def keys_for_many(server, _count):
    """Many clients search all keys at the same time."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.client()) for _ in range(50)]
        for client in clients:
            client.socket.settimeout(60)
            client.socket.sendall(encode("KEYS", "*no*such*key*"))
        for client in clients:
            client.read()


def expire_many(server, count):
    """Sets keys that expire at the same moment, and waits until that moment has passed."""
    with server.client() as client:
        at = int(client("TIME")[0]) * 1000 + 1500
        for start in range(0, count, 10_000):
            keys = range(start, min(start + 10_000, count))
            client.pipeline([["SET", f"key:{n}", "v", "PXAT", max(at, 1)] for n in keys])
        client("CONFIG", "RESETSTAT")
    time.sleep(2.5)


def longest_stop(requests, before, request):
    """Runs a request on a new server. Returns the CPU time of the longest turn, in
    milliseconds."""
    flags = {"command_cpu_tracking": "yes", "enable_debug_command": "yes"}
    with Server(client_output_buffer_limit="normal 0 0 0", **flags) as server:
        for each in before:
            talk(server, each)
        with server.client() as client:
            client("CONFIG", "RESETSTAT")
            if callable(request):
                request(server, requests.count // 4)
            else:
                talk(server, request)
            lines = client("INFO", "slimio").decode().split("\r\n")
        line = next(line for line in lines if line.startswith("turn_cpu_us_max:"))
        return int(line.partition(":")[2]) / 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="target/release/slimio serve")
    parser.add_argument("--folder", default="target/stops")
    parser.add_argument("words", nargs="*", help="measure only rows whose names contain one of these words")
    options = parser.parse_args()
    TARGET.set_command(options.server)
    TARGET.folder = options.folder
    requests = Requests(1_000_000, 64 << 20)
    slowest = {}
    for name, before, request in requests.rows():
        if options.words and not any(word in name for word in options.words):
            continue
        took = longest_stop(requests, before, request)
        slowest[name] = max(slowest.get(name, 0), took)
    print("| command | longest turn, CPU ms |\n|---|---:|")
    for name, took in sorted(slowest.items(), key=lambda row: -row[1]):
        print(f"| {name} | {took:.1f} |")


if __name__ == "__main__":
    main()
