"""Memory limits while clients hold much memory, compared with stock redis-server: which writes are
refused, and how many keys remain. Once the clients have left, their memory must be free for
keys."""

import contextlib
import re
import socket
import time
import unittest

from differential.info import fields
from harness.resp import encode
from harness.server import Server
from harness.target import TestCase, slimio_only, stock_is_installed
from harness.wait import until

MIB = 1 << 20
# Memory limit minus the memory that the server uses at the start, in bytes.
ROOM = 12 * MIB
VALUE_SIZE = 1000
# More keys than fit into the limit.
KEYS = 13_000
BATCH = 500
# Allowance in bytes for other memory: connections, tables that double, the allocator's rounding,
# buffers for requests and replies.
SLACK = 2 * MIB
# Number of keys in SlimIO divided by the number in stock. A key takes some 1080 bytes in SlimIO,
# and some 1110 bytes in stock. The bounds also allow for stock's tables, which double now and then,
# and for buffers for requests and replies.
KEYS_RATIO = (0.85, 1.3)
# While clients hold memory, fewer keys remain. `HELD_RATIO` is the memory of the missing keys,
# divided by the memory that the clients should hold. A watched key takes 100 bytes in SlimIO and
# 160 bytes in stock, and stock's buffers are larger than their contents.
HELD_RATIO = (0.7, 1.9)
# `USED_RATIO` is the growth of memory that INFO reports, divided by the memory that the clients
# should hold. `RSS_RATIO` is the growth of RSS, divided by the growth that INFO reports.
USED_RATIO = (0.6, 2.0)
RSS_RATIO = (0.5, 3.0)
# Marks a case in which only SlimIO closes the connection. Stock does not count queued commands as
# part of the request, so it has no limit for them.
OURS_ONLY = object()
POLICIES = ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-ttl", "noeviction"]


def half_a_request(client):
    """A large argument whose end is missing."""
    client.send(b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$%d\r\n" % (MIB + 1000) + b"x" * MIB)


def a_queue(client):
    """Requests that MULTI has queued."""
    client("MULTI")
    client.pipeline([["SET", f"queued:{number}", "x" * 10_000] for number in range(100)])


def watched_keys(client):
    client.pipeline([["WATCH", *[f"watched:{number}:{n}" for n in range(100)]] for number in range(100)])


def unread_replies(client):
    """Replies that nobody reads: more than fit into the kernel's buffers."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    client.send(encode("ECHO", "x" * 10_000) * 2000)


# Ways for a client to hold memory, and how much each holds.
HOLDERS = {half_a_request: MIB, a_queue: MIB, watched_keys: MIB}


@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class MemoryLimits(TestCase):
    seconds = 25

    def serve(self, **flags):
        servers = [Server(stock=stock, save="", enable_debug_command="yes", **flags) for stock in (False, True)]
        for server in servers:
            self.addCleanup(server.close)
        return servers

    def client(self, server):
        client = server.client()
        self.addCleanup(client.close)
        return client

    def number(self, server, name):
        return int(server.info("everything")[name])

    def resident(self, server):
        """RSS as the kernel reports it, because stock updates the number in INFO only now and
        then."""
        with open(f"/proc/{server.process.pid}/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS:"))

    def used(self, server):
        """The memory that the limit applies to."""
        # Both numbers are from one reply, because the memory that is not counted comes and goes:
        # old values that are held for a snapshot, and in stock the part of the log that is not
        # written yet.
        info = server.info("memory")
        return int(info["used_memory"]) - int(info["mem_not_counted_for_evict"])

    def hold(self, server, way, count):
        clients = [self.client(server) for _ in range(count)]
        for client in clients:
            way(client)
        if way is half_a_request:
            # The server does not reply to half a request, so the test looks for it in CLIENT LIST.
            until(lambda: self.large_requests(server) == count, what="half a request from each client")
        return clients

    def large_requests(self, server):
        """Number of clients that have sent at least a megabyte of a request that has not run."""
        with server.client() as client:
            listed = client("CLIENT", "LIST").decode()
        # The servers need different fields. In stock, `tot-mem` also counts room for bytes that
        # have not arrived. SlimIO does not count a large argument in `qbuf`.
        field = "qbuf" if server.is_stock else "tot-mem"
        return sum(int(size) >= MIB for size in re.findall(rf" {field}=(\d+)", listed))

    def leave(self, server, clients):
        for client in clients:
            client.close()
        # Only the client that asks may still be connected.
        until(lambda: self.number(server, "connected_clients") == 1, what="the clients leaving")

    def write(self, server, options):
        """Sets all keys; returns how many keys remain, and the errors of the writes that were
        refused."""
        words = set()
        with server.client() as client:
            for start in range(0, KEYS, BATCH):
                replies = client.pipeline([["SET", f"key:{number}", "v" * VALUE_SIZE, *options]
                                           for number in range(start, start + BATCH)])
                words.update(text for kind, text in replies if kind == b"-")
            self.assertLess(self.used(server), int(client("CONFIG", "GET", "maxmemory")[1]) + SLACK)
            keys = client("DBSIZE")
            client("FLUSHALL")
        return keys, words

    def test_what_clients_hold_is_no_room_for_keys_until_they_leave(self):
        servers = self.serve()
        for policy in POLICIES:
            options = ["EX", "100000"] if policy.startswith("volatile") else []
            seen = []
            for server in servers:
                with server.client() as client:
                    client("CONFIG", "SET", "maxmemory", self.used(server) + ROOM, "maxmemory-policy", policy)
                held = [client for way in HOLDERS for client in self.hold(server, way, 2)]
                fewer, refused = self.write(server, options)
                self.leave(server, held)
                # The keys are set again at once, while the allocator still keeps the memory that
                # the clients held.
                more, refused_then = self.write(server, options)
                seen.append((fewer, more, refused, refused_then))
                with server.client() as client:
                    client("CONFIG", "SET", "maxmemory", "0")
            with self.subTest(policy=policy):
                self.check(policy, *seen)

    def check(self, policy, ours, theirs):
        self.assertEqual(ours[2:], theirs[2:])
        self.assertEqual([bool(words) for words in ours[2:]], [policy == "noeviction"] * 2)
        self.assertBetween(ours[1] / theirs[1], KEYS_RATIO, f"{ours[1]} keys in SlimIO, {theirs[1]} in stock")
        for fewer, more, *_ in (ours, theirs):
            held = 2 * sum(HOLDERS.values())
            self.assertBetween((more - fewer) * (VALUE_SIZE + 100) / held, HELD_RATIO, f"{fewer} keys beside the clients' memory, then {more}")

    def assertBetween(self, value, bounds, what):
        self.assertTrue(bounds[0] <= value <= bounds[1], f"{what}: {value:.2f}, not in {bounds}")

    def is_steady(self, server):
        before = self.used(server)
        time.sleep(0.1)
        return abs(self.used(server) - before) < SLACK / 10

    def test_memory_in_use_is_what_clients_hold(self):
        for way, size, count in ((half_a_request, MIB, 12), (a_queue, MIB, 12), (watched_keys, MIB, 12),
                                 (unread_replies, 16 * MIB, 1)):
            for server in self.serve():
                before = self.used(server), self.resident(server)
                held = self.hold(server, way, count)
                name = f"{way.__name__}, {'stock' if server.is_stock else 'ours'}"
                wanted = before[0] + size * count * USED_RATIO[0]
                with self.subTest(name):
                    until(lambda: self.used(server) >= wanted, what=f"{name}: memory in use")
                    # Commands that the server has received may not have run yet.
                    until(lambda: self.is_steady(server), what=f"{name}: memory at rest")
                    used, rss = self.used(server) - before[0], self.resident(server) - before[1]
                    self.assertBetween(used / (size * count), USED_RATIO, "in use")
                    self.assertBetween(rss / used, RSS_RATIO, "in memory")
                    if not server.is_stock:
                        # Stock updates this sum only now and then.
                        self.assertBetween(self.number(server, "mem_clients_normal") / used, (0.8, 1.1), "of clients")
                    self.leave(server, held)
                    self.assertLess(self.used(server) - before[0], SLACK, "after the clients have left")
                server.close()

    def is_connected(self, server, number):
        with server.client() as client:
            return client("CLIENT", "LIST", "ID", number) != b""

    def test_limits_to_what_one_client_may_hold(self):
        limits = {"client_output_buffer_limit": "normal 8mb 0 0", "client_query_buffer_limit": "1mb"}
        half = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3000000\r\n"
        for what, data, is_closed in (
            ("replies within the limit", encode("ECHO", "x" * 10_000) * 600, False),
            ("replies beyond the limit", encode("ECHO", "x" * 10_000) * 2500, True),
            ("half a request within the limit", half + b"x" * 900_000, False),
            ("half a request beyond the limit", half + b"x" * 1_300_000, True),
            ("a queue within the limit", encode("MULTI") + encode("SET", "k", "x" * 10_000) * 90, False),
            ("a queue beyond the limit", encode("MULTI") + encode("SET", "k", "x" * 10_000) * 130, OURS_ONLY),
            ("a pipeline of small requests", b"*1\r\n$4\r\nPING\r\n" * 100_000, False),
        ):
            for server in self.serve(**limits):
                ends = not server.is_stock if is_closed is OURS_ONLY else is_closed
                with self.subTest(what, stock=server.is_stock):
                    client = self.client(server)
                    number = client("CLIENT", "ID")
                    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
                    try:
                        client.send(data)
                    except OSError:
                        self.assertTrue(ends)
                    if ends:
                        until(lambda: not self.is_connected(server, number), what="the end of the connection")
                    else:
                        # When all bytes have arrived, the commands have either run, or are held in
                        # the client's memory.
                        until(lambda: self.number(server, "total_net_input_bytes") >= len(data))
                        self.assertTrue(self.is_connected(server, number))
                server.close()

    def test_what_can_be_in_a_transaction_when_there_is_no_room(self):
        """Each script says which commands a client sends. At `full` and `room`, another client sets
        the memory limit. The replies also show whether EXEC runs the queued commands."""
        limits = {"full": 1, "room": 0}
        servers = self.serve()
        others = [self.client(server) for server in servers]
        for script in [
            "full|MULTI|EXEC", "full|WATCH k|MULTI|DISCARD", "MULTI|full|MULTI|room|EXEC", "MULTI|full|WATCH k|room|EXEC",
            "MULTI|full|UNWATCH|room|EXEC", "MULTI|full|GET k|room|EXEC", "MULTI|GET k|full|EXEC", "MULTI|SET k w|full|EXEC",
            "MULTI|SET k w|full|DISCARD|GET k", "MULTI|full|DISCARD|room|EXEC", "MULTI|full|RESET|EXEC",
            "MULTI|full|NOSUCH|room|EXEC", "MULTI|full|MULTI|EXEC", "MULTI|DEL k|full|EXEC x|EXEC", "MULTI|full|EXEC",
            "WATCH k|MULTI|full|WATCH|room|EXEC", "MULTI|MULTI|WATCH k|GET k|EXEC", "full|MULTI|MULTI|DISCARD|SET k w",
            "MULTI|full|WATCH k|DISCARD|MULTI|room|EXEC",
        ]:
            replies = []
            for server, other in zip(servers, others):
                replies.append([])
                with server.client() as client:
                    other("CONFIG", "SET", "maxmemory", 0)
                    client("SET", "k", "v")
                    for line in script.split("|"):
                        if line in limits:
                            other("CONFIG", "SET", "maxmemory", limits[line])
                        else:
                            replies[-1].append((line, client.raw(*line.split())))
            with self.subTest(script):
                self.assertEqual(*replies)

    def test_the_largest_clients_go_when_all_take_too_much(self):
        evicted = []
        for server in self.serve():
            observer = self.client(server)
            self.assertEqual(observer.raw("CONFIG", "SET", "maxmemory-clients", "10mb"), (b"+", b"OK"))
            clients = [self.client(server) for _ in range(4)]
            clients[0]("CLIENT", "NO-EVICT", "on")
            for client, size in zip(clients, (1 << 20, 20 << 20, 100, 100)):
                client("MULTI")
                # A client may be closed while it sends.
                with contextlib.suppress(ConnectionError):
                    client.send(encode("SET", "k", "x" * size))
            until(lambda: fields(observer("INFO", "stats"))["evicted_clients"] == "1", what="an eviction")
            listed = observer("CLIENT", "LIST").decode()
            evicted.append([client.closed_by_server() for client in clients[1:2]] + [listed.count(" multi=")])
            observer("CONFIG", "SET", "maxmemory-clients", "0")
        self.assertEqual(*evicted)
        self.assertEqual(evicted[0], [True, 4])
