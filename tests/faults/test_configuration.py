"""Directives in flags and files. A wrong directive is refused with a helpful message."""

import os

from harness.server import Server, refusal
from harness.target import TestCase, slimio_only


@slimio_only
class Directives(TestCase):
    seconds = 3

    def test_the_nearest_known_directive_is_named(self):
        for wrong, near in [
            ("appendfsycn", "appendfsync"),
            ("max-clients", "maxclients"),
            ("requirepas", "requirepass"),
            ("volum", "volume"),
        ]:
            with self.subTest(wrong):
                said = refusal(**{wrong.replace("-", "_"): "x"})
                self.assertIn(wrong, said)
                self.assertIn(near, said)

    def test_a_point_in_time_that_is_never_due(self):
        longest = "9223372036854775807 1"
        with Server(appendonly="no") as server, server.client() as client:
            client("SET", "k", "v")
            self.assertEqual(client("CONFIG", "SET", "save", longest), b"OK")
            self.assertEqual(client("GET", "k"), b"v")
            server.flags["save"] = longest
            self.assertEqual(client("SAVE"), b"OK")
            server.restart()
            with server.client() as again:
                again("SET", "k", "w")
                self.assertEqual(again("GET", "k"), b"w")

    def test_wrong_values(self):
        for name, value in [
            ("appendfsync", "sometimes"),
            ("appendonly", "maybe"),
            ("timeout", "-1"),
            ("maxclients", "many"),
            ("log-segment-size", "1kb"),
            ("client-output-buffer-limit", "normal 1"),
            ("replicaof", "127.0.0.1 6379"),
        ]:
            with self.subTest(name):
                said = refusal(**{name.replace("-", "_"): value.split(" ")})
                self.assertIn(name, said)

    def test_a_file_and_flags_over_it(self):
        with Server(start=False) as server:
            path = os.path.join(server.folder, "slimio.conf")
            with open(path, "w", encoding="utf-8") as file:
                file.write("# a comment\n\nmaxclients 77\n  timeout   7\nrequirepass \"two words\"\n")
            server.command = [*server.command, path]
            server.flags["timeout"] = 8
            server.start()
            with server.client() as client:
                client("AUTH", "two words")
                self.assertEqual(client("CONFIG", "GET", "maxclients"), [b"maxclients", b"77"])
                self.assertEqual(client("CONFIG", "GET", "timeout"), [b"timeout", b"8"])

    def test_a_wrong_line_of_a_file_is_named(self):
        with Server(start=False) as server:
            path = os.path.join(server.folder, "slimio.conf")
            with open(path, "w", encoding="utf-8") as file:
                file.write("maxclients 77\nappendfsink always\n")
            server.command = [*server.command, path]
            server.port = 1
            server.spawn()
            server.process.wait(20)
            self.assertGreater(server.process.returncode, 0)
            for word in ("slimio.conf", "2", "appendfsink", "appendfsync"):
                self.assertIn(word, server.said())

    def test_the_file_of_a_packaged_redis(self):
        path = "/etc/redis/redis.conf"
        if not os.access(path, os.R_OK):
            self.skipTest(f"there is no {path}")
        with Server(start=False, logfile="", pidfile="", supervised="no") as server:
            server.command = [*server.command, path]
            server.port = 1
            server.spawn()
            server.process.wait(20)
            self.assertRegex(server.said(), r"redis.conf:\d+: daemonize can only be no")
            # Redis's own service unit also overrides `daemonize` by a flag.
            server.flags |= {"daemonize": "no", "dir": server.folder, "appendonly": "yes"}
            server.start()
            with server.client() as client:
                self.assertEqual(client("SET", "k", "v"), b"OK")

    def test_a_file_that_is_not_there(self):
        with Server(start=False) as server:
            server.command = [*server.command, "/nowhere/slimio.conf"]
            server.port = 1
            server.spawn()
            server.process.wait(20)
            self.assertGreater(server.process.returncode, 0)
            self.assertIn("/nowhere/slimio.conf", server.said())
