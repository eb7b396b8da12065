"""SIGKILL and SIGTERM under load, fifty times each, under each policy: no acknowledged write is
lost.

A kill comes after a random number of acknowledged rounds, so it meets requests at every stage.
A round is a few writes of a client.
"""

import random
import signal
import threading

from harness.resp import ReplyError, encode
from harness.server import STOP_SECONDS, Server
from harness.target import TARGET, TestCase, slimio_only

LIVES = 50
WRITERS = 4
ACKNOWLEDGED_MAX = 120
# Number of rounds that a writer has in flight at once.
ROUNDS_AT_ONCE = 5


class Writer:
    """One connection that counts up, and records the last acknowledged numbers.

    Round n is `INCR count`, then a transaction that sets `a` and `b` to n, then a `SET` of `big`.
    In some rounds, the value of `big` has many blocks. After any crash, `a` must equal `b`, and
    `count` must equal `a` or be one more. All three must be between the last acknowledged and the
    last sent round.
    """

    def __init__(self, name):
        self.name = name
        self.sent = 0
        self.counted = 0
        self.paired = 0

    def run(self, server, on_round):
        """Runs rounds until the connection breaks."""
        try:
            with server.client() as client:
                while True:
                    first = self.sent + 1
                    rounds = range(first, first + ROUNDS_AT_ONCE)
                    self.sent = rounds[-1]
                    client.send(b"".join(self.requests(number) for number in rounds))
                    for number in rounds:
                        self.read_round(client, number)
                        on_round()
        except (OSError, ConnectionError):
            return

    def requests(self, number):
        parts = [
            ["INCR", f"{self.name}:count"],
            ["MULTI"],
            ["SET", f"{self.name}:a", number],
            ["SET", f"{self.name}:b", number],
            ["EXEC"],
            ["SET", f"{self.name}:big", f"{number}:" + "x" * (30_000 if number % 10 == 0 else 10)],
        ]
        return b"".join(encode(*part) for part in parts)

    def read_round(self, client, number):
        kind, value = client.read()
        if (kind, value) != (b":", number):
            raise AssertionError(f"{self.name}: INCR {number} replied {value}")
        self.counted = number
        for _ in range(3):
            client.read()
        kind, value = client.read()
        if (kind, value) != (b"*", [(b"+", b"OK")] * 2):
            raise AssertionError(f"{self.name}: EXEC {number} replied {value}")
        self.paired = number
        client.read()

    def check(self, test, client, when):
        """Compares the data set with the sent and the acknowledged rounds. The numbers of the next
        rounds follow those in the data set."""
        values = client("MGET", *(f"{self.name}:{what}" for what in ("count", "a", "b", "big")))
        count, first, second = (int(value or 0) for value in values[:3])
        big = int((values[3] or b"0").split(b":")[0])
        state = f"{when}: {self.name}: {count} {first} {second} {big}; {vars(self)}"
        test.assertEqual(first, second, f"only half of a transaction took effect: {state}")
        test.assertTrue(first <= count <= first + 1, f"writes took effect out of order: {state}")
        test.assertTrue(first - 1 <= big <= first, f"writes took effect out of order: {state}")
        test.assertTrue(self.counted <= count <= self.sent, f"lost or invented: {state}")
        test.assertTrue(self.paired <= first <= self.sent, f"lost or invented: {state}")
        if count > first:
            # The server ended within a round, so `a` and `b` are set to the round of `count`.
            client("MSET", f"{self.name}:a", count, f"{self.name}:b", count)
        client("SET", f"{self.name}:big", f"{count}:x")
        self.sent = self.counted = self.paired = count


class Lives(TestCase):
    """The common parts of the tests of each policy. This class itself has no tests."""

    policy = ""
    seconds = 60
    flags = {}

    def live_and_die(self, number, sign):
        draw = random.Random(f"{TARGET.seed} {self.policy} {sign} {number}")
        target = draw.randrange(1, ACKNOWLEDGED_MAX)
        done = threading.Semaphore(0)
        problems = []

        def work(writer):
            try:
                writer.run(self.server, done.release)
            except (AssertionError, ReplyError, ValueError) as error:
                problems.append(error)
            finally:
                # No more rounds will come, so the thread that waits for them is released.
                done.release(ACKNOWLEDGED_MAX)

        threads = [threading.Thread(target=work, args=(writer,)) for writer in self.writers]
        for thread in threads:
            thread.start()
        for _ in range(target):
            done.acquire()
        self.server.process.send_signal(sign)
        status = self.server.process.wait(STOP_SECONDS)
        for thread in threads:
            thread.join()
        self.assertEqual(problems, [])
        self.assertEqual(status, 0 if sign == signal.SIGTERM else -signal.SIGKILL)
        self.server.start()
        with self.server.client() as client:
            for writer in self.writers:
                writer.check(self, client, f"life {number}")

    def run_lives(self, sign):
        self.writers = [Writer(f"w{index}") for index in range(WRITERS)]
        with Server(appendfsync=self.policy, **self.flags) as self.server:
            for number in range(LIVES):
                self.live_and_die(number, sign)
            self.assertGreater(sum(writer.counted for writer in self.writers), LIVES)


class Always(Lives):
    policy = "always"

    def test_sigkill(self):
        self.run_lives(signal.SIGKILL)

    def test_sigterm(self):
        self.run_lives(signal.SIGTERM)


class EverySec(Lives):
    policy = "everysec"

    def test_sigkill(self):
        if TARGET.is_stock:
            self.skipTest("Redis delays writes while a flush runs, so it may lose acknowledged writes")
        self.run_lives(signal.SIGKILL)

    def test_sigterm(self):
        self.run_lives(signal.SIGTERM)


class No(Lives):
    policy = "no"

    def test_sigkill(self):
        self.run_lives(signal.SIGKILL)

    def test_sigterm(self):
        self.run_lives(signal.SIGTERM)


class Canary(Lives):
    """If the tests did not catch a server that keeps nothing, they would prove nothing."""

    policy = "no"
    seconds = 1
    flags = {"appendonly": "no"}

    def test_a_server_that_loses_everything_is_caught(self):
        with self.assertRaisesRegex(AssertionError, "lost or invented"):
            self.run_lives(signal.SIGKILL)


@slimio_only
class WithoutALog(TestCase):
    def test_appendonly_no_goes_back_to_nothing(self):
        with Server(appendonly="no") as server:
            with server.client() as client:
                self.assertEqual(client("SET", "k", "v"), b"OK")
            server.restart()
            with server.client() as client:
                self.assertEqual(client("GET", "k"), None)
