"""Waiting for a condition, with a deadline."""

import time

POLL_SECONDS = 0.01


def until(condition, seconds=20, what="the condition"):
    """Calls `condition` until it returns something true, and returns that."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s in vain for {what}")
        time.sleep(POLL_SECONDS)


class Absence:
    """How long a busy machine kept the test itself from running: the longest time between two calls
    of `look`."""

    def __init__(self):
        self.seconds = 0
        self._looked = time.monotonic()

    def look(self):
        now = time.monotonic()
        self.seconds = max(self.seconds, now - self._looked)
        self._looked = now
