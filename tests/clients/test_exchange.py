"""`slimio export` and `slimio import`, checked with stock redis-server and redis-check-rdb."""

import os
import random
import shutil
import string
import struct
import subprocess
import unittest

from harness.loop_device import LoopDevice
from harness.server import Server
from harness.target import TARGET, TestCase, slimio_only, stock_is_installed
from harness.tool import tool
from harness.wait import until


def is_saving(server):
    info = server.info("persistence")
    return "1" in (info["rdb_bgsave_in_progress"], info["aof_rewrite_in_progress"])


def fill(client, count):
    draw = random.Random(5)
    commands = []
    for number in range(count):
        value = draw.choice([draw.randbytes(draw.randrange(300)), b"abc" * draw.randrange(500)])
        match number % 5:
            case 0:
                commands.append(["SET", f"n:{number}", draw.choice([0, -1, 127, 2**31, -(2**63)])])
            case 1:
                commands.append(["SET", f"e:{number}", value, "PXAT", 4_000_000_000_000 + number])
            case 2:
                pairs = [x for i in range(draw.randrange(1, 40)) for x in (f"f{i}", value[:i])]
                commands.append(["HSET", f"h:{number}", *pairs])
            case _:
                commands.append(["SET", b"s:%d:\x00\xff" % number, value])
    commands.append(["SET", "large", draw.randbytes(3_000_000)])
    for start in range(0, 30_000, 500):
        pairs = [x for i in range(start, start + 500) for x in (f"field {i}", f"value {i}" * 3)]
        commands.append(["HSET", "large hash", *pairs])
        commands.append(["SADD", "large set", *pairs[::2]])
        commands.append(["RPUSH", "large list", *pairs, start])
    for number in range(count // 20):
        integers = [draw.randrange(-(2**bits), 2**bits) for bits in (7, 15, 31, 63) for _ in range(10)]
        commands.append(["SADD", f"integers:{number}", *integers[: 1 + number % 40]])
        commands.append(["SADD", f"many integers:{number}", *range(number, number + 1000)])
        commands.append(["SADD", f"words:{number}", *[value[:i] for i in range(1 + number % 60)], number])
        commands.append(["SADD", f"long word:{number}", "1", draw.randbytes(100)])
        commands.append(["RPUSH", f"list:{number}", *integers, *[value[:i] for i in range(number % 60)]])
        commands.append(["LPUSH", f"long elements:{number}", value, draw.randbytes(9000 * (number % 5)), 1])
    commands += [["SELECT", 9], ["SET", "ninth", 1], ["SELECT", 0]]
    for start in range(0, len(commands), 500):
        client.pipeline(commands[start : start + 500])


def module_id(name, version):
    """The id of a module: nine characters of six bits each, and a version of ten bits. The id is
    encoded in the form that RDB files have for 64-bit lengths."""
    letters = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
    number = 0
    for letter in name:
        number = number << 6 | letters.index(letter)
    return b"\x81" + struct.pack(">Q", number << 10 | version)


def with_module_key():
    """An RDB file of version 10 with a key of a module's type. Its checksum is 0, which means that
    there is no checksum."""
    value = module_id("ReJSON-RL", 3) + b"\x05\x02{}" + b"\x00"
    return b"REDIS0010" + b"\xfe\x00" + b"\x07\x08document" + value + b"\xff" + bytes(8)


def with_module_data():
    """An RDB file of version 10 with a module's data that belongs to no key."""
    data = module_id("ReJSON-RL", 3) + b"\x02\x02" + b"\x02\x07" + b"\x00"
    return b"REDIS0010" + b"\xf7" + data + b"\xff" + bytes(8)


def contents(client):
    found = {}
    for db in (0, 9):
        client("SELECT", db)
        for key in client("KEYS", "*"):
            kind = client("TYPE", key)
            match kind:
                case b"string":
                    value = client("GET", key)
                case b"set":
                    value = sorted(client("SMEMBERS", key))
                case b"list":
                    value = client("LRANGE", key, 0, -1)
                case b"hash":
                    items = client("HGETALL", key)
                    value = sorted(zip(items[::2], items[1::2]))
                case other:
                    raise AssertionError(f"this test cannot read a {other}")
            found[db, key] = kind, value, client("PEXPIRETIME", key)
    client("SELECT", 0)
    return found


@slimio_only
@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class Exchange(TestCase):
    seconds = 30

    def setUp(self):
        with Server(start=False) as server:
            self.folder = server.folder + "-exchange"
        os.makedirs(self.folder)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def stock_with(self, rdb, **flags):
        """Starts stock redis-server on a copy of the file `rdb`."""
        server = Server(stock=True, start=False, appendonly="no", **flags)
        self.addCleanup(server.close)
        os.makedirs(server.volume, exist_ok=True)
        shutil.copy(rdb, os.path.join(server.volume, "dump.rdb"))
        return server.start()

    def check_loads(self, rdb, before):
        subprocess.run(["redis-check-rdb", rdb], check=True, capture_output=True)
        with self.stock_with(rdb).client() as client:
            self.assertEqual(contents(client), before)

    def test_out_of_a_running_server_and_a_stopped_one(self):
        server = Server(log_segment_size="1mb")
        self.addCleanup(server.close)
        address = f"127.0.0.1:{server.port}"
        with server.client() as client:
            fill(client, 2000)
            before = contents(client)
            for flags in ([], ["--uncompressed"], ["--rdb-version", 9]):
                rdb = self.path("online.rdb")
                code, text = tool("export", "--volume", server.volume, "--out", rdb,
                                 "--server", address, *flags)
                self.assertEqual(code, 0, text)
                self.check_loads(rdb, before)
            client("SET", "behind", 1)
            code, text = tool("export", "--volume", server.volume, "--out", self.path("kept.rdb"),
                             "--server", address, "--snapshot")
            self.assertEqual(code, 0, text)
            self.check_loads(self.path("kept.rdb"), before)
            self.assertEqual(client("BGSAVE"), b"Background saving started", "no export keeps the snapshot pinned")
            before = contents(client)
        server.kill()
        code, text = tool("export", "--volume", server.volume, "--out", self.path("stopped.rdb"))
        self.assertEqual(code, 0, text)
        self.check_loads(self.path("stopped.rdb"), before)
        server.start()
        with server.client() as client:
            self.assertEqual(contents(client), before)

    def test_a_terminal_is_told_what_a_running_server_does_for_an_export(self):
        server = Server()
        self.addCleanup(server.close)
        with server.client() as client:
            client("SET", "k", "v")
        address = f"127.0.0.1:{server.port}"
        export = [TARGET.command[0], "export", "--volume", server.volume, "--out", self.path("told.rdb"),
                  "--server", address]
        # With `--snapshot` the server takes no new snapshot.
        for flags, told in ([], f"exporting: the server at {address} takes a snapshot\r\n"), (["--snapshot"], ""):
            ours, terminal = os.openpty()
            done = subprocess.run([*export, *flags], stdout=subprocess.PIPE, stderr=terminal, timeout=60, check=False)
            os.write(terminal, b"end")
            said = b""
            while not said.endswith(b"end"):
                said += os.read(ours, 1000)
            for end in (ours, terminal):
                os.close(end)
            self.assertEqual((done.returncode, said.decode()), (0, told + "end"))
            self.assertIn(b"wrote 1 keys", done.stdout)

    def test_a_password_out_of_a_file(self):
        """The password may consist of any bytes. In its file, any line ending may follow it."""
        server = Server()
        self.addCleanup(server.close)
        password, file = b"caf\xe9 \xff", self.path("password")
        with server.client() as client:
            client("SET", "k", "v")
            client("CONFIG", "SET", "requirepass", password)
        export = ["export", "--volume", server.volume, "--out", self.path("secret.rdb"),
                  "--server", f"127.0.0.1:{server.port}", "--password-file", file]
        for end in (b"", b"\n", b"\r\n", b"\n\n"):
            with open(file, "wb") as written:
                written.write(password + end)
            code, text = tool(*export)
            self.assertEqual(code, 0, (end, text))
            self.assertIn("wrote 1 keys", text)
        with open(file, "wb") as written:
            written.write(password[:-1])
        code, text = tool(*export)
        self.assertEqual(code, 1, text)
        self.assertIn("WRONGPASS", text)

    def test_out_of_a_running_server_on_a_block_device(self):
        device = LoopDevice(self, self.path("memory"), size=256 << 20, memory_size="200m").path
        server = Server(volume=device, log_segment_size="1mb")
        self.addCleanup(server.close)
        export = ["export", "--volume", device, "--server", f"127.0.0.1:{server.port}", "--out"]
        rdb = self.path("online.rdb")
        with server.client() as client:
            fill(client, 500)
            first = contents(client)
            self.assertEqual(tool(*export, rdb)[0], 0)
            self.check_loads(rdb, first)
            # The server writes the snapshot slots in turn. An export must not read the earlier
            # contents of a slot.
            for number in range(4):
                client("SET", "round", number)
                client("BGREWRITEAOF" if number % 2 else "BGSAVE")
                until(lambda: not is_saving(server), 20, "the snapshot")
                before = contents(client)
                code, text = tool(*export, rdb)
                self.assertEqual(code, 0, text)
                self.check_loads(rdb, before)
            client("SET", "behind", 1)
            code, text = tool(*export, rdb, "--snapshot")
            self.assertEqual(code, 0, text)
            self.check_loads(rdb, before)
        other = Server()
        self.addCleanup(other.close)
        code, text = tool("export", "--volume", device, "--out", self.path("other.rdb"),
                         "--server", f"127.0.0.1:{other.port}")
        self.assertNotEqual(code, 0)
        self.assertIn("another volume; check --server", text)

    def test_how_keys_were_used_goes_along(self):
        cases = {
            "allkeys-lfu": ("FREQ", [0, 7, 100, 255], range(-2, 1)),
            "volatile-lru": ("IDLETIME", [0, 100, 100_000], range(0, 61)),
        }
        for policy, (kind, figures, tolerance) in cases.items():
            with self.subTest(policy):
                self.check_usage(policy, kind, figures, tolerance)

    def check_usage(self, policy, kind, figures, tolerance):
        stock = Server(stock=True, appendonly="no", maxmemory_policy=policy)
        self.addCleanup(stock.close)
        with stock.client() as client:
            client("SET", "string", "value")
            client("HSET", "hash", "field", "value")
            long_hash = [x for i in range(5000) for x in (f"field {i}", "x" * 100)]
            client("HSET", "long hash", *long_hash)
            expected = {}
            for key in ("string", "hash", "long hash"):
                dump = client("DUMP", key)
                for figure in figures:
                    name = f"{key}:{figure}".encode()
                    client("RESTORE", name, 10**9, dump, kind, figure)
                    expected[name] = figure
                client("DEL", key)
            client("SAVE")

        def check(server):
            with server.client() as client:
                for name, figure in expected.items():
                    found = client("OBJECT", kind, name)
                    low, high = figure + tolerance[0], figure + tolerance[-1]
                    self.assertTrue(low <= found <= high, f"{name}: {found}")

        check(stock)
        volume = self.path(policy)
        code, text = tool("import", "--in", os.path.join(stock.volume, "dump.rdb"),
                         "--volume", volume)
        self.assertEqual(code, 0, text)
        server = Server(volume=volume, maxmemory_policy=policy)
        self.addCleanup(server.close)
        check(server)
        rdb = self.path(f"{policy}.rdb")
        code, text = tool("export", "--volume", volume, "--out", rdb,
                         "--server", f"127.0.0.1:{server.port}")
        self.assertEqual(code, 0, text)
        check(self.stock_with(rdb, maxmemory_policy=policy))
        server.restart()
        check(server)
        server.kill()
        code, text = tool("export", "--volume", volume, "--out", rdb)
        self.assertEqual(code, 0, text)
        check(self.stock_with(rdb, maxmemory_policy=policy))

    def test_into_a_new_volume_from_what_stock_wrote(self):
        stock = Server(stock=True, appendonly="no")
        self.addCleanup(stock.close)
        with stock.client() as client:
            fill(client, 2000)
            before = contents(client)
            client("SAVE")
        rdb = os.path.join(stock.volume, "dump.rdb")
        volume = self.path("volume")
        code, text = tool("import", "--in", rdb, "--volume", volume)
        self.assertEqual(code, 0, text)
        server = Server(volume=volume)
        self.addCleanup(server.close)
        with server.client() as client:
            self.assertEqual(contents(client), before)
            client("SET", "more", 1)
        server.restart()
        with server.client() as client:
            self.assertEqual(client("GET", "more"), b"1")
        server.kill()
        code, text = tool("import", "--in", rdb, "--volume", volume)
        self.assertNotEqual(code, 0)
        self.assertIn("holds", text)

    def test_what_cannot_be_imported_is_named_and_nothing_is_made(self):
        stock = Server(stock=True, appendonly="no")
        self.addCleanup(stock.close)
        with stock.client() as client:
            fill(client, 100)
            client("SAVE")
            with open(os.path.join(stock.volume, "dump.rdb"), "rb") as file:
                whole = file.read()
            client("ZADD", "a zset", 1, "m")
            client("SAVE")
            with open(os.path.join(stock.volume, "dump.rdb"), "rb") as file:
                with_zset = file.read()
            client("FLUSHALL")
            code = "#!lua name=lib\nredis.register_function('f', function() return 1 end)"
            client("FUNCTION", "LOAD", code)
            client("SAVE")
            with open(os.path.join(stock.volume, "dump.rdb"), "rb") as file:
                with_function = file.read()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        cases = {
            "a zset": with_zset,
            "cut off": whole[: len(whole) // 2],
            "not an RDB": b"hello, this is something else",
            "REDIS0099": b"REDIS0099" + whole[9:],
            "corrupt|checksum|RDB": bytes(flipped),
            "cut off at byte": whole[:-1],
            "the file holds unsupported functions": with_function,
            "the key 'document' has a type of the module ReJSON-RL": with_module_key(),
            "data of the module ReJSON-RL": with_module_data(),
        }
        for said, data in cases.items():
            with self.subTest(said):
                rdb, volume = self.path("bad.rdb"), self.path("none")
                with open(rdb, "wb") as file:
                    file.write(data)
                code, text = tool("import", "--in", rdb, "--volume", volume)
                self.assertNotEqual(code, 0)
                self.assertRegex(text, said)
                self.assertNotIn("panicked", text)
                self.assertFalse(os.path.exists(volume))

    def test_a_file_that_is_there_is_replaced(self):
        server = Server()
        self.addCleanup(server.close)
        rdb = self.path("dump.rdb")
        export = ["export", "--volume", server.volume, "--out", rdb,
                  "--server", f"127.0.0.1:{server.port}"]
        with server.client() as client:
            fill(client, 100)
            self.assertEqual(tool(*export)[0], 0)
            client("SET", "more", 1)
            before = contents(client)
            self.assertEqual(tool(*export)[0], 0)
            self.check_loads(rdb, before)
        server.kill()
        with open(rdb, "wb") as file:
            file.write(b"the old one")
        self.assertEqual(tool(*export)[0], 0)
        self.check_loads(rdb, before)
        self.assertEqual(os.listdir(self.folder), ["dump.rdb"])

    def test_what_cannot_be_written_leaves_the_old_file(self):
        server = Server()
        self.addCleanup(server.close)
        with server.client() as client:
            fill(client, 200)
            before = contents(client)
        full = self.path("full")
        os.makedirs(full)
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "slimio-test", full]
        if os.geteuid() != 0 or subprocess.run(command, check=False).returncode != 0:
            self.skipTest("this test needs root, because it mounts a small file system")
        self.addCleanup(subprocess.run, ["umount", "-l", full], check=False)
        rdb = os.path.join(full, "dump.rdb")
        with open(rdb, "wb") as file:
            file.write(b"the old one")
        export = ["export", "--volume", server.volume, "--out", rdb,
                  "--server", f"127.0.0.1:{server.port}"]

        def check_fails():
            code, text = tool(*export)
            self.assertNotEqual(code, 0)
            self.assertRegex(text, "No space left.*is as it was")
            with open(rdb, "rb") as file:
                self.assertEqual(file.read(), b"the old one")
            self.assertEqual(os.listdir(full), ["dump.rdb"])

        check_fails()
        with server.client() as client:
            self.assertEqual(contents(client), before)
            self.assertEqual(client("BGSAVE"), b"Background saving started", "a failed export keeps no snapshot pinned")
        server.kill()
        check_fails()
