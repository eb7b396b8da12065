"""Programs that are killed on the way into a chosen system call (see `kill_at.c`)."""

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess

from .faults import compiler
from .server import START_SECONDS, Server
from .target import TARGET

TOOL_SECONDS_MAX = 60
# `struct ucred` of Linux: process, user, group.
CREDENTIALS = struct.Struct("3i")


def build(folder):
    """Builds `kill_at.c`. Returns the path of the program."""
    program = os.path.join(folder, "kill_at")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kill_at.c")
    command = [compiler(), "-O1", "-Wall", "-Werror", "-o", program, source]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return program


class Killer:
    """Kills servers and tools at their Nth system call. Either every call is counted, or only calls
    that change something."""

    def __init__(self, folder):
        self.program = build(folder)
        self.counts = "every" if TARGET.is_every_call else "changing"

    def tool(self, number, *args):
        """Runs one of the tools. Returns whether the tool was killed. A tool that was not killed
        must have succeeded."""
        line = [*self.in_front(number), TARGET.command[0], *(str(arg) for arg in args)]
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=TOOL_SECONDS_MAX, check=False
        )
        if done.returncode == -signal.SIGKILL:
            return True
        assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr}"
        return False

    def server(self, number, folder, **options):
        """Starts a server. Returns whether the server was killed before it served. A server that
        serves is killed before this method returns."""
        address = os.path.join(folder, "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            ready.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            ready.bind(address)
            server = Server(start=False, supervised="systemd", **options)
            try:
                front = ["env", f"NOTIFY_SOCKET={address}", *self.in_front(number)]
                server.launcher = [*server.launcher, *front]
                server.take_port()
                server.spawn()
                ended = os.pidfd_open(server.process.pid)
                try:
                    found, _, _ = select.select([ready, ended], [], [], START_SECONDS)
                finally:
                    os.close(ended)
                assert found, f"the server neither serves nor ends: {server.said()}"
                if ready in found:
                    end_sender(ready, server.process)
                    return False
                status = server.process.wait()
                assert status == -signal.SIGKILL, f"exit status {status}: {server.said()}"
                return True
            finally:
                server.close()
                os.remove(address)

    def in_front(self, number):
        return [self.program, str(number), self.counts]


def end_sender(ready, tracer):
    """Kills the server that has sent a message to `ready`. Returns when the server has ended.
    `tracer` is the process of `kill_at`, which has started the server. If the tracer were killed
    instead, the server would outlive the tracer for a moment, and keep the volume locked."""
    space = socket.CMSG_SPACE(CREDENTIALS.size)
    _, [(_, _, credentials)], _, _ = ready.recvmsg(1024, space)
    pid, _, _ = CREDENTIALS.unpack(credentials)
    # The server may be gone already, killed at a call after this message.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    # The tracer ends when the server has ended.
    tracer.wait()
