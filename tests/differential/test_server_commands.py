"""Compares the replies to connection and server commands, word for word, with stock
redis-server."""

import random
import time
import unittest

from differential.commands import NAMES
from differential.replies import comparable_hello
from harness.resp import encode
from harness.server import Server
from harness.target import TARGET, TestCase, slimio_only, stock_is_installed
from harness.wait import until

# Each script runs on one connection. `comparable` says which parts of a reply are not compared.
SCRIPTS = {
    "ping and echo": ["PING", "PING hello", "PING a b", "ECHO", "ECHO x", "ECHO a b", "ping", "pInG"],
    "unknown": ["NOSUCH", "NOSUCH a b", "NOSUCH " + "x" * 300, "NOSUCH a " + "y" * 120 + " b c d e f"],
    "select": ["SELECT 0", "SELECT 15", "SELECT 16", "SELECT -1", "SELECT abc", "SELECT", "SELECT 1 2"],
    "hello wrong": ["HELLO 1", "HELLO 4", "HELLO abc", "HELLO 3 AUTH", "HELLO 3 AUTH default x",
                    "HELLO 3 SETNAME", "HELLO 3 NOSUCH", "HELLO 2 SETNAME with\tspace", "PING"],
    "auth without password": ["AUTH x", "AUTH default x", "AUTH other x", "AUTH", "AUTH a b c"],
    "resp3 nulls": ["HELLO 2", "GET none", "MGET none other", "SET k v", "SET k v NX", "SET k w GET",
                    "GETDEL none", "RANDOMKEY", "FLUSHALL", "RANDOMKEY", "EXEC"],
    "multi": ["MULTI", "MULTI", "SET k 1", "INCR k", "GET k", "EXEC", "EXEC", "DISCARD",
              "MULTI", "INCR", "SET k 2", "EXEC", "GET k",
              "MULTI", "NOSUCH", "EXEC",
              "MULTI", "SET k abc", "INCR k", "SET k 5", "EXEC", "GET k",
              "MULTI", "WATCH k", "EXEC", "MULTI", "DISCARD", "MULTI", "EXEC",
              "MULTI", "SELECT 3", "SET k three", "EXEC", "GET k", "SELECT 0", "GET k",
              "MULTI", "PING", "ECHO x", "DBSIZE", "FLUSHALL", "DBSIZE", "EXEC",
              "MULTI", "RESET", "EXEC", "MULTI", "UNWATCH", "EXEC", "EXEC x", "MULTI x"],
    "watch own write": ["SET k 1", "WATCH k", "SET k 2", "MULTI", "GET k", "EXEC",
                        "WATCH k", "SET k 2", "UNWATCH", "MULTI", "GET k", "EXEC", "WATCH"],
    "reset": ["SELECT 3", "CLIENT SETNAME me", "MULTI", "RESET", "CLIENT GETNAME", "EXEC", "HELLO 3",
              "RESET", "GET none", "RESET x"],
    "client names": ["CLIENT GETNAME", "CLIENT SETNAME me", "CLIENT GETNAME", "CLIENT SETNAME",
                     "CLIENT", "CLIENT NOSUCH", "CLIENT GETNAME x", "CLIENT ID x",
                     "CLIENT KILL", "CLIENT KILL 1.2.3.4:5", "CLIENT KILL ID abc", "CLIENT KILL ID 0",
                     "CLIENT KILL ID 999999", "CLIENT KILL TYPE nosuch", "CLIENT KILL NOSUCH x",
                     "CLIENT KILL SKIPME maybe", "CLIENT KILL TYPE pubsub", "CLIENT KILL USER nosuch",
                     "CLIENT LIST ID 999999", "CLIENT LIST TYPE nosuch", "CLIENT LIST NOSUCH",
                     "CLIENT LIST ID abc"],
    "pause and unblock": ["CLIENT PAUSE", "CLIENT PAUSE abc", "CLIENT PAUSE -1", "CLIENT PAUSE 1.5",
                          "CLIENT PAUSE 1 nosuch", "CLIENT PAUSE 1 ALL x", "CLIENT PAUSE 1 all",
                          "CLIENT PAUSE 1 WRITE", "SET k v", "CLIENT PAUSE 1", "PING", "GET k",
                          "CLIENT PAUSE 99999999999999999999", "CLIENT PAUSE 9223372036854775807 WRITE",
                          "GET k", "CLIENT UNPAUSE", "SET k w", "CLIENT UNPAUSE", "CLIENT UNPAUSE x",
                          "MULTI", "CLIENT PAUSE 1", "EXEC", "GET k",
                          "CLIENT UNBLOCK", "CLIENT UNBLOCK abc", "CLIENT UNBLOCK 99999",
                          "CLIENT UNBLOCK -1", "CLIENT UNBLOCK 99999 nosuch", "CLIENT UNBLOCK 99999 TIMEOUT",
                          "CLIENT UNBLOCK 99999 error", "CLIENT UNBLOCK 99999 ERROR x",
                          "CLIENT NO-EVICT", "CLIENT NO-EVICT x", "CLIENT NO-EVICT on",
                          "CLIENT NO-EVICT OFF", "CLIENT NO-EVICT on x"],
    "config rewrite without a file": ["CONFIG REWRITE", "CONFIG REWRITE x", "MULTI", "CONFIG REWRITE",
                                      "EXEC"],
    "config": ["CONFIG", "CONFIG NOSUCH", "CONFIG GET", "CONFIG GET nosuch", "CONFIG GET appendfsync",
               "CONFIG GET APPENDFSYNC", "CONFIG GET appendf*", "CONFIG GET timeout maxclients",
               "CONFIG GET maxmemory", "CONFIG GET databases", "CONFIG GET proto-max-bulk-len",
               "CONFIG GET tcp-keepalive", "CONFIG GET client-output-buffer-limit",
               "CONFIG SET", "CONFIG SET nosuch 1", "CONFIG SET timeout", "CONFIG SET timeout abc",
               "CONFIG SET timeout -1", "CONFIG SET appendfsync sometimes",
               "CONFIG SET appendfsync always", "CONFIG GET appendfsync",
               "CONFIG SET appendfsync everysec timeout 7", "CONFIG GET timeout",
               "CONFIG SET timeout 8 nosuch 1", "CONFIG GET timeout",
               "CONFIG SET timeout 8 timeout 9", "CONFIG GET timeout",
               "CONFIG SET timeout 9 appendfsync sometimes", "CONFIG GET timeout",
               "CONFIG SET databases 3", "CONFIG RESETSTAT", "CONFIG RESETSTAT x"],
    "flush and size": ["SET a 1", "SELECT 1", "SET b 1", "DBSIZE", "FLUSHDB", "DBSIZE", "SELECT 0",
                       "DBSIZE", "FLUSHDB NOSUCH", "FLUSHALL ASYNC", "DBSIZE", "FLUSHALL SYNC x",
                       "DBSIZE x"],
    "command": ["COMMAND COUNT x", "COMMAND NOSUCH", "COMMAND INFO nosuch", "COMMAND DOCS nosuch", "COMMAND GETKEYS GET a",
                "COMMAND GETKEYS MSET a 1 b 2", "COMMAND GETKEYS DEL a b c", "COMMAND GETKEYS PING",
                "COMMAND GETKEYS NOSUCH", "COMMAND GETKEYS GET", "COMMAND GETKEYS", "COMMAND LIST x",
                "COMMAND LIST FILTERBY PATTERN ge?"],
    "slowlog": ["CONFIG SET slowlog-log-slower-than -1", "SLOWLOG RESET", "SLOWLOG LEN", "SLOWLOG GET",
                "SLOWLOG GET -1", "SLOWLOG GET -2", "SLOWLOG GET x", "SLOWLOG GET 1 2", "SLOWLOG",
                "SLOWLOG NOSUCH", "SLOWLOG LEN x", "SLOWLOG HELP", "CONFIG SET slowlog-max-len -1",
                "CONFIG GET slowlog-log-slower-than"],
    "latency": ["LATENCY RESET", "LATENCY LATEST", "LATENCY LATEST x", "LATENCY HISTORY nosuch",
                "LATENCY HISTORY", "LATENCY GRAPH nosuch", "LATENCY GRAPH", "LATENCY RESET a b",
                "LATENCY", "LATENCY NOSUCH", "LATENCY HELP", "LATENCY HISTOGRAM nosuch",
                "CONFIG SET latency-tracking-info-percentiles abc",
                "CONFIG SET latency-tracking-info-percentiles 101",
                "CONFIG GET latency-tracking-info-percentiles"],
    "saving": ["SAVE x", "BGSAVE x", "BGSAVE SCHEDULE x", "BGREWRITEAOF x", "LASTSAVE x", "MULTI", "SAVE",
               "EXEC", "CONFIG SET save x", "CONFIG SET save 60", "CONFIG GET rdbcompression", "SAVE"],
    "info": ["INFO nosuch", "TIME x"],
    "debug": ["DEBUG SLEEP 0", "SET k v PXAT 4102444800000", "HSET h f 1", "DEBUG RELOAD", "GET k", "HGETALL h",
              "PEXPIRETIME k", "DEBUG RELOAD nosuch", "DEBUG NOSUCH", "DEBUG", "DEBUG OBJECT nosuch",
              "DEBUG POPULATE", "DEBUG POPULATE x", "DEBUG POPULATE 10 a b"],
    "shutdown wrong": ["SHUTDOWN NOSUCH", "SHUTDOWN SAVE NOSAVE", "SHUTDOWN ABORT"],
}

@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class SideBySide(TestCase):
    seconds = 10

    def setUp(self):
        self.ours = Server(enable_debug_command="yes")
        self.addCleanup(self.ours.close)
        self.theirs = Server(stock=True, enable_debug_command="yes")
        self.addCleanup(self.theirs.close)

    def pair(self):
        pair = self.ours.client(), self.theirs.client()
        for client in pair:
            self.addCleanup(client.close)
        return pair

    def test_scripts(self):
        for resp in (2, 3):
            for name, script in SCRIPTS.items():
                ours, theirs = self.pair()
                for client in (ours, theirs):
                    client("FLUSHALL")
                    client("CONFIG", "SET", "timeout", "0")
                    if resp == 3:
                        client("HELLO", "3")
                for number, line in enumerate(script):
                    command = line.split(" ")
                    with self.subTest(f"RESP{resp}, {name}, {number}: {line[:60]}"):
                        replies = [comparable(line, c.raw(*command)) for c in (ours, theirs)]
                        self.assertEqual(*replies)

    def test_save_points(self):
        for points in ("900 1 300 10", "900 1", "", "900", "900 1 300", "900 -1", "0 1", "-1 1", "900 0",
                       "1 1 1 1", "a b", "900 x", "3600 1",
                       # An extra blank makes an empty word, which both servers read as the number
                       # 0.
                       " 900 1", "900 1 ", "900  1", "900 ", "900  300 1", "900 1  ", " ", "  ",
                       "\t900 1", "900\t1", "900 1\n", "900 \t", "0900 +1", "900 +", "'900' 1", "1.5 1",
                       "9223372036854775807 1", "9223372036854775808 1", "-9223372036854775809 1",
                       "2147483648 2147483647"):
            for command in (["CONFIG", "SET", "save", points], ["CONFIG", "GET", "save"]):
                with self.subTest(points):
                    self.assertEqual(*(client.raw(*command) for client in self.pair()))

    def test_a_flush_does_not_keep_anybody_from_saving(self):
        script = ["SET k v", "FLUSHALL", "SAVE", "SET k v", "FLUSHALL", "SAVE", "FLUSHALL", "SET k w", "SAVE", "GET k",
                  "DEBUG RELOAD", "SAVE", "SET k v", "FLUSHDB", "SAVE", "MULTI", "FLUSHALL", "SET k x", "EXEC", "SAVE",
                  "FLUSHALL", "SET k last", "BGSAVE"]
        servers = [Server(stock=stock, appendonly="no", save="900 1", enable_debug_command="yes")
                   for stock in (False, True)]
        for server in servers:
            self.addCleanup(server.close)
        clients = [server.client() for server in servers]
        for line in script:
            replies = [client.raw(*line.split()) for client in clients]
            with self.subTest(line):
                if line == "BGSAVE":
                    # SlimIO may have to wait until the memory of an earlier snapshot is freed.
                    self.assertRegex(replies[0][1], b"Background saving (started|scheduled)")
                else:
                    self.assertEqual(*replies)
        for server, client in zip(servers, clients):
            until(lambda: server.info("persistence")["rdb_changes_since_last_save"] == "0")
            client.close()
            server.kill()
            server.start()
            with server.client() as again:
                self.assertEqual(again("GET", "k"), b"last")

    def test_hello_fields(self):
        ours, theirs = self.pair()
        for version in ("2", "3", "3", "2"):
            shapes = []
            for client in (ours, theirs):
                kind, items = client.raw("HELLO", version)
                pairs = items if kind == b"%" else list(zip(items[::2], items[1::2]))
                shapes.append([kind, [(key, value[0]) for key, value in pairs]])
                fields = {key[1]: value[1] for key, value in pairs}
                self.assertEqual(fields[b"proto"], int(version))
                self.assertEqual(fields[b"mode"], b"standalone")
                self.assertEqual(fields[b"role"], b"master")
            self.assertEqual(*shapes)

    def test_authentication(self):
        ours, theirs = self.pair()
        admins = self.pair()
        for admin in admins:
            admin("CONFIG", "SET", "requirepass", "secret")
        ours, theirs = self.pair()
        script = ["PING", "GET k", "MULTI", "NOSUCH", "GET", "HELLO 3", "CLIENT GETNAME", "AUTH wrong",
                  "AUTH default wrong", "AUTH other secret", "HELLO 3 AUTH default wrong", "COMMAND",
                  "RESET", "HELLO 3 AUTH default secret SETNAME me", "CLIENT GETNAME", "RESET", "GET k",
                  "AUTH secret", "GET k", "AUTH default secret", "AUTH wrong", "GET k"]
        for number, line in enumerate(script):
            command = line.split(" ")
            replies = [comparable(line, client.raw(*command)) for client in (ours, theirs)]
            with self.subTest(f"{number}: {line}"):
                self.assertEqual(*replies)

    def test_quit_replies_and_closes(self):
        for client in self.pair():
            self.assertEqual(client.raw("QUIT"), (b"+", b"OK"))
            self.assertTrue(client.closed_by_server())

    def test_client_list_and_info_fields(self):
        shapes = []
        for client in self.pair():
            client("CLIENT", "SETNAME", "me")
            line = client("CLIENT", "INFO").decode()
            listed = client("CLIENT", "LIST", "ID", client("CLIENT", "ID")).decode()
            shapes.append([names_of(line), names_of(listed)])
            fields = dict(part.split("=", 1) for part in line.split())
            self.assertEqual(fields["name"], "me")
            self.assertEqual(fields["db"], "0")
            self.assertEqual(fields["cmd"], "client|info")
            self.assertEqual(fields["addr"], "%s:%d" % client.socket.getsockname())
        for ours, theirs in zip(*shapes):
            self.assertEqual([name for name in ours if name in theirs], theirs)

    def test_client_list_says_what_stock_says(self):
        """Both the line of the client that asks and the lines of others are compared."""
        exact = ("name", "flags", "db", "sub", "psub", "ssub", "multi", "qbuf", "argv-mem", "obl", "oll",
                 "events", "cmd", "user", "redir", "resp")
        said = []
        began = time.monotonic()
        for server in (self.ours, self.theirs):
            with server.client() as one, server.client() as two:
                for client, name in ((one, "one"), (two, "two")):
                    client("CLIENT", "SETNAME", name)
                lines = [one("CLIENT", "INFO"), one("client", "list", "id", str(one("CLIENT", "ID")))]
                two.pipeline([["SELECT", 3], ["WATCH", "k"], ["MULTI"], ["SET", "k", "v" * 50]])
                lines += [line for line in one("CLIENT", "LIST").splitlines() if b"name=two" in line]
                lines += [line for _, line in one.pipeline([["CLIENT", "INFO"]])]
            fields = [dict(part.split("=", 1) for part in line.decode().split()) for line in lines]
            # A second may begin between any two of these requests.
            seconds = time.monotonic() - began + 1
            for line in fields:
                self.assertTrue(0 <= int(line["idle"]) <= int(line["age"]) <= seconds, line)
            said.append([{name: value for name, value in line.items() if name in exact} for line in fields])
        for ours, theirs in zip(*said):
            self.assertEqual(ours, theirs)

    def test_client_kill(self):
        for server in (self.ours, self.theirs):
            with server.client() as killer, server.client() as victim, server.client() as self_killer:
                # The reply shows that the server has accepted the victim's connection.
                victim("PING")
                name = "%s:%d" % victim.socket.getsockname()
                self.assertEqual(killer.raw("CLIENT", "KILL", name), (b"+", b"OK"))
                self.assertTrue(victim.closed_by_server())
                number = self_killer("CLIENT", "ID")
                reply = self_killer.raw("CLIENT", "KILL", "ID", number, "SKIPME", "no")
                self.assertEqual(reply, (b":", 1))
                self.assertTrue(self_killer.closed_by_server())
                self.assertEqual(killer.raw("CLIENT", "KILL", "TYPE", "normal"), (b":", 0))
                self.assertEqual(killer("PING"), b"PONG")

    def test_client_ids_ascend(self):
        for server in (self.ours, self.theirs):
            with server.client() as first, server.client() as second:
                self.assertLess(first("CLIENT", "ID"), second("CLIENT", "ID"))

    def test_every_command_is_described_as_in_redis(self):
        ours, theirs = self.pair()
        rows = {row[1][0][1]: row for row in ours.raw("COMMAND")[1]}
        self.assertEqual(ours("COMMAND", "COUNT"), len(rows))
        listed = [name for name in ours("COMMAND", "LIST") if b"|" not in name]
        self.assertEqual(sorted(listed), sorted(rows))
        for name in sorted(rows):
            stock = theirs.raw("COMMAND", "INFO", name)[1][0]
            if stock[1] is None:
                continue
            with self.subTest(name.decode()):
                self.assertEqual(described(rows[name]), described(stock))

    def test_every_name_is_found_and_its_keys_named_as_in_redis(self):
        """COMMAND's replies for each command and subcommand, and for names that are no commands."""
        ours, theirs = self.pair()
        names = {name for name in ours("COMMAND", "LIST")} & {name for name in theirs("COMMAND", "LIST")}
        self.assertGreater(len(names), 100)
        draw = random.Random(TARGET.seed)

        def both(*request):
            with self.subTest(b" ".join(part if isinstance(part, bytes) else part.encode() for part in request)):
                replies = [client.raw(*request) for client in (ours, theirs)]
                self.assertEqual(*map(ordered_flags, replies))

        arguments = ["a", "b", "1", "EX", "GET", "NX", "2", "DB"]
        for name in sorted(names):
            whole = name.split(b"|")
            if name != b"set":
                for count in range(1, 5):
                    for what in ("GETKEYS", "GETKEYSANDFLAGS"):
                        both("COMMAND", what, *whole, *draw.sample(arguments, count))
            for wrong in (name, name + b"|", b"|" + name, name + b"|get", name + b"|get|x", name.upper()):
                docs = [client("COMMAND", "INFO", wrong)[0] is None for client in (ours, theirs)]
                self.assertEqual(*docs, wrong)
                docs = [len(client("COMMAND", "DOCS", wrong)) for client in (ours, theirs)]
                self.assertEqual(*docs, wrong)
        for options in ([], ["GET"], ["EX", "1", "GET"], ["get", "XX"], ["NX"]):
            both("COMMAND", "GETKEYSANDFLAGS", "SET", "GET", "GET", *options)
        for line in ("nosuch x", "config nosuch x", "object nosuch x", "object|encoding a", "memory x y"):
            both("COMMAND", "GETKEYS", *line.split())
        for count in ("2147483647", "2147483648", "9223372036854775807", "-1", "0", "1", "2", "x"):
            both("COMMAND", "GETKEYS", "SINTERCARD", count, "a")
        for filtered in ("PATTERN *", "PATTERN c*", "PATTERN *|*", "PATTERN config|g*", "PATTERN CONFIG", "PATTERN x",
                         "ACLCAT admin", "ACLCAT keyspace", "ACLCAT KEYSPACE", "ACLCAT x", "ACLCAT @admin", "MODULE x"):
            listed = [set(client("COMMAND", "LIST", "FILTERBY", *filtered.split())) & names
                      for client in (ours, theirs)]
            self.assertEqual(*listed, filtered)

    def test_keys_are_described_as_in_redis(self):
        """OBJECT and MEMORY, as far as their replies do not depend on memory or time."""
        script = [
            ("MSET", "int", "17", "short", "s", "long", "l" * 45),
            ("HSET", "packed", "field", "value"),
            ("HSET", "tree", "field", "v" * 65),
            *(("OBJECT", "ENCODING", key) for key in ("int", "short", "long", "packed", "tree", "none")),
            ("OBJECT", "IDLETIME", "short"),
            ("OBJECT", "IDLETIME", "none"),
            ("OBJECT", "REFCOUNT", "long"),
            ("OBJECT", "REFCOUNT", "int"),
            ("MSET", "least", "0", "most", "9999", "more", "10000", "less", "-1"),
            *(("OBJECT", "REFCOUNT", key) for key in ("least", "most", "more", "less", "packed")),
            ("INCR", "most"),
            ("OBJECT", "REFCOUNT", "most"),
            ("DECR", "most"),
            ("OBJECT", "REFCOUNT", "most"),
            # With a memory limit and an LRU policy, small integers are not shared objects.
            ("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"),
            ("SET", "least", "0"),
            ("OBJECT", "REFCOUNT", "least"),
            ("CONFIG", "SET", "maxmemory", "1gb"),
            ("SET", "least", "0"),
            ("OBJECT", "REFCOUNT", "least"),
            ("CONFIG", "SET", "maxmemory-policy", "volatile-ttl"),
            ("SET", "least", "0"),
            ("OBJECT", "REFCOUNT", "least"),
            ("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction"),
            ("OBJECT", "REFCOUNT", "none"),
            ("OBJECT", "FREQ", "short"),
            ("OBJECT", "FREQ", "none"),
            ("OBJECT", "ENCODING"),
            ("OBJECT", "NOSUCH", "short"),
            ("MEMORY", "USAGE", "none"),
            ("MEMORY", "USAGE", "short", "SAMPLES", "-1"),
            ("MEMORY", "USAGE", "short", "SAMPLES", "many"),
            ("MEMORY", "USAGE", "short", "OTHER", "1"),
            ("MEMORY", "USAGE"),
            ("MEMORY", "NOSUCH"),
            # Without a decay of use counts, it does not matter when a minute begins.
            ("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu", "lfu-decay-time", "0"),
            ("OBJECT", "IDLETIME", "short"),
            ("SET", "fresh", "value"),
            ("OBJECT", "FREQ", "fresh"),
            ("CONFIG", "SET", "maxmemory-policy", "noeviction", "lfu-decay-time", "1"),
        ]
        ours, theirs = self.pair()
        began = time.monotonic()
        for request in script:
            replies = [client.raw(*request) for client in (ours, theirs)]
            took = time.monotonic() - began
            with self.subTest(" ".join(request)[:60]):
                if request[1] == "IDLETIME":
                    replies = [without_idle_time(reply, took) for reply in replies]
                self.assertEqual(*replies)
        for client in (ours, theirs):
            self.assertGreater(client("MEMORY", "USAGE", "long", "SAMPLES", "0"), 45)

    @slimio_only
    def test_every_command_is_compared(self):
        """Each command is in `NAMES`, from which random tests draw, or has a script or test of its own."""
        elsewhere = {"AUTH", "BGREWRITEAOF", "BGSAVE", "COMMAND", "CONFIG", "DEBUG", "INFO",
                     "LASTSAVE", "LATENCY", "MEMORY", "OBJECT", "QUIT", "SAVE", "SHUTDOWN", "SLIMIO", "SLOWLOG",
                     "TIME", "WAITAOF"}
        with self.ours.client() as client:
            listed = {name.decode().upper() for name in client("COMMAND", "LIST") if b"|" not in name}
        self.assertEqual(sorted(listed - set(NAMES) - elsewhere), [])

    def test_command_docs_have_redis_fields(self):
        ours, theirs = self.pair()
        for name in ("get", "set", "del", "mset", "expire", "client", "scan", "hello"):
            docs = [client("COMMAND", "DOCS", name) for client in (ours, theirs)]
            with self.subTest(name):
                mine, stock = (dict(zip(items[::2], items[1::2])) for _, items in docs)
                self.assertTrue(mine[b"summary"])
                self.assertEqual(mine[b"group"], stock[b"group"])
                self.assertEqual(mine[b"since"], stock[b"since"])

    def test_inline_commands(self):
        ours, theirs = self.pair()
        lines = [
            b"PING\r\n", b"PING\n", b"\r\nPING\r\n", b"  SET   k   v  \r\n", b"GET k\r\n",
            b"SET k \"a b\\x41\\n\\\"\"\r\n", b"GET k\r\n", b"SET k 'single \\' \\x41'\r\n", b"GET k\r\n",
            b"ECHO \"\"\r\n", b"NOSUCH \xff\r\n", b"GET\r\n", b"ECHO a\tb\r\n",
        ]
        for line in lines:
            replies = []
            for client in (ours, theirs):
                client.send(line)
                replies.append(client.read())
            with self.subTest(line):
                self.assertEqual(*replies)

    def test_slow_commands_are_kept(self):
        """The threshold is 0, so that every command counts as slow."""
        shapes = []
        for client in self.pair():
            client("CLIENT", "SETNAME", "me")
            client("CONFIG", "SET", "slowlog-log-slower-than", 0, "slowlog-max-len", 5)
            client("SLOWLOG", "RESET")
            client("SET", "k", "x" * 300)
            client("DEL", *[f"k{number}" for number in range(40)])
            client.raw("AUTH", "me", "secret")
            client("CONFIG", "SET", "timeout", 0, "requirepass", "")
            client("MULTI")
            client("GET", "k")
            client("EXEC")
            entries = client("SLOWLOG", "GET")
            address = "%s:%d" % client.socket.getsockname()
            for number, at, micros, _, who, name in entries:
                self.assertGreaterEqual(micros, 0)
                self.assertEqual((who, name), (address.encode(), b"me"))
            numbers = [entry[0] for entry in entries]
            self.assertEqual(numbers, list(range(numbers[0], numbers[0] - 5, -1)))
            client("CONFIG", "SET", "slowlog-max-len", 3)
            client("CONFIG", "SET", "slowlog-log-slower-than", -1)
            client("SLOWLOG", "RESET")
            client("GET", "k")
            shapes.append([[entry[3] for entry in entries], client("SLOWLOG", "GET")])
        self.assertEqual(*shapes)

    def test_delays_are_kept(self):
        for client in self.pair():
            client("CONFIG", "SET", "latency-monitor-threshold", 100)
            client("DEBUG", "SLEEP", "0.12")
            # From here on, the server does not record the delays that a busy machine causes.
            client("CONFIG", "SET", "latency-monitor-threshold", 1_000_000)
            latest = {entry[0]: entry[1:] for entry in client("LATENCY", "LATEST")}
            at, last, longest = latest[b"command"]
            self.assertGreaterEqual(longest, 120)
            self.assertEqual(last, longest)
            self.assertEqual(client("LATENCY", "HISTORY", "command"), [[at, last]])
            graph = client("LATENCY", "GRAPH", "command").decode()
            self.assertTrue(graph.startswith(f"command - high {last} ms, low {last} ms (all time"))
            self.assertIn("command: 1 latency spikes", client("LATENCY", "DOCTOR").decode())
            self.assertEqual(client("LATENCY", "RESET", "command", "nosuch"), 1)
            self.assertEqual(client("LATENCY", "HISTORY", "command"), [])

    def test_times_of_commands_are_counted(self):
        shapes = []
        for client in self.pair():
            client("CONFIG", "RESETSTAT")
            for number in range(100):
                client("SET", "k", number)
            began = time.monotonic()
            client("DEBUG", "SLEEP", "0.018")
            took_us = (time.monotonic() - began) * 1e6
            histograms = client("LATENCY", "HISTOGRAM", "set", "debug", "config")
            found = dict(zip(histograms[::2], histograms[1::2]))
            calls = {name: value[1] for name, value in found.items()}
            # The buckets are cumulative, so the count of the last bucket is the number of calls.
            buckets = [value[3] for value in found.values()]
            self.assertTrue(all(bucket[-1] == value[1] for bucket, value in zip(buckets, found.values())))
            # The bucket of DEBUG must match the time that DEBUG SLEEP took, which is longer on a
            # busy machine. A bucket's name is not quite a power of two: it is the largest time that
            # the histogram can't tell from that power.
            upper_us, count = found[b"debug"][3]
            powers = [1024 << power for power in range(15, 32)]
            self.assertIn(upper_us, [(power + power // 128 - 1) // 1000 for power in powers])
            self.assertLess(upper_us / 2.1, took_us)
            shapes.append([calls, count])
            text = client("INFO", "latencystats").decode()
            self.assertRegex(text, r"latency_percentiles_usec_set:p50=\d+\.\d{3},p99=\d+\.\d{3},p99.9=")
        self.assertEqual(*shapes)

    def test_waiting_for_the_log(self):
        with self.ours.client() as client:
            if TARGET.is_stock:
                self.skipTest("stock redis-server may be older than 7.2, which introduced WAITAOF")
            client("SET", "k", "v")
            self.assertEqual(client("WAITAOF", 1, 0, 600_000), [1, 0])
            self.assertEqual(client("WAITAOF", 0, 0, 0), [1, 0])
            kind, text = client.raw("WAITAOF", 2, 0, 0)
            self.assertEqual(kind, b"-", text)

    def test_pipelined_requests_are_answered_in_order(self):
        ours, theirs = self.pair()
        commands = [["SET", "k", number] if number % 3 else ["GET", "k"] for number in range(5000)]
        self.assertEqual(ours.pipeline(commands), theirs.pipeline(commands))

    def test_requests_in_pieces(self):
        ours, theirs = self.pair()
        request = encode("SET", "k", b"a\r\nb" * 10) + encode("GET", "k")
        replies = []
        for client in (ours, theirs):
            for at in range(0, len(request), 7):
                client.send(request[at : at + 7])
            replies.append([client.read(), client.read()])
        self.assertEqual(*replies)


def comparable(line, reply):
    """The reply as it is compared: in a fixed order, or without the parts that describe the server."""
    if line.startswith("CONFIG GET") and reply[0] == b"*":
        return reply[0], sorted(zip(reply[1][::2], reply[1][1::2]))
    if line.startswith("CONFIG GET") and reply[0] == b"%":
        return reply[0], sorted(reply[1])
    if line.startswith("HELLO") and reply[0] in (b"%", b"*"):
        return comparable_hello(reply)
    if line == "COMMAND" and reply[0] == b"*":
        return reply[0]
    return reply


def without_idle_time(reply, took):
    """A reply to OBJECT IDLETIME, with zero instead of any idle time of at most `took` seconds."""
    kind, idle = reply
    # Both servers count whole seconds, so a short time may count as one second more.
    return (kind, 0) if kind == b":" and 0 <= idle <= took + 1 else reply


def names_of(line):
    return [part.split("=", 1)[0] for part in line.split()]


def ordered_flags(reply):
    """Sorts the flags in the description of a key, because they are a set."""
    kind, value = reply
    if isinstance(value, list):
        value = [ordered_flags(item) for item in value]
        value = sorted(value, key=repr) if kind in (b"~",) or all(item[0] == b"+" for item in value) else value
    return kind, value


def described(row):
    """Name, arity, flags, key positions, categories; flags and categories are sets."""
    name, arity, flags, first, last, step, categories = row[1][:7]
    return {
        "name": name[1],
        "arity": arity[1],
        "flags": sorted(flag[1] for flag in flags[1]),
        "keys": (first[1], last[1], step[1]),
        "categories": sorted(category[1] for category in categories[1]),
    }
