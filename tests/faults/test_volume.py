"""Somebody has changed a volume. A server must open the volume with all data, or refuse it with a
clear message."""

import itertools
import os
import shutil
import struct
import subprocess

from harness import volume as on_media
from harness.server import Server, StartError, refusal
from harness.target import TARGET, TestCase, slimio_only

SMALL_LOG = {"log_segment_size": "1mb", "appendfsync": "always"}
KEY_COUNT = 600


def fill(client):
    """Fills some segments of the log. Afterwards, every key is acknowledged and durable."""
    for start in range(0, KEY_COUNT, 20):
        commands = [["SET", f"key:{n}", f"{n}:" + "x" * 9000] for n in range(start, start + 20)]
        client.pipeline(commands)


@slimio_only
class Damage(TestCase):
    seconds = 30

    @classmethod
    def setUpClass(cls):
        cls.original = None

    @classmethod
    def tearDownClass(cls):
        if cls.original is not None:
            shutil.rmtree(cls.original, ignore_errors=True)

    def volume(self):
        """A fresh copy of one filled volume, whose server was killed."""
        if Damage.original is None:
            with Server(**SMALL_LOG) as server:
                with server.client() as client:
                    fill(client)
                server.kill()
                Damage.original = server.folder + "-original"
                shutil.copytree(server.volume, Damage.original)
        copy = Damage.original + f"-{self.id().rsplit('.', 1)[-1]}"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(Damage.original, copy)
        self.addCleanup(shutil.rmtree, copy, ignore_errors=True)
        return copy

    def check_whole(self, server):
        with server.client() as client:
            self.assertEqual(client("DBSIZE"), KEY_COUNT)
            for number in range(0, KEY_COUNT, 37):
                self.assertTrue(client("GET", f"key:{number}").startswith(b"%d:" % number))
            self.assertEqual(client("SET", "after", "1"), b"OK")

    def refused(self, volume, *words):
        """Checks that a start fails, with a message that contains these words, and that no file
        changes its size."""
        before = self.sizes(volume)
        said = refusal(volume=volume, **SMALL_LOG)
        for word in words:
            self.assertIn(word, said)
        self.assertNotIn("panicked", said)
        self.assertEqual(self.sizes(volume), before, "a refused start has changed a file")
        return said

    def sizes(self, volume):
        """Sizes of all files except the lock. The size of the lock varies, because the lock
        contains the process ID of its last holder."""
        names = [name for name in os.listdir(volume) if name != "lock"]
        return {name: os.path.getsize(os.path.join(volume, name)) for name in names}

    def test_undamaged(self):
        with Server(volume=self.volume(), **SMALL_LOG) as server:
            self.check_whole(server)

    def test_each_copy_of_the_superblock(self):
        for copy in range(on_media.COPY_COUNT):
            with self.subTest(copy):
                volume = self.volume()
                on_media.damage_copy(volume, copy)
                damaged = on_media.read_copy(volume, copy)
                with Server(volume=volume, **SMALL_LOG) as server:
                    self.check_whole(server)
                self.assertNotEqual(on_media.read_copy(volume, copy), damaged, "the start has not repaired the copy")

    def test_each_pair_of_copies(self):
        opened = 0
        for pair in itertools.combinations(range(on_media.COPY_COUNT), 2):
            with self.subTest(pair):
                volume = self.volume()
                for copy in pair:
                    on_media.damage_copy(volume, copy)
                try:
                    server = Server(volume=volume, **SMALL_LOG)
                except StartError as error:
                    # Both copies of the last update are damaged, and an older copy must not
                    # silently replace them.
                    self.assertIn("superblock", str(error))
                    self.assertNotIn("panicked", str(error))
                else:
                    opened += 1
                    with server:
                        self.check_whole(server)
        self.assertGreaterEqual(opened, 5, "a pair other than that of the last update was refused")

    def test_all_copies(self):
        volume = self.volume()
        for copy in range(on_media.COPY_COUNT):
            on_media.damage_copy(volume, copy)
        self.refused(volume, "superblock")

    def test_another_format_version(self):
        volume = self.volume()
        path = on_media.superblock_path(volume)
        for copy in range(on_media.COPY_COUNT):
            offset = on_media.copy_offset(volume, copy) + on_media.VERSION_OFFSET
            on_media.write_at(path, offset, struct.pack("<I", 7777))
        self.refused(volume, "7777", "version")

    def test_the_superblock_of_another_volume(self):
        ours, other = self.volume(), None
        with Server(**SMALL_LOG) as server:
            with server.client() as client:
                client("SET", "k", "v")
            server.kill()
            other = on_media.superblock_path(server.volume)
            shutil.copy(other, on_media.superblock_path(ours))
        try:
            with Server(volume=ours, **SMALL_LOG) as server:
                self.fail(f"the server opened the volume: {server.info('keyspace')}")
        except StartError as error:
            self.assertNotIn("panicked", str(error))

    def test_damage_in_the_middle_of_the_log(self):
        volume = self.volume()
        offsets = on_media.batch_offsets(volume)
        self.assertGreater(len(offsets), 10)
        for offset in offsets[2], offsets[len(offsets) // 2]:
            for within in (0, 20, 40, 72, 100, 5000):
                with self.subTest(f"{offset}+{within}"):
                    on_media.flip_bit(on_media.log_path(volume), offset + within)
                    self.refused(volume, "log")
                    on_media.flip_bit(on_media.log_path(volume), offset + within)
        with Server(volume=volume, **SMALL_LOG) as server:
            self.check_whole(server)

    def test_a_block_of_zeros_in_the_middle_of_the_log(self):
        volume = self.volume()
        offsets = on_media.batch_offsets(volume)
        on_media.write_at(on_media.log_path(volume), offsets[len(offsets) // 2], bytes(4096))
        self.refused(volume, "log")

    def test_a_truncated_log(self):
        volume = self.volume()
        os.truncate(on_media.log_path(volume), (1 << 20) + 12288)
        self.refused(volume, "wal")

    def test_a_missing_log(self):
        volume = self.volume()
        os.remove(on_media.log_path(volume))
        self.refused(volume, "wal")

    def test_a_truncated_superblock(self):
        for size in (0, 100, on_media.COPY_SIZE):
            with self.subTest(size):
                volume = self.volume()
                os.truncate(on_media.superblock_path(volume), size)
                self.refused(volume, "super")

    def test_a_missing_superblock(self):
        volume = self.volume()
        os.remove(on_media.superblock_path(volume))
        self.refused(volume, "super")


    def test_a_superblock_that_is_gone_altogether(self):
        for byte in (b"\0", b"\xff"):
            with self.subTest(byte):
                volume = self.volume()
                path = on_media.superblock_path(volume)
                on_media.write_at(path, 0, byte * os.path.getsize(path))
                said = self.refused(volume, "no SlimIO volume", "backup", "--force")
                self.assertNotIn("make one with", said)
                # The remaining files are not overwritten unless `--force` says so.
                for force, status in (False, 1), (True, 0):
                    command = [TARGET.command[0], "format", "--volume", volume]
                    made = subprocess.run([*command, *["--force"] * force], capture_output=True)
                    self.assertEqual(made.returncode, status, made.stderr)
                    self.assertIn(b"" if force else b"--force", made.stderr)

    def test_missing_or_truncated_buffers(self):
        # Some acknowledged writes may be in the file `buffers` only.
        for size in (None, 0, 4096, 1 << 20, -4096, -1):
            with self.subTest(size):
                volume = self.volume()
                path = os.path.join(volume, "buffers")
                if size is None:
                    os.remove(path)
                else:
                    os.truncate(path, size if size >= 0 else os.path.getsize(path) + size)
                self.refused(volume, "buffers", "backup", "--salvage")
        with Server(volume=volume, salvage="yes", **SMALL_LOG) as server:
            self.check_whole(server)
        with Server(volume=volume, **SMALL_LOG) as server:
            with server.client() as client:
                self.assertEqual(client("DBSIZE"), KEY_COUNT + 1)


@slimio_only
class WrongPlace(TestCase):
    seconds = 3

    def test_a_volume_in_use(self):
        with Server() as server:
            with server.client() as client:
                client("SET", "k", "v")
            said = refusal(volume=server.volume)
            self.assertIn("in use", said)
            self.assertIn(server.volume, said)
            with server.client() as client:
                self.assertEqual(client("GET", "k"), b"v")
            server.restart()
            with server.client() as client:
                self.assertEqual(client("GET", "k"), b"v")

    def test_a_directory_that_is_no_volume(self):
        with Server(start=False) as server:
            os.makedirs(server.volume)
            note = os.path.join(server.volume, "notes.txt")
            with open(note, "w", encoding="utf-8") as file:
                file.write("mine")
            said = refusal(volume=server.volume)
            self.assertIn(server.volume, said)
            self.assertEqual(os.listdir(server.volume), ["notes.txt"])

    def test_a_file(self):
        with Server(start=False) as server:
            with open(server.volume, "w", encoding="utf-8") as file:
                file.write("mine")
            said = refusal(volume=server.volume)
            self.assertIn(server.volume, said)
            with open(server.volume, encoding="utf-8") as file:
                self.assertEqual(file.read(), "mine")

    def test_an_empty_directory_becomes_a_volume(self):
        with Server(start=False) as server:
            os.makedirs(server.volume)
            server.start()
            with server.client() as client:
                self.assertEqual(client("SET", "k", "v"), b"OK")

    def test_a_place_that_cannot_be_made(self):
        said = refusal(volume="/proc/no/such/place")
        self.assertIn("/proc/no/such/place", said)
