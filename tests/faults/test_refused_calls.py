"""A filter refuses one of the system calls that a server makes. Each call is refused in turn. The
calls are found by tracing a server.

Either the server works in the next best way and says so, or it ends with a message that names the
call. There must be no other outcome: no panic, no signal, no hang. `slimio probe`, under the same
filter, predicts the outcome.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from harness import late_filter, refusing, tracing
from harness.resp import ReplyError
from harness.server import Server, StartError
from harness.target import TARGET, TestCase, slimio_only
from harness.wait import until

LOADER = "without this call, the loader can't start the program"
RUNTIME = "without this call, Rust's runtime aborts before `main`"
EXEMPT = {
    "execve": LOADER,
    "mmap": LOADER,
    "mprotect": LOADER,
    "openat": LOADER,
    "read": LOADER,
    "close": LOADER,
    "pread64": LOADER,
    "newfstatat": LOADER,
    "arch_prctl": LOADER,
    "poll": RUNTIME,
    "rt_sigaction": RUNTIME,
    "write": "without this call, the server can print no message",
    "exit": "without this call, no thread ends",
    "exit_group": "without this call, no process ends",
    "futex": "without this call, no thread can wait for another thread",
}

# The server can do without these calls, and reports what it does instead.
MADE_UP_FOR = ("fallocate", "pwritev2", "madvise", "sched_setattr", "prlimit64")

# If a filter refuses any of these calls, the server can't use io_uring. The numbers stand for
# IORING_REGISTER_FILES, IORING_REGISTER_PROBE and IORING_REGISTER_ENABLE_RINGS.
RINGS = (
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_register:0x2",
    "io_uring_register:0x8",
    "io_uring_register:0xc",
)

WORKERS = 3


def launcher(call, errno):
    return [sys.executable, "-B", refusing.__file__, "--errno", errno, refusing.show(call)]


def use(server):
    """Gives a server work of each kind, so that it makes all of its system calls."""
    with server.client() as client:
        client("SET", "k", "v" * 100_000)
        client("BGREWRITEAOF")
        until(lambda: server.info("persistence")["aof_rewrite_in_progress"] == "0")
        client("BGSAVE")
        until(lambda: server.info("persistence")["rdb_bgsave_in_progress"] == "0")
        client("SET", "short", "1", "PX", "1")
        client("MULTI")
        client("SET", "k", "w" * 100_000)
        client("EXEC")
        client("INFO", "everything")
        client("FLUSHALL")


class EachCall:
    """The tests for one I/O path. `backend` is a value of the directive `io-backend`."""

    backend = None

    def setUp(self):
        if TARGET.is_without_io_uring:
            self.skipTest("this test installs its own filters")
        if tracing.strace() is None:
            self.skipTest("strace is not installed")
        flags = {"io_backend": self.backend, "appendfsync": "always"}
        found = tracing.calls_of(use, **flags)
        for expected in ("fdatasync", "accept4" if self.backend == "plain" else "io_uring_enter"):
            self.assertIn(expected, found, "the trace must contain this call")
        self.calls = {name: call for name, call in found.items() if name not in EXEMPT}

    def check_all(self, errno):
        def one(name):
            try:
                self.check(name, errno)
            except Exception as error:
                return f"{name} refused by {errno}: {type(error).__name__}: {error}"

        with ThreadPoolExecutor(WORKERS) as pool:
            wrong = list(filter(None, pool.map(one, sorted(self.calls))))
        self.assertEqual(wrong, [])

    def check(self, name, errno):
        launch = launcher(self.calls[name], errno)
        probe = subprocess.run(
            [*launch, *TARGET.command[:-1], "probe"],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=TARGET.folder,
        )
        self.assertEqual(probe.returncode, 0, probe.stderr)
        self.assertNotIn("panicked", probe.stderr)
        says_uring = "\nio_uring: yes" in "\n" + probe.stdout
        says_plain = "plain system calls and epoll: yes" in probe.stdout
        options = {"io_backend": self.backend, "appendfsync": "always"}
        with Server(start=False, launcher=launch, **options) as server:
            try:
                server.start()
            except StartError:
                self.check_refusal(server, name)
                self.assertFalse(says_plain, f"probe must predict that no server starts: {probe.stdout}")
                return
            info = self.serve(server)
            io_path, why = info["io_path"], info["io_path_why_not_better"]
            if self.backend == "auto":
                self.assertEqual("through io_uring" in io_path, says_uring, probe.stdout)
                self.assertEqual(name not in RINGS, says_uring, probe.stdout)
            else:
                self.assertTrue(says_plain, probe.stdout)
            self.assertTrue("through io_uring" in io_path or "io_uring" in why, why)
            if info["net_path"] != "io_uring":
                self.assertNotEqual(info["net_path_why_not_better"], "")
            if name in MADE_UP_FOR:
                self.assertIn(f"{name} is refused", why)
                self.assertIn(f"{name} is refused", probe.stdout)
            server.kill()
            server.start()
            with server.client() as client:
                self.assertEqual(client("STRLEN", "k"), 100_000)
                self.assertEqual(client("GET", "l"), b"1")
            self.assertEqual(server.terminate(), 0, server.said())
            self.assertNotIn("panicked", server.said())

    def serve(self, server):
        with server.client() as client:
            self.assertEqual(client("SET", "k", "v" * 100_000), b"OK")
            self.assertEqual(client("STRLEN", "k"), 100_000)
            client("BGREWRITEAOF")
            self.assertEqual(client("SET", "l", "1"), b"OK")
        return server.info("slimio")

    def check_refusal(self, server, name):
        said, status = server.said(), server.process.returncode
        self.assertNotIn("panicked", said)
        self.assertEqual(status, 1, said)
        call = name.partition(":")[0]
        self.assertRegex(said, f"refuses (.*, )?{call}(, .*)? to this process .*: allow ")

    def test_by_eperm(self):
        self.check_all("EPERM")

    def test_by_enosys(self):
        self.check_all("ENOSYS")


@slimio_only
class EachCallOfTheBestPath(EachCall, TestCase):
    seconds = 60
    backend = "auto"


@slimio_only
class EachCallOfPlainCalls(EachCall, TestCase):
    seconds = 60
    backend = "plain"


@slimio_only
class Later(TestCase):
    """A preloaded library installs the filter only when the server already runs."""

    seconds = 10

    def setUp(self):
        if TARGET.is_without_io_uring:
            self.skipTest("this test installs its own filters")
        if late_filter.compiler() is None:
            self.skipTest("no C compiler is installed")

    def check(self, call, errno, then, backend="auto", policy="always"):
        """`then` is the outcome for the server: it "ends", "latches" (writes nothing more to its
        volume) or "goes on"."""
        options = {"io_backend": backend, "appendfsync": policy}
        with late_filter.FilteredServer(call, errno, **options) as server:
            with server.client() as client, server.client() as other:
                for index in range(20):
                    self.assertEqual(client("SET", f"k{index}", index), b"OK")
                self.assertEqual(other("PING"), b"PONG")
                server.put_filter_on()
                acknowledged = self.write_until_refused(client)
                if then == "ends":
                    self.assertGreater(server.process.wait(30), 0, server.said())
                    self.assertIn(call, server.said())
                else:
                    self.assertEqual(other("GET", "k7"), b"7")
                    info = server.info("slimio")
                    self.assertEqual(info["log_latched"], "1" if then == "latches" else "0")
                    self.assertEqual(acknowledged == 100, then == "goes on", server.said())
            self.assertNotIn("panicked", server.said())
            server.kill()
            server.take_filter_off()
            server.start()
            with server.client() as client:
                for index in range(20):
                    self.assertEqual(client("GET", f"k{index}"), b"%d" % index)
                self.assertGreaterEqual(int(client("GET", "n") or 0), acknowledged)

    def write_until_refused(self, client):
        """Does up to a hundred writes, and stops when one fails. Returns the number of acknowledged
        writes."""
        for count in range(100):
            try:
                client("INCR", "n")
            except ReplyError as error:
                self.assertIn("MISCONF", str(error))
                return count
            except OSError:
                return count
        return 100

    def test_io_uring_ends_the_server_with_a_sentence(self):
        for errno in ("EPERM", "ENOSYS"):
            for policy in ("always", "everysec"):
                self.check("io_uring_enter", errno, "ends", policy=policy)

    def test_epoll_ends_the_server_with_a_sentence(self):
        for errno in ("EPERM", "ENOSYS"):
            self.check("epoll_pwait", errno, "ends", backend="plain")

    def test_a_durable_write_that_is_refused_is_done_otherwise(self):
        for errno in ("EPERM", "ENOSYS"):
            self.check("pwritev2", errno, "goes on", backend="plain")

    def test_a_write_that_is_refused_latches(self):
        # Without these two calls, the server can't write to its volume.
        self.check("pwritev2,pwritev", "EPERM", "latches", backend="plain")

    def test_a_flush_that_is_refused_is_not_missed_where_writes_are_durable(self):
        self.check("fdatasync", "EPERM", "goes on", backend="plain")


