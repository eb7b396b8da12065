"""Runs the unmodified program redis-cli against the server."""

import subprocess

from harness.server import Server
from harness.target import TestCase
from harness.wait import until


class RedisCli(TestCase):
    seconds = 5

    def setUp(self):
        self.server = Server(requirepass="")
        self.addCleanup(self.server.close)

    def cli(self, *args, stdin=None, check=True):
        run = subprocess.run(
            ["redis-cli", "-p", str(self.server.port), *args],
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
        if check:
            self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout.decode()

    def test_one_command_per_run(self):
        self.assertEqual(self.cli("set", "k", "v"), "OK\n")
        self.assertEqual(self.cli("get", "k"), "v\n")
        self.assertEqual(self.cli("--no-raw", "mget", "k", "none"), '1) "v"\n2) (nil)\n')
        self.assertEqual(self.cli("-n", "3", "--no-raw", "exists", "k"), "(integer) 0\n")

    def test_resp3(self):
        self.assertIn('"proto" => (integer) 3', self.cli("-3", "--no-raw", "hello"))

    def test_commands_from_a_file(self):
        script = b"set a 1\nincr a\nmulti\nincr a\nincr a\nexec\nget a\n"
        self.assertEqual(self.cli(stdin=script).split("\n")[-4:], ["3", "4", "4", ""])

    def test_pipe_mode(self):
        count = 10_000
        script = b"".join(
            b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$1\r\nx\r\n" % (len(key), key)
            for key in (b"key:%d" % number for number in range(count))
        )
        self.assertIn(f"errors: 0, replies: {count}", self.cli("--pipe", stdin=script))
        self.assertEqual(self.cli("dbsize"), f"{count}\n")

    def test_scan_mode(self):
        for number in range(5):
            self.cli("set", f"key:{number}", "x")
        keys = self.cli("--scan", "--pattern", "key:*").split()
        self.assertEqual(sorted(keys), [f"key:{number}" for number in range(5)])

    def test_a_value_from_stdin_and_back(self):
        value = bytes(range(256)) * 4000
        self.cli("-x", "set", "big", stdin=value)
        run = subprocess.run(
            ["redis-cli", "-p", str(self.server.port), "get", "big"],
            capture_output=True,
            timeout=60,
            check=True,
        )
        self.assertEqual(run.stdout, value + b"\n")

    def test_errors_are_redis_errors(self):
        self.assertIn("ERR unknown command", self.cli("nosuchcommand"))
        self.assertIn("ERR wrong number of arguments for 'get' command", self.cli("get"))

    def test_password_on_the_command_line(self):
        self.cli("config", "set", "requirepass", "secret word")
        self.assertIn("NOAUTH", self.cli("get", "k"))
        self.assertEqual(self.cli("-a", "secret word", "--no-auth-warning", "ping"), "PONG\n")

    def test_stat_mode_reads_info(self):
        def seen():
            out = self.cli("-i", "0.01", "-r", "2", "info", "clients")
            self.assertEqual(out.count("connected_clients:"), 2)
            return out.count("connected_clients:1\r\n") == 2

        # The server notices only after a moment that the harness's own client has gone.
        until(seen, what="redis-cli being the only client")
