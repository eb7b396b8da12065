"""Waiting clients hand elements on to each other, and the server is killed meanwhile. No element
may be served twice. An element whose push was acknowledged may be lost only if it was on its way to
a client."""

import random
import signal
import threading

from harness.server import Server
from harness.target import TARGET, TestCase, slimio_only

LIVES = 12
PUSHERS = 2
TAKERS = 3
SERVED_MAX = 150


class Takers:
    """The elements that clients have pushed and taken, over all lives of the server."""

    def __init__(self):
        self.lock = threading.Lock()
        self.taken = {}
        self.pushed = set()
        self.acknowledged = set()
        self.twice = []

    def take(self, element, life):
        with self.lock:
            if element in self.taken:
                self.twice.append((element, self.taken[element], life))
            self.taken[element] = life


class Kills(TestCase):
    """Base class of the tests. Each subclass has its own `appendfsync` policy."""

    policy = ""
    seconds = 40

    def push(self, server, name, life, all_of):
        """Pushes elements, a few at a time, until the connection breaks."""
        draw = random.Random(f"{TARGET.seed} {name} {life}")
        number = 0
        try:
            with server.client() as client:
                while True:
                    elements = [f"{life}:{name}:{number + index}" for index in range(draw.randint(1, 3))]
                    number += len(elements)
                    with all_of.lock:
                        all_of.pushed.update(elements)
                    client("RPUSH", draw.choice(["a", "b"]), *elements)
                    with all_of.lock:
                        all_of.acknowledged.update(elements)
        except (OSError, ConnectionError):
            return

    def take(self, server, index, life, all_of, done):
        """Waits for elements until the connection breaks. Some elements are moved to another list
        before they are taken."""
        try:
            with server.client() as client:
                while True:
                    if index == 0:
                        client("BLMOVE", "a", "moved", "LEFT", "RIGHT", 0)
                        continue
                    element = client("BLPOP", "moved", "b", "a", 0)[1]
                    all_of.take(element.decode(), life)
                    done.release()
        except (OSError, ConnectionError):
            return
        finally:
            done.release(SERVED_MAX)

    def run_lives(self, sign):
        all_of = Takers()
        with Server(appendfsync=self.policy) as server:
            for life in range(LIVES):
                draw = random.Random(f"{TARGET.seed} {self.policy} {life}")
                done = threading.Semaphore(0)
                threads = [threading.Thread(target=self.push, args=(server, f"p{index}", life, all_of))
                           for index in range(PUSHERS)]
                threads += [threading.Thread(target=self.take, args=(server, index, life, all_of, done))
                            for index in range(TAKERS)]
                for thread in threads:
                    thread.start()
                for _ in range(draw.randrange(1, SERVED_MAX)):
                    done.acquire()
                server.process.send_signal(sign)
                server.process.wait(30)
                for thread in threads:
                    thread.join()
                server.start()
            with server.client() as client:
                left = [element.decode() for key in ("a", "b", "moved") for element in client("LRANGE", key, 0, -1)]
        self.assertEqual(all_of.twice, [], "elements were served twice")
        self.assertEqual(len(left), len(set(left)), "elements are in the lists twice")
        self.assertEqual(set(left) & set(all_of.taken), set(), "elements are still in a list after they were served")
        self.assertLessEqual(set(left) | set(all_of.taken), all_of.pushed, "elements were never pushed")
        # Each kill may lose the elements of one reply for each client: those that were on their way
        # to the client.
        lost = all_of.acknowledged - set(left) - set(all_of.taken)
        self.assertLessEqual(len(lost), LIVES * TAKERS, f"too many elements are lost: {sorted(lost)}")
        self.assertGreater(len(all_of.taken), LIVES, "too few elements were served")


@slimio_only
class Always(Kills):
    policy = "always"

    def test_sigkill(self):
        self.run_lives(signal.SIGKILL)

    def test_sigterm(self):
        self.run_lives(signal.SIGTERM)


@slimio_only
class EverySec(Kills):
    policy = "everysec"

    def test_sigkill(self):
        self.run_lives(signal.SIGKILL)
