"""Compares `INFO persistence` and `INFO memory`, field by field, with stock, during and after
snapshots."""

import os
import re
import signal
import subprocess
import unittest

from differential.info import fields, form
from harness.faults import SpoiltServer, compiler
from harness.server import Server
from harness.target import TestCase, slimio_only, stock_is_installed
from harness.wait import until

PATIENCE = 20
KEY_COUNT = 100
VALUE = "v" * 1000

# Sizes differ between the servers.
SIZES = {
    "current_cow_peak", "current_cow_size", "rdb_last_cow_size", "aof_last_cow_size", "aof_current_size",
    "aof_base_size", "aof_buffer_length", "aof_pending_bio_fsync", "current_save_keys_processed",
    "current_fork_perc", "current_cow_size_age",
    # In stock, this counts writes that had to wait for a slow flush. Such waits depend on the
    # machine.
    "aof_delayed_fsync",
}
# Seconds, or -1. The number of seconds depends on the machine.
SECONDS = {
    "rdb_last_bgsave_time_sec", "rdb_current_bgsave_time_sec", "aof_last_rewrite_time_sec",
    "aof_current_rewrite_time_sec",
}
DATES = {"rdb_last_save_time"}


class Stock:
    """Stock redis-server. Its child writes a snapshot so slowly that the child still runs when the
    test asks for INFO."""

    def __init__(self, test):
        self.server = Server(
            stock=True, rdb_key_save_delay=5_000, auto_aof_rewrite_percentage=0, enable_debug_command="yes"
        )
        test.addCleanup(self.server.close)

    def fail(self, client, command):
        # The child keeps the delay that was set when it was forked. So it still runs when it is
        # killed.
        client("CONFIG", "SET", "rdb-key-save-delay", 10_000_000)
        client(*command)
        children = ["pgrep", "-P", str(self.server.process.pid)]
        child = until(lambda: subprocess.run(children, capture_output=True, check=False).stdout)
        os.kill(int(child), signal.SIGKILL)
        wait_until_over(client)
        client("CONFIG", "SET", "rdb-key-save-delay", 5_000)


class Ours:
    """SlimIO. Requests that are sent together with BGSAVE run in the same turn of the event loop,
    so they find a snapshot that has just begun."""

    def __init__(self, test):
        self.server = SpoiltServer(
            io_backend="plain", auto_aof_rewrite_percentage=0, enable_debug_command="yes"
        )
        test.addCleanup(self.server.close)

    def fail(self, client, command):
        held = [name for name in self.server.info() if name.startswith("snapshot_slot_")]
        reserve = min({0, 1, 2} - {int(name.rsplit("_", 1)[1]) for name in held})
        self.server.spoil(write=5, path_end=f"snapshot-{'abc'[reserve]}")
        client(*command)
        wait_until_over(client)
        self.server.spoil()


def wait_until_over(client):
    def is_over():
        info = fields(client("INFO", "persistence"))
        names = ("rdb_bgsave_in_progress", "aof_rewrite_in_progress", "aof_rewrite_scheduled")
        return all(info[name] == "0" for name in names)

    until(is_over, PATIENCE, "the snapshots being over")


@slimio_only
@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
@unittest.skipIf(compiler() is None, "there is no C compiler for the library that fails writes")
class Snapshots(TestCase):
    seconds = 15

    def setUp(self):
        self.pair = Ours(self), Stock(self)

    def both(self, steps):
        """Runs the same steps on both servers. Both servers must yield equal results."""
        seen = []
        for side in self.pair:
            with side.server.client() as client:
                seen.append(list(steps(side, client)))
        self.assertEqual(len(seen[0]), len(seen[1]))
        for (what, ours), (_, theirs) in zip(*seen):
            with self.subTest(what):
                self.assertEqual(ours, theirs)

    def look(self, client, *requests):
        """The replies to requests that are sent together. Replies to INFO are made comparable."""
        replies = []
        for request, (kind, reply) in zip(requests, client.pipeline([*requests, ["PING"]])):
            if request[0] == "INFO":
                info = fields(reply)
                self.check_each(info)
                if ["DEBUG", "SLEEP", "1.2"] in requests:
                    lasts = [int(info[f"{name}_time_sec"]) for name in ("rdb_current_bgsave", "aof_current_rewrite")]
                    self.assertGreaterEqual(max(lasts), 1)
                reply = {
                    name: (value if name not in SECONDS else int(value) >= 0)
                    for name, value in info.items()
                    if name not in SIZES | DATES
                }
                kind = list(info)
            replies.append((kind, reply))
        return replies

    def check_each(self, info):
        """Invariants that follow from the meaning of the fields."""
        done, total = (int(info[f"current_save_keys_{name}"]) for name in ("processed", "total"))
        self.assertLessEqual(done, total)
        self.assertAlmostEqual(float(info["current_fork_perc"]), 100 * done / max(total, 1), delta=0.01)
        self.assertLessEqual(int(info["current_cow_size"]), int(info["current_cow_peak"]))
        for kind, progress in (("bgsave", "rdb_bgsave_in_progress"), ("rewrite", "aof_rewrite_in_progress")):
            now = next(int(info[name]) for name in info if re.fullmatch(rf".*_current_{kind}_time_sec", name))
            self.assertEqual(now >= 0, info[progress] == "1", kind)
            self.assertGreaterEqual(now, -1)
        if info["aof_enabled"] == "1":
            self.assertLessEqual(int(info["aof_base_size"]), int(info["aof_current_size"]))

    def fill(self, client):
        client.pipeline([["SET", f"k:{number}", VALUE] for number in range(KEY_COUNT)])

    def test_a_save(self):
        def steps(_, client):
            info = ["INFO", "persistence"]
            yield "at the start", self.look(client, info)
            self.fill(client)
            yield "changes", self.look(client, info)
            yield "a save begins", self.look(client, ["BGSAVE"], info, ["SET", "k:1", "w" * 1000], info)
            wait_until_over(client)
            yield "over", self.look(client, info)
            began = ["BGSAVE"], ["DEBUG", "SLEEP", "1.2"]
            yield "seconds", self.look(client, *began, info, ["BGSAVE"], ["BGREWRITEAOF"], info)
            wait_until_over(client)
            yield "two saves and a rewrite are over", self.look(client, info)
            self.assertGreaterEqual(int(fields(client("INFO"))["rdb_last_bgsave_time_sec"]), 1)
            client("SET", "more", 1)
            yield "SAVE", self.look(client, ["SAVE"])
            yield "after SAVE", [without(seen, "rdb_last_bgsave_time_sec") for seen in self.look(client, info)]
            yield "reset", self.look(client, ["CONFIG", "RESETSTAT"])
            yield "anew", [without(seen, "rdb_last_bgsave_time_sec") for seen in self.look(client, info)]

        self.both(steps)

    def test_a_rewrite_and_the_end_of_the_log(self):
        def steps(_, client):
            info = ["INFO", "persistence"]
            self.fill(client)
            asked = ["BGREWRITEAOF"], ["DEBUG", "SLEEP", "1.2"], ["BGREWRITEAOF"], ["BGSAVE"]
            yield "a rewrite runs", self.look(client, *asked, info, ["BGSAVE", "SCHEDULE"], info)
            wait_until_over(client)
            until(lambda: fields(client("INFO"))["rdb_saves"] == "1", PATIENCE, "the postponed save")
            wait_until_over(client)
            yield "over", self.look(client, info)
            off = ["CONFIG", "SET", "appendonly", "no"]
            yield "a rewrite is put off, then dropped", self.look(client, ["BGSAVE"], ["BGREWRITEAOF"], info, off, info)
            wait_until_over(client)
            yield "only the save has run", self.look(client, info)
            client("CONFIG", "SET", "appendonly", "yes")
            until(lambda: fields(client("INFO"))["aof_rewrites"] == "2", PATIENCE, "the first rewrite of the new log")
            wait_until_over(client)
            yield "on again", self.look(client, info)
            yield "a rewrite ends with its log", self.look(client, ["BGREWRITEAOF"], info, off, info)
            wait_until_over(client)
            yield "the rewrite has left nothing", self.look(client, info)

        self.both(steps)

    def test_failures(self):
        def steps(side, client):
            info = ["INFO", "persistence"]
            self.fill(client)
            for count in (1, 2):
                side.fail(client, ["BGREWRITEAOF"])
                yield f"a rewrite, {count}", self.look(client, info)
            side.fail(client, ["BGSAVE"])
            yield "a save", self.look(client, info)
            yield "the failure is shown while the next save runs", self.look(client, ["BGSAVE"], info)
            wait_until_over(client)
            client("BGREWRITEAOF")
            wait_until_over(client)
            yield "mended", self.look(client, info)

        self.both(steps)

    def test_what_is_held_for_a_snapshot_is_shown(self):
        changes = [["SET", f"k:{number}", "w"] for number in range(KEY_COUNT)]
        with self.pair[0].server.client() as client:

            def held():
                """INFO's fields while the snapshot holds all old values. `False` if the snapshot
                was faster than the changes."""
                wait_until_over(client)
                self.fill(client)
                *_, info, memory = client.pipeline([["BGSAVE"], *changes, ["INFO", "persistence"], ["INFO", "memory"]])
                info, memory = fields(info[1]), fields(memory[1])
                return int(info["current_cow_size"]) > KEY_COUNT * len(VALUE) and (info, memory)

            info, memory = until(held, what="values that are held for a snapshot")
            self.assertGreaterEqual(int(memory["mem_not_counted_for_evict"]), int(info["current_cow_size"]))
            self.assertEqual(info["current_save_keys_total"], str(KEY_COUNT))
            wait_until_over(client)
            info = fields(client("INFO", "persistence"))
            self.assertGreater(int(info["rdb_last_cow_size"]), KEY_COUNT * len(VALUE))
            self.assertEqual(int(info["current_cow_size"]), 0)

    def test_what_a_start_has_read(self):
        shown = []
        for side in self.pair:
            with side.server.client() as client:
                self.fill(client)
                client("BGREWRITEAOF")
                wait_until_over(client)
                client("SET", "behind", 1)
            side.server.restart()
            info = side.server.info("persistence")
            shown.append({name: value for name, value in info.items() if name not in SIZES | DATES})
            self.assertEqual(info["rdb_last_load_keys_loaded"], str(KEY_COUNT))
        self.assertEqual(*shown)

    def test_memory_is_written_as_stock_does(self):
        seen = []
        for side in self.pair:
            with side.server.client() as client:
                self.fill(client)
                info = fields(client("INFO", "memory"))
            number = {name: int(value) for name, value in info.items() if re.fullmatch(r"-?\d+", value)}
            self.assertLessEqual(number["used_memory"], number["used_memory_peak"])
            self.assertGreater(number["used_memory_dataset"], KEY_COUNT * len(VALUE))
            if side is self.pair[0]:
                # In stock, this difference need not be exact, because stock asks its allocator at
                # two different moments.
                rest = number["used_memory"] - number["used_memory_overhead"]
                self.assertEqual(number["used_memory_dataset"], rest)
            self.assertLessEqual(number["used_memory_startup"], number["used_memory_overhead"])
            self.assertLessEqual(number["allocator_active"], number["allocator_resident"])
            seen.append({name: form(value) for name, value in info.items()})
        self.assertEqual(*seen)


def without(seen, name):
    """The fields without `name`. After `SAVE`, the duration is left out, because only SlimIO
    measures it: in SlimIO, `SAVE` is a snapshot like any other."""
    kind, reply = seen
    return kind, {field: value for field, value in reply.items() if field != name}
