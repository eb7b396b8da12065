"""Copies of volumes: sparse copies, copies on full file systems, and two copies that serve at once.
Each copy is made as `docs/copies.md` says. Each must open with all data, or be refused with a clear
message."""

import os
import shutil
import subprocess
import threading

from harness.file_system import SmallFileSystem
from harness.server import Server, StartError
from harness.target import TestCase, slimio_only
from harness.tool import tool
from harness.wait import until

SMALL = {"log_segment_size": "1mb"}

# Each program makes a hole of every block of zeros, except tar, which only keeps existing holes.
PROGRAMS = {
    "cp": lambda source, copy: [["cp", "-r", "--sparse=always", source, copy]],
    "rsync": lambda source, copy: [["rsync", "-rS", source + "/", copy]],
    "tar": lambda source, copy: [
        ["cp", "-r", "--sparse=always", source, copy + ".first"],
        ["tar", "-C", copy + ".first", "-Scf", copy + ".tar", "."],
        ["mkdir", copy],
        ["tar", "-C", copy, "-xf", copy + ".tar"],
        ["rm", "-r", copy + ".tar", copy + ".first"],
    ],
}


def copy_sparse(test, program, source, copy):
    if shutil.which(program) is None:
        test.skipTest(f"there is no {program}: install the package {program}")
    for line in PROGRAMS[program](source, copy):
        subprocess.run(line, check=True, capture_output=True)
    # Until the kernel has written a file's data back, `st_blocks` may count more space than the
    # file will take.
    subprocess.run(["sync", *(os.path.join(copy, name) for name in os.listdir(copy))], check=True)
    test.assertTrue(has_holes(copy, "buffers"), "the copy of the buffers has no hole")


def has_holes(volume, name):
    """Whether the file takes less space than its length."""
    found = os.stat(os.path.join(volume, name))
    return found.st_blocks * 512 < found.st_size


def value(number):
    return b"%d:" % number + b"x" * 900


def write(server, start, count):
    """Writes keys, and returns when all of them are acknowledged."""
    with server.client() as client:
        replies = client.pipeline([["SET", f"key:{n}", value(n)] for n in range(start, start + count)])
    if any(text != b"OK" for _, text in replies):
        raise AssertionError(f"not all writes succeeded; the last reply: {replies[-1]}")


def check(test, server, count):
    with server.client() as client:
        test.assertEqual(client("DBSIZE"), count)
        replies = client.pipeline([["GET", f"key:{n}"] for n in range(count)])
    for number, (_, found) in enumerate(replies):
        test.assertEqual(found, value(number), f"key:{number}")


def filled(test, policy, **options):
    """A killed server, whose volume has snapshots, a log after them, and records that are only in
    the log's buffers (the file `buffers`)."""
    server = Server(appendfsync=policy, **SMALL, **options)
    test.addCleanup(server.close)
    write(server, 0, 2000)
    with server.client() as client:
        client("SAVE")
    write(server, 2000, 3000)
    # The last of these writes are only in the buffers.
    write(server, 5000, 20)
    server.kill()
    return server


class Sparse:
    """Sparse copies, made by each program."""

    seconds = 20

    def check_copy(self, program):
        origin = filled(self, self.policy)
        copy = origin.folder + "-copy"
        self.addCleanup(shutil.rmtree, copy, ignore_errors=True)
        copy_sparse(self, program, origin.volume, copy)
        # The buffers are not compared, because on tmpfs, reading a page through a mapping allocates
        # the page.
        looked_at = {name: os.path.join(copy, name) for name in os.listdir(copy) if name != "buffers"}
        before = {name: os.stat(path).st_blocks for name, path in looked_at.items()}
        status, said = tool("verify", "--volume", copy)
        self.assertEqual(status, 0, said)
        if self.policy == "everysec":
            self.assertIn("from the mapped buffers", said)
        after = {name: os.stat(path).st_blocks for name, path in looked_at.items()}
        self.assertEqual(after, before, "`verify` changed the space that a file takes")
        server = Server(volume=copy, appendfsync=self.policy, **SMALL)
        self.addCleanup(server.close)
        check(self, server, 5020)
        self.assertEqual(server.info()["log_buffers"], "mapped")
        self.assertFalse(has_holes(copy, "buffers"), "the buffers have holes, so a store could find no space")
        write(server, 5020, 3000)
        server.restart()
        check(self, server, 8020)
        self.assertEqual(server.info()["log_buffers"], "mapped")
        # The original is unchanged.
        origin.start()
        check(self, origin, 5020)

    def test_by_cp(self):
        self.check_copy("cp")

    def test_by_rsync(self):
        self.check_copy("rsync")

    def test_by_tar(self):
        self.check_copy("tar")


@slimio_only
class SparseAlways(Sparse, TestCase):
    policy = "always"


@slimio_only
class SparseEverysec(Sparse, TestCase):
    policy = "everysec"


class OnFullFileSystem:
    seconds = 30

    def setUp(self):
        with Server(start=False) as server:
            self.fs = SmallFileSystem(self, self.kind, server.folder + "-mount")
        self.copy = os.path.join(self.fs.mount, "copy")
        self.origin = filled(self, "everysec")

    def server(self):
        server = Server(volume=self.copy, start=False, appendfsync="everysec", **SMALL)
        self.addCleanup(server.close)
        return server

    def taken(self):
        """Number of blocks of each file. The lock and claim files are left out, because any command
        may create them."""
        names = sorted(set(os.listdir(self.copy)) - {"lock", "claim"})
        return {name: os.stat(os.path.join(self.copy, name)).st_blocks for name in names}

    def test_no_room_for_what_was_left_out(self):
        copy_sparse(self, "cp", self.origin.volume, self.copy)
        self.fs.fill()
        server = self.server()
        for _ in range(2):
            with self.assertRaises(StartError) as refused:
                server.start()
            self.assertRegex(str(refused.exception), "a sparse copy left in the [a-z]+.s area: no space left; make room")
        # There is room for only a part of the blocks that the sparse copy has left out. A start
        # that is refused must not keep any of that room.
        os.truncate(self.fs.ballast, os.stat(self.fs.ballast).st_size - (512 << 10))
        self.fs.write_back()
        before = self.taken()
        for _ in range(2):
            with self.assertRaises(StartError) as refused:
                server.start()
            self.assertRegex(str(refused.exception), "a sparse copy left in the [a-z]+.s area: no space left; make room")
            self.fs.write_back()
            for name, blocks in self.taken().items():
                # A few blocks more are allowed: the file system's own tables may keep the space
                # that they took.
                self.assertLessEqual(blocks, before[name] + 8, f"a start that is refused took space for {name}")
        status, said = tool("verify", "--volume", self.copy)
        self.assertEqual(status, 0, said)
        # An export needs no room on the file system of the copy.
        backup = self.origin.folder + "-backup.rdb"
        status, said = tool("export", "--volume", self.copy, "--out", backup)
        self.assertEqual(status, 0, said)
        self.addCleanup(os.remove, backup)
        self.assertIn("wrote 5020 keys", said)
        self.fs.make_room()
        server.start()
        check(self, server, 5020)
        self.assertEqual(server.info()["log_buffers"], "mapped")

    def test_no_room_for_buffers(self):
        """There is no room to fill the holes in the copy's file of buffers. The server still reads
        this file, and then uses private memory for the log's buffers."""
        shutil.copytree(self.origin.volume, self.copy)
        subprocess.run(["fallocate", "--dig-holes", os.path.join(self.copy, "buffers")], check=True)
        self.fs.write_back()
        self.fs.fill()
        server = self.server().start()
        check(self, server, 5020)
        write(server, 5020, 100)
        info = server.info()
        self.assertEqual(info["log_buffers"], "private")
        self.assertIn("no space", info["io_path_why_not_better"])
        server.restart()
        check(self, server, 5120)
        self.fs.make_room()
        server.restart()
        check(self, server, 5120)
        self.assertEqual(server.info()["log_buffers"], "mapped")


@slimio_only
class OnFullExt4(OnFullFileSystem, TestCase):
    kind = "ext4"


@slimio_only
class OnFullXfs(OnFullFileSystem, TestCase):
    kind = "xfs"


@slimio_only
class Two(TestCase):
    seconds = 10

    def test_both_copies_serve_at_once_and_know_nothing_of_each_other(self):
        origin = filled(self, "everysec")
        copy = origin.folder + "-copy"
        self.addCleanup(shutil.rmtree, copy, ignore_errors=True)
        # The lock and claim files are copied, too, but no process holds the copies.
        origin.start()
        origin.kill()
        shutil.copytree(origin.volume, copy)
        with Server(volume=copy, **SMALL) as second:
            origin.start()
            write(origin, 5020, 10)
            write(second, 5020, 500)
            for server, count in ((origin, 5030), (second, 5520)):
                server.restart()
                check(self, server, count)

    def test_the_second_pass_of_rsync_brings_what_is_in_buffers(self):
        """A store to a mapped page that is already dirty changes neither the file's time nor its
        length. So rsync finds such a change only with `--ignore-times`."""
        if shutil.which("rsync") is None:
            self.skipTest("there is no rsync: install the package rsync")
        origin = filled(self, "everysec")
        copy = origin.folder + "-copy"
        self.addCleanup(shutil.rmtree, copy, ignore_errors=True)
        origin.start()
        write(origin, 5020, 10)
        subprocess.run(["rsync", "-a", origin.volume + "/", copy], check=True)
        write(origin, 5030, 10)
        origin.kill()
        subprocess.run(["rsync", "-a", "--ignore-times", origin.volume + "/", copy], check=True)
        with Server(volume=copy, **SMALL) as second:
            check(self, second, 5040)


class Load(threading.Thread):
    """One client that counts up, and sets one key per number."""

    KEYS = 500
    DEPTH = 20

    def __init__(self, server):
        super().__init__()
        self.server, self.acknowledged, self.sent, self.is_over = server, 0, 0, False

    def __enter__(self):
        self.start()
        until(lambda: self.acknowledged > 2 * self.KEYS, what="some load")
        return self

    def __exit__(self, *_):
        self.is_over = True
        self.join()

    def run(self):
        with self.server.client() as client:
            while not self.is_over:
                first, self.sent = self.sent + 1, self.sent + self.DEPTH
                client.pipeline([self.request(number) for number in range(first, self.sent + 1)])
                self.acknowledged = self.sent

    def durable(self):
        """A number up to which all writes are durable."""
        number = self.acknowledged
        with self.server.client() as client:
            client("SET", "behind", number)
            client("WAITAOF", 1, 0, 0)
        return number

    def request(self, number):
        return ["MSET", "number", number, f"key:{number % self.KEYS}", value(number)]

    def check(self, test, server, low, high):
        """Checks that the data are those of one moment, at which the client had counted to a number
        from `low` to `high`."""
        with server.client() as client:
            number = int(client("GET", "number"))
            keys = client.pipeline([["GET", f"key:{key}"] for key in range(self.KEYS)])
        for key, (_, found) in enumerate(keys):
            last = number - (number - key) % self.KEYS
            test.assertEqual(found, value(last), f"key:{key} when the count is {number}")
        test.assertLessEqual(low, number, "acknowledged writes are missing")
        test.assertLessEqual(number, high)


class Running:
    """Copies of a volume while its server serves clients and rewrites its log all the time."""

    seconds = 60
    COPIES = 5

    def copies(self, kind, copy, is_one_moment=True):
        """Makes copies with `copy`. Each copy must be refused, or open with all writes that were
        acknowledged before the copy began. Under `everysec`, a copy that is not of one moment may
        lack those that were not durable yet. Returns the number of refused copies."""
        policy = self.policy
        with Server(start=False) as server:
            fs = SmallFileSystem(self, kind, server.folder + "-mount")
        flags = {"appendfsync": policy, "auto_aof_rewrite_min_size": "4mb"} | SMALL
        server = Server(volume=fs.make_folder("volume"), **flags)
        self.addCleanup(server.close)
        refused = 0
        with Load(server) as load:
            for number in range(self.COPIES):
                target = f"{server.folder}-copy-{number}"
                # Some records are only in the buffers when the log is copied. The server may
                # overwrite them there before the buffers are copied. So the copy may lack writes
                # that are not durable.
                is_exact = is_one_moment or policy == "always"
                low = load.acknowledged if is_exact else load.durable()
                path = copy(fs, server.volume, target)
                high = load.sent
                second = Server(volume=path, start=False, **flags)
                self.addCleanup(shutil.rmtree, path, ignore_errors=True)
                try:
                    second.start()
                    load.check(self, second, low, high)
                except StartError as error:
                    self.assertIn("exit status 1:", str(error))
                    self.assertRegex(str(error), "damaged|instead of|not whole")
                    refused += 1
                finally:
                    second.close()
        return refused

    def test_files_one_after_the_other(self):
        def copy(_, source, target):
            subprocess.run(["cp", "-r", source, target], check=True)
            return target

        self.copies("ext4", copy, is_one_moment=False)

    def test_while_the_file_system_is_frozen(self):
        def copy(fs, source, target):
            subprocess.run(["fsfreeze", "--freeze", fs.mount], check=True)
            try:
                subprocess.run(["cp", "-r", source, target], check=True)
            finally:
                subprocess.run(["fsfreeze", "--unfreeze", fs.mount], check=True)
            return target

        for kind in ("ext4", "xfs"):
            self.assertEqual(self.copies(kind, copy), 0, "a copy was refused")

    def test_by_a_snapshot_of_the_file_system(self):
        def copy(fs, source, target):
            name = os.path.basename(target)
            fs.copy(source, name)
            return os.path.join(fs.mount, name)

        self.assertEqual(self.copies("btrfs", copy), 0, "a copy was refused")


@slimio_only
class RunningAlways(Running, TestCase):
    policy = "always"


@slimio_only
class RunningEverysec(Running, TestCase):
    policy = "everysec"
