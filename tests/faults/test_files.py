"""A server removes the files that it has made beside its volume, however the server is told to
end."""

import os

from harness.server import Server
from harness.target import TestCase
from harness.wait import until


class BesideTheVolume(TestCase):
    seconds = 5

    def server(self, **flags):
        server = Server(start=False, **flags)
        self.addCleanup(server.close)
        self.pid_path = os.path.join(server.folder, "server.pid")
        self.socket_path = os.path.join(server.folder, "socket")
        server.flags |= {"pidfile": self.pid_path, "unixsocket": self.socket_path}
        return server

    def check_gone(self):
        self.assertFalse(os.path.exists(self.pid_path), "the server has left its pid file behind")
        self.assertFalse(os.path.exists(self.socket_path), "the server has left its socket's file behind")

    def test_they_are_there_while_it_serves(self):
        server = self.server().start()
        with open(self.pid_path, encoding="utf-8") as file:
            self.assertEqual(file.read(), f"{server.process.pid}\n")
        self.assertTrue(os.path.exists(self.socket_path))
        self.assertEqual(server.terminate(), 0)
        self.check_gone()

    def test_a_server_stopped_while_it_starts_leaves_none(self):
        server = self.server(appendfsync="no").start()
        value = "x" * 100_000
        with server.client() as client:
            for start in range(0, 500, 50):
                client.pipeline([["SET", f"key:{n}", value] for n in range(start, start + 50)])
        self.assertEqual(server.terminate(), 0)
        self.check_gone()
        server.spawn()
        until(lambda: os.path.exists(self.pid_path), what="the pid file")
        self.assertEqual(server.terminate(), 0)
        self.check_gone()
        server.start()
        with server.client() as client:
            self.assertEqual(client("DBSIZE"), 500)
