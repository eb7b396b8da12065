"""Unusual arguments. Those that make no sense are refused with a clear message. No data is lost."""

import os
import subprocess
import tempfile

from harness.server import Server
from harness.target import TARGET, TestCase, slimio_only


def run(*args):
    """Runs the program; returns its exit status and output."""
    line = [TARGET.command[0], *args]
    done = subprocess.run(line, capture_output=True, timeout=60, check=False)
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


@slimio_only
class Arguments(TestCase):
    def volume(self):
        server = Server(save="", appendonly="yes")
        self.addCleanup(server.close)
        with server.client() as client:
            client("SET", "k", "v")
        server.terminate()
        return server.volume

    def test_an_export_replaces_nothing_but_a_file(self):
        volume = self.volume()
        with tempfile.TemporaryDirectory() as folder:
            pipe = os.path.join(folder, "pipe")
            os.mkfifo(pipe)
            code, said = run("export", "--volume", volume, "--out", pipe)
            self.assertEqual(code, 1, said)
            self.assertIn("is no regular file; choose another --out", said)
            self.assertTrue(os.path.exists(pipe) and not os.path.isfile(pipe))

            file, link = os.path.join(folder, "dump.rdb"), os.path.join(folder, "link")
            with open(file, "w") as old:
                old.write("old")
            os.symlink(file, link)
            code, said = run("export", "--volume", volume, "--out", link)
            self.assertEqual(code, 0, said)
            self.assertTrue(os.path.islink(link))
            with open(file, "rb") as new:
                self.assertTrue(new.read().startswith(b"REDIS"))

    def test_an_export_does_not_go_among_the_files_of_its_volume(self):
        volume = self.volume()
        before = {name: os.path.getsize(os.path.join(volume, name)) for name in os.listdir(volume)}
        code, said = run("export", "--volume", volume, "--out", os.path.join(volume, "super"))
        self.assertEqual(code, 1, said)
        self.assertIn("among the volume's own files; choose another --out", said)
        after = {name: os.path.getsize(os.path.join(volume, name)) for name in os.listdir(volume)}
        self.assertEqual(after, before)

    def test_more_databases_than_there_can_be(self):
        with tempfile.TemporaryDirectory() as folder:
            code, said = run("serve", "--volume", os.path.join(folder, "v"), "--port", "0", "--databases", "32769")
        self.assertEqual(code, 1, said)
        self.assertIn("databases", said)
        self.assertIn("32768", said)
        self.assertNotIn("panicked", said)

    def test_the_version_is_said_as_redis_server_is_asked_for_it(self):
        wanted = run("--version")
        self.assertRegex(wanted[1], r"^slimio \d+\.\d+\.\d+\n$")
        for words in (["-v"], ["-V"], ["serve", "-v"], ["serve", "--version"]):
            self.assertEqual(run(*words), wanted, words)

    def test_a_file_is_served_without_a_word_before_it(self):
        with Server(start=False) as server:
            for name in ("redis.conf", "settings"):
                with open(os.path.join(server.folder, name), "w", encoding="utf-8") as file:
                    file.write("maxclients 77\n")
                server.command = [TARGET.command[0], name]
                server.start()
                with server.client() as client:
                    self.assertEqual(client("CONFIG", "GET", "maxclients"), [b"maxclients", b"77"])
                server.kill()
        for missing in ("nosuch.conf", "/nowhere/settings"):
            code, said = run(missing, "--port", "0")
            self.assertEqual(code, 1, said)
            self.assertIn(f"cannot read the configuration file {missing}: No such file", said)
        code, said = run("inspekt")
        self.assertEqual(code, 2, said)
        self.assertIn("inspect", said)
        for flag in ("-p", "-port"):
            code, said = run("serve", flag, "7000")
            self.assertEqual(code, 1, said)
            self.assertIn(f"unexpected argument '{flag}': directives are given as --directive value", said)

    def test_a_configuration_from_stdin_is_not_written_back(self):
        with Server(start=False) as server:
            path = os.path.join(server.folder, "-")
            with open(path, "w", encoding="utf-8") as file:
                file.write("not a configuration\n")
            server.command = [TARGET.command[0], "serve", "-"]
            server.start()
            with server.client() as client:
                kind, text = client.raw("CONFIG", "REWRITE")
            self.assertEqual((kind, text), (b"-", b"ERR The server is running without a config file"))
            with open(path, encoding="utf-8") as file:
                self.assertEqual(file.read(), "not a configuration\n")

    def test_what_is_not_utf8(self):
        code, said = run("serve", "--volume", b"\xff\xfe")
        self.assertEqual(code, 1, said)
        self.assertIn("argument must be UTF-8 text", said)
        code, said = run("inspect", "--volume", b"caf\xe9")
        self.assertNotEqual(code, 0, said)
        self.assertNotIn("panicked", said)
