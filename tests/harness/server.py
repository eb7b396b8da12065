"""A server process with its own folder and port."""

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile

from .resp import Client
from .target import TARGET
from .wait import until

START_SECONDS = 30
STOP_SECONDS = 30
PORT_TRIES = 5


# These ports are below those that Linux gives to outgoing connections.
PORTS = range(20_000, 32_000)


def reserve_port():
    """Returns a port, and an open file. The lock on this file keeps other tests from using the
    port. Without the lock, two servers might get the same port. The second server would end, but a
    client that connects meanwhile would reach another test's server."""
    folder = os.path.join(tempfile.gettempdir(), f"slimio-test-ports-{os.getuid()}")
    os.makedirs(folder, exist_ok=True)
    for _ in PORTS:
        port = random.choice(PORTS)
        lock = open(os.path.join(folder, str(port)), "wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
            return port, lock
        except OSError:
            lock.close()
    raise AssertionError("no port is free")


class StartError(Exception):
    """The server ended instead of serving. The text contains the server's output."""


class Server:
    """A server process, which starts when the object is made, unless `start` is false. On exit, the
    process is killed and its folder is removed.

    `flags` are directives. If `stock` is true, stock redis-server is started. `stock` can also be
    the path of another program that takes redis-server's flags. `volume` is a folder, a device or
    an emulated SSD to use instead of a fresh folder, and is not removed. `launcher` is put in front
    of the command line.
    """

    def __init__(self, stock=False, volume=None, launcher=(), start=True, **flags):
        self.is_stock = bool(stock) or TARGET.is_stock
        self.command = TARGET.stock_command if stock else TARGET.command
        if isinstance(stock, str):
            self.command = [stock]
        self.launcher = [*launcher, *([] if stock else TARGET.launcher)]
        self.flags = {name.replace("_", "-"): value for name, value in flags.items()}
        os.makedirs(TARGET.folder, exist_ok=True)
        self.folder = tempfile.mkdtemp(prefix="server-", dir=TARGET.folder)
        is_emulated = volume is not None and volume.startswith("emulated:")
        path = volume or os.path.join(self.folder, "volume")
        self.volume = volume if is_emulated else os.path.abspath(path)
        self.log_path = os.path.join(self.folder, "log")
        self.process = None
        self.port, self.port_lock = None, None
        self.preexec = None
        if start:
            try:
                self.start()
            except BaseException:
                self.close()
                raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.kill()
        self.give_port_back()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, seconds=START_SECONDS):
        """Starts the server, or starts it again on the same volume. Waits until it serves."""
        for attempt in range(PORT_TRIES):
            self.take_port()
            self.spawn()
            try:
                until(self.is_serving, seconds, "the server to serve")
                return self
            except StartError as error:
                if "in use" not in str(error) or attempt + 1 == PORT_TRIES:
                    raise
        return self

    def take_port(self):
        """Takes a port for the next start. No other test gets it until this server is closed."""
        self.give_port_back()
        self.port, self.port_lock = reserve_port()

    def give_port_back(self):
        if self.port_lock is not None:
            self.port_lock.close()
            self.port_lock = None

    def spawn(self):
        """Starts the server without waiting until it serves."""
        with open(self.log_path, "ab") as log:
            self.log_start = log.tell()
            self.process = subprocess.Popen(
                self.command_line(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=self.preexec,
            )

    def command_line(self):
        flags = {"port": self.port}
        if self.is_stock:
            os.makedirs(self.volume, exist_ok=True)
            flags |= {"dir": self.volume, "save": "", "appendonly": "yes"}
        else:
            flags |= {"volume": self.volume}
        line = [*self.launcher, *self.command]
        for name, value in (flags | self.flags).items():
            values = value if isinstance(value, (list, tuple)) else [value]
            line += [f"--{name}", *(str(value) for value in values)]
        return line

    def is_serving(self):
        """Whether the server answers and has recovered its data."""
        if self.process.poll() is not None:
            raise StartError(f"exit status {self.process.returncode}: {self.said()}")
        try:
            with self.client(timeout=5) as client:
                if self.flags.get("requirepass"):
                    # To a client without the password, the reply would be the same whether the
                    # server is still loading or already serves.
                    client.raw("AUTH", self.flags["requirepass"])
                kind, text = client.raw("PING")
                return kind == b"+" or text.startswith((b"NOAUTH", b"DENIED", b"MISCONF"))
        except OSError:
            return False

    def said(self):
        """The output since the last start."""
        with open(self.log_path, "rb") as log:
            log.seek(self.log_start)
            return log.read().decode(errors="replace")

    @property
    def address(self):
        return ("127.0.0.1", self.port)

    def client(self, timeout=20):
        return Client(self.address, timeout)

    def info(self, section="everything"):
        """The fields of INFO."""
        with self.client() as client:
            text = client("INFO", section).decode()
        return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)

    def is_alive(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        """Sends SIGKILL and waits for the end."""
        if self.is_alive():
            self.process.kill()
        if self.process is not None:
            self.process.wait()

    def terminate(self):
        """Sends SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)

    def restart(self):
        self.kill()
        return self.start()


def refusal(seconds=START_SECONDS, **options):
    """Starts a server that must refuse to start. Returns the server's output."""
    server = Server(start=False, **options)
    server.take_port()
    try:
        server.spawn()
        until(lambda: not server.is_alive() or server.is_serving(), seconds, "the server to refuse")
        if server.is_alive():
            raise AssertionError(f"the server serves instead of refusing: {server.said()}")
        if server.process.returncode == 0:
            raise AssertionError(f"the server ended with success instead of refusing: {server.said()}")
        if server.process.returncode < 0:
            raise AssertionError(f"signal {-server.process.returncode} ended the server: {server.said()}")
        return server.said()
    except StartError:
        # The server ended after `is_alive` and before `is_serving`.
        return server.said()
    finally:
        server.close()
