"""Configuration files that stock redis-server accepts must lead to the same settings in SlimIO."""

import os
import unittest

from harness.server import Server
from harness.target import TestCase, slimio_only, stock_is_installed

NAMES = ("timeout", "hz", "requirepass", "maxclients", "tcp-keepalive")
PASSWORD = b"\xe9t\xe9"


@slimio_only
@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class Files(TestCase):
    seconds = 3

    def shown(self, text, **others):
        """Starts both servers with a configuration file of this text, checks that their settings are
        equal, and returns the settings. `others` are further files in the same folder. In all of
        these files, HERE stands for the folder."""
        both = []
        for stock in (False, True):
            with Server(stock=stock, start=False) as server:
                for name, contents in {"server.conf": text, **others}.items():
                    path = os.path.join(server.folder, name)
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    with open(path, "wb") as file:
                        file.write(contents.replace(b"HERE", server.folder.encode()))
                server.command = [*server.command, os.path.join(server.folder, "server.conf")]
                server.start()
                with server.client() as client:
                    client.raw("AUTH", PASSWORD)
                    both.append([client("CONFIG", "GET", name) for name in NAMES])
        self.assertEqual(*both)
        return dict(zip(NAMES, (value for _, value in both[0])))

    def test_bytes_that_are_no_utf8(self):
        found = self.shown(b"# d\xe9j\xe0 vu\ntimeout 7\nrequirepass " + PASSWORD + b"\r\n# \xff\n")
        self.assertEqual((found["timeout"], found["requirepass"]), (b"7", PASSWORD))

    def test_a_pattern_includes_its_files_in_order(self):
        others = {
            "conf.d/10.conf": b"timeout 10\nhz 11\n", "conf.d/20.conf": b"timeout 20\n",
            "conf.d/.conf": b"timeout 30\n", "conf.d/40.txt": b"timeout 40\n", "conf.d/50.conf/in": b"timeout 50\n",
            "other/10.conf": b"maxclients 77\n",
        }
        for pattern, timeout in [
            (b"HERE/conf.d/*.conf", b"20"), (b"HERE/conf.d/1?.conf", b"10"), (b"HERE/conf.d/[!1]*.txt", b"40"),
            (b"HERE/conf.d/[13]0.conf", b"10"), (b"HERE/nowhere/*.conf", b"9"), (b"HERE/conf.d/no*", b"9"),
            (b"HERE/*/10.conf", b"10"), (b"HERE/conf.d/.c*", b"30"),
        ]:
            with self.subTest(pattern):
                found = self.shown(b"timeout 9\ninclude " + pattern + b"\n", **others)
                self.assertEqual(found["timeout"], timeout)

    def test_what_is_included_is_seen_from_dir(self):
        others = {"sub/one.conf": b"timeout 1\n", "sub/further/two.conf": b"hz 22\ninclude three.conf\n",
                  "sub/further/three.conf": b"tcp-keepalive 33\n"}
        found = self.shown(b"dir HERE/sub\ninclude one.conf\ndir further\ninclude t[w]o.conf\n", **others)
        self.assertEqual([found[name] for name in ("timeout", "hz", "tcp-keepalive")], [b"1", b"22", b"33"])

    def test_a_relative_log_file_is_in_dir(self):
        for stock in (False, True):
            for order in (["dir", "logfile"], ["logfile", "dir"]):
                with self.subTest(stock=stock, order=order), Server(stock=stock, start=False) as server:
                    values = {"dir": os.path.join(server.folder, "sub"), "logfile": "server.log"}
                    os.makedirs(values["dir"])
                    server.flags |= {name: values[name] for name in order}
                    server.start()
                    self.assertGreater(os.path.getsize(os.path.join(values["dir"], "server.log")), 0)
                    self.assertFalse(os.path.exists(os.path.join(server.folder, "server.log")))


@unittest.skipUnless(stock_is_installed(), "redis-server is not installed")
class Passwords(TestCase):
    def test_a_password_is_bytes(self):
        for stock in (False, True):
            with self.subTest(stock=stock), Server(stock=stock) as server, server.client() as client:
                right, wrong = b"\xff\x00\xe9", b"\xfe\x00\xe9"
                self.assertEqual(client("CONFIG", "SET", "requirepass", right), b"OK")
                self.assertEqual(client("CONFIG", "GET", "requirepass"), [b"requirepass", right])
                with server.client() as other:
                    for given in (wrong, "\ufffd\0\ufffd".encode(), b"\xff"):
                        self.assertEqual(other.raw("AUTH", given)[0], b"-", given)
                        self.assertEqual(other.raw("HELLO", "3", "AUTH", "default", given)[0], b"-", given)
                    self.assertEqual(other.raw("AUTH", right), (b"+", b"OK"))
                with server.client() as other:
                    self.assertEqual(other.raw("HELLO", "3", "AUTH", "default", right)[0], b"%")
