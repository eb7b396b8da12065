"""Malformed, oversized and incomplete requests; clients that do not read; too many clients."""

import os
import resource
import socket
import stat

from harness.resp import Client, encode
from harness.server import Server
from harness.target import TestCase
from harness.wait import until

# Requests, each with the error that the server sends before it closes the connection. Before the
# error, the server may reply to earlier requests.
MALFORMED = [
    (b"*abc\r\n", b"invalid multibulk length"),
    (b"*2147483648\r\n", b"invalid multibulk length"),
    (b"*99999999999999999999\r\n", b"invalid multibulk length"),
    (b"*1\r\n+PING\r\n", b"expected '$', got '+'"),
    (b"*1\r\n\r\n", b"expected '$', got ' '"),
    (b"*1\r\n$abc\r\n", b"invalid bulk length"),
    (b"*1\r\n$-1\r\n", b"invalid bulk length"),
    (b"*2\r\n$3\r\nGET\r\n$536870913\r\n", b"invalid bulk length"),
    (b"*1\r\n$99999999999999999999\r\n", b"invalid bulk length"),
    (b"*" + b"1" * 70_000, b"too big mbulk count string"),
    (b"*1\r\n$" + b"1" * 70_000, b"too big bulk count string"),
    (b"x" * 70_000, b"too big inline request"),
    (b'SET k "unbalanced\r\n', b"unbalanced quotes in request"),
    (b"SET k 'a'b\r\n", b"unbalanced quotes in request"),
]


class Protocol(TestCase):
    seconds = 5

    def setUp(self):
        self.server = Server()
        self.addCleanup(self.server.close)

    def client(self, timeout=20):
        client = self.server.client(timeout)
        self.addCleanup(client.close)
        return client

    def test_malformed_requests_end_their_connection_only(self):
        bystander = self.client()
        for data, reason in MALFORMED:
            with self.subTest(data[:40]):
                client = self.client()
                client.send(encode("PING") + data)
                self.assertEqual(client.read(), (b"+", b"PONG"))
                kind, text = client.read()
                self.assertEqual(kind, b"-")
                self.assertIn(b"ERR Protocol error: " + reason, text)
                self.assertTrue(client.closed_by_server())
                self.assertEqual(bystander("PING"), b"PONG")

    def test_a_negative_or_empty_array_is_no_request(self):
        client = self.client()
        client.send(b"*0\r\n*-1\r\n*-5\r\n" + encode("PING"))
        self.assertEqual(client.read(), (b"+", b"PONG"))

    def test_an_unauthenticated_client_gets_little_memory(self):
        with Server(requirepass="pw") as server:
            for data, reason in [
                (b"*11\r\n", b"unauthenticated multibulk length"),
                (b"*2\r\n$3\r\nGET\r\n$16385\r\n", b"unauthenticated bulk length"),
            ]:
                with self.subTest(data), server.client() as client:
                    client.send(data)
                    kind, text = client.read()
                    self.assertEqual((kind, text), (b"-", b"ERR Protocol error: " + reason))
                    self.assertTrue(client.closed_by_server())

    def test_half_a_request_and_gone(self):
        request = encode("SET", "half", "x" * 5000)
        for cut in (1, 3, 10, 20, 40, 2000, len(request) - 1):
            client = self.client()
            client.send(request[:cut])
            client.close()
        with self.server.client() as client:
            self.assertEqual(client("EXISTS", "half"), 0)
            until(
                lambda: b"connected_clients:1\r" in client("INFO", "clients"),
                what="the server to notice that the clients are gone",
            )

    def test_half_a_request_waits_for_the_rest(self):
        slow, other = self.client(), self.client()
        request = encode("SET", "k", "v" * 100_000)
        slow.send(request[:-1000])
        self.assertEqual(other("GET", "k"), None)
        slow.send(request[-1000:])
        self.assertEqual(slow.read(), (b"+", b"OK"))
        self.assertEqual(other("STRLEN", "k"), 100_000)

    def test_a_large_value_announced_and_never_sent_costs_no_memory(self):
        before = int(self.server.info("memory")["used_memory_rss"])
        clients = [self.client() for _ in range(20)]
        for client in clients:
            client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$500000000\r\n")
        with self.server.client() as client:
            until(lambda: client("PING") == b"PONG")
        after = int(self.server.info("memory")["used_memory_rss"])
        self.assertLess(after - before, 1 << 30)

    def test_limits_of_one_request(self):
        with Server(proto_max_bulk_len="1mb") as server, server.client() as client:
            client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1048577\r\n")
            self.assertEqual(client.read(), (b"-", b"ERR Protocol error: invalid bulk length"))
            with server.client() as other:
                self.assertEqual(other("SET", "k", "x" * (1 << 20)), b"OK")
                kind, text = other.raw("APPEND", "k", "x")
                self.assertEqual(kind, b"-")
                self.assertIn(b"string exceeds maximum allowed size", text)
                kind, text = other.raw("SETRANGE", "k", 1 << 20, "x")
                self.assertEqual(kind, b"-")

    def test_query_buffer_limit(self):
        with Server(client_query_buffer_limit="1mb") as server:
            with server.client() as client:
                try:
                    client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$50000000\r\n" + b"x" * 20_000_000)
                except (BrokenPipeError, ConnectionResetError):
                    pass
                self.assertTrue(client.closed_by_server())
            with server.client() as client:
                self.assertEqual(client("PING"), b"PONG")


class NeverReading(TestCase):
    seconds = 5

    def test_output_limit_ends_the_client(self):
        limit = "normal 4mb 0 0"
        with Server(client_output_buffer_limit=limit) as server, server.client() as other:
            other("SET", "k", "x" * 100_000)
            lazy = server.client()
            self.addCleanup(lazy.close)
            lazy.socket.setblocking(False)
            flood = encode("GET", "k") * 2000
            try:
                lazy.socket.send(flood)
            except BlockingIOError:
                pass
            until(
                lambda: b"connected_clients:1\r" in other("INFO", "clients"),
                what="the end of the client that does not read",
            )
            self.assertEqual(other("PING"), b"PONG")

    def test_without_a_limit_others_are_served(self):
        with Server() as server, server.client() as other:
            other("SET", "k", "x" * 100_000)
            lazy = server.client()
            self.addCleanup(lazy.close)
            count = 300
            lazy.send(encode("GET", "k") * count)
            for number in range(100):
                self.assertEqual(other("SET", f"n{number}", number), b"OK")
            for _ in range(count):
                self.assertEqual(len(lazy.read()[1]), 100_000)

    def test_one_that_writes_and_never_reads_is_not_asked_to_stop(self):
        with Server() as server, server.client() as other:
            lazy = server.client()
            self.addCleanup(lazy.close)
            count = 20_000
            lazy.send(b"".join(encode("SET", f"k{number}", "v") for number in range(count)))
            until(lambda: other("DBSIZE") == count, what="all writes")


class TooMany(TestCase):
    seconds = 5

    def test_maxclients(self):
        with Server(maxclients=10) as server:
            clients = [server.client()]
            # To see whether the server serves, the harness has made a connection. The test waits
            # until that connection is closed.
            until(
                lambda: b"connected_clients:1\r\n" in clients[0]("INFO", "clients"),
                what="the first client to be alone",
            )
            clients += [server.client() for _ in range(9)]
            for client in clients:
                self.addCleanup(client.close)
                self.assertEqual(client("PING"), b"PONG")
            with server.client() as one_more:
                self.assertEqual(one_more.read(), (b"-", b"ERR max number of clients reached"))
                self.assertTrue(one_more.closed_by_server())
            clients[0].close()
            until(lambda: server_lets_in(server), what="the server to accept one more client")

    def test_out_of_file_descriptors(self):
        with Server(start=False, maxclients=10_000) as server:
            server.preexec = few_descriptors
            server.start()
            with server.client() as first:
                crowd = []
                self.addCleanup(lambda: [client.close() for client in crowd])
                for _ in range(120):
                    try:
                        crowd.append(server.client(timeout=5))
                    except OSError:
                        break
                self.assertEqual(first("SET", "k", "v"), b"OK")
                self.assertEqual(first("GET", "k"), b"v")
                for client in crowd:
                    client.close()
                crowd.clear()
                until(lambda: server_lets_in(server), what="the server to accept a client again")
                self.assertEqual(first("GET", "k"), b"v")

    def test_idle_clients_are_let_go(self):
        with Server() as server, server.client() as idle:
            self.assertEqual(idle("CONFIG", "SET", "timeout", 1), b"OK")
            self.assertTrue(idle.closed_by_server())
            until(lambda: server_lets_in(server), what="the server to serve another client")


class Doors(TestCase):
    seconds = 2

    def test_protected_mode_refuses_strangers(self):
        address = address_of_this_machine()
        if address is None:
            self.skipTest("this machine has the loopback address only")
        with Server(bind="0.0.0.0") as server:
            stranger = socket.create_connection((address, server.port), timeout=20)
            self.addCleanup(stranger.close)
            stream = stranger.makefile("rb")
            self.assertTrue(stream.readline().startswith(b"-DENIED Redis is running in protected mode"))
            self.assertEqual(stream.read(), b"")
            with server.client() as local:
                self.assertEqual(local("CONFIG", "SET", "requirepass", "pw"), b"OK")
            stranger = socket.create_connection((address, server.port), timeout=20)
            self.addCleanup(stranger.close)
            stranger.sendall(encode("AUTH", "pw"))
            self.assertEqual(stranger.recv(100), b"+OK\r\n")

    def test_a_unix_socket_with_its_permissions(self):
        with Server(unixsocket="u.sock", unixsocketperm="700") as server:
            folder = server.volume if server.is_stock else server.folder
            path = until_exists(f"{folder}/u.sock")
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o700)
            with Client(path) as client:
                self.assertEqual(client("SET", "k", "v"), b"OK")
            server.terminate()
            self.assertFalse(os.path.exists(path))

    def test_a_port_that_is_taken(self):
        with Server() as server:
            blocker = Server(start=False)
            self.addCleanup(blocker.close)
            blocker.port = server.port
            blocker.spawn()
            blocker.process.wait(20)
            self.assertNotEqual(blocker.process.returncode, 0)
            self.assertRegex(blocker.said().lower(), "in use")
            self.assertIn(str(server.port), blocker.said())


def few_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))


def server_lets_in(server):
    try:
        with server.client(timeout=5) as client:
            return client.raw("PING") == (b"+", b"PONG")
    except OSError:
        return False


def address_of_this_machine():
    """The address of a network card. The test finds the address by asking the kernel for a route,
    and sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = probe.getsockname()[0]
    return None if address.startswith("127.") else address


def until_exists(path):
    until(lambda: os.path.exists(path), what=path)
    return path
