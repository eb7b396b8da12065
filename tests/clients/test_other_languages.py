"""Tests the unchanged client libraries go-redis and Jedis. For each library, a program uses it as
programs usually do. Meanwhile, the server is killed and started again."""

import os
import subprocess
import tempfile
import unittest

from harness.server import Server, StartError
from harness.target import TARGET, TestCase
from harness.wait import until

HERE = os.path.dirname(os.path.abspath(__file__))
STOP_SECONDS = 30


class Program(TestCase):
    """Base class of the tests. Each test runs one program."""

    def play(self, *command):
        server = Server(appendfsync="always", auto_aof_rewrite_percentage=0)
        self.addCleanup(server.close)
        complaints = tempfile.TemporaryFile("w+")
        self.addCleanup(complaints.close)
        program = subprocess.Popen(
            [*command, str(server.port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, text=True,
        )
        self.addCleanup(program.stdout.close)
        self.addCleanup(program.kill)
        said = []
        for line in program.stdout:
            said.append(line)
            if line == "restart\n":
                # The server starts on the same port again, because the client knows no other port.
                server.kill()
                server.spawn()
                until(lambda: serves_again(server), STOP_SECONDS, "serving again")
                program.stdin.write("\n")
                program.stdin.close()
        program.wait(STOP_SECONDS)
        complaints.seek(0)
        self.assertEqual(said, ["restart\n", "done\n"], complaints.read())
        self.assertEqual(program.returncode, 0)
        with server.client() as client:
            self.assertEqual(client("GET", "text"), b"again")


def serves_again(server):
    """Whether the server serves. On a busy machine, the kernel may close the killed server's socket
    so late that the new server finds its port in use. Then the server is started once more."""
    try:
        return server.is_serving()
    except StartError as error:
        if "in use" not in str(error):
            raise
        server.spawn()
        return False


class GoRedis(Program):
    seconds = 5

    def test_a_day(self):
        path = os.path.join(TARGET.clients, "go-redis")
        if not os.path.exists(path):
            raise unittest.SkipTest("the program with go-redis is not built: `cargo x setup` builds it if Go is installed")
        self.play(path)


class Jedis(Program):
    seconds = 8

    def test_a_day(self):
        jars = os.path.join(TARGET.clients, "jedis")
        if not os.path.isdir(jars):
            raise unittest.SkipTest("Jedis is not installed: `cargo x setup` gets it if Maven is installed")
        self.play("java", "-cp", os.path.join(jars, "*"), os.path.join(HERE, "jedis/Scenario.java"))
