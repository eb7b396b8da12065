"""A reply takes no more memory than `client-output-buffer-limit` allows, even while the server
makes the reply."""

from harness.resp import encode
from harness.server import Server
from harness.target import TestCase, slimio_only

LIMIT = 1 << 20
# Memory that a server may take in addition: for a step of a long command, the allocator's overhead,
# and other work.
SLACK = 24 << 20
FIELDS = 20_000


@slimio_only
class OutputLimit(TestCase):
    seconds = 10

    def setUp(self):
        self.server = Server(enable_debug_command="yes", save="")
        self.addCleanup(self.server.close)
        with self.server.client() as client:
            client("DEBUG", "POPULATE", 300_000, "key", 100)
            client.pipeline([["HSET", "small", f"f{n}", "v" * 50] for n in range(20)])
            client.pipeline([["HSET", "large", *(x for n in range(at, at + 100) for x in (f"f{n}", "v" * 1000))]
                             for at in range(0, FIELDS, 100)])
            client("SET", "string", "x" * 300_000)
            client("CONFIG", "SET", "client-output-buffer-limit", f"normal {LIMIT} 0 0")

    def status(self, name):
        with open(f"/proc/{self.server.process.pid}/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith(name + ":"))

    def test_a_reply_that_is_too_long_ends_the_connection_before_it_is_made(self):
        transaction = [["MULTI"], *([["HGETALL", "small"]] * 3000), ["EXEC"]]
        for requests in (
            [["HRANDFIELD", "small", -20_000_000]],
            [["HRANDFIELD", "small", -2_000_000, "WITHVALUES"]],
            [["HRANDFIELD", "large", FIELDS, "WITHVALUES"]],
            [["HGETALL", "large"]],
            [["HVALS", "large"]],
            [["KEYS", "*"]],
            [["MGET", *(["key:1"] * 100_000)]],
            [["HMGET", "large", *(["f1"] * 50_000)]],
            [["GET", "string"]] * 50,
            transaction,
        ):
            name = requests[-1][0]
            with self.subTest(requests=name), self.server.client() as client:
                # Resets VmHWM, the peak of the server's memory.
                with open(f"/proc/{self.server.process.pid}/clear_refs", "w") as file:
                    file.write("5")
                before = self.status("VmHWM")
                ended = int(self.server.info()["client_output_buffer_limit_disconnections"])
                client.socket.sendall(b"".join(encode(*request) for request in requests) + encode("SET", "ran", name))
                self.assertTrue(closed(client), "the server must close the connection")
                self.assertLess(self.status("VmHWM") - before, SLACK)
                self.assertEqual(int(self.server.info()["client_output_buffer_limit_disconnections"]), ended + 1)
                with self.server.client() as observer:
                    self.assertEqual(observer("GET", "ran"), None, "the server must not run the SET")

    def test_a_reply_that_was_cut_is_not_sent_though_the_limit_is_lifted(self):
        with self.server.client() as client:
            requests = [["MULTI"], ["HGETALL", "large"],
                        ["CONFIG", "SET", "client-output-buffer-limit", "normal 0 0 0"], ["EXEC"]]
            client.socket.sendall(b"".join(encode(*request) for request in requests))
            self.assertTrue(closed(client), "the server must close the connection")

    def test_what_is_not_told_has_no_limit(self):
        with self.server.client() as client:
            client.socket.sendall(encode("CLIENT", "REPLY", "OFF") + encode("HGETALL", "large")
                                  + encode("CLIENT", "REPLY", "ON"))
            self.assertEqual(client.read(), (b"+", b"OK"))
            client.socket.sendall(encode("CLIENT", "REPLY", "SKIP") + encode("HGETALL", "large") + encode("PING"))
            self.assertEqual(client.read(), (b"+", b"PONG"))

    def test_what_is_within_the_limit_is_told_whole(self):
        with self.server.client() as client:
            self.assertEqual(len(client("HRANDFIELD", "small", -5000)), 5000)
            self.assertEqual(len(client("HRANDFIELD", "large", 900, "WITHVALUES")), 1800)
            self.assertEqual(len(client("GET", "string")), 300_000)
            # The limit applies to each reply alone, so twenty replies together may exceed the
            # limit.
            for _ in range(20):
                self.assertEqual(len(client("HRANDFIELD", "large", -900)), 900)


def closed(client):
    """Reads all replies, and returns whether the server closes the connection."""
    try:
        while client.socket.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True
