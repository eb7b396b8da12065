"""Waiting for a condition, with a deadline."""

import time

POLL_SECONDS = 0.01


def until(condition, seconds=20, what="the condition"):
    """Calls `condition` again and again until it returns something true. Returns that value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s in vain for {what}")
        time.sleep(POLL_SECONDS)


class Absence:
    """Measures the longest time between two successive calls of `look`. So a test can tell how long
    a busy machine kept the test itself from running."""

    def __init__(self):
        self.seconds = 0
        self._looked = time.monotonic()

    def look(self):
        now = time.monotonic()
        self.seconds = max(self.seconds, now - self._looked)
        self._looked = now
