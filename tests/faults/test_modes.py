"""Modes of the files and folders that a server or a tool makes. Whatever the umask is, only the
owner can read the files and enter the folders."""

import configparser
import os
import stat
import subprocess

from harness.server import Server
from harness.target import TARGET, TestCase, slimio_only
from harness.tool import SECONDS_MAX
from harness.wait import until

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SMALL = {"log_segment_size": "1mb", "log_buffers": 4}
DRIVE = "size=144mb,spare=15%,timing=none"


def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


def tool_of_all(*args):
    """Runs a tool with a umask of 0. The tool must succeed."""
    line = [TARGET.command[0], *(str(arg) for arg in args)]
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=SECONDS_MAX, check=False, umask=0
    )
    assert done.returncode == 0, done.stderr


def server_of_all(**flags):
    """Returns a server that is not started yet and will have a umask of 0."""
    server = Server(start=False, **flags)
    server.preexec = lambda: os.umask(0)
    return server


@slimio_only
class Modes(TestCase):
    seconds = 20

    def check(self, folder, *wanted):
        """Checks that only the owner has access to anything in the folder, and that the folder
        contains the wanted names."""
        found, wide = set(), []
        for place, folders, files in os.walk(folder):
            for name in folders + files:
                path = os.path.join(place, name)
                found.add(os.path.relpath(path, folder))
                if mode(path) & ~(0o700 if name in folders else 0o600):
                    wide.append(f"{os.path.relpath(path, folder)} {mode(path):o}")
        self.assertEqual(wide, [])
        for name in wanted:
            self.assertIn(name, found)

    def folder(self, server):
        folder = os.path.join(server.folder, "made")
        os.mkdir(folder)
        return folder

    def test_what_a_server_makes(self):
        with server_of_all(**SMALL) as server:
            folder = self.folder(server)
            path = lambda name: os.path.join(folder, name)
            server.volume = path("some/where/volume")
            own = {"pidfile": "pid", "logfile": "log", "unixsocket": "socket"}
            server.flags |= {directive: path(name) for directive, name in own.items()}
            server.start()
            names = ["super", "wal", "buffers", "lock"]
            names += [f"snapshot-{slot}" for slot in "abc"]
            names = [os.path.join("some/where/volume", name) for name in names]
            with server.client() as client:
                client.pipeline([["SET", f"key:{n}", "secret" * 100] for n in range(500)])
                self.check(folder, *names, *own.values())
                client("SAVE")
                client("BGREWRITEAOF")
            done = lambda: server.info("persistence")["aof_rewrite_in_progress"] == "0"
            until(done, what="the rewrite")
            self.check(folder, *names, *own.values())
            server.kill()
            tool_of_all("export", "--volume", server.volume, "--out", path("dump.rdb"))
            again = path("an/other/volume")
            tool_of_all("import", "--in", path("dump.rdb"), "--volume", again)
            tool_of_all("format", "--volume", path("a/third"))
            tool_of_all("verify", "--volume", again)
            self.check(folder, "dump.rdb", "an/other/volume/buffers", "a/third/buffers")

    def test_a_configuration_that_is_made_again(self):
        with server_of_all(**SMALL) as server:
            folder = self.folder(server)
            path = os.path.join(folder, "slimio.conf")
            with open(path, "w", encoding="utf-8") as file:
                file.write("timeout 5\n")
            server.command = [*server.command, path]
            server.start()
            with server.client() as client:
                os.remove(path)
                client("CONFIG", "SET", "requirepass", "secret")
                client("CONFIG", "REWRITE")
            self.check(folder, "slimio.conf")

    def test_an_emulated_drive_and_a_trace(self):
        with server_of_all(**SMALL) as server:
            folder = self.folder(server)
            server.volume = f"emulated:{folder}/drive,{DRIVE}"
            server.flags["volume-trace"] = os.path.join(folder, "trace")
            server.start()
            with server.client() as client:
                client("SET", "k", "v")
            self.assertEqual(server.terminate(), 0)
            self.check(folder, "drive", "drive.mapping", "trace")

    def test_buffers_of_an_earlier_version_are_narrowed(self):
        with Server(**SMALL) as server:
            path = os.path.join(server.volume, "buffers")
            for end in (server.kill, server.terminate):
                end()
                os.chmod(path, 0o644)
                server.start()
                self.assertEqual(mode(path), 0o600)
            # If the server finds an unfinished file of buffers, the file must not keep its mode.
            server.kill()
            with open(path + ".new", "wb"):
                os.chmod(path + ".new", 0o644)
            server.flags["log-buffers"] = 8
            server.start()
            self.assertEqual(mode(path), 0o600)

    def test_what_is_replaced_keeps_its_mode(self):
        with server_of_all(**SMALL) as server:
            server.start()
            server.terminate()
            path = os.path.join(server.folder, "dump.rdb")
            with open(path, "wb"):
                os.chmod(path, 0o640)
            tool_of_all("export", "--volume", server.volume, "--out", path)
            self.assertEqual(mode(path), 0o640)

    def test_the_service_file(self):
        """Only the owner can read the service's files, and the service has no needless capability."""
        unit = read_unit("slimio.service")
        self.assertEqual(unit["UMask"], "0077")
        self.assertEqual(unit["StateDirectoryMode"], "0700")
        self.assertNotIn("AmbientCapabilities", unit)
        self.assertEqual(read_unit("counters.conf"), {"AmbientCapabilities": "CAP_SYS_ADMIN"})


def read_unit(name):
    """The directives under `[Service]` in a systemd file in `dist`. No directive may occur
    twice."""
    parser = configparser.RawConfigParser()
    parser.optionxform = str
    with open(os.path.join(ROOT, "dist", name), encoding="utf-8") as file:
        parser.read_file(file)
    return dict(parser["Service"])
