"""Tests what happens when the log has no room. Reads must go on, operators can make room, a restart
changes nothing, and nothing hangs."""

import base64
import errno
import os
import random
import subprocess
import time
import unittest

from harness.faults import SpoiltServer, compiler
from harness.loop_device import unmount
from harness.resp import ReplyError, encode
from harness.server import Server
from harness.target import TestCase, slimio_only
from harness.wait import until

# The value can't be compressed, so a snapshot of such values is as large as the values themselves.
VALUE = base64.b64encode(random.Random(0).randbytes(37_500))
WRITES_MAX = 4000
# Number of requests in a pipeline.
AT_ONCE = 128


def write_until_refused(test, client):
    """Writes until the server refuses a write. Returns the number of acknowledged writes, and the
    error of the refused one."""
    for number in range(WRITES_MAX):
        kind, text = client.raw("SET", f"key:{number}", VALUE)
        if kind == b"-":
            test.assertTrue(text.startswith(b"MISCONF"), text)
            return number, text
    return test.fail("the server refused no write, so the volume never became full")


def check_full(test, server, count):
    """Checks that the data are readable, and that writes are refused, also in a transaction."""
    with server.client() as client:
        test.assertEqual(client("DBSIZE"), count)
        for number in range(0, count, max(1, count // 20)):
            test.assertEqual(client("STRLEN", f"key:{number}"), len(VALUE))
        kind, text = client.raw("SET", "more", VALUE)
        test.assertEqual(kind, b"-")
        test.assertTrue(text.startswith(b"MISCONF"), text)
        test.assertEqual(client("EXISTS", "more"), 0)
        client("MULTI")
        client("GET", "key:0")
        kind, _ = client.raw("SET", "more", VALUE)
        if kind == b"+":
            test.assertRaises(ReplyError, client, "EXEC")
        else:
            client("DISCARD")
        test.assertEqual(client("EXISTS", "more"), 0)


@slimio_only
@unittest.skipIf(compiler() is None, "there is no C compiler for the library that makes writes fail")
class LimitReached(TestCase):
    """The log reaches its own limit, `log-size-max`, and the snapshot that would shorten the log
    fails. The tests make writes to the first slot fail, because the first snapshot always goes
    there."""

    seconds = 10

    def server(self, **flags):
        flags = {"io_backend": "plain", "log_segment_size": "1mb", "log_size_max": "8mb"} | flags
        server = SpoiltServer(**flags)
        self.addCleanup(server.close)
        server.spoil(write=errno.ENOSPC, path_end="snapshot-a")
        return server

    def test_each_policy(self):
        for policy in ("always", "everysec", "no"):
            with self.subTest(policy):
                server = self.server(appendfsync=policy)
                with server.client() as client:
                    count, text = write_until_refused(self, client)
                    self.assertIn(b"FLUSHALL", text, "the error must name FLUSHALL as a way out")
                check_full(self, server, count)
                server.close()

    def test_across_a_restart_and_the_way_out(self):
        server = self.server()
        with server.client() as client:
            count, _ = write_until_refused(self, client)
        for _ in range(2):
            server.restart()
            check_full(self, server, count)
        with server.client() as client:
            self.assertEqual(client("FLUSHALL"), b"OK")
            until(lambda: client.raw("SET", "k", VALUE) == (b"+", b"OK"), what="a write to succeed again")
            again, _ = write_until_refused(self, client)
            self.assertGreater(again, count // 2)
        server.restart()
        with server.client() as client:
            self.assertEqual(client("STRLEN", "k"), len(VALUE))
            self.assertEqual(client("DBSIZE"), again + 1)

    def test_deleting_is_possible_and_survives(self):
        server = self.server()
        with server.client() as client:
            count, _ = write_until_refused(self, client)
            self.assertEqual(client("DEL", "key:0"), 1)
            self.assertEqual(client("UNLINK", "key:1"), 1)
            self.assertEqual(client("DBSIZE"), count - 2)
        server.restart()
        with server.client() as client:
            self.assertEqual(client("DBSIZE"), count - 2)
            self.assertEqual(client("FLUSHDB"), b"OK")

    def test_a_raised_limit_is_another_way_out(self):
        server = self.server()
        with server.client() as client:
            count, _ = write_until_refused(self, client)
        server.flags["log-size-max"] = "16mb"
        server.restart()
        with server.client() as client:
            self.assertEqual(client("DBSIZE"), count)
            until(lambda: client.raw("SET", "k", VALUE) == (b"+", b"OK"), what="a write to succeed")

    def test_writers_wait_for_no_reply_for_ever(self):
        server = self.server()
        clients = [server.client() for _ in range(20)]
        refused = 0
        for client in clients:
            self.addCleanup(client.close)
        for number in range(WRITES_MAX):
            replies = []
            for index, client in enumerate(clients):
                replies.append(client.raw("SET", f"key:{number}:{index}", VALUE))
            refused = sum(kind == b"-" for kind, _ in replies)
            if refused == len(clients):
                break
        self.assertEqual(refused, len(clients))

    def test_a_snapshot_that_finds_room_is_another_way_out(self):
        server = self.server()
        with server.client() as client:
            count, _ = write_until_refused(self, client)
            server.spoil()
            until(lambda: client.raw("SET", "k", VALUE) == (b"+", b"OK"), what="a write to succeed again")
            for number in range(count):
                self.assertEqual(client("SET", f"again:{number}", VALUE), b"OK")
        server.restart()
        with server.client() as client:
            self.assertEqual(client("DBSIZE"), 2 * count + 1)


@slimio_only
class FileSystemFull(TestCase):
    """The file system under the volume has no room left."""

    seconds = 15

    def setUp(self):
        with Server(start=False) as server:
            self.mount = server.folder + "-mount"
        os.makedirs(self.mount)
        self.addCleanup(os.rmdir, self.mount)
        self.kind = mount_small(self, self.mount)
        if self.kind is None:
            self.skipTest("no small file system can be mounted (mounting needs root)")

    def test_full_restarted_and_freed(self):
        ballast = os.path.join(self.mount, "ballast")
        with open(ballast, "wb") as file:
            file.write(bytes(24 << 20))
            os.fsync(file.fileno())
        volume = os.path.join(self.mount, "volume")
        with Server(volume=volume, log_segment_size="1mb") as server:
            with server.client() as client:
                count, _ = write_until_refused(self, client)
            check_full(self, server, count)
            server.restart()
            check_full(self, server, count)
            os.remove(ballast)
            with server.client() as client:
                until(
                    lambda: client.raw("SET", "k", VALUE) == (b"+", b"OK"),
                    what="a write to succeed after room was made on the file system",
                )
            server.restart()
            with server.client() as client:
                self.assertEqual(client("DBSIZE"), count + 1)

    def test_flushall_is_a_way_out(self):
        volume = os.path.join(self.mount, "volume")
        with Server(volume=volume, log_segment_size="1mb") as server:
            with server.client() as client:
                write_until_refused(self, client)
                server.restart()
            with server.client() as client:
                client("FLUSHALL")
                until(lambda: client.raw("SET", "k", VALUE) == (b"+", b"OK"), what="a write to succeed again")

    def test_no_room_to_begin_with(self):
        with open(os.path.join(self.mount, "ballast"), "wb") as file:
            try:
                while True:
                    file.write(bytes(1 << 20))
                    file.flush()
            except OSError:
                pass
        server = Server(volume=os.path.join(self.mount, "volume"), start=False)
        self.addCleanup(server.close)
        server.port = 1
        server.spawn()
        server.process.wait(30)
        self.assertNotEqual(server.process.returncode, 0)
        self.assertRegex(server.said().lower(), "space|room")
        self.assertNotIn("panicked", server.said())


@slimio_only
class SmallFileSystem(TestCase):
    """A small data set on a small file system is overwritten as fast as possible. The log must not
    take space that its next snapshot needs, and must not keep space that it does not use."""

    seconds = 15
    size = "240m"

    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("only root can mount a small file system")
        with Server(start=False) as server:
            self.mount = server.folder + "-mount"
        os.makedirs(self.mount)
        self.addCleanup(os.rmdir, self.mount)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={self.size}", "slimio-test", self.mount]
        if subprocess.run(mount, check=False).returncode != 0:
            self.skipTest("no file system can be mounted on this machine")
        self.addCleanup(unmount, self.mount)

    def test_overwriting_is_never_refused(self):
        chance = random.Random(1)
        block = chance.randbytes(1 << 20)
        volume = os.path.join(self.mount, "volume")
        with Server(volume=volume, log_segment_size="4mb") as server, server.client() as client:
            for command, reply in ((["SET"], b"+OK\r\n"), (["SETRANGE", 0], b":4096\r\n")):
                batches = [b"".join(self.requests(chance, block, *command)) for _ in range(60)]
                ends = time.monotonic() + 5
                while time.monotonic() < ends:
                    client.send(chance.choice(batches))
                    replies = [client.stream.readline() for _ in range(AT_ONCE)]
                    self.assertEqual(set(replies), {reply})

    def test_a_point_in_time_leaves_the_log_its_next_snapshot(self):
        chance = random.Random(2)
        block = chance.randbytes(1 << 20)
        volume = os.path.join(self.mount, "volume")
        keys = range(15_360)
        with Server(volume=volume, log_segment_size="1mb") as server, server.client() as client:

            def overwrite(keys):
                for start in range(0, len(keys), AT_ONCE):
                    batch = keys[start : start + AT_ONCE]
                    requests = (self.request(chance, block, key, "SET") for key in batch)
                    client.send(b"".join(requests))
                    replies = [client.stream.readline() for _ in batch]
                    self.assertEqual(set(replies), {b"+OK\r\n"})

            def is_quiet():
                info = server.info("persistence")
                running = "rdb_bgsave_in_progress", "aof_rewrite_in_progress"
                return all(info[name] == "0" for name in running)

            overwrite(keys)
            until(is_quiet)
            client("BGREWRITEAOF")
            until(is_quiet)
            # After these writes, the log takes about as much space as a snapshot. With BGSAVE's
            # snapshot as the second one, no space is left for a third, the log's next snapshot.
            overwrite(chance.choices(keys, k=14_080))
            client("BGSAVE")
            until(is_quiet)
            overwrite(chance.choices(keys, k=8_000))

    def requests(self, chance, block, *command):
        """Yields requests that overwrite random keys. All values together take 24 MB."""
        for _ in range(AT_ONCE):
            yield self.request(chance, block, chance.randrange(6000), *command)

    def request(self, chance, block, key, name, *offset):
        at = chance.randrange(len(block) - 4096)
        return encode(name, f"key:{key}", *offset, block[at : at + 4096])


def mount_small(test, folder):
    """Mounts a file system of 64 MiB: ext4 on a loop device or, if that fails, tmpfs. Returns
    "ext4", "tmpfs", or None if neither can be mounted."""
    if os.geteuid() != 0:
        return None
    image = folder + ".image"
    with open(image, "wb") as file:
        file.truncate(64 << 20)
    test.addCleanup(os.remove, image)
    commands = [
        ("ext4", [["mkfs.ext4", "-q", "-F", "-m", "0", image], ["mount", "-o", "loop", image, folder]]),
        ("tmpfs", [["mount", "-t", "tmpfs", "-o", "size=64m", "slimio-test", folder]]),
    ]
    for kind, steps in commands:
        try:
            for step in steps:
                subprocess.run(step, check=True, capture_output=True, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError):
            continue
        test.addCleanup(subprocess.run, ["umount", "-l", folder], check=False)
        return kind
    return None
