"""Tools whose output is not read to its end, or can't be written."""

import os
import subprocess

from harness.server import Server
from harness.target import TARGET, TestCase, slimio_only


def run(*args, stdout):
    """Runs a tool. Returns its exit status and standard error."""
    line = [TARGET.command[0], *args]
    done = subprocess.run(line, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


@slimio_only
class UnreadAnswers(TestCase):
    def answers(self):
        server = Server(save="", appendonly="yes")
        self.addCleanup(server.close)
        with server.client() as client:
            client("SET", "k", "v")
            client("SAVE")
            client("SET", "k", "w")
        server.terminate()
        volume = server.volume
        return [
            ("waf", "--model", "--units", "500", "--unit-pages", "32"), ("probe",), ("inspect", "--volume", volume),
            ("verify", "--volume", volume), ("rollback", "--volume", volume, "--force"),
        ]

    def test_nobody_reads(self):
        for args in self.answers():
            with self.subTest(args[0]):
                reader, writer = os.pipe()
                os.close(reader)
                code, said = run(*args, stdout=writer)
                os.close(writer)
                self.assertEqual((code, said), (0, ""))

    def test_the_disk_is_full(self):
        with open("/dev/full", "w") as full:
            for args in self.answers()[:-1]:
                with self.subTest(args[0]):
                    code, said = run(*args, stdout=full)
                    self.assertEqual(code, 1)
                    self.assertIn("slimio: cannot write the output: No space left", said)
