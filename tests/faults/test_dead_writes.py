"""A killed server's writes may reach the device after its process has ended. The next server must
read nothing before these writes have ended."""

import fcntl
import os
import socket
import subprocess

from harness.held_device import HeldDevice
from harness.server import Server, refusal
from harness.target import TARGET, TestCase, slimio_only
from harness.wait import until

WAITING = "operations of a process that has ended are still in flight"

VALUE = "x" * 3000

# The ID of a user who has no process and is not allowed to look at other users' processes.
NOBODY_ELSE = 54_321

TRIES = 5
# More seconds than a process takes to end if no write keeps it from ending.
PATIENCE_SECONDS = 5


@slimio_only
class DeadWrites(TestCase):
    """Kills a real server on a device that holds up the server's writes."""

    seconds = 60

    def check(self, file_system=None, **flags):
        if TARGET.is_without_io_uring:
            self.skipTest("without io_uring, a write keeps its process from ending")
        device = HeldDevice(self, file_system)
        self.held, volume = device.held, device.volume
        server = Server(volume=volume, start=False, log_segment_size="1mb", **flags)
        self.addCleanup(server.close)
        # Cleanups run in reverse order, so the writes are let go before the server is closed. A
        # held write in a system call would keep the server from ending.
        self.addCleanup(self.held.let_go)
        self.values = {}
        for _ in range(TRIES):
            if self.kill_in_flight(server):
                break
        else:
            self.fail("in each try, a write in a system call kept the process from ending")
        landed = self.held.counts()[1]

        server.preexec = None
        server.flags |= {"appendfsync": "always"}
        server.take_port()
        server.spawn()
        until(lambda: WAITING in server.said() or server.is_serving(), 20, "the message about old operations")
        self.assertIn(WAITING, server.said(), "a server must wait for the killed server's writes")

        def said_again():
            self.assertEqual(opened(server, volume) - {"lock", "claim"}, set(), "a waiting server opened another file")
            return server.said().count(WAITING) > 1

        until(said_again, 30, "a second message about old operations")
        self.assertFalse(server.is_serving())

        self.held.let_go()
        until(server.is_serving, 20, "the server to serve after the last held write")
        self.assertGreater(self.held.counts()[1], landed, "no write was in flight at the kill")
        for life in range(3):
            with server.client() as client:
                for key, value in self.values.items():
                    self.assertEqual(client("GET", key), value, (life, key))
                # These writes overwrite what the killed servers wrote.
                self.store(client, f"life-{life}", 50)
            server.restart()
        with server.client() as client:
            self.assertEqual(client("DBSIZE"), len(self.values))

    def store(self, client, prefix, count):
        for number in range(count):
            key, value = f"{prefix}:{number}", f"{prefix}-{number}-{VALUE}"
            client("SET", key, value)
            self.values[key] = value.encode()

    def kill_in_flight(self, server):
        """Kills a server that has writes in flight. Returns whether these writes have outlived the
        process. A write in a system call can't outlive the process, because the process can't end
        before the call."""
        server.preexec = self.held.enter
        server.flags |= {"appendfsync": "everysec"}
        server.start()
        with server.client() as client:
            self.store(client, "before", 20)
            self.assertEqual(client("WAITAOF", 1, 0, 10_000)[0], 1)
            # The device must be quiet first. The server zeroes segments of the log by system calls,
            # and such a call, if held, would keep the process from ending.
            self.held.wait_until_quiet()
            self.held.hold()
            # These writes are acknowledged, so they must outlive the process.
            self.store(client, "held", 20)

        def undurable_ms():
            return int(server.info("slimio")["log_oldest_undurable_ms"])

        until(lambda: undurable_ms() > 700, 20, "the device to hold up a write")
        server.process.kill()
        try:
            server.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.held.let_go()
            server.process.wait()
            return False
        return True

    def test_on_a_block_device(self):
        self.check()

    def test_in_a_directory_on_ext4(self):
        self.check("ext4", log_size_max="64mb")

    def test_in_a_directory_on_xfs(self):
        self.check("xfs", log_size_max="64mb")

    def test_who_may_not_look_is_refused_at_once(self):
        device = HeldDevice(self).path
        os.chmod(device, 0o666)
        self.addCleanup(os.chmod, device, 0o660)
        server = Server(volume=device, log_segment_size="1mb")
        self.addCleanup(server.close)
        for user, who in ((0, f"process {server.process.pid}"), (NOBODY_ELSE, "another process")):
            refused = subprocess.run(
                [TARGET.command[0], "verify", "--volume", device],
                capture_output=True,
                cwd="/",
                user=user,
                timeout=20,
            )
            self.assertIn(f"in use by {who}", refused.stderr.decode())
            self.assertNotIn(WAITING, refused.stderr.decode())


@slimio_only
class Claims(TestCase):
    """A claim is a lock on a file of the volume. The kernel keeps the lock until a killed server's
    last write has ended. These tests need no root, because they hold the claim themselves, or only
    look at who holds it."""

    seconds = 20

    def setUp(self):
        self.server = Server(appendfsync="always")
        self.addCleanup(self.server.close)
        with self.server.client() as client:
            client("SET", "k", "v")

    def take(self, name):
        file = open(os.path.join(self.server.volume, name), "r+b")
        until(lambda: flocked(file), 20, f"the lock on {name}")
        held = OnItsWay(file)
        self.addCleanup(held.close)
        return held

    def test_a_claim_is_waited_for(self):
        self.server.kill()
        claim = self.take("claim")
        self.server.take_port()
        self.server.spawn()
        until(lambda: WAITING in self.server.said(), 20, "the message about old operations")
        self.assertFalse(self.server.is_serving())
        self.assertIn(os.path.join(self.server.volume, "claim"), self.server.said())
        # The waiting server already has the lock that keeps other processes off the volume.
        said = refusal(volume=self.server.volume)
        self.assertIn(f"in use by process {self.server.process.pid}", said)
        claim.close()
        until(self.server.is_serving, 20, "the server to serve")
        with self.server.client() as client:
            self.assertEqual(client("GET", "k"), b"v")

    def test_a_server_that_waits_can_be_stopped(self):
        self.server.kill()
        self.take("claim")
        self.server.take_port()
        self.server.spawn()
        until(lambda: WAITING in self.server.said(), 20, "the message about old operations")
        self.assertEqual(self.server.terminate(), 0)

    def test_a_tool_waits_and_says_so(self):
        self.server.kill()
        claim = self.take("claim")
        with open(os.path.join(self.server.folder, "said"), "w+b") as said:
            command = [TARGET.command[0], "verify", "--volume", self.server.volume]
            tool = subprocess.Popen(command, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
            self.addCleanup(tool.wait)
            self.addCleanup(tool.kill)
            until(lambda: WAITING.encode() in os.pread(said.fileno(), 1 << 16, 0), 20, "the message")
            claim.close()
            self.assertEqual(tool.wait(20), 0)

    def test_every_ring_holds_it_but_that_of_the_sockets(self):
        if "through io_uring" not in self.server.info("slimio").get("io_path", ""):
            self.skipTest("the server does not use io_uring")
        held = []
        for fd, name in descriptors(self.server).items():
            if "io_uring" in name:
                with open(f"/proc/{self.server.process.pid}/fdinfo/{fd}") as file:
                    about = dict(line.split(":", 1) for line in file if ":" in line)
                held.append(int(about["UserFiles"]))
        self.assertGreater(len(held), 4, "the log, the superblock and each slot need a ring")
        self.assertLessEqual(held.count(0), 1, held)


class OnItsWay:
    """An open file for which no process has a descriptor. The only descriptor is in a message that
    nobody receives."""

    def __init__(self, file):
        self.ends = socket.socketpair(socket.AF_UNIX)
        socket.send_fds(self.ends[0], [b"."], [file.fileno()])
        file.close()

    def close(self):
        for end in self.ends:
            end.close()


def opened(server, volume):
    """The names of the volume's files that a server has open, or the name of the volume's
    device."""
    names = descriptors(server).values()
    of_volume = (n for n in names if n.startswith(volume + "/") or n.startswith("/dev/loop"))
    return {os.path.basename(name) for name in of_volume}


def descriptors(server):
    """Returns the name of the file behind each descriptor of a server."""
    fds = f"/proc/{server.process.pid}/fd"
    found = {}
    for fd in os.listdir(fds):
        try:
            found[fd] = os.readlink(os.path.join(fds, fd))
        except FileNotFoundError:
            # The server has closed this descriptor meanwhile. Connections come and go.
            pass
    return found


def flocked(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
