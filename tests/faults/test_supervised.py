"""Messages to a service manager like systemd, at the address in NOTIFY_SOCKET."""

import os
import signal
import socket
import tempfile

from harness.server import Server
from harness.target import TestCase, slimio_only
from harness.wait import until

SECONDS = 30


@slimio_only
class Supervised(TestCase):
    seconds = 4

    def listen(self, address):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(listener.close)
        listener.bind(address)
        listener.settimeout(SECONDS)
        return listener

    def server(self, address, **flags):
        server = Server(start=False, **flags)
        self.addCleanup(server.close)
        server.launcher = ["env", f"NOTIFY_SOCKET={address}", *server.launcher]
        return server

    def test_ready_is_said_when_data_are_back_and_commands_are_served(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "notify")
        name = f"slimio-test-{os.getpid()}"
        for address, bound in ((path, path), (f"@{name}", f"\0{name}")):
            listener = self.listen(bound)
            for word in ("systemd", "auto"):
                with self.subTest(address=address, supervised=word):
                    server = self.server(address, supervised=word)
                    server.start()
                    self.assertEqual(listener.recv(100), b"READY=1")
                    with server.client() as client:
                        client("SET", "kept", word)
                    server.kill()
                    server.take_port()
                    server.spawn()
                    self.assertEqual(listener.recv(100), b"READY=1")
                    # A client that connects now must neither be refused nor hear that data are
                    # still being loaded.
                    with server.client() as client:
                        self.assertEqual(client("GET", "kept"), word.encode())

    def test_nothing_is_said_unless_it_is_asked_for(self):
        name = f"slimio-silent-{os.getpid()}"
        listener = self.listen(f"\0{name}")
        server = self.server(f"@{name}")
        server.start()
        # Once the server has ended, all messages that it sent have arrived.
        server.terminate()
        listener.setblocking(False)
        with self.assertRaises(BlockingIOError):
            listener.recv(100)

    def test_a_manager_that_does_not_listen_is_worth_a_warning(self):
        server = self.server("/nowhere/notify", supervised="systemd")
        server.start()
        until(lambda: "cannot tell systemd" in server.said(), SECONDS, "a warning")

    def test_the_end_of_a_terminal_does_not_end_the_server(self):
        server = Server()
        self.addCleanup(server.close)
        with server.client() as client:
            server.process.send_signal(signal.SIGHUP)
            self.assertEqual(client("SET", "k", "v"), b"OK")
            server.process.send_signal(signal.SIGHUP)
            self.assertEqual(client("GET", "k"), b"v")
