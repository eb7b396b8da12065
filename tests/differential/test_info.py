"""Compares every section and every field of `INFO` with stock redis-server. The names and their
order are the same, and the values have the same form. After the same commands the values are equal,
too, except those that depend on time or memory."""

import random
import re
import time
import unittest

from differential.commands import Draw
from differential.info import fields, form, sections
from harness.resp import encode
from harness.server import Server
from harness.target import TARGET, TestCase, slimio_only, stock_is_installed
from harness.wait import until

ROUNDS = 25
COMMANDS_PER_ROUND = 60
# Both servers read a request below this size in one piece. The size does not include the line that
# begins the request and says how many arguments follow.
READ_SIZE = 16_000
# Upper limit of the bytes that an argument takes in addition to its text.
ARGUMENT_HEAD_SIZE = 12
SECTIONS_ROUNDS = 300

# Fields of stock that SlimIO lacks.
ABSENT = {
    "atomicvar_api": "SlimIO has only one API for atomic variables",
    "gcc_version": "GCC does not compile SlimIO",
    "expired_stale_perc": "expired keys are found by their time, not by sampling",
    "expired_time_cap_reached_count": "expired keys are found by their time, not by sampling",
    "expire_cycle_cpu_milliseconds": "the time of expiry is not measured separately",
    "reply_buffer_shrinks": "a reply's memory is freed when it has been sent",
    "reply_buffer_expands": "a reply's memory is freed when it has been sent",
}
# Fields that stock lacks, besides those of the section Slimio.
ADDITIONAL = {
    "slimio_version": "the version of SlimIO itself",
    "client_query_buffer_limit_disconnections": "as in Redis 7.2",
    "client_output_buffer_limit_disconnections": "as in Redis 7.2",
    "total_blocking_keys": "as in Redis 7.2",
    "total_blocking_keys_on_nokey": "as in Redis 7.2",
}
A_PROCESS = "each server is a separate process"
A_MOMENT = "the value depends on the moment"
MEMORY = "each server lays its memory out in its own way"
A_LOG = "the two servers write logs and snapshots in different ways"
# Fields whose values differ, so that only their form is compared. Each has its reason.
VALUES = {
    **dict.fromkeys(["redis_build_id", "process_id", "run_id", "tcp_port", "executable", "multiplexing_api",
                     "master_replid"], A_PROCESS),
    **dict.fromkeys(["server_time_usec", "uptime_in_seconds", "uptime_in_days", "lru_clock", "rdb_last_save_time",
                     "instantaneous_ops_per_sec", "instantaneous_input_kbps", "instantaneous_output_kbps",
                     "rdb_last_bgsave_time_sec", "aof_last_rewrite_time_sec", "total_eviction_exceeded_time",
                     "current_eviction_exceeded_time", "aof_delayed_fsync"], A_MOMENT),
    **dict.fromkeys(["client_recent_max_input_buffer", "client_recent_max_output_buffer"],
                    "stock checks a client only now and then, and counts the capacity of its buffers"),
    "clients_in_timeout_table": "in this test stock runs no blocking command with a timeout",
    "latest_fork_usec": "SlimIO takes snapshots without a fork",
    "total_forks": "SlimIO takes snapshots without a fork",
    "rdb_changes_since_last_save": "SlimIO counts keys: both keys of a RENAME, and also keys that expire or are evicted",
    "master_repl_offset": "in SlimIO, this is the position in the log",
    "evicted_keys": "which keys are evicted depends on chance and on memory",
    "total_writes_processed": "stock needs one more write if replies do not fit its buffer",
    "lazyfree_pending_objects": "SlimIO frees other things in the background than stock does",
    "lazyfreed_objects": "SlimIO frees other things in the background than stock does",
    **dict.fromkeys(["aof_current_size", "aof_base_size", "aof_buffer_length", "aof_pending_bio_fsync",
                     "current_cow_peak", "current_cow_size", "rdb_last_cow_size", "aof_last_cow_size"], A_LOG),
}
# Like `VALUES`, but for all fields whose names begin with the prefix.
VALUES_BY_PREFIX = {
    **dict.fromkeys(["used_memory", "allocator_", "rss_overhead_", "mem_"], MEMORY),
    "used_cpu_": A_MOMENT,
    "latency_percentiles_usec_": A_MOMENT,
}
EVERY_SECTION = ("server", "clients", "memory", "persistence", "stats", "replication", "cpu", "modules",
                 "commandstats", "errorstats", "latencystats", "cluster", "keyspace")
# Parts of values that are not compared.
TIMES = re.compile(r"usec=\d+,usec_per_call=[0-9.]+|avg_ttl=\d+")


def is_compared(name):
    return name not in VALUES and not name.startswith(tuple(VALUES_BY_PREFIX))


def ordered(names):
    """The names in a comparable order. Names that contain a command's name are sorted, because
    stock has them in the order of its command table."""
    names = list(names)
    return [name for name in names if not OF_A_COMMAND.match(name)], sorted(
        filter(OF_A_COMMAND.match, names))


OF_A_COMMAND = re.compile("cmdstat_|latency_percentiles_usec_")


@slimio_only
@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class Info(TestCase):
    seconds = 15

    def setUp(self):
        self.servers = [Server(stock=stock, auto_aof_rewrite_percentage=0, enable_debug_command="yes")
                        for stock in (False, True)]
        for server in self.servers:
            self.addCleanup(server.close)

    def pair(self):
        pair = [server.client() for server in self.servers]
        for client in pair:
            self.addCleanup(client.close)
        return pair

    def compare(self, pair, what, but=()):
        """Compares each field. Of the fields in `but`, only the form is compared."""
        said = [fields(client("INFO", *EVERY_SECTION)) for client in pair]
        ours, theirs = said
        with self.subTest(f"names, {what}"):
            theirs = {name: value for name, value in theirs.items() if name not in ABSENT}
            self.assertEqual(ordered(name for name in ours if name not in ADDITIONAL), ordered(theirs))
            self.assertEqual([name for name in ADDITIONAL if name in ours and name in said[1]], [])
            self.assertEqual([name for name in ABSENT if name in ours], [])
        for name in theirs:
            if name not in ours:
                continue
            with self.subTest(f"{name}, {what}"):
                if name != "redis_build_id":
                    self.assertEqual(*[form(found[name]) for found in said])
                if is_compared(name) and name not in but:
                    self.assertEqual(*[TIMES.sub("", found[name]) for found in said])

    def settle(self, pair, count):
        """Waits until `count` clients are connected, so that new clients are counted and closed
        clients are not."""
        for client in pair:
            until(lambda: fields(client("INFO", "clients"))["connected_clients"] == str(count))

    def both(self, pair, *requests):
        for client in pair:
            client.pipeline(requests)

    def look(self, pair, what):
        # `total_net_output_bytes` differs because INFO's own replies differ in length.
        # `total_reads_processed` differs because the two servers may read the same bytes in
        # different pieces.
        self.compare(pair, what, but=["total_net_output_bytes", "total_reads_processed"])

    def test_every_field_behind_all_kinds_of_activity(self):
        pair, others = self.pair(), self.pair()
        self.settle(pair, 2)
        # Active expiry is off, because otherwise the two servers would delete expired keys at
        # different times.
        self.both(pair, ["DEBUG", "SET-ACTIVE-EXPIRE", "0"], ["CONFIG", "RESETSTAT"])
        self.look(pair, "at the start")
        self.both(pair, *[["SET", f"k{number}", "v" * number] for number in range(200)], ["HSET", "h", "f", "v"],
                  ["SET", "t", "v", "EX", "1000"], ["SELECT", "7"], ["SET", "t", "v", "PX", "100000"], ["SELECT", "0"])
        self.look(pair, "data")
        self.both(pair, ["GET", "k1"], ["GET", "none"], ["MGET", "k1", "none", "h"], ["HGET", "none", "f"],
                  ["TTL", "none"], ["EXISTS", "k1", "none"], ["GETDEL", "k1"], ["OBJECT", "ENCODING", "none"], ["RENAME", "k2", "k3"])
        self.look(pair, "hits and misses")
        self.both(pair, *[["SET", f"e{number}", "v", "PX", "1"] for number in range(50)])
        time.sleep(0.05)
        self.both(pair, *[["GET", f"e{number}"] for number in range(50)], ["SET", "k3", "v", "PXAT", "1"],
                  ["EXPIRE", "k4", "-1"])
        self.look(pair, "expired")
        self.both(pair, ["NOSUCH"], ["GET"], ["HGET", "k5", "f"], ["INCR", "k5"], ["EXEC"], ["AUTH", "x"],
                  ["CONFIG", "x"], ["MULTI"], ["NOSUCH"], ["EXEC"], ["CONFIG", "SET", "hz", "x"],
                  ["SET", "k", "v", "EX", "0"], ["EXEC", "x"])
        self.look(pair, "errors")
        self.both(pair, ["WATCH", "k5"], ["MULTI"], ["SET", "k5", "1"], ["INCR", "k5"], ["EXEC"], ["MULTI"],
                  ["DISCARD"])
        self.look(pair, "transactions")
        self.both(others, ["SELECT", "3"], ["MULTI"], ["SET", "queued", "v"])
        self.look(pair, "somebody queues")
        self.both(pair, ["CLIENT", "PAUSE", "100000", "WRITE"])
        for client in others:
            client.send(encode("EXEC"))
        for client in pair:
            until(lambda: fields(client("INFO", "clients"))["blocked_clients"] == "1")
        # The counts are reset, because the loop above has asked the two servers for INFO a
        # different number of times.
        self.both(pair, ["CONFIG", "RESETSTAT"])
        self.look(pair, "somebody waits")
        self.both(pair, ["CLIENT", "UNPAUSE"])
        for client in others:
            client.read()
        self.look(pair, "nobody waits")
        for client in others:
            client.send(b"*abc\r\n")
            self.assertTrue(client.closed_by_server())
        self.look(pair, "a broken request")
        self.both(pair, ["BGSAVE"])
        for client in pair:
            until(lambda: fields(client("INFO", "persistence"))["rdb_bgsave_in_progress"] == "0")
        self.both(pair, ["CONFIG", "RESETSTAT"])
        self.look(pair, "saved")
        self.both(pair, ["CONFIG", "SET", "maxmemory", "100", "maxmemory-policy", "allkeys-random"], ["SET", "x", "v"])
        for client in pair:
            until(lambda: client("DBSIZE") == 0)
        self.both(pair, ["CONFIG", "SET", "maxmemory", "0"], ["FLUSHALL"], ["CONFIG", "RESETSTAT"])
        self.look(pair, "evicted")

    def test_counters_behind_random_commands(self):
        observers = self.pair()
        for number in range(TARGET.rounds or ROUNDS):
            seed = TARGET.seed * 1000 + number
            draw = Draw(random.Random(seed))
            pair = self.pair()
            self.settle(observers, 2)
            self.both(observers, ["FLUSHALL"], ["CONFIG", "RESETSTAT"])
            commands = [draw.command() for _ in range(COMMANDS_PER_ROUND)]
            # SCAN with TYPE is left out, because stock counts a hit for each key whose type it
            # checks.
            commands = [command for command in commands if command[0].lower() != "scan" or "TYPE" not in command]
            # Larger requests are left out, because the servers need different numbers of reads for
            # them.
            size = lambda command: sum(ARGUMENT_HEAD_SIZE + len(str(word)) for word in command)
            commands = [command for command in commands if size(command) < READ_SIZE]
            # SPOP is left out, because the choice of members is random, and later commands depend
            # on it.
            commands = [command for command in commands if command[0].lower() != "spop"]
            lengths = [[len(str(client.raw(*command))) for command in commands] for client in pair]
            # The replies may differ in length, because RANDOMKEY replies with a random key, and
            # HELLO replies with the name and version of the server.
            but = [] if lengths[0] == lengths[1] else ["total_net_output_bytes"]
            lines = "\n".join(map(str, commands))
            self.compare(observers, f"seed {seed}, after these commands:\n{lines}\n", but)
            for client in pair:
                client.close()

    def test_sections_by_any_names(self):
        pair = self.pair()
        self.both(pair, ["SET", "k", "v"], ["NOSUCH"])
        names = [*EVERY_SECTION, "all", "everything", "default", "nosuch", "sentinel", "keyspac", "", "commandstats "]
        draw = random.Random(TARGET.seed)
        for number in range(SECTIONS_ROUNDS):
            asked = [name for name in draw.sample(names, draw.choice([0, 1, 1, 2, 3, 5]))]
            asked = [draw.choice([name, name, name.upper(), name.title()]) for name in asked]
            ours, theirs = (sections(client("INFO", *asked)) for client in pair)
            with self.subTest(" ".join(asked)):
                self.assertEqual([name for name in ours if name != "# Slimio"], theirs)
