"""Snapshots: their contents, their failures, and the data after a restart."""

import errno
import random
import time
import unittest

from harness.faults import SpoiltServer, compiler
from harness.resp import ReplyError, encode
from harness.server import Server
from harness.target import TestCase, slimio_only
from harness.wait import until

PATIENCE = 20


def fill(client, count, seed=1, size=100):
    """Sets `count` keys of several kinds. Some of the keys have an expiry."""
    draw = random.Random(seed)
    commands = []
    for number in range(count):
        value = draw.randbytes(draw.randrange(size * 2))
        match number % 5:
            case 0:
                commands.append(["SET", f"n:{number}", number])
            case 1:
                commands.append(["SET", f"e:{number}", value, "PX", 10_000_000 + number])
            case 2:
                fields = [x for i in range(draw.randrange(1, 40)) for x in (f"f{i}", value[:i])]
                commands.append(["HSET", f"h:{number}", *fields])
            case _:
                commands.append(["SET", f"s:{number}", value])
    for start in range(0, count, 1000):
        client.pipeline(commands[start : start + 1000])


def contents(client, dbs=(0,)):
    """Returns the type, value and expiry of every key."""
    found = {}
    for db in dbs:
        client("SELECT", db)
        for key in client("KEYS", "*"):
            kind = client("TYPE", key)
            value = client("GET", key) if kind == b"string" else sorted_pairs(client("HGETALL", key))
            found[db, key] = kind, value, client("PEXPIRETIME", key)
    client("SELECT", 0)
    return found


def sorted_pairs(items):
    return sorted(zip(items[::2], items[1::2]))


def shut_down(client, *options):
    """Sends SHUTDOWN, which gets no reply if it succeeds."""
    try:
        raise AssertionError(client.raw("SHUTDOWN", *options))
    except ConnectionError:
        pass


def wait_until_saved(server, kind="rdb"):
    progress = {"rdb": "rdb_bgsave_in_progress", "aof": "aof_rewrite_in_progress"}[kind]
    scheduled = "aof_rewrite_scheduled"

    def is_over():
        info = server.info("persistence")
        return info[progress] == "0" and (kind == "rdb" or info[scheduled] == "0")

    until(is_over, PATIENCE, "the end of the snapshot")


@slimio_only
class Snapshots(TestCase):
    seconds = 20

    def server(self, **flags):
        server = Server(log_segment_size="1mb", **flags)
        self.addCleanup(server.close)
        return server

    def test_a_rewrite_and_the_log_behind_it_come_back(self):
        for policy in ("always", "everysec", "no"):
            with self.subTest(policy):
                server = self.server(appendfsync=policy)
                with server.client() as client:
                    fill(client, 3000)
                    client("SELECT", 9)
                    client("SET", "ninth", "x" * 2_000_000)
                    client("SELECT", 0)
                    self.assertEqual(
                        client("BGREWRITEAOF"), b"Background append only file rewriting started"
                    )
                    client("SET", "behind", 1)
                    client("DEL", "n:0")
                    wait_until_saved(server, "aof")
                    client("SET", "later", 1)
                    before = contents(client, (0, 9))
                    in_snapshot = len(before) - len({b"behind", b"later"}) + len({b"n:0"})
                info = server.info()
                self.assertEqual(info["aof_last_bgrewrite_status"], "ok")
                self.assertEqual(info["snapshot_rewrites_complete"], "1")
                self.assertGreater(int(info["aof_base_size"]), 2000)
                for _ in range(2):
                    server.restart()
                    with server.client() as client:
                        self.assertEqual(contents(client, (0, 9)), before)
                # The snapshot leaves out `n:0` if DEL came before the snapshot reached that key.
                loaded = int(server.info()["rdb_last_load_keys_loaded"])
                self.assertIn(loaded, (in_snapshot - 1, in_snapshot))
                server.close()

    def test_saving_with_a_log_keeps_a_point_in_time_and_changes_nothing(self):
        server = self.server()
        with server.client() as client:
            fill(client, 500)
            self.assertEqual(server.info()["rdb_changes_since_last_save"], "500")
            began = time.time()
            self.assertEqual(client("SAVE"), b"OK")
            self.assertEqual(server.info()["rdb_changes_since_last_save"], "0")
            self.assertTrue(int(began) <= client("LASTSAVE") <= time.time())
            client("SET", "behind", 1)
            before = contents(client)
        self.assertEqual(server.info()["snapshot_saves_complete"], "1")
        server.restart()
        with server.client() as client:
            self.assertEqual(contents(client), before)

    def test_without_a_log_the_last_snapshot_comes_back(self):
        server = self.server(appendonly="no", save="")
        with server.client() as client:
            fill(client, 500)
            before = contents(client)
            self.assertEqual(client("BGSAVE"), b"Background saving started")
            client("SET", "lost", 1)
            wait_until_saved(server)
        server.restart()
        with server.client() as client:
            self.assertEqual(contents(client), before)
            client("SET", "kept", 1)
            shut_down(client, "SAVE")
        server.process.wait(PATIENCE)
        server.start()
        with server.client() as client:
            self.assertEqual(client("GET", "kept"), b"1")
            client("SET", "lost", 1)
            shut_down(client, "NOSAVE")
        server.process.wait(PATIENCE)
        server.start()
        with server.client() as client:
            self.assertEqual(client("EXISTS", "kept", "lost"), 1)

    def test_a_schedule_saves_and_so_does_an_end(self):
        server = self.server(appendonly="no", save="1 3")
        with server.client() as client:
            client("MSET", "a", 1, "b", 2)
            client("SET", "c", 3)
            until(lambda: server.info()["snapshot_saves_complete"] == "1", PATIENCE, "the schedule")
            client("SET", "d", 4)
        self.assertEqual(server.terminate(), 0)
        server.start()
        with server.client() as client:
            self.assertEqual(client("MGET", "a", "d"), [b"1", b"4"])
            client("FLUSHALL")
            until(lambda: server.info()["snapshot_saves_complete"] == "1", PATIENCE, "a snapshot without keys")
        server.restart()
        with server.client() as client:
            self.assertEqual(client("DBSIZE"), 0)

    def test_the_log_is_ended_and_goes_on(self):
        server = self.server()
        with server.client() as client:
            fill(client, 500)
            before = contents(client)
            client("CONFIG", "SET", "appendonly", "no")
            until(lambda: server.info()["log_state"] == "off", PATIENCE, "the log's end")
            client("SET", "lost", 1)
        server.flags["appendonly"] = "no"
        server.restart()
        with server.client() as client:
            self.assertEqual(contents(client), before)
            client("SET", "kept", 1)
            client("CONFIG", "SET", "appendonly", "yes")
            until(lambda: server.info()["log_state"] == "on", PATIENCE, "the log to go on")
            self.assertEqual(server.info()["aof_enabled"], "1")
            client("SET", "logged", 1)
        server.flags["appendonly"] = "yes"
        server.restart()
        with server.client() as client:
            self.assertEqual(client("MGET", "kept", "logged"), [b"1", b"1"])
            self.assertEqual(client("EXISTS", "lost"), 0)

    def test_flushing_everything_ends_a_snapshot_and_starts_another(self):
        server = self.server()
        with server.client() as client:
            fill(client, 20_000, size=500)
            client.pipeline([["BGREWRITEAOF"], ["FLUSHALL"], ["SET", "new", 1]])
            until(lambda: server.info()["snapshot_rewrites_complete"] == "1", PATIENCE, "the snapshot after the flush")
            self.assertEqual(client("KEYS", "*"), [b"new"])
        server.restart()
        with server.client() as client:
            self.assertEqual(client("KEYS", "*"), [b"new"])

    def test_what_a_flush_has_ended_is_no_failure(self):
        """As in Redis, a snapshot that FLUSHALL ends does not count as failed. If it did, the
        server would refuse writes."""
        server = self.server(appendonly="no", save="3600 1")
        with server.client() as client:
            fill(client, 20_000, size=500)
            client.pipeline([["BGSAVE"], ["FLUSHALL"]])
            until(lambda: "given up: all data was deleted" in server.said(), PATIENCE, "the snapshot's end")
            self.assertNotIn("failed", server.said())
            self.assertEqual(client("SET", "new", 1), b"OK")
            wait_until_saved(server)
            self.assertEqual(server.info()["rdb_last_bgsave_status"], "ok")
        server.restart()
        with server.client() as client:
            self.assertLessEqual(client("DBSIZE"), 1)

    def test_the_log_goes_before_a_bgsave_which_is_taken_up_again(self):
        server = self.server(log_size_max="8mb", appendfsync="no", auto_aof_rewrite_percentage=0)
        with server.client() as client:
            fill(client, 10_000, size=2000)
            until(lambda: server.info()["rdb_bgsave_in_progress"] == "0", PATIENCE, "the snapshot's end")
            saves = int(server.info()["snapshot_saves_complete"])
            client("BGSAVE", "SCHEDULE")
            overwrite = [["SET", f"s:{number}", "x" * 2000] for number in range(8000)]
            client.pipeline(overwrite)
            until(lambda: int(server.info()["snapshot_saves_complete"]) > saves, PATIENCE, "the snapshot of BGSAVE")
            info = server.info()
            self.assertGreaterEqual(int(info["snapshot_rewrites_complete"]), 1)
            self.assertEqual(info["rdb_last_bgsave_status"], "ok")
            self.assertEqual(info["aof_last_bgrewrite_status"], "ok")
            before = contents(client)
        server.restart()
        with server.client() as client:
            self.assertEqual(contents(client), before)

    def test_the_end_of_the_server_during_a_snapshot(self):
        for options, is_kept in ((["SAVE"], 1), ([], 1), (["NOW"], 1), (["NOSAVE"], 0), (["NOSAVE", "NOW"], 0)):
            with self.subTest(options):
                server = self.server(appendonly="no", save="3600 1000000")
                with server.client() as client:
                    fill(client, 20_000)
                    self.assertEqual(client("SAVE"), b"OK")
                    client("SET", "old", 1)
                    requests = [["BGSAVE"], ["SET", "late", 1], ["SHUTDOWN", *options]]
                    client.send(b"".join(encode(*request) for request in requests))
                    self.assertEqual(server.process.wait(PATIENCE), 0)
                server.start()
                with server.client() as client:
                    self.assertEqual(client("EXISTS", "late"), is_kept)
                    self.assertGreaterEqual(client("DBSIZE"), 20_000)
                server.close()

    def test_killed_again_and_again_during_snapshots_without_a_log(self):
        """After each kill, the data are those of the last snapshot that is known to be complete, or
        of a newer one."""
        server = self.server(appendonly="no", save="")
        done = 0
        for life in range(1, 7):
            with server.client() as client:
                fill(client, 3000)
                client("SET", "life", life)
                if life % 3 == 0:
                    client("SAVE")
                    done = life
                else:
                    client("BGSAVE")
            server.restart()
            with server.client() as client:
                found = int(client("GET", "life") or 0)
                self.assertIn(found, range(done, life + 1))
                self.assertEqual(client("DBSIZE"), 3001 if found else 0)
                done = max(done, found)

    def test_keys_go_for_lack_of_memory_during_a_snapshot(self):
        """Memory that is held only for the snapshot does not count towards `maxmemory`, so the
        server evicts no keys because of that memory."""
        policies = ["noeviction"]
        policies += [f"{which}-{how}" for which in ("allkeys", "volatile") for how in ("lru", "lfu", "random")]
        for policy in [*policies, "volatile-ttl"]:
            with self.subTest(policy):
                server = self.server(
                    appendonly="no", save="", maxmemory="3mb", maxmemory_policy=policy
                )
                with server.client() as client:
                    requests = [["SET", f"k:{n}", b"v" * 1000, "PX", 10**9 + n] for n in range(1500)]
                    client.pipeline(requests)
                    before = contents(client)
                    self.assertGreater(len(before), 1400)
                    changes = [["SET", f"k:{n}", b"w" * 1200, "PX", 10**9] for n in range(1500)]
                    changes += [["SET", f"new:{n}", b"v" * 1000, "PX", 10**9] for n in range(1500)]
                    replies = client.pipeline([["BGSAVE"], *changes])
                    refused = [text for kind, text in replies if kind == b"-"]
                    self.assertEqual(bool(refused), policy == "noeviction", refused[:1])
                    wait_until_saved(server)
                    info = server.info()
                    self.assertEqual(info["rdb_last_bgsave_status"], "ok")
                    self.assertEqual(int(info["evicted_keys"]) > 0, policy != "noeviction")
                    counted = int(info["used_memory"]) - int(info["mem_not_counted_for_evict"])
                    self.assertLess(counted, 4 << 20)
                    self.assertGreater(client("DBSIZE"), 900)
                server.restart()
                with server.client() as client:
                    self.assertEqual(contents(client), before)
                server.close()

    def test_a_hash_of_many_fields_during_a_snapshot(self):
        for change in (["DEL", "large"], ["UNLINK", "large"], ["PEXPIREAT", "large", 1],
                       ["RENAME", "large", "other"], ["SET", "large", "x"]):
            with self.subTest(" ".join(str(word) for word in change)):
                server = self.server(appendonly="no", save="")
                with server.client() as client:
                    for start in range(0, 20_000, 5000):
                        pairs = [x for n in range(start, start + 5000) for x in (f"f{n}", n)]
                        client("HSET", "large", *pairs)
                    before = contents(client)
                    changes = [["HSET", "large", f"f{n}", "changed"] for n in range(0, 20_000, 25)]
                    changes += [["HDEL", "large", f"f{n}"] for n in range(1, 20_000, 25)]
                    changes += [["HSET", "large", f"new{n}", n] for n in range(1000)]
                    client.pipeline([["BGSAVE"], *changes, change])
                    wait_until_saved(server)
                server.restart()
                with server.client() as client:
                    self.assertEqual(contents(client), before)
                server.close()

    def test_a_snapshot_is_as_of_its_beginning(self):
        server = self.server(appendonly="no", save="")
        with server.client() as client:
            fill(client, 5000)
            before = contents(client)
            changes = [["BGSAVE"], ["APPEND", "n:0", "x"], ["DEL", "n:5"], ["HSET", "h:2", "new", 1]]
            changes += [["RENAME", "n:10", "renamed"], ["EXPIRE", "n:15", 1], ["SWAPDB", 0, 1]]
            changes += [["MOVE", "n:20", 3], ["COPY", "n:25", "copied"], ["SET", "added", 1]]
            client.pipeline(changes)
            wait_until_saved(server)
        server.restart()
        with server.client() as client:
            self.assertEqual(contents(client, (0, 1, 3)), before)

    def test_a_snapshot_asked_for_in_a_transaction_is_behind_it(self):
        server = self.server(appendonly="no", save="")
        with server.client() as client:
            client("MULTI")
            client("SET", "a", 1)
            client("BGSAVE")
            client("SET", "b", 1)
            self.assertEqual(client("EXEC"), [b"OK", b"Background saving scheduled", b"OK"])
            until(lambda: server.info()["snapshot_saves_complete"] == "1", PATIENCE, "the snapshot")
        server.restart()
        with server.client() as client:
            self.assertEqual(client("EXISTS", "a", "b"), 2)

    def test_killed_during_snapshots(self):
        """After each kill, every acknowledged write is there, whichever kind of snapshot was
        running."""
        server = self.server(appendfsync="always")
        with server.client() as client:
            fill(client, 5000, size=500)
        for life in range(6):
            with server.client() as client:
                before = contents(client)
                client("BGREWRITEAOF" if life % 2 else "BGSAVE")
                for number in range(life * 50):
                    client("SET", f"life:{life}:{number}", number)
                    before[0, b"life:%d:%d" % (life, number)] = b"string", b"%d" % number, -1
            server.restart()
            with server.client() as client:
                self.assertEqual(contents(client), before)

    def test_a_log_is_bounded_by_snapshots(self):
        server = self.server(auto_aof_rewrite_min_size="4mb", log_size_max="24mb")
        with server.client() as client:
            for number in range(3000):
                client("SET", f"k:{number % 100}", random.randbytes(20_000))
            info = server.info()
            self.assertGreaterEqual(int(info["snapshot_rewrites_complete"]), 2)
            self.assertGreater(int(info["log_record_bytes"]), 48 << 20)
            self.assertLessEqual(int(info["log_capacity_bytes"]), 24 << 20)
            before = contents(client)
        server.restart()
        with server.client() as client:
            self.assertEqual(contents(client), before)

    def test_memory_for_a_snapshot_is_bounded_and_nobody_waits_for_ever(self):
        server = self.server(snapshot_memory_limit="1mb", appendfsync="no")
        with server.client() as client:
            fill(client, 20_000, size=2000)
            client("BGSAVE")
            overwrite = [["SET", f"s:{number}", "x" * 2000] for number in range(20_000)]
            for start in range(0, len(overwrite), 500):
                client.pipeline(overwrite[start : start + 500])
            wait_until_saved(server)
            self.assertEqual(server.info()["rdb_last_bgsave_status"], "ok")
            self.assertLess(int(server.info()["rdb_last_cow_size"]), 8 << 20)
            self.assertEqual(client("GET", "s:19999"), b"x" * 2000)


@slimio_only
@unittest.skipIf(compiler() is None, "there is no C compiler for the library that makes writes fail")
class FailingSnapshots(TestCase):
    seconds = 20

    def server(self, **flags):
        # The preloaded library sees only calls through libc, so the server does not use io_uring
        # here. Errors of io_uring are tested on the simulated device.
        server = SpoiltServer(io_backend="plain", log_segment_size="1mb", **flags)
        self.addCleanup(server.close)
        return server

    def test_a_failed_snapshot_leaves_everything_as_it_was(self):
        for number in (errno.EIO, errno.ENOSPC):
            server = self.server()
            with server.client() as client:
                fill(client, 500)
                client("BGREWRITEAOF")
                wait_until_saved(server, "aof")
                slot = self.reserve(server)
                server.spoil(write=number, path_end=f"snapshot-{slot}")
                client("BGREWRITEAOF")
                wait_until_saved(server, "aof")
                info = server.info()
                self.assertEqual(info["aof_last_bgrewrite_status"], "err")
                self.assertIn("snapshot", info["snapshot_rewrite_error"])
                self.assertEqual(info["log_latched"], "0")
                client("SET", "behind", 1)
                before = contents(client)
            server.spoil()
            server.restart()
            with server.client() as client:
                self.assertEqual(contents(client), before)
                self.assertEqual(client("BGREWRITEAOF")[:10], b"Background")
            wait_until_saved(server, "aof")
            self.assertEqual(server.info()["aof_last_bgrewrite_status"], "ok")
            server.close()

    def reserve(self, server):
        held = [name for name in server.info() if name.startswith("snapshot_slot_")]
        numbers = {int(name.rsplit("_", 1)[1]) for name in held}
        return "abc"[min({0, 1, 2} - numbers)]

    def test_a_failed_snapshot_that_nothing_asks_for_stops_nobody(self):
        """As in Redis, a failed snapshot makes the server refuse writes only if `save` is set."""
        server = self.server(save="")
        with server.client() as client:
            client("SET", "a", 1)
            server.spoil(write=errno.EIO, path_end=f"snapshot-{self.reserve(server)}")
            self.assertRaises(ReplyError, client, "SAVE")
            self.assertEqual(server.info()["rdb_last_bgsave_status"], "err")
            self.assertEqual(client("SET", "b", 1), b"OK")
            client("CONFIG", "SET", "save", "3600 1")
            self.assertEqual(client.raw("SET", "b", 1)[1][:7], b"MISCONF")

    def test_two_failures_in_a_row_and_a_success(self):
        server = self.server(appendonly="no", save="")
        with server.client() as client:
            fill(client, 500)
            self.assertEqual(client("SAVE"), b"OK")
            before = contents(client)
            client("SET", "later", 1)
            server.spoil(write=errno.ENOSPC, path_end=f"snapshot-{self.reserve(server)}")
            for _ in range(2):
                client("BGSAVE")
                wait_until_saved(server)
                self.assertEqual(server.info()["rdb_last_bgsave_status"], "err")
            self.assertEqual(server.said().count("on-demand snapshot failed"), 2)
        server.spoil()
        server.restart()
        with server.client() as client:
            self.assertEqual(contents(client), before)
            self.assertEqual(client("SAVE"), b"OK")
            self.assertEqual(server.info()["rdb_last_bgsave_status"], "ok")

    def test_writes_stop_when_a_scheduled_snapshot_failed(self):
        server = self.server(appendonly="no", save="3600 1")
        with server.client() as client:
            client("SET", "a", 1)
            server.spoil(write=errno.EIO, path_end=f"snapshot-{self.reserve(server)}")
            self.assertRaises(ReplyError, client, "SAVE")
            kind, text = client.raw("SET", "b", 1)
            self.assertEqual(kind, b"-")
            self.assertTrue(text.startswith(b"MISCONF Redis is configured to save RDB"), text)
            self.assertEqual(client("GET", "a"), b"1")
            # Even PING, which monitoring sends, gets the error. SHUTDOWN gets an error, too.
            self.assertEqual(client.raw("PING")[1][:7], b"MISCONF")
            kind, text = client.raw("SHUTDOWN")
            self.assertEqual((kind, text), (b"-", b"ERR Errors trying to SHUTDOWN. Check logs."))
            client("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
            self.assertEqual(client("SET", "b", 1), b"OK")
            server.spoil()
            self.assertEqual(client("SAVE"), b"OK")
            client("CONFIG", "SET", "stop-writes-on-bgsave-error", "yes")
            self.assertEqual(client("SET", "c", 1), b"OK")
        self.assertEqual(server.terminate(), 0)
        server.start()
        with server.client() as client:
            self.assertEqual(client("EXISTS", "a", "b", "c"), 3)
