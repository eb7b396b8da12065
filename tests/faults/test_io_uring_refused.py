"""A real seccomp filter refuses io_uring. The server must say so, and work correctly without
io_uring."""

import os
import sys

from harness import without_io_uring
from harness.server import Server, refusal
from harness.target import TARGET, TestCase, slimio_only

LAUNCHER = [sys.executable, "-B", os.path.abspath(without_io_uring.__file__)]


@slimio_only
class Refused(TestCase):
    seconds = 3

    def check(self, server):
        said = server.said().lower()
        self.assertIn("io_uring", said)
        self.assertRegex(said, "epoll|plain")
        info = server.info("slimio")
        text = "\n".join(f"{name}:{value}" for name, value in info.items()).lower()
        self.assertRegex(text, "plain")
        self.assertIn("io_uring", text, "INFO must say why io_uring is not in use")
        with server.client() as client:
            self.assertEqual(client("SET", "k", "v" * 100_000), b"OK")
        server.restart()
        with server.client() as client:
            self.assertEqual(client("STRLEN", "k"), 100_000)

    def test_as_docker_refuses_it(self):
        with Server(launcher=LAUNCHER) as server:
            self.check(server)

    def test_as_an_old_kernel_refuses_it(self):
        with Server(launcher=[*LAUNCHER, "--errno", "ENOSYS"]) as server:
            self.check(server)

    def test_asked_for_and_refused(self):
        said = refusal(launcher=LAUNCHER, io_backend="uring")
        self.assertIn("io_uring", said)

    def test_a_volume_changes_between_the_paths(self):
        with Server(io_backend="plain") as server:
            with server.client() as client:
                client("SET", "k", "1")
            server.flags["io-backend"] = "auto"
            server.restart()
            with server.client() as client:
                self.assertEqual(client("INCR", "k"), 2)
            server.flags["io-backend"] = "plain"
            server.restart()
            with server.client() as client:
                self.assertEqual(client("GET", "k"), b"2")

    def test_what_is_in_force_is_said(self):
        with Server() as server:
            text = "\n".join(server.info("slimio").values()).lower()
            wanted = "plain" if TARGET.is_without_io_uring else "plain|uring"
            self.assertRegex(text, wanted)
